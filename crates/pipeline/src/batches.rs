//! A source of rows computed elsewhere: record batches become plain columns in memory.
//!
//! ```text
//! batch, batch, ... ─ push ─► columns as wide as their types, codes in order of appearance
//!                   ─ finish ─► columns as narrow as their values, codes in string order
//! ```
//! Each batch is decomposed when it arrives: no memory of the batch is kept, and the kept memory is
//! counted. The values that columns can hold are known only after the last batch. Until then a
//! source of [`BatchSource::expected`] rows stands in for them, and programs are checked against
//! it.

use std::collections::HashMap;
use std::sync::Arc;

use arrow_array::cast::AsArray;
use arrow_array::types::{
    ArrowPrimitiveType, Date32Type, Decimal128Type, Float32Type, Float64Type, Int8Type, Int16Type, Int32Type,
    Int64Type, UInt8Type, UInt16Type, UInt32Type, UInt64Type,
};
use arrow_array::types::{
    TimestampMicrosecondType, TimestampMillisecondType, TimestampNanosecondType, TimestampSecondType,
};
use arrow_array::{Array, RecordBatch, StringViewArray};
use arrow_schema::{DataType, TimeUnit};

use crate::block::Block;
use crate::budget::{Budget, Holder, Room};
use crate::cpu::ResultColumn;
use crate::plain::{Plain, PlainValues};
use crate::{Dictionary, Domain, Error, Interval, Result, Source, Type};

/// Rows in a morsel: pipelines count them in 16 bits.
const MORSEL_ROWS: usize = 1 << 16;

/// Rows of record batches, as a source.
#[derive(Debug)]
pub struct BatchSource {
    name: String,
    rows: usize,
    columns: Vec<Arc<Plain>>,
    domains: Vec<Domain>,
}

impl BatchSource {
    /// Creates a placeholder for rows that do not exist yet: it has no rows, only the domains of
    /// its columns.
    pub fn expected(name: &str, domains: Vec<Domain>) -> Self {
        Self { name: name.into(), rows: 0, columns: Vec::new(), domains }
    }

    /// Creates a source from columns of answers, chunk after chunk, of these domains. The columns'
    /// values determine the remaining static knowledge.
    ///
    /// # Errors
    /// [`Error::Memory`] if they do not fit, [`Error::Invalid`] for columns of other domains.
    pub(crate) fn of_answers(
        name: &str,
        domains: &[Domain],
        chunks: Vec<Vec<ResultColumn>>,
        budget: &Budget,
    ) -> Result<(Self, Room)> {
        let mut rows = 0;
        let mut parts: Vec<Vec<ResultColumn>> = domains.iter().map(|_| Vec::with_capacity(chunks.len())).collect();
        for chunk in chunks {
            if chunk.len() != domains.len() {
                return Err(Error::Invalid(format!("{} columns of {name} instead of {}", chunk.len(), domains.len())));
            }
            rows += chunk.first().map_or(0, ResultColumn::len);
            parts.iter_mut().zip(chunk).for_each(|(parts, column)| parts.push(column));
        }
        let mut room = budget.room("the answers of devices", Holder::Keeps);
        // An upper bound; half of it is released while columns are made.
        room.hold(rows * domains.len() * size_of::<i128>())?;
        let columns = domains.iter().zip(parts).map(|(domain, parts)| Plain::of_answers(domain, &parts));
        let (columns, domains): (Vec<Plain>, Vec<Domain>) = columns.collect::<Result<Vec<_>>>()?.into_iter().unzip();
        let columns = columns.into_iter().map(Arc::new).collect();
        Ok((Self { name: name.into(), rows, columns, domains }, room))
    }

    /// Returns the bytes that it takes.
    pub fn bytes(&self) -> usize {
        let dictionaries = self.domains.iter().filter_map(|domain| domain.dictionary.as_ref());
        let texts: usize = dictionaries.map(|dictionary| dictionary.texts().get_buffer_memory_size()).sum();
        texts + self.columns.iter().map(|column| column.bytes()).sum::<usize>()
    }

    /// Returns its only column.
    ///
    /// # Errors
    /// [`Error::Invalid`] if it has another number of columns.
    pub(crate) fn into_column(self) -> Result<(Arc<Plain>, Domain)> {
        match (<[_; 1]>::try_from(self.columns), <[_; 1]>::try_from(self.domains)) {
            (Ok([column]), Ok([domain])) => Ok((column, domain)),
            _ => Err(Error::Invalid(format!("the only column of {}", self.name))),
        }
    }
}

