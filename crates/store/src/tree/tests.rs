//! Tests of nodes and trees: damaged pages, the fill of pages, the release of space.

use std::sync::Arc;

use proptest::prelude::*;

use super::node::{Node, NodeMut, Stored};
use super::verify;
use crate::backend::{Image, Lines, PAGE_BYTES, PageNo};
use crate::{MAX_KEY_BYTES, Store, Tree, TreeMut, TreeReport};

/// Uses all contents of a page, as reading and editing would.
fn use_up(image: &Image) {
    let node = Node(image);
    if node.kind() == super::node::OVERFLOW {
        assert!(!node.overflow().0.is_empty());
        return;
    }
    for slot in 0..node.count() {
        assert_eq!(node.search(node.key(slot)), Ok(slot));
        if node.kind() == super::node::LEAF {
            let _ = node.stored(slot);
        }
    }
    let mut copy = image.clone();
    let mut lines = Lines::default();
    let mut edit = NodeMut::new((&mut copy, &mut lines));
    let level = node.level();
    let split = if node.count() > 1 { node.split_point(node.count() / 2, 100) } else { 0 };
    assert!(split <= node.count());
    let key = [&b"\xff".repeat(20)[..], b"new"].concat();
    if let Err(slot) = node.search(&key) {
        if level == 0 && edit.has_room(4 + key.len() + 3) {
            edit.insert_leaf(slot, &key, Stored::Inline(b"abc"));
        } else if level > 0 && edit.has_room(6 + key.len()) {
            edit.insert_inner(slot, &key, PageNo(9));
        }
    }
    while edit.node().count() > 0 {
        edit.remove(edit.node().count() / 2);
        if edit.node().count() > 2 {
            edit.truncate(edit.node().count() - 1);
        }
    }
    verify(&copy).unwrap();
}

/// Returns a leaf, or an inner node, after insertions and removals.
fn lived(is_leaf: bool) -> Image {
    let mut image = Image::zeroed();
    let mut lines = Lines::default();
    let mut node = NodeMut::new((&mut image, &mut lines));
    node.format(u8::from(!is_leaf), PageNo(3));
    for i in 0..60_u32 {
        let key = (i * 37 % 60).to_be_bytes();
        let Err(slot) = node.node().search(&key) else { continue };
        match (is_leaf, i % 10) {
            (false, _) => node.insert_inner(slot, &key, PageNo(i + 1)),
            (true, 0) => node.insert_leaf(slot, &key, Stored::Overflow { first: PageNo(i + 1), len: 5000 }),
            (true, _) => node.insert_leaf(slot, &key, Stored::Inline(&vec![7; (i % 40) as usize])),
        }
    }
    for slot in [40, 3, 20, 0] {
        node.remove(slot);
    }
    verify(&image).unwrap();
    image
}

#[test]
fn no_flipped_byte_makes_a_node_run_over_its_end() {
    for is_leaf in [true, false] {
        let image = lived(is_leaf);
        use_up(&image);
        for at in 0..PAGE_BYTES {
            for value in [0, 1, 0x7f, 0x80, 0xff, image.0[at] ^ 1, image.0[at].wrapping_add(1)] {
                let mut damaged = image.clone();
                damaged.0[at] = value;
                if verify(&damaged).is_ok() {
                    use_up(&damaged);
                }
            }
        }
    }
}

proptest! {
    #[test]
    fn random_bytes_are_refused_or_harmless(
        bytes in proptest::collection::vec(any::<u8>(), PAGE_BYTES),
        kind in 0..5_u8,
        level in 0..3_u8,
        count in 0..8_u16,
        start in 0..PAGE_BYTES as u16,
    ) {
        let mut image = Image::zeroed();
        image.0.copy_from_slice(&bytes);
        image.0[..3].copy_from_slice(&[kind, level, 1]);
        image.0[4..6].copy_from_slice(&count.to_le_bytes());
        image.0[6..8].copy_from_slice(&start.to_le_bytes());
        if verify(&image).is_ok() {
            use_up(&image);
        }
    }

    #[test]
    fn lines_say_all_that_an_edit_has_changed(
        steps in proptest::collection::vec((0..80_u32, 0..120_usize, any::<bool>()), 1..60),
    ) {
        let mut image = Image::zeroed();
        NodeMut::new((&mut image, &mut Lines::default())).format(0, PageNo(0));
        for (number, bytes, is_removal) in steps {
            let before = image.clone();
            let mut lines = Lines::default();
            let mut node = NodeMut::new((&mut image, &mut lines));
            let key = number.to_be_bytes();
            match node.node().search(&key) {
                Ok(slot) if is_removal => node.remove(slot),
                Ok(slot) => drop(node.replace_value(slot, &vec![bytes as u8; bytes])),
                Err(slot) if node.has_room(8 + bytes) => {
                    node.insert_leaf(slot, &key, Stored::Inline(&vec![1; bytes]));
                }
                Err(_) => {}
            }
            prop_assert_eq!(verify(&image), Ok(()));
            for at in 0..PAGE_BYTES {
                let is_noted = lines.0 >> (at / 64 + 1) & 1 == 1;
                prop_assert!(is_noted || image.0[at] == before.0[at], "byte {} is not in {:x}", at, lines.0);
            }
        }
    }
}

