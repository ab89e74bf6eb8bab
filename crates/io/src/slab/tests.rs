//! What a slab hands out, and when it takes memory from the system and gives it back.

#![allow(clippy::unwrap_used)]

use std::sync::Barrier;
use std::thread;

use proptest::prelude::*;

use super::*;

const MIB: usize = 1 << 20;

fn addresses(buffer: &AlignedBuf) -> Range<usize> {
    let start = buffer.as_ptr() as usize;
    start..start + buffer.len()
}

#[test]
fn buffers_come_back_and_are_used_again() {
    let slab = Slab::new(usize::MAX);
    assert_eq!(slab.stats(), SlabStats::default(), "nothing is mapped before it is needed");
    let mut first = slab.buffer(5000).unwrap();
    assert!(first.len() == 5000 && first.padded_mut().len() == 8192);
    assert!(first.padded_mut().iter().all(|byte| *byte == 0), "as the system gave it");
    assert!((first.as_ptr() as usize).is_multiple_of(HUGE_PAGE_BYTES));
    first.padded_mut().fill(7);
    let at = addresses(&first).start;
    drop(first);
    let again = slab.buffer(8192).unwrap();
    assert_eq!(addresses(&again).start, at);
    assert!(again.iter().all(|byte| *byte == 7), "whatever the last owner left");
    let cleared = AlignedBuf::of_slab_zeroed(&slab, 100).unwrap();
    drop(again);
    let other = AlignedBuf::of_slab_zeroed(&slab, 8192).unwrap();
    assert_eq!(addresses(&other).start, at);
    assert!(cleared.iter().chain(other.iter()).all(|byte| *byte == 0));
    let stats = slab.stats();
    assert_eq!((stats.regions, stats.mapped_bytes), (1, REGION_BYTES));
    assert_eq!((stats.lent_bytes, stats.most_lent_bytes, stats.buffers), (8192 + 4096, 8192 + 4096, 4));
    drop((cleared, other));
    assert_eq!(slab.stats().lent_bytes, 0);
    // Neighbours are one again.
    assert_eq!(addresses(&slab.buffer(REGION_BYTES).unwrap()).start, at);
}

#[test]
fn memory_is_touched_from_the_start_as_far_as_it_is_used() {
    let slab = Slab::new(usize::MAX);
    let first = slab.buffer(3 * MIB).unwrap();
    let region = slab.region_of(&addresses(&first)).unwrap();
    assert_eq!(region.used_bytes(), 4 * MIB);
    for _ in 0..100 {
        let _second = slab.buffer(MIB).unwrap();
    }
    assert_eq!(region.used_bytes(), 4 * MIB);
    let _third = slab.buffer(2 * MIB).unwrap();
    assert_eq!(region.used_bytes(), 6 * MIB);
}

#[test]
fn the_limit_is_kept() {
    let slab = Slab::new(41 * MIB);
    let small = slab.buffer(4096).unwrap();
    assert!(slab.buffer(41 * MIB).is_none());
    let long = slab.buffer(31 * MIB).unwrap();
    // Another region, of what is left: whole huge pages.
    let second = slab.buffer(7 * MIB).unwrap();
    assert_eq!(slab.stats().mapped_bytes, 40 * MIB);
    assert!(slab.buffer(2 * MIB).is_none());
    drop((small, long, second));
    // What is kept makes room for a buffer that needs all of it.
    let all = slab.buffer(40 * MIB).unwrap();
    assert_eq!((slab.stats().regions, slab.stats().mapped_bytes), (1, 40 * MIB));
    drop(all);
    assert!(slab.buffer(usize::MAX).is_none() && Slab::new(usize::MAX).buffer(usize::MAX - 5 * MIB).is_none());
    assert!(Slab::new(0).buffer(1).is_none());
}

#[test]
fn what_is_wholly_free_goes_back_but_for_a_few_regions() {
    let slab = Slab::new(usize::MAX);
    let mut regions: Vec<AlignedBuf> = (0..6).map(|_| slab.buffer(REGION_BYTES).unwrap()).collect();
    let one_more = slab.buffer(4096).unwrap();
    assert_eq!(slab.stats().regions, 7);
    let last = addresses(&regions[5]);
    regions.clear();
    assert_eq!((slab.stats().mapped_bytes, slab.state.lock().unwrap().idle_bytes), (3 * REGION_BYTES, KEPT_BYTES));
    assert!(!slab.is_in_region(last.start as *const u8, 1));
    // A region that somebody has the addresses of is not unmapped before they let go of it.
    let buffer = slab.buffer(4 * REGION_BYTES).unwrap();
    let held = slab.region_of(&addresses(&buffer)).unwrap();
    let at = addresses(&buffer);
    drop((buffer, one_more));
    assert!(slab.region_of(&at).is_none() && slab.is_in_region(at.start as *const u8, at.len()));
    drop(held);
    assert!(!slab.is_in_region(at.start as *const u8, 1));
}

