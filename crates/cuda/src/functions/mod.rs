//! User-defined functions in CUDA C++, compiled as kernels over columns, and called.
//!
//! Such a function can access all device memory of its process. Callers therefore run it in a
//! process of its own, on which nothing else depends. An error of the device other than a lack of
//! memory makes that process unusable ([`Called::Lost`]).

mod text;

use std::borrow::Cow;
use std::sync::Arc;

use onehop_pipeline::arrays::Element;
use text::Generated;
pub use text::Wrong;

use crate::kernels::ARGUMENT_WORDS;
use crate::queue::lose;
use crate::{Context, DeviceBuf, Error, Grid, Kernel, Nvrtc, Result, Stream};

/// Alignment of each column on the device, sufficient for vectors of any type.
const ALIGNMENT: usize = 256;
/// Maximum total of items in the arrays of a call: Arrow counts them with 32 bits.
const MOST_ITEMS: u64 = i32::MAX as u64;
/// Code of an out-of-memory error.
const OUT_OF_MEMORY: i32 = 2;

/// Compiler options. The result of a function that ends without a return value is undefined, so
/// that is an error.
const OPTIONS: [&str; 3] = ["--std=c++17", "--device-as-default-execution-space", "--diag-error=940"];

/// Arguments and result of a function.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Signature {
    /// Names, which are C++ identifiers, and kinds.
    pub arguments: Vec<(String, Kind)>,
    /// Result of one row.
    pub returns: Returns,
}

/// Kind of an argument.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Kind {
    /// One value for each row.
    Value(Element),
    /// One array for each row.
    Array(Element),
    /// A table, the same for all rows: names of columns, which are C++ identifiers, and their
    /// types.
    Table(Vec<(String, Element)>),
}

/// Result of one row.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Returns {
    /// One value.
    Value(Element),
    /// Items of an array, any number of them.
    Array(Element),
    /// Rows of these columns, any number of them.
    Rows(Vec<Element>),
}

impl Kind {
    /// Returns the number of words in a kernel's argument.
    fn words(&self) -> usize {
        match self {
            Self::Value(_) => 1,
            Self::Array(_) => 2,
            Self::Table(columns) => 1 + columns.len(),
        }
    }
}

impl Returns {
    /// Returns the type of each column.
    fn elements(&self) -> &[Element] {
        match self {
            Self::Value(element) | Self::Array(element) => std::slice::from_ref(element),
            Self::Rows(elements) => elements,
        }
    }

    /// Returns true if a row has any number of items.
    fn is_many(&self) -> bool {
        !matches!(self, Self::Value(_))
    }

    /// Returns the number of words that are not arguments: the row count, the address of the NULL
    /// flags, and each column. If rows have any number of items, there are also the addresses of
    /// the counts and of the starts.
    fn words(&self) -> usize {
        2 + self.elements().len() + if self.is_many() { 2 } else { 0 }
    }
}

impl Signature {
    fn words(&self) -> usize {
        self.returns.words() + self.arguments.iter().map(|(_, kind)| kind.words()).sum::<usize>()
    }
}

/// Value of an argument.
#[derive(Clone, Copy, Debug)]
pub enum Argument<'a> {
    /// A value for each row, one after the other.
    Values(&'a [u8]),
    /// Items of all rows, one after the other, with the start of each row's items and the end of
    /// the last.
    Arrays {
        /// Offsets in items, from 0.
        starts: &'a [u64],
        /// Bytes of the items.
        items: &'a [u8],
    },
    /// A table in device memory that lives until the call has returned.
    Table {
        /// Number of rows.
        rows: u64,
        /// Device address of each column.
        columns: &'a [u64],
    },
}

/// Results of rows.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Values {
    /// Values of each column, one after the other, or all items. Those of NULL rows are undefined.
    pub columns: Vec<Vec<u8>>,
    /// NULL flag of each row.
    pub nulls: Vec<u8>,
    /// Start of each row's items, and the end of the last; empty if rows have single values.
    pub starts: Vec<u64>,
}

/// Failure of a call.
#[derive(Debug)]
pub enum Called {
    /// The device had too little memory: another call may succeed.
    Failed(Error),
    /// The function violated its contract.
    Refused(String),
    /// This process cannot use the device any more.
    Lost(Error),
}

