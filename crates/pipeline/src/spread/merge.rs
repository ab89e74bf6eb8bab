//! Merge of several devices' answers: a program of the same kind runs over their rows on the CPU.
//!
//! ```text
//! each device                   merge
//! aggregate by keys ...         aggregate by the same keys: sums of sums and of counts,
//!                               minimum of minimums, maximum of maximums
//! first n by keys of columns    first n by the same keys, which are columns by then
//! collect columns               unchanged
//! ```
//! Sums are exact, and so are sums of sums. A sum that does not fit 64 bits is added in two halves,
//! of the low 63 bits and the bits above. Functions that are not exact, or not determined by the
//! partial results, are refused: sums and variances of doubles, and all functions that count equal
//! values once.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use crate::backend::Refusal;
use crate::cpu::{self, Execution, ResultColumn, ResultValues};
use crate::ir::{Aggregate, Pipeline, Program, Shape, Sink, SortKey};
use crate::{BatchSource, Budget, Domain, Error, Expr, Result, Type};

/// Chunks of columns.
pub(super) type Chunks = Vec<Vec<ResultColumn>>;

/// Bits of the lower half of a sum.
const LOW_BITS: u32 = 63;

/// Merge of the devices' answers.
#[derive(Clone, Debug)]
pub(super) struct Merge {
    /// Domains of each device's answer.
    columns: Vec<Domain>,
    how: How,
}

#[derive(Clone, Debug)]
enum How {
    /// Rows are passed on as they arrive.
    Rows,
    /// Grouped by the leading keys; `adds` has the merge of each other column.
    Groups { keys: usize, adds: Vec<Add> },
    /// The first rows by some of the columns, and the number of columns in the answer.
    Top { rows: usize, keys: Vec<SortKey>, wanted: usize },
}

/// Merge of one column's values of a group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Add {
    Count,
    Sum,
    Least,
    Greatest,
}

/// Returns the program of the devices, and the merge of their answers.
pub(super) fn parted(program: &Arc<Program>, shapes: &[Shape]) -> std::result::Result<(Arc<Program>, Merge), Refusal> {
    let (Some(last), Some(shape)) = (program.pipelines.last(), shapes.last()) else {
        return Err(Refusal("a program without pipelines".into()));
    };
    match &last.sink {
        Sink::Build { .. } => Err(Refusal("a program that ends in a join table".into())),
        Sink::Collect { .. } => Ok((Arc::clone(program), Merge { columns: shape.outputs.clone(), how: How::Rows })),
        Sink::Aggregate { keys, aggregates } => {
            let arguments = &shape.outputs[keys.len()..];
            let adds = aggregates.iter().zip(arguments).map(|(aggregate, domain)| add_of(aggregate, domain));
            let how = How::Groups { keys: keys.len(), adds: adds.collect::<std::result::Result<_, _>>()? };
            Ok((Arc::clone(program), Merge { columns: shape.outputs.clone(), how }))
        }
        Sink::Top { rows, keys, columns } => {
            let (columns, merge) = top(*rows, keys, columns, shape)?;
            let Some(columns) = columns else { return Ok((Arc::clone(program), merge)) };
            let mut program = Program::clone(program);
            if let Some(last) = program.pipelines.last_mut() {
                last.sink = Sink::Top { rows: *rows, keys: keys.clone(), columns };
            }
            Ok((Arc::new(program), merge))
        }
    }
}

fn add_of(aggregate: &Aggregate, domain: &Domain) -> std::result::Result<Add, Refusal> {
    match aggregate {
        Aggregate::CountRows | Aggregate::Count(_) => Ok(Add::Count),
        Aggregate::Sum(_) if domain.ty == Type::Int => Ok(Add::Sum),
        Aggregate::Min(_) => Ok(Add::Least),
        Aggregate::Max(_) => Ok(Add::Greatest),
        Aggregate::Sum(_) => Err(Refusal("sums of doubles in parts".into())),
        Aggregate::CountDistinct(_) | Aggregate::SumDistinct(_) => Err(Refusal("DISTINCT in parts".into())),
        Aggregate::VariancePop(_) | Aggregate::VarianceSamp(_) => Err(Refusal("variances in parts".into())),
    }
}

