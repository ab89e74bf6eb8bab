//! Columns that are read past the page cache into pinned memory: conditions for this path, and
//! equality of its results with those of the others.
//!
//! If the file system has no `O_DIRECT`, no data takes this path. The random programs still run;
//! the other tests then check nothing.

use std::io;
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};

use onehop_io::{Fault as Misreads, Faulty, IoHints};

use super::*;

/// Returns files that are read past the page cache and not kept by the block cache; `None` if the
/// file system does not support it.
fn files() -> Option<Files> {
    read_by(RequestedPath::HostDirect, 0)
}

/// Returns files that a block cache of this size reads by a path.
fn read_by(path: RequestedPath, cache_bytes: usize) -> Option<Files> {
    let Files { folder, .. } = Files::new();
    LocalFile::open(&path_of(folder.path(), 0), RequestedPath::HostDirect).ok()?;
    let cache = BlockCache::new(cache_bytes).by_path(path);
    let buffered = |path: &Path| Arc::new(LocalFile::open(path, RequestedPath::Buffered).unwrap()) as Arc<dyn ReadAt>;
    Some(Files::open_by(folder, cache, buffered))
}

/// Returns files that are opened past the page cache and wrapped by `make`.
fn opened_as(make: impl Fn(LocalFile) -> Arc<dyn ReadAt>) -> Option<Files> {
    let Files { folder, .. } = Files::new();
    LocalFile::open(&path_of(folder.path(), 0), RequestedPath::HostDirect).ok()?;
    let open = |path: &Path| make(LocalFile::open(path, RequestedPath::HostDirect).unwrap());
    Some(Files::open_by(folder, BlockCache::new(0), open))
}

fn is_clean(machine: &Machine) {
    assert!(machine.problems().is_empty(), "{:?}", machine.problems());
    assert!(machine.living().is_empty(), "{:?}", machine.living());
}

/// With one thread and with several, on devices that are as late or as early as possible.
#[test]
fn every_form_comes_bounced() {
    let Some(files) = files() else { return };
    let program = program();
    let expected = expected(&files, &program);
    for order in [Order::Late, Order::KernelsFirst, Order::CopiesFirst] {
        let (machine, context) = Machine::start();
        machine.set_order(order);
        {
            let cufile = fake::open_cufile(&context);
            for (threads, path, why) in [
                (0, DevicePath::Staged, None),
                (3, DevicePath::Staged, None),
                (3, DevicePath::Auto, Some("cuFile is not direct here")),
            ] {
                let executor = executor(&context, &cufile, in_small_batches(threads));
                let images = By::new(path);
                let answer = run(&executor, &files, &program, &images).unwrap();
                assert_eq!(rows_of(&answer.chunks), expected);
                let carried = images.carried();
                let brought = carried.brought.unwrap();
                assert_eq!((brought.path, brought.bytes), (TakenPath::Bounced, carried.read_bytes));
                assert_eq!(brought.bounced_bytes(), brought.bytes);
                assert!(brought.because.contains("past the page cache into pinned memory"), "{}", brought.because);
                assert!(why.is_none_or(|why| brought.because.contains(why)), "{}", brought.because);
                // All blocks except the doubles.
                let blocks = |column: usize| files.segments.iter().map(move |segment| segment.all_stored_bytes(column));
                let stored: u64 = (0..8).flat_map(blocks).sum();
                assert_eq!(carried.needed_bytes, stored);
                // Whole pages are read.
                assert!(carried.read_bytes >= stored && carried.reads > 0);
                assert!(carried.copied_bytes >= 16 * ROWS as u64);
                let streamed = answer.pipelines.last().unwrap().streamed.unwrap();
                assert_eq!(streamed.bytes, carried.read_bytes + carried.copied_bytes);
            }
        }
        is_clean(machine);
    }
}

#[test]
fn random_programs_bounced_give_what_the_naive_interpreter_gives() {
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("a"), [7]).unwrap();
    let is_past = LocalFile::open(&folder.path().join("a"), RequestedPath::HostDirect).is_ok();
    let read = bytes_of_random_programs(DevicePath::Staged, RequestedPath::PreferHostDirect, 7);
    assert_eq!(read > 0, is_past);
}