impl From<Error> for Called {
    fn from(e: Error) -> Self {
        match e {
            Error::Cuda { code: OUT_OF_MEMORY, .. } => Self::Failed(e),
            e => Self::Lost(e),
        }
    }
}

/// A compiled function. Calls run one after the other.
#[derive(Debug)]
pub struct Function {
    signature: Signature,
    // Declared before `kernel`, so that the stream is dropped before the code that was launched in
    // it.
    stream: Stream,
    kernel: Kernel,
    /// Memory for all columns of a call, kept for the next.
    memory: Option<DeviceBuf>,
    /// Memory for the items of arrays, likewise.
    items: Option<DeviceBuf>,
}

/// Compiles a source to an image for devices of a compute capability. No device is needed.
///
/// # Errors
/// Returns the error in the source.
pub fn compile(
    nvrtc: &Nvrtc,
    compute: (i32, i32),
    source: &str,
    signature: &Signature,
) -> std::result::Result<Vec<u8>, Wrong> {
    if signature.words() > ARGUMENT_WORDS {
        let what = format!(
            "it has too many arguments: values, arrays and columns of tables are {ARGUMENT_WORDS} words at most"
        );
        return Err(Wrong { what, line: None });
    }
    let Generated { text, headers } = text::generate(source, signature)?;
    let mut folders = Vec::new();
    for (line, header) in headers {
        let found = Nvrtc::folders_of(header).ok_or_else(|| Wrong {
            what: format!("the header {header} is in no folder of the CUDA toolkit's: CUDA_PATH says where that is"),
            line: Some(line as u64),
        })?;
        folders.extend(found.iter().map(|folder| format!("--include-path={}", folder.display())));
    }
    let options: Vec<&str> = OPTIONS.into_iter().chain(folders.iter().map(String::as_str)).collect();
    nvrtc.compile_with("onehop", &text, compute, &options).map_err(|e| match e {
        Error::Compile { log, .. } => text::said(&log),
        other => Wrong { what: other.to_string(), line: None },
    })
}

impl Function {
    /// Compiles a source for a device.
    ///
    /// # Errors
    /// Returns the error in the source, or that of the device.
    pub fn new(
        context: &Arc<Context>,
        nvrtc: &Nvrtc,
        source: &str,
        signature: Signature,
    ) -> std::result::Result<Self, Wrong> {
        let image = compile(nvrtc, context.device().compute, source, &signature)?;
        let of_device = |e: Error| Wrong { what: e.to_string(), line: None };
        let kernel = Kernel::load(context, &image, text::KERNEL).map_err(of_device)?;
        Ok(Self { signature, kernel, stream: Stream::new(context).map_err(of_device)?, memory: None, items: None })
    }

    /// Returns the arguments and the result of the function.
    pub fn signature(&self) -> &Signature {
        &self.signature
    }