impl Source for BatchSource {
    fn name(&self) -> &str {
        &self.name
    }

    fn columns(&self) -> &[Domain] {
        &self.domains
    }

    fn morsels(&self) -> usize {
        self.rows.div_ceil(MORSEL_ROWS)
    }

    fn rows(&self, morsel: usize) -> usize {
        self.rows.saturating_sub(morsel * MORSEL_ROWS).min(MORSEL_ROWS)
    }

    fn all_rows(&self) -> u64 {
        self.rows as u64
    }

    fn interval(&self, _morsel: usize, _column: usize) -> Option<Interval> {
        None
    }

    fn load(&self, morsel: usize, column: usize) -> Result<Block> {
        let missing = || Error::Invalid(format!("no column {column} of {}", self.name));
        let plain = self.columns.get(column).ok_or_else(missing)?;
        Ok(Block::of_plain(Arc::clone(plain), morsel * MORSEL_ROWS, Source::rows(self, morsel)))
    }
}

/// Builder of a [`BatchSource`] that takes record batches.
#[derive(Debug)]
pub struct BatchSourceBuilder {
    name: String,
    rows: usize,
    columns: Vec<Growing>,
}

/// A column that still grows.
#[derive(Debug)]
struct Growing {
    /// Index in the batches.
    index: usize,
    ty: Type,
    plain: Plain,
    /// Codes by string.
    codes: HashMap<Box<str>, i32>,
    /// Bytes of the strings in `codes`.
    text_bytes: usize,
    /// True if no pipeline reads its values.
    is_only_counted: bool,
}

/// Returns the register type for values of an Arrow type, and the vector that collects its values.
fn collected(data_type: &DataType) -> Result<(Type, PlainValues)> {
    let (short, long, wide) = (PlainValues::I32(vec![]), PlainValues::I64(vec![]), PlainValues::I128(vec![]));
    Ok(match data_type {
        DataType::Boolean => (Type::Bool, short),
        DataType::Int8 | DataType::Int16 | DataType::Int32 | DataType::UInt8 | DataType::UInt16 | DataType::Date32 => {
            (Type::Int, short)
        }
        DataType::Int64 | DataType::UInt32 | DataType::Timestamp(..) => (Type::Int, long),
        DataType::UInt64 | DataType::Decimal128(..) => (Type::Int, wide),
        DataType::Float32 | DataType::Float64 => (Type::Double, PlainValues::F64(vec![])),
        DataType::Utf8 | DataType::LargeUtf8 | DataType::Utf8View => (Type::Text, short),
        DataType::Dictionary(_, values) => return collected(values),
        other => return Err(Error::Unsupported(format!("values of type {other}"))),
    })
}

impl BatchSourceBuilder {
    /// Creates a builder for some columns of batches, by their index and type there.
    ///
    /// # Errors
    /// [`Error::Unsupported`] for a type that pipelines do not know.
    pub fn new(name: &str, columns: &[(usize, DataType)]) -> Result<Self> {
        let column = |(index, data_type): &(usize, DataType)| {
            let (ty, values) = collected(data_type)?;
            let plain = Plain { values, valid: Vec::new() };
            Ok(Growing { index: *index, ty, plain, codes: HashMap::new(), text_bytes: 0, is_only_counted: false })
        };
        Ok(Self { name: name.into(), rows: 0, columns: columns.iter().map(column).collect::<Result<_>>()? })
    }

    /// Declares that a column is read only for its NULLs: no strings of it are kept.
    pub fn count_only(&mut self, column: usize) {
        if let Some(column) = self.columns.get_mut(column) {
            column.is_only_counted = true;
        }
    }

    /// Appends a batch.
    ///
    /// # Errors
    /// [`Error::Invalid`] if its columns are not of the declared types.
    pub fn push(&mut self, batch: &RecordBatch) -> Result<()> {
        for column in &mut self.columns {
            let array = batch.columns().get(column.index);
            let array = array.ok_or_else(|| Error::Invalid(format!("no column {} in a batch", column.index)))?;
            column.push(array.as_ref(), self.rows)?;
        }
        self.rows += batch.num_rows();
        Ok(())
    }

    /// Returns the bytes taken so far.
    pub fn bytes(&self) -> usize {
        self.columns.iter().map(|column| column.plain.bytes() + column.text_bytes).sum()
    }

