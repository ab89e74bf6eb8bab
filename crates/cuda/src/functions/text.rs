//! Generates a kernel over columns from a user-defined function of one row in CUDA C++.
//!
//! ```text
//! #library curand       a device library, included by its header
//! #decl                 functions and constants, at file scope
//! #begin                the body of a function of one row, whose parameters are the arguments
//! #end
//! ```
//! A source without sections is a body. In it `is_null` is a `bool&`: setting it makes the row
//! NULL. Lines keep their numbers, so that compiler messages refer to the lines of the source.
//!
//! An array argument is an `onehop_array`. A table argument is a struct with `rows` and a pointer
//! for each column. A function that returns an array pushes its items to `result`. One that returns
//! rows pushes the values of all columns at once. A first run, in which the pushed values are
//! discarded, counts them.

use std::fmt::Write as _;

use onehop_pipeline::arrays::Element;

use super::{Kind, Returns, Signature};

/// File name of the source in compiler messages.
const FILE: &str = "function";
/// Name of the kernel.
pub(super) const KERNEL: &std::ffi::CStr = c"onehop_function";

/// An error in a source, and its line if that is known.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Wrong {
    /// Message for the user.
    pub what: String,
    /// Line number, from 1.
    pub line: Option<u64>,
}

impl Wrong {
    fn at(line: usize, what: impl Into<String>) -> Self {
        Self { what: what.into(), line: Some(line as u64) }
    }
}

/// A part of a source, and the number of its first line.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Part {
    line: usize,
    text: String,
}

#[derive(Debug, PartialEq, Eq)]
struct Sections {
    /// Libraries, with the line of each request.
    libraries: Vec<(usize, &'static Library)>,
    declarations: Part,
    body: Part,
}

/// Device library that consists of a header alone.
#[derive(Debug, PartialEq, Eq)]
struct Library {
    name: &'static str,
    header: &'static str,
}

/// Device libraries of NVIDIA's toolkit. All others are called by the host, and a function has no
/// host code.
const LIBRARIES: [Library; 5] = [
    Library { name: "cooperative_groups", header: "cooperative_groups.h" },
    Library { name: "cub", header: "cub/cub.cuh" },
    Library { name: "cuda_fp16", header: "cuda_fp16.h" },
    Library { name: "curand", header: "curand_kernel.h" },
    Library { name: "libcudacxx", header: "cuda/std/version" },
];

/// Returns the section that a line begins.
fn marker(line: &str) -> Option<(&str, &str)> {
    let words = line.trim().strip_prefix('#')?;
    let (word, rest) = words.split_once(char::is_whitespace).unwrap_or((words, ""));
    ["decl", "begin", "end", "library"].contains(&word).then_some((word, rest.trim()))
}

impl Sections {
    fn of(source: &str) -> Result<Self, Wrong> {
        if source.lines().all(|line| marker(line).is_none()) {
            let body = Part { line: 1, text: source.into() };
            return Ok(Self { libraries: Vec::new(), declarations: Part::default(), body });
        }
        let mut libraries = Vec::new();
        let (mut declarations, mut body): (Option<Part>, Option<Part>) = (None, None);
        // Current section, and the line where it began.
        let mut within: Option<(&str, usize)> = None;
        for (number, line) in source.lines().enumerate().map(|(place, line)| (place + 1, line)) {
            match (marker(line), within) {
                (Some(("library", name)), None | Some(("decl", _))) if body.is_none() => {
                    let library = LIBRARIES.iter().find(|library| library.name == name).ok_or_else(|| {
                        let known = LIBRARIES.iter().map(|library| library.name).collect::<Vec<_>>().join(", ");
                        let why = "functions run on the device alone, and no library of the host's can be linked to them; \
                                   those of the device are";
                        Wrong::at(number, format!("#library {name}: {why} {known}"))
                    })?;
                    libraries.push((number, library));
                    if let Some(("decl", _)) = within {
                        // Lines keep their numbers.
                        declarations.get_or_insert_default().text.push('\n');
                    }
                }
                (Some(("decl", _)), None) if declarations.is_none() => {
                    declarations = Some(Part { line: number + 1, text: String::new() });
                    within = Some(("decl", number));
                }
                (Some(("begin", _)), None | Some(("decl", _))) if body.is_none() => {
                    body = Some(Part { line: number + 1, text: String::new() });
                    within = Some(("begin", number));
                }
                (Some(("end", _)), Some(_)) => within = None,
                (Some((word, _)), _) => return Err(Wrong::at(number, format!("#{word} has no place here"))),
                (None, Some((section, _))) => {
                    let part = if section == "decl" { &mut declarations } else { &mut body };
                    let text = &mut part.get_or_insert_default().text;
                    text.push_str(line);
                    text.push('\n');
                }
                (None, None) if line.trim().is_empty() => {}
                (None, None) => return Err(Wrong::at(number, "this is in no section: #decl and #begin begin one")),
            }
        }
        match (body, within) {
            (_, Some((section @ "begin", line))) => Err(Wrong::at(line, format!("#{section} has no #end"))),
            (None, _) => Err(Wrong { what: "it has no #begin".into(), line: None }),
            (Some(body), _) => Ok(Self { libraries, declarations: declarations.unwrap_or_default(), body }),
        }
    }
}

impl Part {
    /// Appends the part, with a directive that keeps the line numbers of the source.
    fn write(&self, to: &mut String) {
        if !self.text.is_empty() {
            let _ = writeln!(to, "#line {} \"{FILE}\"\n{}", self.line, self.text.trim_end_matches('\n'));
        }
    }
}

/// Returns the name of a type in CUDA C++.
fn name_of(element: Element) -> &'static str {
    match element {
        Element::Bool => "bool",
        Element::Int8 => "signed char",
        Element::Int16 => "short",
        Element::Int32 => "int",
        Element::Int64 => "long long",
        Element::UInt8 => "unsigned char",
        Element::UInt16 => "unsigned short",
        Element::UInt32 => "unsigned",
        Element::UInt64 => "unsigned long long",
        // No column has this type.
        Element::Float16 => "__half",
        Element::Float32 => "float",
        Element::Float64 => "double",
    }
}

