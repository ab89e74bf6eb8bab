//! Every path in every mode over both layouts, with a driver, a cuFile and a compiler of the host:
//! each returns DuckDB's answer, or the right error.

use std::fs;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use arrow::array::{ArrayRef, Date32Array, Decimal128Array, RecordBatch};
use onehop_cuda::fake;
use onehop_cuda::kernels::q6::{Q6, Threads};
use onehop_io::{Ledger, LocalFile, RequestedPath};
use onehop_segment::{SegmentOptions, SegmentWriter};

use super::answer::Expected;
use super::prepare::Folder;
use super::rows::RowFile;
use super::segments::Segments;
use super::*;

const SCALE: f64 = 0.01;
const OPTIONS: Options = Options { threads: 3, depth: 5, device_threads: Threads::One, cufile: Flight::Auto };

fn going() -> AtomicBool {
    AtomicBool::new(false)
}

fn gpu() -> Gpu {
    let context = fake::context();
    let kernels = Q6::new(&context, &fake::nvrtc()).map(Arc::new).map_err(|e| e.to_string());
    Gpu { cufile: Ok(fake::open_cufile(&context)), kernels, context }
}

fn prepared(parent: &Path) -> (Folder, Segments, RowFile) {
    let folder = Folder::open(parent, SCALE).unwrap();
    let segments = folder.segments(2, &|_| {}, &going()).unwrap();
    let rows = folder.rows(2, &|_| {}, &going()).unwrap();
    (folder, segments, rows)
}

#[test]
fn every_way_comes_to_the_answer() {
    let dir = tempfile::tempdir().unwrap();
    let (_, segments, rows) = prepared(dir.path());
    assert_eq!((rows.rows, segments.rows()), (60_175, 60_175));
    let expected = Expected::at(SCALE, 1, &going()).unwrap();
    let gpu = gpu();
    for bytes in [64 << 10, 200_000, 1 << 20, 64 << 20] {
        for plan in [Plan::of_rows(&rows, bytes), Plan::of_segments(&segments, bytes).unwrap()] {
            for (_, mode) in Mode::ALL {
                for (_, way) in Way::ALL {
                    let figures = run(&plan, mode, way, Some(&gpu), &OPTIONS, &going());
                    let figures = figures.unwrap_or_else(|e| panic!("{} {mode} {way} {bytes}: {e}", plan.layout));
                    assert_eq!(figures.answer, expected.answer, "{} {mode} {way} {bytes}", plan.layout);
                    // The fake driver's clock reports a millisecond for every kernel.
                    let spent = figures.spent.total_seconds() - figures.kernel_seconds.unwrap_or(0.0);
                    assert!(spent <= figures.seconds * 1.0001, "{figures:?}");
                    assert_eq!(figures.kernel_seconds.is_some(), way.has_kernel());
                    assert_eq!(figures.read_bytes, plan.bytes);
                }
            }
            for way in [Way::GpuDirect, Way::GpuIo] {
                let options = Options { cufile: Flight::Batch, ..OPTIONS };
                let figures = run(&plan, Mode::Overlapped, way, Some(&gpu), &options, &going()).unwrap();
                assert_eq!(figures.answer, expected.answer, "{} {way} {bytes}, in batches", plan.layout);
                assert!(figures.effective_path.starts_with("cuFile batch, compat"), "{}", figures.effective_path);
            }
        }
    }
}

#[test]
fn what_this_machine_does_not_have_says_why() {
    let dir = tempfile::tempdir().unwrap();
    let (_, _, rows) = prepared(dir.path());
    let plan = Plan::of_rows(&rows, 1 << 20);
    let mut gpu = gpu();
    gpu.cufile = Err("no cuFile here".into());
    for (_, mode) in Mode::ALL {
        let error = run(&plan, mode, Way::GpuDirect, Some(&gpu), &OPTIONS, &going()).unwrap_err();
        assert!(matches!(&error, Error::NotHere(why) if why == "no cuFile here"), "{error}");
        assert!(run(&plan, mode, Way::GpuIndirect, Some(&gpu), &OPTIONS, &going()).is_ok());
        assert!(matches!(run(&plan, mode, Way::GpuIo, None, &OPTIONS, &going()), Err(Error::NotHere(_))));
        assert!(run(&plan, mode, Way::Cpu, None, &OPTIONS, &going()).is_ok());
    }
}

#[test]
fn who_wants_it_to_end_is_heard() {
    let dir = tempfile::tempdir().unwrap();
    let (_, segments, rows) = prepared(dir.path());
    let gpu = gpu();
    for plan in [Plan::of_rows(&rows, 65_536), Plan::of_segments(&segments, 65_536).unwrap()] {
        for (_, mode) in Mode::ALL {
            for (_, way) in Way::ALL {
                let ended = run(&plan, mode, way, Some(&gpu), &OPTIONS, &AtomicBool::new(true));
                assert!(matches!(ended, Err(Error::Cancelled)), "{mode} {way}");
            }
        }
    }
}

