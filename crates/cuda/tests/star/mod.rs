//! A star schema like that of SSB, with random rows, and the shapes of four of its queries, for
//! checks and measurements of kernels.
#![allow(dead_code, unreachable_pub, clippy::unwrap_used)]

use std::fmt;
use std::sync::Arc;

use arrow_array::{ArrayRef, Int64Array, RecordBatch};
use arrow_schema::{DataType, Field, Schema};
use onehop_io::{Ledger, MemoryFile};
use onehop_pipeline::ir::{Aggregate, JoinKind, Pipeline, Probe, Program, Sink, Step};
use onehop_pipeline::{ArithmeticOp, Block, Bounds, CompareOp, Domain, Expr, Interval, Result, SegmentSource, Source};
use onehop_segment::{BlockCache, BlockList, ColumnType, Segment, SegmentOptions, SegmentWriter};

const BIGINT: Bounds = Bounds { min: i64::MIN as i128, max: i64::MAX as i128, type_name: "BIGINT" };
/// Maximum rows of a segment.
const SEGMENT_ROWS: usize = 1 << 22;

/// Tables of the schema.
pub struct Star {
    pub lineorder: Arc<dyn Source>,
    date: Arc<dyn Source>,
    part: Arc<dyn Source>,
    supplier: Arc<dyn Source>,
    customer: Arc<dyn Source>,
}

/// A query's name, its program, and its numbered sources.
pub type Query = (&'static str, Program, Vec<Arc<dyn Source>>);

struct Random(u64);

impl Random {
    fn below(&mut self, n: usize) -> i64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        ((u128::from(self.0) * n as u128) >> 64) as i64
    }
}

/// Returns columns of integers, stored as segments.
pub fn stored(name: &str, columns: Vec<Vec<i64>>) -> Arc<dyn Source> {
    let ledger = Arc::new(Ledger::default());
    let fields = (0..columns.len()).map(|n| Field::new(format!("c{n}"), DataType::Int64, false));
    let schema = Arc::new(Schema::new(fields.collect::<Vec<_>>()));
    let rows = columns[0].len();
    let mut blocks = BlockList::default();
    for from in (0..rows).step_by(SEGMENT_ROWS) {
        let to = (from + SEGMENT_ROWS).min(rows);
        let mut writer = SegmentWriter::new(&schema, SegmentOptions::default()).unwrap();
        for at in (from..to).step_by(1 << 16) {
            let part = |column: &Vec<i64>| Arc::new(Int64Array::from(column[at..(at + (1 << 16)).min(to)].to_vec()));
            let arrays = columns.iter().map(|column| part(column) as ArrayRef).collect();
            writer.append(&RecordBatch::try_new(Arc::clone(&schema), arrays).unwrap()).unwrap();
        }
        let file = MemoryFile::new("star.seg", Vec::new());
        writer.finish(&file, &ledger).unwrap();
        let segment = Arc::new(Segment::open(Arc::new(file), &ledger).unwrap());
        blocks.push_all(&segment, 0..segment.blocks());
    }
    let types: Vec<_> = (0..columns.len()).map(|n| (n, ColumnType::Int64, false)).collect();
    let cache = Arc::new(BlockCache::new(1 << 32));
    Arc::new(SegmentSource::new(name, Arc::new(blocks), &types, cache, ledger, 0).unwrap())
}

/// Returns the days of seven years as numbers like 19920131, with their years.
fn dates() -> Vec<(i64, i64)> {
    let length = |year: i64, month: i64| match month {
        2 => 28 + i64::from(year.rem_euclid(4) == 0),
        4 | 6 | 9 | 11 => 30,
        _ => 31,
    };
    let days = |year: i64| (1..=12).flat_map(move |month| (1..=length(year, month)).map(move |day| (year, month, day)));
    (1992..=1998).flat_map(days).map(|(year, month, day)| (year * 10_000 + month * 100 + day, year)).collect()
}

fn r(register: usize) -> Expr {
    Expr::Register(register)
}

fn between(register: usize, low: i64, high: i64) -> Step {
    Step::Filter(Expr::And(vec![
        Expr::compare(CompareOp::GreaterOrEqual, r(register), Expr::int(low)),
        Expr::compare(CompareOp::LessOrEqual, r(register), Expr::int(high)),
    ]))
}

