//! The file layer and what is below it on a real cluster.

#![allow(clippy::unwrap_used, clippy::expect_used)]

use std::io::Read;
use std::sync::Arc;
use std::time::{Duration, Instant};

use onehop_io::rados::fs::{Depth, Replace};
use onehop_io::rados::{Cluster, ClusterOptions, Code, FileSystem, Objects, Problem, ReadOp, WriteOp};
use onehop_io::{Hop, Ledger, ReadAt};

#[path = "support/ceph.rs"]
mod ceph;
use ceph::{bytes, clean, cluster, file_system, get, names, options, pool, put, space, try_put};

#[test]
#[ignore = "needs a Ceph cluster"]
fn compound_operations_happen_whole_or_not_at_all() {
    let pool = pool("compound");
    let make = || WriteOp::new("make").create_new().set_attribute("state", "live").set_entry("a", "1");
    pool.write("o", make()).unwrap();
    assert!(pool.write("o", make()).unwrap_err().is(Code::EXISTS));
    // What is not there compares with nothing.
    pool.write("o", WriteOp::new("add").entry_is("b", None).set_entry("b", "2")).unwrap();
    let stale = WriteOp::new("add").entry_is("b", None).set_entry("b", "3").set_entry("c", "3");
    let error = pool.write("o", stale).unwrap_err();
    assert!(error.is(Code::CONFLICT) && error.to_string().contains("cannot add object o of pool meta"), "{error}");
    let dead = WriteOp::new("add").attribute_is("state", "dead").remove_entry("a");
    assert!(pool.write("o", dead).unwrap_err().is(Code::CONFLICT));
    let missing = WriteOp::new("add").assert_exists().set_entry("a", "1");
    assert!(pool.write("none", missing).unwrap_err().is(Code::NOT_FOUND));
    // Bytes, attributes and entries of one moment.
    pool.write("o", WriteOp::new("write").write_full(b"hello".to_vec()).set_entry([1, 0, 2], "bytes")).unwrap();
    let read = ReadOp::new("read").size().attributes().entries(vec![b"a".to_vec(), b"z".to_vec(), vec![1, 0, 2]]);
    let reply = pool.read("o", read.bytes(1, 100)).unwrap();
    assert_eq!((reply.size, reply.bytes.as_slice()), (5, &b"ello"[..]));
    assert_eq!(reply.attributes["state"], b"live");
    assert_eq!(
        (reply.entry(b"a"), reply.entry(b"z"), reply.entry(&[1, 0, 2])),
        (Some(&b"1"[..]), None, Some(&b"bytes"[..]))
    );
    assert_eq!(pool.list().unwrap(), ["o"]);
    pool.write("o", WriteOp::new("remove").remove()).unwrap();
    assert!(pool.read("o", ReadOp::new("read").size()).unwrap_err().is(Code::NOT_FOUND));
}

#[test]
#[ignore = "needs a Ceph cluster"]
fn what_is_written_once_is_all_that_there_is() {
    let pool = pool("once");
    // Over nothing, what is smaller, what is larger, and itself: who got no answer may ask again.
    for (seed, len) in [(1, 1), (2, 4096), (3, 4 << 20), (4, 100_001), (4, 100_001)] {
        let bytes = bytes(len, seed);
        let mut whole = pool.gather("write", 4 << 20);
        for piece in bytes.chunks(1 << 20) {
            whole.add(piece);
        }
        pool.submit_write_once("o", whole, ("crc", &seed.to_le_bytes()), Box::new(())).wait().unwrap();
        let reply = pool.read("o", ReadOp::new("read").size().attributes().bytes(0, 8 << 20)).unwrap();
        assert_eq!((reply.size, reply.bytes.len()), (len as u64, len));
        assert!(reply.bytes == bytes);
        assert_eq!(reply.attributes["crc"], seed.to_le_bytes());
    }
    pool.write("o", WriteOp::new("remove").remove()).unwrap();
}