    /// Builds the source after the last batch.
    pub fn finish(self) -> BatchSource {
        let (columns, domains) = self.columns.into_iter().map(Growing::finish).unzip();
        BatchSource { name: self.name, rows: self.rows, columns, domains }
    }
}

/// Bytes that a string costs beside its characters: a map entry, and another one when the map
/// grows.
const ENTRY_BYTES: usize = 48;

impl Growing {
    /// Appends an array after the `rows` that are there.
    fn push(&mut self, array: &dyn Array, rows: usize) -> Result<()> {
        if collected(array.data_type())?.0 != self.ty {
            return Err(Error::Invalid(format!("a batch with values of type {} for {}s", array.data_type(), self.ty)));
        }
        let (values, places) = match array.as_any_dictionary_opt() {
            Some(dictionary) => {
                // `normalized_keys` does not support an empty dictionary.
                let is_empty = dictionary.values().is_empty();
                let keys = if is_empty { vec![0; array.len()] } else { dictionary.normalized_keys() };
                let is_valid = |(row, key): &(usize, usize)| array.is_valid(*row) && dictionary.values().is_valid(*key);
                let places = keys.into_iter().enumerate();
                let places = places.map(|place| Some(place).filter(|place| !is_empty && is_valid(place)));
                (dictionary.values().as_ref(), Some(places.map(|place| place.map(|(_, key)| key)).collect::<Vec<_>>()))
            }
            None => (array, None),
        };
        let rows_of_it = Picked { array: values, places: places.as_deref() };
        if rows_of_it.has_nulls() || !self.plain.valid.is_empty() {
            self.plain.valid.resize(rows, 1);
            rows_of_it.for_each(|place| self.plain.valid.push(place.is_some().into()));
        }
        self.values(&rows_of_it)
    }

    fn values(&mut self, rows: &Picked<'_>) -> Result<()> {
        match (&mut self.plain.values, rows.array.data_type()) {
            (PlainValues::I32(to), DataType::Boolean) => {
                let values = rows.array.as_boolean();
                rows.for_each(|place| to.push(place.is_some_and(|place| values.value(place)).into()));
            }
            (PlainValues::I32(to), DataType::Int8) => rows.primitives::<Int8Type, _>(to, i32::from),
            (PlainValues::I32(to), DataType::Int16) => rows.primitives::<Int16Type, _>(to, i32::from),
            (PlainValues::I32(to), DataType::Int32) => rows.primitives::<Int32Type, _>(to, |v| v),
            (PlainValues::I32(to), DataType::UInt8) => rows.primitives::<UInt8Type, _>(to, i32::from),
            (PlainValues::I32(to), DataType::UInt16) => rows.primitives::<UInt16Type, _>(to, i32::from),
            (PlainValues::I32(to), DataType::Date32) => rows.primitives::<Date32Type, _>(to, |v| v),
            (PlainValues::I64(to), DataType::Int64) => rows.primitives::<Int64Type, _>(to, |v| v),
            (PlainValues::I64(to), DataType::UInt32) => rows.primitives::<UInt32Type, _>(to, i64::from),
            (PlainValues::I64(to), DataType::Timestamp(unit, _)) => match unit {
                TimeUnit::Second => rows.primitives::<TimestampSecondType, _>(to, |v| v),
                TimeUnit::Millisecond => rows.primitives::<TimestampMillisecondType, _>(to, |v| v),
                TimeUnit::Microsecond => rows.primitives::<TimestampMicrosecondType, _>(to, |v| v),
                TimeUnit::Nanosecond => rows.primitives::<TimestampNanosecondType, _>(to, |v| v),
            },
            (PlainValues::I128(to), DataType::UInt64) => rows.primitives::<UInt64Type, _>(to, i128::from),
            (PlainValues::I128(to), DataType::Decimal128(..)) => rows.primitives::<Decimal128Type, _>(to, |v| v),
            (PlainValues::F64(to), DataType::Float32) => rows.primitives::<Float32Type, _>(to, f64::from),
            (PlainValues::F64(to), DataType::Float64) => rows.primitives::<Float64Type, _>(to, |v| v),
            (PlainValues::I32(_), DataType::Utf8) => {
                let texts = rows.array.as_string::<i32>();
                self.texts(rows, |place| texts.value(place))?;
            }
            (PlainValues::I32(_), DataType::LargeUtf8) => {
                let texts = rows.array.as_string::<i64>();
                self.texts(rows, |place| texts.value(place))?;
            }
            (PlainValues::I32(_), DataType::Utf8View) => {
                let texts = rows.array.as_string_view();
                self.texts(rows, |place| texts.value(place))?;
            }
            (_, other) => return Err(Error::Invalid(format!("a batch with values of type {other}"))),
        }
        Ok(())
    }

