//! The tables against the specification: sizes, keys, formats, distributions, and the selectivity
//! of all 13 queries.

use super::*;
use crate::generate::Error;
use arrow::array::cast::AsArray;
use arrow::array::{Array, StringViewArray};
use arrow::compute::concat_batches;
use arrow::datatypes::{Int32Type, Int64Type};
use std::collections::{BTreeMap, BTreeSet};

fn table(generator: &Ssb, name: &str) -> Result<RecordBatch> {
    let mut batches = Vec::new();
    for chunk in 0..generator.chunks(name)? {
        for batch in generator.chunk(name, chunk)? {
            batches.push(batch?);
        }
    }
    Ok(concat_batches(&generator.table(name)?.schema, &batches)?)
}

fn integers<'a>(batch: &'a RecordBatch, column: &str) -> &'a [i32] {
    batch.column_by_name(column).map(|array| array.as_primitive::<Int32Type>().values().as_ref()).unwrap_or_default()
}

fn strings<'a>(batch: &'a RecordBatch, column: &str) -> Vec<&'a str> {
    let array: Option<&StringViewArray> = batch.column_by_name(column).map(|array| array.as_string_view());
    array.into_iter().flatten().flatten().collect()
}

/// Fails unless `hits` of `trials` is within five standard deviations of the probability.
fn assert_share(what: &str, hits: usize, trials: usize, probability: f64) {
    let (hits, trials) = (hits as f64, trials as f64);
    let deviation = (trials * probability * (1.0 - probability)).sqrt().max(1.0);
    let expected = trials * probability;
    assert!(
        (hits - expected).abs() <= 5.0 * deviation,
        "{what}: {hits} of {trials}, {expected} +- {deviation} expected"
    );
}

fn assert_uniform<T: Ord + std::fmt::Debug>(what: &str, values: impl IntoIterator<Item = T>, kinds: usize) {
    let mut counts: BTreeMap<T, usize> = BTreeMap::new();
    values.into_iter().for_each(|value| *counts.entry(value).or_default() += 1);
    assert_eq!(counts.len(), kinds, "{what}");
    let total = counts.values().sum();
    for (value, count) in counts {
        assert_share(&format!("{what} {value:?}"), count, total, 1.0 / kinds as f64);
    }
}

#[test]
fn sizes_follow_the_scale() -> Result<()> {
    let rows =
        |scale| -> Result<Vec<u64>> { Ok(Ssb::new(scale)?.tables().iter().map(|table| table.rows_expected).collect()) };
    assert_eq!(rows(1.0)?, [30_000, 2_000, 200_000, 2_556, 6_000_000]);
    assert_eq!(rows(10.0)?, [300_000, 20_000, 800_000, 2_556, 60_000_000]);
    assert_eq!(rows(100.0)?, [3_000_000, 200_000, 1_400_000, 2_556, 600_000_000]);
    assert_eq!(rows(0.01)?, [300, 20, 2_000, 2_556, 60_000]);
    assert_eq!(rows(0.001)?, [30, 2, 200, 2_556, 6_000]);
    Ok(())
}

#[test]
fn tables_have_the_rows_they_announce() -> Result<()> {
    let generator = Ssb::new(0.05)?;
    for info in generator.tables() {
        let batch = table(&generator, info.name)?;
        if info.name == "lineorder" {
            let orders: BTreeSet<_> = order_keys(&batch).iter().copied().collect();
            assert_eq!(orders.len(), 75_000);
            assert_share("lines", batch.num_rows(), 2 * info.rows_expected as usize, 0.5);
        } else {
            assert_eq!(batch.num_rows() as u64, info.rows_expected, "{}", info.name);
        }
        assert_eq!(batch.schema(), info.schema);
        assert!(info.schema.fields().iter().all(|field| !field.is_nullable()));
    }
    Ok(())
}

fn order_keys(batch: &RecordBatch) -> &[i64] {
    batch.column(0).as_primitive::<Int64Type>().values()
}