/// Generated source.
#[derive(Debug)]
pub(super) struct Generated {
    pub text: String,
    /// Included headers of the toolkit, with the line of the function that requests each.
    pub headers: Vec<(usize, &'static str)>,
}

/// Generates the source of a kernel over rows.
///
/// # Errors
/// Returns an error if sections are malformed, or a library does not exist for devices.
pub(super) fn generate(source: &str, signature: &Signature) -> Result<Generated, Wrong> {
    let sections = Sections::of(source)?;
    if sections.body.text.trim().is_empty() {
        return Err(Wrong { what: "it has no text".into(), line: None });
    }
    let arguments = |of: &dyn Fn(usize, &str, &Kind) -> String| -> String {
        let each = signature.arguments.iter().enumerate();
        each.map(|(place, (name, kind))| of(place, name, kind)).collect()
    };
    let mut text = String::from(
        "#ifndef KERNEL // else the host's\n\
         #define KERNEL(name, Args) extern \"C\" __global__ void name(const Args args)\n\
         #endif\n",
    );
    for (line, library) in &sections.libraries {
        let _ = writeln!(text, "#line {line} \"{FILE}\"\n#include <{}>", library.header);
    }
    text += "#line 1 \"onehop\"\n";
    text += ARRAYS;
    text += &arguments(&|_, name, kind| match kind {
        Kind::Table(columns) => table(name, columns),
        Kind::Value(_) | Kind::Array(_) => String::new(),
    });
    let returned = signature.returns.elements();
    if signature.returns.is_many() {
        text += &result(returned);
    }
    sections.declarations.write(&mut text);
    let parameters = arguments(&|_, name, kind| match kind {
        Kind::Value(element) => format!("const {} {name}, ", name_of(*element)),
        Kind::Array(element) => format!("const onehop_array<{}> {name}, ", name_of(*element)),
        Kind::Table(_) => format!("const onehop_table_{name}& {name}, "),
    });
    let (returns, result) = match &signature.returns {
        Returns::Value(element) => (name_of(*element), ""),
        Returns::Array(_) | Returns::Rows(_) => ("void", "onehop_result& result, "),
    };
    // Numbered as the line after the declarations: if these are not closed, the compiler reports it
    // here.
    let _ = writeln!(text, "__device__ {returns} onehop_row({parameters}{result}bool& is_null) {{");
    sections.body.write(&mut text);
    // In the order in which `Function::run` lays out the words.
    let fields = arguments(&|place, name, kind| match kind {
        Kind::Value(element) => format!("    const {}* a{place};\n", name_of(*element)),
        Kind::Array(element) => {
            format!("    const unsigned long long* s{place};\n    const {}* a{place};\n", name_of(*element))
        }
        Kind::Table(_) => format!("    onehop_table_{name} a{place};\n"),
    });
    let values = arguments(&|place, _, kind| match kind {
        Kind::Value(_) => format!("args.a{place}[row], "),
        Kind::Array(_) => {
            format!("{{ args.a{place} + args.s{place}[row], args.s{place}[row + 1] - args.s{place}[row] }}, ")
        }
        Kind::Table(_) => format!("args.a{place}, "),
    });
    let mut own = of_columns(returned, |column, of| format!("    {of}* c{column};\n"));
    let call = match &signature.returns {
        Returns::Value(_) => format!("args.c0[row] = onehop_row({values}is_null);"),
        Returns::Array(_) | Returns::Rows(_) => {
            own += "    unsigned long long* counts;\n    const unsigned long long* starts;\n";
            // The first run has no starts.
            let columns = of_columns(returned, |column, _| {
                format!("args.starts ? args.c{column} + args.starts[row] : nullptr, ")
            });
            format!(
                "onehop_result result = {{ {columns}args.starts ? args.starts[row + 1] - args.starts[row] : 0, 0 }};\n        \
                 onehop_row({values}result, is_null);\n        \
                 args.counts[row] = is_null ? 0 : result.count;"
            )
        }
    };
    let _ = write!(
        text,
        // A body that may end without a value is an error at its closing brace.
        "}}\n#line 1 \"onehop\"\n\n\
         struct OnehopArgs {{\n    unsigned long long rows;\n    bool* nulls;\n{own}{fields}}};\n\n\
         KERNEL({}, OnehopArgs) {{\n    \
             const unsigned long long step = (unsigned long long)gridDim.x * blockDim.x;\n    \
             for (unsigned long long row = (unsigned long long)blockIdx.x * blockDim.x + threadIdx.x; row < args.rows; row += step) {{\n        \
                 bool is_null = false;\n        \
                 {call}\n        \
                 args.nulls[row] = is_null;\n    \
             }}\n}}\n",
        KERNEL.to_string_lossy()
    );
    let headers = sections.libraries.iter().map(|(line, library)| (*line, library.header)).collect();
    Ok(Generated { text, headers })
}

/// Definition of arrays for the source. The compiler treats all its declarations as device code.
const ARRAYS: &str = "\
template <typename T> struct onehop_array {
    const T* data;
    unsigned long long size;
    const T& operator[](unsigned long long i) const { return data[i]; }
    const T* begin() const { return data; }
    const T* end() const { return data + size; }
};
";

