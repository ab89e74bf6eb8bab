//! The history, in `$XDG_STATE_HOME/onehop/history` (or `~/.local/state/onehop/history`). Only its
//! owner can read it, because statements contain data. A line that begins with a blank is not kept.
//! Without a home, or if the disk refuses writes, the shell works without a persistent history.

use std::ffi::OsString;
use std::fs::{DirBuilder, OpenOptions};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use super::LineEditor;

/// The maximum number of entries.
pub const ENTRIES: usize = 10_000;

/// Loads the history. Returns the path for new entries.
pub fn open(editor: &mut LineEditor) -> Option<PathBuf> {
    let path = path(|name| std::env::var_os(name))?;
    DirBuilder::new().recursive(true).mode(0o700).create(path.parent()?).ok()?;
    // Created here rather than by the editor, so that it is private from its first byte.
    OpenOptions::new().append(true).create(true).mode(0o600).open(&path).ok()?;
    let _ = editor.load_history(&path);
    Some(path)
}

/// Adds an entry at once, so that a killed shell loses nothing.
pub fn remember(editor: &mut LineEditor, text: &str, path: Option<&Path>) {
    let text = text.trim_end();
    if text.trim().is_empty() || !editor.add_history_entry(text).unwrap_or(false) {
        return;
    }
    if let Some(path) = path {
        let _ = editor.append_history(path);
    }
}

fn path(variable: impl Fn(&str) -> Option<OsString>) -> Option<PathBuf> {
    // The specification says to ignore relative paths.
    let absolute = |name| variable(name).map(PathBuf::from).filter(|path| path.is_absolute());
    let state = absolute("XDG_STATE_HOME").or_else(|| Some(absolute("HOME")?.join(".local/state")))?;
    Some(state.join("onehop/history"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_history_lies_where_xdg_says() {
        let with = |pairs: &'static [(&str, &str)]| {
            path(move |name| pairs.iter().find(|(known, _)| *known == name).map(|(_, value)| value.into()))
        };
        assert_eq!(with(&[("XDG_STATE_HOME", "/s"), ("HOME", "/h")]), Some("/s/onehop/history".into()));
        assert_eq!(with(&[("XDG_STATE_HOME", "rel"), ("HOME", "/h")]), Some("/h/.local/state/onehop/history".into()));
        assert_eq!(with(&[]), None);
    }
}
