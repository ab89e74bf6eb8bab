//! The threads that statements run on: runtimes of Tokio's, each lent to one statement at a time.
//!
//! A call that computes for a minute keeps its thread for a minute, whatever its client was told. So a
//! statement has threads of its own, and others do not wait for them: the system's scheduler shares the
//! processors. An [`Executor`] is lent until the last work of its statement is over. Meanwhile it counts
//! as running ([`Executors::lend`] keeps what it is given). If the work goes on after its statement was
//! stopped, the threads fall back behind all others, and end with it instead of being lent again.
//!
//! Lent again is what was given back last: its threads and their memory are warm.
//!
//! A statement needs, beside the workers, threads that may wait: for storage, for a pipeline's rows.
//! Tokio starts them when it needs them. Where the system refuses one, Tokio keeps what it was to do for
//! one that becomes free; the workers never do, so that the statement would wait for ever. Whether there
//! can be as many threads as a statement takes is tried here, all of them at once, before there is a
//! statement.

use std::any::Any;
use std::io;
use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use onehop_governor::{Guest, Scope};
use tokio::runtime::{Builder, Handle, Runtime};
use tokio::task::JoinHandle;

use crate::{Error, ErrorKind, Result, STACK_BYTES};

/// Threads of a statement beside its workers and as many that scan: readers, a writer.
const SPARE: usize = 4;

/// Stack of a thread that looks after clients.
const FRONT_STACK_BYTES: usize = 2 << 20;

/// Runtimes that are kept for statements to come.
const MOST_IDLE: usize = 8;

/// A pair for signals and a copy of one of its ends, a poller, and what wakes it.
const POLLING_DESCRIPTORS: usize = 6;

/// Statements whose work goes on after they were stopped, at most: another one is refused then.
const MOST_LENT: usize = 256;

/// How nice threads are whose statement was stopped: as nice as can be.
const FENCED_NICENESS: libc::c_int = 19;

/// Runtimes for statements. Cheap to clone; all methods may be called from any thread.
#[derive(Clone, Debug)]
pub struct Executors(Arc<Pool>);

#[derive(Debug)]
struct Pool {
    threads: usize,
    state: Mutex<State>,
    /// A runtime that was lent is back, or gone.
    returned: Condvar,
}

#[derive(Debug, Default)]
struct State {
    idle: Vec<Crew>,
    lent: usize,
    is_closed: bool,
}

/// A runtime, and the system's numbers of its threads.
#[derive(Debug)]
struct Crew {
    runtime: Runtime,
    threads: Arc<Mutex<Vec<libc::pid_t>>>,
}

/// A runtime that is lent to a statement. Clones are of the same; the last one gives it back.
#[derive(Clone, Debug)]
pub struct Executor {
    handle: Handle,
    lent: Arc<Lent>,
}

struct Lent {
    pool: Arc<Pool>,
    /// Until it is given back.
    crew: Mutex<Option<Crew>>,
    is_fenced: AtomicBool,
    /// Goes when it is given back.
    _kept: Box<dyn Any + Send + Sync>,
}

impl std::fmt::Debug for Lent {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Lent").field("is_fenced", &self.is_fenced).finish_non_exhaustive()
    }
}

impl Executors {
    /// Runtimes of so many workers each, or of one for each core. One is there at once.
    ///
    /// # Errors
    /// [`ErrorKind::Resources`]: the system does not let this process have so many threads.
    pub fn new(threads: Option<usize>) -> Result<Self> {
        let threads = threads.unwrap_or_else(|| thread::available_parallelism().map_or(1, usize::from)).max(1);
        let first = Crew::new(threads)?;
        let state = State { idle: vec![first], ..State::default() };
        Ok(Self(Arc::new(Pool { threads, state: Mutex::new(state), returned: Condvar::new() })))
    }

    /// A runtime for a statement, which keeps `kept` until its last work is over.
    ///
    /// # Errors
    /// [`ErrorKind::Resources`]: the system has no more threads, or too many statements that were stopped
    /// still compute.
    pub fn lend(&self, kept: impl Any + Send + Sync) -> Result<Executor> {
        let mut state = self.0.state();
        if state.lent >= MOST_LENT {
            let message = format!("{MOST_LENT} statements run, or still compute after they were stopped");
            return Err(Error::new(ErrorKind::Resources, message).with_hint("try again later"));
        }
        let idle = state.idle.pop();
        state.lent += 1;
        drop(state);
        let crew = match idle.map_or_else(|| Crew::new(self.0.threads), Ok) {
            Ok(crew) => crew,
            Err(e) => {
                self.0.state().lent -= 1;
                return Err(e);
            }
        };
        let handle = crew.runtime.handle().clone();
        let lent = Lent {
            pool: Arc::clone(&self.0),
            crew: Mutex::new(Some(crew)),
            is_fenced: AtomicBool::new(false),
            _kept: Box::new(kept),
        };
        Ok(Executor { handle, lent: Arc::new(lent) })
    }