    /// Computes the results of rows.
    ///
    /// # Errors
    /// Returns the error of the device, or an error if arrays are too long, or differ between the
    /// two runs.
    ///
    /// # Panics
    /// Panics if the arguments do not match the signature, or have other lengths.
    pub fn call(&mut self, arguments: &[Argument<'_>], rows: usize) -> std::result::Result<Values, Called> {
        self.check(arguments, rows);
        self.run(arguments, rows).inspect_err(|e| {
            if let Called::Lost(_) = e {
                // Pending operations may still access the memory, so it is leaked.
                self.memory.take().into_iter().chain(self.items.take()).for_each(lose);
            }
        })
    }

    fn check(&self, arguments: &[Argument<'_>], rows: usize) {
        assert_eq!(arguments.len(), self.signature.arguments.len(), "arguments of another function");
        for (argument, (name, kind)) in arguments.iter().zip(&self.signature.arguments) {
            let is_as_told = match (argument, kind) {
                (Argument::Values(values), Kind::Value(element)) => values.len() == rows * element.bytes(),
                (Argument::Arrays { starts, items }, Kind::Array(element)) => {
                    let is_whole = starts.len() == rows + 1 && starts.first() == Some(&0) && starts.is_sorted();
                    is_whole && starts.last().is_some_and(|end| *end as usize * element.bytes() == items.len())
                }
                (Argument::Table { columns, .. }, Kind::Table(wanted)) => columns.len() == wanted.len(),
                _ => false,
            };
            assert!(is_as_told, "{name} has other values");
        }
    }

    fn run<'a>(&mut self, arguments: &[Argument<'a>], rows: usize) -> std::result::Result<Values, Called> {
        let (elements, is_many) = (self.signature.returns.elements(), self.signature.returns.is_many());
        let columns = vec![Vec::new(); elements.len()];
        let mut got = Values { columns, nulls: vec![0; rows], starts: Vec::new() };
        got.starts.extend(is_many.then_some(0));
        if rows == 0 {
            return Ok(got);
        }
        // For each row: its value, or its number of items. The NULL flags lie apart.
        let first_bytes = if is_many { size_of::<u64>() } else { elements.iter().map(|element| element.bytes()).sum() };
        let mut first = vec![0; rows * first_bytes];
        let mut parts = Parts::default();
        let (nulls_at, first_at) = (parts.add(got.nulls.len()), parts.add(first.len()));
        let (mut inputs, mut of_arguments) = (Vec::new(), Vec::new());
        let mut bring = |bytes: Cow<'a, [u8]>| {
            let place = parts.add(bytes.len());
            inputs.push((place, bytes));
            Word::At(place)
        };
        for argument in arguments {
            match *argument {
                Argument::Values(values) => of_arguments.push(bring(values.into())),
                Argument::Arrays { starts, items } => {
                    of_arguments.extend([bring(bytes_of(starts).into()), bring(items.into())]);
                }
                Argument::Table { rows, columns } => {
                    of_arguments.extend([rows].iter().chain(columns).map(|word| Word::Is(*word)));
                }
            }
        }
        let memory = of_size(&mut self.memory, self.stream.context(), parts.bytes)?;
        for (place, input) in &inputs {
            memory.copy_from(*place, input)?;
        }
        let base = memory.address();
        let of_arguments: Vec<u64> = of_arguments.iter().map(|word| word.within(base)).collect();
        let (nulls, first_of) = (base + nulls_at as u64, base + first_at as u64);
        let grid = Grid::of(rows as u64);
        let launch = |own: &[u64]| -> Result<()> {
            let mut words = [own, &of_arguments].concat();
            words.resize(ARGUMENT_WORDS, 0);
            // SAFETY: the words are laid out as in `text::generate`, each with the address of as
            // many values as there are rows, or items. The memory lives until the stream has
            // finished, which is waited for, and tables do by this function's contract. A user's
            // source can access any device memory of this process, as the head of this file says.
            unsafe { self.kernel.launch_words(&self.stream, grid, 0, &words)? };
            self.stream.synchronize()
        };
        if !is_many {
            launch(&[rows as u64, nulls, first_of])?;
            memory.copy_to(nulls_at, &mut got.nulls)?;
            memory.copy_to(first_at, &mut first)?;
            return Ok(Values { columns: vec![first], ..got });
        }
        // Runs the function into columns at these addresses, from the start of each row's items.
        // Without starts, it only counts the items.
        let launch_into =
            |columns: &[u64], starts: u64| launch(&[&[rows as u64, nulls], columns, &[first_of, starts]].concat());
        launch_into(&vec![0; elements.len()], 0)?;
        memory.copy_to(first_at, &mut first)?;
        for count in words_of(&first) {
            let end = got.starts.last().copied().unwrap_or(0).saturating_add(count);
            if end > MOST_ITEMS {
                let rows = got.starts.len();
                return Err(Called::Refused(format!("the arrays of {rows} rows have more than {MOST_ITEMS} items")));
            }
            got.starts.push(end);
        }
        let end = got.starts.last().copied().unwrap_or(0) as usize;
        let starts = bytes_of(&got.starts);
        let mut parts = Parts::default();
        let starts_at = parts.add(starts.len());
        let items_at: Vec<usize> = elements.iter().map(|element| parts.add(end * element.bytes())).collect();
        let items = of_size(&mut self.items, self.stream.context(), parts.bytes)?;
        items.copy_from(starts_at, &starts)?;
        let within = |place: usize| items.address() + place as u64;
        launch_into(&items_at.iter().map(|place| within(*place)).collect::<Vec<_>>(), within(starts_at))?;
        let mut again = vec![0; first.len()];
        memory.copy_to(first_at, &mut again)?;
        if again != first {
            return Err(Called::Refused(
                "it runs twice, to count its items and to have them written, and had others the second time".into(),
            ));
        }
        memory.copy_to(nulls_at, &mut got.nulls)?;
        for ((column, element), place) in got.columns.iter_mut().zip(elements).zip(items_at) {
            *column = vec![0; end * element.bytes()];
            items.copy_to(place, column)?;
        }
        Ok(got)
    }
}

