//! Work where it is best done: on the workers, or on the very thread that has heard of it.
//!
//! Each way to another thread and back takes as long as some devices take for a commit. So what takes no longer than a commit is done
//! by whoever waits for it, a task of a runtime that looks after clients. Such work may come to something long after all, a
//! checkpoint say: there it waits for [`long`], and goes over to the workers between two polls, as it is.

use std::any::Any;
use std::cell::Cell;
use std::fmt;
use std::future::poll_fn;
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::task::{Context, Poll};

use datafusion::common::runtime::{JoinSetTracer, set_join_set_tracer};
use futures::future::BoxFuture;
use onehop_governor::{self as governor, ScopedFuture};
use onehop_store::simulation;
use tokio::task::{JoinError, JoinHandle};

use crate::executors::Executor;

/// Work that blocks, on a thread of its own, for the statement that this thread works for.
pub(crate) fn spawn_blocking<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> JoinHandle<T> {
    let work = governor::bind(work);
    // A simulation has one thread, and an order of all that is done.
    match simulation::is_on() {
        true => tokio::spawn(async move { work() }),
        false => tokio::task::spawn_blocking(work),
    }
}

/// A future for another task, for the statement that this thread works for.
pub(crate) fn scoped<F: Future>(future: F) -> ScopedFuture<F> {
    governor::current().future(future)
}

/// Carries scopes to the tasks that DataFusion's operators start.
struct Carrier;

impl JoinSetTracer for Carrier {
    fn trace_future(&self, future: BoxFuture<'static, Erased>) -> BoxFuture<'static, Erased> {
        Box::pin(scoped(future))
    }

    fn trace_block(&self, work: Box<dyn FnOnce() -> Erased + Send>) -> Box<dyn FnOnce() -> Erased + Send> {
        Box::new(governor::bind(work))
    }
}

type Erased = Box<dyn Any + Send>;

/// Has all threads of operators work for their statements, and the governor watch these.
///
/// # Errors
/// The system gives no thread to the governor.
pub(crate) fn govern() -> io::Result<()> {
    // One that another user of DataFusion has set stays: then operators' tasks count for the process.
    let _ = set_join_set_tracer(&Carrier);
    governor::start()
}

/// Work on its way, which ends early with whoever waits for it: on the workers, or begun where it is waited for.
#[derive(Debug)]
#[must_use = "work that is not waited for is not done"]
pub struct Task<T> {
    executor: Executor,
    state: State<T>,
}

enum State<T> {
    Here(Pin<Box<dyn Future<Output = T> + Send>>),
    There(JoinHandle<T>),
    /// It was stopped, or has ended.
    Over,
}

/// Why there is nothing to show for work.
#[derive(Debug)]
pub enum Ended {
    /// It was stopped.
    Stopped,
    /// It panicked.
    Panicked,
}

impl<T: Send + 'static> Task<T> {
    /// On the workers, from now on.
    pub fn there(executor: &Executor, work: impl Future<Output = T> + Send + 'static) -> Self {
        Self { executor: executor.clone(), state: State::There(executor.spawn(work)) }
    }

    /// By whoever waits for it, as long as it is short. That is a task of a runtime with several threads.
    pub fn here(executor: &Executor, work: impl Future<Output = T> + Send + 'static) -> Self {
        Self { executor: executor.clone(), state: State::Here(Box::pin(executor.scope().future(work))) }
    }

    /// Stops it, where it waits for something the next time.
    pub fn stop(&mut self) {
        match &mut self.state {
            State::There(task) => task.abort(),
            State::Here(_) => self.state = State::Over,
            State::Over => {}
        }
    }
}

impl<T: Send + 'static> Future for Task<T> {
    type Output = std::result::Result<T, Ended>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let task = &mut *self;
        if let State::Here(work) = &mut task.state {
            let polled = {
                let _runtime = task.executor.handle().enter();
                let _until = Until(PLACE.replace(Place::Here));
                let polled = catch_unwind(AssertUnwindSafe(|| work.as_mut().poll(context)));
                (polled, PLACE.get())
            };
            match polled {
                (Ok(Poll::Pending), Place::Leaving) => {
                    if let State::Here(work) = std::mem::replace(&mut task.state, State::Over) {
                        task.state = State::There(task.executor.handle().spawn(work));
                    }
                }
                (Ok(Poll::Pending), _) => return Poll::Pending,
                (polled, _) => {
                    task.state = State::Over;
                    return Poll::Ready(polled.map_err(|_| Ended::Panicked).and_then(|polled| match polled {
                        Poll::Ready(outcome) => Ok(outcome),
                        Poll::Pending => Err(Ended::Stopped),
                    }));
                }
            }
        }
        match &mut task.state {
            State::There(task) => {
                let ended = |e: JoinError| if e.is_panic() { Ended::Panicked } else { Ended::Stopped };
                Pin::new(task).poll(context).map_err(ended)
            }
            State::Here(_) | State::Over => Poll::Ready(Err(Ended::Stopped)),
        }
    }
}

