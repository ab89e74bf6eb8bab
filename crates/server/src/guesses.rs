//! A limit on the number of wrong passwords that are judged, by the user's name and by the address.
//!
//! **A counter** rises by one with each guess and falls by one per interval. A guess waits while
//! its counter is high:
//!
//! ```text
//! below `free` guesses      no wait
//! each one more             1 s, 2 s, 4 s ... up to the interval
//! ```
//! A counter therefore has a highest value, its peak. No window of time has more guesses than the
//! peak and one for each interval in it. The guide has these numbers.
//!
//! **A guess is paid before it is judged.** [`Guesses::take`] raises the counters, and
//! [`Guess::right`] takes that back if the password was right. Any other end, such as a client that
//! disconnects, leaves the guess paid. Concurrent exchanges therefore get no more verdicts than
//! sequential ones, and an exchange that waits for its client holds nothing.
//!
//! **Two sources of payment.** The shared counters are those of the name and of the address. While
//! they are exhausted, a pair of a name and an address that has logged in recently pays from a
//! counter of its own. Guesses from elsewhere therefore do not lock a user out. All guesses of the
//! pair count there, however they are paid. A wrong guess that only this counter has paid is
//! answered like a refused one ([`Guess::refusal`]), so that the answer does not reveal which names
//! log in from an address.
//!
//! **Right passwords** clear earlier failures of the same name at the same address, at most once
//! per [`FORGIVEN_EVERY`]. A client that logs in continually gives no advantage to an attacker
//! beside it.
//!
//! **Memory is fixed.** Names and addresses are hashed, by keys of the process, into tables of a
//! fixed size that keep no names. A collision makes two of them share a counter, which only lowers
//! the rate. No entry is ever evicted, and known and unknown names are treated alike. To keep
//! others out, an attacker has to fill a large part of a table continually. Each name has at most
//! [`PAIRS_OF_A_NAME`] pairs with addresses that have logged in.

use std::collections::HashMap;
use std::hash::{BuildHasher, RandomState};
use std::net::{IpAddr, Ipv6Addr};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// The number of counters in each table.
const COUNTERS: usize = 1 << 16;
/// The maximum number of pairs of one name.
const PAIRS_OF_A_NAME: usize = 64;
/// The time since its last log-in after which a pair pays like any other.
const FAMILIAR_FOR: Duration = Duration::from_secs(7 * 24 * 3600);
/// The minimum time between two log-ins of a pair that clear earlier failures.
const FORGIVEN_EVERY: Duration = Duration::from_secs(3600);

/// The rate of an address, for all names together.
pub const OF_ADDRESS: Rate = Rate { free: 5, interval: Duration::from_secs(60) };
/// The rate of a name, for all addresses together. The wait is short, because for that long guesses
/// from elsewhere keep out a user who comes from a new address.
pub const OF_NAME: Rate = Rate { free: 20, interval: Duration::from_secs(10) };
/// The rate of a name at an address that it has logged in from recently, besides the other two.
pub const OF_PAIR: Rate = OF_ADDRESS;

/// The guesses that a counter allows.
#[derive(Clone, Copy, Debug)]
pub struct Rate {
    /// The number of guesses without a wait.
    pub free: u64,
    /// The longest wait, and the time after which a guess is forgotten.
    pub interval: Duration,
}

impl Rate {
    /// Returns the wait after `guesses` guesses.
    fn wait(&self, guesses: u64) -> Duration {
        match guesses.checked_sub(self.free) {
            None => Duration::ZERO,
            Some(over) => Duration::from_secs(1 << over.min(16)).min(self.interval),
        }
    }
}

/// The guesses of one kind. Times count from [`Guesses::new`].
#[derive(Clone, Copy, Debug, Default)]
struct Counter {
    /// The time at which all of its guesses are forgotten.
    empty_at: Duration,
    /// The time of the last guess, unique within the counter.
    last: Option<Duration>,
}

/// A guess that a counter has counted, and the data to undo it.
#[derive(Clone, Copy, Debug)]
struct Paid {
    at: Duration,
    last_before: Option<Duration>,
}

impl Counter {
    fn debt(&self, now: Duration) -> Duration {
        self.empty_at.saturating_sub(now)
    }