#[test]
fn rows_do_not_depend_on_chunks_or_order_of_generation() -> Result<()> {
    let generator = Ssb::new(0.05)?;
    for chunk_rows in [1_000, 70_001] {
        let cut = generator.clone().with_chunk_rows(chunk_rows);
        for info in generator.tables() {
            let whole = table(&generator, info.name)?;
            let mut chunks = Vec::new();
            for chunk in (0..cut.chunks(info.name)?).rev() {
                let batches: Vec<_> = cut.chunk(info.name, chunk)?.collect::<Result<_>>()?;
                assert!(batches.iter().all(|batch| (1..=BATCH_ROWS_MAX).contains(&batch.num_rows())));
                chunks.push(concat_batches(&info.schema, &batches)?);
            }
            chunks.reverse();
            assert_eq!(whole, concat_batches(&info.schema, &chunks)?, "{} by {chunk_rows}", info.name);
        }
    }
    Ok(())
}

#[test]
fn the_data_is_this_data() -> Result<()> {
    // Fails if a change alters rows: data sets generated before and after it would no longer match.
    let line = &table(&Ssb::new(0.01)?, "lineorder")?.slice(0, 1);
    let shown = |name| integers(line, name)[0];
    let (customer, part, supplier) = (shown("lo_custkey"), shown("lo_partkey"), shown("lo_suppkey"));
    assert_eq!((customer, part, supplier, shown("lo_orderdate")), FIRST_LINE);
    Ok(())
}

const FIRST_LINE: (i32, i32, i32, i32) = (277, 812, 16, 19940916);

#[test]
fn what_is_not_there_is_an_error() -> Result<()> {
    let generator = Ssb::new(0.01)?;
    let error = generator.chunks("dates").err().map(|error| error.to_string());
    assert_eq!(
        error.as_deref(),
        Some("unknown table 'dates': expected one of customer, supplier, part, date, lineorder")
    );
    assert!(matches!(generator.chunk("part", 1), Err(Error::NoSuchChunk { chunk: 1, chunks: 1, .. })));
    Ok(())
}

#[test]
fn ddl_quotes_date_only() -> Result<()> {
    let generator = Ssb::new(1.0)?;
    assert!(generator.table("date")?.ddl.starts_with("CREATE TABLE \"date\" (\n    d_datekey INTEGER NOT NULL,\n"));
    let lineorder = generator.table("lineorder")?.ddl;
    assert!(lineorder.starts_with("CREATE TABLE lineorder (\n    lo_orderkey BIGINT NOT NULL,\n"), "{lineorder}");
    assert!(lineorder.ends_with("lo_shipmode VARCHAR NOT NULL\n)"), "{lineorder}");
    Ok(())
}

#[test]
fn keys_refer_to_rows_and_reach_both_ends() -> Result<()> {
    for scale in [0.001, 0.05] {
        let generator = Ssb::new(scale)?;
        let lines = table(&generator, "lineorder")?;
        let dates: BTreeSet<i32> = integers(&table(&generator, "date")?, "d_datekey").iter().copied().collect();
        let Sizes { customers, suppliers, parts, .. } = generator.sizes;
        for (column, rows) in [("lo_custkey", customers), ("lo_suppkey", suppliers), ("lo_partkey", parts)] {
            let keys = integers(&lines, column);
            assert!(keys.iter().all(|&key| key >= 1 && key as u64 <= rows), "{column}");
            assert!(keys.contains(&1), "{column} reaches 1");
            let last = if column == "lo_custkey" && rows % 3 == 0 { rows - 1 } else { rows };
            assert!(keys.contains(&(last as i32)), "{column} reaches {last}");
        }
        assert!(integers(&lines, "lo_custkey").iter().all(|key| key % 3 != 0), "every third customer has no orders");
        for column in ["lo_orderdate", "lo_commitdate"] {
            assert!(integers(&lines, column).iter().all(|date| dates.contains(date)), "{column}");
        }
    }
    Ok(())
}

#[test]
fn lines_of_an_order_agree() -> Result<()> {
    let lines = table(&Ssb::new(0.02)?, "lineorder")?;
    let keys = order_keys(&lines);
    let [number, customer, date, total, revenue, tax] =
        ["lo_linenumber", "lo_custkey", "lo_orderdate", "lo_ordtotalprice", "lo_revenue", "lo_tax"]
            .map(|column| integers(&lines, column));
    let mut start = 0;
    for group in keys.chunk_by(|a, b| a == b) {
        let rows = start..start + group.len();
        assert!((1..=7).contains(&group.len()) && group[0] % 32 < 8);
        assert!(number[rows.clone()].iter().copied().eq(1..=group.len() as i32));
        for same in [customer, date, total] {
            assert!(same[rows.clone()].iter().all(|&value| value == same[start]));
        }
        let sum: i32 = rows.clone().map(|row| revenue[row] * (100 + tax[row]) / 100).sum();
        assert_eq!(sum, total[start]);
        start = rows.end;
    }
    assert!(keys.is_sorted());
    Ok(())
}

