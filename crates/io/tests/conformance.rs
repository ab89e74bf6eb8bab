//! Every backend and every wrapper passes the suite, and faults come out as errors.
#![allow(clippy::unwrap_used)]

use std::sync::Arc;

use onehop_io::conformance::{check_file, check_volume};
use onehop_io::{
    AlignedBuf, CrashImage, Fault, Faulty, Hop, Ledger, LocalFile, LocalVolume, MemoryFile, MemoryVolume, Path, ReadAt,
    RequestedPath, SimVolume, Volume, WriteAt,
};

#[test]
fn memory_file() {
    check_file(&MemoryFile::new("m", Vec::new()));
}

#[test]
fn memory_volume() {
    let volume: Arc<dyn Volume> = Arc::new(MemoryVolume::new("m"));
    check_volume(&volume);
}

#[test]
fn sim_volume() {
    let volume: Arc<dyn Volume> = Arc::new(SimVolume::default());
    check_volume(&volume);
}

#[test]
fn local_volume_buffered() {
    let dir = tempfile::tempdir().unwrap();
    let volume: Arc<dyn Volume> = Arc::new(LocalVolume::open(dir.path(), RequestedPath::Buffered).unwrap());
    check_volume(&volume);
}

#[test]
fn local_volume_direct() {
    let dir = tempfile::tempdir().unwrap();
    let volume: Arc<dyn Volume> = Arc::new(LocalVolume::open(dir.path(), RequestedPath::PreferHostDirect).unwrap());
    check_volume(&volume);
}

#[test]
fn short_transfers_and_interruptions_are_invisible() {
    for seed in 0..50 {
        let inner = Arc::new(MemoryFile::new("m", Vec::new()));
        check_file(&Faulty::new(inner, vec![Fault::Short(seed), Fault::InterruptAt(seed % 7)]));
    }
}

#[test]
fn a_failing_call_is_an_error_that_names_the_place() {
    let inner = Arc::new(MemoryFile::new("victim", vec![7; 10_000]));
    let file = Faulty::new(Arc::clone(&inner), vec![Fault::FailFrom(1)]);
    let mut buf = [0; 100];
    file.read_at(0, &mut buf, &Ledger::default()).unwrap();
    let error = file.read_at(500, &mut buf, &Ledger::default()).unwrap_err();
    assert!(error.to_string().starts_with("cannot read victim (100 bytes at offset 500): "), "{error}");
    assert!(file.sync().is_err());
    assert!(file.write_at(0, &buf, &Ledger::default()).is_err());
}

#[test]
fn a_flipped_bit_reads_flipped_wherever_the_read_starts() {
    let inner = Arc::new(MemoryFile::new("m", vec![0; 100]));
    let file = Faulty::new(inner, vec![Fault::FlipBit(8 * 50 + 3)]);
    for start in 0..=50 {
        let mut buf = vec![0; 100 - start];
        file.read_at(start as u64, &mut buf, &Ledger::default()).unwrap();
        assert_eq!(buf[50 - start], 8);
        assert_eq!(buf.iter().filter(|b| **b != 0).count(), 1);
    }
}

#[test]
fn the_ledger_counts_the_page_cache_copy_and_the_bounce() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("f");
    LocalFile::create(&path, RequestedPath::Buffered).unwrap().write_at(0, &[1; 8192], &Ledger::default()).unwrap();

    let ledger = Ledger::default();
    LocalFile::open(&path, RequestedPath::Buffered).unwrap().read_at(0, &mut [0; 1000], &ledger).unwrap();
    assert_eq!(ledger.snapshot().hop(Hop::StorageToHost), 1000);
    assert_eq!(ledger.snapshot().hop(Hop::HostToHost), 1000);

    let ledger = Ledger::default();
    let direct = LocalFile::open(&path, RequestedPath::PreferHostDirect).unwrap();
    direct.read_at(10, &mut [0; 1000], &ledger).unwrap();
    if direct.hints().path == Path::HostDirect {
        assert_eq!(ledger.snapshot().hop(Hop::StorageToHost), 4096);
        assert_eq!(ledger.snapshot().hop(Hop::HostToHost), 1000);
    }
}

#[test]
fn a_crash_forgets_what_was_not_synced() {
    let volume = SimVolume::default();
    let ledger = Ledger::default();
    let kept = volume.create("kept").unwrap();
    kept.write_at(0, b"durable", &ledger).unwrap();
    kept.sync().unwrap();
    volume.sync().unwrap();
    kept.write_at(0, b"DURABLE and more", &ledger).unwrap();
    volume.create("lost").unwrap().sync().unwrap();

    let after = volume.crash_image(CrashImage::Durable);
    assert_eq!(after.list().unwrap(), ["kept"]);
    let mut buf = [0; 7];
    after.open("kept").unwrap().read_at(0, &mut buf, &ledger).unwrap();
    assert_eq!(&buf, b"durable");
    assert_eq!(volume.crash_image(CrashImage::Everything).list().unwrap(), ["kept", "lost"]);

    volume.crash_at(volume.operations());
    assert!(volume.create("x").is_err());
    assert!(kept.sync().is_err());
    assert_eq!(volume.list().unwrap(), ["kept", "lost"]);
}

#[test]
fn opening_a_folder_as_a_file_says_so() {
    let dir = tempfile::tempdir().unwrap();
    let error = LocalFile::open(dir.path(), RequestedPath::Buffered).unwrap_err();
    assert!(error.to_string().contains("not a regular file"), "{error}");
}

#[test]
fn opening_a_pipe_says_so_and_waits_for_nobody() {
    use rustix::fs::{CWD, FileType, Mode, mknodat};
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("pipe");
    mknodat(CWD, &path, FileType::Fifo, Mode::RUSR | Mode::WUSR, 0).unwrap();
    for requested in
        [RequestedPath::Auto, RequestedPath::Buffered, RequestedPath::HostDirect, RequestedPath::PreferHostDirect]
    {
        let error = LocalFile::open(&path, requested).unwrap_err();
        assert!(error.to_string().starts_with(&format!("cannot open {}: ", path.display())), "{error}");
        assert!(LocalFile::open_for_update(&path, requested).is_err());
        assert!(LocalFile::create(&path, requested).is_err());
    }
}

#[test]
fn a_file_is_read_past_the_page_cache_whatever_it_is_called_by_then() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("f");
    std::fs::write(&path, vec![7; 8192]).unwrap();
    let file = Arc::new(LocalFile::open(&path, RequestedPath::Buffered).unwrap());
    // Written a moment ago.
    assert!(file.page_cache_has(0, 8192).is_none_or(|bytes| bytes == 8192 || bytes == 0));
    std::fs::remove_file(&path).unwrap();
    let Some(direct) = file.past_page_cache() else { return eprintln!("no O_DIRECT here") };
    assert_eq!((direct.hints().path, direct.name()), (Path::HostDirect, file.name()));
    let ledger = Ledger::default();
    let mut buf = AlignedBuf::zeroed(8192);
    direct.read_at(0, &mut buf, &ledger).unwrap();
    assert!(buf.iter().all(|byte| *byte == 7));
    assert_eq!((ledger.snapshot().hop(Hop::StorageToHost), ledger.snapshot().hop(Hop::HostToHost)), (8192, 0));
}
