//! The lineorder table.
//!
//! An order draws its customer. One further draw yields its date, priority and number of lines.
//! Each line then draws its part, its supplier, and, from one draw, quantity, discount, tax, commit
//! date and ship mode. Money is in cents:
//!
//! ```text
//! part price     = 90,000 + (partkey / 10) mod 20,001 + 100 (partkey mod 1,000)
//! extended price = quantity x part price
//! revenue        = extended price (100 - discount) / 100
//! supply cost    = 6 part price / 10
//! order total    = sum over the lines of  revenue (100 + tax) / 100
//! ```
//!
//! All divisions round down. Order keys use the first 8 of every 32 numbers, as TPC-H's do.

use arrow::array::{ArrayRef, Int32Array, Int64Array, RecordBatch};
use arrow::datatypes::{DataType, SchemaRef};
use std::ops::Range;
use std::sync::{Arc, LazyLock};

use super::{Sizes, date};
use crate::generate::random::Stream;
use crate::generate::views::ViewSet;
use crate::generate::{BATCH_ROWS_MAX, Result};

const SEED: u64 = 0x7373_625f_6c69_6e65;

pub(super) static SCHEMA: LazyLock<SchemaRef> = LazyLock::new(|| {
    super::schema([
        ("lo_orderkey", DataType::Int64),
        ("lo_linenumber", DataType::Int32),
        ("lo_custkey", DataType::Int32),
        ("lo_partkey", DataType::Int32),
        ("lo_suppkey", DataType::Int32),
        ("lo_orderdate", DataType::Int32),
        ("lo_orderpriority", DataType::Utf8View),
        ("lo_shippriority", DataType::Utf8View),
        ("lo_quantity", DataType::Int32),
        ("lo_extendedprice", DataType::Int32),
        ("lo_ordtotalprice", DataType::Int32),
        ("lo_discount", DataType::Int32),
        ("lo_revenue", DataType::Int32),
        ("lo_supplycost", DataType::Int32),
        ("lo_tax", DataType::Int32),
        ("lo_commitdate", DataType::Int32),
        ("lo_shipmode", DataType::Utf8View),
    ])
});

static PRIORITIES: LazyLock<ViewSet> =
    LazyLock::new(|| ViewSet::new(["1-URGENT", "2-HIGH", "3-MEDIUM", "4-NOT SPECIFIED", "5-LOW"]));
static SHIP_PRIORITIES: LazyLock<ViewSet> = LazyLock::new(|| ViewSet::new(["0"]));
static SHIP_MODES: LazyLock<ViewSet> =
    LazyLock::new(|| ViewSet::new(["REG AIR", "AIR", "RAIL", "TRUCK", "MAIL", "FOB", "SHIP"]));

/// Orders are dated from 1992-01-01 to 1998-08-02.
const ORDER_DAYS: u64 = 2_406;
/// A line is committed for 30 to 90 days after the order.
const COMMIT_DAYS: (i32, i32) = (30, 90);
const LINES_MAX: usize = 7;

const DATED_DAYS: usize = ORDER_DAYS as usize + COMMIT_DAYS.1 as usize;
static DATE_KEYS: [i32; DATED_DAYS] = {
    let mut keys = [0; DATED_DAYS];
    let mut row = 0;
    while row < DATED_DAYS {
        keys[row] = date::date_key(row as i32);
        row += 1;
    }
    keys
};
const _: () = assert!(DATED_DAYS as u64 <= date::ROWS, "every date in lineorder is a row of date");

#[derive(Clone, Copy, Default)]
struct Line {
    part: i32,
    supplier: i32,
    quantity: i32,
    extended_price: i32,
    discount: i32,
    revenue: i32,
    supply_cost: i32,
    tax: i32,
    commit_date: i32,
    ship_mode: u8,
}

struct Order {
    key: i64,
    customer: i32,
    date: i32,
    priority: u8,
    total_price: i32,
    lines: [Line; LINES_MAX],
    line_count: usize,
}

