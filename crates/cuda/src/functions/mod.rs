//! Functions that somebody has written in CUDA C++, compiled as kernels over columns, and called.
//!
//! What such a function does to the device's memory, it does to that of its process: whoever runs one does so in a process of
//! its own, which nothing else depends on. An error of the device other than a lack of memory leaves it of no use
//! ([`Called::Lost`]).

mod text;

use std::sync::Arc;

use onehop_pipeline::arrays::Element;
pub use text::Wrong;

use crate::kernels::ARGUMENT_WORDS;
use crate::queue::lose;
use crate::{Context, DeviceBuf, Error, Grid, Kernel, Nvrtc, Result, Stream};

/// Where each column begins on the device: as vectors of any type may.
const ALIGNMENT: usize = 256;
/// Words of a kernel's argument that are not columns.
const OWN_WORDS: usize = 3;
/// The code of a lack of memory.
const OUT_OF_MEMORY: i32 = 2;

/// What the compiler is told. Whoever falls out of a function without a value has undefined what comes of it: that is an error.
const OPTIONS: [&str; 3] = ["--std=c++17", "--device-as-default-execution-space", "--diag-error=940"];

/// What a function takes and returns.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Signature {
    /// Names and types.
    pub arguments: Vec<(String, Element)>,
    /// Of the value of a row.
    pub returns: Element,
}

/// Values of rows.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Values {
    /// One behind the other; those of rows that are NULL mean nothing.
    pub values: Vec<u8>,
    /// Of each row, whether it is NULL.
    pub nulls: Vec<u8>,
}

/// What has come of a call that failed.
#[derive(Debug)]
pub enum Called {
    /// The device had not enough memory: another call may have.
    Failed(Error),
    /// Nothing can be done on the device any more by this process.
    Lost(Error),
}

/// A compiled function. Calls are made one after the other.
#[derive(Debug)]
pub struct Function {
    signature: Signature,
    // Before what is launched in it: the stream is waited for when it is dropped.
    stream: Stream,
    kernel: Kernel,
    /// All columns of a call, kept for the next.
    memory: Option<DeviceBuf>,
}

/// Compiles a text to an image for devices of a compute capability: also where there is no device.
///
/// # Errors
/// What is wrong with the text.
pub fn compile(
    nvrtc: &Nvrtc,
    compute: (i32, i32),
    source: &str,
    signature: &Signature,
) -> std::result::Result<Vec<u8>, Wrong> {
    if signature.arguments.len() + OWN_WORDS > ARGUMENT_WORDS {
        return Err(Wrong { what: format!("it has more than {} arguments", ARGUMENT_WORDS - OWN_WORDS), line: None });
    }
    let text = text::generate(source, signature)?;
    nvrtc.compile_with("onehop", &text, compute, &OPTIONS).map_err(|e| match e {
        Error::Compile { log, .. } => text::said(&log),
        other => Wrong { what: other.to_string(), line: None },
    })
}

impl Function {
    /// Compiles a text for a device.
    ///
    /// # Errors
    /// What is wrong with the text, or with the device.
    pub fn new(
        context: &Arc<Context>,
        nvrtc: &Nvrtc,
        source: &str,
        signature: Signature,
    ) -> std::result::Result<Self, Wrong> {
        let image = compile(nvrtc, context.device().compute, source, &signature)?;
        let of_device = |e: Error| Wrong { what: e.to_string(), line: None };
        let kernel = Kernel::load(context, &image, text::KERNEL).map_err(of_device)?;
        Ok(Self { signature, kernel, stream: Stream::new(context).map_err(of_device)?, memory: None })
    }

    /// What it takes and returns.
    pub fn signature(&self) -> &Signature {
        &self.signature
    }

    /// Values of rows, of which `columns` has the arguments' bytes.
    ///
    /// # Errors
    /// Those of the device.
    ///
    /// # Panics
    /// If there are other columns, or columns of other lengths.
    pub fn call(&mut self, columns: &[&[u8]], rows: usize) -> std::result::Result<Values, Called> {
        assert_eq!(columns.len(), self.signature.arguments.len(), "columns of another function");
        for (column, (name, kind)) in columns.iter().zip(&self.signature.arguments) {
            assert_eq!(column.len(), rows * kind.bytes(), "{name} has other rows");
        }
        self.run(columns, rows).map_err(|e| match e {
            Error::Cuda { code: OUT_OF_MEMORY, .. } => Called::Failed(e),
            e => {
                // Nobody knows what still touches it.
                if let Some(memory) = self.memory.take() {
                    lose(memory);
                }
                Called::Lost(e)
            }
        })
    }