/// Returns the columns needed to compare the first rows of several devices, if keys are missing
/// among them, and the merge.
fn top(
    rows: usize,
    keys: &[SortKey],
    columns: &[Expr],
    shape: &Shape,
) -> std::result::Result<(Option<Vec<Expr>>, Merge), Refusal> {
    let wanted = columns.len();
    let (mut all, mut domains) = (columns.to_vec(), shape.outputs.clone());
    let mut place_of = |key: &SortKey| -> Result<usize> {
        // Expressions are equal if they print alike: their printed form is unique for registers,
        // constants and operators.
        let text = key.expr.to_string();
        if let Some(place) = all.iter().position(|column| column.to_string() == text) {
            return Ok(place);
        }
        domains.push(crate::bind::bind(&key.expr, &shape.registers)?.domain);
        all.push(key.expr.clone());
        Ok(all.len() - 1)
    };
    let places = keys.iter().map(&mut place_of).collect::<Result<Vec<usize>>>().map_err(|e| Refusal(e.to_string()))?;
    let by = keys.iter().zip(places).map(|(key, place)| SortKey { expr: Expr::Register(place), ..key.clone() });
    let how = How::Top { rows, keys: by.collect(), wanted };
    let columns = (all.len() > wanted).then_some(all);
    Ok((columns, Merge { columns: domains, how }))
}

impl Merge {
    /// Returns true if rows are passed on as they arrive.
    pub fn passes_on(&self) -> bool {
        matches!(self.how, How::Rows)
    }

    /// Returns the answer for a single device's chunk.
    pub fn alone(&self, mut chunk: Vec<ResultColumn>) -> Vec<ResultColumn> {
        if let How::Top { wanted, .. } = self.how {
            chunk.truncate(wanted);
        }
        chunk
    }

    /// Merges the answers. Blocks until the result exists.
    ///
    /// # Errors
    /// [`Error::Memory`], those of files, [`Error::Cancelled`].
    pub fn run(&self, answers: Chunks, budget: &Budget, cancelled: &AtomicBool) -> Result<Chunks> {
        let domains = &self.columns;
        match &self.how {
            How::Rows => Ok(answers),
            How::Top { rows, keys, .. } => {
                let columns = (0..domains.len()).map(Expr::Register).collect();
                let sink = Sink::Top { rows: *rows, keys: keys.clone(), columns };
                let chunks = run(sink, domains, answers, budget, cancelled)?;
                Ok(chunks.into_iter().map(|chunk| self.alone(chunk)).collect())
            }
            How::Groups { keys, adds } => {
                let mut halved = Halved::of(*keys, adds, answers);
                let sink =
                    Sink::Aggregate { keys: (0..*keys).map(Expr::Register).collect(), aggregates: halved.aggregates() };
                let domains = halved.domains(domains);
                let chunks = run(sink, &domains, std::mem::take(&mut halved.answers), budget, cancelled)?;
                chunks.into_iter().map(|chunk| halved.whole(chunk)).collect()
            }
        }
    }
}

/// Runs one pipeline over rows in memory.
fn run(sink: Sink, domains: &[Domain], rows: Chunks, budget: &Budget, cancelled: &AtomicBool) -> Result<Chunks> {
    // The reservation is held until the answer exists.
    let (source, _room) = BatchSource::of_answers("the answers of several devices", domains, rows, budget)?;
    let threads =
        std::thread::available_parallelism().map_or(1, usize::from).min(crate::Source::morsels(&source)).max(1);
    let pipeline = Pipeline { source: 0, columns: (0..domains.len()).collect(), steps: Vec::new(), sink };
    let mut execution = Execution::new(Program { pipelines: vec![pipeline] }, vec![Arc::new(source)], budget.clone())?;
    cpu::run_until(&mut execution, threads, cancelled)
}

/// Groups of several devices. Sums that do not fit 64 bits are two columns: the low bits, and the
/// bits above.
struct Halved<'a> {
    keys: usize,
    adds: &'a [Add],
    /// For each column that is no key: true if it is halved.
    is_halved: Vec<bool>,
    answers: Chunks,
}

impl<'a> Halved<'a> {
    fn of(keys: usize, adds: &'a [Add], answers: Chunks) -> Self {
        let is_wide =
            |(at, add): (usize, &Add)| *add == Add::Sum && answers.iter().any(|chunk| is_wide(&chunk[keys + at]));
        let is_halved: Vec<bool> = adds.iter().enumerate().map(is_wide).collect();
        let halve = |chunk: Vec<ResultColumn>| -> Vec<ResultColumn> {
            let columns = chunk.into_iter().enumerate();
            let halved = columns.flat_map(|(at, column)| match at.checked_sub(keys).is_some_and(|at| is_halved[at]) {
                true => halves(&column),
                false => vec![column],
            });
            halved.collect()
        };
        let answers = answers.into_iter().map(halve).collect();
        Self { keys, adds, is_halved, answers }
    }

