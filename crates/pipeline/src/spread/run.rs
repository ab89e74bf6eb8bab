//! Execution of a program on several devices: one thread per device, while the caller's thread
//! receives their chunks.
//!
//! ```text
//! device threads ─ channel of one chunk ─► the caller: passes rows on, or collects partial answers
//!                                          all have ended ─► merge ─► emits the answer
//! ```
//! The first failing device stops the others. So does an error of the consumer of the answer, or a
//! cancellation. The caller notices a cancellation within [`LOOKS`], and devices as soon as they
//! would by themselves. All threads have ended when this returns, with any result. An error of the
//! consumer takes precedence. Next come errors of data, which any processor would return, then a
//! cancellation, then the error of the first device.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::thread::{Builder, Scope, ScopedJoinHandle};
use std::time::Duration;

use onehop_io::{Hop, Ledger};

use super::facts::together;
use super::merge::Chunks;
use super::{ShareProgram, SpreadProgram};
use crate::backend::{Control, DeviceRan, Estimate, Prepared, Take};
use crate::cpu::ResultColumn;
use crate::{Error, Result};

/// Interval at which the caller checks for a cancellation.
const LOOKS: Duration = Duration::from_millis(2);

/// Result of one device.
type Ended = Result<Vec<DeviceRan>>;

impl Prepared for SpreadProgram {
    fn estimate(&self) -> Estimate {
        let add = |all: Estimate, share: &ShareProgram| {
            let of = share.estimate();
            Estimate {
                read_bytes: all.read_bytes.saturating_add(of.read_bytes),
                resident_bytes: all.resident_bytes.saturating_add(of.resident_bytes),
                to_compile: all.to_compile + of.to_compile,
            }
        };
        self.shares.iter().fold(Estimate::default(), add)
    }

    fn run(&self, control: &Control<'_>, take: &mut Take<'_>) -> Result<Vec<DeviceRan>> {
        let stop = AtomicBool::new(control.cancelled.load(Relaxed));
        let rows = AtomicU64::new(0);
        let did_rows = |more: u64| self.did_rows(&rows, more, control);
        let mut partial: Chunks = Vec::new();
        let (ended, taken) = std::thread::scope(|scope| {
            let (sender, chunks) = sync_channel(1);
            let start = |(nth, share)| self.start(scope, nth, share, control, (&stop, &did_rows), &sender);
            let running: Vec<_> = self.shares.iter().enumerate().map(start).collect();
            drop(sender);
            let mut give = |chunk: Vec<ResultColumn>| match self.is_partial() {
                true => {
                    partial.push(chunk);
                    Ok(())
                }
                false => take(self.merge.alone(chunk)),
            };
            let taken = receive(&chunks, control.cancelled, &stop, &mut give);
            // Devices that still send do not wait.
            drop(chunks);
            (running.into_iter().map(join).collect::<Vec<Ended>>(), taken)
        });
        taken?;
        let ran = self.outcome(ended, control)?;
        if self.is_partial() {
            for chunk in self.merge.run(partial, control.budget, control.cancelled)? {
                if control.cancelled.load(Relaxed) {
                    return Err(Error::Cancelled);
                }
                take(chunk)?;
            }
        }
        Ok(together(&self.shares, ran))
    }
}

impl SpreadProgram {
    /// Returns true if a device's rows are only partial results of the answer.
    fn is_partial(&self) -> bool {
        self.shares.len() > 1 && !self.merge.passes_on()
    }

    /// Reports progress. Each device reports the sources that all of them read, so the sum is
    /// capped at all rows.
    fn did_rows(&self, done: &AtomicU64, more: u64, control: &Control<'_>) {
        let before = done.fetch_add(more, Relaxed).min(self.all_rows);
        let now = before.saturating_add(more).min(self.all_rows);
        (control.did_rows)(now - before);
    }

