//! The layout of a box: the width of each column, and the columns that fit.
//!
//! Widths are display columns. Each column costs its width plus three (a border and two blanks),
//! the whole one more. If the columns do not fit, text columns shrink first, the widest first, down
//! to [`TEXT_FLOOR`]. If that is not enough, columns in the middle are omitted, and `…` takes their
//! place.

/// The minimum useful width of a text column.
const TEXT_FLOOR: usize = 10;
/// The width of the placeholder for omitted columns.
const GAP: usize = 1;

/// The requested widths of a column.
#[derive(Clone, Copy, Debug)]
pub struct Wish {
    /// The width of its widest content, header included.
    pub natural: usize,
    /// The minimum width: a number would lose digits below it, anything else can be cut.
    pub floor: usize,
}

impl Wish {
    /// The widths of a text column, which can be cut.
    pub fn text(natural: usize) -> Self {
        Self { natural, floor: natural.min(TEXT_FLOOR) }
    }

    /// The widths of a number column: the header can be cut, digits cannot.
    pub fn number(header: usize, digits: usize) -> Self {
        Self { natural: header.max(digits), floor: digits.max(header.min(TEXT_FLOOR)) }
    }
}

/// A column of the box.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Slot {
    /// A column of the result, by index, and its width.
    Column(usize, usize),
    /// The placeholder for omitted columns.
    Gap,
}

/// Lays out columns within `budget` display columns, or at their natural widths.
pub fn lay_out(wishes: &[Wish], budget: Option<usize>) -> Vec<Slot> {
    let Some(budget) = budget else {
        return wishes.iter().enumerate().map(|(i, wish)| Slot::Column(i, wish.natural)).collect();
    };
    let shown = choose(wishes, budget);
    let has_gap = shown.len() < wishes.len();
    let kept: Vec<Wish> = shown.iter().map(|i| wishes[*i]).collect();
    let frame = 1 + 3 * kept.len() + if has_gap { 3 + GAP } else { 0 };
    let widths = share(&kept, budget.saturating_sub(frame));
    let mut slots: Vec<Slot> = shown.iter().zip(widths).map(|(i, width)| Slot::Column(*i, width)).collect();
    if has_gap {
        let at = (1..shown.len()).find(|at| shown[at - 1] + 1 != shown[*at]).unwrap_or(shown.len());
        slots.insert(at, Slot::Gap);
    }
    slots
}

/// Returns the columns that fit at their minimum width: all, or some from both ends; at least one.
fn choose(wishes: &[Wish], budget: usize) -> Vec<usize> {
    let cost = |wish: &Wish| wish.floor + 3;
    if wishes.iter().map(cost).sum::<usize>() < budget {
        return (0..wishes.len()).collect();
    }
    let mut left = budget.saturating_sub(1 + 3 + GAP);
    let (mut front, mut back) = (Vec::new(), Vec::new());
    let mut rest = 0..wishes.len();
    while !rest.is_empty() {
        let from_front = front.len() <= back.len();
        let next = if from_front { rest.next() } else { rest.next_back() };
        let Some(next) = next else { break };
        let needed = cost(&wishes[next]);
        if needed > left && !front.is_empty() {
            break;
        }
        left = left.saturating_sub(needed);
        if from_front { front.push(next) } else { back.push(next) }
    }
    front.extend(back.into_iter().rev());
    front
}

/// Returns widths that add up to at most `budget`: natural widths below some level, and that level
/// above it.
fn share(wishes: &[Wish], budget: usize) -> Vec<usize> {
    let at =
        |level: usize| -> Vec<usize> { wishes.iter().map(|wish| wish.natural.min(level).max(wish.floor)).collect() };
    let widest = wishes.iter().map(|wish| wish.natural).max().unwrap_or(0);
    let fits = |level: usize| at(level).iter().sum::<usize>() <= budget;
    if fits(widest) {
        return at(widest);
    }
    // The highest level that fits. At level 0 each column has its minimum width. A single column
    // may exceed the terminal even so.
    let (mut low, mut high) = (0, widest);
    while high - low > 1 {
        let middle = low.midpoint(high);
        if fits(middle) { low = middle } else { high = middle }
    }
    let mut widths = at(low);
    if let [only] = widths.as_mut_slice() {
        *only = (*only).min(budget.max(1));
    }
    widths
}

#[cfg(test)]
mod tests {
    use super::*;

    fn widths(wishes: &[Wish], budget: usize) -> Vec<usize> {
        let slots = lay_out(wishes, Some(budget));
        slots.into_iter().map(|slot| if let Slot::Column(_, width) = slot { width } else { 0 }).collect()
    }

    #[test]
    fn what_fits_is_left_alone() {
        assert_eq!(widths(&[Wish::text(5), Wish::number(3, 9)], 80), [5, 9]);
        assert_eq!(lay_out(&[Wish::text(500)], None), [Slot::Column(0, 500)]);
    }

    #[test]
    fn the_widest_text_gives_way_first() {
        assert_eq!(widths(&[Wish::text(100), Wish::text(12), Wish::number(3, 9)], 60), [29, 12, 9]);
    }

    #[test]
    fn digits_are_kept_before_headers() {
        assert_eq!(widths(&[Wish::number(40, 12), Wish::text(40)], 40), [16, 16]);
        assert_eq!(widths(&[Wish::number(40, 12), Wish::text(40)], 29), [12, 10]);
    }

    #[test]
    fn columns_in_the_middle_are_left_out() {
        let slots = lay_out(&[Wish::number(3, 10); 9], Some(50));
        assert_eq!(slots, [Slot::Column(0, 10), Slot::Column(1, 10), Slot::Gap, Slot::Column(8, 10)]);
    }

    #[test]
    fn one_column_is_always_shown() {
        assert_eq!(widths(&[Wish::number(3, 30)], 20), [16]);
        assert_eq!(lay_out(&[Wish::number(3, 30); 3], Some(20)), [Slot::Column(0, 12), Slot::Gap]);
        assert_eq!(lay_out(&[], Some(20)), []);
    }
}
