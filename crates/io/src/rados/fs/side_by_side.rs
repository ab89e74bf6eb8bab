//! Many changes of different objects at once, each of which is a few operations in a row.

use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Mutex, PoisonError};

use super::super::Result;

/// Does something with each item, with so many at once, and gives back the results in the order of the items. With one at a
/// time there are no threads, and the order of operations is that of the items.
///
/// What was begun has ended when this returns. After an error no more is begun; the first one that was seen is returned.
pub fn side_by_side<T: Send, R: Send>(
    at_once: usize,
    items: Vec<T>,
    work: impl Fn(T) -> Result<R> + Sync,
) -> Result<Vec<R>> {
    if at_once <= 1 || items.len() <= 1 {
        return items.into_iter().map(work).collect();
    }
    let threads = at_once.min(items.len());
    let mut results: Vec<Option<R>> = items.iter().map(|_| None).collect();
    let (waiting, failed) = (Mutex::new(items.into_iter().zip(&mut results)), AtomicBool::new(false));
    let next = || waiting.lock().unwrap_or_else(PoisonError::into_inner).next();
    let ended: Vec<Result<()>> = std::thread::scope(|scope| {
        let worker = || {
            while let Some((item, place)) = next() {
                if failed.load(Relaxed) {
                    break;
                }
                *place = Some(work(item).inspect_err(|_| failed.store(true, Relaxed))?);
            }
            Ok(())
        };
        let threads: Vec<_> = (0..threads).map(|_| scope.spawn(worker)).collect();
        // A panic goes on where somebody sees it.
        threads.into_iter().map(|thread| thread.join().unwrap_or_else(|why| std::panic::resume_unwind(why))).collect()
    });
    ended.into_iter().collect::<Result<()>>()?;
    Ok(results.into_iter().flatten().collect())
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::super::super::{Code, Error};
    use super::*;

    #[test]
    fn results_are_in_order_and_an_error_ends_it() {
        for at_once in [1, 3, 100] {
            let doubled = side_by_side(at_once, (0..50).collect(), |n: u32| Ok(n * 2)).unwrap();
            assert_eq!(doubled, (0..50).map(|n| n * 2).collect::<Vec<_>>());
            let fail = |n: u32| match n {
                7 => Err(Error::Cluster { what: "count".into(), code: Code::TIMED_OUT }),
                n => Ok(n),
            };
            assert!(side_by_side(at_once, (0..50).collect(), fail).unwrap_err().is(Code::TIMED_OUT));
        }
    }
}