#[test]
fn a_value_of_the_same_length_changes_the_lines_that_differ_and_no_others() {
    let mut image = Image::zeroed();
    let mut lines = Lines::default();
    let mut node = NodeMut::new((&mut image, &mut lines));
    node.format(0, PageNo(0));
    node.insert_leaf(0, b"k", Stored::Inline(&[1; 300]));
    let mut lines = Lines::default();
    let mut value = [1; 300];
    value[150] = 2;
    assert!(NodeMut::new((&mut image, &mut lines)).replace_value(0, &value));
    assert_eq!(lines.count(), 1);
}

fn reported(store: &Store) -> TreeReport {
    let report = store.check().unwrap();
    assert!(report.is_sound(), "{report}");
    report.trees[0].clone()
}

fn filled(keys: impl Iterator<Item = u32>) -> (Store, TreeReport) {
    let store = Store::memory().unwrap();
    let transaction = store.write().unwrap();
    let mut tree = transaction.tree("t").unwrap();
    for key in keys {
        assert!(!tree.insert(key.to_be_bytes(), key.to_string()).unwrap());
    }
    transaction.commit().unwrap();
    let report = reported(&store);
    assert_eq!(report.entries, 100_000);
    let tree = store.read().unwrap().tree("t").unwrap();
    let (mut entries, mut expected) = (tree.iter(), 0..100_000_u32);
    while let Some((key, value)) = entries.next_ref().unwrap() {
        let number = expected.next().unwrap();
        assert_eq!((key, value), (&number.to_be_bytes()[..], number.to_string().as_bytes()));
    }
    assert_eq!(expected.next(), None);
    (store, report)
}

/// Returns a permutation of 0..100,000.
fn scattered() -> impl Iterator<Item = u32> {
    (0..100_000_u64).map(|i| (i * 76_543 % 100_000) as u32)
}

#[test]
fn runs_of_insertions_leave_full_pages() {
    for report in [filled(0..100_000).1, filled((0..100_000).rev()).1] {
        assert!(report.leaf_fill_percent >= 95, "{report:?}");
    }
    // Several runs that grow side by side, as rows of several tables do.
    let interleaved = (0..10_000_u32).flat_map(|row| (0..10).map(move |table| table * 10_000 + row));
    let report = filled(interleaved).1;
    assert!(report.leaf_fill_percent >= 90, "{report:?}");
    let report = filled(scattered()).1;
    assert!(report.leaf_fill_percent >= 60, "{report:?}");
}

#[test]
fn removal_gives_all_pages_back() {
    type Order = fn() -> Box<dyn Iterator<Item = u32>>;
    let orders: [Order; 3] = [|| Box::new(0..100_000), || Box::new((0..100_000).rev()), || Box::new(scattered())];
    for order in orders {
        let store = filled(scattered()).0;
        let transaction = store.write().unwrap();
        let mut tree = transaction.tree("t").unwrap();
        for key in order() {
            assert!(tree.remove(key.to_be_bytes()).unwrap());
        }
        assert!(!tree.remove(5_u32.to_be_bytes()).unwrap());
        transaction.commit().unwrap();
        let report = reported(&store);
        assert_eq!((report.entries, report.leaf_pages, report.inner_pages), (0, 1, 0));
        assert_eq!(store.stats().backend.pages, 2);
    }
}

