//! Decimals. Nearly all fit 64 bits, regardless of their declared precision (a SUM is DECIMAL(38)).
//! A column starts with 64-bit keys and becomes 16-byte plain values with the first value that
//! needs it.

use arrow_array::Array;
use arrow_array::cast::AsArray;
use arrow_array::types::Decimal128Type;

use super::validity::{BlockValidity, Validity};
use super::{ColumnBuilder, DictionaryBytes, EncodedColumn, FixedBuilder, type_mismatch};
use crate::layout::{EncodingCode, chunk};
use crate::types::ColumnType;
use crate::zone::{Zeroes, Zone};
use crate::{Error, Result};

/// Collects decimals.
pub(crate) struct DecimalBuilder {
    name: String,
    column_type: ColumnType,
    state: State,
}

enum State {
    Narrow(FixedBuilder),
    Wide(WideBuilder),
}

#[derive(Default)]
struct WideBuilder {
    staged: Vec<i128>,
    validity: Validity,
    blocks: Vec<WideBlock>,
}

struct WideBlock {
    values: Vec<i128>,
    validity: BlockValidity,
    zone: Zone,
}

impl DecimalBuilder {
    /// Creates a builder of a column.
    pub fn new(name: &str, column_type: ColumnType) -> Self {
        let narrow = FixedBuilder::new(name, column_type.clone());
        Self { name: name.to_string(), column_type, state: State::Narrow(narrow) }
    }

    fn widen(&mut self) -> Result<&mut WideBuilder> {
        if let State::Narrow(narrow) = &mut self.state {
            let narrow = std::mem::replace(narrow, FixedBuilder::new(&self.name, self.column_type.clone()));
            let parts = narrow.into_wide()?;
            let blocks =
                parts.blocks.into_iter().map(|(values, validity, zone)| WideBlock { values, validity, zone }).collect();
            self.state = State::Wide(WideBuilder { staged: parts.staged, validity: parts.validity, blocks });
        }
        match &mut self.state {
            State::Wide(wide) => Ok(wide),
            State::Narrow(_) => Err(Error::Usage("a decimal column did not widen".into())),
        }
    }
}

impl ColumnBuilder for DecimalBuilder {
    fn append(&mut self, array: &dyn Array) -> Result<()> {
        if let State::Narrow(narrow) = &mut self.state {
            match narrow.append(array) {
                Err(Error::Value { .. }) => {}
                done => return done,
            }
        }
        let Some(decimals) = array.as_primitive_opt::<Decimal128Type>() else {
            return Err(type_mismatch(&self.name, &self.column_type, array.data_type()));
        };
        let wide = self.widen()?;
        wide.staged.extend_from_slice(decimals.values());
        wide.validity.append(array);
        Ok(())
    }

    fn end_block(&mut self) -> Result<()> {
        match &mut self.state {
            State::Narrow(narrow) => narrow.end_block(),
            State::Wide(wide) => {
                wide.end_block();
                Ok(())
            }
        }
    }

    fn finish(self: Box<Self>) -> Result<Box<dyn EncodedColumn>> {
        match self.state {
            State::Narrow(narrow) => Box::new(narrow).finish(),
            State::Wide(wide) => Ok(Box::new(WideColumn { blocks: wide.blocks })),
        }
    }

    fn memory_bytes(&self) -> usize {
        match &self.state {
            State::Narrow(narrow) => narrow.memory_bytes(),
            State::Wide(wide) => {
                (wide.staged.capacity() + wide.blocks.iter().map(|b| b.values.capacity()).sum::<usize>()) * 16
            }
        }
    }
}

impl WideBuilder {
    fn end_block(&mut self) {
        let mut values = std::mem::take(&mut self.staged);
        let rows = values.len() as u64;
        let mut ends: Option<(i128, i128)> = None;
        for (row, value) in values.iter_mut().enumerate() {
            if self.validity.is_valid(row) {
                ends = Some(ends.map_or((*value, *value), |(min, max)| (min.min(*value), max.max(*value))));
            } else {
                *value = 0;
            }
        }
        let validity = self.validity.take();
        let zone = match ends {
            Some((min, max)) => Zone::of_keys(min, max, Zeroes::One, validity.null_count as u64, rows),
            None => Zone::of_nulls(rows, false),
        };
        self.blocks.push(WideBlock { values, validity, zone });
    }
}

struct WideColumn {
    blocks: Vec<WideBlock>,
}

impl EncodedColumn for WideColumn {
    fn encoding(&self) -> EncodingCode {
        EncodingCode::Plain
    }

    fn width(&self) -> u8 {
        16
    }

    fn dictionary(&self) -> Option<DictionaryBytes<'_>> {
        None
    }

    fn zone(&self, block: usize) -> Zone {
        self.blocks[block].zone
    }

    fn base(&self, _block: usize) -> i64 {
        0
    }

    fn chunk(&self, block: usize, chunk: usize, out: &mut Vec<u8>) {
        out.clear();
        let block = &self.blocks[block];
        match chunk {
            chunk::VALIDITY => block.validity.write(out),
            chunk::VALUES if block.zone.has_values() => {
                out.extend(block.values.iter().flat_map(|value| value.to_le_bytes()));
            }
            _ => {}
        }
    }
}
