//! What every implementation of the traits must do, as functions that panic when it does not.
//!
//! Each implementation's tests call these; so do the tests of wrappers, which must not change the answers.

use std::io::{IoSlice, IoSliceMut};
use std::sync::Arc;

use crate::{Ledger, Operation, ReadAt, Volume, WriteAt};

/// Checks a file that starts empty.
///
/// # Panics
/// When the file breaks the contract of [`ReadAt`] or [`WriteAt`].
#[allow(clippy::unwrap_used, clippy::missing_panics_doc)]
pub fn check_file(file: &dyn WriteAt) {
    let ledger = Ledger::default();
    assert!(file.is_empty().unwrap(), "a new file is empty");

    // Lengths and offsets on, before and after a page's edge.
    let data: Vec<u8> = (0..40_000u32).map(|i| (i.wrapping_mul(2_654_435_761) >> 13) as u8).collect();
    file.write_at(0, &data, &ledger).unwrap();
    assert_eq!(file.len().unwrap(), data.len() as u64);
    for offset in [0, 1, 511, 4095, 4096, 4097, 12_288, 39_999] {
        for len in [0, 1, 2, 511, 512, 4095, 4096, 4097, 8192] {
            let len = len.min(data.len() - offset);
            let mut buf = vec![0xaa; len];
            file.read_at(offset as u64, &mut buf, &ledger).unwrap();
            assert_eq!(buf, data[offset..offset + len], "read of {len} bytes at {offset}");
        }
    }

    // Overwriting a middle part leaves the rest.
    let mut expected = data;
    for (offset, len) in [(100, 10), (4090, 12), (8192, 4096), (39_990, 30)] {
        let patch: Vec<u8> = (0..len).map(|i| (i * 7 + 1) as u8).collect();
        file.write_at(offset as u64, &patch, &ledger).unwrap();
        expected.resize(expected.len().max(offset + len), 0);
        expected[offset..offset + len].copy_from_slice(&patch);
    }
    check_contents(file, &expected);

    // Vectored calls equal their plain twins.
    let (a, b, c) = (vec![1; 5000], vec![2; 0], vec![3; 77]);
    let mut slices = [IoSlice::new(&a), IoSlice::new(&b), IoSlice::new(&c)];
    file.write_vectored_at(3, &mut slices, &ledger).unwrap();
    expected[3..5003].copy_from_slice(&a);
    expected[5003..5080].copy_from_slice(&c);
    check_contents(file, &expected);
    let (mut x, mut y) = (vec![0; 4096], vec![0; 1000]);
    file.read_vectored_at(4096, &mut [IoSliceMut::new(&mut x), IoSliceMut::new(&mut y)], &ledger).unwrap();
    assert_eq!([x, y].concat(), expected[4096..4096 + 5096], "vectored read");

    // Reading past the end is an error that names the object and the place, not zeroes.
    let mut buf = [0; 16];
    let error = file.read_at(expected.len() as u64 - 8, &mut buf, &ledger).unwrap_err();
    assert_eq!(error.operation, Operation::Read);
    assert_eq!(error.extent, Some((expected.len() as u64 - 8, 16)));
    assert_eq!(error.object, file.name());
    assert!(file.read_at(u64::MAX - 4, &mut buf, &ledger).is_err(), "an absurd offset is an error");

    // A gap reads as zeroes.
    let end = expected.len() as u64;
    file.write_at(end + 10_000, b"end", &ledger).unwrap();
    let mut gap = vec![1; 10_000];
    file.read_at(end, &mut gap, &ledger).unwrap();
    assert!(gap.iter().all(|byte| *byte == 0), "a gap reads as zeroes");
    file.sync().unwrap();
}

#[allow(clippy::unwrap_used)]
fn check_contents(file: &dyn ReadAt, expected: &[u8]) {
    let mut all = vec![0; expected.len()];
    file.read_at(0, &mut all, &Ledger::default()).unwrap();
    assert!(all == expected, "contents differ");
    assert_eq!(file.len().unwrap(), expected.len() as u64);
}

/// Checks a volume that starts empty.
///
/// # Panics
/// When the volume breaks the contract of [`Volume`].
#[allow(clippy::unwrap_used, clippy::missing_panics_doc)]
pub fn check_volume(volume: &Arc<dyn Volume>) {
    let ledger = Ledger::default();
    assert!(volume.list().unwrap().is_empty());
    assert!(volume.open("a").unwrap_err().is_not_found());

    check_file(&*volume.create("a").unwrap());
    volume.create("b").unwrap().write_at(0, b"bee", &ledger).unwrap();
    assert_eq!(volume.list().unwrap(), ["a", "b"]);

    // A rename replaces; an open handle keeps reading what it opened.
    let old = volume.open("a").unwrap();
    let old_len = old.len().unwrap();
    volume.rename("b", "a").unwrap();
    assert_eq!(volume.list().unwrap(), ["a"]);
    assert_eq!(volume.open("a").unwrap().len().unwrap(), 3);
    assert_eq!(old.len().unwrap(), old_len);

    // What is opened for updates is as it was, and there for others.
    assert!(volume.open_for_update("z").unwrap_err().is_not_found());
    volume.open_for_update("a").unwrap().write_at(1, b"a", &ledger).unwrap();
    let mut bytes = [0; 3];
    volume.open("a").unwrap().read_at(0, &mut bytes, &ledger).unwrap();
    assert_eq!(&bytes, b"bae");

    // Creating again empties.
    volume.create("a").unwrap();
    assert_eq!(volume.open("a").unwrap().len().unwrap(), 0);

    // Folders are separate, and not listed as files.
    let folder = volume.folder("f").unwrap();
    folder.create("a").unwrap().write_at(0, b"inside", &ledger).unwrap();
    folder.sync().unwrap();
    assert_eq!(volume.folder("f").unwrap().open("a").unwrap().len().unwrap(), 6);
    assert_eq!(volume.list().unwrap(), ["a"]);

    volume.remove("a").unwrap();
    assert!(volume.remove("a").unwrap_err().is_not_found());
    assert!(volume.rename("a", "c").unwrap_err().is_not_found());
    assert!(volume.list().unwrap().is_empty());
    volume.sync().unwrap();
}
