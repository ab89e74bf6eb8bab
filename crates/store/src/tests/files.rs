//! Stores in files: opening, locks, backups, compaction.

use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::{Access, Error, MediumKind, Options, Store};

fn set_mode(path: &Path, mode: u32) {
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode)).unwrap();
}

fn directory() -> (tempfile::TempDir, PathBuf) {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("a.store");
    (directory, path)
}

fn fill(store: &Store, keys: std::ops::Range<u32>) {
    let transaction = store.write().unwrap();
    let mut tree = transaction.tree("t").unwrap();
    for key in keys {
        tree.insert(key.to_be_bytes(), vec![key as u8; (key % 300) as usize]).unwrap();
    }
    tree.insert("long", vec![7; 50_000]).unwrap();
    transaction.commit().unwrap();
}

fn holds(store: &Store, keys: std::ops::Range<u32>) {
    let tree = store.read().unwrap().tree("t").unwrap();
    assert_eq!(tree.len().unwrap(), u64::from(keys.end - keys.start) + 1);
    for key in keys {
        assert_eq!(tree.get(key.to_be_bytes()).unwrap().unwrap(), vec![key as u8; (key % 300) as usize]);
    }
    assert_eq!(tree.get("long").unwrap().unwrap(), vec![7; 50_000]);
    let report = store.check().unwrap();
    assert!(report.is_sound(), "{report}");
}

#[test]
fn what_was_committed_is_there_again() {
    let (_directory, path) = directory();
    let options = Options::default();
    for last in 1..5_u32 {
        let store = Store::open(&path, &options).unwrap();
        fill(&store, (last - 1) * 1000..last * 1000);
        holds(&store, 0..last * 1000);
    }
    let reader = Store::open(&path, &options.clone().access(Access::ReadOnly)).unwrap();
    let second = Store::open(&path, &options.clone().access(Access::ReadOnly)).unwrap();
    holds(&reader, 0..4000);
    holds(&second, 0..4000);
    assert!(matches!(reader.write(), Err(Error::ReadOnly { .. })));
    assert!(matches!(reader.checkpoint(), Err(Error::ReadOnly { .. })));
}

#[test]
fn the_second_writer_is_told_who_holds_it() {
    let (_directory, path) = directory();
    let store = Store::open(&path, &Options::default()).unwrap();
    for access in [Access::ReadOnly, Access::ReadWrite] {
        let refused = Store::open(&path, &Options::default().access(access)).unwrap_err();
        assert!(matches!(refused, Error::Locked { .. }));
        let holder = format!("(process {})", std::process::id());
        assert!(refused.to_string().contains(&holder), "{refused}");
    }
    // Live readers keep the store open.
    let tree = store.read().unwrap().tree("t").unwrap();
    drop(store);
    assert!(matches!(Store::open(&path, &Options::default()), Err(Error::Locked { .. })));
    drop(tree);
    Store::open(&path, &Options::default()).unwrap();
}

#[test]
fn close_says_whether_it_closed() {
    let (_directory, path) = directory();
    let store = Store::open(&path, &Options::default()).unwrap();
    let transaction = store.write().unwrap();
    assert!(matches!(store.close(), Err(Error::Invalid(_))));
    drop(transaction);
    Store::open(&path, &Options::default()).unwrap().close().unwrap();
}

#[test]
fn what_is_no_store_is_left_alone() {
    let (directory, path) = directory();
    let text = b"it was a dark and stormy night; ".repeat(1000);
    std::fs::write(&path, &text).unwrap();
    for access in [Access::ReadOnly, Access::ReadWrite] {
        let refused = Store::open(&path, &Options::default().access(access)).unwrap_err();
        assert!(matches!(refused, Error::Unknown { .. }), "{refused}");
    }
    assert!(matches!(Store::create(&path, &Options::default()), Err(Error::Io { .. })));
    assert_eq!(std::fs::read(&path).unwrap(), text);
    let missing = directory.path().join("missing");
    assert!(matches!(Store::open(&missing, &Options::default().access(Access::ReadOnly)), Err(Error::Io { .. })));
    assert!(Store::open(directory.path(), &Options::default()).is_err());
    assert!(!missing.exists());
    assert_eq!(std::fs::read_dir(directory.path()).unwrap().count(), 1);
}