#[test]
#[ignore = "needs a Ceph cluster"]
fn entries_come_in_pages_and_by_prefix() {
    let pool = pool("pages");
    let op = (0..3000).fold(WriteOp::new("fill"), |op, n| op.set_entry(format!("n/{n:05}"), vec![7; 20]));
    pool.write("o", op.set_entry("m/1", "x").set_entry("o/1", "x")).unwrap();
    let (mut seen, mut after, mut pages) = (Vec::new(), Vec::new(), 0);
    loop {
        let reply = pool.read("o", ReadOp::new("list").page("n/", after, 10_000)).unwrap();
        pages += 1;
        seen.extend(reply.entries.iter().map(|(key, _)| key.clone()));
        after = seen.last().unwrap().clone();
        if !reply.more {
            break;
        }
    }
    assert_eq!(seen, (0..3000).map(|n| format!("n/{n:05}").into_bytes()).collect::<Vec<_>>());
    assert!(pages >= 3, "{pages} pages");
}

#[test]
#[ignore = "needs a Ceph cluster"]
fn what_is_missing_says_so_in_time() {
    let nowhere = ClusterOptions { conf: Some("/nonexistent/ceph.conf".into()), ..ClusterOptions::default() };
    let error = Cluster::connect(&nowhere).unwrap_err();
    assert!(error.to_string().starts_with("cannot read the configuration /nonexistent/ceph.conf"), "{error}");
    let error = cluster().pool("no-such-pool", "").unwrap_err();
    assert!(error.to_string().starts_with("cannot open pool no-such-pool: No such file"), "{error}");
    // Monitors that are not there.
    let folder = tempfile::tempdir().unwrap();
    let down = folder.path().join("ceph.conf");
    let keyring = folder.path().join("keyring");
    std::fs::write(&keyring, "").unwrap();
    let text = "[global]\nmon_host = [v2:127.0.0.1:9]\nauth_client_required = none\nkeyring = ";
    std::fs::write(&down, format!("{text}{}\n", keyring.display())).unwrap();
    let begin = Instant::now();
    let timeout = Duration::from_secs(2);
    let error = Cluster::connect(&ClusterOptions { conf: Some(down), timeout, ..ClusterOptions::default() });
    let error = error.unwrap_err().to_string();
    assert!(error.contains("no answer within the time"), "{error}");
    assert!(begin.elapsed() < Duration::from_secs(20), "{:?}", begin.elapsed());
}

#[test]
#[ignore = "needs a Ceph cluster"]
fn files_are_written_and_read() {
    let fs = file_system("files");
    fs.create_directory_all("/a b/ü=1").unwrap();
    let mut sizes = vec![0, 1, 65_535, 65_536, 65_537, (1 << 20) - 1, 1 << 20, (1 << 20) + 1, 20 << 20];
    sizes.push((20 << 20) + 12_345);
    for &size in &sizes {
        put(&fs, &format!("/a b/ü=1/_{size}"), &bytes(size, size as u64));
    }
    for &size in &sizes {
        let path = format!("/a b/ü=1/_{size}");
        assert_eq!(fs.stat(&path).unwrap().len, size as u64);
        assert!(get(&fs, &path) == bytes(size, size as u64), "{size}");
    }
    // Replaced whole, or refused.
    let old = fs.open_file("/a b/ü=1/_1048577").unwrap();
    put(&fs, "/a b/ü=1/_1048577", b"new");
    assert_eq!(get(&fs, "/a b/ü=1/_1048577"), b"new");
    let mut still = Vec::new();
    old.reader(0..u64::MAX, Arc::default()).read_to_end(&mut still).unwrap();
    assert!(still == bytes((1 << 20) + 1, (1 << 20) + 1));
    let error = try_put(&fs, "/a b/ü=1/_1", b"x", Replace::Never).unwrap_err();
    assert_eq!(error.problem(), Some(Problem::Exists), "{error}");
    assert_eq!(fs.open_file("/a b").unwrap_err().problem(), Some(Problem::IsADirectory));
    assert_eq!(fs.open_file("/a b/x/y").unwrap_err().problem(), Some(Problem::NotFound));
    assert_eq!(fs.open_file("/a b/ü=1/_1/y").unwrap_err().problem(), Some(Problem::NotADirectory));
    assert!(fs.collect().unwrap().removed >= 1);
    clean(&fs);
}