#[test]
fn space_of_what_was_removed_is_used_again() {
    let (store, before) = filled(scattered());
    for round in 0..5 {
        let transaction = store.write().unwrap();
        let mut tree = transaction.tree("t").unwrap();
        for key in scattered().skip(round * 20_000).take(20_000) {
            tree.remove(key.to_be_bytes()).unwrap();
        }
        for key in scattered().skip(round * 20_000).take(20_000) {
            tree.insert(key.to_be_bytes(), key.to_string()).unwrap();
        }
        transaction.commit().unwrap();
    }
    let after = reported(&store);
    assert!(after.leaf_pages <= before.leaf_pages * 11 / 10, "{before:?} {after:?}");
}

#[test]
fn the_longest_keys_and_long_values() {
    let store = Store::memory().unwrap();
    let transaction = store.write().unwrap();
    let mut tree = transaction.tree("t").unwrap();
    let key = |i: usize| {
        let mut key = vec![b'k'; MAX_KEY_BYTES - i % 3];
        let at = key.len() - 4;
        key[at..].copy_from_slice(&(i as u32 * 7919 % 1000).to_be_bytes());
        key
    };
    let bytes = |i: usize| vec![i as u8; [0, 1, 7, 8, 9, 1000, 4016, 4017, 8032, 8033, 200_000][i % 11]];
    for i in 0..300 {
        assert!(!tree.insert(key(i), bytes(i)).unwrap());
    }
    assert!(tree.insert(vec![0; MAX_KEY_BYTES + 1], "").is_err());
    assert!(tree.insert("", "the empty key").is_ok());
    transaction.commit().unwrap();
    let tree = store.read().unwrap().tree("t").unwrap();
    for i in 0..300 {
        assert!(tree.get(key(i)).unwrap().unwrap() == bytes(i));
    }
    assert_eq!(tree.first().unwrap().unwrap().value(), b"the empty key");
    let report = reported(&store);
    assert!(report.overflow_pages > 27 * 50, "{report:?}");
    // Long values replace short ones, and the reverse.
    let transaction = store.write().unwrap();
    let mut tree = transaction.tree("t").unwrap();
    for i in 0..300 {
        assert!(tree.insert(key(i), bytes(i + 5)).unwrap());
    }
    for i in 0..300 {
        assert!(tree.get(key(i)).unwrap().unwrap() == bytes(i + 5));
        assert!(tree.remove(key(i)).unwrap());
    }
    transaction.commit().unwrap();
    assert_eq!(reported(&store).overflow_pages, 0);
}

#[test]
fn ends_and_prefixes() {
    fn keys(tree: &Tree<'_>, prefix: &[u8]) -> Vec<Vec<u8>> {
        tree.prefix(prefix).map(|entry| entry.unwrap().key().to_vec()).collect()
    }
    fn put(tree: &mut TreeMut<'_>, key: &[u8]) {
        tree.insert(key, "").unwrap();
    }
    let store = Store::memory().unwrap();
    let transaction = store.write().unwrap();
    let mut tree = transaction.tree("t").unwrap();
    assert!(tree.first().unwrap().is_none() && tree.last().unwrap().is_none() && tree.is_empty().unwrap());
    for key in [&b"a"[..], b"a\xff", b"a\xff\xff", b"b", b"\xff", b"\xff\xff"] {
        put(&mut tree, key);
    }
    assert_eq!(keys(&tree, b"a"), [&b"a"[..], b"a\xff", b"a\xff\xff"]);
    assert_eq!(keys(&tree, b"a\xff"), [&b"a\xff"[..], b"a\xff\xff"]);
    assert_eq!(keys(&tree, b"\xff"), [&b"\xff"[..], b"\xff\xff"]);
    assert_eq!(keys(&tree, b"").len(), 6);
    assert_eq!(tree.first().unwrap().unwrap().key(), b"a");
    assert_eq!(tree.last().unwrap().unwrap().key(), b"\xff\xff");
    // A range with reversed bounds is empty.
    assert_eq!(tree.range("b".."a").count(), 0);
    assert_eq!(tree.range("b"..="b").count(), 1);
    let entry = tree.first().unwrap().unwrap();
    tree.clear().unwrap();
    // An entry that was handed out does not change.
    assert_eq!(entry.key(), b"a");
    assert!(tree.is_empty().unwrap());
}

