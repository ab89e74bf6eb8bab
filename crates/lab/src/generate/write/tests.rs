//! Files read back, the exact bytes of foreign formats, and the leftovers of a stopped write.

use super::*;
use crate::generate::{Benchmark, Ssb, Tpch};
use ::parquet::arrow::arrow_reader::ParquetRecordBatchReaderBuilder;
use arrow::array::RecordBatch;
use arrow::compute::concat_batches;
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::error::Error as StdError;
use std::sync::Arc;

type TestResult = std::result::Result<(), Box<dyn StdError>>;

fn options(format: Format, threads: usize) -> Options {
    Options { format, overwrite: Overwrite::Refuse, threads: NonZeroUsize::new(threads).unwrap_or(NonZeroUsize::MIN) }
}

fn write(generator: &dyn Generator, directory: &Path, options: Options) -> Result<Vec<Written>> {
    write_tables(generator, directory, options, &|_| (), &AtomicBool::new(false))
}

fn generated(generator: &dyn Generator, info: &TableInfo) -> Result<RecordBatch> {
    let mut batches = Vec::new();
    for chunk in 0..generator.chunks(info.name)? {
        batches.extend(generator.chunk(info.name, chunk)?.collect::<Result<Vec<_>>>()?);
    }
    Ok(concat_batches(&info.schema, &batches)?)
}

fn names(directory: &Path) -> std::io::Result<Vec<String>> {
    let mut names: Vec<_> = fs::read_dir(directory)?
        .map(|entry| Ok(entry?.file_name().to_string_lossy().into_owned()))
        .collect::<std::io::Result<_>>()?;
    names.sort();
    Ok(names)
}

#[test]
fn parquet_reads_back_equal() -> TestResult {
    for benchmark in [Benchmark::Ssb, Benchmark::Tpch] {
        let generator = benchmark.generator(0.01, 10_000)?;
        let directory = tempfile::tempdir()?;
        let written = write(&*generator, directory.path(), options(Format::Parquet, 3))?;
        for (info, written) in generator.tables().iter().zip(&written) {
            let reader = ParquetRecordBatchReaderBuilder::try_new(File::open(&written.path)?)?;
            assert_eq!(reader.schema().fields(), info.schema.fields());
            assert_eq!(reader.metadata().num_row_groups(), generator.chunks(info.name)?);
            let batches: Vec<_> = reader.build()?.collect::<std::result::Result<_, _>>()?;
            let read = concat_batches(&info.schema, &batches)?;
            assert_eq!(read, generated(&*generator, info)?, "{}", info.name);
            assert_eq!(written.rows, read.num_rows() as u64);
            assert_eq!(written.file_bytes, fs::metadata(&written.path)?.len());
        }
    }
    Ok(())
}

#[test]
fn csv_reads_back_equal() -> TestResult {
    for benchmark in [Benchmark::Ssb, Benchmark::Tpch] {
        let generator = benchmark.generator(0.01, 10_000)?;
        let directory = tempfile::tempdir()?;
        write(&*generator, directory.path(), options(Format::Csv, 2))?;
        for info in generator.tables() {
            let file = File::open(directory.path().join(format!("{}.csv", info.name)))?;
            let reader = arrow::csv::ReaderBuilder::new(Arc::clone(&info.schema)).with_header(true).build(file)?;
            let batches: Vec<_> = reader.collect::<std::result::Result<_, _>>()?;
            assert_eq!(concat_batches(&info.schema, &batches)?, generated(&*generator, &info)?, "{}", info.name);
        }
    }
    Ok(())
}

#[test]
fn csv_has_a_header_and_quotes_commas() -> TestResult {
    let directory = tempfile::tempdir()?;
    write(&Ssb::new(0.001)?, directory.path(), options(Format::Csv, 1))?;
    let dates = fs::read_to_string(directory.path().join("date.csv"))?;
    let mut lines = dates.lines();
    assert!(lines.next().is_some_and(|line| line.starts_with("d_datekey,d_date,d_dayofweek,")));
    assert_eq!(
        lines.next(),
        Some("19920101,\"January 1, 1992\",Thursday,January,1992,199201,Jan1992,5,1,1,1,1,Winter,0,0,1,1")
    );
    Ok(())
}

#[test]
fn ssb_tbl_has_the_shape_of_the_reference() -> TestResult {
    let directory = tempfile::tempdir()?;
    write(&Ssb::new(0.01)?.with_chunk_rows(1_000), directory.path(), options(Format::Tbl, 4))?;
    assert_eq!(names(directory.path())?, ["customer.tbl", "date.tbl", "lineorder.tbl", "part.tbl", "supplier.tbl"]);
    let dates = fs::read_to_string(directory.path().join("date.tbl"))?;
    let first = "19920101|January 1, 1992|Thursday|January|1992|199201|Jan1992|5|1|1|1|1|Winter|0|0|1|1|\n";
    assert!(dates.starts_with(first));
    for (table, columns) in [("customer", 8), ("date", 17), ("lineorder", 17), ("part", 9), ("supplier", 7)] {
        let text = fs::read_to_string(directory.path().join(format!("{table}.tbl")))?;
        assert!(text.ends_with("|\n"));
        for line in text.lines() {
            assert_eq!(line.matches('|').count(), columns, "{line}");
        }
    }
    Ok(())
}

