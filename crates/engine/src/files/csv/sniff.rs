//! What a text file says about itself: delimiter, quotes, where its table begins, its header, and its types.
//!
//! 1. [`dialect`] cuts the sample by every candidate. One is *consistent* if all records, from some record on, have the
//!    same number of fields. What comes before that is a preamble if it is lines of one field, one line, or ends with an
//!    empty line. The first consistent candidate with the most fields is taken; candidates are in the order of preference.
//! 2. If none with several fields is, but one has them in the first record and in most, it is taken: the records that
//!    differ are errors of the scan, which name their line.
//! 3. The first record is a header if all columns are text, or if one of its fields is of another class (text, number,
//!    moment, boolean) than the column below it, or if it is empty.
//! 4. A column's type holds all its values in the sample. [`super`] looks at what comes after the sample.

use super::Dialect;
use super::fields::{self, Ends, Field, FieldForm, after_line, empty_line, field, is_comment, value};
use super::forms::{Forms, Kind};

/// Records that are looked at.
pub(super) const SAMPLE_RECORDS: usize = 20_480;
/// Of the records, so many decide between candidates, unless the rest disagrees.
const FIRST_RECORDS: usize = 512;
const FIRST_BYTES: usize = 256 << 10;
/// A preamble has no more records than this.
const MAX_PREAMBLE: usize = 200;

/// What is known before a file is looked at, by a statement or by the file's name.
#[derive(Clone, Debug, Default)]
pub(super) struct Given {
    pub delimiter: Option<u8>,
    /// Taken first among equals.
    pub likely_delimiter: Option<u8>,
    pub quote: Option<Option<u8>>,
    pub escape: Option<u8>,
    pub comment: Option<u8>,
    pub has_header: Option<bool>,
    pub skipped_lines: Option<usize>,
    /// Records may have fewer fields than the first ones.
    pub pads: bool,
    /// So many records are looked at for types.
    pub sample_records: Option<usize>,
    pub all_text: bool,
    pub null: Option<Vec<u8>>,
}

/// What a sample says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Sniffed {
    pub dialect: Dialect,
    /// Bytes before the table, without a byte order mark.
    pub skipped_bytes: usize,
    /// The line ends in them.
    pub skipped_lines: u64,
    pub header: Option<Vec<String>>,
    /// Every record has one field more, which is empty.
    pub has_trailing: bool,
    /// As many as there are columns.
    pub forms: Vec<Forms>,
    /// Whether there are no other records than those that were looked at.
    pub is_all: bool,
}

/// The records of a sample, cut by a candidate.
struct Cut {
    dialect: Dialect,
    /// Where each record starts, and how many fields it has.
    records: Vec<(usize, usize)>,
    broken: usize,
    /// Whether a quote is opened and never closed.
    is_open: bool,
    /// Fields that begin with the quote.
    quoted: usize,
}

/// How well a candidate fits.
#[derive(Clone, Copy, Debug)]
struct Fit {
    fields: usize,
    /// Records before the table.
    preamble: usize,
    /// Whether the first record has another number of fields than the others.
    is_uneven: bool,
}

fn cut(bytes: &[u8], dialect: Dialect, is_whole: bool, most: usize) -> Cut {
    let mut cut = Cut { dialect, records: Vec::new(), broken: 0, is_open: false, quoted: 0 };
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
            let Field { next, ends, form, .. } = field(bytes, at, &dialect);
            cut.quoted += usize::from(form != FieldForm::Plain);
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
    // The last record of a part may be part of one.
    if !is_whole && at >= bytes.len() && cut.records.len() > 1 {
        cut.records.pop();
    }
    cut
}

impl Cut {
    /// Without the records that are empty lines.
    fn counts(&self) -> impl DoubleEndedIterator<Item = (usize, usize)> + '_ {
        self.records.iter().enumerate().map(|(at, (_, fields))| (at, *fields)).filter(|(_, fields)| *fields > 0)
    }

    /// Whether all records from some record on are alike.
    fn fit(&self, given: &Given) -> Option<Fit> {
        let (_, fields) = self.counts().next_back()?;
        let is_alike = |count: usize| count == fields || (given.pads && count < fields && count > 0);
        let differs = self.counts().rev().find(|(_, count)| !is_alike(*count));
        let Some((last, count)) = differs else { return Some(Fit { fields, preamble: 0, is_uneven: false }) };
        // A header that lacks a field, or has one more: one of both ends with a delimiter.
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

    /// Whether the record before the table is nearly as wide as it: its header, rather than something else.
    fn is_short_header(&self, before: &[(usize, usize)], fields: usize) -> bool {
        before.iter().any(|(_, count)| *count > 1 && count.abs_diff(fields) <= 2)
    }

    /// How many of the records have as many fields as the first one.
    fn like_first(&self) -> Option<(usize, usize, usize)> {
        let (_, first) = self.counts().next()?;
        let all = self.counts().count();
        Some((first, self.counts().filter(|(_, count)| *count == first).count(), all))
    }
}

