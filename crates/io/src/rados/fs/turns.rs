//! Turns: of several writers the one that came first has the cluster, and the others send what keeps it busy beside.
//!
//! Writers that share the cluster's time evenly fall into step. All of them make their bytes at the same time, while the cluster has
//! nothing to do; then all of them wait for it, and the processor has nothing to do. That is how it stays, since all are answered at
//! the same time. If one of them goes first, it is done while the others have hardly begun, and makes its next bytes while they send.
//!
//! A member of the line is a file, or a task attempt with all its files. It has its place since it first sent something.
//! It is in the way of those behind it while it has half of its window in flight or more: with less it is not the cluster that it waits
//! for. It is also in the way while it *holds* its place: to close a file and to commit an attempt takes operations on names, one after
//! the other, and each of them is as late as the chunks before it. Who has closed a file of an attempt *lingers*: mostly the attempt is
//! committed next, and others would fill the cluster just before that. Who has nobody in the way may have a whole window in flight,
//! others [`BEHIND`]. After [`QUANTUM`] windows a member goes to the end of the line.
//!
//! Who waits for its turn can make its next bytes meanwhile: there are *seats* for chunks that wait, all members' together. One that makes
//! half a file at a time, as files of columns are made, has the other half made when its turn comes.
//!
//! Nobody waits for anything but answers: who has less in flight than [`BEHIND`] sends, whatever others do.

use std::collections::BTreeMap;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// Chunks in flight of those whose turn it is not. With two of 4 MiB a cluster is nearly as busy as with sixteen.
const BEHIND: usize = 2;
/// Windows that a turn lasts.
const QUANTUM: usize = 4;
/// For how long who lingers is in the way. Spark's tasks commit 10 to 20 ms after they have closed their last file.
const LINGER: Duration = Duration::from_millis(100);

#[derive(Debug, Default)]
struct Member {
    /// `None`: it has not sent anything.
    place: Option<u64>,
    in_flight: usize,
    /// Seats that it has.
    waiting: usize,
    /// How many are holding its place.
    held: usize,
    /// It holds its place until then, too.
    lingers_until: Option<Instant>,
    /// Since it came to its place.
    sent: usize,
}

#[derive(Debug, Default)]
struct State {
    members: BTreeMap<u64, Member>,
    next_member: u64,
    next_place: u64,
}

#[derive(Debug)]
struct Line {
    window: usize,
    seats: usize,
    state: Mutex<State>,
    changed: Condvar,
}

/// The line of all writers of a file system.
#[derive(Clone, Debug)]
pub(super) struct Turns(Arc<Line>);

/// A member of the line, as long as this is there.
#[derive(Debug)]
pub(super) struct Turn {
    line: Arc<Line>,
    member: u64,
}

/// Room for a chunk, until it is dropped.
#[derive(Debug)]
pub(super) struct Room {
    line: Arc<Line>,
    member: u64,
}

/// A place for a chunk that waits for room, until it is dropped.
#[derive(Debug)]
pub(super) struct Seat {
    line: Arc<Line>,
    member: u64,
}

/// Has a member hold its place, until it is dropped.
#[derive(Debug)]
pub(super) struct Hold<'a>(&'a Turn);

impl State {
    /// Whether one more chunk may be sent at this time.
    fn has_room(&self, member: u64, window: usize, now: Instant) -> bool {
        let Some(own) = self.members.get(&member) else { return true };
        let in_the_way = |other: &Member| {
            other.is_before(own)
                && (other.in_flight >= window.div_ceil(2) || other.held > 0 || other.lingers_until > Some(now))
        };
        let most = if self.members.values().any(in_the_way) { BEHIND.min(window) } else { window };
        own.in_flight < most
    }

    /// When the next of those before it lingers no more, if any does.
    fn changes_at(&self, member: u64, now: Instant) -> Option<Instant> {
        let own = self.members.get(&member)?;
        let others = self.members.values().filter(|other| other.is_before(own));
        others.filter_map(|other| other.lingers_until).filter(|until| *until > now).min()
    }

