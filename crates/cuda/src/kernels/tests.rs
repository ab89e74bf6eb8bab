//! The kernels' source, compiled for the host, compared with plain loops over rows.

use std::sync::Arc;

use super::q6::*;
use crate::{Context, DeviceBuf, Error, Stream, fake};

const PLACES: usize = 4;
const VECTOR_ROWS: usize = 1024;

struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }

    fn below(&mut self, n: u64) -> u64 {
        (self.next() >> 11) % n.max(1)
    }
}

/// Packs codes bit by bit, as the layout is defined.
fn pack(bits: u32, codes: &[u32]) -> Vec<u32> {
    let mut words = Vec::new();
    for vector in codes.chunks(VECTOR_ROWS) {
        let start = words.len();
        words.resize(start + 32 * bits as usize, 0);
        for (row, code) in vector.iter().enumerate() {
            for bit in 0..bits as usize {
                let at = row / 32 * bits as usize + bit;
                words[start + at / 32 * 32 + row % 32] |= (code >> bit & 1) << (at % 32);
            }
        }
    }
    words
}

fn on_device(context: &Arc<Context>, bytes: &[u8]) -> DeviceBuf {
    // The buffer has exactly this length, so that a read past the end is out of bounds.
    let mut buffer = DeviceBuf::new(context, bytes.len()).unwrap();
    buffer.copy_from(0, bytes).unwrap();
    buffer
}

fn bytes_of<T: Copy>(values: &[T]) -> &[u8] {
    unsafe { std::slice::from_raw_parts(values.as_ptr().cast(), size_of_val(values)) }
}

fn largest(bits: u32) -> u64 {
    (1u64 << bits) - 1
}

/// Random pieces of these widths on the device, and their sum as a loop computes it.
struct Case {
    words: [DeviceBuf; PLACES],
    shape: Shape,
    pieces: DeviceBuf,
    count: usize,
    expected: i128,
}

fn case(context: &Arc<Context>, bits: [u32; PLACES], random: &mut Random) -> Case {
    let count = 1 + random.below(3) as usize;
    // Discount and price have dictionaries in some cases.
    let dictionaries: [Option<Vec<i64>>; 2] = std::array::from_fn(|n| {
        let bits = bits[Place::Discount as usize + n];
        (bits <= 10 && random.below(2) == 0)
            .then(|| (0..=largest(bits)).map(|_| random.next() as i64 >> random.below(40)).collect())
    });
    let (mut words, mut pieces, mut expected) = ([const { Vec::new() }; PLACES], Vec::new(), 0i128);
    for _ in 0..count {
        let rows = [1, 31, 32, 33, 1000, 1024, 1025, 2048, 5000][random.below(9) as usize];
        let mut piece = Piece { rows: rows as u32, ..Piece::default() };
        let mut codes = [const { Vec::new() }; PLACES];
        for place in 0..PLACES {
            let is_stored = random.below(5) > 0;
            let most = largest(bits[place]);
            codes[place] = (0..rows).map(|_| if is_stored { random.below(most + 1) as u32 } else { 0 }).collect();
            let dictionary = place.checked_sub(2).and_then(|n| dictionaries[n].as_ref());
            let (a, b) = (random.below(most + 1) as u32, random.below(most + 1) as u32);
            piece.columns[place] = PieceColumn {
                at: words[place].len() as u64,
                base: if dictionary.is_some() { 0 } else { random.next() as i64 >> random.below(60) },
                min: a.min(b) / 2,
                span: a.max(b) - a.min(b) / 2,
                stored: u32::from(is_stored && bits[place] > 0),
                reserved: 0,
            };
            if is_stored {
                words[place].extend(pack(bits[place], &codes[place]));
            }
        }
        for row in 0..rows {
            let passes = |place: usize| {
                let column = &piece.columns[place];
                (column.min..=column.min + column.span).contains(&codes[place][row])
            };
            let value = |place: usize| match &dictionaries[place - 2] {
                Some(values) => values[codes[place][row] as usize],
                None => piece.columns[place].base.wrapping_add(codes[place][row].into()),
            };
            if passes(0) && passes(1) && passes(2) {
                expected += i128::from(value(2)) * i128::from(value(3));
            }
        }
        pieces.push(piece);
    }
    let dictionaries = dictionaries.map(|values| values.map(|values| Arc::new(on_device(context, bytes_of(&values)))));
    Case {
        words: words.map(|words| on_device(context, bytes_of(&words))),
        shape: Shape { bits, dictionaries },
        pieces: on_device(context, bytes_of(&pieces)),
        count,
        expected,
    }
}

