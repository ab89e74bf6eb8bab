//! The kernel that verifies blocks, compared with the library that writes checksums and a scan of
//! every value; and the planned reads of chunks.

use std::path::Path as FsPath;
use std::sync::Arc;

use onehop_io::{LocalFile, RequestedPath};
use onehop_segment::packed::{VECTOR_ROWS, Values, unpack, vector_words};
use onehop_segment::{BlockPlace, ChunkPlace};

use super::origin::Origin;
use super::verify::{Found, Planes, kernel, launch, records};
use super::*;
use crate::fake;
use crate::fused::{Compiler, bytes_of};
use crate::{CufileFile, Kernel, Stream};

mod reads;

struct Random(u64);

impl Random {
    fn word(&mut self) -> u32 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 20) as u32
    }

    fn plane(&mut self, vectors: usize, bits: u32) -> Vec<u32> {
        (0..vectors * vector_words(bits)).map(|_| self.word()).collect()
    }
}

/// Planes of a block in host memory.
struct Block {
    place: BlockPlace,
    planes: [Vec<u32>; 3],
}

fn chunk(plane: &[u32]) -> Option<ChunkPlace> {
    let bytes = bytes_of(plane);
    (!bytes.is_empty()).then(|| ChunkPlace { offset: 0, bytes: bytes.len(), crc: crc32c::crc32c(bytes) })
}

impl Block {
    fn new(random: &mut Random, rows: usize, bits: [u32; 2], has_nulls: bool, is_code: bool) -> Self {
        let vectors = rows.div_ceil(VECTOR_ROWS);
        let (low, high) = (random.plane(vectors, bits[0]), random.plane(vectors, bits[1]));
        let mut valid = if has_nulls { random.plane(vectors, 1) } else { Vec::new() };
        // No row past the last has a value.
        for (at, word) in valid.iter_mut().enumerate() {
            let (vector, lane) = (at / 32, at % 32);
            (0..32).filter(|i| vector * VECTOR_ROWS + i * 32 + lane >= rows).for_each(|i| *word &= !(1 << i));
        }
        let valid_rows: usize = valid.iter().map(|word| word.count_ones() as usize).sum();
        let base = if is_code { 0 } else { i64::from(random.word() as i32) << 20 };
        let place = BlockPlace {
            rows,
            null_count: if has_nulls { rows - valid_rows } else { 0 },
            base,
            bits,
            is_code,
            validity: chunk(&valid),
            low: chunk(&low),
            high: chunk(&high),
            bounds: (0, 0),
        };
        let mut block = Self { place, planes: [low, high, valid] };
        let values = block.values();
        block.place.bounds = (*values.iter().min().unwrap(), *values.iter().max().unwrap());
        block
    }

    /// Returns the values that must lie within the bounds.
    fn values(&self) -> Vec<i64> {
        let [low, high, valid] = &self.planes;
        let (mut a, mut b, mut is_valid): (Values, Values, Values) = ([0; 1024], [0; 1024], [1; 1024]);
        let mut all = Vec::new();
        for vector in 0..self.place.rows.div_ceil(VECTOR_ROWS) {
            let words =
                |plane: &'_ [u32], bits: u32| plane[vector * vector_words(bits)..][..vector_words(bits)].to_vec();
            unpack(self.place.bits[0], &words(low, self.place.bits[0]), &mut a);
            unpack(self.place.bits[1], &words(high, self.place.bits[1]), &mut b);
            if !valid.is_empty() && !self.place.is_code {
                unpack(1, &words(valid, 1), &mut is_valid);
            }
            let rows = (self.place.rows - vector * VECTOR_ROWS).min(VECTOR_ROWS);
            let value = |row: usize| self.place.base.wrapping_add((u64::from(b[row]) << 32 | u64::from(a[row])) as i64);
            all.extend((0..rows).filter(|row| is_valid[*row] == 1).map(value));
        }
        all
    }
}