/// Builds a table by a key, from rows whose second column lies within limits, optionally with the
/// third as payload.
fn build(source: usize, columns: [usize; 3], limits: Option<(i64, i64)>, has_payload: bool) -> Pipeline {
    let steps = limits.map(|(low, high)| between(1, low, high)).into_iter().collect();
    let payload = if has_payload { vec![r(2)] } else { vec![] };
    Pipeline { source, columns: columns.to_vec(), steps, sink: Sink::Build { keys: vec![r(0)], payload } }
}

fn probe(table: usize, key: usize, has_payload: bool) -> Step {
    let payload = if has_payload { vec![0] } else { vec![] };
    Step::Probe(Probe { table, kind: JoinKind::Inner, keys: vec![r(key)], payload, condition: None })
}

impl Star {
    /// Creates `rows` fact rows, and dimension tables of scale factor `scale`, which stands for
    /// 6,000,000 times `scale` fact rows.
    pub fn new(rows: usize, scale: f64) -> Self {
        let of = |count: f64| ((count * scale) as usize).max(50);
        let parts = if scale >= 1.0 { (200_000.0 * (1.0 + scale.log2())) as usize } else { of(200_000.0) };
        let (customers, suppliers) = (of(30_000.0), of(2_000.0));
        let days = dates();
        let mut random = Random(0x1234_5678_9abc_def1);
        let mut column =
            |of: &mut dyn FnMut(&mut Random) -> i64| (0..rows).map(|_| of(&mut random)).collect::<Vec<_>>();
        let lineorder = stored(
            "lineorder",
            vec![
                column(&mut |random| days[random.below(days.len() - 150) as usize].0),
                column(&mut |random| random.below(11)),
                column(&mut |random| 1 + random.below(50)),
                column(&mut |random| 90_000 + random.below(10_400_000)),
                column(&mut |random| 1 + random.below(parts)),
                column(&mut |random| 1 + random.below(suppliers)),
                column(&mut |random| 1 + random.below(customers)),
                column(&mut |random| 80_000 + random.below(10_400_000)),
                column(&mut |random| 50_000 + random.below(75_000)),
                column(&mut |random| random.below(3)),
                column(&mut |random| random.below(2)),
                column(&mut |random| random.below(9)),
            ],
        );
        let mut dimension = |name: &str, rows: usize, of: &[usize]| {
            let mut columns = vec![(1..=rows as i64).collect::<Vec<_>>()];
            // Attributes from coarse to fine: each value of one lies within one value of the
            // attribute before it.
            let widest = of.last().copied().unwrap_or(1);
            let values: Vec<i64> = (0..rows).map(|_| random.below(widest)).collect();
            columns.extend(of.iter().map(|n| values.iter().map(|value| value * *n as i64 / widest as i64).collect()));
            stored(name, columns)
        };
        Self {
            lineorder,
            date: stored("date", vec![days.iter().map(|day| day.0).collect(), days.iter().map(|day| day.1).collect()]),
            part: dimension("part", parts, &[5, 25, 1000]),
            supplier: dimension("supplier", suppliers, &[5, 25]),
            customer: dimension("customer", customers, &[5, 25]),
        }
    }

    /// Returns the shape of query 1.1, for a year, and for discounts and quantities within limits.
    pub fn query_1(&self, year: i64, discounts: (i64, i64), quantities: (i64, i64)) -> Query {
        let revenue = Expr::arithmetic(ArithmeticOp::Mul, r(3), r(1), BIGINT);
        let limits = [probe(0, 0, false), between(1, discounts.0, discounts.1), between(2, quantities.0, quantities.1)];
        let pipelines = vec![
            build(1, [0, 1, 1], Some((year, year)), false),
            Pipeline {
                source: 0,
                columns: vec![0, 1, 2, 3],
                steps: limits.to_vec(),
                sink: Sink::Aggregate { keys: vec![], aggregates: vec![Aggregate::Sum(revenue)] },
            },
        ];
        ("Q1.1", Program { pipelines }, vec![Arc::clone(&self.lineorder), Arc::clone(&self.date)])
    }

