//! The choice of the pair of slots that goes out of use next: a clock, or second chance.
//!
//! Pairs stand in a queue. A pair that was written since its last check returns to the end. The
//! first one that was not is the victim. In hardware, evictions from the translation look-aside
//! buffer show that a page goes out of use. Software has no such signal, and uses a budget.

use std::collections::{HashMap, VecDeque};

use crate::backend::PageNo;

/// The pages that lie in pairs of slots.
#[derive(Debug, Default)]
pub(super) struct Clock {
    /// The pages with the numbers of their tickets. Only the latest ticket of a page is valid: a
    /// page leaves the queue at no cost.
    queue: VecDeque<(PageNo, u64)>,
    pairs: HashMap<PageNo, Hand>,
    tickets: u64,
}

#[derive(Debug)]
struct Hand {
    ticket: u64,
    /// True if the page was written since its last check.
    is_warm: bool,
}

impl Clock {
    /// Returns the number of pairs.
    pub(super) fn len(&self) -> usize {
        self.pairs.len()
    }

    /// Records that `page` is a pair and was written just now.
    pub(super) fn touch(&mut self, page: PageNo) {
        let tickets = &mut self.tickets;
        let queue = &mut self.queue;
        let hand = self.pairs.entry(page).or_insert_with(|| {
            *tickets += 1;
            queue.push_back((page, *tickets));
            Hand { ticket: *tickets, is_warm: true }
        });
        hand.is_warm = true;
        if self.queue.len() > 2 * self.pairs.len() + 16 {
            let pairs = &self.pairs;
            self.queue.retain(|(page, ticket)| pairs.get(page).is_some_and(|hand| hand.ticket == *ticket));
        }
    }

    /// Records that `page` is not a pair any more.
    pub(super) fn remove(&mut self, page: PageNo) {
        self.pairs.remove(&page);
    }

    /// Returns the next victim that satisfies `allows`. It stays a pair until it is removed.
    pub(super) fn victim(&mut self, allows: impl Fn(PageNo) -> bool) -> Option<PageNo> {
        for _ in 0..2 * self.queue.len() {
            let (page, ticket) = self.queue.pop_front()?;
            let Some(hand) = self.pairs.get_mut(&page).filter(|hand| hand.ticket == ticket) else { continue };
            self.queue.push_back((page, ticket));
            if hand.is_warm {
                hand.is_warm = false;
            } else if allows(page) {
                return Some(page);
            }
        }
        None
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_again_gets_a_second_chance() {
        let mut clock = Clock::default();
        (0..4).for_each(|page| clock.touch(PageNo(page)));
        assert_eq!(clock.victim(|_| true), Some(PageNo(0)), "all were warm: the oldest");
        clock.remove(PageNo(0));
        clock.touch(PageNo(1));
        assert_eq!(clock.victim(|_| true), Some(PageNo(2)));
        assert_eq!(clock.victim(|page| page.0 == 1), Some(PageNo(1)));
        assert_eq!(clock.victim(|_| false), None);
        assert_eq!(clock.len(), 3);
    }

    #[test]
    fn pages_that_come_and_go_leave_nothing_behind() {
        let mut clock = Clock::default();
        for round in 0..1000 {
            clock.touch(PageNo(round % 7));
            clock.remove(PageNo(round % 7));
        }
        clock.touch(PageNo(3));
        assert!(clock.queue.len() < 64);
        assert_eq!(clock.victim(|_| true), Some(PageNo(3)));
    }
}