#[test]
fn an_empty_file_becomes_a_store() {
    let (_directory, path) = directory();
    std::fs::write(&path, "").unwrap();
    // Opening creates the store, compaction does not.
    assert!(matches!(Store::compact(&path, &Options::default()), Err(Error::Unknown { .. })));
    assert_eq!(std::fs::read(&path).unwrap(), b"");
    let store = Store::open(&path, &Options::default()).unwrap();
    fill(&store, 0..10);
    holds(&store, 0..10);
}

#[test]
fn a_backup_is_one_commit_while_a_writer_goes_on() {
    let (directory, path) = directory();
    let store = Store::open(&path, &Options::default().transaction_bytes(1 << 20)).unwrap();
    fill(&store, 0..5000);
    let copy = directory.path().join("b.store");
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for round in 1..30 {
                fill(&store, 5000 * round..5000 * round + 100);
            }
        });
        store.backup(&copy).unwrap();
    });
    assert!(matches!(store.backup(&copy), Err(Error::Io { .. })));
    let copied = Store::open(&copy, &Options::default()).unwrap();
    let entries = copied.read().unwrap().tree("t").unwrap().len().unwrap() - 1;
    assert!(entries >= 5000 && (entries - 5000).is_multiple_of(100), "{entries}");
    assert!(copied.check().unwrap().is_sound());
    drop(copied);
    // No other file is left in the directory.
    assert_eq!(std::fs::read_dir(directory.path()).unwrap().count(), 2);
}

#[test]
fn a_file_is_backed_up_while_another_handle_writes_to_it() {
    let (directory, path) = directory();
    let store = Store::open(&path, &Options::default()).unwrap();
    const ACCOUNTS: u32 = 2_000;
    let account = |n: u32| (n % ACCOUNTS).to_be_bytes();
    let put = |keys: &[(u32, u64)]| {
        let transaction = store.write().unwrap();
        let mut tree = transaction.tree("accounts").unwrap();
        for (key, amount) in keys {
            // Values long enough for many pages.
            let mut value = vec![0; 200];
            value[..8].copy_from_slice(&amount.to_le_bytes());
            tree.insert(account(*key), value).unwrap();
        }
        drop(tree);
        transaction.commit().unwrap();
    };
    let amount = |value: &[u8]| u64::from_le_bytes(value[..8].try_into().unwrap());
    put(&(0..ACCOUNTS).map(|n| (n, 1_000)).collect::<Vec<_>>());
    let is_over = std::sync::atomic::AtomicBool::new(false);
    let copies = std::thread::scope(|scope| {
        scope.spawn(|| {
            for round in 0_u32.. {
                if is_over.load(std::sync::atomic::Ordering::SeqCst) {
                    return;
                }
                // Transfers between accounts, with checkpoints and growth in between.
                let (from, to) = (round * 7, round * 7 + 1_001);
                let read = store.read().unwrap().tree("accounts").unwrap();
                let of = |n| amount(&read.get(account(n)).unwrap().unwrap());
                put(&[(from, of(from) - 1), (to, of(to) + 1)]);
                match round % 200 {
                    50 => store.checkpoint().unwrap(),
                    100 => fill(&store, 0..2_000),
                    150 => {
                        let mut transaction = store.write().unwrap();
                        transaction.drop_tree("t").unwrap();
                        transaction.commit().unwrap();
                    }
                    _ => {}
                }
            }
        });
        let copies: Vec<PathBuf> = (0..12).map(|n| directory.path().join(format!("copy-{n}"))).collect();
        let done: Vec<_> = copies.iter().map(|copy| Store::backup_file(&path, copy)).collect();
        is_over.store(true, std::sync::atomic::Ordering::SeqCst);
        done.into_iter().for_each(|done| done.unwrap());
        copies
    });
    for copy in &copies {
        let store = Store::open(copy, &Options::default()).unwrap();
        let report = store.check().unwrap();
        assert!(report.is_sound(), "{report}");
        let tree = store.read().unwrap().tree("accounts").unwrap();
        let sum: u64 = tree.iter().map(|entry| amount(entry.unwrap().value())).sum();
        assert_eq!((tree.len().unwrap(), sum), (u64::from(ACCOUNTS), 1_000 * u64::from(ACCOUNTS)));
    }
    let again = Store::backup_file(&path, &copies[0]).unwrap_err();
    assert!(matches!(again, Error::Io { .. }), "{again}");
    drop(store);
    // Without a writer it is an ordinary backup.
    let last = directory.path().join("last");
    Store::backup_file(&path, &last).unwrap();
    assert!(Store::open(&last, &Options::default()).unwrap().check().unwrap().is_sound());
    assert_eq!(std::fs::read_dir(directory.path()).unwrap().count(), 2 + copies.len());
}