impl Order {
    fn generate(sizes: &Sizes, index: u64) -> Self {
        let mut stream = Stream::of_row(SEED, index);
        let customer = customer_with_orders(stream.below(customers_with_orders(sizes.customers)));
        let mut draw = stream.draw();
        let day = draw.below(ORDER_DAYS) as usize;
        let priority = draw.below_u8(PRIORITIES_COUNT);
        let line_count = 1 + draw.below(LINES_MAX as u64) as usize;
        let mut lines = [Line::default(); LINES_MAX];
        let mut total_price = 0;
        for line in &mut lines[..line_count] {
            *line = Line::generate(sizes, day, &mut stream);
            total_price += line.revenue * (100 + line.tax) / 100;
        }
        let key = order_key(index);
        Self { key, customer, date: DATE_KEYS[day], priority, total_price, lines, line_count }
    }
}

impl Line {
    fn generate(sizes: &Sizes, order_day: usize, stream: &mut Stream) -> Self {
        let part = 1 + stream.below(sizes.parts) as i32;
        let supplier = 1 + stream.below(sizes.suppliers) as i32;
        let mut draw = stream.draw();
        let quantity = draw.between(1, 50);
        let discount = draw.between(0, 10);
        let tax = draw.between(0, 8);
        let commit_day = order_day + draw.between(COMMIT_DAYS.0, COMMIT_DAYS.1) as usize;
        let ship_mode = draw.below_u8(SHIP_MODES_COUNT);
        let price = part_price(part);
        let extended_price = quantity * price;
        Self {
            part,
            supplier,
            quantity,
            extended_price,
            discount,
            // At most 50 x 209,900 x 100 before the division: fits 31 bits.
            revenue: extended_price * (100 - discount) / 100,
            supply_cost: 6 * price / 10,
            tax,
            commit_date: DATE_KEYS[commit_day],
            ship_mode,
        }
    }
}

const PRIORITIES_COUNT: u8 = 5;
const SHIP_MODES_COUNT: u8 = 7;

/// Returns the price in cents.
const fn part_price(part: i32) -> i32 {
    90_000 + (part / 10) % 20_001 + (part % 1_000) * 100
}

/// Returns the key of an order. The first 8 of every 32 numbers are used; the first order has key
/// 1.
const fn order_key(index: u64) -> i64 {
    let number = index + 1;
    (((number >> 3) << 5) | (number & 7)) as i64
}

/// Returns the number of the keys `1..=customers` that are not multiples of 3; never 0.
const fn customers_with_orders(customers: u64) -> u64 {
    customers - customers / 3
}

/// Returns the `rank`-th key that is not a multiple of 3, from rank 0: 1, 2, 4, 5, 7, ...
const fn customer_with_orders(rank: u64) -> i32 {
    (rank + rank / 2 + 1) as i32
}

/// The lines of a range of orders, in batches of [`BATCH_ROWS_MAX`] rows (the last one shorter).
///
/// An order that does not fit into a batch continues in the next one.
pub(super) struct Lines {
    sizes: Sizes,
    orders: Range<u64>,
    /// The current order, and the number of its lines already written.
    current: Option<(Order, usize)>,
}

impl Lines {
    pub(super) fn new(sizes: Sizes, orders: Range<u64>) -> Self {
        Self { sizes, orders, current: None }
    }

    fn next_order(&mut self) -> Option<(Order, usize)> {
        self.current.take().or_else(|| self.orders.next().map(|index| (Order::generate(&self.sizes, index), 0)))
    }
}

impl Iterator for Lines {
    type Item = Result<RecordBatch>;

    fn next(&mut self) -> Option<Self::Item> {
        let mut columns = Columns::with_capacity(BATCH_ROWS_MAX);
        while columns.rows() < BATCH_ROWS_MAX {
            let Some((order, written)) = self.next_order() else { break };
            let fits = (order.line_count - written).min(BATCH_ROWS_MAX - columns.rows());
            let end = written + fits;
            columns.push(&order, written..end);
            if end < order.line_count {
                self.current = Some((order, end));
            }
        }
        (columns.rows() > 0).then(|| columns.into_batch())
    }
}

struct Columns {
    order_key: Vec<i64>,
    line_number: Vec<i32>,
    customer: Vec<i32>,
    part: Vec<i32>,
    supplier: Vec<i32>,
    order_date: Vec<i32>,
    priority: Vec<u8>,
    quantity: Vec<i32>,
    extended_price: Vec<i32>,
    total_price: Vec<i32>,
    discount: Vec<i32>,
    revenue: Vec<i32>,
    supply_cost: Vec<i32>,
    tax: Vec<i32>,
    commit_date: Vec<i32>,
    ship_mode: Vec<u8>,
}

