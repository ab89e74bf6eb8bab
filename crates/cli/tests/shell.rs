//! The shell on a terminal of its own, which `script` (util-linux) makes: typing, waiting, reading.

use std::io::{self, Read, Write};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

const PATIENCE: Duration = Duration::from_secs(30);

struct Terminal {
    child: Child,
    keys: Option<ChildStdin>,
    screen: Receiver<Vec<u8>>,
    /// What has been shown and not been waited for yet.
    seen: String,
}

impl Terminal {
    fn open(home: &std::path::Path) -> io::Result<Self> {
        let mut child = Command::new("script")
            .args(["-q", "-e", "-c", env!("CARGO_BIN_EXE_onehop"), "/dev/null"])
            .env("XDG_STATE_HOME", home)
            .env("TERM", "xterm")
            .env("NO_COLOR", "1")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()?;
        let (keys, mut shown) = (child.stdin.take(), child.stdout.take());
        let (sender, screen) = channel();
        std::thread::spawn(move || {
            let mut some = [0; 4096];
            while let Some(Ok(n @ 1..)) = shown.as_mut().map(|shown| shown.read(&mut some)) {
                if sender.send(some[..n].to_vec()).is_err() {
                    return;
                }
            }
        });
        Ok(Self { child, keys, screen, seen: String::new() })
    }

    fn press(&mut self, keys: &str) -> io::Result<()> {
        match &mut self.keys {
            Some(stdin) => stdin.write_all(keys.as_bytes()).and_then(|()| stdin.flush()),
            None => Ok(()),
        }
    }

    /// Waits until `text` is shown; what was shown before it.
    #[track_caller]
    fn wait_for(&mut self, text: &str) -> String {
        let began = Instant::now();
        loop {
            if let Some(at) = self.seen.find(text) {
                let rest = self.seen.split_off(at + text.len());
                return std::mem::replace(&mut self.seen, rest);
            }
            let left = PATIENCE.saturating_sub(began.elapsed());
            match self.screen.recv_timeout(left) {
                Ok(bytes) => self.seen.push_str(&String::from_utf8_lossy(&bytes)),
                Err(_) => panic!("{text:?} was not shown; this was: {:?}", self.seen),
            }
        }
    }

    fn leave(mut self) -> io::Result<Option<i32>> {
        drop(self.keys.take());
        Ok(self.child.wait()?.code())
    }
}

#[test]
fn a_session() -> io::Result<()> {
    let home = tempfile::tempdir()?;
    let mut terminal = Terminal::open(home.path())?;
    terminal.wait_for(".help for help");
    terminal.wait_for("onehop> ");

    // A statement over two lines, and its footer.
    terminal.press("SELECT 40 +\r2 AS answer;\r")?;
    terminal.wait_for("│     42 │");
    terminal.wait_for("1 row · ");
    terminal.wait_for("onehop> ");

    // An error is said, and ends nothing.
    terminal.press("SELECT nothing;\r")?;
    terminal.wait_for("error: ");
    terminal.wait_for("onehop> ");

    // Ctrl-C at the prompt drops the line.
    terminal.press("SELECT 'half\x03")?;
    terminal.wait_for("onehop> ");

    // Ctrl-C cancels a query that would take hours.
    terminal.press("SELECT count(*) FROM generate_series(1, 1000000000000);\r")?;
    terminal.wait_for("Ctrl-C cancels");
    terminal.press("\x03")?;
    terminal.wait_for("cancelled after ");
    terminal.wait_for("onehop> ");

    // Tab completes, dot-commands answer.
    terminal.press(".maxr\t 7\r")?;
    terminal.wait_for("onehop> ");
    terminal.press(".maxrows\r")?;
    terminal.wait_for("\n7\r\n");
    terminal.wait_for("onehop> ");
    terminal.press("\x04")?;
    assert_eq!(terminal.leave()?, Some(0));

    let history = std::fs::read_to_string(home.path().join("onehop/history"))?;
    assert!(history.contains("SELECT 40 +") && !history.contains("half"), "{history}");
    Ok(())
}

#[test]
fn the_history_is_its_owners_alone() -> io::Result<()> {
    use std::os::unix::fs::PermissionsExt;
    let home = tempfile::tempdir()?;
    let mut terminal = Terminal::open(home.path())?;
    terminal.wait_for("onehop> ");
    terminal.press("SELECT 'secret';\r")?;
    terminal.wait_for("1 row");
    terminal.wait_for("onehop> ");
    terminal.press("quit\r")?;
    assert_eq!(terminal.leave()?, Some(0));
    let mode = std::fs::metadata(home.path().join("onehop/history"))?.permissions().mode();
    assert_eq!(mode & 0o777, 0o600);
    Ok(())
}