    /// Returns the time until the next guess.
    fn wait(&self, rate: &Rate, now: Duration) -> Duration {
        let guesses = self.debt(now).as_nanos().div_ceil(rate.interval.as_nanos().max(1)) as u64;
        match (rate.wait(guesses), self.last) {
            (Duration::ZERO, _) | (_, None) => Duration::ZERO,
            (wait, Some(last)) => (last + wait).saturating_sub(now),
        }
    }

    fn add(&mut self, rate: &Rate, now: Duration) -> Paid {
        let after_last = self.last.map(|last| last + Duration::from_nanos(1));
        let paid = Paid { at: after_last.map_or(now, |after| after.max(now)), last_before: self.last };
        self.empty_at = self.empty_at.max(now) + rate.interval;
        self.last = Some(paid.at);
        paid
    }

    fn take_back(&mut self, debt: Duration, paid: Paid) {
        self.forgive(debt);
        // A later guess may have arrived meanwhile, whose wait counts.
        if self.last == Some(paid.at) {
            self.last = paid.last_before;
        }
    }

    fn forgive(&mut self, debt: Duration) {
        self.empty_at = self.empty_at.saturating_sub(debt);
    }
}

/// The part of a name's and an address's counters that their pair contributed.
#[derive(Clone, Copy, Debug, Default)]
struct Share {
    /// The hash of the pair.
    tag: u64,
    of_name: Counter,
    of_address: Counter,
}

/// An address that a name has logged in from.
#[derive(Clone, Copy, Debug)]
struct Pair {
    address: Network,
    own: Counter,
    last_right: Duration,
    forgiven: Duration,
}

#[derive(Debug)]
struct State {
    names: Box<[Counter]>,
    addresses: Box<[Counter]>,
    shares: Box<[Share]>,
    pairs: HashMap<String, Vec<Pair>>,
}

/// The addresses that count as one: a single IPv4 address, or the /64 of an IPv6 subscriber.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Network(IpAddr);

impl Network {
    /// Returns the network of an address. IPv4 within IPv6 is IPv4.
    pub fn of(address: IpAddr) -> Self {
        match address.to_canonical() {
            IpAddr::V6(address) => Self(Ipv6Addr::from_bits(address.to_bits() & !u128::from(u64::MAX)).into()),
            address => Self(address),
        }
    }
}

/// The counters.
#[derive(Debug)]
pub struct Guesses {
    began: Instant,
    hasher: RandomState,
    state: Mutex<State>,
}

/// A guess is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Refused {
    /// The time until the next guess is accepted.
    pub wait: Duration,
}

/// A guess that is paid. It stays paid unless it turns out to be right.
#[derive(Debug)]
#[must_use]
pub struct Guess<'a> {
    guesses: &'a Guesses,
    name: &'a str,
    address: Network,
    now: Duration,
    paid: Payment,
}

#[derive(Clone, Copy, Debug)]
enum Payment {
    /// Paid from the name's and the address's counters; `own` if the pair has a counter.
    Shared { name: Paid, address: Paid, own: Option<Paid> },
    /// Paid from the pair's own counter alone; `address` if the address paid for the attempt.
    Own { own: Paid, address: Option<Paid>, wait: Duration },
}

impl Payment {
    fn own(&self) -> Option<Paid> {
        match *self {
            Self::Shared { own, .. } => own,
            Self::Own { own, .. } => Some(own),
        }
    }
}

impl Default for Guesses {
    fn default() -> Self {
        Self::new(Instant::now())
    }
}

