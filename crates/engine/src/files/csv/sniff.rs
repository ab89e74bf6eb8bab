//! Inference of a text file's properties: delimiter, quotes, start of the table, header, and types.
//!
//! 1. [`dialect`] divides the sample by every candidate. A candidate is *consistent* if all records
//!    from some record on have the same number of fields. The text before that is a preamble if it
//!    is lines of one field, one line, or ends with an empty line. The first consistent candidate
//!    with the most fields is taken. Candidates are in the order of preference.
//! 2. A candidate that splits quoted values is excluded if another one reads the whole text with
//!    these quotes, even as one column: `"Doe, Jane"` is one value. Quotes are torn if a plain
//!    field begins or ends with one, and has only one of a pair.
//! 3. If no candidate with several fields is consistent, one is taken that has them in the first
//!    record and in most records. The records that differ are errors of the scan, which name their
//!    line. A candidate is also taken if all records but the first have the same number of fields.
//!    The same holds if the first record is names, and delimiters do not precede blanks as in
//!    prose.
//! 4. A carriage return ends lines if no line feed does, outside of quoted values of the candidate.
//! 5. The first record is a header if all columns are text, or if it is empty. It also is if the
//!    class (text, number, moment, boolean) of a field differs from the column below it. A column
//!    of times alone, including the first record's field, has no name there.
//! 6. A column's type holds all its values in the sample. [`super`] reads the rows after the
//!    sample.

use std::collections::HashSet;

use super::Dialect;
use super::fields::{self, Ends, Field, FieldForm, after_line, empty_line, field, is_comment, value};
use super::forms::{Forms, Kind, is_time};

/// The maximum number of sampled records.
pub(super) const SAMPLE_RECORDS: usize = 20_480;
/// The number of records that decide between candidates, unless the rest disagrees.
const FIRST_RECORDS: usize = 512;
const FIRST_BYTES: usize = 256 << 10;
/// The maximum number of records in a preamble.
const MAX_PREAMBLE: usize = 200;

/// The properties that a statement or the file's name determine.
#[derive(Clone, Debug, Default)]
pub(super) struct Given {
    pub delimiter: Option<u8>,
    /// The delimiter that is preferred among equals.
    pub likely_delimiter: Option<u8>,
    pub quote: Option<Option<u8>>,
    pub escape: Option<u8>,
    pub comment: Option<u8>,
    pub has_header: Option<bool>,
    pub skipped_lines: Option<usize>,
    /// True if records may have fewer fields than the first ones.
    pub pads: bool,
    /// The number of records that are sampled for types.
    pub sample_records: Option<usize>,
    pub all_text: bool,
    pub null: Option<Vec<u8>>,
}

/// The inferred properties of a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Sniffed {
    pub dialect: Dialect,
    /// The bytes before the table, without a byte order mark.
    pub skipped_bytes: usize,
    /// The line ends in them.
    pub skipped_lines: u64,
    pub header: Option<Vec<String>>,
    /// True if every record has an additional empty field.
    pub has_trailing: bool,
    /// The types of each column.
    pub forms: Vec<Forms>,
    /// True if all records were sampled.
    pub is_all: bool,
}

/// The records of a sample, divided by a candidate.
struct Cut {
    dialect: Dialect,
    /// The start and the number of fields of each record.
    records: Vec<(usize, usize)>,
    broken: usize,
    /// True if a quote is opened and never closed.
    is_open: bool,
    /// The number of quoted fields.
    quoted: usize,
    /// The number of plain fields that tear values in each of [`QUOTES`].
    torn: [usize; QUOTES.len()],
}

/// The possible quote characters.
const QUOTES: [u8; 2] = [b'"', b'\''];

/// The fit of a candidate.
#[derive(Clone, Copy, Debug)]
struct Fit {
    fields: usize,
    /// The number of records before the table.
    preamble: usize,
    /// True if the number of fields in the first record differs from the others.
    is_uneven: bool,
}

