//! Slots: limits on the number of connections of each kind.
//!
//! **Slots of strangers**, [`Slots`]: connections that have not logged in, and those of HTTP. If
//! all slots are taken, a new connection is let in and another one is dropped for it. Silent
//! connections therefore keep no client out, however long they stay. The victim is chosen in this
//! order:
//!
//! 1. The connection at the earliest stage. A silent one goes first.
//! 2. A connection of the network with the most of them.
//! 3. The connection that has been idle for the longest.
//!
//! A network has at most three quarters of the slots; beyond that its connections drop each other.
//! The alternative, to drop newcomers at random as sshd does, lets a client in only by chance while
//! the slots are held.
//!
//! **Seats**, [`Seats`]: clients that have logged in. The last few are for admins, so that one can
//! get in and end the connections that keep the others out.

use std::collections::{BTreeMap, HashMap};
use std::net::IpAddr;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed, Ordering::SeqCst};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use onehop_engine::Rights;
use tokio::sync::Notify;

use crate::guesses::Network;

/// The progress of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Stage {
    /// The client has said nothing, or the connection waits for its next request.
    Silent,
    /// The client has identified itself, or its request is being answered.
    Busy,
}

#[derive(Debug)]
struct Held {
    network: Network,
    stage: Stage,
    since: Instant,
    end: Arc<Notify>,
}

/// The place for a new connection.
enum Room {
    Free,
    InsteadOf(u64),
    None,
}

/// All slots of a kind.
#[derive(Debug)]
pub struct Slots {
    most: usize,
    most_of_one: usize,
    /// The time after which a busy connection may be dropped.
    patience: Duration,
    next: AtomicU64,
    dropped: AtomicU64,
    held: Mutex<BTreeMap<u64, Held>>,
}

/// A taken slot. Dropping it releases the slot.
#[derive(Debug)]
pub struct Slot {
    id: u64,
    end: Arc<Notify>,
    slots: Arc<Slots>,
}

impl Slots {
    /// Creates `most` slots, in which a busy connection is safe for `patience`.
    pub fn new(most: usize, patience: Duration) -> Arc<Self> {
        let most = most.max(1);
        let most_of_one = (most - most / 4).max(1);
        let (next, dropped, held) = (AtomicU64::new(0), AtomicU64::new(0), Mutex::default());
        Arc::new(Self { most, most_of_one, patience, next, dropped, held })
    }

    fn held(&self) -> MutexGuard<'_, BTreeMap<u64, Held>> {
        self.held.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes a slot for a connection. Drops another connection if all slots are taken. Returns
    /// `None` if none may be dropped.
    pub fn enter(self: &Arc<Self>, address: IpAddr, now: Instant) -> Option<Slot> {
        let network = Network::of(address);
        let mut held = self.held();
        match self.room(&held, network, now) {
            Room::Free => {}
            Room::InsteadOf(victim) => {
                if let Some(victim) = held.remove(&victim) {
                    victim.end.notify_one();
                }
                self.dropped.fetch_add(1, Relaxed);
            }
            Room::None => return None,
        }
        let (id, end) = (self.next.fetch_add(1, Relaxed), Arc::new(Notify::new()));
        held.insert(id, Held { network, stage: Stage::Silent, since: now, end: Arc::clone(&end) });
        Some(Slot { id, end, slots: Arc::clone(self) })
    }

    /// Finds a place for a connection of a network.
    fn room(&self, held: &BTreeMap<u64, Held>, network: Network, now: Instant) -> Room {
        let mut counts: HashMap<Network, usize> = HashMap::new();
        held.values().for_each(|one| *counts.entry(one.network).or_default() += 1);
        let count = |network| counts.get(&network).copied().unwrap_or_default();
        let is_too_many = count(network) >= self.most_of_one;
        if !is_too_many && held.len() < self.most {
            return Room::Free;
        }
        let may = |one: &Held| one.stage == Stage::Silent || now.saturating_duration_since(one.since) >= self.patience;
        let all = held.iter().filter(|(_, one)| may(one) && (!is_too_many || one.network == network));
        let last = all.min_by_key(|(_, one)| (one.stage, std::cmp::Reverse(count(one.network)), one.since));
        last.map_or(Room::None, |(id, _)| Room::InsteadOf(*id))
    }

    /// Drops the silent connections, at shutdown.
    pub fn drop_silent(&self) {
        let mut held = self.held();
        held.values().filter(|one| one.stage == Stage::Silent).for_each(|one| one.end.notify_one());
        held.retain(|_, one| one.stage != Stage::Silent);
    }

    /// Returns the number of connections with a slot.
    pub fn count(&self) -> usize {
        self.held().len()
    }

    /// Returns the number of connections that were dropped for others.
    pub fn dropped(&self) -> u64 {
        self.dropped.load(Relaxed)
    }
}

impl Slot {
    /// Records that the connection has reached a stage.
    pub fn reach(&self, stage: Stage) {
        if let Some(one) = self.slots.held().get_mut(&self.id) {
            (one.stage, one.since) = (stage, Instant::now());
        }
    }