#[test]
fn damage_is_found_wherever_it_is_computed() {
    let dir = tempfile::tempdir().unwrap();
    let (_, _, rows) = prepared(dir.path());
    // A page with more rows than fit into it.
    let mut bytes = fs::read(&rows.path).unwrap();
    bytes[20 * 8192 + 4] = 0xff;
    bytes[20 * 8192 + 5] = 0xff;
    fs::write(&rows.path, &bytes).unwrap();
    let (plan, gpu) = (Plan::of_rows(&rows, 65_536), gpu());
    for (_, mode) in Mode::ALL {
        for (_, way) in Way::ALL {
            let error = run(&plan, mode, way, Some(&gpu), &OPTIONS, &going()).unwrap_err();
            assert!(matches!(error, Error::Damaged { .. }), "{mode} {way}: {error}");
        }
    }
    assert!(matches!(rows.check(&mut |_| {}, &going()), Err(Error::Damaged { .. })));
    // Truncated during use: an error that names the file, and no hang.
    fs::File::options().write(true).open(&rows.path).unwrap().set_len(100 * 8192).unwrap();
    let plan = Plan::of_rows(&rows, 1 << 20);
    for (_, mode) in Mode::ALL {
        for (_, way) in Way::ALL {
            assert!(run(&plan, mode, way, Some(&gpu), &OPTIONS, &going()).is_err(), "{mode} {way}");
        }
    }
}

#[test]
fn a_row_file_is_known_by_every_byte() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("t.rows");
    let file = RowFile::create(&path, 0.001, 2, &mut |_| {}, &going()).unwrap();
    assert!(RowFile::create(&path, 0.001, 2, &mut |_| {}, &going()).is_err(), "it is there already");
    let good = fs::read(&path).unwrap();
    assert_eq!(good.len() as u64, (file.pages + 1) * 8192);
    let opened = RowFile::open(&path).unwrap();
    assert_eq!((opened.pages, opened.rows, opened.scale), (file.pages, file.rows, 0.001));
    opened.check(&mut |_| {}, &going()).unwrap();
    // Any bit, of the header or of a page.
    for at in (0..56).chain((8192..good.len()).step_by(997)) {
        let mut bad = good.clone();
        bad[at] ^= 1 << (at % 8);
        fs::write(&path, &bad).unwrap();
        let found = RowFile::open(&path).and_then(|file| file.check(&mut |_| {}, &going()));
        assert!(matches!(found, Err(Error::Damaged { .. } | Error::Refused { .. })), "byte {at}");
    }
    for length in [0, 10, 55, 8192, good.len() - 8192, good.len() - 1] {
        fs::write(&path, &good[..length]).unwrap();
        assert!(RowFile::open(&path).is_err(), "{length} bytes");
    }
}

#[test]
fn rows_do_not_depend_on_the_threads() {
    let dir = tempfile::tempdir().unwrap();
    let make = |threads: usize| {
        let path = dir.path().join(format!("{threads}.rows"));
        RowFile::create(&path, 0.05, threads, &mut |_| {}, &going()).unwrap();
        fs::read(&path).unwrap()
    };
    assert!(make(1) == make(3));
}

#[test]
fn a_folder_that_something_else_made_is_not_touched() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("onehop-bench-q6-sf0.01");
    fs::create_dir(&path).unwrap();
    fs::write(path.join("lineitem.rows"), "my thesis").unwrap();
    let error = Folder::open(dir.path(), SCALE).unwrap_err().to_string();
    assert!(error.contains("not made by this version of the benchmark"), "{error}");
    assert_eq!(fs::read(path.join("lineitem.rows")).unwrap(), b"my thesis");
}

#[test]
fn what_was_left_half_way_is_made_anew_and_the_rest_found_again() {
    let dir = tempfile::tempdir().unwrap();
    let folder = Folder::open(dir.path(), 0.001).unwrap();
    assert!(folder.is_new());
    assert!(matches!(folder.rows(1, &|_| {}, &AtomicBool::new(true)), Err(Error::Cancelled)));
    fs::write(folder.path().join("lineitem-00000.segment"), "half of it").unwrap();
    let second = Folder::open(dir.path(), 0.001).unwrap_err().to_string();
    assert!(second.contains("another `onehop bench q6` is using it"), "{second}");
    drop(folder);
    let again = Folder::open(dir.path(), 0.001).unwrap();
    assert!(!again.is_new());
    again.segments(1, &|_| {}, &going()).unwrap();
    again.rows(1, &|_| {}, &going()).unwrap();
    let written = std::sync::Mutex::new(0);
    let told = |step| *written.lock().unwrap() += i32::from(matches!(step, prepare::Step::Writing(..)));
    again.segments(1, &told, &going()).unwrap();
    again.rows(1, &told, &going()).unwrap();
    assert_eq!(*written.lock().unwrap(), 0, "all is there");
    // The measured reads skip checksums, so they are verified before.
    let path = again.path().join("lineitem-00000.segment");
    let mut bytes = fs::read(&path).unwrap();
    bytes[10_000] ^= 1;
    fs::write(&path, bytes).unwrap();
    assert!(matches!(again.segments(1, &told, &going()), Err(Error::Segment(onehop_segment::Error::Corrupt { .. }))));
    again.remove();
    assert!(!again.path().exists());
}