fn cut(bytes: &[u8], dialect: Dialect, is_whole: bool, most: usize) -> Cut {
    let mut cut = Cut { dialect, records: Vec::new(), broken: 0, is_open: false, quoted: 0, torn: [0; QUOTES.len()] };
    let mut at = 0;
    while at < bytes.len() && cut.records.len() < most {
        if is_comment(bytes, at, &dialect) {
            at = after_line(bytes, at, dialect.line_end);
            continue;
        }
        let (start, mut fields, mut is_broken) = (at, 0, false);
        if let Some(len) = empty_line(bytes, at, dialect.line_end) {
            cut.records.push((start, 0));
            at += len;
            continue;
        }
        loop {
            let Field { start, end, next, ends, form } = field(bytes, at, &dialect);
            cut.quoted += usize::from(form != FieldForm::Plain);
            if form == FieldForm::Plain {
                let text = bytes[start..end].trim_ascii();
                QUOTES.iter().zip(&mut cut.torn).for_each(|(quote, torn)| *torn += usize::from(is_torn(text, *quote)));
            }
            fields += 1;
            at = next;
            match ends {
                Ends::Field => {}
                Ends::Record => break,
                Ends::Broken => {
                    // The end of a sample may be within quotes.
                    is_broken = is_whole || next < bytes.len();
                    cut.is_open |= is_whole && next >= bytes.len();
                    at = after_line(bytes, next, dialect.line_end);
                    break;
                }
            }
        }
        cut.broken += usize::from(is_broken);
        cut.records.push((start, fields));
    }
    // The last record of a partial text may be incomplete.
    if !is_whole && at >= bytes.len() && cut.records.len() > 1 {
        cut.records.pop();
    }
    cut
}

/// Returns whether a field has part of a quoted value at one of its ends.
fn is_torn(text: &[u8], quote: u8) -> bool {
    (text.first() == Some(&quote) || text.last() == Some(&quote)) && memchr::memchr_iter(quote, text).count() % 2 == 1
}

impl Cut {
    /// Returns whether the candidate reads the whole text, with values in one of [`QUOTES`].
    fn holds_together(&self, at: usize, given: &Given) -> bool {
        let is_quoted = self.dialect.quote == QUOTES.get(at).copied() && self.quoted > 0;
        is_quoted && self.broken == 0 && self.torn.get(at) == Some(&0) && self.fit(given).is_some()
    }

    /// Returns the number of fields of each record that is not an empty line.
    fn counts(&self) -> impl DoubleEndedIterator<Item = (usize, usize)> + '_ {
        self.records.iter().enumerate().map(|(at, (_, fields))| (at, *fields)).filter(|(_, fields)| *fields > 0)
    }

    /// Returns the fit if all records from some record on have the same number of fields.
    fn fit(&self, given: &Given) -> Option<Fit> {
        let (_, fields) = self.counts().next_back()?;
        let is_alike = |count: usize| count == fields || (given.pads && count < fields && count > 0);
        let differs = self.counts().rev().find(|(_, count)| !is_alike(*count));
        let Some((last, count)) = differs else { return Some(Fit { fields, preamble: 0, is_uneven: false }) };
        // A header with one field less or more: either the header or the rows end with a delimiter.
        let is_first = self.counts().next().is_some_and(|(first, _)| first == last);
        if is_first && fields > 1 && count.abs_diff(fields) == 1 && count > 1 {
            return Some(Fit { fields, preamble: 0, is_uneven: true });
        }
        let preamble = last + 1;
        let (before, after) = self.records.split_at(preamble);
        let rows = after.iter().filter(|(_, count)| *count > 0).count();
        let wide = before.iter().filter(|(_, count)| *count > 1).count();
        let ends_empty = after.first().is_some_and(|(_, count)| *count == 0);
        let is_preamble = preamble <= MAX_PREAMBLE
            && fields > 1
            && rows >= 2
            && (wide == 0 || ends_empty || (wide == 1 && rows > 2 && !self.is_short_header(before, fields)));
        is_preamble.then_some(Fit { fields, preamble, is_uneven: false })
    }

    /// Returns whether the record before the table is nearly as wide, and so probably its header.
    fn is_short_header(&self, before: &[(usize, usize)], fields: usize) -> bool {
        before.iter().any(|(_, count)| *count > 1 && count.abs_diff(fields) <= 2)
    }

    /// Returns whether all records but the first have the same number of fields, and several.
    fn has_other_header(&self) -> bool {
        let mut others = self.counts().skip(1).map(|(_, fields)| fields);
        others.next().is_some_and(|fields| fields > 1 && others.all(|other| other == fields))
    }

    /// Returns whether the first record is names, another has several fields, and no field begins
    /// with a blank.
    fn has_names_over_values(&self, bytes: &[u8]) -> bool {
        let (mut names, mut are_values) = (Vec::new(), true);
        for (at, (start, _)) in self.records.iter().enumerate() {
            each_field(bytes, *start, &self.dialect, |_, value| match at {
                0 => names.push(value.to_vec()),
                _ => are_values = are_values && value.first() != Some(&b' '),
            });
        }
        let is_name = |name: &Vec<u8>| {
            name.first().is_some_and(|first| first.is_ascii_alphabetic() || *first == b'_')
                && name.iter().all(|byte| byte.is_ascii_alphanumeric() || *byte == b'_' || *byte >= 0x80)
        };
        let distinct: HashSet<&Vec<u8>> = names.iter().collect();
        let is_several = self.counts().skip(1).any(|(_, fields)| fields > 1);
        are_values && is_several && distinct.len() == names.len() && names.iter().all(is_name)
    }

    /// Returns the number of fields of the first record, the number of records that have as many,
    /// and the number of all records.
    fn like_first(&self) -> Option<(usize, usize, usize)> {
        let (_, first) = self.counts().next()?;
        let all = self.counts().count();
        Some((first, self.counts().filter(|(_, count)| *count == first).count(), all))
    }
}

