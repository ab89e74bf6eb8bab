//! `onehop rados`, and SQL over its paths, as processes. `make test-ceph` provides a cluster for
//! the tests that need one.

mod support;

use serde_json::Value;
use support::{Said, done, run};

#[track_caller]
fn says(words: &[&str], exit: i32, wanted: &str) {
    let Said { exit: found, out, err } = run(words);
    assert!(found == Some(exit) && err.contains(wanted), "{words:?}: {found:?} {out} {err}");
}

#[test]
fn what_makes_no_sense_is_wrong_usage() {
    says(&["rados", "ls", "/tmp"], 2, "'/tmp' does not name a pool and a path: rados://POOL[.NAMESPACE]/PATH");
    says(&["rados", "mkfs", "rados://meta/x"], 2, "has a path");
    says(&["rados", "mkfs", "rados://meta", "--chunk", "100KB"], 2, "--chunk cannot be '100KB'");
    says(&["rados", "ls", "rados://meta", "--set", "ceph.timeout=1s"], 2, "ceph.timeout cannot be '1s'");
    says(&["rados", "ls", "rados://meta", "--set", "ceph.conf=/none/ceph.conf"], 1, "");
    says(&["rados", "bench", "rados://meta/x"], 2, "has a path");
    says(&["rados", "bench", "rados://meta", "--file", "0"], 2, "more than nothing");
    says(&["rados", "bench", "rados://meta", "--window", "2GiB"], 2, "from 64KiB to 1GiB");
    says(&["rados", "txn", "show", "rados://meta", "12"], 2, "'12' is no id of a transaction");
    says(&["-c", "SET ceph.conf = '/none/ceph.conf'; FROM 'rados://meta/x.csv'"], 1, "cannot use rados://meta");
}

#[test]
#[ignore = "needs a Ceph cluster: make test-ceph"]
fn files_are_made_moved_checked_and_collected_on_a_cluster() {
    let fs = format!("rados://meta.cli-{}", std::process::id());
    let at = |path: &str| format!("{fs}{path}");
    says(&["rados", "ls", &fs], 1, "onehop rados mkfs");
    done(&["rados", "mkfs", &fs, "--data", "data", "--chunk", "4MiB"]);
    says(&["rados", "mkfs", &fs], 1, "there is a file system");
    done(&["-c", &format!("COPY (SELECT unnest(range(0, 1000)) AS x) TO '{fs}/a b/ü.parquet'")]);
    assert_eq!(done(&["-c", &format!("SELECT sum(x) AS s FROM '{fs}/a b/*.parquet'")]), "s\n499500\n");
    assert!(done(&["rados", "ls", &at("/a b")]).trim_end().ends_with("ü.parquet"));
    says(&["rados", "ls", &at("/none")], 1, "nothing has this name");
    done(&["rados", "mkdir", &at("/c/d")]);
    done(&["rados", "mv", &at("/a b"), &at("/c/d/e")]);
    says(&["rados", "mv", &at("/c/d/e"), &at("/c")], 1, "cannot");
    let stat: Value =
        serde_json::from_str(&done(&["rados", "stat", &at("/c/d/e/ü.parquet"), "--json"])).unwrap_or_default();
    assert!(stat["kind"] == "file" && stat["bytes"].as_u64().is_some_and(|bytes| bytes > 100), "{stat}");
    says(&["rados", "rm", &at("/c")], 1, "--recursive");
    let fsck: Value = serde_json::from_str(&done(&["rados", "fsck", &fs, "--deep", "--json"])).unwrap_or_default();
    assert_eq!((&fsck["files"], &fsck["damage"]), (&1.into(), &Vec::<Value>::new().into()), "{fsck}");
    done(&["rados", "rm", "--recursive", &at("/c")]);
    done(&["rados", "gc", &fs]);
    let words = ["rados", "bench", &fs, "--file", "9MiB", "--streams", "3", "--runtime", "300ms", "--json"];
    let rates: Value = serde_json::from_str(&done(&words)).unwrap_or_default();
    let figure = |way: &str, name: &str| rates[way][name].as_u64().unwrap_or_default();
    for way in ["write", "read"] {
        assert!(figure(way, "files") >= 3 && figure(way, "bytes") == figure(way, "files") * (9 << 20), "{rates}");
        assert!(rates[way]["mib_per_sec"].as_f64().is_some_and(|rate| rate > 0.0), "{rates}");
    }
    assert_eq!(done(&["rados", "txn", "ls", &fs]), "");
    says(&["rados", "txn", "show", &fs, &"12".repeat(16)], 1, "transaction");
    assert_eq!(done(&["rados", "ls", &fs]), "");
}

/// No server listens at the address: the command and SQL return an error within the configured
/// time.
#[test]
#[ignore = "needs librados: make test-ceph"]
fn a_cluster_that_is_down_is_said_in_time() {
    let folder = tempfile::tempdir().unwrap_or_else(|e| panic!("{e}"));
    let conf = folder.path().join("ceph.conf").display().to_string();
    let text = "[global]\nmon_host = 127.0.0.1:1\nauth_client_required = none\nauth_cluster_required = none\n";
    std::fs::write(&conf, text).unwrap_or_else(|e| panic!("{e}"));
    let set = format!("ceph.conf={conf}");
    let words = ["--set", &set, "--set", "ceph.timeout=3s"];
    says(&[&["rados", "ls", "rados://meta/"][..], &words].concat(), 1, "no answer within the time");
    says(&[&["-c", "FROM 'rados://meta/x.csv'"][..], &words].concat(), 1, "no answer within the time");
}