#[test]
fn money_is_computed_as_the_reference_does() -> Result<()> {
    let lines = table(&Ssb::new(0.02)?, "lineorder")?;
    let [part, quantity, price, discount, revenue, cost] =
        ["lo_partkey", "lo_quantity", "lo_extendedprice", "lo_discount", "lo_revenue", "lo_supplycost"]
            .map(|column| integers(&lines, column));
    for row in 0..lines.num_rows() {
        let key = part[row];
        let part_price = 90_000 + (key / 10) % 20_001 + (key % 1_000) * 100;
        assert_eq!(price[row], quantity[row] * part_price);
        assert_eq!(revenue[row], price[row] * (100 - discount[row]) / 100);
        assert_eq!(cost[row], 6 * part_price / 10);
    }
    Ok(())
}

#[test]
fn measures_are_uniform() -> Result<()> {
    let lines = table(&Ssb::new(0.05)?, "lineorder")?;
    for (column, kinds) in [("lo_quantity", 50), ("lo_discount", 11), ("lo_tax", 9), ("lo_suppkey", 100)] {
        assert_uniform(column, integers(&lines, column), kinds);
    }
    assert_uniform("lo_shipmode", strings(&lines, "lo_shipmode"), 7);
    let first_lines = integers(&lines, "lo_linenumber").iter().map(|&number| number == 1);
    let of_orders = |column| {
        let values = strings(&lines, column).into_iter().zip(first_lines.clone());
        values.filter_map(|(value, first)| first.then_some(value)).collect::<Vec<_>>()
    };
    assert_uniform("lo_orderpriority", of_orders("lo_orderpriority"), 5);
    assert_eq!(BTreeSet::from_iter(strings(&lines, "lo_shippriority")), BTreeSet::from(["0"]));
    let lengths: Vec<_> = order_keys(&lines).chunk_by(|a, b| a == b).map(<[i64]>::len).collect();
    assert_uniform("lines of an order", lengths, 7);
    let dates = integers(&lines, "lo_orderdate").iter().zip(first_lines);
    assert_uniform("lo_orderdate", dates.filter_map(|(&date, first)| first.then_some(date)), 2_406);
    Ok(())
}

fn row(batch: &RecordBatch, row: usize) -> String {
    let values = batch.columns().iter().map(|column| match column.data_type() {
        DataType::Int32 => column.as_primitive::<Int32Type>().value(row).to_string(),
        _ => column.as_string_view().value(row).to_owned(),
    });
    values.collect::<Vec<_>>().join("|")
}

#[test]
fn dates_are_those_of_the_reference() -> Result<()> {
    let dates = table(&Ssb::new(1.0)?, "date")?;
    assert_eq!(
        row(&dates, 0),
        "19920101|January 1, 1992|Thursday|January|1992|199201|Jan1992|5|1|1|1|1|Winter|0|0|1|1"
    );
    assert_eq!(
        row(&dates, 2),
        "19920103|January 3, 1992|Saturday|January|1992|199201|Jan1992|7|3|3|1|1|Winter|1|0|0|0"
    );
    assert_eq!(row(&dates, 3), "19920104|January 4, 1992|Sunday|January|1992|199201|Jan1992|1|4|4|1|1|Winter|0|0|0|0");
    assert_eq!(
        row(&dates, 6),
        "19920107|January 7, 1992|Wednesday|January|1992|199201|Jan1992|4|7|7|1|2|Winter|0|0|0|1"
    );
    assert_eq!(row(&dates, 59).split('|').nth(1), Some("February 29, 1992"));
    assert_eq!(row(&dates, 59).split('|').nth(14), Some("1"), "the last day of its month");
    assert!(row(&dates, 2_555).starts_with("19981230|December 30, 1998|"));
    assert!(row(&dates, 2_555).contains("|Dec1998|"));
    assert_eq!(strings(&dates, "d_date").iter().map(|date| date.len()).max(), Some(18));
    assert_eq!(strings(&dates, "d_holidayfl").iter().filter(|&&flag| flag == "1").count(), 70);
    assert_eq!(strings(&dates, "d_lastdayinmonthfl").iter().filter(|&&flag| flag == "1").count(), 83);
    let seasons = BTreeSet::from_iter(strings(&dates, "d_sellingseason"));
    assert_eq!(seasons, BTreeSet::from(["Christmas", "Fall", "Spring", "Summer", "Winter"]));
    Ok(())
}