impl Columns {
    fn with_capacity(rows: usize) -> Self {
        let integers = || Vec::with_capacity(rows);
        Self {
            order_key: Vec::with_capacity(rows),
            line_number: integers(),
            customer: integers(),
            part: integers(),
            supplier: integers(),
            order_date: integers(),
            priority: Vec::with_capacity(rows),
            quantity: integers(),
            extended_price: integers(),
            total_price: integers(),
            discount: integers(),
            revenue: integers(),
            supply_cost: integers(),
            tax: integers(),
            commit_date: integers(),
            ship_mode: Vec::with_capacity(rows),
        }
    }

    fn rows(&self) -> usize {
        self.order_key.len()
    }

    fn push(&mut self, order: &Order, lines: Range<usize>) {
        for index in lines {
            let line = &order.lines[index];
            self.order_key.push(order.key);
            self.line_number.push(index as i32 + 1);
            self.customer.push(order.customer);
            self.part.push(line.part);
            self.supplier.push(line.supplier);
            self.order_date.push(order.date);
            self.priority.push(order.priority);
            self.quantity.push(line.quantity);
            self.extended_price.push(line.extended_price);
            self.total_price.push(order.total_price);
            self.discount.push(line.discount);
            self.revenue.push(line.revenue);
            self.supply_cost.push(line.supply_cost);
            self.tax.push(line.tax);
            self.commit_date.push(line.commit_date);
            self.ship_mode.push(line.ship_mode);
        }
    }

    fn into_batch(self) -> Result<RecordBatch> {
        let integers = |values: Vec<i32>| -> ArrayRef { Arc::new(Int32Array::from(values)) };
        let ship_priority = SHIP_PRIORITIES.column(&vec![0u8; self.rows()])?;
        let columns = vec![
            Arc::new(Int64Array::from(self.order_key)) as ArrayRef,
            integers(self.line_number),
            integers(self.customer),
            integers(self.part),
            integers(self.supplier),
            integers(self.order_date),
            PRIORITIES.column(&self.priority)?,
            ship_priority,
            integers(self.quantity),
            integers(self.extended_price),
            integers(self.total_price),
            integers(self.discount),
            integers(self.revenue),
            integers(self.supply_cost),
            integers(self.tax),
            integers(self.commit_date),
            SHIP_MODES.column(&self.ship_mode)?,
        ];
        Ok(RecordBatch::try_new(Arc::clone(&SCHEMA), columns)?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn order_keys_are_sparse() {
        let keys: Vec<_> = (0..10).map(order_key).collect();
        assert_eq!(keys, [1, 2, 3, 4, 5, 6, 7, 32, 33, 34]);
        // TPC-H's last key at scale factor 1.
        assert_eq!(order_key(1_499_999), 6_000_000);
    }

    #[test]
    fn customers_with_orders_skip_every_third() {
        let keys: Vec<_> = (0..customers_with_orders(9)).map(customer_with_orders).collect();
        assert_eq!(keys, [1, 2, 4, 5, 7, 8]);
        assert_eq!(customer_with_orders(customers_with_orders(1) - 1), 1);
        assert_eq!(customer_with_orders(customers_with_orders(2) - 1), 2);
    }

    #[test]
    fn prices_are_those_of_tpch() {
        // dbgen prints 901.00 and 902.00 for parts 1 and 2.
        assert_eq!(part_price(1), 90_100);
        assert_eq!(part_price(2), 90_200);
        assert_eq!(part_price(10), 91_001);
        assert_eq!(part_price(199_999), 90_000 + 19_999 + 99_900);
    }

    #[test]
    fn counts_match_the_sets() {
        assert_eq!(usize::from(PRIORITIES_COUNT), PRIORITIES.len());
        assert_eq!(usize::from(SHIP_MODES_COUNT), SHIP_MODES.len());
    }

    #[test]
    fn dates_reach_from_the_first_to_the_last() {
        assert_eq!(DATE_KEYS[0], 19920101);
        assert_eq!(DATE_KEYS[ORDER_DAYS as usize - 1], 19980802);
        assert_eq!(DATE_KEYS[DATED_DAYS - 1], 19981031);
    }
}