fn add(q6: &Q6, case: &Case, threads: Threads, context: &Arc<Context>) -> Added {
    let (stream, sums) = (Stream::new(context).unwrap(), Sums::new(context).unwrap());
    let [a, b, c, d] = &case.words;
    let columns = [a, b, c, d].map(|words| Some((words, 0)));
    unsafe { q6.add_segments(&stream, threads, &case.shape, ((&case.pieces, 0), case.count), columns, &sums).unwrap() };
    stream.synchronize().unwrap();
    sums.read().unwrap()
}

#[test]
fn packed_columns_of_every_width_add_up() {
    let context = fake::context();
    let q6 = Q6::new(&context, &fake::nvrtc()).unwrap();
    let mut found = 0;
    for bits in 0..=32 {
        // Each width occurs in each place, in 33 compilations.
        let bits = [bits, (bits + 8) % 33, (bits + 16) % 33, (bits + 25) % 33];
        let mut random = Random(0x9e37_79b9 + u64::from(bits[0]));
        for number in 0..6 {
            let case = case(&context, bits, &mut random);
            let threads = if number % 3 == 0 { Threads::One } else { Threads::Many };
            let added = add(&q6, &case, threads, &context);
            assert_eq!(added, Added { sum: case.expected, damaged: 0 }, "{bits:?}, case {number}");
            found += usize::from(case.expected != 0);
        }
    }
    assert!(found > 60, "{found} cases with a row that passes");
}

#[test]
fn codes_that_no_dictionary_has_are_damage() {
    let context = fake::context();
    let q6 = Q6::new(&context, &fake::nvrtc()).unwrap();
    let everything = |stored| PieceColumn { span: u32::MAX, stored, ..PieceColumn::default() };
    let piece = Piece { rows: 40, reserved: 0, columns: [everything(0), everything(0), everything(1), everything(0)] };
    let codes: Vec<u32> = (0..VECTOR_ROWS as u32).map(|row| row % 8).collect();
    let words = on_device(&context, bytes_of(&pack(3, &codes)));
    let dictionary = Arc::new(on_device(&context, bytes_of(&[10i64, 20, 30])));
    let shape = Shape { bits: [0, 0, 3, 0], dictionaries: [Some(dictionary), None] };
    let (stream, sums) = (Stream::new(&context).unwrap(), Sums::new(&context).unwrap());
    let pieces = on_device(&context, bytes_of(&[piece]));
    let columns = [None, None, Some((&words, 0)), None];
    unsafe { q6.add_segments(&stream, Threads::Many, &shape, ((&pieces, 0), 1), columns, &sums).unwrap() };
    stream.synchronize().unwrap();
    // Rows 0 to 39 have codes 0 to 7, five times each. Codes 3 to 7 are not in the dictionary.
    assert_eq!(sums.read().unwrap().damaged, 25);
}

const FILTER: RowFilter =
    RowFilter { shipdate_from: 100, shipdate_before: 200, discount_min: 5, discount_max: 7, quantity_below: 2400 };