    fn texts<'a>(&mut self, rows: &Picked<'_>, text: impl Fn(usize) -> &'a str) -> Result<()> {
        let PlainValues::I32(to) = &mut self.plain.values else { return Ok(()) };
        if self.is_only_counted {
            rows.for_each(|_| to.push(0));
            return Ok(());
        }
        let (codes, bytes) = (&mut self.codes, &mut self.text_bytes);
        let mut code_of = |text: &str| match codes.get(text) {
            Some(code) => *code,
            None => {
                // There are fewer strings than rows. No memory holds 2^31 rows of 4 bytes and a
                // string each.
                let code = codes.len() as i32;
                *bytes += text.len() + ENTRY_BYTES;
                codes.insert(text.into(), code);
                code
            }
        };
        rows.for_each(|place| to.push(place.map_or(0, |place| code_of(text(place)))));
        match i32::try_from(codes.len()) {
            Ok(_) => Ok(()),
            Err(_) => Err(Error::Unsupported("more different texts than 31 bits can number".into())),
        }
    }

    fn finish(mut self) -> (Arc<Plain>, Domain) {
        let nullable = self.plain.valid.contains(&0);
        if !nullable {
            self.plain.valid = Vec::new();
        }
        let domain = match self.ty {
            Type::Text => Domain::text(self.sort_texts(), nullable),
            Type::Bool => Domain::bool(nullable),
            Type::Double => Domain::double(nullable),
            // Rows from elsewhere have no row numbers of a source.
            Type::Int | Type::LateText => Domain::int(self.plain.interval(), nullable),
        };
        (Arc::new(self.plain.narrowed(domain.interval)), domain)
    }

    /// Renumbers codes so that they ascend as their strings do.
    fn sort_texts(&mut self) -> Arc<Dictionary> {
        if self.is_only_counted {
            // One entry for all rows: a row that is not NULL needs a string.
            return Arc::new(Dictionary::from_sorted(StringViewArray::from_iter_values([""])));
        }
        let mut sorted: Vec<(&str, i32)> = self.codes.iter().map(|(text, code)| (&**text, *code)).collect();
        sorted.sort_unstable();
        let mut ranks = vec![0i32; sorted.len()];
        for (rank, (_, code)) in sorted.iter().enumerate() {
            ranks[*code as usize] = rank as i32;
        }
        if let PlainValues::I32(codes) = &mut self.plain.values {
            // NULL rows have a code even if there are no strings.
            codes.iter_mut().for_each(|code| *code = ranks.get(*code as usize).copied().unwrap_or(0));
        }
        let texts = sorted.iter().map(|(text, _)| *text);
        Arc::new(Dictionary::from_sorted(StringViewArray::from_iter_values(texts)))
    }
}

/// Selected rows of an array.
struct Picked<'a> {
    array: &'a dyn Array,
    /// Position of each row in the array, `None` for NULL. Without positions, all rows in their
    /// order.
    places: Option<&'a [Option<usize>]>,
}