#[test]
fn tpch_tbl_is_what_dbgen_writes() -> TestResult {
    use tpchgen::generators::{
        CustomerGenerator, LineItemGenerator, NationGenerator, OrderGenerator, PartSuppGenerator,
    };
    const SCALE: f64 = 0.01;
    let directory = tempfile::tempdir()?;
    write(&Tpch::new(SCALE)?.with_chunk_rows(5_000), directory.path(), options(Format::Tbl, 2))?;
    let read = |table: &str| fs::read_to_string(directory.path().join(format!("{table}.tbl")));
    // Compared as a bool, because a difference would print two megabytes.
    let lines = |rows: &mut dyn Iterator<Item = String>| rows.map(|row| row + "\n").collect::<String>();
    assert!(read("lineitem")? == lines(&mut LineItemGenerator::new(SCALE, 1, 1).iter().map(|row| row.to_string())));
    assert!(read("orders")? == lines(&mut OrderGenerator::new(SCALE, 1, 1).iter().map(|row| row.to_string())));
    assert!(read("partsupp")? == lines(&mut PartSuppGenerator::new(SCALE, 1, 1).iter().map(|row| row.to_string())));
    assert!(read("customer")? == lines(&mut CustomerGenerator::new(SCALE, 1, 1).iter().map(|row| row.to_string())));
    assert!(read("nation")? == lines(&mut NationGenerator::new(SCALE, 1, 1).iter().map(|row| row.to_string())));
    Ok(())
}

#[test]
fn files_do_not_depend_on_threads() -> TestResult {
    let generator = Ssb::new(0.01)?.with_chunk_rows(3_000);
    for format in [Format::Parquet, Format::Tbl] {
        let (one, many) = (tempfile::tempdir()?, tempfile::tempdir()?);
        write(&generator, one.path(), options(format, 1))?;
        write(&generator, many.path(), options(format, 8))?;
        for name in names(one.path())? {
            assert!(fs::read(one.path().join(&name))? == fs::read(many.path().join(&name))?, "{name}");
        }
    }
    Ok(())
}

#[test]
fn existing_files_are_kept_or_replaced_as_told() -> TestResult {
    let directory = tempfile::tempdir()?;
    let generator = Ssb::new(0.001)?;
    let precious = directory.path().join("part.tbl");
    fs::write(&precious, "precious")?;
    let refused = write(&generator, directory.path(), options(Format::Tbl, 1));
    assert!(matches!(&refused, Err(Error::Exists(path)) if *path == precious), "{refused:?}");
    assert_eq!(names(directory.path())?, ["part.tbl"], "nothing else was written");
    assert_eq!(fs::read_to_string(&precious)?, "precious");

    let replace = Options { overwrite: Overwrite::Replace, ..options(Format::Tbl, 1) };
    write(&generator, directory.path(), replace)?;
    assert_eq!(fs::read_to_string(&precious)?.lines().count(), 200);
    Ok(())
}

#[test]
fn cancelling_leaves_whole_files_only() -> TestResult {
    let directory = tempfile::tempdir()?;
    let generator = Ssb::new(0.05)?.with_chunk_rows(1_000);
    let cancel = AtomicBool::new(false);
    let progress = |progress: Progress| {
        if progress.table == "lineorder" && progress.rows_done > 20_000 {
            cancel.store(true, Ordering::Relaxed);
        }
    };
    let stopped = write_tables(&generator, directory.path(), options(Format::Parquet, 4), &progress, &cancel);
    assert!(matches!(stopped, Err(Error::Cancelled)), "{stopped:?}");
    assert_eq!(names(directory.path())?, ["customer.parquet", "date.parquet", "part.parquet", "supplier.parquet"]);
    Ok(())
}

#[test]
fn progress_counts_up_to_the_rows_written() -> TestResult {
    let directory = tempfile::tempdir()?;
    let seen: RefCell<BTreeMap<&str, Progress>> = RefCell::default();
    let progress = |now: Progress| {
        let before = seen.borrow_mut().insert(now.table, now);
        assert!(before.is_none_or(|before| before.rows_done < now.rows_done));
    };
    let generator = Ssb::new(0.01)?.with_chunk_rows(5_000);
    let written =
        write_tables(&generator, directory.path(), options(Format::Csv, 2), &progress, &AtomicBool::new(false))?;
    for (info, written) in generator.tables().iter().zip(written) {
        let last = seen.borrow().get(info.name).copied();
        let expected = Progress { table: info.name, rows_done: written.rows, rows_expected: info.rows_expected };
        assert_eq!(last, Some(expected));
    }
    Ok(())
}

#[test]
fn a_directory_that_cannot_be_made_is_named() -> TestResult {
    let directory = tempfile::tempdir()?;
    let file = directory.path().join("file");
    fs::write(&file, "")?;
    let error = write(&Ssb::new(0.001)?, &file.join("below"), options(Format::Csv, 1));
    assert!(error.as_ref().err().is_some_and(|error| error.to_string().contains("file/below")), "{error:?}");
    Ok(())
}

#[test]
fn formats_are_read_by_name() {
    assert!(matches!("Parquet".parse(), Ok(Format::Parquet)));
    assert!(matches!("csv".parse(), Ok(Format::Csv)));
    assert!(matches!("xlsx".parse::<Format>(), Err(Error::UnknownFormat(name)) if name == "xlsx"));
}