/// The possible ends of a text's lines, before its quotes are known.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum LineEnds {
    Known(u8),
    /// Both line feeds and lone carriage returns occur: [`line_end`].
    ByQuotes,
}

impl LineEnds {
    fn of(bytes: &[u8]) -> Self {
        let mut returns = memchr::memchr_iter(b'\r', bytes);
        if memchr::memchr(b'\n', bytes).is_none() {
            return Self::Known(if returns.next().is_some() { b'\r' } else { b'\n' });
        }
        let is_alone = |at: usize| bytes.get(at + 1).is_some_and(|next| *next != b'\n');
        if returns.any(is_alone) { Self::ByQuotes } else { Self::Known(b'\n') }
    }
}

/// Returns the end of lines: a carriage return if no line feed is outside of quotes. `dialect`
/// determines the quotes.
fn line_end(bytes: &[u8], dialect: &Dialect) -> u8 {
    let is_quote = |byte: u8| Some(byte) == dialect.quote;
    let (mut at, mut has_return) = (0, false);
    let (mut begins_line, mut begins_field) = (true, true);
    while let Some(&byte) = bytes.get(at) {
        if begins_line && Some(byte) == dialect.comment {
            at += memchr::memchr2(b'\r', b'\n', &bytes[at..]).unwrap_or(bytes.len() - at);
            begins_line = false;
            continue;
        }
        at += 1;
        match byte {
            b'\n' => return b'\n',
            b'\r' if bytes.get(at) == Some(&b'\n') => return b'\n',
            b'\r' => (has_return, begins_line, begins_field) = (true, true, true),
            byte if begins_field && is_quote(byte) => {
                let Some(close) = after_quotes(bytes, at, byte, dialect.escape) else { break };
                at = close;
                (begins_line, begins_field) = (false, false);
            }
            byte => {
                begins_line = false;
                begins_field = byte == dialect.delimiter || (begins_field && byte == b' ');
            }
        }
    }
    if has_return { b'\r' } else { b'\n' }
}

/// Returns the offset after the quote that closes the value which begins at a place.
fn after_quotes(bytes: &[u8], mut at: usize, quote: u8, escape: Option<u8>) -> Option<usize> {
    loop {
        let found = at + memchr::memchr2(quote, escape.unwrap_or(quote), bytes.get(at..)?)?;
        if bytes[found] == quote && bytes.get(found + 1) != Some(&quote) {
            return Some(found + 1);
        }
        at = found + 2;
    }
}

fn candidates(given: &Given, bytes: &[u8]) -> Vec<Dialect> {
    let mut delimiters = vec![b',', b'|', b';', b'\t'];
    if let Some(likely) = given.likely_delimiter {
        delimiters.retain(|known| *known != likely);
        delimiters.insert(0, likely);
    }
    let delimiters = given.delimiter.map_or(delimiters, |delimiter| vec![delimiter]);
    let quotes = given.quote.map_or(vec![Some(b'"'), Some(b'\''), None], |quote| vec![quote]);
    let escapes = given.escape.map_or(vec![None, Some(b'\\')], |escape| vec![Some(escape)]);
    let comments = given.comment.map_or(vec![None, Some(b'#')], |comment| vec![Some(comment)]);
    let line_ends = LineEnds::of(bytes);
    let with_line_end = |mut dialect: Dialect| {
        dialect.line_end = match line_ends {
            LineEnds::Known(line_end) => line_end,
            LineEnds::ByQuotes => line_end(bytes, &dialect),
        };
        dialect
    };
    let mut all = Vec::new();
    for comment in comments {
        for quote in &quotes {
            for escape in &escapes {
                if quote.is_none() && escape.is_some() {
                    continue;
                }
                let escape = escape.filter(|escape| Some(*escape) != *quote);
                for &delimiter in delimiters.iter().filter(|delimiter| Some(**delimiter) != *quote) {
                    all.push(with_line_end(Dialect { delimiter, quote: *quote, escape, comment, line_end: b'\n' }));
                }
            }
        }
    }
    all
}

