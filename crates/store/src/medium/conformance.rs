//! The rules of every [`Medium`], as far as they can be tested without a crash. Every
//! implementation's tests call [`check`] with an empty medium. The models in `explore` test
//! crashes.

use std::thread;

use super::Medium;
use crate::Error;

/// Positions at which lines, sectors and pages end, and their neighbours.
const EDGES: [u64; 13] = [0, 1, 7, 63, 64, 65, 511, 512, 4095, 4096, 4097, 8191, 12288 - 1];
const LENGTHS: [usize; 8] = [1, 7, 8, 64, 65, 512, 4096, 5000];

/// Checks all rules on `medium`, which must be empty.
///
/// # Panics
/// If `medium` breaks a rule. The message names the rule.
#[allow(clippy::unwrap_used)]
pub fn check(medium: &dyn Medium) {
    assert!(medium.is_empty(), "the suite begins with an empty medium");
    assert!(!medium.name().is_empty(), "a medium has a name for messages");
    growth(medium);
    bytes(medium);
    bounds(medium);
    threads(medium);
    let len = medium.len();
    medium.grow(len).unwrap();
    assert_eq!(medium.len(), len, "growing to the present length changes nothing");
}

#[allow(clippy::unwrap_used)]
fn growth(medium: &dyn Medium) {
    medium.grow(4096).unwrap();
    assert_eq!(medium.len(), 4096);
    medium.write(4000, &[7; 96]).unwrap();
    medium.flush(4000, 96).unwrap();
    medium.fence().unwrap();
    medium.grow(32768).unwrap();
    assert_eq!(medium.len(), 32768);
    let mut all = vec![1; 32768];
    medium.read(0, &mut all).unwrap();
    assert!(all[..4000].iter().all(|&byte| byte == 0), "new bytes read as zeros");
    assert!(all[4000..4096].iter().all(|&byte| byte == 7), "growing keeps what was there");
    assert!(all[4096..].iter().all(|&byte| byte == 0), "new bytes read as zeros");
    medium.write(0, &vec![0; 32768]).unwrap();
}

/// Writes of every edge and length are read back, volatile and durable, and change no other bytes.
#[allow(clippy::unwrap_used)]
fn bytes(medium: &dyn Medium) {
    let mut model = vec![0_u8; 32768];
    for (round, (at, len)) in EDGES.iter().flat_map(|&at| LENGTHS.map(|len| (at, len))).enumerate() {
        let new: Vec<u8> = (0..len).map(|i| (i * 31 + round * 7 + 1) as u8).collect();
        medium.write(at, &new).unwrap();
        model[at as usize..at as usize + len].copy_from_slice(&new);
        compare(medium, &model, "a write is read back, and touches nothing beside it");
        medium.flush(at, len).unwrap();
        if round % 3 == 0 {
            medium.fence().unwrap();
        }
        let mut part = vec![0; len];
        medium.read(at, &mut part).unwrap();
        assert_eq!(part, new, "flushing and fencing change no byte");
    }
    medium.write(5, &[]).unwrap();
    medium.flush(5, 0).unwrap();
    medium.fence().unwrap();
    medium.fence().unwrap();
    compare(medium, &model, "a write of nothing changes nothing, and a fence with nothing to wait for is allowed");
}

#[allow(clippy::unwrap_used)]
fn compare(medium: &dyn Medium, model: &[u8], rule: &str) {
    let mut all = vec![0; model.len()];
    medium.read(0, &mut all).unwrap();
    assert!(all == model, "{rule}");
}

#[allow(clippy::unwrap_used)]
fn bounds(medium: &dyn Medium) {
    let len = medium.len();
    for (at, bytes) in [(len, 1), (len - 1, 2), (u64::MAX, 1), (u64::MAX - 1, 64), (0, len as usize + 1)] {
        let read = medium.read(at, &mut vec![0; bytes]);
        assert!(matches!(read, Err(Error::Corrupt { .. })), "reading beyond the end is damage, not {read:?}");
        assert!(medium.write(at, &vec![9; bytes]).is_err(), "writing beyond the end is refused");
        assert_eq!(medium.len(), len, "writing never makes a medium longer");
    }
    medium.read(len, &mut []).unwrap();
}

/// Threads read and write ranges of their own at the same time.
#[allow(clippy::unwrap_used)]
fn threads(medium: &dyn Medium) {
    thread::scope(|scope| {
        for own in 0..4_u8 {
            scope.spawn(move || {
                let at = 4096 * u64::from(own) + 100;
                for round in 0..50 {
                    let new = [own * 50 + round; 3000];
                    medium.write(at, &new).unwrap();
                    medium.flush(at, new.len()).unwrap();
                    let mut back = [0; 3000];
                    medium.read(at, &mut back).unwrap();
                    assert_eq!(back, new, "threads that use ranges of their own do not meet");
                    if round % 10 == 0 {
                        medium.fence().unwrap();
                    }
                }
            });
        }
    });
}