    /// Whether one more chunk may wait. What a member has in flight and what waits are no more than a window.
    fn has_seat(&self, own: &Member, line: &Line) -> bool {
        let taken: usize = self.members.values().map(|member| member.waiting).sum();
        taken < line.seats && own.waiting + own.in_flight < line.window
    }
}

impl Member {
    fn is_before(&self, other: &Self) -> bool {
        self.place.is_some() && self.place < other.place
    }
}

impl Line {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn change(&self, member: u64, change: impl FnOnce(&mut Member)) {
        if let Some(member) = self.lock().members.get_mut(&member) {
            change(member);
        }
        self.changed.notify_all();
    }
}

impl Turns {
    /// Whose turn it is may have so many chunks in flight, and so many may wait.
    pub fn new(window: usize, seats: usize) -> Self {
        Self(Arc::new(Line { window: window.max(1), seats, state: Mutex::default(), changed: Condvar::new() }))
    }

    /// A new member.
    pub fn join(&self) -> Turn {
        let mut state = self.0.lock();
        state.next_member += 1;
        let member = state.next_member;
        state.members.insert(member, Member::default());
        Turn { line: Arc::clone(&self.0), member }
    }
}

impl Turn {
    /// Waits for room for a chunk.
    pub fn room(&self) -> Room {
        let mut state = self.line.lock();
        self.line_up(&mut state);
        loop {
            let now = Instant::now();
            if state.has_room(self.member, self.line.window, now) {
                return self.enter(&mut state);
            }
            let changed = &self.line.changed;
            state = match state.changes_at(self.member, now) {
                // All wait at once: it is looked at again, whatever has ended the wait.
                Some(until) => {
                    changed.wait_timeout(state, until - now).map_or_else(|e| e.into_inner().0, |(state, _)| state)
                }
                None => changed.wait(state).unwrap_or_else(PoisonError::into_inner),
            };
        }
    }

    /// Room for a chunk, if there is any.
    pub fn try_room(&self) -> Option<Room> {
        let mut state = self.line.lock();
        self.line_up(&mut state);
        state.has_room(self.member, self.line.window, Instant::now()).then(|| self.enter(&mut state))
    }

    /// Gets its place, or a new one when its turn is over.
    fn line_up(&self, state: &mut State) {
        state.next_place += 1;
        let last = state.next_place;
        if let Some(own) = state.members.get_mut(&self.member)
            && (own.place.is_none() || own.sent >= QUANTUM * self.line.window)
        {
            (own.place, own.sent) = (Some(last), 0);
            self.line.changed.notify_all();
        }
    }

    fn enter(&self, state: &mut State) -> Room {
        if let Some(own) = state.members.get_mut(&self.member) {
            own.in_flight += 1;
            own.sent += 1;
        }
        Room { line: Arc::clone(&self.line), member: self.member }
    }

    /// A seat for a chunk. If all are taken, waits until one of its own is free; `None`: it has none.
    pub fn seat(&self) -> Option<Seat> {
        let mut state = self.line.lock();
        loop {
            let own = state.members.get(&self.member)?;
            if state.has_seat(own, &self.line) {
                break;
            }
            if own.waiting == 0 {
                return None;
            }
            state = self.line.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
        state.members.get_mut(&self.member)?.waiting += 1;
        Some(Seat { line: Arc::clone(&self.line), member: self.member })
    }

    /// Holds the place, whatever is in flight.
    pub fn hold(&self) -> Hold<'_> {
        self.line.change(self.member, |own| (own.held, own.lingers_until) = (own.held + 1, None));
        Hold(self)
    }

    /// Holds the place for a moment, or until it has been held again.
    pub fn linger(&self) {
        self.line.change(self.member, |own| own.lingers_until = Some(Instant::now() + LINGER));
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        self.line.lock().members.remove(&self.member);
        self.line.changed.notify_all();
    }
}

impl Drop for Room {
    fn drop(&mut self) {
        self.line.change(self.member, |own| own.in_flight -= 1);
    }
}