    /// Returns the shapes of queries 1.1, 2.1, 3.1 and 4.1, and of TPC-H's first, whose rows fall
    /// into few groups.
    pub fn queries(&self) -> Vec<Query> {
        let [lineorder, date, part, supplier, customer] =
            [&self.lineorder, &self.date, &self.part, &self.supplier, &self.customer].map(Arc::clone);
        let sum = |expr| vec![Aggregate::Sum(expr)];
        let arithmetic = |op, left, right| Expr::arithmetic(op, r(left), r(right), BIGINT);
        let last = |columns: Vec<usize>, steps, keys: Vec<usize>, aggregates| Pipeline {
            source: 0,
            columns,
            steps,
            sink: Sink::Aggregate { keys: keys.into_iter().map(r).collect(), aggregates },
        };
        let q2 = vec![
            build(1, [0, 1, 1], None, true),
            build(2, [0, 2, 3], Some((7, 7)), true),
            build(3, [0, 1, 2], Some((1, 1)), false),
            last(
                vec![0, 4, 5, 7],
                vec![probe(0, 0, true), probe(1, 1, true), probe(2, 2, false)],
                vec![4, 5],
                sum(r(3)),
            ),
        ];
        let q3 = vec![
            build(1, [0, 1, 1], Some((1992, 1997)), true),
            build(2, [0, 1, 2], Some((2, 2)), true),
            build(3, [0, 1, 2], Some((2, 2)), true),
            last(
                vec![0, 6, 5, 7],
                vec![probe(0, 0, true), probe(1, 1, true), probe(2, 2, true)],
                vec![5, 6, 4],
                sum(r(3)),
            ),
        ];
        let q4 = vec![
            build(1, [0, 1, 1], None, true),
            build(2, [0, 1, 2], Some((1, 1)), true),
            build(3, [0, 1, 2], Some((1, 1)), false),
            build(4, [0, 1, 2], Some((0, 1)), false),
            last(
                vec![0, 6, 5, 4, 7, 8],
                vec![probe(0, 0, true), probe(1, 1, true), probe(2, 2, false), probe(3, 3, false)],
                vec![6, 7],
                sum(arithmetic(ArithmeticOp::Sub, 4, 5)),
            ),
        ];
        let of_hundred = |op, register| Expr::arithmetic(op, Expr::int(100), r(register), BIGINT);
        let product = |left, right| Expr::arithmetic(ArithmeticOp::Mul, left, right, BIGINT);
        let discounted = product(r(4), of_hundred(ArithmeticOp::Sub, 5));
        let mut aggregates =
            [r(3), r(4), discounted.clone(), product(discounted, of_hundred(ArithmeticOp::Add, 6)), r(5)]
                .map(Aggregate::Sum)
                .to_vec();
        aggregates.push(Aggregate::CountRows);
        let tpch = vec![last(vec![9, 10, 0, 2, 3, 1, 11], vec![between(2, 0, 19_980_902)], vec![0, 1], aggregates)];
        let program = |pipelines| Program { pipelines };
        vec![
            self.query_1(1993, (1, 3), (0, 24)),
            (
                "Q2.1",
                program(q2),
                vec![Arc::clone(&lineorder), Arc::clone(&date), Arc::clone(&part), Arc::clone(&supplier)],
            ),
            (
                "Q3.1",
                program(q3),
                vec![Arc::clone(&lineorder), Arc::clone(&date), Arc::clone(&customer), Arc::clone(&supplier)],
            ),
            ("Q4.1", program(q4), vec![Arc::clone(&lineorder), date, customer, supplier, part]),
            ("TPC-H Q1", program(tpch), vec![lineorder]),
        ]
    }
}

/// Repeats the same rows: tables of any size at little cost. On a device, each copy has memory of
/// its own.
pub struct Repeated {
    source: Arc<dyn Source>,
    times: usize,
}

impl fmt::Debug for Repeated {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} times {}", self.times, self.source.name())
    }
}

impl Repeated {
    pub fn source(source: &Arc<dyn Source>, times: usize) -> Arc<dyn Source> {
        Arc::new(Self { source: Arc::clone(source), times })
    }
}

impl Source for Repeated {
    fn name(&self) -> &str {
        self.source.name()
    }

    fn columns(&self) -> &[Domain] {
        self.source.columns()
    }

    fn morsels(&self) -> usize {
        self.source.morsels() * self.times
    }

    fn rows(&self, morsel: usize) -> usize {
        self.source.rows(morsel % self.source.morsels())
    }

    fn interval(&self, morsel: usize, column: usize) -> Option<Interval> {
        self.source.interval(morsel % self.source.morsels(), column)
    }

    fn load(&self, morsel: usize, column: usize) -> Result<Block> {
        self.source.load(morsel % self.source.morsels(), column)
    }
}
