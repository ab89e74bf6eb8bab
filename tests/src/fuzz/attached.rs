//! Rows that a PostgreSQL server sends to a database that attached it: binary COPY, in messages of
//! any size.
//!
//! The first byte of an input is the size of its messages.

use std::sync::Arc;

use onehop_engine::arrow::datatypes::{DataType, Field, IntervalUnit, Schema, SchemaRef, TimeUnit};
use onehop_engine::value_texts;
use onehop_postgres::Rows;

use super::{Made, Outcome, Target, Verdict};

struct Attached(SchemaRef);

pub(super) fn target() -> Made {
    let types = [
        DataType::Boolean,
        DataType::Int16,
        DataType::Int64,
        DataType::Float32,
        DataType::Float64,
        DataType::Decimal128(38, 18),
        DataType::Decimal256(76, 38),
        DataType::Utf8View,
        DataType::Binary,
        DataType::Date32,
        DataType::Time64(TimeUnit::Microsecond),
        DataType::Timestamp(TimeUnit::Microsecond, None),
        DataType::Timestamp(TimeUnit::Microsecond, Some("UTC".into())),
        DataType::Interval(IntervalUnit::MonthDayNano),
    ];
    let fields = types.into_iter().enumerate().map(|(at, data_type)| Field::new(format!("c{at}"), data_type, true));
    Ok(Box::new(Attached(Arc::new(Schema::new(fields.collect::<Vec<_>>())))))
}

impl Target for Attached {
    fn seeds(&self) -> Vec<Vec<u8>> {
        let moment = 762_000_000_000_000_i64.to_be_bytes();
        let numeric = [0, 3, 0, 1, 0x40, 0, 0, 6, 0, 1, 0x26, 0x94, 0x13, 0x88];
        let interval = [0, 0, 0, 0, 0, 0x0F, 0x42, 0x40, 0, 0, 0, 3, 0, 0, 0, 14];
        let double = 2.5_f64.to_be_bytes();
        let fields: [&[u8]; 14] = [
            &[1],
            &[0, 5],
            &moment,
            &[0x3F, 0xC0, 0, 0],
            &double,
            &numeric,
            &numeric,
            "text ü".as_bytes(),
            &[0, 255],
            &[0, 0, 0x22, 0x79],
            &[0, 0, 0, 0x0A, 0, 0, 0, 0],
            &moment,
            &moment,
            &interval,
        ];
        let mut rows = b"PGCOPY\n\xff\r\n\0\0\0\0\0\0\0\0\0".to_vec();
        rows.extend((fields.len() as u16).to_be_bytes());
        for field in fields {
            rows.extend((field.len() as u32).to_be_bytes());
            rows.extend(field);
        }
        rows.extend((fields.len() as u16).to_be_bytes());
        rows.extend(vec![255; 4 * fields.len() + 2]);
        [255, 7].map(|size| [&[size], &rows[..]].concat()).to_vec()
    }

    fn run(&mut self, input: &[u8]) -> Verdict {
        let (size, bytes) = input.split_first().unwrap_or((&1, &[]));
        let mut rows = Rows::new(Arc::clone(&self.0), "there", "t".into());
        let read = bytes.chunks(usize::from(*size).max(1)).try_for_each(|message| rows.read(message));
        let ended = read.and_then(|()| rows.end());
        if ended.is_err() {
            return Ok(Outcome::Refused);
        }
        match rows.take() {
            Ok(batch) if batch.columns().iter().all(|column| value_texts(column).is_ok()) => Ok(Outcome::Accepted),
            _ => Ok(Outcome::Refused),
        }
    }
}