#[test]
fn damage_is_not_taken_for_somebody_who_writes() {
    let (directory, path) = directory();
    let store = Store::open(&path, &Options::default()).unwrap();
    fill(&store, 0..2_000);
    store.checkpoint().unwrap();
    let copy = directory.path().join("copy");
    Store::backup_file(&path, &copy).unwrap();
    std::fs::remove_file(&copy).unwrap();
    let whole = std::fs::read(&path).unwrap();
    for at in (0..whole.len()).step_by(whole.len() / 60) {
        let mut bytes = whole.clone();
        bytes[at] ^= 0x10;
        // In place: the lock is the file's.
        std::fs::write(&path, &bytes).unwrap();
        match Store::backup_file(&path, &copy) {
            // The damaged byte is free, or has a second copy.
            Ok(()) => {
                holds(&Store::open(&copy, &Options::default()).unwrap(), 0..2_000);
                std::fs::remove_file(&copy).unwrap();
            }
            Err(error) => assert!(matches!(error, Error::Corrupt { .. }), "{error}"),
        }
        assert!(!copy.exists());
    }
    std::fs::write(&path, &whole).unwrap();
    // Only the owning process knows the locations in mapped memory.
    let memory = directory.path().join("memory");
    let mapped = Store::open(&memory, &Options::default().medium(MediumKind::Pmem)).unwrap();
    fill(&mapped, 0..10);
    assert!(matches!(Store::backup_file(&memory, &copy), Err(Error::Locked { .. })));
    mapped.backup(&copy).unwrap();
}

#[test]
fn compaction_gives_space_back() {
    let (directory, path) = directory();
    let options = Options::default();
    let store = Store::open(&path, &options).unwrap();
    fill(&store, 0..20_000);
    let transaction = store.write().unwrap();
    for key in 100..20_000_u32 {
        transaction.tree("t").unwrap().remove(key.to_be_bytes()).unwrap();
    }
    transaction.commit().unwrap();
    assert!(matches!(Store::compact(&path, &options), Err(Error::Locked { .. })));
    drop(store);
    let before = path.metadata().unwrap().len();
    Store::compact(&path, &options).unwrap();
    let after = path.metadata().unwrap().len();
    assert!(after < before / 2, "{before} {after}");
    holds(&Store::open(&path, &options).unwrap(), 0..100);
    assert_eq!(std::fs::read_dir(directory.path()).unwrap().count(), 1);
}

#[test]
fn mapped_memory_is_opened_as_what_it_is_and_costs_the_lines_that_change() {
    let (directory, path) = directory();
    let options = Options::default().medium(MediumKind::Pmem);
    let store = Store::open(&path, &options).unwrap();
    fill(&store, 0..2000);
    let update = |value: &[u8]| {
        let transaction = store.write().unwrap();
        transaction.tree("t").unwrap().insert(1000_u32.to_be_bytes(), value).unwrap();
        transaction.commit().unwrap();
    };
    // The first makes a pair of slots of the page, the second is the steady state: updated lines,
    // and one more.
    update(&[1; 100]);
    let before = store.stats();
    update(&[2; 100]);
    let after = store.stats();
    let lines = after.last_batch.2;
    assert!((2..=3).contains(&lines), "{lines}");
    assert_eq!(after.backend.flushes - before.backend.flushes, lines + 1);
    update(&[(1000_u32 % 256) as u8; 100]);
    let copy = directory.path().join("copy");
    store.backup(&copy).unwrap();
    drop(store);
    // The same without the option.
    holds(&Store::open(&path, &Options::default()).unwrap(), 0..2000);
    holds(&Store::open(&path, &Options::default().access(Access::ReadOnly)).unwrap(), 0..2000);
    holds(&Store::open(&copy, &Options::default()).unwrap(), 0..2000);
    Store::compact(&path, &Options::default()).unwrap();
    let compacted = Store::open(&path, &Options::default()).unwrap();
    holds(&compacted, 0..2000);
    let transaction = compacted.write().unwrap();
    transaction.tree("more").unwrap();
    transaction.commit().unwrap();
    assert!(compacted.stats().backend.flushes > 0, "it is memory, as before");
}