/// Allocator for consecutive parts of one memory block, each aligned for vectors of any type.
#[derive(Default)]
struct Parts {
    bytes: usize,
}

impl Parts {
    /// Returns the offset of the next part.
    fn add(&mut self, bytes: usize) -> usize {
        let place = self.bytes;
        self.bytes += bytes.next_multiple_of(ALIGNMENT);
        place
    }
}

/// A word of a kernel's argument.
enum Word {
    /// Offset of a part in the memory of the call, passed as an address.
    At(usize),
    /// A word that is passed unchanged.
    Is(u64),
}

impl Word {
    fn within(&self, base: u64) -> u64 {
        match self {
            Self::At(place) => base + *place as u64,
            Self::Is(word) => *word,
        }
    }
}

/// Returns the kept memory, or allocates more if it is too small.
fn of_size<'a>(kept: &'a mut Option<DeviceBuf>, context: &Arc<Context>, bytes: usize) -> Result<&'a mut DeviceBuf> {
    let large_enough = kept.take().filter(|memory| memory.len() >= bytes);
    let memory = match large_enough {
        Some(memory) => memory,
        None => DeviceBuf::new(context, bytes.max(1))?,
    };
    Ok(kept.insert(memory))
}

fn bytes_of(words: &[u64]) -> Vec<u8> {
    words.iter().flat_map(|word| word.to_ne_bytes()).collect()
}

