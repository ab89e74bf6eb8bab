//! The library that Python loads is built along with the workspace's tests, and has the entry that Python looks for.

#![allow(clippy::unwrap_used)]

#[test]
fn the_library_is_beside_the_tests() {
    const ENTRY: &[u8] = b"PyInit__onehop\0";
    let tests = std::env::current_exe().unwrap();
    let library = tests.parent().unwrap().join("lib_onehop.so");
    let bytes = std::fs::read(&library).unwrap_or_else(|e| panic!("{}: {e}", library.display()));
    assert!(bytes.windows(ENTRY.len()).any(|name| name == ENTRY), "{} has no {ENTRY:?}", library.display());
}
