//! Invalid calls and invalid files.

use std::ops::{Bound, Range};
use std::sync::Arc;

use crate::explore::CrashImage;
use crate::explore::backends::Simulated;
use crate::medium::{Granularity, Medium, Memory, SimFile, SimPmem};
use crate::{Access, Error, MAX_KEY_BYTES, Options, Store, Tree};

fn sound(store: &Store) {
    let report = store.check().unwrap();
    assert!(report.is_sound(), "{report}");
}

#[test]
fn names_of_all_kinds_and_none_that_is_too_long() {
    let store = Store::memory().unwrap();
    let longest = "n".repeat(MAX_KEY_BYTES);
    let names = ["", "\0", "../../etc/passwd", "a\nb", "ß→🦀", " ", "\u{feff}", &longest];
    let transaction = store.write().unwrap();
    for name in names {
        transaction.tree(name).unwrap().insert(name, name).unwrap();
        let too_long = transaction.tree(longest.clone() + name + "x");
        assert!(matches!(too_long, Err(Error::Invalid(_))), "{too_long:?}");
    }
    transaction.commit().unwrap();
    // A refused name has changed nothing.
    sound(&store);
    let snapshot = store.read().unwrap();
    let mut sorted = names.map(String::from);
    sorted.sort();
    assert_eq!(snapshot.trees().unwrap(), sorted);
    assert!(names.iter().all(|name| snapshot.tree(name).unwrap().get(name).unwrap().unwrap() == *name));
    assert!(snapshot.open_tree(longest + "x").unwrap().is_none());
}

#[test]
fn keys_and_values_at_their_limits() {
    let store = Store::memory().unwrap();
    let transaction = store.write().unwrap();
    let mut tree = transaction.tree("t").unwrap();
    let mut sizes = Vec::new();
    for key in [0, 1, 7, MAX_KEY_BYTES - 1, MAX_KEY_BYTES] {
        for value in [0, 1, 8, 9, 1032 - key.min(1032), 1033 - key.min(1033), 4016, 4017, 8032, 8033, 65_535, 65_536] {
            assert!(!tree.insert(vec![b'a'; key], vec![1; value]).unwrap() || !sizes.is_empty());
            assert_eq!(tree.get(vec![b'a'; key]).unwrap().unwrap(), vec![1; value]);
            sizes.push(value);
        }
    }
    assert_eq!(tree.len().unwrap(), 5);
    let too_long = vec![b'a'; MAX_KEY_BYTES + 1];
    assert!(matches!(tree.insert(&too_long, ""), Err(Error::Invalid(_))));
    assert!(!tree.remove(&too_long).unwrap() && tree.get(&too_long).unwrap().is_none());
    assert_eq!(tree.range(too_long.clone()..).count(), 0);
    // A refused key has not stopped a change half-way.
    transaction.commit().unwrap();
    sound(&store);
    assert_eq!(store.read().unwrap().tree("t").unwrap().len().unwrap(), 5);
}

#[test]
fn ranges_that_end_before_they_begin_are_empty() {
    fn count(tree: &Tree<'_>, lower: Bound<&str>, upper: Bound<&str>) -> usize {
        tree.range::<&str>((lower, upper)).filter(Result::is_ok).count()
    }
    let store = Store::memory().unwrap();
    let transaction = store.write().unwrap();
    let mut tree = transaction.tree("t").unwrap();
    for key in ["a", "b", "c"] {
        tree.insert(key, "").unwrap();
    }
    for (lower, upper, expected) in [
        (Bound::Excluded("b"), Bound::Excluded("b"), 0),
        (Bound::Included("b"), Bound::Included("b"), 1),
        (Bound::Included("b"), Bound::Excluded("b"), 0),
        (Bound::Included("c"), Bound::Included("a"), 0),
        (Bound::Excluded(""), Bound::Unbounded, 3),
        (Bound::Unbounded, Bound::Included(""), 0),
    ] {
        assert_eq!(count(&tree, lower, upper), expected, "{lower:?} {upper:?}");
    }
    assert_eq!(tree.prefix([255; 3]).count(), 0);
}

#[test]
fn a_transaction_that_is_left_or_panics_has_changed_nothing() {
    let store = Store::memory().unwrap();
    let panicked = std::thread::scope(|scope| {
        let thread = scope.spawn(|| {
            let transaction = store.write().unwrap();
            transaction.tree("t").unwrap().insert("key", "value").unwrap();
            panic!("on purpose");
        });
        thread.join()
    });
    assert!(panicked.is_err());
    drop(store.write().unwrap().tree("t").unwrap().insert("key", "value"));
    assert!(store.read().unwrap().trees().unwrap().is_empty());
    assert!(store.try_write().unwrap().is_some());
    sound(&store);
}

#[test]
fn what_was_read_outlives_all_that_it_came_from() {
    let store = Store::memory().unwrap();
    let transaction = store.write().unwrap();
    let mut tree = transaction.tree("t").unwrap();
    for key in 0..1000_u32 {
        tree.insert(key.to_be_bytes(), [7; 100]).unwrap();
    }
    transaction.commit().unwrap();
    let mut range = store.read().unwrap().tree("t").unwrap().iter();
    let first = range.next().unwrap().unwrap();
    let mut transaction = store.write().unwrap();
    assert!(transaction.drop_tree("t").unwrap());
    transaction.commit().unwrap();
    assert!(matches!(store.close(), Err(Error::Invalid(_))));
    assert_eq!((first.key(), first.value()), (&0_u32.to_be_bytes()[..], &[7; 100][..]));
    assert_eq!(range.filter(Result::is_ok).count(), 999);
}

