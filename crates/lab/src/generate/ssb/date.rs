//! The date table: nothing in it is random, and every row is what ssb-dbgen writes.
//!
//! Its peculiarities are kept, because other implementations' files have them:
//! - 2,556 rows: seven years have one day more, and 1998-12-31 is missing.
//! - Days of the week run one day ahead: 1992-01-01, a Wednesday, is called Thursday and is day 5
//!   of its week. Every column that depends on the day of the week agrees with this.
//! - Weeks count `day of year / 7 + 1`, so that week 1 has six days.

use arrow::array::{ArrayRef, Int32Array, RecordBatch};
use arrow::datatypes::{DataType, SchemaRef};
use std::ops::Range;
use std::sync::{Arc, LazyLock};

use super::values::Strings;
use crate::generate::Result;
use crate::generate::calendar::Day;
use crate::generate::views::ViewSet;

pub(super) const ROWS: u64 = 2_556;

/// 1992-01-01, in days since 1970-01-01.
const FIRST: i32 = Day { year: 1992, month: 1, day: 1 }.to_epoch();

pub(super) static SCHEMA: LazyLock<SchemaRef> = LazyLock::new(|| {
    super::schema([
        ("d_datekey", DataType::Int32),
        ("d_date", DataType::Utf8View),
        ("d_dayofweek", DataType::Utf8View),
        ("d_month", DataType::Utf8View),
        ("d_year", DataType::Int32),
        ("d_yearmonthnum", DataType::Int32),
        ("d_yearmonth", DataType::Utf8View),
        ("d_daynuminweek", DataType::Int32),
        ("d_daynuminmonth", DataType::Int32),
        ("d_daynuminyear", DataType::Int32),
        ("d_monthnuminyear", DataType::Int32),
        ("d_weeknuminyear", DataType::Int32),
        ("d_sellingseason", DataType::Utf8View),
        ("d_lastdayinweekfl", DataType::Utf8View),
        ("d_lastdayinmonthfl", DataType::Utf8View),
        ("d_holidayfl", DataType::Utf8View),
        ("d_weekdayfl", DataType::Utf8View),
    ])
});

const MONTHS: [&str; 12] = [
    "January",
    "February",
    "March",
    "April",
    "May",
    "June",
    "July",
    "August",
    "September",
    "October",
    "November",
    "December",
];

static MONTH_VIEWS: LazyLock<ViewSet> = LazyLock::new(|| ViewSet::new(MONTHS));
static WEEKDAY_VIEWS: LazyLock<ViewSet> =
    LazyLock::new(|| ViewSet::new(["Sunday", "Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday"]));
static SEASON_VIEWS: LazyLock<ViewSet> =
    LazyLock::new(|| ViewSet::new(["Winter", "Spring", "Summer", "Fall", "Christmas"]));
static FLAG_VIEWS: LazyLock<ViewSet> = LazyLock::new(|| ViewSet::new(["0", "1"]));

/// (month, day)
const HOLIDAYS: [(i32, i32); 10] =
    [(1, 1), (2, 20), (4, 20), (5, 20), (7, 20), (8, 20), (9, 20), (10, 20), (11, 20), (12, 24)];

/// Returns `yyyymmdd` of the day with this row number.
pub(super) const fn date_key(row: i32) -> i32 {
    Day::from_epoch(FIRST + row).yyyymmdd()
}

struct Date {
    day: Day,
    /// 1..=366
    of_year: i32,
    /// 0..=6, the reference's Sunday is 0
    weekday: u8,
    last_of_month: bool,
}

impl Date {
    fn of_row(row: u64) -> Self {
        let epoch = FIRST + row as i32;
        let day = Day::from_epoch(epoch);
        let new_year = Day { month: 1, day: 1, ..day }.to_epoch();
        Self {
            day,
            of_year: epoch - new_year + 1,
            // Day 0, 1970-01-01, was a Thursday, 4; the additional one is the reference's
            // peculiarity.
            weekday: (epoch + 4 + 1).rem_euclid(7) as u8,
            last_of_month: Day::from_epoch(epoch + 1).month != day.month,
        }
    }

    fn season(&self) -> u8 {
        match self.day.month {
            1..=3 => 0,
            4 => 1,
            5..=8 => 2,
            9 | 10 => 3,
            _ => 4,
        }
    }

    fn month_name(&self) -> &'static str {
        MONTHS[self.day.month as usize - 1]
    }

    fn is_holiday(&self) -> bool {
        HOLIDAYS.contains(&(self.day.month, self.day.day))
    }
}

/// Returns the days with the row numbers `rows`.
pub(super) fn batch(rows: Range<u64>) -> Result<RecordBatch> {
    let dates: Vec<Date> = rows.map(Date::of_row).collect();
    let integers = |value: fn(&Date) -> i32| -> ArrayRef { Arc::new(dates.iter().map(value).collect::<Int32Array>()) };
    let strings = |value: fn(&Date) -> String| {
        let mut strings = Strings::with_capacity(dates.len());
        dates.iter().for_each(|date| strings.push(|text| text.push_str(&value(date))));
        strings.column()
    };
    let picked = |set: &ViewSet, code: fn(&Date) -> u8| set.column(&dates.iter().map(code).collect::<Vec<_>>());
    let columns = vec![
        integers(|date| date.day.yyyymmdd()),
        strings(|date| format!("{} {}, {}", date.month_name(), date.day.day, date.day.year)),
        picked(&WEEKDAY_VIEWS, |date| date.weekday)?,
        picked(&MONTH_VIEWS, |date| date.day.month as u8 - 1)?,
        integers(|date| date.day.year),
        integers(|date| date.day.year * 100 + date.day.month),
        strings(|date| format!("{:.3}{}", date.month_name(), date.day.year)),
        integers(|date| i32::from(date.weekday) + 1),
        integers(|date| date.day.day),
        integers(|date| date.of_year),
        integers(|date| date.day.month),
        integers(|date| date.of_year / 7 + 1),
        picked(&SEASON_VIEWS, Date::season)?,
        picked(&FLAG_VIEWS, |date| u8::from(date.weekday == 6))?,
        picked(&FLAG_VIEWS, |date| u8::from(date.last_of_month))?,
        picked(&FLAG_VIEWS, |date| u8::from(date.is_holiday()))?,
        picked(&FLAG_VIEWS, |date| u8::from((1..=5).contains(&date.weekday)))?,
    ];
    Ok(RecordBatch::try_new(Arc::clone(&SCHEMA), columns)?)
}