/// Returns the kernel's findings for blocks.
fn verified(context: &Arc<Context>, kernel: &Kernel, blocks: &[Block]) -> Vec<Found> {
    let mut memory: Vec<u8> = vec![0xee; 256];
    let mut offsets = Vec::new();
    for block in blocks {
        offsets.push(block.planes.each_ref().map(|plane| {
            let at = memory.len();
            memory.extend_from_slice(bytes_of(plane));
            if plane.is_empty() { 0 } else { at as u64 }
        }));
    }
    let mut data = DeviceBuf::new(context, memory.len()).unwrap();
    data.copy_from(0, &memory).unwrap();
    let at = |offset: u64| if offset == 0 { 0 } else { data.address() + offset };
    let planes = offsets.iter().map(|[low, high, valid]| Planes { low: at(*low), high: at(*high), valid: at(*valid) });
    let (records, units) = records(blocks.iter().map(|block| &block.place).zip(planes));
    let mut on_device = DeviceBuf::new(context, bytes_of(&records).len()).unwrap();
    on_device.copy_from(0, bytes_of(&records)).unwrap();
    let mut found = DeviceBuf::new(context, records.len() * size_of::<Found>()).unwrap();
    found.fill(0).unwrap();
    let stream = Stream::new(context).unwrap();
    let places = (on_device.address(), found.address());
    // SAFETY: the memory has the layout of the kernel, and the stream is waited for.
    unsafe { launch(kernel, &stream, places, (records.len(), units), 3).unwrap() };
    stream.synchronize().unwrap();
    let mut all = vec![Found::default(); records.len()];
    let bytes = all.len() * size_of::<Found>();
    // SAFETY: numbers, of that length.
    let to = unsafe { std::slice::from_raw_parts_mut(all.as_mut_ptr().cast::<u8>(), bytes) };
    found.copy_to(0, to).unwrap();
    all
}

#[test]
fn the_kernel_finds_what_the_host_finds() {
    let context = fake::context();
    let compiler = Compiler::new(&context, &fake::nvrtc(), None);
    let kernel = kernel(&compiler).unwrap();
    let mut random = Random(0x5851_f42d_4c95_7f2d);
    let mut blocks = Vec::new();
    for bits in 1..=64u32 {
        let rows = [1, 31, 1024, 1025, 3000, 20 * 1024 + 77][bits as usize % 6];
        let halves = [bits.min(32), bits.saturating_sub(32)];
        blocks.push(Block::new(&mut random, rows, halves, bits % 3 > 0, bits < 32 && bits % 5 == 0));
    }
    // A block of the largest size, and one with only a validity plane.
    blocks.push(Block::new(&mut random, 64 * 1024, [12, 0], true, false));
    blocks.push(Block::new(&mut random, 3000, [0, 0], true, false));
    let all_right = verified(&context, &kernel, &blocks);
    for (found, block) in all_right.iter().zip(&blocks) {
        assert_eq!(found.is_wrong(&block.place), None, "{:?}", block.place);
    }
    // Flips one bit of each plane in turn. The checksum fails if and only if the plane is not
    // empty.
    for plane in 0..3 {
        let mut flipped = Vec::new();
        for block in &mut blocks {
            let words = &mut block.planes[plane];
            let at = random.word() as usize % words.len().max(1);
            flipped.push(at);
            words.iter_mut().skip(at).take(1).for_each(|word| *word ^= 1 << (at % 32));
        }
        for (found, block) in verified(&context, &kernel, &blocks).iter().zip(&blocks) {
            let is_wrong = found.is_wrong(&block.place).is_some_and(|why| why.contains("checksum"));
            assert_eq!(is_wrong, !block.planes[plane].is_empty(), "{plane} of {:?}", block.place);
        }
        for (block, at) in blocks.iter_mut().zip(flipped) {
            block.planes[plane].iter_mut().skip(at).take(1).for_each(|word| *word ^= 1 << (at % 32));
        }
    }
    // The least or the greatest bound is off by one.
    for which in 0..2 {
        for block in &mut blocks {
            let (least, most) = &mut block.place.bounds;
            if which == 0 { *least += 1 } else { *most -= 1 }
        }
        for (found, block) in verified(&context, &kernel, &blocks).iter().zip(&blocks) {
            let is_wrong = found.is_wrong(&block.place).is_some_and(|why| why.contains("zone map"));
            assert_eq!(is_wrong, block.place.low.is_some(), "{:?}", block.place);
        }
        for block in &mut blocks {
            let (least, most) = &mut block.place.bounds;
            if which == 0 { *least -= 1 } else { *most += 1 }
        }
    }
    // The footer claims one NULL more than there is.
    blocks.iter_mut().for_each(|block| block.place.null_count += 1);
    for (found, block) in verified(&context, &kernel, &blocks).iter().zip(&blocks) {
        let is_wrong = found.is_wrong(&block.place).is_some_and(|why| why.contains("NULL"));
        assert_eq!(is_wrong, block.place.validity.is_some(), "{:?}", block.place);
    }
}