/// Returns a store that was not closed, with all kinds of entries.
fn left<M: Simulated>() -> Vec<u8> {
    let medium = Arc::new(M::holding(CrashImage::new(), false));
    let options = Options::default().transaction_bytes(8 * 4096);
    let store = Store::create_on(Arc::clone(&medium) as Arc<dyn Medium>, &options).unwrap();
    for round in 0..4_u8 {
        let transaction = store.write().unwrap();
        let mut tree = transaction.tree("t").unwrap();
        for key in 0..40_u8 {
            tree.insert([key], vec![round; 900]).unwrap();
        }
        tree.insert("long", vec![round; 20_000]).unwrap();
        transaction.commit().unwrap();
        if round == 1 {
            store.checkpoint().unwrap();
        }
    }
    std::mem::forget(store);
    let image = medium.record().now();
    let mut bytes = vec![0; image.len() as usize];
    image.read(0, &mut bytes);
    bytes
}

/// Opens the store, reads all, checks all, changes an entry: the results may be errors, but no call
/// panics or exhausts memory.
fn try_all(granularity: Granularity, bytes: &[u8]) -> bool {
    let mut opened = false;
    for access in [Access::ReadOnly, Access::ReadWrite] {
        let medium = Arc::new(Memory::with_bytes(granularity, bytes.to_vec()));
        let Ok(store) = Store::open_on(medium, &Options::default().access(access)) else { continue };
        opened = true;
        let _ = store.check();
        if let Ok(tree) = store.read().unwrap().tree("t") {
            let _ = tree.iter().count();
        }
        if let Ok(transaction) = store.write()
            && let Ok(mut tree) = transaction.tree("t")
        {
            let _ = tree.insert("key", vec![1; 9000]);
            let _ = transaction.commit();
        }
        let _ = store.close();
    }
    opened
}

/// Numbers that no store has.
const NUMBERS: [u32; 6] = [0, 1, 3, 1 << 16, u32::MAX >> 1, u32::MAX];

/// Opens `bytes` with each word of `of`, and each two, replaced by each of [`NUMBERS`], and
/// `seal`ed, so that no checksum detects it.
fn try_numbers(granularity: Granularity, bytes: &[u8], of: Range<usize>, seal: impl Fn(&mut [u8])) {
    let places = of.clone().step_by(4).flat_map(|at| [at..at + 4, at..(at + 8).min(of.end)]);
    for (place, number) in places.flat_map(|place| NUMBERS.map(|number| (place.clone(), number))) {
        let mut changed = bytes.to_vec();
        changed[place].chunks_exact_mut(4).for_each(|word| word.copy_from_slice(&number.to_le_bytes()));
        seal(&mut changed);
        try_all(granularity, &changed);
    }
}

/// Puts the checksum of `checked`, with the seed `seed`, before it.
fn seal(bytes: &mut [u8], checked: Range<usize>, seed: u32) {
    let checksum = crc32c::crc32c_append(seed, &bytes[checked.clone()]);
    bytes[checked.start - 4..checked.start].copy_from_slice(&checksum.to_le_bytes());
}

#[test]
fn numbers_that_cannot_be_are_refused_even_with_the_right_checksum() {
    let superblock = |bytes: &mut [u8]| {
        let checksum = crc32c::crc32c(&bytes[..508]);
        bytes[508..512].copy_from_slice(&checksum.to_le_bytes());
        bytes.copy_within(..512, 4096);
    };
    let [file, memory] = [left::<SimFile>(), left::<SimPmem>()].map(|mut bytes| {
        let newest = if bytes[48..56] > bytes[4096 + 48..][..8] { 0 } else { 4096 };
        bytes.copy_within(newest..newest + 512, 0);
        bytes
    });
    for (granularity, bytes) in [(Granularity::Page, &file), (Granularity::Line, &memory)] {
        assert!(try_all(granularity, bytes));
        try_numbers(granularity, bytes, 8..32, superblock);
        try_numbers(granularity, bytes, 48..56 + 44, superblock);
    }
    // Slots: headers, and the beginning of a list or a table. Some of each kind.
    let name = crc32c::crc32c(&file[32..48]);
    for kind in 1..=5 {
        let slots = (8192..file.len()).step_by(4096).filter(|at| file[at + 4] == kind);
        for at in slots.step_by(9) {
            try_numbers(Granularity::Page, &file, at + 4..at + 76, |bytes| seal(bytes, at + 4..at + 4096, name));
        }
    }
    // Records of the journal.
    let epoch = &memory[56 + 16..][..8];
    let salt = crc32c::crc32c_append(crc32c::crc32c(&memory[32..48]), epoch);
    for at in (8192..8192 + 64 * 40).step_by(64).filter(|at| memory[*at..at + 4] != [0; 4]).step_by(5) {
        try_numbers(Granularity::Line, &memory, at + 4..at + 64, |bytes| seal(bytes, at + 4..at + 64, salt));
    }
}