/// Returns the end of skipped lines in the preferred candidate.
fn skipped_line_end(bytes: &[u8], given: &Given) -> u8 {
    candidates(given, bytes).first().map_or(b'\n', |dialect| dialect.line_end)
}

/// Returns the dialect of a sample, and the start of its table.
fn dialect(bytes: &[u8], is_whole: bool, given: &Given) -> (Dialect, usize) {
    let first_bytes = bytes.len().min(FIRST_BYTES);
    let small = &bytes[..first_bytes];
    let is_small_whole = is_whole && first_bytes == bytes.len();
    let (choice, preamble) = choose(small, is_small_whole, given, FIRST_RECORDS);
    let all = cut(bytes, choice, is_whole, SAMPLE_RECORDS);
    let is_settled = all.broken == 0 && all.fit(given).is_some_and(|fit| fit.preamble == preamble);
    if is_settled || (is_small_whole && all.records.len() < FIRST_RECORDS) {
        let start = all.records.get(preamble).map_or(0, |(start, _)| *start);
        return (choice, start);
    }
    let (choice, preamble) = choose(bytes, is_whole, given, SAMPLE_RECORDS);
    let all = cut(bytes, choice, is_whole, SAMPLE_RECORDS);
    (choice, all.records.get(preamble).map_or(0, |(start, _)| *start))
}

/// Returns the best candidate, and the number of records before the table.
fn choose(bytes: &[u8], is_whole: bool, given: &Given, most: usize) -> (Dialect, usize) {
    let cuts: Vec<Cut> =
        candidates(given, bytes).into_iter().map(|dialect| cut(bytes, dialect, is_whole, most)).collect();
    let held: [bool; QUOTES.len()] = std::array::from_fn(|at| cuts.iter().any(|cut| cut.holds_together(at, given)));
    let is_sound = |cut: &&Cut| {
        let needs_quotes = matches!(cut.dialect.quote, Some(b'\'')) && given.quote.is_none();
        cut.broken == 0 && !(needs_quotes && cut.quoted == 0)
    };
    // An unclosed quote is an error, not a reason to treat quotes as text.
    let is_open = |delimiter: u8| {
        let plain = |cut: &&Cut| cut.dialect.quote == Some(b'"') && cut.dialect.escape.is_none();
        cuts.iter().filter(plain).any(|cut| cut.dialect.delimiter == delimiter && cut.is_open)
    };
    let tears = |cut: &Cut| cut.torn.iter().zip(&held).any(|(torn, is_held)| *torn > 0 && *is_held);
    let may_be = |cut: &&Cut| {
        let is_known = cut.dialect.quote.is_some() || given.quote.is_some() || !is_open(cut.dialect.delimiter);
        is_known && !tears(cut)
    };
    let mut best: Option<(&Cut, Fit)> = None;
    for cut in cuts.iter().filter(is_sound).filter(may_be) {
        let Some(fit) = cut.fit(given) else { continue };
        let is_better = match best {
            None => true,
            Some((_, known)) => (known.fields == 1 && fit.fields > 1) || better(&fit, cut, &known, best.map(|b| b.0)),
        };
        if is_better {
            best = Some((cut, fit));
        }
    }
    if let Some((cut, fit)) = best.filter(|(_, fit)| fit.fields > 1) {
        return (cut.dialect, fit.preamble);
    }
    // Candidates with several fields in most records, some of which differ.
    let uneven = cuts.iter().filter(|cut| cut.dialect.quote != Some(b'\'') || given.quote.is_some()).filter(may_be);
    let uneven = uneven.filter_map(|cut| {
        let (fields, alike, all) = cut.like_first()?;
        let has_table_below = || cut.has_other_header() || cut.has_names_over_values(bytes);
        let is_table = fields > 1 && ((alike * 2 > all && alike > 1) || (cut.broken == 0 && has_table_below()));
        is_table.then_some((cut.broken, all - alike, cut))
    });
    if let Some((.., cut)) = uneven.min_by_key(|(broken, others, _)| (*broken, *others)) {
        return (cut.dialect, 0);
    }
    match best {
        Some((cut, fit)) => (cut.dialect, fit.preamble),
        None => {
            let dialect = candidates(given, bytes).into_iter().next();
            (dialect.unwrap_or_default(), 0)
        }
    }
}

