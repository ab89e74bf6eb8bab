//! Injects every fault at every call, for every way. Checks the reports, and that no buffer is
//! lost, reused too early or leaked.
//!
//! The matrix: ways x reading and writing x kinds of calls x answers x the number of the call,
//! alone or with all later ones. It ends when the number exceeds the last call. In all cases:
//!
//! - bytes that are reported as moved have been moved, byte for byte;
//! - an error keeps the message of its origin, and comes with its transfer, whose offset is its
//!   progress;
//! - a buffer that comes back is not in flight: the fake driver checks every byte;
//! - every buffer comes back, or the queue reports that it cannot know, and then leaks the buffer;
//! - a queue that continues is fully usable, and one that is dropped leaves nothing alive.

use super::conformance::{noise, transfer};
use super::tests::Kind;
use super::*;
use crate::fake::{Answer, Call, Fault, Machine};
use crate::{Context, DeviceBuf};
use onehop_io::{Advance, Direction, Ledger, Queue};
use std::io;
use std::sync::Arc;

const BLOCK: usize = 20_480;
const BLOCKS: usize = 5;
const DEPTH: usize = 3;
const ALL: usize = BLOCK * BLOCKS;

/// Outcome of a run.
#[derive(Debug)]
enum End {
    Whole,
    /// A transfer failed: its offset, its bytes and the error.
    Failed(u64, usize, io::Error),
    /// The queue itself failed, with transfers in flight.
    Broken(io::Error),
}

struct Run<'a> {
    machine: &'static Machine,
    context: &'a Arc<Context>,
    content: &'a [u8],
    direction: Direction,
}

impl Run<'_> {
    /// Moves everything, stops at the first error, and takes back the buffers in flight.
    fn go(&self, queue: &mut dyn Queue<DeviceBuf>) -> End {
        let (mut at, mut out, mut end, mut done) = (0, 0, End::Whole, Vec::new());
        loop {
            while queue.in_flight() < queue.depth() && at < ALL && matches!(end, End::Whole) {
                let mut buffer = DeviceBuf::new(self.context, BLOCK).unwrap();
                match self.direction {
                    Direction::Read => buffer.fill(0xee).unwrap(),
                    Direction::Write => buffer.copy_from(0, &self.content[at..at + BLOCK]).unwrap(),
                }
                queue.submit(transfer(self.direction, at as u64, BLOCK, buffer, at as u64));
                out += 1;
                at += BLOCK;
            }
            if queue.in_flight() == 0 {
                assert_eq!(out, 0, "every buffer is back");
                return end;
            }
            if let Err(e) = queue.reap(1, &mut done) {
                // A second attempt: a queue that was refused once continues.
                if queue.reap(1, &mut done).is_err() {
                    return End::Broken(e);
                }
            }
            assert!(!done.is_empty(), "who waits is given something");
            for one in done.drain(..) {
                let (address, bytes) = (one.transfer.buffer.address(), one.transfer.buffer.len());
                assert!(!self.machine.may_touch(address, bytes), "a buffer came back that is in flight");
                match one.advance() {
                    Advance::Rest(rest) => queue.submit(rest),
                    Advance::Failed(failed, e) => {
                        out -= 1;
                        let place = failed.tag..failed.tag + BLOCK as u64;
                        assert!(place.contains(&failed.offset), "{} of a transfer at {}", failed.offset, failed.tag);
                        if matches!(end, End::Whole) {
                            end = End::Failed(failed.offset, failed.needed, e);
                        }
                    }
                    Advance::Whole(whole) => {
                        out -= 1;
                        let wanted = &self.content[whole.tag as usize..whole.tag as usize + BLOCK];
                        if self.direction == Direction::Read {
                            let mut found = vec![0; BLOCK];
                            whole.buffer.copy_to(0, &mut found).unwrap();
                            assert!(found == wanted, "what came whole is what is there");
                        }
                    }
                }
            }
        }
    }
}

/// Returns true if a queue of this way makes such calls.
fn makes(way: Way, call: Call) -> bool {
    let is_batch = matches!(way, Way::CufileBatch | Way::CufileBatchSlots | Way::CufileBatchWait);
    match call {
        Call::Transfer => way.is_cufile(),
        Call::Submit | Call::Status => is_batch,
        Call::Start => way == Way::CufileAsync,
        Call::Copy | Call::Wait => !way.is_cufile(),
        Call::Record | Call::Query => way == Way::CufileAsync || !way.is_cufile(),
        Call::Synchronize | Call::Allocate | Call::Pin | Call::Register | Call::Open => false,
    }
}