#[test]
#[ignore = "needs a Ceph cluster"]
fn ranges_are_read_side_by_side_and_counted() {
    let fs = file_system("ranges");
    let content = bytes(5_000_000, 5);
    put(&fs, "/f", &content);
    let file = fs.open_file("f").unwrap();
    let ledger = Ledger::default();
    let ranges = [10..20, 4_999_990..6_000_000, 0..1_048_577, 15..17, 3_000_000..3_000_000, 2_500_000..4_100_000];
    let read = file.read_ranges(&ranges, &ledger).unwrap();
    for (range, got) in ranges.iter().zip(&read) {
        let (start, end) = (range.start as usize, (range.end as usize).min(content.len()));
        assert!(got == &content[start..end], "{range:?}");
    }
    let counted = ledger.snapshot();
    assert!(counted.hop(Hop::StorageToHost) < 3_500_000 && counted.read_ops > 3, "{counted:?}");
    let mut buf = vec![0; 300_000];
    ReadAt::read_at(&file, 1_000_000, &mut buf, &ledger).unwrap();
    assert!(buf == content[1_000_000..1_300_000]);
    assert!(ReadAt::read_at(&file, 4_900_000, &mut buf, &ledger).is_err(), "it ends before that");
}

#[test]
#[ignore = "needs a Ceph cluster"]
fn directories_are_listed_renamed_and_removed() {
    let fs = file_system("directories");
    fs.create_directory_all("/a/b").unwrap();
    assert_eq!(fs.create_directory("/a/b").unwrap_err().problem(), Some(Problem::Exists));
    assert_eq!(fs.create_directory("/x/b").unwrap_err().problem(), Some(Problem::NotFound));
    let many: Vec<String> = (0..1500).map(|n| format!("f{n:04}")).collect();
    std::thread::scope(|scope| {
        for part in many.chunks(100) {
            let fs = fs.clone();
            scope.spawn(move || part.iter().for_each(|name| put(&fs, &format!("/a/b/{name}"), name.as_bytes())));
        }
    });
    assert_eq!(names(&fs, "/a/b"), many);
    let page = fs.list_page("/a/b", Some("f0499")).unwrap();
    assert_eq!(page.entries[0].name, "f0500");
    // Within a directory, and into another one.
    fs.rename("/a/b", "/a/c", Replace::Never).unwrap();
    fs.create_directory("/z").unwrap();
    let copied = Arc::new(Ledger::default());
    fs.rename("/a/c", "/z/d", Replace::Never).unwrap();
    assert_eq!(copied.snapshot().hop(Hop::RenameCopy), 0);
    assert_eq!(names(&fs, "/z/d"), many);
    assert!(names(&fs, "/a").is_empty());
    assert_eq!(get(&fs, "/z/d/f0007"), b"f0007");
    fs.rename("/z/d/f0007", "/a/moved", Replace::Never).unwrap();
    fs.rename("/a/moved", "/z/d/f0008", Replace::File).unwrap();
    assert_eq!(get(&fs, "/z/d/f0008"), b"f0007");
    let error = fs.rename("/z", "/z/d/z", Replace::Never).unwrap_err();
    assert_eq!(error.problem(), Some(Problem::Impossible));
    assert_eq!(fs.rename("/z/d/f0009", "/z/d/f0010", Replace::Never).unwrap_err().problem(), Some(Problem::Exists));
    // Removed: only if it is empty, or all of it at once.
    assert_eq!(fs.remove_directory("/z/d").unwrap_err().problem(), Some(Problem::NotEmpty));
    fs.remove_directory("/a").unwrap();
    fs.remove_file("/z/d/f0010").unwrap();
    fs.remove_all("/z/d").unwrap();
    assert!(names(&fs, "/z").is_empty());
    clean(&fs);
    fs.collect().unwrap();
    let found = fs.check(Depth::Objects).unwrap();
    assert_eq!((found.directories, found.files, found.unfinished), (2, 0, 0), "{found:?}");
    assert_eq!((found.damage.len(), found.unknown.len()), (0, 0), "{found:?}");
}

