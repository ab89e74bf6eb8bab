//! Handles that are valid, stale, truncated or forged, and damaged files.

use std::fs::{self, OpenOptions};
use std::os::unix::fs::FileExt;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use arrow::buffer::Buffer;
use onehop_pipeline::arrays::Element;

use super::handle::Handle;
use super::import::import_from;
use super::*;
use crate::arrays::{Array, Arrays, Memory};

struct Place {
    folder: tempfile::TempDir,
    exports: Exports,
}

impl Place {
    fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let exports = Exports::within(folder.path());
        Self { folder, exports }
    }

    fn export(&self) -> String {
        let array =
            |element, buffer: Buffer| Array { element, rows: 1000, columns: None, memory: Memory::Host(buffer) };
        let arrays = vec![
            array(Element::Int64, Buffer::from_vec((0..1000i64).collect::<Vec<_>>())),
            array(Element::UInt8, Buffer::from_vec((0..1000).map(|n| n as u8).collect::<Vec<_>>())),
        ];
        self.exports.export("t", Arrays { columns: vec!["x".into(), "y".into()], arrays }, None).unwrap()
    }

    fn import(&self, handle: &str, columns: &[&str]) -> Result<Arrays, Error> {
        let columns: Vec<String> = columns.iter().map(ToString::to_string).collect();
        import_from(self.folder.path(), handle, &columns, None)
    }

    fn fails(&self, handle: &str, kind: ErrorKind) -> String {
        let error = self.import(handle, &[]).unwrap_err();
        assert_eq!(error.kind(), kind, "{error:?}");
        error.message().to_string()
    }

    fn content(&self, handle: &str) -> PathBuf {
        Files::of(self.folder.path(), &Handle::parse(handle).unwrap().id).content
    }

    fn files(&self) -> usize {
        fs::read_dir(self.folder.path()).unwrap().count()
    }
}

fn bytes(array: &Array) -> &[u8] {
    match &array.memory {
        Memory::Host(buffer) => buffer.as_slice(),
        Memory::Device(_) => panic!("in a device's memory"),
    }
}

#[test]
fn what_is_imported_is_what_was_exported_and_outlives_it() {
    let place = Place::new();
    let handle = place.export();
    let all = place.import(&handle, &[]).unwrap();
    assert_eq!(all.columns, ["x", "y"]);
    let swapped = place.import(&format!(" {handle}\n"), &["y", "x"]).unwrap();
    assert_eq!((swapped.arrays[0].element, swapped.arrays[0].rows), (Element::UInt8, 1000));
    assert_eq!(swapped.arrays[1].element, Element::Int64);
    assert!(place.exports.release(&handle).unwrap());
    assert!(!place.exports.release(&handle).unwrap());
    assert_eq!(place.files(), 0);
    place.fails(&handle, ErrorKind::NotFound);
    let expected: Vec<u8> = (0..1000i64).flat_map(i64::to_ne_bytes).collect();
    assert!(bytes(&all.arrays[0]) == expected && bytes(&swapped.arrays[1]) == expected);
    assert!(all.arrays[0].address().is_multiple_of(4096));
}

#[test]
fn exports_end_with_their_database() {
    let place = Place::new();
    let handle = place.export();
    let Place { folder, exports } = place;
    drop(exports);
    let place = Place { exports: Exports::within(folder.path()), folder };
    assert_eq!(place.files(), 0);
    place.fails(&handle, ErrorKind::NotFound);
}

/// As after a kill of the process: the files exist, and the lock is free.
#[test]
fn what_a_killed_process_left_is_found_and_removed() {
    let place = Place::new();
    let handle = place.export();
    let (content, copy) = (place.content(&handle), place.folder.path().join("copy"));
    fs::copy(&content, &copy).unwrap();
    assert!(place.exports.release(&handle).unwrap());
    fs::rename(&copy, &content).unwrap();
    fs::write(content.with_extension("lease"), []).unwrap();
    assert_eq!(place.files(), 2);
    assert!(place.fails(&handle, ErrorKind::NotFound).contains("gone"));
    assert_eq!(place.files(), 0);
}