/// Returns every call with each of its possible answers.
fn answers() -> Vec<(Call, Answer)> {
    let transfer = [
        Answer::System(libc::EIO),
        Answer::System(libc::ENOSPC),
        Answer::System(libc::EINTR),
        Answer::System(libc::EAGAIN),
        Answer::Code(5044),
        Answer::Short(1),
        Answer::Short(4096),
        Answer::Short(5000),
        Answer::End,
        Answer::Cancelled,
    ];
    let code = |call, code| (call, Answer::Code(code));
    let mut all: Vec<(Call, Answer)> = transfer.map(|answer| (Call::Transfer, answer)).into();
    all.extend([code(Call::Submit, 5035), code(Call::Submit, 5037), code(Call::Status, 5041), code(Call::Start, 5044)]);
    // 999 is CUDA_ERROR_UNKNOWN. 719 is CUDA_ERROR_LAUNCH_FAILED, after which no call succeeds.
    let driver = [Call::Copy, Call::Record, Call::Query, Call::Wait];
    all.extend(driver.into_iter().flat_map(|call| [code(call, 999), code(call, 719)]));
    all
}

/// Returns true if an error is the injected one.
fn is_told(call: Call, answer: Answer, e: &io::Error) -> bool {
    let text = e.to_string();
    match (call, answer) {
        (Call::Transfer, Answer::System(code)) => e.raw_os_error() == Some(code),
        (Call::Transfer, Answer::End) => matches!(e.kind(), io::ErrorKind::UnexpectedEof | io::ErrorKind::WriteZero),
        (Call::Transfer, Answer::Cancelled) => text.contains("cancelled"),
        (_, Answer::Code(code)) => text.contains(&format!("({code})")),
        _ => false,
    }
}

fn is_harmless(call: Call, answer: Answer) -> bool {
    let begun_again = matches!(answer, Answer::System(libc::EINTR | libc::EAGAIN) | Answer::Short(_));
    // The stream stands in for an event that is not available.
    begun_again || matches!(call, Call::Record | Call::Query | Call::Wait)
}

fn one(kind: Kind, direction: Direction, fault: Fault, dir: &tempfile::TempDir, content: &[u8]) -> (bool, End) {
    let path = dir.path().join("f");
    // Writes find other bytes, of the same number.
    std::fs::write(&path, if direction == Direction::Read { content.to_vec() } else { vec![1; content.len()] })
        .unwrap();
    let (machine, context) = Machine::start();
    let ledger = Arc::new(Ledger::default());
    let mut queue = kind.queue(&context, &path, DEPTH, &ledger);
    let run = Run { machine, context: &context, content, direction };
    machine.set_faults(&[fault]);
    let end = run.go(queue.as_mut());
    let happened = machine.calls(fault.call) > fault.at;
    if matches!(end, End::Whole) && direction == Direction::Write {
        assert!(std::fs::read(&path).unwrap() == content, "what was written is there");
    }
    if !matches!(end, End::Broken(_)) {
        // The queue continues as if there had been no fault.
        machine.set_faults(&[]);
        assert!(matches!(run.go(queue.as_mut()), End::Whole), "as good as new");
        assert!(std::fs::read(&path).unwrap() == content);
    }
    drop(queue);
    drop(context);
    assert_eq!(machine.problems(), Vec::<String>::new());
    if !matches!(end, End::Broken(_)) {
        assert_eq!(machine.living(), Vec::<&str>::new(), "nothing is left");
    }
    (happened, end)
}

#[test]
fn every_fault_at_every_call_once() {
    let (dir, content) = (tempfile::tempdir().unwrap(), noise(ALL, 11));
    let mut runs = 0;
    for (kind, direction) in
        Kind::all().into_iter().flat_map(|kind| [(kind, Direction::Read), (kind, Direction::Write)])
    {
        for (call, answer) in answers().into_iter().filter(|(call, _)| makes(kind.way(), *call)) {
            if answer == Answer::Cancelled && !makes(kind.way(), Call::Submit) {
                continue;
            }
            for at in 0.. {
                let fault = Fault { call, at, lasts: false, answer };
                let (happened, end) = one(kind, direction, fault, &dir, &content);
                let said = format!("{kind:?} {direction:?} {fault:?}: {end:?}");
                runs += 1;
                match &end {
                    _ if !happened => {
                        assert!(matches!(end, End::Whole), "{said}");
                        break;
                    }
                    // A batch status call is repeated. A transfer that failed on a stream is
                    // repeated with the blocking call. For a part that could not be copied, the
                    // bytes before it are reported first, and the rest is started again.
                    End::Whole => {
                        let is_again = matches!(call, Call::Status | Call::Copy) || kind.way() == Way::CufileAsync;
                        assert!(is_harmless(call, answer) || is_again, "{said}");
                    }
                    End::Failed(_, needed, e) => {
                        assert!(is_told(call, answer, e) && *needed > 0, "{said}");
                        assert!(!is_harmless(call, answer), "{said}");
                    }
                    End::Broken(_) => panic!("{said}"),
                }
            }
        }
    }
    assert!(runs > 1000, "only {runs}");
}

