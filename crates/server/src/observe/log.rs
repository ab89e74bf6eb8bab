//! A log of JSON lines, with `time` and `event` first, for `jq` and log collectors.
//!
//! Events enter a queue. A thread formats and writes them, in groups if many wait. An event that
//! finds the queue full is dropped and counted, and the count becomes a line of its own once there
//! is space. The file is always appended at its current end, so that log rotation may truncate it.

use std::fs::OpenOptions;
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::mpsc::{Receiver, SyncSender, TrySendError, channel, sync_channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant, SystemTime};

use chrono::{DateTime, SecondsFormat, Utc};
use serde_json::Value;

use crate::server::{Error, Result};

/// The maximum number of queued events.
const MOST_WAITING: usize = 4096;
/// The maximum number of lines per write.
const AT_ONCE: usize = 256;

/// The destination of a log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LogTo {
    /// The process's standard error.
    StandardError,
    /// A file that is appended to. It is created for its owner alone, because statements contain
    /// values.
    File(PathBuf),
}

/// An event.
#[derive(Debug)]
pub struct Event {
    time: SystemTime,
    name: &'static str,
    fields: Vec<(&'static str, Value)>,
}

impl Event {
    /// Creates an event with the current time.
    pub fn new(name: &'static str) -> Self {
        Self { time: SystemTime::now(), name, fields: Vec::new() }
    }

    /// Adds a field.
    pub fn with(mut self, field: &'static str, value: impl Into<Value>) -> Self {
        self.fields.push((field, value.into()));
        self
    }

    /// Adds a field if its value is present.
    pub fn with_some(self, field: &'static str, value: Option<impl Into<Value>>) -> Self {
        match value {
            Some(value) => self.with(field, value),
            None => self,
        }
    }

    /// Appends the event's line. Foreign texts are JSON strings, which contain no line ends.
    fn put(&self, into: &mut Vec<u8>) {
        let time = DateTime::<Utc>::from(self.time).to_rfc3339_opts(SecondsFormat::Millis, true);
        // Writing to memory does not fail.
        let _ = write!(into, "{{\"time\":\"{time}\",\"event\":\"{}\"", self.name);
        for (field, value) in &self.fields {
            let _ = write!(into, ",\"{field}\":{value}");
        }
        into.extend_from_slice(b"}\n");
    }
}

enum Message {
    Event(Event),
    /// No event follows.
    End,
}

/// An open log.
#[derive(Debug)]
pub struct Log {
    queue: SyncSender<Message>,
    /// The number of dropped events that no line reports yet.
    dropped: Arc<AtomicU64>,
    /// The total number of lost lines.
    lost: Arc<AtomicU64>,
    /// Closed when everything is written.
    written: Mutex<Receiver<()>>,
}

impl Log {
    /// Opens a log.
    ///
    /// # Errors
    /// Fails if the file cannot be opened or the thread cannot start.
    pub fn open(to: &LogTo, name: &'static str) -> Result<Self> {
        let failed = |source| match to {
            LogTo::StandardError => Error::Log { name, path: "-".into(), source },
            LogTo::File(path) => Error::Log { name, path: path.clone(), source },
        };
        let sink: Box<dyn Write + Send> = match to {
            LogTo::StandardError => Box::new(io::stderr()),
            LogTo::File(path) => {
                let file = OpenOptions::new().append(true).create(true).mode(0o600).open(path);
                Box::new(file.map_err(failed)?)
            }
        };
        Self::to(sink, name, MOST_WAITING).map_err(failed)
    }

    fn to(sink: Box<dyn Write + Send>, name: &'static str, most_waiting: usize) -> io::Result<Self> {
        let (queue, events) = sync_channel(most_waiting);
        let (end, written) = channel();
        let (dropped, lost) = (Arc::<AtomicU64>::default(), Arc::<AtomicU64>::default());
        let (theirs, all) = (Arc::clone(&dropped), Arc::clone(&lost));
        let mut writer = Writer { sink, name, dropped: theirs, lost: all, is_torn: false, has_complained: false };
        std::thread::Builder::new().name("onehop-log".into()).spawn(move || {
            writer.run(&events);
            drop(end);
        })?;
        Ok(Self { queue, dropped, lost, written: Mutex::new(written) })
    }

    /// Returns the number of lines that were lost to write errors or a full queue.
    pub fn lost(&self) -> u64 {
        self.lost.load(Relaxed)
    }

    /// Queues an event, or drops it if the queue is full.
    pub fn say(&self, event: Event) {
        if self.queue.try_send(Message::Event(event)).is_err() {
            self.dropped.fetch_add(1, Relaxed);
            self.lost.fetch_add(1, Relaxed);
        }
    }