/// An export also removes the files of others, if they are old enough.
#[test]
fn what_nobody_asks_for_is_removed_by_the_next_export() {
    let place = Place::new();
    let lease = |name: &str, age: Duration| {
        let path = place.folder.path().join(format!("onehop-{name}.lease"));
        fs::write(path.with_extension(""), "content").unwrap();
        let file = fs::File::create(path).unwrap();
        file.set_modified(SystemTime::now() - age).unwrap();
        file
    };
    lease("left", Duration::from_secs(3600));
    // One lease is new and not locked yet; the other is old and in use.
    lease("new", Duration::ZERO);
    let used = lease("used", Duration::from_secs(3600));
    rustix::fs::flock(&used, rustix::fs::FlockOperation::NonBlockingLockExclusive).unwrap();
    fs::write(place.folder.path().join("other.lease"), []).unwrap();
    let handle = place.export();
    assert!(place.import(&handle, &[]).is_ok());
    let mut names: Vec<String> = fs::read_dir(place.folder.path())
        .unwrap()
        .map(|file| file.unwrap().file_name().into_string().unwrap())
        .collect();
    names.retain(|name| !name.contains(&Handle::parse(&handle).unwrap().id));
    names.sort();
    assert_eq!(names, ["onehop-new", "onehop-new.lease", "onehop-used", "onehop-used.lease", "other.lease"]);
}

#[test]
fn texts_that_are_no_handles_are_errors() {
    let place = Place::new();
    let handle = place.export();
    for text in ["", "onehop-1", "x", "onehop-1:", "onehop-:a:b:c", "onehop-0:a:b:c", "ONEHOP-1:a:b:c", "\u{e9}:\u{e9}"]
    {
        place.fails(text, ErrorKind::Invalid);
    }
    // Truncated at any byte, or with any one digit changed.
    for end in 0..handle.len() {
        place.fails(&handle[..end], ErrorKind::Invalid);
    }
    for at in 9..handle.len() {
        let mut forged = handle.clone().into_bytes();
        forged[at] = if forged[at] == b'0' { b'1' } else { b'0' };
        place.fails(std::str::from_utf8(&forged).unwrap(), ErrorKind::Invalid);
    }
    place.fails(&handle.replace("onehop-1", "onehop-2"), ErrorKind::TooNew);
    assert!(place.exports.release("x").is_err());
    assert!(place.import(&handle, &[]).is_ok());
}

#[test]
fn secrets_that_were_made_up_are_refused() {
    let place = Place::new();
    let (one, other) = (Handle::parse(&place.export()).unwrap(), Handle::parse(&place.export()).unwrap());
    let forged = Handle { id: one.id.clone(), secret: other.secret.clone() };
    assert!(place.fails(&forged.to_string(), ErrorKind::Denied).contains("secret"));
    let unknown = Handle { id: one.secret, secret: other.secret };
    place.fails(&unknown.to_string(), ErrorKind::NotFound);
}

#[test]
fn columns_that_are_not_there_are_named() {
    let place = Place::new();
    let error = place.import(&place.export(), &["x", "z"]).unwrap_err();
    assert!(error.kind() == ErrorKind::NotFound && error.message().contains("\"z\""), "{error:?}");
}

#[test]
fn damaged_content_is_an_error() {
    let place = Place::new();
    let handle = place.export();
    let content = place.content(&handle);
    let whole = fs::read(&content).unwrap();
    let file = OpenOptions::new().write(true).open(&content).unwrap();
    let manifest = u32::from_le_bytes(whole[8..12].try_into().unwrap()) as usize;
    for (at, byte) in whole.iter().enumerate().take(16 + manifest) {
        file.write_all_at(&[byte ^ 0x10], at as u64).unwrap();
        let error = place.import(&handle, &[]).unwrap_err();
        assert!([ErrorKind::Corrupt, ErrorKind::TooNew].contains(&error.kind()), "{at}: {error:?}");
        file.write_all_at(&[*byte], at as u64).unwrap();
    }
    for length in [0, 10, 16, 100, 4096, whole.len() - 1000] {
        file.set_len(length as u64).unwrap();
        place.fails(&handle, ErrorKind::Corrupt);
    }
    file.set_len(0).unwrap();
    file.write_all_at(&whole, 0).unwrap();
    assert!(place.import(&handle, &[]).is_ok());
    // A complete manifest with impossible values.
    for (from, to) in
        [("1000", "9999"), ("int64", "int65"), ("\"at\":4096", "\"at\":4097"), ("\"at\":4096", "\"at\":8888888888")]
    {
        let text = String::from_utf8(whole[16..16 + manifest].to_vec()).unwrap().replacen(from, to, 1);
        let mut lying = whole.clone();
        lying[16..16 + text.len()].copy_from_slice(text.as_bytes());
        lying[8..12].copy_from_slice(&(text.len() as u32).to_le_bytes());
        lying[12..16].copy_from_slice(&crc32c::crc32c(text.as_bytes()).to_le_bytes());
        file.write_all_at(&lying, 0).unwrap();
        place.fails(&handle, ErrorKind::Corrupt);
    }
}