    /// Returns the aggregates of all columns but the keys.
    fn aggregates(&self) -> Vec<Aggregate> {
        let mut next = self.keys;
        let mut aggregates = Vec::with_capacity(2 * self.adds.len());
        let mut push = |of: fn(Expr) -> Aggregate| {
            aggregates.push(of(Expr::Register(next)));
            next += 1;
        };
        for (add, is_halved) in self.adds.iter().zip(&self.is_halved) {
            match add {
                Add::Count | Add::Sum => push(Aggregate::Sum),
                Add::Least => push(Aggregate::Min),
                Add::Greatest => push(Aggregate::Max),
            }
            if *is_halved {
                push(Aggregate::Sum);
            }
        }
        aggregates
    }

    fn domains(&self, whole: &[Domain]) -> Vec<Domain> {
        let (keys, others) = whole.split_at(self.keys);
        let others = others
            .iter()
            .zip(&self.is_halved)
            .flat_map(|(domain, is_halved)| std::iter::repeat_n(domain.clone(), 1 + usize::from(*is_halved)));
        keys.iter().cloned().chain(others).collect()
    }

    /// Returns a chunk of the answer in the form of a single device.
    fn whole(&self, chunk: Vec<ResultColumn>) -> Result<Vec<ResultColumn>> {
        let mut columns = chunk.into_iter();
        let mut answer: Vec<ResultColumn> = columns.by_ref().take(self.keys).collect();
        let missing = || Error::Invalid("groups of several devices lack a column".into());
        for (add, is_halved) in self.adds.iter().zip(&self.is_halved) {
            let column = columns.next().ok_or_else(missing)?;
            answer.push(match (add, is_halved) {
                (Add::Count, _) => counts(&column),
                (_, true) => joined(&column, &columns.next().ok_or_else(missing)?),
                (_, false) => column,
            });
        }
        Ok(answer)
    }
}

fn is_wide(column: &ResultColumn) -> bool {
    let ResultValues::Wide(values) = &column.values else { return false };
    let is_valid = |row: usize| column.valid.as_ref().is_none_or(|valid| valid[row]);
    values.iter().enumerate().any(|(row, value)| is_valid(row) && i64::try_from(*value).is_err())
}

/// Returns the integers of a column of sums. Those of NULLs are arbitrary.
fn integers(column: &ResultColumn) -> Vec<i128> {
    match &column.values {
        ResultValues::Int(values) => values.iter().map(|value| i128::from(*value)).collect(),
        ResultValues::Wide(values) => values.clone(),
        _ => Vec::new(),
    }
}

/// Splits sums into their low bits and the bits above. A sum of 2^63 integers of 64 bits has 63
/// bits above.
fn halves(column: &ResultColumn) -> Vec<ResultColumn> {
    let values = integers(column);
    let half = |of: &dyn Fn(i128) -> i128| ResultColumn {
        values: ResultValues::Wide(values.iter().map(|value| of(*value)).collect()),
        valid: column.valid.clone(),
    };
    vec![half(&|value| value & ((1 << LOW_BITS) - 1)), half(&|value| value >> LOW_BITS)]
}

/// Joins the halves of sums. The sum over all possible rows fits 128 bits.
fn joined(low: &ResultColumn, high: &ResultColumn) -> ResultColumn {
    let sums = integers(low).into_iter().zip(integers(high));
    let values = sums.map(|(low, high)| (high << LOW_BITS).wrapping_add(low)).collect();
    ResultColumn { values: ResultValues::Wide(values), valid: low.valid.clone() }
}