/// Builds a page in the layout of the kernel.
fn page(bytes: usize, rows: &[(i64, i64, i64, i32)]) -> Vec<u8> {
    let mut page = vec![0; bytes];
    page[4..6].copy_from_slice(&(rows.len() as u16).to_le_bytes());
    for (n, (quantity, price, discount, shipdate)) in rows.iter().enumerate() {
        let at = 16 + n * 80;
        page[at + 24..at + 32].copy_from_slice(&quantity.to_le_bytes());
        page[at + 32..at + 40].copy_from_slice(&price.to_le_bytes());
        page[at + 40..at + 48].copy_from_slice(&discount.to_le_bytes());
        page[at + 56..at + 60].copy_from_slice(&shipdate.to_le_bytes());
        let slot = bytes - 2 * (n + 1);
        page[slot..slot + 2].copy_from_slice(&(at as u16).to_le_bytes());
    }
    page
}

fn add_pages(q6: &Q6, context: &Arc<Context>, pages: &[u8], page_bytes: usize, threads: Threads) -> Added {
    let (stream, sums) = (Stream::new(context).unwrap(), Sums::new(context).unwrap());
    let buffer = on_device(context, pages);
    unsafe {
        q6.add_rows(&stream, threads, &FILTER, (&buffer, 0, pages.len() / page_bytes, page_bytes), &sums).unwrap()
    };
    stream.synchronize().unwrap();
    sums.read().unwrap()
}

#[test]
fn pages_of_rows_add_up() {
    let context = fake::context();
    let q6 = Q6::new(&context, &fake::nvrtc()).unwrap();
    let mut random = Random(7);
    for page_bytes in [4096, 8192] {
        let (mut pages, mut expected) = (Vec::new(), 0i128);
        for _ in 0..20 {
            let most = (page_bytes as u64 - 16) / 82;
            let rows: Vec<_> = (0..random.below(most + 1))
                .map(|_| {
                    let price = random.next() as i64 >> random.below(60);
                    (random.below(5000) as i64, price, random.below(11) as i64, random.below(300) as i32)
                })
                .collect();
            for (quantity, price, discount, shipdate) in &rows {
                let passes = (100..200).contains(shipdate) && (5..=7).contains(discount) && *quantity < 2400;
                expected += if passes { i128::from(*price) * i128::from(*discount) } else { 0 };
            }
            pages.extend(page(page_bytes, &rows));
        }
        assert!(expected != 0);
        for threads in [Threads::One, Threads::Many] {
            let added = add_pages(&q6, &context, &pages, page_bytes, threads);
            assert_eq!(added, Added { sum: expected, damaged: 0 });
        }
    }
}

#[test]
fn pages_that_make_no_sense_are_damage_and_nothing_else() {
    let context = fake::context();
    let q6 = Q6::new(&context, &fake::nvrtc()).unwrap();
    let mut random = Random(11);
    let rows = [(0, 1000, 6, 150); 10];
    let good = add_pages(&q6, &context, &page(4096, &rows), 4096, Threads::Many);
    assert_eq!(good, Added { sum: 60_000, damaged: 0 });
    // A row at an invalid offset, and more rows than a page can have.
    for (at, value) in [(4094, 3u16), (4094, 12), (4094, 4080), (4, u16::MAX), (4, 2041)] {
        let mut wrong = page(4096, &rows);
        wrong[at..at + 2].copy_from_slice(&value.to_le_bytes());
        assert!(add_pages(&q6, &context, &wrong, 4096, Threads::Many).damaged > 0, "{value} at {at}");
    }
    for _ in 0..200 {
        let noise: Vec<u8> = (0..4096).map(|_| random.next() as u8).collect();
        add_pages(&q6, &context, &noise, 4096, Threads::Many);
    }
}

#[test]
fn what_does_not_compile_has_the_compiler_s_words() {
    let error = fake::nvrtc().compile("wrong.cu", "this is no C++", (9, 0), &[]).unwrap_err();
    assert!(matches!(&error, Error::Compile { name, log } if name == "wrong.cu" && log.contains("error")), "{error}");
    assert!(fake::nvrtc().compile("zero.cu", "int a;\0", (9, 0), &[]).is_err());
}