    fn start<'scope>(
        &'scope self,
        scope: &'scope Scope<'scope, '_>,
        nth: usize,
        share: &'scope ShareProgram,
        control: &'scope Control<'scope>,
        (stop, did_rows): (&'scope AtomicBool, &'scope (dyn Fn(u64) + Sync)),
        sender: &SyncSender<Vec<ResultColumn>>,
    ) -> Result<ScopedJoinHandle<'scope, Ended>> {
        let sender = sender.clone();
        let work = move || {
            let ledgers = self.ledgers(nth, control);
            let of_share: Vec<Arc<Ledger>> = ledgers.iter().map(|(ledger, _)| Arc::clone(ledger)).collect();
            let control = Control { cancelled: stop, ledgers: &of_share, did_rows, ..*control };
            let mut send = |chunk| sender.send(chunk).map_err(|_| Error::Cancelled);
            let ended = share.prepared.run(&control, &mut send);
            ledgers.iter().for_each(|(ledger, of)| of.iter().for_each(|of| count_moved(ledger, of)));
            if ended.is_err() {
                stop.store(true, Relaxed);
            }
            ended
        };
        let name = share.backend.name();
        Builder::new().name(format!("onehop-{name}")).spawn_scoped(scope, work).map_err(|e| {
            stop.store(true, Relaxed);
            Error::device(name, format!("a thread for it could not be started: {e}"))
        })
    }

    /// Returns the ledger of each source of a share's program. For a ledger of the share's own,
    /// also returns the ledger of the source. Sources that every device reads are counted for the
    /// first device only, except for moved bytes.
    fn ledgers(&self, nth: usize, control: &Control<'_>) -> Vec<(Arc<Ledger>, Option<Arc<Ledger>>)> {
        let of = |(place, number): (usize, &usize)| {
            let of = control.ledgers.get(*number).cloned().unwrap_or_default();
            match nth == 0 || place == self.divided {
                true => (of, None),
                false => (Arc::default(), Some(of)),
            }
        };
        self.sources.iter().enumerate().map(of).collect()
    }

    /// Returns the statistics of each pipeline on each device, or the error with the highest
    /// precedence.
    fn outcome(&self, ended: Vec<Ended>, control: &Control<'_>) -> Result<Vec<Vec<DeviceRan>>> {
        let mut of_device = None;
        let mut ran = Vec::with_capacity(ended.len());
        let is_cancelled = control.cancelled.load(Relaxed);
        for (share, ended) in self.shares.iter().zip(ended) {
            match ended {
                Ok(of) => ran.push(of),
                // The device was told to stop, or its receiver is gone.
                Err(Error::Cancelled) => {}
                Err(e @ (Error::Device { .. } | Error::Unsupported(_))) => drop(of_device.get_or_insert(e)),
                Err(Error::Memory { what, needed, available }) => {
                    let what = format!("{what} on {}", share.backend.name());
                    of_device.get_or_insert(Error::Memory { what, needed, available });
                }
                Err(e) => return Err(e),
            }
        }
        match of_device {
            _ if is_cancelled => Err(Error::Cancelled),
            Some(e) => Err(e),
            None if ran.len() < self.shares.len() => Err(Error::Cancelled),
            None => Ok(ran),
        }
    }
}

/// Receives the devices' chunks until the last device has ended or the consumer fails.
fn receive(
    chunks: &Receiver<Vec<ResultColumn>>,
    cancelled: &AtomicBool,
    stop: &AtomicBool,
    give: &mut dyn FnMut(Vec<ResultColumn>) -> Result<()>,
) -> Result<()> {
    loop {
        match chunks.recv_timeout(LOOKS) {
            Ok(chunk) => give(chunk).inspect_err(|_| stop.store(true, Relaxed))?,
            Err(RecvTimeoutError::Disconnected) => return Ok(()),
            Err(RecvTimeoutError::Timeout) => {}
        }
        if cancelled.load(Relaxed) {
            stop.store(true, Relaxed);
        }
    }
}

fn join(running: Result<ScopedJoinHandle<'_, Ended>>) -> Ended {
    match running?.join() {
        Ok(ended) => ended,
        Err(panic) => std::panic::resume_unwind(panic),
    }
}

/// Adds moved bytes of a source to its ledger. All else is counted by the device that reads the
/// same source.
fn count_moved(counted: &Ledger, to: &Ledger) {
    let counted = counted.snapshot();
    for hop in Hop::ALL {
        to.moved(hop, counted.hop(hop) as usize);
    }
    to.needed((counted.needed_bytes - counted.cached_bytes) as usize);
    to.resident(0, counted.cached_bytes as usize);
}