/// Blocks that host memory is to keep, or has, come through it. An explicit request for cuFile has
/// precedence.
#[test]
fn what_is_kept_goes_through_the_host() {
    use RequestedPath::{Auto, Buffered, HostDirect};
    let (machine, context) = Machine::start();
    let program = program();
    {
        let executor = executor(&context, &fake::open_cufile(&context), in_small_batches(2));
        for (reads, cache_bytes, path, taken) in [
            (HostDirect, 0, DevicePath::Staged, Some(TakenPath::Bounced)),
            (HostDirect, 0, DevicePath::Auto, Some(TakenPath::Bounced)),
            (HostDirect, 0, DevicePath::Cufile, Some(TakenPath::Compat)),
            (HostDirect, 1 << 24, DevicePath::Staged, None),
            (HostDirect, 1 << 24, DevicePath::Auto, Some(TakenPath::Staged)),
            (Buffered, 0, DevicePath::Staged, None),
            (Buffered, 0, DevicePath::Auto, Some(TakenPath::Staged)),
            (Auto, 0, DevicePath::Staged, None),
            (Auto, 1 << 24, DevicePath::Staged, None),
        ] {
            let Some(files) = read_by(reads, cache_bytes) else { return };
            let images = By::new(path);
            let answer = run(&executor, &files, &program, &images).unwrap();
            // The block cache does not have the data for the CPU yet.
            let carried = images.carried();
            assert_eq!(
                carried.brought.as_ref().map(|brought| brought.path),
                taken,
                "{reads:?}, {cache_bytes}, {path:?}"
            );
            let is_past_host = !matches!(taken, None | Some(TakenPath::Staged));
            assert_eq!(carried.read_bytes > 0, is_past_host);
            // Now it has the data.
            let has = files.source.stored_place(0, PACKED).is_none();
            assert_eq!(has, cache_bytes > 0 && !is_past_host, "{reads:?}, {cache_bytes}, {path:?}");
            assert_eq!(rows_of(&answer.chunks), expected(&files, &program));
        }
        let Some(files) = files() else { return };
        let error = run(&executor, &files, &program, &By::new(DevicePath::Direct)).unwrap_err();
        assert!(error.to_string().contains("gpu.path = 'direct'"), "{error}");
        // Without a path of the cache, the path by which the file was opened applies.
        let Some(files) = opened_as(|file| Arc::new(file)) else { return };
        let images = By::new(DevicePath::Staged);
        run(&executor, &files, &program, &images).unwrap();
        assert_eq!(images.carried().brought.unwrap().path, TakenPath::Bounced);
    }
    is_clean(machine);
}

/// If cuFile is direct, it reads the data.
#[test]
fn what_can_go_straight_is_not_bounced() {
    let (machine, context) = Machine::start();
    let Some(files) = files() else { return };
    machine.set_direct(true);
    {
        let executor = executor(&context, &fake::open_cufile(&context), in_small_batches(2));
        for (path, taken) in [(DevicePath::Auto, TakenPath::Direct), (DevicePath::Staged, TakenPath::Bounced)] {
            let images = By::new(path);
            run(&executor, &files, &program(), &images).unwrap();
            assert_eq!(images.carried().brought.unwrap().path, taken);
        }
    }
    is_clean(machine);
}

/// Little data is not worth the verification kernel, which may not be compiled yet.
#[test]
fn with_little_to_bring_nobody_looks() {
    let (machine, context) = Machine::start();
    let Some(files) = files() else { return };
    {
        let executor = Executor::new(&context, &fake::nvrtc(), None, in_small_batches(2));
        let images = By::new(DevicePath::Staged);
        run(&executor, &files, &program(), &images).unwrap();
        assert!(images.carried().brought.is_none() && images.carried().read_bytes == 0);
    }
    is_clean(machine);
}

/// The device detects the error, and the host describes it, as the CPU does.
#[test]
fn a_flipped_bit_is_the_cpus_error() {
    let (machine, context) = Machine::start();
    let program = program();
    {
        let executor = executor(&context, &fake::open_cufile(&context), in_small_batches(2));
        let clean = Files::new();
        for (segment, column, block) in [(0, PACKED, 0), (1, WIDE, 1), (0, CODES, 2), (1, NULLS, 3), (0, TEXT, 1)] {
            let of = &clean.segments[segment];
            for (kind, chunk) in chunks(of, column, block) {
                let bit = (chunk.offset + chunk.bytes as u64 / 2) * 8 + 5;
                let name = of.file().name().rsplit('/').next().unwrap().to_owned();
                let misread = |file: LocalFile| -> Arc<dyn ReadAt> {
                    let is_it = file.name().ends_with(&name);
                    let faults = if is_it { vec![Misreads::FlipBit(bit)] } else { vec![] };
                    Arc::new(Faulty::new(Arc::new(file), faults))
                };
                let Some(files) = opened_as(misread) else { return };
                let Err(Error::Pipeline(error)) = run(&executor, &files, &program, &By::new(DevicePath::Staged)) else {
                    panic!("{kind} of column {column}")
                };
                let by_cpu = onehop_pipeline::cpu::run(&mut files.execution(&program), 1).unwrap_err();
                assert_eq!(error.to_string(), by_cpu.to_string());
                assert!(error.to_string().contains("do not match their checksum"), "{error}");
            }
        }
        // A good forgery is detected by its zone map, as with cuFile.
        let Some(files) = files() else { return };
        let segment = Arc::clone(&files.segments[0]);
        let (_, chunk) = chunks(&segment, PACKED, 1)[0];
        let Files { folder, .. } = files.changed(0, |bytes| {
            bytes[chunk.offset as usize..chunk.offset as usize + chunk.bytes].fill(0xff);
            sign(bytes, &segment, PACKED, 1);
        });
        let open = |path: &Path| Arc::new(LocalFile::open(path, RequestedPath::HostDirect).unwrap()) as Arc<dyn ReadAt>;
        let files = Files::open_by(folder, BlockCache::new(0), open);
        let error = run(&executor, &files, &program, &By::new(DevicePath::Staged)).unwrap_err();
        assert!(matches!(&error, Error::Pipeline(_)) && error.to_string().contains("zone map"), "{error}");
    }
    is_clean(machine);
}