impl Drop for Seat {
    fn drop(&mut self) {
        self.line.change(self.member, |own| own.waiting -= 1);
    }
}

impl Drop for Hold<'_> {
    fn drop(&mut self) {
        self.0.line.change(self.0.member, |own| own.held -= 1);
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use std::sync::OnceLock;

    use super::super::super::{Done, Objects, ReadOp, Reply, Result, SimCluster, SimPool, WriteOp};
    use super::super::{FileSystem, FsOptions, Replace, SimClock, TransactionOptions};
    use super::*;

    /// Names, and whether anybody held a place when they were looked at or changed.
    #[derive(Debug)]
    struct Watched {
        pool: Arc<SimPool>,
        turns: OnceLock<Turns>,
        seen: Mutex<Vec<(&'static str, usize)>>,
    }

    impl Watched {
        fn note(&self, operation: &'static str) {
            if let Some(turns) = self.turns.get() {
                let held = turns.0.lock().members.values().map(|member| member.held).sum();
                self.seen.lock().unwrap().push((operation, held));
            }
        }
    }

    impl Objects for Watched {
        fn name(&self) -> &str {
            self.pool.name()
        }

        fn start_write(&self, object: &str, op: WriteOp, done: Done<()>) {
            self.note(op.operation);
            self.pool.start_write(object, op, done);
        }

        fn start_read(&self, object: &str, op: ReadOp, done: Done<Reply>) {
            self.note(op.operation);
            self.pool.start_read(object, op, done);
        }

        fn list(&self) -> Result<Vec<String>> {
            self.pool.list()
        }
    }

    #[test]
    fn who_closes_and_commits_holds_its_place() {
        let client = SimCluster::default().client();
        let watched = Watched { pool: client.replicated("meta"), turns: OnceLock::new(), seen: Mutex::default() };
        let (names, bytes) = (Arc::new(watched), client.replicated("data"));
        let options = FsOptions { chunk_bytes: 64 << 10, waiting_bytes: 0, ..FsOptions::default() };
        let fs = FileSystem::create_on(names.clone(), bytes, "data", Arc::<SimClock>::default(), options).unwrap();
        names.turns.set(fs.inner.turns.clone()).unwrap();
        let chunks = vec![1; 3 * (64 << 10)];
        let mut file = fs.create_file("/a", Replace::Never, Arc::default()).unwrap();
        file.append(&chunks).unwrap();
        file.close().unwrap();
        // The intent, before anything is sent; and the name.
        assert!(names.seen.lock().unwrap().ends_with(&[("write", 0), ("write", 1)]));

        let transaction = fs.begin(TransactionOptions::default()).unwrap();
        names.seen.lock().unwrap().clear();
        let attempt = transaction.attempt("task", "0").unwrap();
        let mut file = attempt.create("/b", Replace::Never, Arc::default()).unwrap();
        file.append(&chunks).unwrap();
        file.close().unwrap();
        attempt.commit().unwrap();
        // It is known to be pending, so that is only looked at once the attempt has a directory.
        let begin = [("begin a task attempt of", 0), ("make", 0), ("look at", 0)];
        let commit = [("write", 0), ("write", 1), ("seal", 1), ("commit a task attempt of", 1)];
        assert_eq!(*names.seen.lock().unwrap(), [&begin[..], &commit[..]].concat());
        assert!(fs.inner.turns.0.lock().members.values().all(|member| member.held == 0 && member.in_flight == 0));
        drop(attempt);
        assert!(fs.inner.turns.0.lock().members.is_empty());
    }

    fn has_room(turn: &Turn) -> bool {
        turn.line.lock().has_room(turn.member, turn.line.window, Instant::now())
    }

    fn rooms(turn: &Turn, count: usize) -> Vec<Room> {
        (0..count).map(|_| turn.room()).collect()
    }

    #[test]
    fn the_first_one_has_a_window_and_others_a_little() {
        let turns = Turns::new(6, 6);
        let (first, second) = (turns.join(), turns.join());
        let mut its = rooms(&first, 6);
        assert!(!has_room(&first));
        let theirs = rooms(&second, BEHIND);
        assert!(!has_room(&second));
        // Less than half of a window: it does not wait for the cluster.
        its.truncate(2);
        assert!(has_room(&second));
        its.extend(rooms(&first, 1));
        assert!(!has_room(&second));
        // Who comes later is in nobody's way, even if it joined the line before.
        drop(theirs);
        assert!(has_room(&first) && has_room(&second));
        drop((first, its));
        let _theirs = rooms(&second, 6);
        assert!(!has_room(&second));
    }

    #[test]
    fn a_place_is_held_with_nothing_in_flight() {
        let turns = Turns::new(6, 6);
        let (idle, first, second) = (turns.join(), turns.join(), turns.join());
        drop(first.room());
        let _theirs = rooms(&second, BEHIND);
        assert!(has_room(&second));
        // It has no place yet.
        let _idle = idle.hold();
        assert!(has_room(&second));
        let hold = first.hold();
        assert!(!has_room(&second));
        drop(hold);
        assert!(has_room(&second));
    }

    #[test]
    fn who_has_closed_a_file_lingers_until_it_has_committed() {
        let turns = Turns::new(6, 6);
        let (first, second) = (turns.join(), turns.join());
        drop(first.room());
        let theirs = rooms(&second, BEHIND);
        first.linger();
        let until = turns.0.lock().members[&first.member].lingers_until.unwrap();
        let room_at = |now: Instant| turns.0.lock().has_room(second.member, 6, now);
        assert!(!room_at(until - Duration::from_millis(1)) && room_at(until));
        assert_eq!(turns.0.lock().changes_at(second.member, until - LINGER), Some(until));
        assert_eq!(turns.0.lock().changes_at(second.member, until), None);
        // Nobody says that it is over.
        drop(second.room());
        assert!(Instant::now() >= until);
        first.linger();
        drop(first.hold());
        assert!(has_room(&second));
        drop(theirs);
    }

    #[test]
    fn as_much_waits_as_a_window_has() {
        let turns = Turns::new(6, 6);
        let (first, second, third) = (turns.join(), turns.join(), turns.join());
        let its = rooms(&first, 6);
        // It has a window in flight.
        assert!(first.try_room().is_none() && first.seat().is_none());
        let _theirs = rooms(&second, BEHIND);
        assert!(second.try_room().is_none());
        let mut seats: Vec<Seat> = (BEHIND..6).filter_map(|_| second.seat()).collect();
        assert_eq!(seats.len(), 6 - BEHIND);
        seats.extend((0..BEHIND).filter_map(|_| third.seat()));
        assert_eq!(seats.len(), 6);
        // All are taken. Who has some waits for one of them, others have nothing to wait for.
        assert!(first.seat().is_none());
        drop(its);
        assert!(first.seat().is_none());
        let waits = std::thread::spawn(move || third.seat().is_some());
        drop(seats);
        assert!(waits.join().unwrap());
    }

    #[test]
    fn a_turn_ends() {
        // More than twice as much as the first one has in flight.
        const WINDOW: usize = 3 * BEHIND;
        let turns = Turns::new(WINDOW, 0);
        let (first, second) = (turns.join(), turns.join());
        for _ in BEHIND..QUANTUM * WINDOW {
            drop(first.room());
        }
        let its = rooms(&first, BEHIND);
        let _theirs = rooms(&second, WINDOW);
        assert!(has_room(&first));
        drop(its);
        let _its = rooms(&first, BEHIND);
        assert!(!has_room(&first));
    }

    #[test]
    fn who_waits_goes_on_when_the_first_is_done() {
        let turns = Turns::new(4, 0);
        let (first, second) = (turns.join(), turns.join());
        let its = rooms(&first, 4);
        let theirs = rooms(&second, BEHIND);
        let waits = std::thread::spawn(move || second.room());
        // Rooms outlive their turn: what a writer has sent goes on without it.
        drop(first);
        assert!(waits.join().is_ok());
        drop((its, theirs));
    }
}