    /// Waits until all events are written, for at most `most`.
    pub fn end(&self, most: Duration) {
        let until = Instant::now() + most;
        while let Err(TrySendError::Full(_)) = self.queue.try_send(Message::End) {
            if Instant::now() >= until {
                return;
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        let written = self.written.lock().unwrap_or_else(PoisonError::into_inner);
        let _ = written.recv_timeout(until.saturating_duration_since(Instant::now()));
    }
}

struct Writer {
    sink: Box<dyn Write + Send>,
    /// The name of the log in messages.
    name: &'static str,
    dropped: Arc<AtomicU64>,
    lost: Arc<AtomicU64>,
    /// True if the last line may be incomplete.
    is_torn: bool,
    has_complained: bool,
}

impl Writer {
    fn run(&mut self, events: &Receiver<Message>) {
        let mut lines = Vec::new();
        while let Ok(first) = events.recv() {
            let (mut count, mut is_last) = (0, false);
            if self.is_torn {
                lines.push(b'\n');
            }
            for message in std::iter::once(first).chain(events.try_iter().take(AT_ONCE)) {
                match message {
                    Message::Event(event) => {
                        event.put(&mut lines);
                        count += 1;
                    }
                    Message::End => is_last = true,
                }
            }
            let dropped = self.dropped.swap(0, Relaxed);
            if dropped > 0 {
                Event::new("dropped").with("count", dropped).put(&mut lines);
            }
            let written = self.sink.write_all(&lines).and_then(|()| self.sink.flush());
            self.is_torn = written.is_err();
            if let Err(e) = written {
                self.dropped.fetch_add(dropped + count, Relaxed);
                self.lost.fetch_add(count, Relaxed);
                if !std::mem::replace(&mut self.has_complained, true) {
                    let name = self.name;
                    eprintln!("onehop: cannot write to {name}: {e}; lines are missing from it until that is over");
                }
            }
            lines.clear();
            if is_last {
                return;
            }
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use std::sync::mpsc::Sender;

    use super::*;

    /// A slow or full file. The test supplies the result of each write.
    struct Slow {
        turns: Receiver<io::Result<()>>,
        written: Sender<String>,
    }

    impl Write for Slow {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.turns.recv().unwrap_or(Ok(()))?;
            self.written.send(String::from_utf8(bytes.to_vec()).unwrap()).unwrap();
            Ok(bytes.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    fn slow(most_waiting: usize) -> (Log, Sender<io::Result<()>>, Receiver<String>) {
        let ((turn, turns), (written, lines)) = (channel(), channel());
        (Log::to(Box::new(Slow { turns, written }), "the log", most_waiting).unwrap(), turn, lines)
    }

    fn events(text: &str) -> Vec<String> {
        let event = |line: &str| serde_json::from_str::<Value>(line).unwrap()["event"].as_str().unwrap().to_string();
        text.lines().filter(|line| !line.is_empty()).map(event).collect()
    }

    #[test]
    fn what_does_not_fit_is_counted() {
        let (log, turn, lines) = slow(2);
        log.say(Event::new("first"));
        // The first event is being written, and two more wait.
        while log.queue.try_send(Message::Event(Event::new("waits"))).is_ok() {
            std::thread::sleep(Duration::from_millis(20));
        }
        (0..3).for_each(|_| log.say(Event::new("too many")));
        drop(turn);
        log.end(Duration::from_secs(60));
        let all: String = lines.iter().collect();
        assert_eq!(events(&all).iter().filter(|event| *event == "dropped").count(), 1, "{all}");
        assert!(all.contains("\"event\":\"dropped\",\"count\":3}"), "{all}");
        assert!(!all.contains("too many"), "{all}");
        assert_eq!(log.lost(), 3);
    }

    #[test]
    fn what_cannot_be_written_is_counted_and_spoils_no_other_line() {
        let (log, turn, lines) = slow(8);
        turn.send(Err(io::ErrorKind::StorageFull.into())).unwrap();
        log.say(Event::new("lost"));
        while !log.dropped.load(Relaxed).eq(&1) {
            std::thread::sleep(Duration::from_millis(5));
        }
        turn.send(Ok(())).unwrap();
        log.say(Event::new("next"));
        let text = lines.recv().unwrap();
        assert!(text.starts_with('\n'), "half a line may be before it: {text}");
        assert_eq!(events(&text), ["next", "dropped"]);
        assert_eq!(log.lost(), 1);
    }

    #[test]
    fn a_line_is_one_line_whatever_is_in_it() {
        let mut line = Vec::new();
        let text = "SELECT '\r\n\"}\u{0}\u{2028}' -- \u{1b}[2J";
        Event::new("statement").with("text", text).with_some("error", None::<&str>).put(&mut line);
        let line = String::from_utf8(line).unwrap();
        assert_eq!(line.find('\n'), Some(line.len() - 1));
        assert!(!line.trim_end().chars().any(char::is_control), "{line}");
        let value: Value = serde_json::from_str(&line).unwrap();
        assert_eq!((&value["text"], value.get("error")), (&text.into(), None));
        let time = value["time"].as_str().unwrap();
        assert_eq!((time.len(), time.ends_with('Z')), ("2026-11-25T12:34:56.789Z".len(), true), "{time}");
    }
}