/// Regions as they were told.
#[derive(Default)]
struct Watch(Mutex<Vec<(&'static str, Range<usize>)>>);

impl RegionWatch for Watch {
    fn mapped(&self, addresses: Range<usize>) {
        self.0.lock().unwrap().push(("mapped", addresses));
    }

    fn unmapping(&self, addresses: Range<usize>) {
        // It is still there.
        // SAFETY: mapped, and nobody's buffer.
        let _ = unsafe { std::ptr::read_volatile(addresses.start as *const u8) };
        self.0.lock().unwrap().push(("unmapping", addresses));
    }
}

#[test]
fn who_watches_is_told_of_regions_before_and_after_buffers() {
    let slab = Slab::new(usize::MAX);
    let watch = Arc::new(Watch::default());
    let told = || std::mem::take(&mut *watch.0.lock().unwrap());
    let first = slab.buffer(10 * MIB).unwrap();
    slab.watch(&(Arc::clone(&watch) as Arc<dyn RegionWatch>));
    let region = slab.region_of(&addresses(&first)).unwrap().addresses();
    assert_eq!(told(), [("mapped", region.clone())], "what was there before");
    let second = slab.buffer(100 * MIB).unwrap();
    let (what, long) = told().remove(0);
    assert!(what == "mapped" && long.start == addresses(&second).start && long.len() == 100 * MIB);
    assert!(slab.is_in_region(second.as_ptr(), 100 * MIB) && slab.is_in_region(second[99 * MIB..].as_ptr(), MIB));
    assert!(
        !slab.is_in_region(second.as_ptr(), 100 * MIB + 1) && !slab.is_in_region(region.start as *const u8, usize::MAX)
    );
    assert!(!slab.is_in_region(Box::new(0).as_ref(), 1));
    drop(second);
    assert_eq!(told(), [("unmapping", long)], "more than is kept");
    drop(first);
    assert_eq!(told(), []);
    drop(slab);
    assert_eq!(told(), [("unmapping", region)]);
    // A watch that is dropped is forgotten.
    let (slab, other) = (Slab::new(usize::MAX), Arc::new(Watch::default()));
    slab.watch(&(Arc::clone(&other) as Arc<dyn RegionWatch>));
    drop(other);
    assert!(slab.buffer(1).is_some());
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// Of several regions, with a limit, and with buffers that are longer than a region.
    #[test]
    fn buffers_do_not_overlap_and_all_come_back(
        steps in prop::collection::vec((0u8..3, 1usize..48 * MIB), 1..120),
        limit in 0usize..300 * MIB,
    ) {
        let slab = Slab::new(limit);
        let mut buffers: Vec<AlignedBuf> = Vec::new();
        for (what, len) in steps {
            if what > 0 {
                // Some short, some long.
                let len = if what == 1 { len % 100_000 + 1 } else { len };
                buffers.extend(slab.buffer(len));
            } else if !buffers.is_empty() {
                buffers.swap_remove(len % buffers.len());
            }
            let mut parts: Vec<Range<usize>> = buffers.iter_mut().map(|buffer| {
                let start = buffer.as_ptr() as usize;
                start..start + buffer.padded_mut().len()
            }).collect();
            parts.sort_by_key(|part| part.start);
            prop_assert!(parts.windows(2).all(|pair| pair[0].end <= pair[1].start));
            prop_assert!(parts.iter().all(|part| slab.is_in_region(part.start as *const u8, part.len())));
            let stats = slab.stats();
            prop_assert_eq!(stats.lent_bytes, parts.iter().map(Range::len).sum::<usize>());
            prop_assert!(stats.lent_bytes <= stats.mapped_bytes && stats.mapped_bytes <= limit);
        }
        buffers.clear();
        let state = slab.state.lock().unwrap();
        prop_assert_eq!(state.stats.lent_bytes, 0);
        prop_assert_eq!(state.idle_bytes, state.stats.mapped_bytes);
        prop_assert!(state.idle_bytes <= KEPT_BYTES);
    }
}

#[test]
fn threads_have_buffers_of_their_own() {
    const THREADS: usize = 8;
    let (slab, start) = (Slab::new(usize::MAX), Barrier::new(THREADS));
    thread::scope(|scope| {
        for thread in 0..THREADS {
            let (slab, start) = (&slab, &start);
            scope.spawn(move || {
                start.wait();
                let mut kept: Vec<(AlignedBuf, u8)> = Vec::new();
                for round in 0..2000 {
                    let len = 1 + (round * 7919 + thread * 104_729) % 60_000;
                    let mark = (round * THREADS + thread) as u8;
                    let mut buffer = slab.buffer(len).unwrap();
                    buffer.fill(mark);
                    kept.push((buffer, mark));
                    if kept.len() > 20 {
                        let (buffer, mark) = kept.swap_remove(round % kept.len());
                        assert!(buffer.iter().all(|byte| *byte == mark), "somebody else has written to it");
                    }
                }
                assert!(kept.iter().all(|(buffer, mark)| buffer.iter().all(|byte| byte == mark)));
            });
        }
    });
    assert_eq!(slab.stats().lent_bytes, 0);
    assert_eq!(slab.stats().buffers, 2000 * THREADS as u64);
}

#[cfg(asan)]
#[test]
fn the_sanitizer_knows_what_nobody_has() {
    unsafe extern "C" {
        fn __asan_address_is_poisoned(address: *const u8) -> std::ffi::c_int;
    }
    // SAFETY: looks at what is known of the address, and not at the byte.
    let is_poisoned = |address: usize| unsafe { __asan_address_is_poisoned(address as *const u8) } != 0;
    let slab = Slab::new(usize::MAX);
    let (first, second) = (slab.buffer(5000).unwrap(), slab.buffer(4096).unwrap());
    let (at, other) = (addresses(&first).start, addresses(&second).start);
    assert!(!is_poisoned(at) && !is_poisoned(at + 8191) && !is_poisoned(other));
    drop(first);
    assert!(is_poisoned(at) && is_poisoned(at + 8191) && !is_poisoned(other) && is_poisoned(other + 4096));
    drop((second, slab));
    assert!(!is_poisoned(at) && !is_poisoned(other), "somebody else's");
}