impl Guesses {
    /// Creates counters whose times start at `began`.
    pub fn new(began: Instant) -> Self {
        let state = State {
            names: vec![Counter::default(); COUNTERS].into(),
            addresses: vec![Counter::default(); COUNTERS].into(),
            shares: vec![Share::default(); COUNTERS].into(),
            pairs: HashMap::new(),
        };
        Self { began, hasher: RandomState::new(), state: Mutex::new(state) }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Pays for a guess of the name's password, from this address.
    ///
    /// # Errors
    /// Returns [`Refused`] if the counters allow no guess now.
    pub fn take<'a>(&'a self, name: &'a str, address: IpAddr, now: Instant) -> Result<Guess<'a>, Refused> {
        let (now, address) = (now.saturating_duration_since(self.began), Network::of(address));
        let mut state = self.state();
        let address_wait = self.of_address(&mut state, address).wait(&OF_ADDRESS, now);
        let wait = self.of_name(&mut state, name).wait(&OF_NAME, now).max(address_wait);
        let paid = match wait.is_zero() {
            true => self.pay_shared(&mut state, name, address, now),
            false => {
                // An address that continually asks for an exhausted name gains no advantage.
                let tried = address_wait.is_zero().then(|| self.of_address(&mut state, address).add(&OF_ADDRESS, now));
                let pair = state.pair(name, address, now).filter(|pair| pair.own.wait(&OF_PAIR, now).is_zero());
                let own = pair.map(|pair| pair.own.add(&OF_PAIR, now)).ok_or(Refused { wait })?;
                Payment::Own { own, address: tried, wait }
            }
        };
        Ok(Guess { guesses: self, name, address, now, paid })
    }

    fn pay_shared(&self, state: &mut State, name: &str, address: Network, now: Duration) -> Payment {
        let of_name = self.of_name(state, name).add(&OF_NAME, now);
        let of_address = self.of_address(state, address).add(&OF_ADDRESS, now);
        let own = state.pair(name, address, now).map(|pair| pair.own.add(&OF_PAIR, now));
        let share = self.share(state, name, address);
        share.of_name.add(&OF_NAME, now);
        share.of_address.add(&OF_ADDRESS, now);
        Payment::Shared { name: of_name, address: of_address, own }
    }

    fn of_name<'s>(&self, state: &'s mut State, name: &str) -> &'s mut Counter {
        &mut state.names[self.hasher.hash_one(name) as usize % COUNTERS]
    }

    fn of_address<'s>(&self, state: &'s mut State, address: Network) -> &'s mut Counter {
        &mut state.addresses[self.hasher.hash_one(address) as usize % COUNTERS]
    }

    /// Returns the share of a pair. Replaces the share of another pair at the same place.
    fn share<'s>(&self, state: &'s mut State, name: &str, address: Network) -> &'s mut Share {
        let tag = self.hasher.hash_one((name, address));
        let share = &mut state.shares[tag as usize % COUNTERS];
        if share.tag != tag {
            *share = Share { tag, ..Share::default() };
        }
        share
    }

    /// Clears the share of a pair from the counters of its name and its address.
    fn forgive(&self, state: &mut State, name: &str, address: Network, now: Duration) {
        let share = self.share(state, name, address);
        let (of_name, of_address) = (share.of_name.debt(now), share.of_address.debt(now));
        (share.of_name, share.of_address) = Default::default();
        self.of_name(state, name).forgive(of_name);
        self.of_address(state, address).forgive(of_address);
    }
}

impl State {
    /// Returns the pair, if it has logged in recently.
    fn pair(&mut self, name: &str, address: Network, now: Duration) -> Option<&mut Pair> {
        let pairs = self.pairs.get_mut(name)?;
        let is_it = |pair: &&mut Pair| pair.address == address && now.saturating_sub(pair.last_right) < FAMILIAR_FOR;
        pairs.iter_mut().find(is_it)
    }

    /// Records a log-in of the pair.
    fn add_pair(&mut self, name: &str, address: Network, now: Duration) {
        let pairs = self.pairs.entry(name.into()).or_default();
        pairs.retain(|pair| pair.address != address);
        if pairs.len() >= PAIRS_OF_A_NAME
            && let Some(oldest) = (0..pairs.len()).min_by_key(|at| pairs[*at].last_right)
        {
            pairs.swap_remove(oldest);
        }
        pairs.push(Pair { address, own: Counter::default(), last_right: now, forgiven: now });
    }
}