#[test]
fn compaction_keeps_permissions_and_goes_through_links() {
    let (directory, path) = directory();
    fill(&Store::open(&path, &Options::default()).unwrap(), 0..100);
    set_mode(&path, 0o600);
    let link = directory.path().join("link");
    symlink(&path, &link).unwrap();
    let before = path.metadata().unwrap().ino();
    Store::compact(&link, &Options::default()).unwrap();
    assert!(link.symlink_metadata().unwrap().is_symlink());
    let after = path.metadata().unwrap();
    assert!(after.ino() != before);
    assert_eq!(after.permissions().mode() & 0o777, 0o600);
    holds(&Store::open(&link, &Options::default()).unwrap(), 0..100);
    let missing = Store::compact(directory.path().join("missing"), &Options::default());
    assert!(matches!(missing, Err(Error::Io { .. })));
}

#[test]
fn pipes_devices_and_directories_are_no_stores() {
    let (directory, path) = directory();
    rustix::fs::mknodat(rustix::fs::CWD, &path, rustix::fs::FileType::Fifo, 0o600.into(), 0).unwrap();
    for path in [&path, directory.path(), Path::new("/dev/null"), Path::new("/dev/zero")] {
        for access in [Access::ReadOnly, Access::ReadWrite] {
            let refused = Store::open(path, &Options::default().access(access)).unwrap_err();
            assert!(matches!(refused, Error::Unknown { .. }), "{refused}");
        }
    }
    let refused = crate::medium::File::open(Path::new("/dev/null")).unwrap_err();
    assert!(matches!(refused, Error::Unknown { .. }), "{refused}");
}

/// Reading needs only read permission for a store that no process has closed, in a folder without
/// write permission.
#[test]
fn readers_write_nothing_and_need_no_permission_to() {
    for medium in [MediumKind::File, MediumKind::Pmem] {
        let (directory, path) = directory();
        let folder = directory.path().join("read-only");
        std::fs::create_dir(&folder).unwrap();
        let store = Store::open(&path, &Options::default().medium(medium)).unwrap();
        fill(&store, 0..500);
        let left = folder.join("left");
        std::fs::copy(&path, &left).unwrap();
        let bytes = std::fs::read(&left).unwrap();
        set_mode(&left, 0o444);
        set_mode(&folder, 0o555);
        {
            let options = Options::default().access(Access::ReadOnly);
            let readers = [Store::open(&left, &options).unwrap(), Store::open(&left, &options).unwrap()];
            for reader in &readers {
                holds(reader, 0..500);
                assert!(matches!(reader.write(), Err(Error::ReadOnly { .. })));
                assert!(matches!(reader.try_write(), Err(Error::ReadOnly { .. })));
                assert!(matches!(reader.checkpoint(), Err(Error::ReadOnly { .. })));
                assert!(matches!(reader.maintain(), Err(Error::ReadOnly { .. })));
                reader.sync().unwrap();
            }
            // Opening it for writing fails, in the same process and without permission.
            assert!(Store::open(&left, &Options::default()).is_err());
            assert!(Store::compact(&left, &options).is_err());
            let copy = directory.path().join("copy");
            readers[0].backup(&copy).unwrap();
            holds(&Store::open(&copy, &Options::default()).unwrap(), 0..500);
            for reader in readers {
                reader.close().unwrap();
            }
        }
        set_mode(&folder, 0o755);
        assert!(std::fs::read(&left).unwrap() == bytes);
    }
}

/// Set for a process that this test starts: the file that it is to find locked.
const LOCKED: &str = "ONEHOP_STORE_LOCKED";