/// Each inner node has two paths to the next one: 2^30 to the leaf.
#[test]
fn a_tree_of_many_ways_to_a_leaf_ends_in_an_error() {
    use crate::backend::{Backend, Batch, Content, Write};
    const LEVELS: u32 = 30;
    let backend: Arc<dyn Backend> = Arc::new(crate::pages::Volatile::default());
    let image = |level: u32, fill: &dyn Fn(&mut NodeMut<'_>)| {
        let (mut image, mut lines) = (Image::zeroed(), Lines::default());
        let mut node = NodeMut::new((&mut image, &mut lines));
        node.format(level as u8, PageNo(LEVELS + 2 - level));
        fill(&mut node);
        image
    };
    let root = super::encode_root(PageNo(1));
    let mut pages = vec![image(0, &|node| node.insert_leaf(0, b"t", Stored::Inline(&root)))];
    for level in (1..=LEVELS).rev() {
        pages.push(image(level, &|node| node.insert_inner(0, b"k", PageNo(LEVELS + 2 - level))));
    }
    pages.push(image(0, &|node| node.insert_leaf(0, b"k", Stored::Inline(b"value"))));
    let write =
        |(page, image)| Write { page: PageNo(page), content: Content::Image(Arc::new(image)), lines: Lines::ALL };
    let writes = (0..).zip(pages).map(write).collect();
    backend.commit(&Batch { writes, frees: vec![], ..Batch::default() }).unwrap();
    let store = Store::on(backend, &crate::Options::default(), None).unwrap();
    let tree = store.read().unwrap().tree("t").unwrap();
    let refused = tree.len().unwrap_err().to_string();
    assert!(refused.contains("a node of other keys"), "{refused}");
    assert!(tree.iter().any(|entry| entry.is_err()) && tree.iter().rev().any(|entry| entry.is_err()));
    assert!(!store.check().unwrap().is_sound());
}

#[test]
fn a_tree_bent_into_a_ring_ends_in_an_error() {
    use crate::backend::{Backend, Batch, Content, Write};
    let backend: Arc<dyn Backend> = Arc::new(crate::pages::Volatile::default());
    let node = |level: u8, children: &[u32]| {
        let mut image = Image::zeroed();
        let mut lines = Lines::default();
        let mut node = NodeMut::new((&mut image, &mut lines));
        node.format(level, PageNo(children.first().copied().unwrap_or(0)));
        for (slot, &child) in children.iter().enumerate().skip(1) {
            node.insert_inner(slot - 1, &[slot as u8 * 10], PageNo(child));
        }
        image
    };
    let mut catalog = node(0, &[]);
    NodeMut::new((&mut catalog, &mut Lines::default())).insert_leaf(
        0,
        b"t",
        Stored::Inline(&super::encode_root(PageNo(1))),
    );
    let pages = [(0, catalog), (1, node(2, &[2, 3])), (2, node(1, &[1, 2])), (3, node(1, &[4, 4])), (4, node(0, &[]))];
    let writes = pages
        .into_iter()
        .map(|(page, image)| Write { page: PageNo(page), content: Content::Image(Arc::new(image)), lines: Lines::ALL })
        .collect();
    backend.commit(&Batch { writes, frees: vec![], ..Batch::default() }).unwrap();
    let store = Store::on(backend, &crate::Options::default(), None).unwrap();
    let tree = store.read().unwrap().tree("t").unwrap();
    let misplaced = tree.get([5]).unwrap_err().to_string();
    assert!(misplaced.contains("page 1 is referred to as a node of level 0, and is not"), "{misplaced}");
    assert!(tree.iter().any(|entry| entry.is_err()));
    assert!(tree.len().is_err());
    let report = store.check().unwrap();
    for expected in ["page 1 is referred to twice", "page 2 is referred to twice", "page 4 is referred to twice"] {
        assert!(report.findings.iter().any(|finding| finding.contains(expected)), "{report}");
    }
    let mut transaction = store.write().unwrap();
    let savepoint = transaction.savepoint().unwrap();
    assert!(transaction.drop_tree("t").is_err());
    assert!(transaction.savepoint().is_err());
    let refused = transaction.tree("u").unwrap_err().to_string();
    assert!(refused.contains("roll it back"), "{refused}");
    transaction.rollback_to(savepoint).unwrap();
    transaction.tree("u").unwrap();
    assert!(transaction.drop_tree("t").is_err());
    assert!(transaction.commit().is_err());
    assert_eq!(store.read().unwrap().trees().unwrap(), ["t"]);
}
