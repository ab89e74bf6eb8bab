//! The proleptic Gregorian calendar, both ways between a day's number since 1970-01-01 and its
//! year, month, day.
//!
//! Years start in March inside the arithmetic, so that the leap day is the last day of a year. The
//! lengths of the months before it form a straight line: `(153 * month + 2) / 5` days precede month
//! `month` (March = 0). It is exact for all days that this crate uses.

/// A calendar date.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Day {
    pub(super) year: i32,
    /// 1..=12
    pub(super) month: i32,
    /// 1..=31
    pub(super) day: i32,
}

const DAYS_PER_ERA: i32 = 146_097;
/// Days from 0000-03-01 to 1970-01-01.
const EPOCH: i32 = 719_468;

impl Day {
    /// Returns the day `days` days after 1970-01-01.
    pub(super) const fn from_epoch(days: i32) -> Self {
        let days = days + EPOCH;
        let era = days.div_euclid(DAYS_PER_ERA);
        let of_era = days.rem_euclid(DAYS_PER_ERA);
        let year_of_era = (of_era - of_era / 1_460 + of_era / 36_524 - of_era / 146_096) / 365;
        let of_year = of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
        let march_month = (5 * of_year + 2) / 153;
        let month = if march_month < 10 { march_month + 3 } else { march_month - 9 };
        let year = year_of_era + era * 400 + if month <= 2 { 1 } else { 0 };
        Self { year, month, day: of_year - (153 * march_month + 2) / 5 + 1 }
    }

    /// Returns the days since 1970-01-01.
    pub(super) const fn to_epoch(self) -> i32 {
        let year = if self.month <= 2 { self.year - 1 } else { self.year };
        let era = year.div_euclid(400);
        let year_of_era = year.rem_euclid(400);
        let march_month = if self.month > 2 { self.month - 3 } else { self.month + 9 };
        let of_year = (153 * march_month + 2) / 5 + self.day - 1;
        let of_era = year_of_era * 365 + year_of_era / 4 - year_of_era / 100 + of_year;
        era * DAYS_PER_ERA + of_era - EPOCH
    }

    /// Returns the day as the integer `yyyymmdd`.
    pub(super) const fn yyyymmdd(self) -> i32 {
        self.year * 10_000 + self.month * 100 + self.day
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn known_days() {
        assert_eq!(Day::from_epoch(0), Day { year: 1970, month: 1, day: 1 });
        assert_eq!(Day::from_epoch(8_035).yyyymmdd(), 19920101);
        assert_eq!(Day::from_epoch(8_035 + 59).yyyymmdd(), 19920229);
        assert_eq!(Day::from_epoch(11_016).yyyymmdd(), 20000229);
        assert_eq!(Day::from_epoch(-1).yyyymmdd(), 19691231);
    }

    #[test]
    fn there_and_back() {
        for days in -200_000..200_000 {
            assert_eq!(Day::from_epoch(days).to_epoch(), days);
        }
    }
}
