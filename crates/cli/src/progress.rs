//! The progress bar of a long statement. It is drawn on standard error, appears after two seconds,
//! and disappears when the statement ends.

use std::io::{self, Write};
use std::time::Duration;

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle, TermLike};
use onehop_engine::{LedgerSnapshot, Progress, Query};

use onehop_engine::units;

/// The minimum duration of a statement that shows a bar.
pub const APPEARS_AFTER: Duration = Duration::from_secs(2);

/// The interval between two updates.
pub const TICK: Duration = Duration::from_millis(100);

/// The permission to show a bar.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Bar {
    /// Shown after two seconds.
    Allowed,
    /// Never shown.
    Off,
}

/// The bar of one statement.
pub struct Meter {
    allowed: Bar,
    bar: Option<ProgressBar>,
}

impl Meter {
    /// Creates a bar that is not shown yet.
    pub fn new(allowed: Bar) -> Self {
        Self { allowed, bar: None }
    }

    /// Draws the progress of a statement.
    pub fn tick(&mut self, query: &Query) {
        self.show(query.progress(), query.elapsed(), || line(query));
    }

    /// Draws, if enough time has passed.
    pub fn show(&mut self, progress: Progress, elapsed: Duration, message: impl FnOnce() -> String) {
        if self.allowed == Bar::Off || elapsed < APPEARS_AFTER {
            return;
        }
        let target = || ProgressDrawTarget::term_like_with_hz(Box::new(Stderr), 10);
        let bar = self.bar.get_or_insert_with(|| ProgressBar::with_draw_target(None, target()));
        bar.set_style(style(progress));
        if progress.total > 0 {
            bar.set_length(progress.total);
            bar.set_position(progress.done.min(progress.total));
        }
        bar.set_message(message());
        bar.tick();
    }

    /// Runs `work` while the bar is hidden.
    pub fn aside<T>(&self, work: impl FnOnce() -> T) -> T {
        match &self.bar {
            Some(bar) => bar.suspend(work),
            None => work(),
        }
    }
}

impl Drop for Meter {
    fn drop(&mut self) {
        if let Some(bar) = &self.bar {
            bar.finish_and_clear();
        }
    }
}

/// Standard error, reported slightly narrower than it is. The bar is padded to the full width, and
/// the `^C` that the terminal writes after it would begin a new line, which would then be cleared
/// in place of the bar's.
#[derive(Debug)]
struct Stderr;

impl Stderr {
    fn say(&self, text: &str) -> io::Result<()> {
        io::stderr().lock().write_all(text.as_bytes())
    }

    fn size(&self) -> Option<(u16, u16)> {
        let size = rustix::termios::tcgetwinsize(io::stderr()).ok()?;
        (size.ws_col > 0 && size.ws_row > 0).then_some((size.ws_col, size.ws_row))
    }
}

impl TermLike for Stderr {
    fn width(&self) -> u16 {
        self.size().map_or(80, |(columns, _)| columns).saturating_sub(3).max(1)
    }

    fn height(&self) -> u16 {
        self.size().map_or(24, |(_, rows)| rows)
    }

    fn move_cursor_up(&self, n: usize) -> io::Result<()> {
        if n > 0 { self.say(&format!("\x1b[{n}A")) } else { Ok(()) }
    }

    fn move_cursor_down(&self, n: usize) -> io::Result<()> {
        if n > 0 { self.say(&format!("\x1b[{n}B")) } else { Ok(()) }
    }

    fn move_cursor_right(&self, n: usize) -> io::Result<()> {
        if n > 0 { self.say(&format!("\x1b[{n}C")) } else { Ok(()) }
    }

    fn move_cursor_left(&self, n: usize) -> io::Result<()> {
        if n > 0 { self.say(&format!("\x1b[{n}D")) } else { Ok(()) }
    }

    fn write_line(&self, text: &str) -> io::Result<()> {
        self.say(&format!("{text}\n"))
    }

    fn write_str(&self, text: &str) -> io::Result<()> {
        self.say(text)
    }

    fn clear_line(&self) -> io::Result<()> {
        self.say("\r\x1b[2K")
    }

    fn flush(&self) -> io::Result<()> {
        io::stderr().lock().flush()
    }
}

fn style(progress: Progress) -> ProgressStyle {
    let template = if progress.total > 0 { "{bar:32} {percent:>3} % · {msg}" } else { "{spinner} {msg}" };
    ProgressStyle::with_template(template)
        .unwrap_or_else(|_| ProgressStyle::default_bar())
        .progress_chars("█▉▊▋▌▍▎▏ ")
        .tick_chars("⠋⠙⠹⠸⠼⠴⠦⠧⠇⠏ ")
}

/// Returns the text beside a statement's bar.
pub fn line(query: &Query) -> String {
    message(query.progress(), &query.ledger(), query.elapsed())
}

fn message(progress: Progress, ledger: &LedgerSnapshot, elapsed: Duration) -> String {
    let mut parts = vec![coarse(elapsed)];
    if let Some(left) = remaining(progress, elapsed) {
        parts.push(format!("about {} left", coarse(left)));
    }
    if ledger.read_bytes() > 0 {
        let rate = units::rate(ledger.read_bytes(), elapsed).unwrap_or_default();
        parts.push(format!("{} read at {rate}", units::bytes(ledger.read_bytes())));
    }
    parts.push("Ctrl-C cancels".into());
    parts.join(" · ")
}

/// Formats a running time in whole seconds.
fn coarse(time: Duration) -> String {
    match time.as_secs() {
        seconds @ 0..60 => format!("{seconds} s"),
        seconds => units::time(Duration::from_secs(seconds)),
    }
}

/// Extrapolates the remaining time linearly, once enough is done for that.
fn remaining(progress: Progress, elapsed: Duration) -> Option<Duration> {
    let share = progress.done as f64 / progress.total.max(1) as f64;
    if progress.total == 0 || !(0.05..1.0).contains(&share) {
        return None;
    }
    Some(Duration::from_secs((elapsed.as_secs_f64() * (1.0 - share) / share).ceil() as u64))
}

#[cfg(test)]
mod tests {
    use onehop_engine::{Hop, Ledger};

    use super::*;

    #[test]
    fn the_message_says_time_left_and_throughput() {
        let ledger = Ledger::default();
        ledger.moved(Hop::StorageToHost, 4_000_000_000);
        let text = message(Progress { done: 25, total: 100 }, &ledger.snapshot(), Duration::from_secs(4));
        assert_eq!(text, "4 s · about 12 s left · 4.00 GB read at 1.00 GB/s · Ctrl-C cancels");
    }

    #[test]
    fn nothing_is_foretold_from_nothing() {
        let second = Duration::from_secs(1);
        assert_eq!(remaining(Progress { done: 0, total: 0 }, second), None);
        assert_eq!(remaining(Progress { done: 1, total: 100 }, second), None);
        assert_eq!(remaining(Progress { done: 100, total: 100 }, second), None);
    }
}