/// Fails unless the value matches the pattern: `9` is a digit, any other character stands for
/// itself.
fn assert_reads(value: &str, pattern: &str) {
    let fits = |(byte, sign): (u8, u8)| if sign == b'9' { byte.is_ascii_digit() } else { byte == sign };
    assert!(value.len() == pattern.len() && value.bytes().zip(pattern.bytes()).all(fits), "{value} like {pattern}");
}

#[test]
fn customers_and_suppliers_read_like_the_reference() -> Result<()> {
    let generator = Ssb::new(2.0)?;
    for (name, tag, key) in [("customer", "Customer#999999999", "c"), ("supplier", "Supplier#999999999", "s")] {
        let batch = table(&generator, name)?;
        let column = |suffix: &str| strings(&batch, &format!("{key}_{suffix}"));
        assert!(integers(&batch, &format!("{key}_{}key", &name[..4])).iter().copied().eq(1..=batch.num_rows() as i32));
        assert_eq!(column("name")[0], tag.replace("999999999", "000000001"));
        column("name").iter().for_each(|value| assert_reads(value, tag));
        assert!(column("address").iter().all(|address| (6..=24).contains(&address.len())));
        for ((city, nation), phone) in column("city").iter().zip(column("nation")).zip(column("phone")) {
            assert_eq!(city.len(), 10);
            assert_eq!(city[..9].trim_end(), &nation[..nation.len().min(9)]);
            assert_reads(&city[9..], "9");
            assert_reads(phone, "99-999-999-9999");
            assert!(phone.as_bytes()[3] != b'0' && phone.as_bytes()[7] != b'0' && phone.as_bytes()[11] != b'0');
            assert!(("10".."35").contains(&&phone[..2]));
        }
        assert_uniform("city", column("city"), 250);
        assert_uniform("region", column("region"), 5);
        assert_eq!(BTreeSet::from_iter(column("nation").into_iter().zip(column("region"))).len(), 25);
    }
    let customers = table(&generator, "customer")?;
    assert_uniform("c_mktsegment", strings(&customers, "c_mktsegment"), 5);
    let codes = BTreeSet::from_iter(
        strings(&customers, "c_nation").into_iter().zip(strings(&customers, "c_phone").iter().map(|phone| &phone[..2])),
    );
    assert!(codes.contains(&("MOROCCO", "25")) && codes.contains(&("PERU", "27")) && codes.len() == 25);
    Ok(())
}

#[test]
fn parts_nest_as_the_specification_says() -> Result<()> {
    let parts = table(&Ssb::new(1.0)?, "part")?;
    let column = |name| strings(&parts, name);
    let levels = column("p_mfgr").into_iter().zip(column("p_category")).zip(column("p_brand1"));
    for ((mfgr, category), brand) in levels {
        assert_reads(mfgr, "MFGR#9");
        assert!(category.starts_with(mfgr) && category.len() == 7, "{category}");
        let number = brand.strip_prefix(category).and_then(|number| number.parse::<u32>().ok());
        assert!(number.is_some_and(|number| (1..=40).contains(&number)), "{brand}");
    }
    for (name, kinds) in [("p_mfgr", 5), ("p_category", 25), ("p_brand1", 1_000), ("p_color", 92), ("p_type", 150)] {
        assert_uniform(name, column(name), kinds);
    }
    assert_uniform("p_container", column("p_container"), 40);
    assert_uniform("p_size", integers(&parts, "p_size"), 50);
    for known in ["PROMO BURNISHED COPPER", "STANDARD ANODIZED TIN", "ECONOMY BRUSHED STEEL"] {
        assert!(column("p_type").contains(&known), "{known}");
    }
    for known in ["JUMBO PKG", "SM CASE", "WRAP DRUM"] {
        assert!(column("p_container").contains(&known), "{known}");
    }
    for (name, color) in column("p_name").into_iter().zip(column("p_color")) {
        assert!(name.split(' ').count() == 2 && name.split(' ').all(|word| word != color), "{color}: {name}");
        assert!(name.len() <= 22, "{name}");
    }
    Ok(())
}

