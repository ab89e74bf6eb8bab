//! A cluster that is half dead or full, and clients that are killed. These change the cluster that others use, so they run by
//! themselves, one after the other.
//!
//! Besides what `support/ceph.rs` says, `ONEHOP_CEPH_SCRIPT` names `tests/ceph/cluster.sh`.

#![allow(clippy::unwrap_used, clippy::expect_used)]

use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use onehop_io::rados::fs::{Depth, FsOptions, Replace};
use onehop_io::rados::{Code, FileSystem, Problem};

#[path = "support/ceph.rs"]
mod ceph;
use ceph::{bytes, clean, cluster, cluster_within, conf, get, names, options, put, space, try_put};

fn script(args: &[&str]) {
    let script = std::env::var_os("ONEHOP_CEPH_SCRIPT").expect("ONEHOP_CEPH_SCRIPT names tests/ceph/cluster.sh");
    let folder = conf().parent().map(Path::to_owned).unwrap();
    let (what, rest) = args.split_first().unwrap();
    let status = Command::new(script).arg(what).arg(folder).args(rest).stdout(Stdio::null()).status().unwrap();
    assert!(status.success(), "cluster.sh {args:?}");
}

/// From where on OSDs are nearly full, too full to take copies, and full. They are taken in this order, or not at all.
fn full_ratios(ratios: [&str; 3]) {
    for (which, ratio) in ["set-nearfull-ratio", "set-backfillfull-ratio", "set-full-ratio"].into_iter().zip(ratios) {
        ceph(&["osd", which, ratio]);
    }
}

fn ceph(args: &[&str]) {
    let output = Command::new("ceph").arg("-c").arg(conf()).args(args).output().unwrap();
    assert!(output.status.success(), "ceph {args:?}: {}", String::from_utf8_lossy(&output.stderr));
}

#[test]
#[ignore = "needs a Ceph cluster"]
fn an_osd_that_dies_is_an_error_in_time_and_nothing_is_lost() {
    let timeout = Duration::from_secs(8);
    let fs = FileSystem::create(&cluster_within(timeout), "meta", "data", &space("osd"), options()).unwrap();
    let written = bytes(4_000_000, 1);
    put(&fs, "/before", &written);
    let mut writer = fs.create_file("/during", Replace::Never, Arc::default()).unwrap();
    writer.append(&bytes(3_000_000, 2)).unwrap();
    script(&["kill", "osd.0"]);
    let begin = Instant::now();
    let error = fs.stat("/before").unwrap_err();
    assert!(error.is(Code::TIMED_OUT) && error.to_string().contains("are the monitors and OSDs up"), "{error}");
    assert!(begin.elapsed() < 2 * timeout, "{:?}", begin.elapsed());
    let begin = Instant::now();
    let error = writer.append(&bytes(50_000_000, 3)).and_then(|()| writer.close().map(drop)).unwrap_err();
    assert!(error.is(Code::TIMED_OUT) || error.problem() == Some(Problem::OutcomeUnknown), "{error}");
    // The write, a question whether it has happened, and what cleaning up takes.
    assert!(begin.elapsed() < 4 * timeout, "{:?}", begin.elapsed());
    script(&["up"]);
    // Placement groups come back one after the other.
    let begin = Instant::now();
    while fs.check(Depth::Chunks).is_err_and(|error| error.is(Code::TIMED_OUT)) {
        assert!(begin.elapsed() < Duration::from_secs(120), "the cluster has not come back");
    }
    assert!(get(&fs, "/before") == written);
    assert!(names(&fs, "/").len() <= 2);
    clean(&fs);
}