#[test]
#[ignore = "needs a Ceph cluster"]
fn a_file_system_is_made_once_and_one_of_another_version_is_refused() {
    let (cluster, space) = (cluster(), space("versions"));
    let error = FileSystem::open(&cluster, "meta", &space, options()).unwrap_err();
    assert!(error.is(Code::NOT_FOUND), "{error}");
    FileSystem::create(&cluster, "meta", "data", &space, options()).unwrap();
    let error = FileSystem::create(&cluster, "meta", "data", &space, options()).unwrap_err();
    assert!(error.is(Code::EXISTS), "{error}");
    put(&FileSystem::open(&cluster, "meta", &space, options()).unwrap(), "/f", b"there");
    let pool = cluster.pool("meta", &space).unwrap();
    let text = b"onehop file system\nversion=2\nfeatures=\nchunk_bytes=65536\ndata_pool=data\n";
    pool.write("super", WriteOp::new("write").write_full(text.to_vec())).unwrap();
    let error = FileSystem::open(&cluster, "meta", &space, options()).unwrap_err().to_string();
    assert!(error.contains("version 2, which this version of Onehop does not know"), "{error}");
}

#[test]
#[ignore = "needs a Ceph cluster"]
fn writers_of_one_name_agree_on_one_of_them() {
    let fs = file_system("race");
    let made: Vec<_> = std::thread::scope(|scope| {
        let write = |n: u64| {
            let fs = fs.clone();
            scope.spawn(move || try_put(&fs, "/f", &bytes(2_000_000, n), Replace::Never).is_ok())
        };
        let threads: Vec<_> = (0..8).map(write).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    });
    assert_eq!(made.iter().filter(|made| **made).count(), 1, "{made:?}");
    let winner = made.iter().position(|made| *made).unwrap();
    assert!(get(&fs, "/f") == bytes(2_000_000, winner as u64));
    // All replace: the last one stays, whole.
    std::thread::scope(|scope| {
        for n in 0..8 {
            let fs = fs.clone();
            scope.spawn(move || put(&fs, "/f", &bytes(1_500_000, n)));
        }
    });
    let content = get(&fs, "/f");
    assert!((0..8).any(|n| content == bytes(1_500_000, n)));
    fs.collect().unwrap();
    clean(&fs);
}

#[test]
#[ignore = "needs a Ceph cluster"]
fn bytes_lie_in_an_erasure_coded_pool_as_well() {
    let data =
        std::env::var("ONEHOP_CEPH_EC_POOL").expect("ONEHOP_CEPH_EC_POOL names a pool: OSDS=3 tests/ceph/run.sh");
    let fs = FileSystem::create(&cluster(), "meta", &data, &space("ec"), options()).unwrap();
    put(&fs, "/f", &bytes(3_333_333, 1));
    assert!(get(&fs, "/f") == bytes(3_333_333, 1));
    // Such a pool takes whole objects only: a chunk is gathered in memory, and copied once more by the library.
    let ledger: Arc<Ledger> = Arc::default();
    let mut writer = fs.create_file("/g", Replace::Never, Arc::clone(&ledger)).unwrap();
    writer.append(&bytes(1 << 20, 2)).unwrap();
    writer.close().unwrap();
    assert_eq!(ledger.snapshot().hop(Hop::HostToHost), 2 << 20);
    assert!(get(&fs, "/g") == bytes(1 << 20, 2));
    fs.remove_file("/f").unwrap();
    fs.remove_file("/g").unwrap();
    fs.collect().unwrap();
    clean(&fs);
    // Names cannot, and that is said.
    let error = FileSystem::create(&cluster(), &data, &data, &space("ec"), options());
    let error = error.and_then(|fs| fs.create_directory("/a")).unwrap_err();
    assert!(error.to_string().contains("must lie in a replicated pool"), "{error}");
}