/// For every row of a dimension, by its key: true if it passes the query's predicate.
type Passing = Vec<bool>;

/// A query's predicates: on the dimensions by key, and on the measures of a line.
struct Predicates {
    id: &'static str,
    date: fn(&DateRow) -> bool,
    /// The share of the order dates that pass.
    date_share: f64,
    customer: Dimension,
    supplier: Dimension,
    part: Dimension,
    measures: Measures,
}

/// A predicate on a dimension, and its share by the specification.
#[derive(Clone, Copy)]
struct Dimension(fn([&str; 3]) -> bool, f64);

/// The ranges of discount and quantity, both ends included, and the share of lines that pass.
struct Measures([i32; 2], [i32; 2], f64);

struct DateRow<'a> {
    year: i32,
    month: i32,
    week: i32,
    year_month: &'a str,
}

const ANY: Dimension = Dimension(|_| true, 1.0);
const ALL_LINES: Measures = Measures([0, 10], [1, 50], 1.0);
const DAYS: f64 = 2_406.0;

fn two_cities([city, _, _]: [&str; 3]) -> bool {
    city == "UNITED KI1" || city == "UNITED KI5"
}

/// Returns the predicates of all queries. Customers and suppliers are [city, nation, region]; parts
/// are [brand, category, manufacturer].
fn all_predicates() -> [Predicates; 13] {
    let query = |id, date, days: f64, customer, supplier, part, measures| Predicates {
        id,
        date,
        date_share: days / DAYS,
        customer,
        supplier,
        part,
        measures,
    };
    let region = |name: fn([&str; 3]) -> bool| Dimension(name, 1.0 / 5.0);
    let asia = region(|[_, _, region]| region == "ASIA");
    let america = region(|[_, _, region]| region == "AMERICA");
    let europe = region(|[_, _, region]| region == "EUROPE");
    let states = Dimension(|[_, nation, _]| nation == "UNITED STATES", 1.0 / 25.0);
    let cities = Dimension(two_cities, 1.0 / 125.0);
    let two_mfgrs = Dimension(|[_, _, mfgr]| mfgr == "MFGR#1" || mfgr == "MFGR#2", 2.0 / 5.0);
    let always = |_: &DateRow| true;
    let until_1997 = |date: &DateRow| (1992..=1997).contains(&date.year);
    let last_years = |date: &DateRow| date.year == 1997 || date.year == 1998;
    let six_years = 2.0 * 366.0 + 4.0 * 365.0;
    let two_years = 365.0 + 214.0;
    [
        query("q1.1", |d| d.year == 1993, 365.0, ANY, ANY, ANY, Measures([1, 3], [1, 24], 3.0 / 11.0 * 0.48)),
        query("q1.2", |d| d.month == 199_401, 31.0, ANY, ANY, ANY, Measures([4, 6], [26, 35], 3.0 / 11.0 * 0.2)),
        query(
            "q1.3",
            |d| d.week == 6 && d.year == 1994,
            7.0,
            ANY,
            ANY,
            ANY,
            Measures([5, 7], [26, 35], 3.0 / 11.0 * 0.2),
        ),
        query("q2.1", always, DAYS, ANY, america, Dimension(|[_, cat, _]| cat == "MFGR#12", 1.0 / 25.0), ALL_LINES),
        query(
            "q2.2",
            always,
            DAYS,
            ANY,
            asia,
            Dimension(|[brand, _, _]| ("MFGR#2221"..="MFGR#2228").contains(&brand), 8.0 / 1_000.0),
            ALL_LINES,
        ),
        query(
            "q2.3",
            always,
            DAYS,
            ANY,
            europe,
            Dimension(|[brand, _, _]| brand == "MFGR#2239", 1.0 / 1_000.0),
            ALL_LINES,
        ),
        query("q3.1", until_1997, six_years, asia, asia, ANY, ALL_LINES),
        query("q3.2", until_1997, six_years, states, states, ANY, ALL_LINES),
        query("q3.3", until_1997, six_years, cities, cities, ANY, ALL_LINES),
        query("q3.4", |d| d.year_month == "Dec1997", 31.0, cities, cities, ANY, ALL_LINES),
        query("q4.1", always, DAYS, america, america, two_mfgrs, ALL_LINES),
        query("q4.2", last_years, two_years, america, america, two_mfgrs, ALL_LINES),
        query(
            "q4.3",
            last_years,
            two_years,
            america,
            states,
            Dimension(|[_, cat, _]| cat == "MFGR#14", 1.0 / 25.0),
            ALL_LINES,
        ),
    ]
}