/// Converts counts, which are never NULL and fit 64 bits, since they do not exceed the number of
/// rows.
fn counts(column: &ResultColumn) -> ResultColumn {
    let values = integers(column).into_iter().map(|count| count as i64).collect();
    ResultColumn { values: ResultValues::Int(values), valid: None }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use crate::cpu::ResultValues::{Double, Int, Wide};
    use crate::ir::{Direction, Nulls};
    use crate::{Bounds, Interval};

    fn column(values: ResultValues, valid: Option<Vec<bool>>) -> ResultColumn {
        ResultColumn { values, valid }
    }

    /// Returns the merge of an aggregate of a column over these answers.
    fn added(aggregate: Aggregate, of: Domain, answers: Vec<ResultColumn>) -> ResultColumn {
        let sink = Sink::Aggregate { keys: vec![], aggregates: vec![aggregate] };
        let pipeline = Pipeline { source: 0, columns: vec![0], steps: vec![], sink };
        let program = Arc::new(Program { pipelines: vec![pipeline] });
        let shapes = crate::ir::validate(&program, &[vec![of]]).unwrap();
        let (_, merge) = parted(&program, &shapes).unwrap();
        let answers = answers.into_iter().map(|column| vec![column]).collect();
        let mut chunks = merge.run(answers, &Budget::from(1 << 20), &AtomicBool::new(false)).unwrap();
        assert_eq!(chunks.len(), 1);
        chunks.remove(0).remove(0)
    }

    fn bigints() -> Domain {
        Domain::int(Interval::new(i64::MIN.into(), i64::MAX.into()), true)
    }

    #[test]
    fn sums_of_any_size_are_exact() {
        let least = i128::from(i64::MIN);
        for parts in [
            vec![5, 7],
            vec![i128::from(i64::MAX), 1],
            vec![least << 40, least, -1, 3],
            vec![(least << 62) + 5, i128::from(i64::MAX) << 62, -7],
            vec![least * 3, -least * 3],
        ] {
            let answers = parts.iter().map(|sum| column(Wide(vec![*sum]), Some(vec![true])));
            let nothing = column(Wide(vec![1 << 100]), Some(vec![false]));
            let narrow = column(Int(vec![9]), Some(vec![true]));
            let answers: Vec<ResultColumn> = answers.chain([nothing, narrow]).collect();
            let sum = added(Aggregate::Sum(Expr::Register(0)), bigints(), answers);
            assert_eq!(integers(&sum), [parts.iter().sum::<i128>() + 9], "{parts:?}");
            assert_eq!(sum.valid, Some(vec![true]));
        }
        let nothing = || column(Int(vec![3]), Some(vec![false]));
        let sum = added(Aggregate::Sum(Expr::Register(0)), bigints(), vec![nothing(), nothing()]);
        assert_eq!(sum.valid, Some(vec![false]));
    }

    #[test]
    fn counts_stay_counts() {
        let answers = [3, 0, 4].map(|count| column(Int(vec![count]), None));
        let count = added(Aggregate::CountRows, bigints(), answers.to_vec());
        assert!(matches!(&count.values, Int(values) if *values == [7]) && count.valid.is_none(), "{count:?}");
    }

    #[test]
    fn the_least_of_doubles_is_in_their_total_order() {
        let answers = [0.0, -0.0, f64::NAN].map(|value| column(Double(vec![value]), Some(vec![true])));
        let least = added(Aggregate::Min(Expr::Register(0)), Domain::double(true), answers.to_vec());
        assert!(matches!(&least.values, Double(values) if values[0].to_bits() == (-0.0f64).to_bits()), "{least:?}");
    }

    #[test]
    fn what_has_no_parts_is_refused() {
        let register = || Expr::Register(0);
        for (aggregate, of) in [
            (Aggregate::CountDistinct(register()), bigints()),
            (Aggregate::SumDistinct(register()), bigints()),
            (Aggregate::Sum(register()), Domain::double(true)),
            (Aggregate::VariancePop(register()), Domain::double(true)),
            (Aggregate::VarianceSamp(register()), Domain::double(true)),
        ] {
            let sink = Sink::Aggregate { keys: vec![], aggregates: vec![Aggregate::CountRows, aggregate] };
            let pipeline = Pipeline { source: 0, columns: vec![0], steps: vec![], sink };
            let program = Arc::new(Program { pipelines: vec![pipeline] });
            let shapes = crate::ir::validate(&program, &[vec![of]]).unwrap();
            assert!(parted(&program, &shapes).is_err(), "{program}");
        }
    }

    #[test]
    fn keys_that_nobody_asked_for_are_there_while_they_are_needed() {
        let bounds = Bounds { min: i64::MIN.into(), max: i64::MAX.into(), type_name: "BIGINT" };
        let negated = Expr::arithmetic(crate::ArithmeticOp::Sub, Expr::int(0), Expr::Register(0), bounds);
        let key = |expr| SortKey { expr, direction: Direction::Ascending, nulls: Nulls::Last };
        let keys = vec![key(negated), key(Expr::Register(1))];
        let sink = Sink::Top { rows: 2, keys, columns: vec![Expr::Register(1)] };
        let pipeline = Pipeline { source: 0, columns: vec![0, 1], steps: vec![], sink };
        let program = Arc::new(Program { pipelines: vec![pipeline] });
        let small = || Domain::int(Interval::new(0, 99), false);
        let shapes = crate::ir::validate(&program, &[vec![small(), small()]]).unwrap();
        let (parts, merge) = parted(&program, &shapes).unwrap();
        assert!(matches!(&parts.pipelines[0].sink, Sink::Top { columns, .. } if columns.len() == 2), "{parts}");
        let answers = [([7, 8], [-3, -1]), ([5, 6], [-9, -1])];
        let answers =
            answers.map(|(values, keys)| vec![column(Int(values.into()), None), column(Int(keys.into()), None)]);
        let chunks = merge.run(answers.to_vec(), &Budget::from(1 << 20), &AtomicBool::new(false)).unwrap();
        let [chunk] = chunks.as_slice() else { panic!("{chunks:?}") };
        assert_eq!((chunk.len(), integers(&chunk[0])), (1, vec![5, 7]));
    }
}
