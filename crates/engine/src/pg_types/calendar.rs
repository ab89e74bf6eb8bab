//! Days of the proleptic Gregorian calendar, and the infinite dates and timestamps.

/// Returns the days from 1970-01-01 to a date of the calendar (Hinnant, "chrono-compatible
/// low-level date algorithms").
pub(crate) fn days_of_civil(year: i64, month: u32, day: u32) -> i64 {
    let year = year - i64::from(month <= 2);
    let era = year.div_euclid(400);
    let year_of_era = year.rem_euclid(400);
    let shifted_month = i64::from(if month > 2 { month - 3 } else { month + 9 });
    let day_of_year = (153 * shifted_month + 2) / 5 + i64::from(day) - 1;
    era * 146_097 + year_of_era * 365 + year_of_era / 4 - year_of_era / 100 + day_of_year - 719_468
}

/// Returns whether a date is one of the values that PostgreSQL and DuckDB write for infinity.
pub(crate) fn is_infinite_date(days: i32) -> bool {
    days == i32::MAX || days <= -i32::MAX
}

/// Returns whether a timestamp is one of the values that PostgreSQL and DuckDB write for infinity.
pub(crate) fn is_infinite_timestamp(micros: i64) -> bool {
    micros == i64::MAX || micros <= -i64::MAX
}
