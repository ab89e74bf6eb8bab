//! Records the source and profile of the binary, for `--version` and benchmarks: `ONEHOP_COMMIT`
//! and `ONEHOP_PROFILE`. The commit is empty outside of a clone of this repository, and ends in
//! `+changes` if files differed from it. The script only reads from git and writes nothing. Without
//! git there is no commit to name.

use std::env;
use std::path::{Path, PathBuf};
use std::process::Command;

fn main() {
    let root = env::var_os("CARGO_MANIFEST_DIR").map(PathBuf::from).unwrap_or_default().join("../..");
    // Anything that changes the answer: a source file (git status), a commit, another branch.
    for path in ["crates", "Cargo.toml", "Cargo.lock", ".git/HEAD", ".git/logs/HEAD"] {
        let path = root.join(path);
        // A missing path would run this script at every build.
        if path.exists() {
            println!("cargo::rerun-if-changed={}", path.display());
        }
    }
    let commit = commit(&root).unwrap_or_default();
    let version = env!("CARGO_PKG_VERSION");
    let text = if commit.is_empty() { version.to_string() } else { format!("{version} ({commit})") };
    println!("cargo::rustc-env=ONEHOP_VERSION={text}");
    println!("cargo::rustc-env=ONEHOP_COMMIT={commit}");
    println!("cargo::rustc-env=ONEHOP_PROFILE={}", env::var("PROFILE").unwrap_or_default());
}

fn commit(root: &Path) -> Option<String> {
    // In a source archive inside of another repository's clone, git would name that clone's commit.
    let top = git(root, &["rev-parse", "--show-toplevel"])?;
    if Path::new(&top).canonicalize().ok()? != root.canonicalize().ok()? {
        return None;
    }
    let hash = git(root, &["rev-parse", "--short=12", "HEAD"])?;
    let changed = git(root, &["status", "--porcelain", "--untracked-files=no"])?;
    Some(if changed.is_empty() { hash } else { format!("{hash}+changes") })
}

fn git(root: &Path, words: &[&str]) -> Option<String> {
    // The query must not take the lock that a concurrent commit needs.
    let output = Command::new("git").arg("--no-optional-locks").arg("-C").arg(root).args(words).output().ok()?;
    let text = String::from_utf8(output.stdout).ok()?;
    output.status.success().then(|| text.trim().to_string())
}