/// The end of lines: a carriage return only where there is no line feed.
fn line_end(bytes: &[u8]) -> u8 {
    if memchr::memchr(b'\n', bytes).is_none() && memchr::memchr(b'\r', bytes).is_some() { b'\r' } else { b'\n' }
}

fn candidates(given: &Given, line_end: u8) -> Vec<Dialect> {
    let mut delimiters = vec![b',', b'|', b';', b'\t'];
    if let Some(likely) = given.likely_delimiter {
        delimiters.retain(|known| *known != likely);
        delimiters.insert(0, likely);
    }
    let delimiters = given.delimiter.map_or(delimiters, |delimiter| vec![delimiter]);
    let quotes = given.quote.map_or(vec![Some(b'"'), Some(b'\''), None], |quote| vec![quote]);
    let escapes = given.escape.map_or(vec![None, Some(b'\\')], |escape| vec![Some(escape)]);
    let comments = given.comment.map_or(vec![None, Some(b'#')], |comment| vec![Some(comment)]);
    let mut all = Vec::new();
    for comment in comments {
        for quote in &quotes {
            for escape in &escapes {
                if quote.is_none() && escape.is_some() {
                    continue;
                }
                let escape = escape.filter(|escape| Some(*escape) != *quote);
                for &delimiter in delimiters.iter().filter(|delimiter| Some(**delimiter) != *quote) {
                    let dialect = Dialect { delimiter, quote: *quote, escape, comment, line_end };
                    all.push(dialect);
                }
            }
        }
    }
    all
}

/// The dialect of a sample, and where its table begins.
fn dialect(bytes: &[u8], is_whole: bool, given: &Given) -> (Dialect, usize) {
    let line_end = line_end(bytes);
    let first_bytes = bytes.len().min(FIRST_BYTES);
    let small = &bytes[..first_bytes];
    let is_small_whole = is_whole && first_bytes == bytes.len();
    let (choice, preamble) = choose(small, is_small_whole, given, line_end, FIRST_RECORDS);
    let all = cut(bytes, choice, is_whole, SAMPLE_RECORDS);
    let is_settled = all.broken == 0 && all.fit(given).is_some_and(|fit| fit.preamble == preamble);
    if is_settled || (is_small_whole && all.records.len() < FIRST_RECORDS) {
        let start = all.records.get(preamble).map_or(0, |(start, _)| *start);
        return (choice, start);
    }
    let (choice, preamble) = choose(bytes, is_whole, given, line_end, SAMPLE_RECORDS);
    let all = cut(bytes, choice, is_whole, SAMPLE_RECORDS);
    (choice, all.records.get(preamble).map_or(0, |(start, _)| *start))
}

/// The best candidate, and how many records are before the table.
fn choose(bytes: &[u8], is_whole: bool, given: &Given, line_end: u8, most: usize) -> (Dialect, usize) {
    let cuts: Vec<Cut> =
        candidates(given, line_end).into_iter().map(|dialect| cut(bytes, dialect, is_whole, most)).collect();
    let is_sound = |cut: &&Cut| {
        let needs_quotes = matches!(cut.dialect.quote, Some(b'\'')) && given.quote.is_none();
        cut.broken == 0 && !(needs_quotes && cut.quoted == 0)
    };
    // A quote that is not closed is an error, and no reason to take quotes for text.
    let is_open = |delimiter: u8| {
        let plain = |cut: &&Cut| cut.dialect.quote == Some(b'"') && cut.dialect.escape.is_none();
        cuts.iter().filter(plain).any(|cut| cut.dialect.delimiter == delimiter && cut.is_open)
    };
    let may_be = |cut: &&Cut| cut.dialect.quote.is_some() || given.quote.is_some() || !is_open(cut.dialect.delimiter);
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
    // Several fields in most records, with some that differ.
    let uneven = cuts.iter().filter(|cut| cut.dialect.quote != Some(b'\'') || given.quote.is_some()).filter(may_be);
    let uneven = uneven.filter_map(|cut| {
        let (fields, alike, all) = cut.like_first()?;
        let is_table = fields > 1 && alike * 2 > all && alike > 1;
        is_table.then_some((cut.broken, all - alike, cut))
    });
    if let Some((.., cut)) = uneven.min_by_key(|(broken, others, _)| (*broken, *others)) {
        return (cut.dialect, 0);
    }
    match best {
        Some((cut, fit)) => (cut.dialect, fit.preamble),
        None => {
            let dialect = candidates(given, line_end).into_iter().next();
            (dialect.unwrap_or(Dialect { line_end, ..Dialect::default() }), 0)
        }
    }
}