#[test]
#[ignore = "needs a Ceph cluster"]
fn a_pool_that_is_full_says_so_at_once_and_lets_things_be_removed() {
    let fs = FileSystem::create(&cluster(), "meta", "data", &space("full"), options()).unwrap();
    put(&fs, "/before", &bytes(2_000_000, 1));
    full_ratios(["0.000001", "0.000002", "0.000003"]);
    // Until the OSDs have heard of it.
    let mut tries = 0;
    let error = loop {
        let begin = Instant::now();
        match try_put(&fs, "/f", &bytes(2_000_000, 2), Replace::File) {
            Err(error) => {
                assert!(begin.elapsed() < Duration::from_secs(10), "{:?}", begin.elapsed());
                break error;
            }
            Ok(()) if tries == 300 => break fs.stat("/no space never said").unwrap_err(),
            Ok(()) => tries += 1,
        }
        std::thread::sleep(Duration::from_millis(200));
    };
    let removed = fs.remove_all("/before");
    full_ratios(["0.85", "0.9", "0.95"]);
    assert!(error.is(Code::NO_SPACE) && error.to_string().contains("see `ceph df`"), "{error}");
    // A name that goes writes as well: either it is refused at once, or it is done.
    assert!(removed.as_ref().map_or_else(|error| error.is(Code::NO_SPACE), |()| true), "{removed:?}");
    while try_put(&fs, "/after", &bytes(1_000_000, 3), Replace::File).is_err_and(|error| error.is(Code::NO_SPACE)) {
        std::thread::sleep(Duration::from_millis(200));
    }
    assert!(get(&fs, "/after") == bytes(1_000_000, 3));
    clean(&fs);
}

/// Not a test by itself: writes, renames and removes until it is killed.
#[test]
#[ignore = "a process that is killed by the test below"]
fn a_client_that_is_killed() {
    let Ok(space) = std::env::var("ONEHOP_CEPH_CHILD") else { return };
    let fs = FileSystem::open(&cluster(), "meta", &space, options()).unwrap();
    println!("begun");
    for n in 0u64.. {
        let _ = fs.create_directory_all("/a/b");
        let _ = try_put(&fs, &format!("/a/{}", n % 5), &bytes(2_500_000, n % 5), Replace::File);
        let _ = fs.rename(&format!("/a/{}", n % 5), &format!("/a/b/{}", n % 5), Replace::File);
        if n % 7 == 6 {
            let _ = fs.rename("/a/b", &format!("/b{n}"), Replace::Never);
            let _ = fs.remove_all(&format!("/b{n}"));
        }
    }
}

#[test]
#[ignore = "needs a Ceph cluster"]
fn clients_that_are_killed_leave_whole_files_and_what_the_collector_finds() {
    let space = space("killed");
    let short = Duration::from_millis(1);
    let fs = FileSystem::create(&cluster(), "meta", "data", &space, options()).unwrap();
    for round in 0..6u64 {
        let mut child = Command::new(std::env::current_exe().unwrap());
        child.args(["--ignored", "--exact", "a_client_that_is_killed"]);
        let mut child = child.env("ONEHOP_CEPH_CHILD", &space).stdout(Stdio::null()).spawn().unwrap();
        // Somewhere in the middle of something.
        std::thread::sleep(Duration::from_millis(700 + round * 137));
        child.kill().unwrap();
        child.wait().unwrap();
        // What it had begun ends with its leases, which are long over for who looks an hour later.
        let found = fs.check(Depth::Bytes).unwrap();
        assert!(found.damage.is_empty() && found.unknown.is_empty(), "{found:?}");
    }
    let later = FsOptions { lease: short, grace: Duration::ZERO, move_lease: short, ..options() };
    let fs = FileSystem::open(&cluster(), "meta", &space, later).unwrap();
    // Leases of those who were killed: a minute, and theirs for moves.
    let begin = Instant::now();
    loop {
        fs.collect().unwrap();
        if fs.check(Depth::Objects).unwrap().unfinished == 0 || begin.elapsed() > Duration::from_secs(180) {
            break;
        }
        std::thread::sleep(Duration::from_secs(2));
    }
    for entry in fs.list("/a").unwrap() {
        if let Ok(n) = entry.name.parse() {
            assert!(get(&fs, &format!("/a/{n}")) == bytes(2_500_000, n), "{n}");
        }
    }
    let found = fs.check(Depth::Bytes).unwrap();
    assert_eq!((found.unfinished, found.damage.len(), found.unknown.len()), (0, 0, 0), "{found:?}");
}