impl Picked<'_> {
    fn has_nulls(&self) -> bool {
        match self.places {
            Some(places) => places.contains(&None),
            None => self.array.null_count() > 0,
        }
    }

    /// Calls `f` with the position of each row in the array, `None` for NULL.
    fn for_each(&self, mut f: impl FnMut(Option<usize>)) {
        match (self.places, self.array.nulls()) {
            (Some(places), _) => places.iter().copied().for_each(f),
            (None, Some(nulls)) => nulls.iter().enumerate().for_each(|(row, valid)| f(valid.then_some(row))),
            (None, None) => (0..self.array.len()).for_each(|row| f(Some(row))),
        }
    }

    fn primitives<A: ArrowPrimitiveType, T: Default>(&self, to: &mut Vec<T>, convert: impl Fn(A::Native) -> T) {
        let values = self.array.as_primitive::<A>().values();
        match self.has_nulls() || self.places.is_some() {
            true => self.for_each(|place| to.push(place.map_or(T::default(), |place| convert(values[place])))),
            false => to.extend(values.iter().map(|value| convert(*value))),
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use arrow_array::types::Int32Type;
    use arrow_array::{
        ArrayRef, BooleanArray, Date32Array, Decimal128Array, DictionaryArray, Float32Array, Float64Array, Int8Array,
        Int16Array, Int32Array, Int64Array, LargeStringArray, StringArray, TimestampMicrosecondArray, UInt8Array,
        UInt16Array, UInt32Array, UInt64Array,
    };
    use arrow_schema::{Field, Schema};

    use super::*;
    use crate::VECTOR_ROWS;
    use crate::block::{Rows, Scratch};

    fn batch(array: &ArrayRef) -> RecordBatch {
        let field = Field::new("x", array.data_type().clone(), true);
        RecordBatch::try_new(Arc::new(Schema::new(vec![field])), vec![Arc::clone(array)]).unwrap()
    }

    fn source(arrays: &[ArrayRef]) -> BatchSource {
        let mut builder = BatchSourceBuilder::new("t", &[(0, arrays[0].data_type().clone())]).unwrap();
        arrays.iter().for_each(|array| builder.push(&batch(array)).unwrap());
        builder.finish()
    }

    /// Returns every row as an integer, fetched both alone and as a part of its vector.
    fn integers(source: &BatchSource) -> Vec<Option<i128>> {
        let mut all = Vec::new();
        let mut scratch = Scratch::new();
        for morsel in 0..source.morsels() {
            let block = source.load(morsel, 0).unwrap();
            for row in 0..Source::rows(source, morsel) {
                let (vector, place) = (row / VECTOR_ROWS, row % VECTOR_ROWS);
                let (mut one, mut many) = ([0i128; VECTOR_ROWS], [0i128; VECTOR_ROWS]);
                let mut valid = [0u8; VECTOR_ROWS];
                let whole = Rows::Vector { vector, n: place + 1 };
                block.integers(Rows::Picked(&[row as u16]), &mut one, &mut scratch).unwrap();
                block.integers(whole, &mut many, &mut scratch).unwrap();
                block.validity(whole, &mut valid, &mut scratch);
                assert_eq!(one[0], many[place]);
                let mut mask = [0; onehop_segment::packed::LANES];
                block.valid_mask(vector, VECTOR_ROWS, &mut mask);
                assert_eq!(mask[place / 32] >> (place % 32) & 1, u32::from(valid[place]));
                all.push((valid[place] == 1).then_some(one[0]));
            }
        }
        all
    }

    #[test]
    fn integers_of_every_type_come_through() {
        let wide = i128::from(i64::MAX) * 1000;
        let arrays: [(ArrayRef, [i128; 2]); 12] = [
            (Arc::new(Int8Array::from(vec![Some(-128), None, Some(127)])), [-128, 127]),
            (Arc::new(Int16Array::from(vec![Some(i16::MIN), None, Some(i16::MAX)])), [-32768, 32767]),
            (Arc::new(Int32Array::from(vec![Some(i32::MIN), None, Some(7)])), [i32::MIN.into(), 7]),
            (
                Arc::new(Int64Array::from(vec![Some(i64::MIN), None, Some(i64::MAX)])),
                [i64::MIN.into(), i64::MAX.into()],
            ),
            (Arc::new(UInt8Array::from(vec![Some(0), None, Some(255)])), [0, 255]),
            (Arc::new(UInt16Array::from(vec![Some(9), None, Some(u16::MAX)])), [9, 65535]),
            (Arc::new(UInt32Array::from(vec![Some(9), None, Some(u32::MAX)])), [9, u32::MAX.into()]),
            (Arc::new(UInt64Array::from(vec![Some(9), None, Some(u64::MAX)])), [9, u64::MAX.into()]),
            (Arc::new(Date32Array::from(vec![Some(-1), None, Some(20_000)])), [-1, 20_000]),
            (Arc::new(TimestampMicrosecondArray::from(vec![Some(-1), None, Some(1 << 50)])), [-1, 1 << 50]),
            (Arc::new(Decimal128Array::from(vec![Some(-wide), None, Some(wide)])), [-wide, wide]),
            (Arc::new(BooleanArray::from(vec![Some(true), None, Some(false)])), [1, 0]),
        ];
        for (array, [first, last]) in arrays {
            let all = source(&[Arc::clone(&array)]);
            assert_eq!(integers(&all), [Some(first), None, Some(last)], "{}", array.data_type());
            let Domain { interval, nullable, ty, .. } = &all.columns()[0];
            assert!(*nullable);
            if *ty == Type::Int {
                assert_eq!(*interval, Interval::new(first, last), "{}", array.data_type());
            }
            // Slices that start in the middle, twice.
            let last_only = source(&[array.slice(2, 1), array.slice(2, 1)]);
            assert_eq!(integers(&last_only), [Some(last), Some(last)]);
            assert!(!last_only.columns()[0].nullable);
            // Only NULL, and no rows.
            assert_eq!(integers(&source(&[array.slice(1, 1)])), [None]);
            assert_eq!(integers(&source(&[array.slice(0, 0)])), []);
        }
    }

    #[test]
    fn doubles_come_through() {
        let arrays: [ArrayRef; 2] = [
            Arc::new(Float32Array::from(vec![None, Some(-0.5), Some(f32::INFINITY)])),
            Arc::new(Float64Array::from(vec![None, Some(-0.5), Some(f64::INFINITY)])),
        ];
        for array in arrays {
            let block = source(&[array]).load(0, 0).unwrap();
            let mut values = [0.0; VECTOR_ROWS];
            block.doubles(Rows::Picked(&[1, 2]), &mut values).unwrap();
            assert_eq!(values[..2], [-0.5, f64::INFINITY]);
            assert!(block.has_nulls() && !block.is_null());
        }
    }

    #[test]
    fn texts_become_codes_in_their_order() {
        let texts = vec![Some("pear"), None, Some("apple"), Some(""), Some("pear")];
        let dictionary: DictionaryArray<Int32Type> = texts.iter().copied().collect();
        let arrays: [ArrayRef; 4] = [
            Arc::new(StringArray::from(texts.clone())),
            Arc::new(LargeStringArray::from(texts.clone())),
            Arc::new(StringViewArray::from(texts.clone())),
            Arc::new(dictionary),
        ];
        for array in arrays {
            // The second batch adds a string that is less than one that already has a code.
            let all = source(&[array.slice(0, 2), array.slice(2, 3)]);
            assert_eq!(integers(&all), [Some(2), None, Some(1), Some(0), Some(2)], "{}", array.data_type());
            let dictionary = all.columns()[0].dictionary.as_ref().unwrap();
            assert_eq!(dictionary.texts().iter().flatten().collect::<Vec<_>>(), ["", "apple", "pear"]);
            assert_eq!(integers(&source(&[array.slice(1, 1)])), [None]);
        }
    }

    #[test]
    fn of_texts_that_are_only_counted_none_is_kept() {
        let texts: ArrayRef = Arc::new(StringViewArray::from(vec![Some("pear"), None, Some("apple")]));
        let schema = Arc::new(Schema::new(vec![Field::new("t", DataType::Utf8View, true)]));
        let batch = RecordBatch::try_new(schema, vec![texts]).unwrap();
        let mut builder = BatchSourceBuilder::new("t", &[(0, DataType::Utf8View)]).unwrap();
        builder.count_only(0);
        builder.push(&batch).unwrap();
        let all = builder.finish();
        assert_eq!(all.columns()[0].dictionary.as_ref().unwrap().len(), 1);
        assert_eq!(integers(&all), [Some(0), None, Some(0)]);
    }

    #[test]
    fn many_rows_are_several_morsels() {
        let rows = MORSEL_ROWS + 1500;
        let numbers: ArrayRef = Arc::new((0..rows as i64).map(|v| (v % 9 > 0).then_some(v)).collect::<Int64Array>());
        let all = source(&[numbers.slice(0, 5), numbers.slice(5, rows - 5)]);
        assert_eq!((all.morsels(), all.all_rows()), (2, rows as u64));
        assert_eq!((Source::rows(&all, 0), Source::rows(&all, 1)), (MORSEL_ROWS, 1500));
        let expected = (0..rows as i128).map(|v| (v % 9 > 0).then_some(v));
        assert!(integers(&all).into_iter().eq(expected));
    }

    #[test]
    fn batches_of_other_columns_are_refused() {
        let mut builder = BatchSourceBuilder::new("t", &[(0, DataType::Int32)]).unwrap();
        let texts: ArrayRef = Arc::new(StringArray::from(vec!["a"]));
        assert!(matches!(builder.push(&batch(&texts)), Err(Error::Invalid(_))));
        assert!(matches!(BatchSourceBuilder::new("t", &[(0, DataType::Binary)]), Err(Error::Unsupported(_))));
    }
}