#[test]
fn another_process_is_kept_out() {
    if let Some(path) = std::env::var_os(LOCKED) {
        for access in [Access::ReadOnly, Access::ReadWrite] {
            let refused = Store::open(&path, &Options::default().access(access)).unwrap_err();
            assert!(matches!(refused, Error::Locked { .. }), "{refused}");
        }
        assert!(matches!(Store::compact(&path, &Options::default()), Err(Error::Locked { .. })));
        return;
    }
    let (_directory, path) = directory();
    let store = Store::open(&path, &Options::default()).unwrap();
    fill(&store, 0..10);
    let test = std::env::current_exe().unwrap();
    let name = "tests::files::another_process_is_kept_out";
    let output = Command::new(test).args([name, "--exact"]).env(LOCKED, &path).output().unwrap();
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success() && said.contains("1 passed"), "{said}");
    fill(&store, 10..20);
    holds(&store, 0..20);
}

/// An action of another process on the file of an open store, given a copy of it; and words of the
/// error.
type Mishap = (fn(&Path, &Path), &'static str);

#[test]
fn a_writer_acknowledges_nothing_that_would_be_lost() {
    let mishaps: [Mishap; 7] = [
        (|store, _| std::fs::remove_file(store).unwrap(), "removed"),
        (|store, _| std::fs::rename(store, store.with_extension("away")).unwrap(), "given another name"),
        (|store, copy| std::fs::rename(copy, store).unwrap(), "replaced by another file"),
        (
            |store, copy| {
                std::fs::rename(store, store.with_extension("away")).unwrap();
                symlink(copy, store).unwrap();
            },
            "replaced by a symbolic link",
        ),
        (|store, _| std::fs::write(store, "").unwrap(), "cut from"),
        // The name and the inode stay: an older state is written into the open file.
        (
            |store, copy| {
                let len = store.metadata().unwrap().len();
                std::fs::copy(copy, store).unwrap();
                std::fs::File::options().write(true).open(store).unwrap().set_len(len).unwrap();
            },
            "written over",
        ),
        (
            |store, _| {
                std::fs::hard_link(store, store.with_extension("link")).unwrap();
                std::fs::remove_file(store).unwrap();
            },
            "removed",
        ),
    ];
    for (mishap, what) in mishaps {
        let (_directory, path) = directory();
        let copy = path.with_extension("copy");
        let store = Store::open(&path, &Options::default()).unwrap();
        fill(&store, 0..100);
        std::fs::copy(&path, &copy).unwrap();
        fill(&store, 100..200);
        let reader = store.read().unwrap();
        mishap(&path, &copy);
        let there = std::fs::read(&path).ok();
        let transaction = store.write().unwrap();
        transaction.tree("t").unwrap().insert("more", "x").unwrap();
        let error = transaction.commit().unwrap_err();
        let said = error.to_string();
        assert!(matches!(error, Error::Displaced { .. }) && said.contains(what), "{what}: {said}");
        let next = store.write().map(drop).unwrap_err();
        assert!(matches!(&next, Error::Poisoned { reason, .. } if reason.contains(what)), "{what}: {next}");
        assert!(reader.tree("t").unwrap().get(199_u32.to_be_bytes()).unwrap().is_some(), "readers go on");
        drop((reader, store));
        assert_eq!(std::fs::read(&path).ok(), there, "{what}: what is there now is left alone");
    }
}

#[test]
fn a_store_that_is_copied_into_an_open_one_survives_its_closing() {
    let (_directory, path) = directory();
    let copy = path.with_extension("copy");
    let store = Store::open(&path, &Options::default()).unwrap();
    fill(&store, 0..100);
    Store::backup_file(&path, &copy).unwrap();
    fill(&store, 100..200);
    std::fs::copy(&copy, &path).unwrap();
    assert!(matches!(store.checkpoint(), Err(Error::Displaced { .. })));
    drop(store);
    holds(&Store::open(&path, &Options::default()).unwrap(), 0..100);
}

#[test]
fn an_open_store_may_move_with_its_directory() {
    let (directory, _) = directory();
    let (before, after) = (directory.path().join("before"), directory.path().join("after"));
    std::fs::create_dir(&before).unwrap();
    let store = Store::open(before.join("a.store"), &Options::default()).unwrap();
    fill(&store, 0..100);
    std::fs::rename(&before, &after).unwrap();
    fill(&store, 100..200);
    store.close().unwrap();
    holds(&Store::open(after.join("a.store"), &Options::default()).unwrap(), 0..200);
}