/// Creates segments of these rows, in blocks of `block_rows`.
fn segment(path: &Path, rows: &[(i32, i128, i128, i128)], block_rows: usize) -> Segments {
    let decimals = |of: fn(&(i32, i128, i128, i128)) -> i128| {
        let values = Decimal128Array::from_iter_values(rows.iter().map(of));
        Arc::new(values.with_precision_and_scale(15, 2).unwrap()) as ArrayRef
    };
    let batch = RecordBatch::try_from_iter([
        ("l_extendedprice", decimals(|row| row.3)),
        ("l_quantity", decimals(|row| row.1)),
        ("l_shipdate", Arc::new(Date32Array::from_iter_values(rows.iter().map(|row| row.0))) as ArrayRef),
        ("l_discount", decimals(|row| row.2)),
    ])
    .unwrap();
    let mut writer = SegmentWriter::new(&batch.schema(), SegmentOptions { block_rows }).unwrap();
    writer.append(&batch).unwrap();
    let file = LocalFile::create(path, RequestedPath::Buffered).unwrap();
    writer.finish(&file, &Ledger::default()).unwrap();
    Segments::open(vec![path.to_path_buf()]).unwrap()
}

/// Constant blocks, dictionaries of prices and of discounts, negative values, blocks of every
/// length.
#[test]
fn segments_of_all_shapes_are_added_up() {
    let dir = tempfile::tempdir().unwrap();
    let gpu = gpu();
    let mut x = 88_172_645_463_325_252_u64;
    let mut random = move |n: u64| {
        x ^= x << 13;
        x ^= x >> 7;
        x ^= x << 17;
        (x % n) as i128
    };
    for number in 0..24 {
        let prices: Vec<i128> = (0..40).map(|_| random(1 << 31) - (1 << 30)).collect();
        let rows = [1, 1000, 1025, 5000, 70_000][number % 5];
        let kind = number % 4;
        let rows: Vec<_> = (0..rows)
            .map(|row| {
                let date = if kind == 0 { 8766 + row / 2000 } else { 8700 + random(500) as i32 };
                let quantity = if kind == 1 { 1200 } else { 100 * (1 + random(50)) };
                let discount = if kind == 2 { 6 } else { random(11) };
                let price = if kind == 3 { prices[random(40) as usize] } else { random(10_000_000) - 5000 };
                (date, quantity, discount, price)
            })
            .collect();
        let passes =
            |row: &&(i32, i128, i128, i128)| (8766..9131).contains(&row.0) && (5..=7).contains(&row.2) && row.1 < 2400;
        let expected: i128 = rows.iter().filter(passes).map(|row| row.2 * row.3).sum();
        let segments = segment(&dir.path().join(format!("{number}")), &rows, [1024, 2048, 65_536][number % 3]);
        for bytes in [64 << 10, 1 << 20] {
            let plan = Plan::of_segments(&segments, bytes).unwrap();
            for way in [Way::Cpu, Way::GpuIndirect] {
                for (_, mode) in Mode::ALL {
                    let figures = run(&plan, mode, way, Some(&gpu), &OPTIONS, &going()).unwrap();
                    assert_eq!(figures.answer, expected, "{number}: {} rows, {way} {mode} {bytes}", rows.len());
                }
            }
        }
    }
}

#[test]
fn tables_of_others_are_refused_by_their_columns() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("s");
    let batch = RecordBatch::try_from_iter([("l_shipdate", Arc::new(Date32Array::from(vec![1])) as ArrayRef)]).unwrap();
    let mut writer = SegmentWriter::new(&batch.schema(), SegmentOptions::default()).unwrap();
    writer.append(&batch).unwrap();
    writer.finish(&LocalFile::create(&path, RequestedPath::Buffered).unwrap(), &Ledger::default()).unwrap();
    let error = Segments::open(vec![path]).unwrap_err().to_string();
    assert!(error.contains("it has no column l_quantity"), "{error}");
}