    /// Runtimes that are lent.
    pub fn lent(&self) -> usize {
        self.0.state().lent
    }

    /// Ends: when this returns, no thread has anything of a statement any more, unless one computes on
    /// for longer than `patience`. Not to be called by one of the threads.
    pub fn shutdown(self, patience: Duration) {
        let until = Instant::now() + patience;
        let left = || until.saturating_duration_since(Instant::now());
        let mut state = self.0.state();
        state.is_closed = true;
        loop {
            let idle = std::mem::take(&mut state.idle);
            if idle.is_empty() && (state.lent == 0 || left().is_zero()) {
                return;
            }
            if idle.is_empty() {
                let waited = self.0.returned.wait_timeout(state, left());
                state = waited.unwrap_or_else(PoisonError::into_inner).0;
                continue;
            }
            drop(state);
            idle.into_iter().for_each(|crew| crew.runtime.shutdown_timeout(left()));
            state = self.0.state();
        }
    }
}

impl Pool {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn take_back(&self, crew: Crew, is_fenced: bool) {
        let mut state = self.state();
        state.lent -= 1;
        if is_fenced || (state.idle.len() >= MOST_IDLE && !state.is_closed) {
            drop(state);
            // Of one's own threads one cannot wait for the end.
            crew.runtime.shutdown_background();
        } else {
            state.idle.push(crew);
        }
        self.returned.notify_all();
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        let idle = std::mem::take(&mut self.state().idle);
        idle.into_iter().for_each(|crew| crew.runtime.shutdown_background());
    }
}

impl Executor {
    /// The runtime.
    pub fn handle(&self) -> &Handle {
        &self.handle
    }

    /// The scope of work that runs on it: it keeps the runtime.
    pub fn scope(&self) -> Scope {
        Scope::new().with_guest(Arc::clone(&self.lent) as Arc<dyn Guest>)
    }

    /// Work on its threads.
    pub fn spawn<T: Send + 'static>(&self, work: impl Future<Output = T> + Send + 'static) -> JoinHandle<T> {
        self.handle.spawn(self.scope().future(work))
    }
}

impl Guest for Lent {
    fn fence(&self) {
        self.is_fenced.store(true, Relaxed);
        let crew = self.crew.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(crew) = crew.as_ref() else { return };
        let threads = crew.threads.lock().unwrap_or_else(PoisonError::into_inner);
        for thread in threads.iter() {
            // SAFETY: it takes numbers and changes nothing but the priority of a thread of this process.
            // A number that is of no thread any more is an error, which is of no interest.
            unsafe { libc::setpriority(libc::PRIO_PROCESS, thread.cast_unsigned(), FENCED_NICENESS) };
        }
    }
}

impl Drop for Lent {
    fn drop(&mut self) {
        let crew = self.crew.get_mut().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(crew) = crew {
            self.pool.take_back(crew, self.is_fenced.load(Relaxed));
        }
    }
}

impl Crew {
    fn new(threads: usize) -> Result<Self> {
        let numbers = Arc::<Mutex<Vec<libc::pid_t>>>::default();
        let started = Arc::clone(&numbers);
        let stopped = Arc::clone(&numbers);
        let runtime = build(threads, |builder| {
            builder.on_thread_start(move || {
                started.lock().unwrap_or_else(PoisonError::into_inner).push(thread_number());
            });
            builder.on_thread_stop(move || {
                let number = thread_number();
                stopped.lock().unwrap_or_else(PoisonError::into_inner).retain(|known| *known != number);
            });
        })?;
        Ok(Self { runtime, threads: numbers })
    }
}

fn thread_number() -> libc::pid_t {
    // SAFETY: it has no arguments and cannot fail.
    unsafe { libc::gettid() }
}

/// A runtime for one statement at a time, of so many workers, or of one for each core.
///
/// # Errors
/// [`ErrorKind::Resources`]: the system does not let this process have so many threads.
pub fn workers(threads: Option<usize>) -> Result<Runtime> {
    let threads = threads.unwrap_or_else(|| thread::available_parallelism().map_or(1, usize::from)).max(1);
    build(threads, |_| {})
}

fn build(threads: usize, with: impl FnOnce(&mut Builder)) -> Result<Runtime> {
    let needed = 2 * threads + SPARE;
    let refused = |e: io::Error| {
        Error::new(ErrorKind::Resources, format!("cannot start {needed} threads, which {threads} workers need: {e}"))
            .with_hint(
                "use fewer (ONEHOP_THREADS=1), or let this user have more (ulimit -u, pids.max of its control group; ulimit -v for their stacks)",
            )
            .with_source(e)
    };
    try_descriptors()?;
    try_threads(needed, STACK_BYTES).map_err(refused)?;
    let mut builder = Builder::new_multi_thread();
    builder.worker_threads(threads).thread_name("onehop").thread_stack_size(STACK_BYTES).enable_all();
    with(&mut builder);
    builder.build().map_err(refused)
}