fn file(cufile: &Arc<Cufile>, folder: &FsPath, name: &str) -> Origin {
    let path = folder.join(name);
    std::fs::write(&path, vec![7u8; 64 << 10]).unwrap();
    let file = Arc::new(LocalFile::open(&path, RequestedPath::Buffered).unwrap());
    Origin::Cufile(Arc::new(CufileFile::new(cufile, file).unwrap()))
}

/// Returns a block with these chunks. Its other fields do not matter.
fn block_of(file: &Origin, low: Option<ChunkPlace>, high: Option<ChunkPlace>, validity: Option<ChunkPlace>) -> Wanted {
    let (bits, is_code, bounds) = ([12, 0], false, (0, 0));
    let place = BlockPlace { rows: 1024, null_count: 0, base: 0, bits, is_code, validity, low, high, bounds };
    Wanted { file: file.clone(), place }
}

#[test]
fn chunks_that_lie_together_are_one_read() {
    let context = fake::context();
    let cufile = fake::open_cufile(&context);
    let folder = tempfile::tempdir().unwrap();
    let (one, other) = (file(&cufile, folder.path(), "a"), file(&cufile, folder.path(), "b"));
    let chunk = |page: u64, bytes: usize| Some(ChunkPlace { offset: page * 4096, bytes, crc: 0 });
    let wanted = [
        // Adjacent except for padding; then one that lies apart, and one of another file.
        block_of(&one, chunk(2, 4096), None, chunk(1, 128)),
        block_of(&one, chunk(3, 5000), chunk(5, 640), None),
        block_of(&one, chunk(9, 4096), None, None),
        block_of(&other, chunk(10, 128), None, None),
        // The same chunks once more.
        block_of(&one, chunk(3, 5000), chunk(5, 640), None),
        block_of(&one, None, None, None),
    ];
    let plan = Plan::new(&wanted);
    let mut reads: Vec<(bool, u64, usize)> =
        plan.reads.iter().map(|read| (read.file.is(&one), read.offset / 4096, read.bytes)).collect();
    reads.sort_unstable();
    assert_eq!(reads, [(false, 10, 128), (true, 1, 4 * 4096 + 640), (true, 9, 4096)]);
    assert_eq!(plan.bytes, (1 + 5 + 1) * 4096);
    let start = 1 << 20;
    for (of, landed) in wanted.iter().zip(&plan.blocks) {
        let planes = landed.planes(start);
        for (chunk, at) in [(of.place.low, planes.low), (of.place.high, planes.high), (of.place.validity, planes.valid)]
        {
            let Some(chunk) = chunk else {
                assert_eq!(at, 0);
                continue;
            };
            let at = (at - start) as usize;
            let read = plan.reads.iter().find(|read| (read.at..read.at + read.padded_bytes()).contains(&at)).unwrap();
            assert!(read.file.is(&of.file));
            assert_eq!(read.offset + (at - read.at) as u64, chunk.offset);
            assert!(at - read.at + chunk.bytes <= read.bytes);
        }
    }
    // No read exceeds its limit, however long the run of chunks.
    let many: Vec<Wanted> = (0..200).map(|n| block_of(&one, chunk(1 + 16 * n, 65536), None, None)).collect();
    let plan = Plan::new(&many);
    assert_eq!(plan.bytes, 200 * 65536);
    assert!(plan.reads.iter().all(|read| read.bytes <= 4 << 20) && plan.reads.len() == 4, "{}", plan.reads.len());
    // At most one buffer for a reader with few of them.
    let local = LocalFile::open(&folder.path().join("a"), RequestedPath::Buffered).unwrap();
    let bounces = Arc::new(Bounces::of(&context, 2));
    let bounced = Origin::Bounced(Arc::new(Bounced::new(Arc::new(local), &bounces)));
    let many: Vec<Wanted> = (0..200).map(|n| block_of(&bounced, chunk(1 + 16 * n, 65536), None, None)).collect();
    let plan = Plan::new(&many);
    assert!(plan.reads.iter().all(|read| read.bytes <= 1 << 20) && plan.reads.len() == 13, "{}", plan.reads.len());
}