/// After some call nothing works: the error is reported, and no wait hangs.
#[test]
fn every_fault_from_every_call_on() {
    let (dir, content) = (tempfile::tempdir().unwrap(), noise(ALL, 12));
    for (kind, direction) in
        Kind::all().into_iter().flat_map(|kind| [(kind, Direction::Read), (kind, Direction::Write)])
    {
        for (call, answer) in answers().into_iter().filter(|(call, _)| makes(kind.way(), *call)) {
            // Byte by byte it takes too long.
            let for_ever = matches!(answer, Answer::System(libc::EINTR | libc::EAGAIN) | Answer::Short(..4096));
            if for_ever || answer == Answer::Cancelled && !makes(kind.way(), Call::Submit) {
                continue;
            }
            for at in 0.. {
                let fault = Fault { call, at, lasts: true, answer };
                let (happened, end) = one(kind, direction, fault, &dir, &content);
                let said = format!("{kind:?} {direction:?} {fault:?}: {end:?}");
                match &end {
                    _ if !happened => break,
                    End::Whole => assert!(is_harmless(call, answer), "{said}"),
                    End::Failed(_, _, e) => assert!(is_told(call, answer, e), "{said}"),
                    End::Broken(e) => assert!(call == Call::Status && e.to_string().contains("(5041)"), "{said}"),
                }
            }
        }
    }
}

/// The device is lost: neither events nor streams can be queried. Transfers stay in flight, and
/// their buffers are leaked.
#[test]
fn a_device_that_is_gone_takes_its_buffers_along() {
    let (dir, content) = (tempfile::tempdir().unwrap(), noise(ALL, 13));
    let path = dir.path().join("f");
    for kind in Kind::all().into_iter().filter(|kind| makes(kind.way(), Call::Record)) {
        for direction in [Direction::Read, Direction::Write] {
            for at in 0..12 {
                std::fs::write(&path, &content).unwrap();
                let (machine, context) = Machine::start();
                let mut queue = kind.queue(&context, &path, DEPTH, &Arc::new(Ledger::default()));
                let run = Run { machine, context: &context, content: &content, direction };
                let gone = |call| Fault { call, at, lasts: true, answer: Answer::Code(719) };
                let of_stream = Fault { at: 0, ..gone(Call::Synchronize) };
                machine.set_faults(&[gone(Call::Record), gone(Call::Query), gone(Call::Wait), of_stream]);
                let end = run.go(queue.as_mut());
                let said = format!("{kind:?} {direction:?} from call {at}: {end:?}");
                assert!(!matches!(end, End::Failed(..)), "{said}");
                if let End::Broken(e) = &end {
                    assert!(e.to_string().contains("(719)") && queue.in_flight() > 0, "{said}");
                }
                drop(queue);
                assert_eq!(machine.problems(), Vec::<String>::new(), "{said}");
            }
        }
    }
}

/// The file is truncated while it is read.
#[test]
fn a_file_that_is_cut_is_told_with_its_place() {
    let (dir, content) = (tempfile::tempdir().unwrap(), noise(ALL, 14));
    let path = dir.path().join("f");
    for kind in Kind::all() {
        for left in [0, 1, 4096, BLOCK, 3 * BLOCK + 5, ALL - 1] {
            std::fs::write(&path, &content).unwrap();
            let (machine, context) = Machine::start();
            let mut queue = kind.queue(&context, &path, DEPTH, &Arc::new(Ledger::default()));
            std::fs::OpenOptions::new().write(true).open(&path).unwrap().set_len(left as u64).unwrap();
            let run = Run { machine, context: &context, content: &content, direction: Direction::Read };
            match run.go(queue.as_mut()) {
                // Blocks after the truncation may have been requested before the block that
                // contains it.
                End::Failed(offset, _, e) => {
                    assert!(e.kind() == io::ErrorKind::UnexpectedEof && offset >= left as u64, "{kind:?}: {e}");
                    assert!(e.to_string().contains(&format!("the file ends at {offset}")), "{kind:?}: {e}");
                }
                end => panic!("{kind:?} cut at {left}: {end:?}"),
            }
            drop((queue, context));
            assert!(machine.problems().is_empty() && machine.living().is_empty(), "{kind:?}");
        }
    }
}