#[test]
fn whatever_fails_on_the_way_is_an_error_of_the_device() {
    let (machine, context) = Machine::start();
    let Some(files) = files() else { return };
    {
        let executor = executor(&context, &fake::open_cufile(&context), in_small_batches(2));
        calls_fail_and_files_end(machine, &files, &executor, DevicePath::Staged);
    }
    is_clean(machine);
}

/// Outcome of a read.
#[derive(Clone, Copy, Debug)]
enum Comes {
    /// An error of the system.
    To(i32),
    /// The data, while the query is cancelled.
    AndCancels,
}

/// A read of files with a specified outcome, once one is set.
#[derive(Debug, Default)]
struct Turn {
    /// The number of the read, and its outcome.
    of: Mutex<Option<(u64, Comes)>>,
    calls: AtomicU64,
    cancelled: AtomicBool,
}

impl Turn {
    /// Sets the outcome. Reads are counted from the next one on.
    fn set(&self, of: Option<(u64, Comes)>) {
        *self.of.lock().unwrap() = of;
        self.calls.store(0, SeqCst);
        self.cancelled.store(false, SeqCst);
    }
}

#[derive(Debug)]
struct Turned(LocalFile, Arc<Turn>);

impl ReadAt for Turned {
    fn name(&self) -> &str {
        self.0.name()
    }

    fn hints(&self) -> IoHints {
        self.0.hints()
    }

    fn len(&self) -> onehop_io::Result<u64> {
        self.0.len()
    }

    fn try_read_at(&self, offset: u64, buf: &mut [u8], ledger: &Ledger) -> io::Result<usize> {
        let call = self.1.calls.fetch_add(1, SeqCst);
        match *self.1.of.lock().unwrap() {
            Some((at, Comes::To(code))) if at == call => return Err(io::Error::from_raw_os_error(code)),
            Some((at, Comes::AndCancels)) if at == call => self.1.cancelled.store(true, SeqCst),
            _ => {}
        }
        self.0.try_read_at(offset, buf, ledger)
    }
}

/// The outcome may affect any of the reads.
#[test]
fn what_the_system_answers_is_told_or_made_good() {
    let (machine, context) = Machine::start();
    let turn = Arc::new(Turn::default());
    let Some(files) = opened_as(|file| Arc::new(Turned(file, Arc::clone(&turn)))) else { return };
    let program = one(2, vec![], sums(2));
    let expected = expected(&files, &program);
    {
        let executor = executor(&context, &fake::open_cufile(&context), in_small_batches(2));
        let run = |of| {
            turn.set(of);
            let images = By::new(DevicePath::Staged);
            let answer = executor.run(&files.execution(&program), &images, &turn.cancelled);
            answer.map(|answer| (rows_of(&answer.chunks), images.carried().reads))
        };
        let (rows, reads) = run(None).unwrap();
        assert_eq!((&rows, turn.calls.load(SeqCst)), (&expected, reads));
        assert!(reads > 8, "{reads}");
        for at in 0..reads {
            let error = run(Some((at, Comes::To(libc::EIO)))).unwrap_err();
            let said = error.to_string();
            assert!(matches!(&error, Error::Device { .. }) && said.contains("Input/output error"), "{said}");
            assert!(said.contains(".seg") && said.contains("bytes at"), "{said}");
            assert_eq!(run(Some((at, Comes::To(libc::EINTR)))).unwrap(), (expected.clone(), reads));
        }
        let cancelled = run(Some((2, Comes::AndCancels)));
        assert!(matches!(cancelled, Err(Error::Pipeline(PipelineError::Cancelled))), "{cancelled:?}");
        // Only the reads in progress were made.
        assert!(turn.calls.load(SeqCst) < reads);
        assert_eq!(run(None).unwrap().0, expected);
    }
    drop(files);
    is_clean(machine);
}