impl<T> Drop for Task<T> {
    fn drop(&mut self) {
        if let State::There(task) = &self.state {
            task.abort();
        }
    }
}

impl<T> fmt::Debug for State<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Here(_) => "Here",
            Self::There(_) => "There",
            Self::Over => "Over",
        })
    }
}

/// Where the work is that this thread does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Place {
    /// Where it belongs.
    There,
    /// On a thread that has others to look after.
    Here,
    /// The same, until it lets go.
    Leaving,
}

thread_local! {
    static PLACE: Cell<Place> = const { Cell::new(Place::There) };
}

/// Puts back what was there before, also when what is done panics.
struct Until(Place);

impl Drop for Until {
    fn drop(&mut self) {
        PLACE.set(self.0);
    }
}

/// Whether work is done where it was begun, by a thread that has others to look after: it may wait for storage if that takes no
/// longer than to wake another thread.
pub(crate) fn is_here() -> bool {
    PLACE.get() == Place::Here
}

/// What comes now is long: from here on the workers do it.
pub(crate) async fn long() {
    poll_fn(|_| match is_here() {
        true => {
            // It is polled again by the thread that it goes over to.
            PLACE.set(Place::Leaving);
            Poll::Pending
        }
        false => Poll::Ready(()),
    })
    .await;
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
    use std::thread::{self, ThreadId};

    use tokio::runtime::{Builder, Handle, Runtime};

    use super::*;
    use crate::executors::Executors;

    fn of(name: &str) -> Runtime {
        Builder::new_multi_thread().worker_threads(1).thread_name(name).enable_all().build().unwrap()
    }

    fn executor() -> Executor {
        Executors::new(Some(1)).unwrap().lend(()).unwrap()
    }

    fn here() -> (ThreadId, String) {
        let thread = thread::current();
        (thread.id(), thread.name().unwrap_or_default().to_string())
    }

    #[test]
    fn what_is_short_stays_and_what_is_long_goes_over() {
        let (front, executor) = (of("front"), executor());
        let workers = executor.handle().id();
        let threads = front.block_on(front.spawn(async move {
            let before = here();
            let work = async {
                let first = (here(), is_here());
                tokio::task::yield_now().await;
                let second = (here(), is_here());
                long().await;
                let third = (here(), is_here());
                long().await;
                (first, second, third, Handle::current().id())
            };
            (before, Task::here(&executor, work).await.unwrap())
        }));
        let (before, (first, second, third, runtime)) = threads.unwrap();
        assert_eq!((&first, &second), (&(before.clone(), true), &(before, true)));
        assert_eq!((third.0.1.as_str(), third.1), ("onehop", false));
        assert_eq!(runtime, workers);
    }

    #[test]
    fn a_panic_is_an_end_on_either_side() {
        let (front, executor) = (of("front"), executor());
        for is_long in [false, true] {
            let work = async move {
                if is_long {
                    long().await;
                }
                panic!("on purpose");
            };
            assert!(matches!(front.block_on(Task::here(&executor, work)), Err(Ended::Panicked)));
            // Nothing is left of where it was done.
            assert!(!is_here());
        }
        assert!(matches!(
            front.block_on(Task::there(&executor, async { panic!("on purpose") })),
            Err::<(), _>(Ended::Panicked)
        ));
    }

    #[test]
    fn what_is_stopped_is_dropped_where_it_waits() {
        struct Dropped(Arc<AtomicBool>);
        impl Drop for Dropped {
            fn drop(&mut self) {
                self.0.store(true, SeqCst);
            }
        }
        let (front, executor) = (of("front"), executor());
        for is_long in [false, true] {
            let is_dropped = Arc::<AtomicBool>::default();
            let dropped = Dropped(Arc::clone(&is_dropped));
            let work = async move {
                let _dropped = dropped;
                if is_long {
                    long().await;
                }
                std::future::pending::<()>().await;
            };
            let mut task = Task::here(&executor, work);
            front.block_on(async {
                tokio::select! {
                    biased;
                    _ = &mut task => unreachable!("it never ends"),
                    () = tokio::task::yield_now() => {}
                }
                task.stop();
                assert!(matches!((&mut task).await, Err(Ended::Stopped)));
            });
            assert!(is_dropped.load(SeqCst));
        }
    }
}