/// Returns whether a candidate fits better than an earlier one, which is preferred otherwise.
fn better(fit: &Fit, cut: &Cut, known: &Fit, known_cut: Option<&Cut>) -> bool {
    let Some(known_cut) = known_cut else { return false };
    let (a, b) = (&cut.dialect, &known_cut.dialect);
    // A quote that encloses fields is not given up for more fields.
    if a.quote != b.quote || a.escape != b.escape {
        let same_delimiter = a.delimiter == b.delimiter;
        // Quotes that occur are preferred to quotes that do not.
        let are_others = b.quote.is_some() && known_cut.quoted == 0 && cut.quoted > 0;
        if are_others && same_delimiter && (fit.fields >= known.fields || known.is_uneven) {
            return true;
        }
        // A single column has no delimiter.
        if are_others && fit.fields == 1 && known.fields == 1 {
            return true;
        }
        return fit.fields > 1 && known.preamble > fit.preamble && same_delimiter && cut.quoted > 0;
    }
    if a.comment != b.comment {
        return fit.fields > 1 && known.preamble > fit.preamble && fit.fields >= known.fields;
    }
    match fit.preamble.cmp(&known.preamble) {
        std::cmp::Ordering::Less => fit.fields > 1,
        std::cmp::Ordering::Equal => fit.fields > known.fields,
        std::cmp::Ordering::Greater => false,
    }
}

/// Infers the properties of a file from a sample of its beginning. `is_whole` is true if the sample
/// is the whole file.
pub(super) fn sniff(bytes: &[u8], is_whole: bool, given: &Given) -> Sniffed {
    let skipped = given.skipped_lines.unwrap_or(0);
    let end = if skipped > 0 { skipped_line_end(bytes, given) } else { b'\n' };
    let from = (0..skipped).fold(0, |at, _| after_line(bytes, at, end));
    let bytes_after = &bytes[from..];
    let (dialect, start) = dialect(bytes_after, is_whole, given);
    let start = from + start;
    let rest = &bytes[start..];
    let rows = Rows::of(rest, dialect, is_whole, given);
    let columns = rows.columns(given);
    let has_trailing = rows.has_trailing(columns);
    let (header, forms) = rows.header_and_types(columns, given);
    Sniffed {
        dialect,
        skipped_bytes: start,
        skipped_lines: memchr::memchr_iter(dialect.line_end, &bytes[..start]).count() as u64,
        header,
        has_trailing,
        forms,
        is_all: is_whole && rows.records.len() < given.sample_records.unwrap_or(SAMPLE_RECORDS),
    }
}

/// The first record of a sample, and the positions of the others.
struct Rows<'a> {
    bytes: &'a [u8],
    dialect: Dialect,
    first: Vec<Vec<u8>>,
    /// The start of the second record.
    rest: usize,
    records: Vec<(usize, usize)>,
}

impl<'a> Rows<'a> {
    fn of(bytes: &'a [u8], dialect: Dialect, is_whole: bool, given: &Given) -> Self {
        let most = given.sample_records.unwrap_or(SAMPLE_RECORDS);
        let mut records = cut(bytes, dialect, is_whole, most).records;
        let is_single = records.iter().all(|(_, fields)| *fields < 2);
        if !is_single {
            records.retain(|(_, fields)| *fields > 0);
        }
        let mut first = Vec::new();
        let mut rest = bytes.len();
        if let Some((start, _)) = records.first() {
            rest = each_field(bytes, *start, &dialect, |_, value| first.push(value.to_vec()));
        }
        Self { bytes, dialect, first, rest, records }
    }

    /// Returns the number of fields of most records.
    fn columns(&self, given: &Given) -> usize {
        if given.pads {
            return self.records.iter().map(|(_, fields)| (*fields).max(1)).max().unwrap_or(0);
        }
        let first = self.first.len();
        let others = || self.records.iter().skip(1).map(|(_, fields)| (*fields).max(1));
        match others().next() {
            // A header has one empty name too many, or one too few, because a delimiter ends all
            // other lines.
            Some(next) if next.abs_diff(first) == 1 && others().all(|fields| fields == next) => {
                let ends_empty = self.first.last().is_some_and(Vec::is_empty);
                match next + 1 == first {
                    true if ends_empty => next,
                    false if self.counts_rows() => next,
                    _ => first,
                }
            }
            _ => first,
        }
    }

    /// Returns whether the first field of every record but the first is its number. R writes row
    /// names this way, without a name in the header.
    fn counts_rows(&self) -> bool {
        (1..).zip(self.records.iter().skip(1)).all(|(number, (start, _))| {
            let found = field(self.bytes, *start, &self.dialect);
            super::forms::integer(&value(self.bytes, &found, &self.dialect)) == Some(number)
        })
    }

    /// Returns whether every record but the first ends with a delimiter.
    fn has_trailing(&self, columns: usize) -> bool {
        let mut others = self.records.iter().skip(1).peekable();
        others.peek().is_some() && {
            others.all(|(start, fields)| {
                let mut is_empty = false;
                *fields == columns + 1 && {
                    each_field(self.bytes, *start, &self.dialect, |_, value| is_empty = value.is_empty());
                    is_empty
                }
            })
        }
    }

