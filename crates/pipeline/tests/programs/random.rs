//! Random programs: up to two join tables, probes of all kinds, filters, and every sink.

use onehop_pipeline::ir::{Aggregate, Direction, JoinKind, Nulls, Pipeline, Probe, Program, Sink, SortKey, Step};
use onehop_pipeline::{ArithmeticOp, Bounds, CompareOp, Expr, Type, Value};
use proptest::prelude::*;

use super::tables::{BIGINT, COLUMNS, FLAG, KEY, LATE, OfText, TEXT, TWIN, WIDE, of_text};

/// Generator of expressions over registers of known types.
#[derive(Clone, Debug)]
pub struct Registers(Vec<Type>);

impl Registers {
    fn of(&self, ty: Type) -> Vec<usize> {
        (0..self.0.len()).filter(|register| self.0[*register] == ty).collect()
    }

    fn texts(&self) -> Vec<usize> {
        [self.of(Type::Text), self.of(Type::LateText)].concat()
    }

    fn int(&self, depth: u32) -> BoxedStrategy<Expr> {
        let leaf = prop_oneof![
            6 => prop::sample::select(self.of(Type::Int)).prop_map(Expr::Register),
            1 => prop::sample::select(self.texts()).prop_map(|text| of_text(text, OfText::Number)),
            2 => (-20i64..20).prop_map(Expr::int),
            2 => Just(Expr::Literal(Value::Null(Type::Int))),
        ];
        if depth == 0 {
            return leaf.boxed();
        }
        let ops = vec![ArithmeticOp::Add, ArithmeticOp::Sub, ArithmeticOp::Mul, ArithmeticOp::Div, ArithmeticOp::Rem];
        let bounds =
            prop_oneof![3 => Just(BIGINT), 1 => Just(Bounds { min: -50_000, max: 50_000, type_name: "SMALL" })];
        let branches = prop::collection::vec((self.bool(depth - 1), self.int(depth - 1)), 1..3);
        prop_oneof![
            3 => leaf,
            2 => (prop::sample::select(ops), self.int(depth - 1), self.int(depth - 1), bounds)
                .prop_map(|(op, a, b, bounds)| Expr::arithmetic(op, a, b, bounds)),
            1 => (branches, prop::option::of(self.int(depth - 1)))
                .prop_map(|(branches, otherwise)| Expr::Case { branches, otherwise: otherwise.map(Box::new) }),
            1 => prop::collection::vec(self.int(depth - 1), 1..3).prop_map(Expr::Coalesce),
            1 => self.guarded_int(),
        ]
        .boxed()
    }

    /// Returns `k <> 0` and `x / k`, or a test if the number of a string is a multiple of 3 and a
    /// third of it.
    fn divisor_and_quotient(&self) -> impl Strategy<Value = (Expr, Expr)> + use<> {
        let registers = self.of(Type::Int);
        let of_integers = (prop::sample::select(registers.clone()), prop::sample::select(registers));
        // On a dictionary, a function that refuses one of the strings is refused itself.
        let late = prop::sample::select(self.of(Type::LateText));
        prop_oneof![
            2 => of_integers.prop_map(|(x, k)| {
                let (x, k) = (Expr::Register(x), Expr::Register(k));
                let quotient = Expr::arithmetic(ArithmeticOp::Div, x, k.clone(), BIGINT);
                (Expr::compare(CompareOp::NotEqual, k, Expr::int(0)), quotient)
            }),
            1 => late.prop_map(|text| (of_text(text, OfText::Triple), of_text(text, OfText::Third))),
        ]
    }

    /// Returns `CASE WHEN k <> 0 THEN x / k ELSE 0 END`, which never fails for k = 0.
    fn guarded_int(&self) -> BoxedStrategy<Expr> {
        let case = |branch| Expr::Case { branches: vec![branch], otherwise: Some(Box::new(Expr::int(0))) };
        self.divisor_and_quotient().prop_map(case).boxed()
    }

    /// Returns `k <> 0 AND x / k > 3` or `NOT k <> 0 OR x / k > 3`, in either order, which never
    /// fail for k = 0 either.
    fn guarded_bool(&self) -> BoxedStrategy<Expr> {
        let negated = |expr: Expr| Expr::Not(Box::new(expr));
        (self.divisor_and_quotient(), any::<bool>(), any::<bool>())
            .prop_map(move |((divides, quotient), is_and, is_first)| {
                let large = Expr::compare(CompareOp::Greater, quotient, Expr::int(3));
                let guard = if is_and { divides } else { negated(divides) };
                let both = if is_first { vec![guard, large] } else { vec![large, guard] };
                // An AND that is negated once or twice is not split into conjuncts.
                negated(if is_and { negated(Expr::And(both)) } else { Expr::Or(both) })
            })
            .boxed()
    }