/// A runtime that looks after clients: it waits, and computes nothing.
///
/// # Errors
/// [`ErrorKind::Resources`]: the system does not let this process have so many threads.
pub fn front(threads: usize) -> Result<Runtime> {
    let refused = |e: io::Error| {
        Error::new(ErrorKind::Resources, format!("cannot start {threads} threads: {e}"))
            .with_hint("let this user have more (ulimit -u, ulimit -v, pids.max of its control group)")
            .with_source(e)
    };
    try_descriptors()?;
    // Tokio panics where the system refuses one. It may need one more, for work that blocks.
    try_threads(threads + 1, FRONT_STACK_BYTES).map_err(refused)?;
    let mut builder = Builder::new_multi_thread();
    builder.worker_threads(threads).thread_name("onehop-front").thread_stack_size(FRONT_STACK_BYTES).enable_all();
    builder.build().map_err(refused)
}

/// Opens as many descriptors at once as Tokio does to wait for others and for signals, where it panics if the system refuses
/// one.
fn try_descriptors() -> Result<()> {
    let pairs: io::Result<Vec<_>> = (0..POLLING_DESCRIPTORS / 2).map(|_| UnixStream::pair()).collect();
    pairs.map(drop).map_err(|e| {
        let message = format!("cannot open {POLLING_DESCRIPTORS} descriptors, which waiting needs: {e}");
        Error::new(ErrorKind::Resources, message).with_source(e)
    })
}

/// Starts so many threads at once, which end at once.
fn try_threads(count: usize, stack_bytes: usize) -> io::Result<()> {
    let gate = Mutex::new(());
    let pass = || drop(gate.lock().unwrap_or_else(PoisonError::into_inner));
    thread::scope(|scope| {
        let _closed = gate.lock().unwrap_or_else(PoisonError::into_inner);
        (0..count).try_for_each(|_| thread::Builder::new().stack_size(stack_bytes).spawn_scoped(scope, pass).map(drop))
    })
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use std::sync::mpsc;

    use onehop_governor::{Account, Reason};

    use super::*;

    fn wait_until(mut is_so: impl FnMut() -> bool) {
        let begun = Instant::now();
        while !is_so() {
            assert!(begun.elapsed() < Duration::from_secs(20), "it never came");
            thread::sleep(Duration::from_millis(1));
        }
    }

    #[test]
    fn a_runtime_is_lent_until_the_last_work_is_over() {
        let executors = Executors::new(Some(1)).unwrap();
        let kept = Arc::new(());
        let first = executors.lend(Arc::clone(&kept)).unwrap();
        let (tell, told) = mpsc::channel::<()>();
        let computing = first.handle().clone();
        // Work that never looks up, and a task of it.
        first.spawn(async move {
            let task = onehop_governor::current().future(async move { told.recv().ok() });
            drop(computing.spawn(task));
        });
        drop(first);
        let second = executors.lend(()).unwrap();
        // The first one's only thread computes; others do not wait for it.
        assert_eq!(second.handle().block_on(second.spawn(async { 7 })).unwrap(), 7);
        assert_eq!((executors.lent(), Arc::strong_count(&kept)), (2, 2));
        tell.send(()).unwrap();
        wait_until(|| executors.lent() == 1);
        assert_eq!(Arc::strong_count(&kept), 1);
        drop(second);
        wait_until(|| executors.lent() == 0);
        // What was given back last is lent first.
        let runtime = executors.lend(()).unwrap().handle().id();
        assert_eq!(executors.lend(()).unwrap().handle().id(), runtime);
    }

    #[test]
    fn threads_that_do_not_stop_stand_back_and_are_not_lent_again() {
        onehop_governor::start().unwrap();
        let executors = Executors::new(Some(1)).unwrap();
        let executor = executors.lend(()).unwrap();
        let id = executor.handle().id();
        let account = Account::new(1, u64::MAX, None);
        let scope = executor.scope().with_account(Arc::clone(&account));
        let (tell, told) = mpsc::channel::<()>();
        let niceness = |number: libc::pid_t| {
            // SAFETY: it takes numbers, and reads a priority.
            unsafe { libc::getpriority(libc::PRIO_PROCESS, number.cast_unsigned()) }
        };
        let (number, numbers) = mpsc::channel();
        executor.handle().spawn(scope.future(async move {
            number.send(thread_number()).unwrap();
            told.recv().ok();
        }));
        let number = numbers.recv().unwrap();
        drop((scope, executor));
        account.stop(Reason::TimedOut);
        wait_until(|| account.is_fenced() && niceness(number) == FENCED_NICENESS);
        tell.send(()).unwrap();
        wait_until(|| executors.lent() == 0);
        assert_ne!(executors.lend(()).unwrap().handle().id(), id);
    }
}