    fn header_and_types(&self, columns: usize, given: &Given) -> (Option<Vec<String>>, Vec<Forms>) {
        let mut below = vec![Forms::ANY; columns];
        // Times are text, but not names.
        let mut are_times: Vec<bool> = self.first.iter().map(|name| is_time(name)).collect();
        let rows = self.records.len().saturating_sub(1);
        let mut at = self.rest;
        let null = given.null.as_deref();
        for _ in 0..rows {
            at = fields::next_record(self.bytes, at, &self.dialect, columns == 1);
            if at >= self.bytes.len() {
                break;
            }
            at = each_field(self.bytes, at, &self.dialect, |column, value| {
                if let Some(forms) = below.get_mut(column).filter(|_| !value.is_empty() && Some(value) != null) {
                    *forms = *forms & Forms::of(value);
                    if let Some(are_times) = are_times.get_mut(column).filter(|are_times| **are_times) {
                        *are_times = is_time(value);
                    }
                }
            });
        }
        let mut first: Vec<Forms> = self.first.iter().take(columns).map(|value| forms_of(value, null)).collect();
        if first.len() < columns && !given.pads {
            first.insert(0, Forms::ANY);
        }
        let has_header = given.has_header.unwrap_or_else(|| {
            let has_times = rows > 0 && are_times.contains(&true);
            !has_times && self.is_header(&first, &below)
        });
        if given.all_text {
            below.fill(Forms::TEXT);
        }
        if has_header {
            let names = self.first.iter().take(columns).map(|name| String::from_utf8_lossy(name).trim().to_string());
            let lacks_first = self.first.len() < columns && given.has_header.is_none() && !given.pads;
            let row_names = lacks_first.then(String::new);
            return (Some(row_names.into_iter().chain(names).collect()), below);
        }
        for (below, first) in below.iter_mut().zip(first) {
            *below = *below & first;
        }
        (None, below)
    }

    fn is_header(&self, first: &[Forms], below: &[Forms]) -> bool {
        if first.is_empty() {
            return false;
        }
        let is_only = self.records.len() < 2;
        let below: Vec<Kind> = if is_only { first.iter().map(|forms| forms.kind()).collect() } else { kinds(below) };
        let is_text = |kind: &Kind| matches!(kind, Kind::Text | Kind::Empty);
        if below.iter().all(is_text) || first.iter().all(|forms| forms.kind() == Kind::Empty) {
            return true;
        }
        let differs = first.iter().zip(&below).any(|(first, below)| {
            let first = first.kind();
            first != Kind::Empty && !is_text(below) && class(first) != class(*below)
        });
        differs || self.names_numbers(first, &below) || self.names_all_but_the_first(first, &below)
    }

    /// Returns whether the first record names all columns but that of row numbers, and a named
    /// column is empty.
    fn names_all_but_the_first(&self, first: &[Forms], below: &[Kind]) -> bool {
        let (Some(Kind::Int | Kind::Double), [_, names @ ..]) = (below.first(), self.first.as_slice()) else {
            return false;
        };
        let kinds = kinds(first);
        let are_texts = kinds.first() == Some(&Kind::Empty) && kinds.iter().skip(1).all(|kind| *kind == Kind::Text);
        let distinct: HashSet<&Vec<u8>> = names.iter().collect();
        are_texts && distinct.len() == names.len() && below.contains(&Kind::Empty)
    }

    /// Returns whether numbers are names. They are consecutive years over fractions, or fractions
    /// over integers, with no name for the column of row names.
    fn names_numbers(&self, first: &[Forms], below: &[Kind]) -> bool {
        let kinds: Vec<Kind> = kinds(first);
        let years: Vec<i64> = (kinds.iter().zip(below).zip(&self.first))
            .filter(|((first, below), _)| **first == Kind::Int && **below == Kind::Double)
            .filter_map(|(_, text)| super::forms::integer(text))
            .collect();
        let numbers = kinds.iter().filter(|kind| class(**kind) == 2).count();
        let are_years = years.len() >= 3 && years.windows(2).all(|pair| pair[0] + 1 == pair[1]);
        if are_years && years.len() * 10 >= numbers * 9 {
            return true;
        }
        let mut names: Vec<&Vec<u8>> = self.first.iter().skip(1).collect();
        names.sort_unstable();
        names.dedup();
        let are_names = names.len() + 1 == kinds.len() && kinds.len() >= 3 && names.iter().all(|name| !name.is_empty());
        let over_integers = kinds.iter().zip(below).any(|(first, below)| (*first, *below) == (Kind::Double, Kind::Int));
        kinds.first() == Some(&Kind::Empty) && are_names && over_integers
    }
}