fn words_of(bytes: &[u8]) -> impl Iterator<Item = u64> {
    bytes.chunks_exact(size_of::<u64>()).map(|word| u64::from_ne_bytes(word.try_into().unwrap_or_default()))
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use crate::fake;

    fn function(source: &str, arguments: &[(&str, Element)], returns: Element) -> std::result::Result<Function, Wrong> {
        let arguments = arguments.iter().map(|(name, element)| ((*name).into(), Kind::Value(*element))).collect();
        of_kinds(source, arguments, Returns::Value(returns))
    }

    fn of_kinds(
        source: &str,
        arguments: Vec<(String, Kind)>,
        returns: Returns,
    ) -> std::result::Result<Function, Wrong> {
        Function::new(&fake::context(), &fake::nvrtc(), source, Signature { arguments, returns })
    }

    fn call(function: &mut Function, columns: &[&[u8]], rows: usize) -> std::result::Result<Values, Called> {
        let arguments: Vec<Argument<'_>> = columns.iter().map(|column| Argument::Values(column)).collect();
        function.call(&arguments, rows)
    }

    fn bytes<T: Copy, const N: usize>(of: &[T], to: impl Fn(T) -> [u8; N]) -> Vec<u8> {
        of.iter().flat_map(|value| to(*value)).collect()
    }

    #[test]
    fn rows_have_values_and_nulls() {
        let source =
            "#decl\ndouble square(double x) { return x * x; }\n#begin\nis_null = b == 3;\nreturn square(a) + b;\n#end";
        let mut function =
            function(source, &[("a", Element::Float64), ("b", Element::Int32)], Element::Float64).unwrap();
        for rows in [0usize, 1, 5, 1000] {
            let a: Vec<f64> = (0..rows).map(|row| row as f64 / 2.0).collect();
            let b: Vec<i32> = (0..rows as i32).collect();
            let columns = [&bytes(&a, f64::to_ne_bytes)[..], &bytes(&b, i32::to_ne_bytes)];
            let got = call(&mut function, &columns, rows).unwrap();
            let expected: Vec<f64> = (0..rows).map(|row| a[row] * a[row] + f64::from(b[row])).collect();
            assert_eq!(got.columns, [bytes(&expected, f64::to_ne_bytes)]);
            assert_eq!(got.nulls, (0..rows).map(|row| u8::from(row == 3)).collect::<Vec<u8>>());
        }
    }

    #[test]
    fn every_type_comes_through() {
        use Element::*;
        for kind in [Bool, Int8, Int16, Int32, Int64, UInt8, UInt16, UInt32, UInt64, Float32, Float64] {
            let mut same = function("return x;", &[("x", kind)], kind).unwrap();
            // Booleans are 0 or 1.
            let column: Vec<u8> = (0..3 * kind.bytes()).map(|n| (n % 2) as u8).collect();
            assert_eq!(call(&mut same, &[&column], 3).unwrap().columns, [column], "{kind:?}");
        }
        let mut one = function("return 1;", &[], Int16).unwrap();
        assert_eq!(call(&mut one, &[], 2).unwrap().columns, [bytes(&[1i16, 1], i16::to_ne_bytes)]);
    }

    #[test]
    fn arrays_go_in_and_come_out() {
        let kinds = || vec![("x".to_string(), Kind::Array(Element::Int32)), ("n".into(), Kind::Value(Element::Int32))];
        let source = "is_null = n < 0;\nfor (int i = 0; i < n; ++i)\n  for (int item : x) result.push(item * (i + 1));";
        let mut repeated = of_kinds(source, kinds(), Returns::Array(Element::Int32)).unwrap();
        let ints = |of: &[i32]| bytes(of, |value| value.to_ne_bytes());
        for (rows, n) in [(3usize, [2, 0, 1]), (2, [-1, 3, 0]), (0, [0; 3])] {
            let (starts, items) = (&[0u64, 2, 3, 3][..=rows], [7, 8, 9]);
            let items = &items[..starts[rows] as usize];
            let arguments = [Argument::Arrays { starts, items: &ints(items) }, Argument::Values(&ints(&n[..rows]))];
            let got = repeated.call(&arguments, rows).unwrap();
            let (mut expected, mut places) = (Vec::new(), vec![0]);
            for row in 0..rows {
                let of_row = &items[starts[row] as usize..starts[row + 1] as usize];
                expected.extend((1..=n[row]).flat_map(|by| of_row.iter().map(move |item| item * by)));
                places.push(expected.len() as u64);
            }
            assert_eq!((got.columns, got.starts), (vec![ints(&expected)], places));
            assert_eq!(got.nulls, n[..rows].iter().map(|n| u8::from(*n < 0)).collect::<Vec<_>>());
        }
        let mut sum = of_kinds(
            "long long s = 0;\nfor (unsigned long long i = 0; i < x.size; ++i) s += x[i];\nreturn s + n;",
            kinds(),
            Returns::Value(Element::Int64),
        );
        let arguments = [Argument::Arrays { starts: &[0, 3], items: &ints(&[1, 2, 3]) }, Argument::Values(&ints(&[4]))];
        let got = sum.as_mut().unwrap().call(&arguments, 1).unwrap();
        assert_eq!((got.columns, got.starts), (vec![10i64.to_ne_bytes().to_vec()], vec![]));
    }

    #[test]
    fn rows_have_rows() {
        use Element::{Float64, Int8, Int32, Int64};
        let source = "is_null = n < 0;\nfor (int i = 0; i < n; ++i) result.push(i * 10000000000ll, i % 2, i / 4.0);";
        let arguments = vec![("n".to_string(), Kind::Value(Int32))];
        let mut of_n = of_kinds(source, arguments, Returns::Rows(vec![Int64, Int8, Float64])).unwrap();
        for wanted in [vec![3i32, 0, -5, 1000, 1], vec![-1], vec![]] {
            let got = of_n.call(&[Argument::Values(&bytes(&wanted, i32::to_ne_bytes))], wanted.len()).unwrap();
            let items: Vec<i64> = wanted.iter().flat_map(|n| 0..i64::from(*n)).collect();
            let columns = [
                bytes(&items, |i| (i * 10_000_000_000).to_ne_bytes()),
                bytes(&items, |i| [(i % 2) as u8]),
                bytes(&items, |i| (i as f64 / 4.0).to_ne_bytes()),
            ];
            assert_eq!(got.columns, columns);
            let ends = wanted.iter().scan(0, |end, n| {
                *end += u64::from(n.max(&0).unsigned_abs());
                Some(*end)
            });
            assert_eq!(got.starts, [0].into_iter().chain(ends).collect::<Vec<_>>());
            assert_eq!(got.nulls, wanted.iter().map(|n| u8::from(*n < 0)).collect::<Vec<_>>());
        }
    }

    #[test]
    fn tables_are_where_they_are() {
        let columns = vec![("key".to_string(), Element::Int64), ("weight".into(), Element::Float64)];
        let arguments = vec![("t".to_string(), Kind::Table(columns)), ("k".into(), Kind::Value(Element::Int64))];
        let source = "double s = 0;\nfor (unsigned long long i = 0; i < t.rows; ++i)\n  if (t.key[i] == k) s += t.weight[i];\nreturn s;";
        let context = fake::context();
        let signature = Signature { arguments, returns: Returns::Value(Element::Float64) };
        let mut of_key = Function::new(&context, &fake::nvrtc(), source, signature).unwrap();
        let brought = |of: &[u8]| {
            let mut memory = DeviceBuf::new(&context, of.len()).unwrap();
            memory.copy_from(0, of).unwrap();
            memory
        };
        let keys = brought(&bytes(&[1i64, 2, 1], i64::to_ne_bytes));
        let weights = brought(&bytes(&[0.5f64, 4.0, 2.0], f64::to_ne_bytes));
        let columns = [keys.address(), weights.address()];
        let wanted = bytes(&[1i64, 2, 3], i64::to_ne_bytes);
        let got = of_key.call(&[Argument::Table { rows: 3, columns: &columns }, Argument::Values(&wanted)], 3).unwrap();
        assert_eq!(got.columns, [bytes(&[2.5f64, 4.0, 0.0], f64::to_ne_bytes)]);
    }

    #[test]
    fn items_that_change_are_refused() {
        let source = "#decl\nint calls = 0;\n#begin\nfor (int i = 0; i < ++calls; i += 2) result.push(i);\n#end";
        let mut other = of_kinds(source, Vec::new(), Returns::Array(Element::Int32)).unwrap();
        let refused = other.call(&[], 3);
        assert!(matches!(&refused, Err(Called::Refused(why)) if why.contains("runs twice")), "{refused:?}");
    }

    #[test]
    fn lines_of_errors_are_those_of_the_text() {
        let wrong =
            function("double y = x;\n\nreturn y + z;", &[("x", Element::Float64)], Element::Float64).unwrap_err();
        assert!(wrong.line == Some(3) && wrong.what.contains('z'), "{wrong:?}");
        let wrong = function("#decl\nint f( { }\n#begin\nreturn f();\n#end", &[], Element::Int32).unwrap_err();
        assert_eq!(wrong.line, Some(2), "{wrong:?}");
        let many: Vec<(String, Element)> = (0..510).map(|n| (format!("a{n}"), Element::Int8)).collect();
        let many: Vec<(&str, Element)> = many.iter().map(|(name, kind)| (name.as_str(), *kind)).collect();
        assert!(function("return 1;", &many, Element::Int8).unwrap_err().what.contains("arguments"));
    }

    #[test]
    fn a_lack_of_memory_is_told_from_a_loss() {
        use crate::fake::{Answer, Call, Fault, Machine};
        let (machine, context) = Machine::start();
        let arguments = vec![("x".into(), Kind::Value(Element::Int8))];
        let signature = Signature { arguments, returns: Returns::Value(Element::Int8) };
        let mut same = Function::new(&context, &fake::nvrtc(), "return x;", signature).unwrap();
        machine.set_faults(&[Fault { call: Call::Allocate, at: 0, lasts: false, answer: Answer::Code(2) }]);
        assert!(matches!(call(&mut same, &[&[7]], 1), Err(Called::Failed(_))));
        assert_eq!(call(&mut same, &[&[7]], 1).unwrap().columns, [[7]]);
        machine.set_faults(&[Fault { call: Call::Synchronize, at: 0, lasts: true, answer: Answer::Code(700) }]);
        assert!(matches!(call(&mut same, &[&[7]], 1), Err(Called::Lost(_))));
        machine.set_faults(&[]);
    }
}