#[test]
fn links_and_other_things_are_not_followed() {
    let place = Place::new();
    let handle = place.export();
    let content = place.content(&handle);
    let elsewhere = place.folder.path().join("elsewhere");
    fs::rename(&content, &elsewhere).unwrap();
    std::os::unix::fs::symlink(&elsewhere, &content).unwrap();
    assert!(place.import(&handle, &[]).is_err());
    fs::remove_file(&content).unwrap();
    fs::create_dir(&content).unwrap();
    assert!(place.import(&handle, &[]).is_err());
    fs::remove_dir(&content).unwrap();
}

#[test]
fn exports_have_a_number_and_need_a_folder() {
    let place = Place::new();
    let handles: Vec<String> = (0..MOST).map(|_| place.export()).collect();
    let arrays = || Arrays { columns: Vec::new(), arrays: Vec::new() };
    assert_eq!(place.exports.export("t", arrays(), None).unwrap_err().kind(), ErrorKind::Resources);
    place.exports.release(&handles[7]).unwrap();
    place.exports.export("t", arrays(), None).unwrap();
    let nowhere = Exports::within(&place.folder.path().join("nowhere"));
    let error = nowhere.export("t", arrays(), None).unwrap_err();
    assert!(error.kind() == ErrorKind::Io && error.message().contains("nowhere"), "{error:?}");
}

/// A device's memory stays as long as another process has it open.
#[test]
fn memory_of_a_device_is_let_go_when_nobody_has_it_open() {
    #[derive(Debug)]
    struct Fake;
    impl onehop_pipeline::arrays::DeviceMemory for Fake {
        fn ordinal(&self) -> i32 {
            0
        }
        fn address(&self) -> u64 {
            4096
        }
        fn bytes(&self) -> u64 {
            8
        }
        fn share(&self) -> onehop_pipeline::Result<[u8; 64]> {
            Ok([7; 64])
        }
    }
    let place = Place::new();
    let memory: Arc<dyn onehop_pipeline::arrays::DeviceMemory> = Arc::new(Fake);
    let export = || {
        let array =
            Array { element: Element::Int64, rows: 1, columns: None, memory: Memory::Device(Arc::clone(&memory)) };
        let arrays = Arrays { columns: vec!["x".into()], arrays: vec![array] };
        place.exports.export("t", arrays, Some(("cuda:0".into(), [9; 16]))).unwrap()
    };
    let (one, other) = (export(), export());
    assert_eq!(Arc::strong_count(&memory), 3);
    // The lock of an importer, as the exporter sees it.
    let content = fs::File::open(place.content(&one)).unwrap();
    rustix::fs::flock(&content, rustix::fs::FlockOperation::NonBlockingLockShared).unwrap();
    assert!(place.exports.release(&one).unwrap() && place.exports.release(&other).unwrap());
    assert_eq!(Arc::strong_count(&memory), 2);
    drop(content);
    let third = export();
    assert_eq!(Arc::strong_count(&memory), 2, "the first is gone, and the third is there");
    let error = place.import(&third, &[]).unwrap_err();
    assert!(error.kind() == ErrorKind::Unmet && error.message().contains("cuda:0"), "{error:?}");
}