fn forms_of(value: &[u8], null: Option<&[u8]>) -> Forms {
    if value.is_empty() || Some(value) == null { Forms::ANY } else { Forms::of(value) }
}

fn kinds(forms: &[Forms]) -> Vec<Kind> {
    forms.iter().map(|forms| forms.kind()).collect()
}

/// Returns the class of a type. Values of one class look similar.
fn class(kind: Kind) -> u8 {
    match kind {
        Kind::Empty | Kind::Text => 0,
        Kind::Boolean => 1,
        Kind::Int | Kind::Huge | Kind::Double => 2,
        Kind::Date(_) | Kind::Timestamp(_) | Kind::Nanoseconds | Kind::Moment | Kind::MomentNanoseconds => 3,
    }
}

/// Returns the dialect of a file with a known number of columns. It is `plain` if that yields the
/// number, and inferred otherwise. `None` for a file without records.
pub(super) fn declared(bytes: &[u8], is_whole: bool, plain: &Given, given: &Given, columns: usize) -> Option<Sniffed> {
    let skipped = plain.skipped_lines.unwrap_or(0);
    let end = if skipped > 0 { skipped_line_end(bytes, plain) } else { b'\n' };
    let from = (0..skipped).fold(0, |at, _| after_line(bytes, at, end));
    let rest = &bytes[from..];
    let dialect = candidates(plain, rest).into_iter().next()?;
    let cut = cut(rest, dialect, is_whole, SAMPLE_RECORDS);
    let (first, _) = cut.counts().next().or_else(|| (columns == 1).then_some((0, 1)))?;
    let start = cut.records.get(if columns == 1 { 0 } else { first })?.0;
    let found = |dialect, start: usize, has_trailing| Sniffed {
        dialect,
        skipped_bytes: from + start,
        skipped_lines: memchr::memchr_iter(dialect.line_end, &bytes[..from + start]).count() as u64,
        header: None,
        has_trailing,
        forms: Vec::new(),
        is_all: false,
    };
    let are = |wanted: usize| cut.broken == 0 && cut.counts().all(|(_, count)| count == wanted);
    let mut ends_empty = false;
    each_field(rest, start, &dialect, |_, value| ends_empty = value.is_empty());
    let is_trailing = columns > 0 && ends_empty && cut.counts().next().is_some_and(|(_, count)| count == columns + 1);
    if are(columns) || is_trailing {
        return Some(found(dialect, start, is_trailing));
    }
    let other = sniff(bytes, is_whole, given);
    // The first record is a row: it has one delimiter less or more than the others.
    let is_uneven = other.has_trailing && given.has_header == Some(false);
    let is_wanted = other.forms.len() == columns && columns > 1 && other.dialect.quote.is_some() && !is_uneven;
    Some(match is_wanted {
        true => Sniffed { header: None, forms: Vec::new(), ..other },
        false => found(dialect, start, false),
    })
}

/// Removes from columns' types those that do not hold the values of these records. Skips invalid
/// records.
pub(super) fn narrow(forms: &mut [Forms], bytes: &[u8], dialect: &Dialect, skips_header: bool, null: Option<&[u8]>) {
    let is_single = forms.len() == 1;
    let mut at = fields::next_record(bytes, 0, dialect, is_single);
    if skips_header {
        at = each_field(bytes, at, dialect, |_, _| {});
    }
    let mut kinds: Vec<Kind> = kinds(forms);
    loop {
        at = fields::next_record(bytes, at, dialect, is_single);
        if at >= bytes.len() {
            return;
        }
        let mut column = 0;
        loop {
            let found = field(bytes, at, dialect);
            at = found.next;
            if let Some(kind) = kinds.get_mut(column).filter(|kind| **kind != Kind::Text && found.end > found.start) {
                let value = value(bytes, &found, dialect);
                if null != Some(&*value) && !kind.surely_holds(&value) {
                    forms[column] = forms[column] & Forms::of(&value);
                    *kind = forms[column].kind();
                }
            }
            column += 1;
            match found.ends {
                Ends::Field => {}
                Ends::Record => break,
                Ends::Broken => {
                    at = after_line(bytes, at, dialect.line_end);
                    break;
                }
            }
        }
    }
}