/// Whether a candidate fits better than one before it, which is preferred otherwise.
fn better(fit: &Fit, cut: &Cut, known: &Fit, known_cut: Option<&Cut>) -> bool {
    let Some(known_cut) = known_cut else { return false };
    let (a, b) = (&cut.dialect, &known_cut.dialect);
    // A quote that holds fields together is not given up for more of them.
    if a.quote != b.quote || a.escape != b.escape {
        let same_delimiter = a.delimiter == b.delimiter;
        // Quotes that quote values are preferred to those that there are none of.
        let are_others = b.quote.is_some() && known_cut.quoted == 0 && cut.quoted > 0;
        if are_others && same_delimiter && (fit.fields >= known.fields || known.is_uneven) {
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

/// What a sample from the beginning of a file says; `is_whole`: it is all of it.
pub(super) fn sniff(bytes: &[u8], is_whole: bool, given: &Given) -> Sniffed {
    let skipped = given.skipped_lines.unwrap_or(0);
    let end = line_end(bytes);
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

/// The first record of a sample, and how the ones after it look.
struct Rows<'a> {
    bytes: &'a [u8],
    dialect: Dialect,
    first: Vec<Vec<u8>>,
    /// Where the second record begins.
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

    /// The fields of most records.
    fn columns(&self, given: &Given) -> usize {
        if given.pads {
            return self.records.iter().map(|(_, fields)| (*fields).max(1)).max().unwrap_or(0);
        }
        let first = self.first.len();
        let others = || self.records.iter().skip(1).map(|(_, fields)| (*fields).max(1));
        match others().next() {
            // A header with an empty name too many, or too few for a delimiter that ends all other lines.
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

    /// Whether the first field of every record but the first is its number, as R writes row names that the header lacks.
    fn counts_rows(&self) -> bool {
        (1..).zip(self.records.iter().skip(1)).all(|(number, (start, _))| {
            let found = field(self.bytes, *start, &self.dialect);
            super::forms::integer(&value(self.bytes, &found, &self.dialect)) == Some(number)
        })
    }

    /// Whether a delimiter ends every record but the first.
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
                }
            });
        }
        let mut first: Vec<Forms> = self.first.iter().take(columns).map(|value| forms_of(value, null)).collect();
        if first.len() < columns && !given.pads {
            first.insert(0, Forms::ANY);
        }
        let has_header = given.has_header.unwrap_or_else(|| self.is_header(&first, &below));
        if given.all_text {
            below.fill(Forms::TEXT);
        }
        if has_header {
            let names = self.first.iter().take(columns).map(|name| String::from_utf8_lossy(name).trim().to_string());
            let row_names = (self.first.len() < columns && given.has_header.is_none()).then(String::new);
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
        differs || self.names_numbers(first, &below)
    }

    /// Whether numbers are names: years, one after the other, over fractions; or fractions over integers, of which the
    /// column of row names has none.
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

/// Types whose values look alike.
fn class(kind: Kind) -> u8 {
    match kind {
        Kind::Empty | Kind::Text => 0,
        Kind::Boolean => 1,
        Kind::Int | Kind::Huge | Kind::Double => 2,
        Kind::Date(_) | Kind::Timestamp(_) | Kind::Nanoseconds | Kind::Moment | Kind::MomentNanoseconds => 3,
    }
}

/// The dialect of a file of which it is known how many columns it has: `plain` if that gives as many, what is found out
/// otherwise. Of a file without records there is none.
pub(super) fn declared(bytes: &[u8], is_whole: bool, plain: &Given, given: &Given, columns: usize) -> Option<Sniffed> {
    let from = (0..plain.skipped_lines.unwrap_or(0)).fold(0, |at, _| after_line(bytes, at, line_end(bytes)));
    let rest = &bytes[from..];
    let dialect = candidates(plain, line_end(rest)).into_iter().next()?;
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
    // The first record is a row: the delimiter that ends the others is missing there, or is one too many.
    let is_uneven = other.has_trailing && given.has_header == Some(false);
    let is_wanted = other.forms.len() == columns && columns > 1 && other.dialect.quote.is_some() && !is_uneven;
    Some(match is_wanted {
        true => Sniffed { header: None, forms: Vec::new(), ..other },
        false => found(dialect, start, false),
    })
}

/// Takes out of columns' types what the values of whole records are none of. Records that are none are passed over.
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

/// Calls with each field of the record that begins at a place; gives where the next one begins.
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