/// Concatenates a string for each result column, given its number and its type.
fn of_columns(elements: &[Element], text: impl Fn(usize, &str) -> String) -> String {
    elements.iter().enumerate().map(|(column, element)| text(column, name_of(*element))).collect()
}

/// Returns the struct that receives items, or rows of these columns.
fn result(elements: &[Element]) -> String {
    let columns = of_columns(elements, |column, of| format!("    {of}* c{column};\n"));
    let parameters: Vec<String> =
        elements.iter().enumerate().map(|(column, of)| format!("{} v{column}", name_of(*of))).collect();
    let stores = of_columns(elements, |column, _| format!("            c{column}[count] = v{column};\n"));
    format!(
        "struct onehop_result {{\n{columns}    unsigned long long room;\n    unsigned long long count;\n    \
             void push({}) {{\n        if (count < room) {{\n{stores}        }}\n        ++count;\n    }}\n}};\n",
        parameters.join(", ")
    )
}

/// Returns the struct of a table argument.
fn table(name: &str, columns: &[(String, Element)]) -> String {
    let columns = columns.iter().map(|(column, element)| format!("    const {}* {column};\n", name_of(*element)));
    format!("struct onehop_table_{name} {{\n    unsigned long long rows;\n{}}};\n", columns.collect::<String>())
}