    /// Completes when the connection must close.
    pub async fn is_lost(&self) {
        self.end.notified().await;
    }
}

impl Drop for Slot {
    fn drop(&mut self) {
        self.slots.held().remove(&self.id);
    }
}

/// The places of clients that have logged in.
#[derive(Debug)]
pub struct Seats {
    most: usize,
    /// The number of seats for admins only.
    reserved: usize,
    taken: AtomicUsize,
}

/// A taken seat. Dropping it releases the seat.
#[derive(Debug)]
pub struct Seat(Arc<Seats>);

/// The reason a client gets no seat.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Full {
    /// All seats are taken.
    All,
    /// Only seats for admins remain.
    Reserved,
}

impl Seats {
    /// Creates `most` seats, of which at least one is for any client.
    pub fn new(most: usize, reserved: usize) -> Arc<Self> {
        Arc::new(Self { most, reserved: reserved.min(most.saturating_sub(1)), taken: AtomicUsize::new(0) })
    }

    /// Takes a seat for a client with these rights.
    pub fn take(self: &Arc<Self>, rights: Rights) -> Result<Seat, Full> {
        let most = if rights == Rights::Admin { self.most } else { self.most - self.reserved };
        let one_more = |taken: usize| (taken < most).then_some(taken + 1);
        match self.taken.fetch_update(SeqCst, SeqCst, one_more) {
            Ok(_) => Ok(Seat(Arc::clone(self))),
            Err(taken) if taken >= self.most => Err(Full::All),
            Err(_) => Err(Full::Reserved),
        }
    }

    /// Returns the number of seats for admins only.
    pub fn reserved(&self) -> usize {
        self.reserved
    }
}

impl Drop for Seat {
    fn drop(&mut self) {
        self.0.taken.fetch_sub(1, SeqCst);
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use futures::FutureExt;

    use super::*;

    const PATIENCE: Duration = Duration::from_secs(30);

    fn address(n: u8) -> IpAddr {
        IpAddr::from([10, 0, 0, n])
    }

    fn is_lost(slot: &Slot) -> bool {
        slot.is_lost().now_or_never().is_some()
    }

    #[tokio::test]
    async fn a_client_gets_in_whatever_silent_ones_there_are() {
        let slots = Slots::new(8, PATIENCE);
        let now = Instant::now();
        let silent: Vec<_> =
            (0..8).map(|n| slots.enter(address(n), now + Duration::from_secs(n.into())).unwrap()).collect();
        let client = slots.enter(address(100), now + PATIENCE / 2).unwrap();
        client.reach(Stage::Busy);
        let lost: Vec<_> = silent.iter().map(is_lost).collect();
        assert_eq!(lost.iter().filter(|lost| **lost).count(), 1);
        assert!(lost[0], "the one that was silent for the longest");
        // The client stays while there are other connections, regardless of how many arrive.
        let more: Vec<_> = (0..100).filter_map(|n| slots.enter(address(n), now + PATIENCE / 2)).collect();
        assert!(!is_lost(&client) && slots.count() == 8 && slots.dropped() == 101 && more.len() == 100);
    }

    #[tokio::test]
    async fn the_network_with_the_most_loses_one_first() {
        let slots = Slots::new(8, PATIENCE);
        let now = Instant::now();
        let other = slots.enter(address(1), now).unwrap();
        let many: Vec<_> = (0..7).map(|_| slots.enter(address(2), now + PATIENCE / 3).unwrap()).collect();
        // One network has at most six.
        assert_eq!((slots.count(), many.iter().filter(|slot| is_lost(slot)).count()), (7, 1));
        let third = (0..2).map(|_| slots.enter(address(3), now + PATIENCE / 2).unwrap()).collect::<Vec<_>>();
        assert!(!is_lost(&other) && third.iter().all(|slot| !is_lost(slot)), "though it is older");
    }

    #[tokio::test]
    async fn busy_ones_stay_for_a_while() {
        let slots = Slots::new(2, PATIENCE);
        let now = Instant::now();
        let busy: Vec<_> = (0..2).map(|n| slots.enter(address(n), now).unwrap()).collect();
        busy.iter().for_each(|slot| slot.reach(Stage::Busy));
        assert!(slots.enter(address(9), Instant::now()).is_none());
        assert!(slots.enter(address(9), Instant::now() + PATIENCE).is_some());
        drop(busy);
        assert_eq!(slots.count(), 0, "what is entered and dropped takes no slot");
    }

    #[test]
    fn the_last_seats_are_for_admins() {
        let seats = Seats::new(4, 3);
        let first = seats.take(Rights::Write).unwrap();
        assert_eq!(seats.take(Rights::Read).map(drop), Err(Full::Reserved));
        let admins: Vec<_> = (0..3).map(|_| seats.take(Rights::Admin).unwrap()).collect();
        assert_eq!(seats.take(Rights::Admin).map(drop), Err(Full::All));
        drop((first, admins));
        assert!(seats.take(Rights::Read).is_ok());
        assert!(Seats::new(1, 3).take(Rights::Read).is_ok(), "one is for any client");
    }
}