    /// Returns a boolean. Comparisons at `depth` 0 are of registers and literals, and cannot fail.
    fn bool(&self, depth: u32) -> BoxedStrategy<Expr> {
        let ops = vec![
            CompareOp::Equal,
            CompareOp::NotEqual,
            CompareOp::Less,
            CompareOp::LessOrEqual,
            CompareOp::Greater,
            CompareOp::GreaterOrEqual,
        ];
        let int = prop_oneof![3 => self.int(0), 1 => self.int(depth)];
        let compare = (prop::sample::select(ops), int.clone(), self.int(0));
        let every = (0..self.0.len()).collect::<Vec<_>>();
        let leaf = prop_oneof![
            4 => compare.prop_map(|(op, a, b)| Expr::compare(op, a, b)),
            1 => prop::sample::select(self.of(Type::Bool)).prop_map(Expr::Register),
            1 => prop::sample::select(every).prop_map(|r| Expr::IsNull(Box::new(Expr::Register(r)))),
            1 => (int, prop::collection::vec(-20i128..20, 0..5))
                .prop_map(|(expr, list)| Expr::In { expr: Box::new(expr), list }),
            1 => Just(Expr::Literal(Value::Null(Type::Bool))),
            1 => (prop::sample::select(self.texts()), prop::sample::select(&[OfText::Triple, OfText::TripleOrNull][..]))
                .prop_map(|(text, function)| of_text(text, function)),
        ];
        if depth == 0 {
            return leaf.boxed();
        }
        let some = prop::collection::vec(self.bool(depth - 1), 1..4);
        prop_oneof![
            3 => leaf,
            1 => some.clone().prop_map(Expr::And),
            1 => some.prop_map(Expr::Or),
            1 => self.bool(depth - 1).prop_map(|e| Expr::Not(Box::new(e))),
            1 => self.guarded_bool(),
        ]
        .boxed()
    }

    fn any(&self) -> BoxedStrategy<Expr> {
        let every = (0..self.0.len()).collect::<Vec<_>>();
        prop_oneof![2 => prop::sample::select(every).prop_map(Expr::Register), 1 => self.int(1), 1 => self.bool(1)]
            .boxed()
    }
}

pub const TYPES: [Type; COLUMNS] = [Type::Int, Type::Int, Type::Bool, Type::Text, Type::LateText, Type::LateText];

pub fn build() -> impl Strategy<Value = Pipeline> {
    let registers = Registers(TYPES.to_vec());
    let filters = prop::collection::vec(registers.bool(1).prop_map(Step::Filter), 0..2);
    let keys = prop_oneof![
        3 => Just(vec![Expr::Register(KEY)]),
        1 => Just(vec![Expr::Register(KEY), Expr::Register(FLAG)]),
        1 => Just(vec![Expr::Register(WIDE)]),
    ];
    (filters, keys).prop_map(|(steps, keys)| Pipeline {
        source: 0,
        columns: (0..COLUMNS).collect(),
        steps,
        sink: Sink::Build { keys, payload: (0..COLUMNS).map(Expr::Register).collect() },
    })
}

/// Returns a comparison of a column with a constant, which runs as a screen.
pub fn range() -> impl Strategy<Value = Expr> {
    let ops = vec![CompareOp::Less, CompareOp::GreaterOrEqual, CompareOp::Equal, CompareOp::NotEqual];
    let bound =
        prop_oneof![(KEY..=KEY, prop_oneof![0i128..15, 0i128..300]), (WIDE..=WIDE, prop_oneof![-1000i128..1000])];
    (prop::sample::select(ops), bound)
        .prop_map(|(op, (column, value))| Expr::compare(op, Expr::Register(column), Expr::int(value)))
}