/// Returns the rows of a dimension that pass. Their share must be the specification's.
fn passing(what: &str, columns: &[Vec<&str>; 3], predicate: Dimension) -> Passing {
    let rows = columns[0].len();
    let pass: Passing = (0..rows).map(|row| (predicate.0)([0, 1, 2].map(|column| columns[column][row]))).collect();
    assert_share(what, count(&pass), rows, predicate.1);
    pass
}

fn count(pass: &[bool]) -> usize {
    pass.iter().filter(|&&pass| pass).count()
}

/// Returns the share of passing rows among the keys that lines can have.
fn share(pass: &[bool], can_have: fn(usize) -> bool) -> f64 {
    let keys: Vec<bool> = (1..=pass.len()).filter(|&key| can_have(key)).map(|key| pass[key - 1]).collect();
    count(&keys) as f64 / keys.len() as f64
}

#[test]
fn all_13_queries_select_what_the_specification_says() -> Result<()> {
    let generator = Ssb::new(0.5)?;
    let (lines, dates) = (table(&generator, "lineorder")?, table(&generator, "date")?);
    let dimension = |table_name, names: [&str; 3]| -> Result<(RecordBatch, [String; 3])> {
        Ok((table(&generator, table_name)?, names.map(str::to_owned)))
    };
    let customers = dimension("customer", ["c_city", "c_nation", "c_region"])?;
    let suppliers = dimension("supplier", ["s_city", "s_nation", "s_region"])?;
    let parts = dimension("part", ["p_brand1", "p_category", "p_mfgr"])?;
    let [customer_values, supplier_values, part_values] =
        [&customers, &suppliers, &parts].map(|(batch, names)| [0, 1, 2].map(|index| strings(batch, &names[index])));
    for query in all_predicates() {
        let customer = passing(&format!("{} customer", query.id), &customer_values, query.customer);
        let supplier = passing(&format!("{} supplier", query.id), &supplier_values, query.supplier);
        let part = passing(&format!("{} part", query.id), &part_values, query.part);
        let expected = query.date_share
            * query.measures.2
            * share(&customer, |key| key % 3 != 0)
            * share(&supplier, |_| true)
            * share(&part, |_| true);
        let days = passing_dates(&dates, query.date);
        let hits = matching_lines(&lines, &days, [&customer, &supplier, &part], &query.measures);
        // Lines of one order share date and customer, so the variance is up to that of whole orders
        // of 5 lines.
        assert_share(query.id, hits / 5, lines.num_rows() / 5, expected);
    }
    Ok(())
}

fn passing_dates(dates: &RecordBatch, pass: fn(&DateRow) -> bool) -> BTreeSet<i32> {
    let [keys, years, months, weeks] =
        ["d_datekey", "d_year", "d_yearmonthnum", "d_weeknuminyear"].map(|column| integers(dates, column));
    let year_months = strings(dates, "d_yearmonth");
    let row = |index: usize| DateRow {
        year: years[index],
        month: months[index],
        week: weeks[index],
        year_month: year_months[index],
    };
    (0..keys.len()).filter(|&index| pass(&row(index))).map(|index| keys[index]).collect()
}

fn matching_lines(lines: &RecordBatch, days: &BTreeSet<i32>, keys: [&Passing; 3], measures: &Measures) -> usize {
    let columns = ["lo_custkey", "lo_suppkey", "lo_partkey"].map(|column| integers(lines, column));
    let [date, discount, quantity] =
        ["lo_orderdate", "lo_discount", "lo_quantity"].map(|column| integers(lines, column));
    let Measures([discount_min, discount_max], [quantity_min, quantity_max], _) = *measures;
    let matches = |row: &usize| {
        columns.iter().zip(keys).all(|(column, pass)| pass[column[*row] as usize - 1])
            && (discount_min..=discount_max).contains(&discount[*row])
            && (quantity_min..=quantity_max).contains(&quantity[*row])
            && days.contains(&date[*row])
    };
    (0..lines.num_rows()).filter(matches).count()
}
