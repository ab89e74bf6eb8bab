//! The shell on a pseudo-terminal, which `script` (util-linux) provides: typing, waiting, reading.
//!
//! No test depends on timing. A key is pressed only after the shell has shown that it is in the
//! state in which the key has the tested meaning. Waits have no time limit.

use std::io::{self, Read, Write};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};

/// The sequence that the line editor sends to the terminal when it begins to read keys.
const BRACKETED_PASTE: &str = "\x1b[?2004h";

struct Terminal {
    child: Child,
    keys: Option<ChildStdin>,
    screen: Receiver<Vec<u8>>,
    /// Output that has been shown and not been awaited yet. Bytes, because a character may arrive
    /// in two pieces.
    seen: Vec<u8>,
}

impl Terminal {
    fn open(home: &std::path::Path) -> io::Result<Self> {
        let mut child = Command::new("script")
            // `exec`, because some shells would otherwise wait in between and handle Ctrl-C
            // themselves.
            .args(["-q", "-e", "-c", concat!("exec ", env!("CARGO_BIN_EXE_onehop")), "/dev/null"])
            .env("SHELL", "/bin/sh")
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
        Ok(Self { child, keys, screen, seen: Vec::new() })
    }

    fn press(&mut self, keys: &str) -> io::Result<()> {
        match &mut self.keys {
            Some(stdin) => stdin.write_all(keys.as_bytes()).and_then(|()| stdin.flush()),
            None => Ok(()),
        }
    }

    /// Waits until `text` is shown.
    #[track_caller]
    fn wait_for(&mut self, text: &str) {
        loop {
            if let Some(at) = self.seen.windows(text.len()).position(|shown| shown == text.as_bytes()) {
                self.seen.drain(..at + text.len());
                return;
            }
            match self.screen.recv() {
                Ok(bytes) => self.seen.extend(bytes),
                Err(_) => panic!("it ended without {text:?}: {}", String::from_utf8_lossy(&self.seen)),
            }
        }
    }

    /// Waits until the shell reads keys. Before that, the terminal would turn some keys into
    /// signals. The prompt alone is not sufficient, because it is redrawn with every key.
    #[track_caller]
    fn wait_for_prompt(&mut self) {
        self.wait_for(BRACKETED_PASTE);
        self.wait_for("onehop> ");
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
    terminal.wait_for_prompt();

    // A statement over two lines, and its footer.
    terminal.press("SELECT 40 +\r2 AS answer;\r")?;
    terminal.wait_for("│     42 │");
    terminal.wait_for("1 row · ");
    terminal.wait_for_prompt();

    // An error is printed, and ends nothing.
    terminal.press("SELECT nothing;\r")?;
    terminal.wait_for("error: ");
    terminal.wait_for_prompt();

    // Ctrl-C at the prompt drops the line.
    terminal.press("SELECT 'half\x03")?;
    terminal.wait_for_prompt();

    // Ctrl-C cancels a query that would take hours.
    terminal.press("SELECT count(*) FROM generate_series(1, 1000000000000);\r")?;
    terminal.wait_for("Ctrl-C cancels");
    terminal.press("\x03")?;
    terminal.wait_for("cancelled after ");
    terminal.wait_for_prompt();

    // Tab completes, dot-commands answer.
    terminal.press(".maxr\t 7\r")?;
    terminal.wait_for_prompt();
    terminal.press(".maxrows\r")?;
    terminal.wait_for("\n7\r\n");
    terminal.wait_for_prompt();
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
    terminal.wait_for_prompt();
    terminal.press("SELECT 'secret';\r")?;
    terminal.wait_for("1 row");
    terminal.wait_for_prompt();
    terminal.press("quit\r")?;
    assert_eq!(terminal.leave()?, Some(0));
    let mode = std::fs::metadata(home.path().join("onehop/history"))?.permissions().mode();
    assert_eq!(mode & 0o777, 0o600);
    Ok(())
}