/// Returns the first error in the output of a compiler.
pub(super) fn said(log: &str) -> Wrong {
    let errors = || log.lines().filter(|line| line.contains("error"));
    let of_text = errors().find_map(|line| {
        let rest = line.trim_start().strip_prefix(FILE)?.strip_prefix(['(', ':'])?;
        let end = rest.find(|c: char| !c.is_ascii_digit())?;
        let number = rest[..end].parse().ok()?;
        // `function(3): error: what` or, with a column, `function:3:5: error: what`.
        let what = rest.split_once("error")?.1.split_once(':')?.1.trim();
        Some(Wrong { what: what.into(), line: Some(number) })
    });
    of_text.unwrap_or_else(|| Wrong { what: errors().next().unwrap_or(log).trim().into(), line: None })
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    fn part(line: usize, text: &str) -> Part {
        Part { line, text: text.into() }
    }

    #[test]
    fn sections_keep_their_lines() {
        let all = Sections::of("\n  #decl\nint one() { return 1; }\n\n#begin\nreturn one();\n#end\n").unwrap();
        assert_eq!(all.declarations, part(3, "int one() { return 1; }\n\n"));
        assert_eq!(all.body, part(6, "return one();\n"));
        let ended = Sections::of("#decl\nint a;\n#end\n\n#begin\nreturn a;\n#end").unwrap();
        assert_eq!((ended.declarations, ended.body), (part(2, "int a;\n"), part(6, "return a;\n")));
        let with =
            Sections::of("#library curand\n#decl\nint a;\n#library cub\nint b;\n#begin\nreturn a;\n#end").unwrap();
        assert_eq!(with.declarations, part(3, "int a;\n\nint b;\n"));
        let asked: Vec<_> = with.libraries.iter().map(|(line, library)| (*line, library.header)).collect();
        assert_eq!(asked, [(1, "curand_kernel.h"), (4, "cub/cub.cuh")]);
        let body = Sections::of("return 1;\n#define no_marker").unwrap();
        assert_eq!(body.body, part(1, "return 1;\n#define no_marker"));
    }

    #[test]
    fn what_is_no_section_is_said_with_its_line() {
        for (source, line, what) in [
            ("#begin\nreturn 1;", Some(1), "no #end"),
            ("#decl\nint a;\n#end", None, "no #begin"),
            ("int a;\n#begin\n#end", Some(1), "in no section"),
            ("#begin\n#end\n#begin\n#end", Some(3), "no place"),
            ("#begin\n#decl\n#end", Some(2), "no place"),
            ("#end", Some(1), "no place"),
            ("#library cublas\n#begin\n#end", Some(1), "#library cublas"),
            ("#begin\nreturn 1;\n#library curand\n#end", Some(3), "#library has no place"),
        ] {
            let wrong = Sections::of(source).unwrap_err();
            assert!(wrong.line == line && wrong.what.contains(what), "{source}: {wrong:?}");
        }
        let signature = Signature { arguments: vec![], returns: Returns::Value(Element::Int64) };
        assert!(generate("#begin\n\n#end", &signature).unwrap_err().what.contains("no text"));
    }

    #[test]
    fn compilers_are_understood() {
        let of = |log: &str| said(log);
        assert_eq!(
            of(
                "function(3): error: identifier \"y\" is undefined\n    return y;\n\n1 error detected in the compilation"
            ),
            Wrong { what: "identifier \"y\" is undefined".into(), line: Some(3) }
        );
        assert_eq!(
            of("function: In function 'double onehop_row(double, bool&)':\nfunction:7:8: error: 'y' was not declared"),
            Wrong { what: "'y' was not declared".into(), line: Some(7) }
        );
        assert_eq!(
            of("function(2): error #940-D: missing return statement"),
            Wrong { what: "missing return statement".into(), line: Some(2) }
        );
        assert_eq!(of("out of memory"), Wrong { what: "out of memory".into(), line: None });
        assert_eq!(of("onehop(4): error: odd").line, None);
    }
}