/// Calls a function with each field of the record at a place. Returns the start of the next record.
pub(super) fn each_field(bytes: &[u8], mut at: usize, dialect: &Dialect, mut with: impl FnMut(usize, &[u8])) -> usize {
    let mut column = 0;
    loop {
        let found = field(bytes, at, dialect);
        with(column, &value(bytes, &found, dialect));
        column += 1;
        at = found.next;
        match found.ends {
            Ends::Field => {}
            Ends::Record => return at,
            Ends::Broken => return after_line(bytes, at, dialect.line_end),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_ragged_table_is_one() {
        for (text, fields) in [
            ("a,b\n1,2\n3\n4,5,6\n", 2),
            ("a,b\n1\n3,4,5\n", 2),
            ("hello, world\nthis is text\none, two, three\n", 1),
            ("greeting\nhello, world\nyes\none, two, three\n", 1),
        ] {
            assert_eq!(found(text).2, fields, "{text}");
        }
        let padded = Given { pads: true, ..Given::default() };
        let Sniffed { header, forms, .. } = sniff(b"a,b\n1,2\n3,4,5\n", true, &padded);
        assert_eq!((header, forms.len()), (Some(vec!["a".to_string(), "b".to_string()]), 3));
    }

    fn found(text: &str) -> (char, Option<char>, usize) {
        let Sniffed { dialect, forms, .. } = sniff(text.as_bytes(), true, &Given::default());
        (char::from(dialect.delimiter), dialect.quote.map(char::from), forms.len())
    }

    #[test]
    fn quotes_hold_values_together() {
        for (text, quote, columns) in [
            ("name\n\"Doe, Jane\"\n\"Roe, Jim\"\n", '"', 1),
            ("name\n'Doe, Jane'\n'Roe, Jim'\n", '\'', 1),
            ("t\n\"a;b\nc;d\"\n\"e;f\"\n", '"', 1),
            ("\"a,b\"\n", '"', 1),
            ("x\n\"say, \"\"a\"\"\"\n\"b,c\"\n", '"', 1),
            ("a,b\n\"x,y\"\n\"z,w\"\n", '"', 1),
            ("1,\"x;y\"\n2,\"z;w\"\n", '"', 2),
            ("a;b\n\"x;1\";2\n", '"', 2),
        ] {
            let (_, found, number) = found(text);
            assert_eq!((found, number), (Some(quote), columns), "{text}");
        }
        // These are not quotes of values.
        assert_eq!(found("h1,h2\n5\" pipe,\"x\n6\" pipe,\"y\n"), (',', None, 2));
        assert_eq!(found("w,h\n5\",6\"\n7\",8\"\n").2, 2);
        let none = Given { quote: Some(None), ..Given::default() };
        assert_eq!(sniff(b"name\n\"Doe, Jane\"\n\"Roe, Jim\"\n", true, &none).forms.len(), 2);
    }

    #[test]
    fn a_header_of_another_width_is_no_reason_for_one_column() {
        assert_eq!(found("a,b\n1,2,,\n3,4,,\n"), (',', Some('"'), 2));
        assert_eq!(found("a;b;c;d\n1;2\n3;4\n"), (';', Some('"'), 4));
        assert_eq!(found("a,b\n1,2,\n3,4,\n"), (',', Some('"'), 2));
    }

    #[test]
    fn only_line_feeds_outside_of_quotes_end_lines() {
        for (text, expected) in [
            ("a,b\r1,x\r2,\"p\nq\"\r3,z\r", b'\r'),
            ("a,b\r1,\"p\r\nq\"\r", b'\r'),
            ("a,b\r1,'p\nq'\r2,'r'\r", b'\r'),
            ("x\r\"p\nq\"\r", b'\r'),
            ("a\r\"b\"\"\n\"\r", b'\r'),
            ("a,b\r1,x\r", b'\r'),
            ("a,b\n1,\"p\rq\"\n", b'\n'),
            ("a,b\r\n1,\"p\rq\"\r\n", b'\n'),
            ("\"a\"\n\"b\rc\"\n", b'\n'),
            ("a\rb\nc\rd\n", b'\n'),
            ("a,b\n1,2\n", b'\n'),
        ] {
            let sniffed = sniff(text.as_bytes(), true, &Given::default());
            assert_eq!(char::from(sniffed.dialect.line_end), char::from(expected), "{text:?}");
        }
        let text = b"note\ra,b\r1,\"p\nq\"\r";
        let skipping = Given { skipped_lines: Some(1), ..Given::default() };
        assert_eq!((sniff(text, true, &skipping).skipped_bytes, sniff(text, true, &skipping).forms.len()), (5, 2));
        let plain = Given { delimiter: Some(b','), quote: Some(Some(b'"')), ..Given::default() };
        let shape = declared(b"a,b\r1,x\r2,\"p\nq\"\r", true, &plain, &Given::default(), 2);
        assert_eq!(shape.map(|shape| shape.dialect.line_end), Some(b'\r'));
    }
}