pub fn program() -> impl Strategy<Value = Program> {
    let all = [JoinKind::Inner, JoinKind::Left, JoinKind::Semi, JoinKind::Anti, JoinKind::NotIn];
    let kinds = prop::sample::select(all.to_vec());
    let builds = prop::collection::vec((build(), kinds), 0..3);
    let ops = vec![None, Some(CompareOp::NotEqual), Some(CompareOp::Less), Some(CompareOp::Equal)];
    (builds, prop::sample::select(ops)).prop_flat_map(|(builds, op)| {
        let last = builds.len();
        let mut types = TYPES.to_vec();
        let mut steps = Vec::new();
        let mut pipelines = Vec::new();
        for (number, (pipeline, kind)) in builds.into_iter().enumerate() {
            let Sink::Build { keys, .. } = &pipeline.sink else { continue };
            let kind = if keys.len() > 1 && kind == JoinKind::NotIn { JoinKind::Anti } else { kind };
            let mut condition = None;
            let payload = match (kind, op) {
                (JoinKind::Inner | JoinKind::Left, _) => {
                    // Steps after a left join may read the registers of its condition.
                    if let (JoinKind::Left, Some(op)) = (kind, op) {
                        let register = Expr::Register(types.len());
                        condition = Some(Expr::compare(op, Expr::Register(WIDE), register));
                    }
                    types.extend([WIDE, FLAG, LATE, TWIN].map(|column| TYPES[column]));
                    vec![WIDE, FLAG, LATE, TWIN]
                }
                // No other step may read the registers of the condition, so the probe comes last.
                (JoinKind::Semi | JoinKind::Anti, Some(op)) if number + 1 == last => {
                    let register = Expr::Register(types.len());
                    condition = Some(Expr::compare(op, Expr::Register(WIDE), register));
                    vec![WIDE]
                }
                (JoinKind::Semi | JoinKind::Anti | JoinKind::NotIn, _) => vec![],
            };
            steps.push(Step::Probe(Probe { table: number, kind, keys: keys.clone(), payload, condition }));
            pipelines.push(pipeline);
        }
        let registers = Registers(types);
        let filter = prop_oneof![3 => registers.bool(2), 2 => range()];
        let filters = prop::collection::vec(filter.prop_map(Step::Filter), 0..3);
        let to_double = |expr| Expr::ToDouble { expr: Box::new(expr), scale: 0 };
        // Doubles whose squares fit 128 bits.
        let small = move |expr| to_double(Expr::arithmetic(ArithmeticOp::Rem, expr, Expr::int(1000), BIGINT));
        let aggregate = (0..14, registers.int(2), registers.any()).prop_map(move |(kind, expr, any)| match kind {
            0 => Aggregate::CountRows,
            1 => Aggregate::Count(any),
            2 => Aggregate::Sum(expr),
            3 => Aggregate::Min(expr),
            4 => Aggregate::Max(expr),
            5 => Aggregate::CountDistinct(expr),
            6 => Aggregate::CountDistinct(any),
            7 => Aggregate::SumDistinct(expr),
            8 => Aggregate::Sum(to_double(expr)),
            9 => Aggregate::Min(to_double(expr)),
            10 => Aggregate::Max(to_double(expr)),
            11 => Aggregate::Min(any),
            12 => Aggregate::VariancePop(small(expr)),
            _ => Aggregate::VarianceSamp(small(expr)),
        });
        let late = prop::sample::select(registers.of(Type::LateText)).prop_map(Expr::Register);
        let flagged = (prop::sample::select(registers.of(Type::Bool)), late.clone())
            .prop_map(|(flag, late)| Expr::Case { branches: vec![(Expr::Register(flag), late)], otherwise: None });
        // A key that may determine a late string, so that groups are formed by row number.
        let wide = Just(Expr::Register(WIDE));
        let key = prop_oneof![6 => registers.any(), 3 => late, 1 => flagged, 2 => wide];
        let grouped = (prop::collection::vec(key, 0..4), prop::collection::vec(aggregate, 1..4))
            .prop_map(|(keys, aggregates)| Sink::Aggregate { keys, aggregates });
        let collected = prop::collection::vec(registers.any(), 1..4).prop_map(|columns| Sink::Collect { columns });
        let direction = prop::sample::select(vec![Direction::Ascending, Direction::Descending]);
        let nulls = prop::sample::select(vec![Nulls::First, Nulls::Last]);
        let plain = prop::sample::select(vec![KEY, WIDE, FLAG, TEXT]).prop_map(Expr::Register);
        let expr = prop_oneof![4 => plain, 3 => registers.any(), 1 => registers.int(0).prop_map(to_double)];
        let key = (expr, direction, nulls).prop_map(|(expr, direction, nulls)| SortKey { expr, direction, nulls });
        let rows = prop_oneof![1usize..4, 1usize..100, 1usize..5000];
        let first = (rows, prop::collection::vec(key, 1..4), prop::collection::vec(registers.any(), 0..4));
        // The answer contains its sort keys, by which it is checked.
        let first = first.prop_map(|(rows, keys, columns)| {
            let columns = keys.iter().map(|key| key.expr.clone()).chain(columns).collect();
            Sink::Top { rows, keys, columns }
        });
        (filters, prop_oneof![3 => grouped, 1 => collected, 2 => first]).prop_map(move |(filters, sink)| {
            let mut steps = steps.clone();
            steps.extend(filters);
            let last = Pipeline { source: 1, columns: (0..COLUMNS).collect(), steps, sink };
            Program { pipelines: pipelines.iter().cloned().chain([last]).collect() }
        })
    })
}

/// Removes the aggregates that the GPU refuses, the only obstacle for most programs there.
pub fn without_refused_aggregates(mut program: Program) -> Program {
    let is_double = |expr: &Expr| matches!(expr, Expr::ToDouble { .. });
    if let Some(Sink::Aggregate { aggregates, .. }) = program.pipelines.last_mut().map(|last| &mut last.sink) {
        aggregates.retain(|aggregate| match aggregate {
            Aggregate::CountDistinct(_) | Aggregate::SumDistinct(_) => false,
            Aggregate::VariancePop(_) | Aggregate::VarianceSamp(_) => false,
            Aggregate::Sum(expr) => !is_double(expr),
            _ => true,
        });
        if aggregates.is_empty() {
            aggregates.push(Aggregate::CountRows);
        }
    }
    program
}
