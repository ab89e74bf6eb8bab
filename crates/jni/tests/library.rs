//! The library that Java loads is built along with the workspace's tests, and has every function that Java calls.

#![allow(clippy::unwrap_used)]

#[test]
fn the_library_is_beside_the_tests_and_has_what_java_calls() {
    let tests = std::env::current_exe().unwrap();
    let library = tests.parent().unwrap().join("libonehop_jni.so");
    let bytes = std::fs::read(&library).unwrap_or_else(|e| panic!("{}: {e}", library.display()));
    let java = include_str!("../../../jvm/src/main/java/io/onehop/rados/Native.java");
    let mut functions = 0;
    for declaration in java.lines().filter(|line| line.trim_start().starts_with("static native ")) {
        let name = declaration.split_once('(').unwrap().0.rsplit(' ').next().unwrap();
        let entry = format!("Java_io_onehop_rados_Native_{name}\0");
        assert!(bytes.windows(entry.len()).any(|seen| seen == entry.as_bytes()), "there is no {entry:?}");
        functions += 1;
    }
    assert!(functions > 20, "{functions}");
}