    fn run(&mut self, columns: &[&[u8]], rows: usize) -> Result<Values> {
        let mut values = Values { values: vec![0; rows * self.signature.returns.bytes()], nulls: vec![0; rows] };
        if rows == 0 {
            return Ok(values);
        }
        let lengths =
            [values.nulls.len(), values.values.len()].into_iter().chain(columns.iter().map(|column| column.len()));
        let (mut bytes, mut places) = (0, Vec::new());
        for length in lengths {
            places.push(bytes);
            bytes += length.next_multiple_of(ALIGNMENT);
        }
        if self.memory.as_ref().is_none_or(|memory| memory.len() < bytes) {
            self.memory = None;
            self.memory = Some(DeviceBuf::new(self.stream.context(), bytes)?);
        }
        let Some(memory) = &mut self.memory else { return Ok(values) };
        for (column, place) in columns.iter().zip(&places[2..]) {
            memory.copy_from(*place, column)?;
        }
        let mut words = vec![rows as u64];
        words.extend(places.iter().map(|place| memory.address() + *place as u64));
        words.resize(ARGUMENT_WORDS, 0);
        // SAFETY: the words are laid out as `text::generate` has them, each with the address of as many values as there are
        // rows; the memory lives until the stream is through, which is waited for. What somebody's text does beyond that, it
        // does to the device's memory of this process, as the head of this file says.
        unsafe { self.kernel.launch_words(&self.stream, Grid::of(rows as u64), 0, &words)? };
        self.stream.synchronize()?;
        memory.copy_to(places[0], &mut values.nulls)?;
        memory.copy_to(places[1], &mut values.values)?;
        Ok(values)
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use crate::fake;

    fn function(source: &str, arguments: &[(&str, Element)], returns: Element) -> std::result::Result<Function, Wrong> {
        let arguments = arguments.iter().map(|(name, kind)| ((*name).into(), *kind)).collect();
        Function::new(&fake::context(), &fake::nvrtc(), source, Signature { arguments, returns })
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
            let got = function.call(&[&bytes(&a, f64::to_ne_bytes), &bytes(&b, i32::to_ne_bytes)], rows).unwrap();
            let expected: Vec<f64> = (0..rows).map(|row| a[row] * a[row] + f64::from(b[row])).collect();
            assert_eq!(got.values, bytes(&expected, f64::to_ne_bytes));
            assert_eq!(got.nulls, (0..rows).map(|row| u8::from(row == 3)).collect::<Vec<u8>>());
        }
    }

    #[test]
    fn every_type_comes_through() {
        use Element::*;
        for kind in [Bool, Int8, Int16, Int32, Int64, UInt8, UInt16, UInt32, UInt64, Float32, Float64] {
            let mut same = function("return x;", &[("x", kind)], kind).unwrap();
            // Truth values are 0 or 1.
            let column: Vec<u8> = (0..3 * kind.bytes()).map(|n| (n % 2) as u8).collect();
            assert_eq!(same.call(&[&column], 3).unwrap().values, column, "{kind:?}");
        }
        let mut one = function("return 1;", &[], Int16).unwrap();
        assert_eq!(one.call(&[], 2).unwrap().values, bytes(&[1i16, 1], i16::to_ne_bytes));
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
        let signature = Signature { arguments: vec![("x".into(), Element::Int8)], returns: Element::Int8 };
        let mut same = Function::new(&context, &fake::nvrtc(), "return x;", signature).unwrap();
        machine.set_faults(&[Fault { call: Call::Allocate, at: 0, lasts: false, answer: Answer::Code(2) }]);
        assert!(matches!(same.call(&[&[7]], 1), Err(Called::Failed(_))));
        assert_eq!(same.call(&[&[7]], 1).unwrap().values, [7]);
        machine.set_faults(&[Fault { call: Call::Synchronize, at: 0, lasts: true, answer: Answer::Code(700) }]);
        assert!(matches!(same.call(&[&[7]], 1), Err(Called::Lost(_))));
        machine.set_faults(&[]);
    }
}