impl Guess<'_> {
    /// Returns true if only the pair's own counter has paid.
    pub fn is_own(&self) -> bool {
        matches!(self.paid, Payment::Own { .. })
    }

    /// Returns the refusal that answers a wrong guess, or `None` if the answer is that it is wrong.
    pub fn refusal(&self) -> Option<Refused> {
        match self.paid {
            Payment::Shared { .. } => None,
            Payment::Own { wait, .. } => Some(Refused { wait }),
        }
    }

    /// Takes the payment back, because the password was right. Returns true if the name had not
    /// logged in from the address recently.
    pub fn right(self) -> bool {
        let Self { guesses, name, address, now, paid } = self;
        let mut state = guesses.state();
        if let (Some(own), Some(pair)) = (paid.own(), state.pair(name, address, now)) {
            pair.own.take_back(OF_PAIR.interval, own);
        }
        match paid {
            Payment::Shared { name: of_name, address: of_address, .. } => {
                // Another right guess may have cleared the share meanwhile, and this guess with it.
                let share = guesses.share(&mut state, name, address);
                let name_debt = share.of_name.debt(now).min(OF_NAME.interval);
                let address_debt = share.of_address.debt(now).min(OF_ADDRESS.interval);
                share.of_name.forgive(name_debt);
                share.of_address.forgive(address_debt);
                guesses.of_name(&mut state, name).take_back(name_debt, of_name);
                guesses.of_address(&mut state, address).take_back(address_debt, of_address);
            }
            Payment::Own { address: Some(of_address), .. } => {
                guesses.of_address(&mut state, address).take_back(OF_ADDRESS.interval, of_address);
            }
            Payment::Own { address: None, .. } => {}
        }
        let Some(pair) = state.pair(name, address, now) else {
            guesses.forgive(&mut state, name, address, now);
            state.add_pair(name, address, now);
            return true;
        };
        pair.last_right = now;
        if now.saturating_sub(pair.forgiven) >= FORGIVEN_EVERY {
            (pair.forgiven, pair.own) = (now, Counter::default());
            guesses.forgive(&mut state, name, address, now);
        }
        false
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use std::collections::VecDeque;
    use std::hash::Hash;

    use super::*;

    const MINUTE: Duration = Duration::from_secs(60);
    const HOUR: Duration = Duration::from_secs(3600);

    impl Rate {
        /// Returns the highest value of a counter, at which the wait equals the interval.
        fn peak(&self) -> u64 {
            let over = (0..16).find(|over| Duration::from_secs(1 << over) >= self.interval);
            self.free + over.unwrap_or(16)
        }

        /// Returns the maximum number of wrong guesses that are judged in any window of this
        /// length.
        fn most_in(&self, window: Duration) -> u64 {
            self.peak() + (window.as_nanos() / self.interval.as_nanos().max(1)) as u64
        }
    }

    fn v4(last: u8) -> IpAddr {
        IpAddr::from([10, 0, 0, last])
    }

    /// xorshift64*
    struct Random(u64);

    impl Random {
        fn below(&mut self, n: u64) -> u64 {
            self.0 ^= self.0 >> 12;
            self.0 ^= self.0 << 25;
            self.0 ^= self.0 >> 27;
            (self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 16) % n
        }
    }

    /// The maximum number of events of one key in any window.
    struct Windows<K>(HashMap<K, VecDeque<Instant>>, Duration, u64);

    impl<K: Hash + Eq> Windows<K> {
        fn of(window: Duration) -> Self {
            Self(HashMap::new(), window, 0)
        }

        fn add(&mut self, key: K, now: Instant) {
            let times = self.0.entry(key).or_default();
            times.push_back(now);
            while now.duration_since(times[0]) > self.1 {
                times.pop_front();
            }
            self.2 = self.2.max(times.len() as u64);
        }
    }

    /// Makes a wrong guess. Returns true if it is judged.
    fn is_judged(guesses: &Guesses, name: &str, address: IpAddr, now: Instant) -> bool {
        guesses.take(name, address, now).is_ok()
    }

    fn log_in(guesses: &Guesses, name: &str, address: IpAddr, now: Instant) -> bool {
        guesses.take(name, address, now).map(Guess::right).is_ok()
    }

    #[test]
    fn the_documented_rates() {
        let most = |rate: Rate| (rate.most_in(MINUTE), rate.most_in(HOUR));
        assert_eq!(most(OF_ADDRESS), (12, 71));
        assert_eq!(most(OF_NAME), (30, 384));
        assert_eq!(most(OF_PAIR), (12, 71));
    }

    #[test]
    fn a_guesser_waits_longer_each_time() {
        let now = Instant::now();
        let guesses = Guesses::new(now);
        for _ in 0..5 {
            assert!(is_judged(&guesses, "ada", v4(1), now));
        }
        let mut at = now;
        for wait in [1, 2, 4, 8, 16] {
            let before = at + Duration::from_secs(wait) - Duration::from_millis(1);
            let refused = guesses.take("ada", v4(1), before).map(drop).unwrap_err();
            assert!(refused.wait <= Duration::from_millis(2), "{refused:?}");
            at += Duration::from_secs(wait) + Duration::from_millis(1);
            assert!(is_judged(&guesses, "ada", v4(1), at));
        }
        assert!(!is_judged(&guesses, "ada", v4(1), at + Duration::from_secs(20)));
        assert!(is_judged(&guesses, "ada", v4(1), at + Duration::from_secs(61)));
        // Another address and another name are not affected.
        assert!(is_judged(&guesses, "ada", v4(2), at) && is_judged(&guesses, "bob", v4(2), at));
    }

    #[test]
    fn no_mix_of_names_addresses_and_log_ins_gets_more_verdicts() {
        let began = Instant::now();
        for seed in 1..=3 {
            let (guesses, mut random, mut now) = (Guesses::new(began), Random(seed), began);
            let mut of_name = [MINUTE, HOUR].map(Windows::of);
            let mut of_address = [MINUTE, HOUR].map(Windows::of);
            let mut judged = 0;
            for _ in 0..100_000 {
                // Bursts, with an occasional pause.
                let longest = if random.below(500) == 0 { 600_000 } else { 400 };
                now += Duration::from_millis(random.below(longest));
                let address = match random.below(3) {
                    0 => v4(random.below(4) as u8),
                    1 => IpAddr::from([0x2001, 0xdb8, 0, random.below(100) as u16, 0, 0, 0, random.below(1000) as u16]),
                    _ => IpAddr::from([172, 16, random.below(20) as u8, random.below(20) as u8]),
                };
                // The attacker has an account, and logs in to it from each address it guesses from.
                log_in(&guesses, "mallory", address, now);
                let name = match random.below(2) {
                    0 => format!("user{}", random.below(5)),
                    _ => format!("nobody{}", random.below(100_000)),
                };
                if is_judged(&guesses, &name, address, now) {
                    judged += 1;
                    of_name.iter_mut().for_each(|windows| windows.add(name.clone(), now));
                    of_address.iter_mut().for_each(|windows| windows.add(Network::of(address), now));
                }
            }
            let most = |windows: &[Windows<String>; 2]| [windows[0].2, windows[1].2];
            let [minute, hour] = most(&of_name);
            assert!(minute <= OF_NAME.most_in(MINUTE) && hour <= OF_NAME.most_in(HOUR), "{minute} {hour}");
            assert!(of_address[0].2 <= OF_ADDRESS.most_in(MINUTE), "{}", of_address[0].2);
            assert!(of_address[1].2 <= OF_ADDRESS.most_in(HOUR), "{}", of_address[1].2);
            // The limits are reached, and the measured rates come close to them.
            assert!(minute > 20 && of_address[0].2 >= 10 && judged > 5_000, "{minute} {} {judged}", of_address[0].2);
        }
    }

    #[test]
    fn a_user_who_logs_in_all_the_time_gives_a_guesser_at_the_same_address_nothing() {
        let began = Instant::now();
        let (guesses, mut windows) = (Guesses::new(began), Windows::of(HOUR));
        for second in 0..4 * 3600 {
            let now = began + Duration::from_secs(second);
            log_in(&guesses, "ada", v4(1), now);
            for _ in 0..5 {
                if is_judged(&guesses, "ada", v4(1), now) {
                    windows.add("ada", now);
                }
            }
        }
        // Covers the shared counters, the pair's own one, and the failures a log-in clears once an
        // hour.
        let most = OF_ADDRESS.most_in(HOUR) + OF_PAIR.most_in(HOUR) + OF_ADDRESS.peak() + OF_PAIR.peak();
        assert!(windows.2 <= most, "{} of {most}", windows.2);
    }

    #[test]
    fn guesses_under_way_count_until_they_are_right() {
        let now = Instant::now();
        let guesses = Guesses::new(now);
        let under_way: Vec<_> = (0..90).filter_map(|_| guesses.take("ada", v4(1), now).ok()).collect();
        assert_eq!(under_way.len(), 5);
        assert!(!is_judged(&guesses, "bob", v4(1), now));
        for guess in under_way {
            guess.right();
        }
        assert!(is_judged(&guesses, "bob", v4(1), now));
    }

    #[test]
    fn a_right_password_clears_no_failures_of_others() {
        let now = Instant::now();
        let guesses = Guesses::new(now);
        for _ in 0..2 {
            assert!(is_judged(&guesses, "bob", v4(1), now) && is_judged(&guesses, "ada", v4(1), now));
        }
        // Bob's two failures are cleared, and Ada's two are not.
        assert!(log_in(&guesses, "bob", v4(1), now));
        let left = (0..10).filter(|_| is_judged(&guesses, "ada", v4(1), now)).count();
        assert_eq!(left, 3);
        // Another right password does not clear them either.
        assert!(log_in(&guesses, "bob", v4(1), now));
        assert!(!is_judged(&guesses, "ada", v4(1), now));
    }

    #[test]
    fn right_passwords_at_once_clear_their_own_failures_once() {
        let now = Instant::now();
        let guesses = Guesses::new(now);
        (0..3).for_each(|_| assert!(is_judged(&guesses, "bob", v4(1), now)));
        let at_once = [guesses.take("ada", v4(1), now).unwrap(), guesses.take("ada", v4(1), now).unwrap()];
        assert_eq!(at_once.map(Guess::right), [true, false]);
        let left = (0..10).filter(|_| is_judged(&guesses, "bob", v4(1), now)).count();
        assert_eq!(left, 2);
    }

    #[test]
    fn guesses_from_elsewhere_do_not_keep_a_user_out() {
        let began = Instant::now();
        let guesses = Guesses::new(began);
        assert!(log_in(&guesses, "ada", v4(1), began));
        let mut waits = Vec::new();
        for second in 0..600_u32 {
            let now = began + Duration::from_secs(second.into());
            for host in 0..200 {
                let _ = is_judged(&guesses, "ada", IpAddr::from([192, 0, 2, host]), now);
            }
            // She gets in at once from her familiar address, and within the interval from another.
            assert!(log_in(&guesses, "ada", v4(1), now));
            let new = IpAddr::from([10, 1, (second >> 8) as u8, second as u8]);
            waits.extend(guesses.take("ada", new, now + Duration::from_millis(1)).map(Guess::right).err());
        }
        // A new address occasionally shares its counter with an attacker's.
        let longer = waits.iter().filter(|refused| refused.wait > OF_NAME.interval).count();
        assert!(!waits.is_empty() && longer < 20, "{waits:?}");
    }

    #[test]
    fn a_wrong_guess_at_a_familiar_address_is_answered_as_one_that_is_refused() {
        let now = Instant::now();
        let guesses = Guesses::new(now);
        log_in(&guesses, "ada", v4(1), now);
        (0..5).for_each(|at| assert!(is_judged(&guesses, &format!("x{at}"), v4(1), now)));
        let unknown = guesses.take("nobody", v4(1), now).map(drop).unwrap_err();
        let known = guesses.take("ada", v4(1), now).unwrap();
        assert!(known.is_own());
        assert_eq!(known.refusal(), Some(unknown));
    }

    #[test]
    fn memory_does_not_grow_with_names_and_addresses() {
        let now = Instant::now();
        let guesses = Guesses::new(now);
        for n in 0..200_000_u32 {
            let _ = is_judged(&guesses, &format!("name{n}"), IpAddr::from(n.to_be_bytes()), now);
        }
        for n in 0..1_000_u32 {
            log_in(&guesses, "ada", IpAddr::from([192, 168, (n >> 8) as u8, n as u8]), now + 10 * HOUR);
        }
        let state = guesses.state();
        assert_eq!((state.names.len(), state.pairs.len()), (COUNTERS, 1));
        assert!(state.pairs["ada"].len() <= PAIRS_OF_A_NAME);
    }

    #[test]
    fn a_network_of_ipv6_is_one_address() {
        let of = |text: &str| Network::of(text.parse().unwrap());
        assert_eq!(of("2001:db8:1:2::1"), of("2001:db8:1:2:ffff::9"));
        assert_ne!(of("2001:db8:1:2::1"), of("2001:db8:1:3::1"));
        assert_eq!(of("::ffff:10.0.0.1"), of("10.0.0.1"));
        assert_ne!(of("10.0.0.1"), of("10.0.0.2"));
    }
}
