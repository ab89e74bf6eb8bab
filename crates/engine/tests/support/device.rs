//! A device that is none: it runs programs as the CPU does, and does what it is told about everything else.

use std::collections::{HashMap, HashSet};
use std::fmt::Debug;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use onehop_engine::backend::{
    Backend, Compiled, Control, DevicePath, DeviceRan, Devices, Estimate, Hints, Loaded, MemoryLimit, Prepared, Rates,
    Refusal, Residency, Resident, SegmentKey, Stored, Take,
};
use onehop_io::Hop;
use onehop_pipeline::cpu::{Answer, Execution, Worker};
use onehop_pipeline::{Error, Result, Source};

/// What a device does wrong.
#[derive(Clone, Debug, Default)]
pub enum Fault {
    #[default]
    None,
    /// It has no code for this.
    Refuses(&'static str),
    /// Its driver says this, after so many chunks of the answer.
    Fails(&'static str, usize),
    /// It has too little memory.
    IsFull,
    /// It works until nobody waits any more.
    Hangs,
    /// It cannot be measured.
    HasNoRates,
}

/// Bytes, hits, and whether it was loaded to stay.
type Column = (u64, u64, bool);

/// A device, and what was asked of it.
#[derive(Debug)]
pub struct Fake {
    pub name: String,
    pub fault: Mutex<Fault>,
    pub rates: Mutex<Rates>,
    pub prepared: AtomicUsize,
    pub ran: AtomicUsize,
    pub cancelled: AtomicUsize,
    compiled: Mutex<HashSet<String>>,
    /// Columns of segments, with bytes, hits, and whether they were loaded to stay.
    resident: Mutex<HashMap<(SegmentKey, usize), Column>>,
    pub swept: AtomicUsize,
}

/// Some of them, or the reason why there are none.
#[derive(Debug)]
pub struct FakeDevices {
    pub devices: Vec<Arc<Fake>>,
    backends: Vec<Arc<dyn Backend>>,
    pub missing: Option<String>,
    pub looked_for: AtomicU64,
    /// Nobody knows them before they were looked for, which takes a moment.
    pub is_slow: AtomicBool,
}

/// Rates of a card: kernels cost nothing to launch, so that small tables are worth it.
pub const FAST: Rates = Rates {
    copy_bytes_per_sec: 4e12,
    to_device_bytes_per_sec: 1e12,
    to_host_bytes_per_sec: 1e12,
    launch: Duration::ZERO,
    compile: Duration::ZERO,
};

/// Rates of one that nobody would use.
pub const SLOW: Rates = Rates { launch: Duration::from_secs(10), ..FAST };

impl FakeDevices {
    pub fn new(names: &[&str]) -> Arc<Self> {
        let device = |name: &&str| {
            Arc::new(Fake {
                name: name.to_string(),
                fault: Mutex::default(),
                rates: Mutex::new(FAST),
                prepared: AtomicUsize::default(),
                ran: AtomicUsize::default(),
                cancelled: AtomicUsize::default(),
                compiled: Mutex::default(),
                resident: Mutex::default(),
                swept: AtomicUsize::default(),
            })
        };
        let devices: Vec<Arc<Fake>> = names.iter().map(device).collect();
        let backends = devices.iter().map(|device| Arc::new(Handle(Arc::clone(device))) as Arc<dyn Backend>).collect();
        Arc::new(Self {
            devices,
            backends,
            missing: None,
            looked_for: AtomicU64::default(),
            is_slow: AtomicBool::default(),
        })
    }

    pub fn none(why: &str) -> Arc<Self> {
        let (devices, backends) = (Vec::new(), Vec::new());
        Arc::new(Self {
            devices,
            backends,
            missing: Some(why.into()),
            looked_for: AtomicU64::default(),
            is_slow: AtomicBool::default(),
        })
    }
}

impl Devices for FakeDevices {
    fn all(&self) -> std::result::Result<&[Arc<dyn Backend>], String> {
        if self.is_slow.load(Relaxed) {
            std::thread::sleep(Duration::from_millis(100));
        }
        self.looked_for.fetch_add(1, Relaxed);
        match &self.missing {
            Some(why) => Err(why.clone()),
            None => Ok(&self.backends),
        }
    }

    fn found(&self) -> &[Arc<dyn Backend>] {
        if self.looked_for.load(Relaxed) > 0 { &self.backends } else { &[] }
    }

    fn are_likely(&self) -> bool {
        !self.backends.is_empty()
    }

    fn are_ready(&self) -> bool {
        !self.is_slow.load(Relaxed) || self.looked_for.load(Relaxed) > 0
    }
}

impl Fake {
    pub fn is(&self, fault: Fault) {
        *self.fault.lock().unwrap() = fault;
    }

    fn does(&self) -> Fault {
        self.fault.lock().unwrap().clone()
    }
}

#[derive(Clone, Debug)]
struct Handle(Arc<Fake>);

#[derive(Debug)]
struct Ready {
    device: Arc<Fake>,
    execution: Execution,
    hints: Hints,
    key: String,
}

impl Backend for Handle {
    fn name(&self) -> &str {
        &self.0.name
    }

    fn description(&self) -> &str {
        "a device that is none"
    }

    fn rates(&self) -> Result<Rates> {
        match self.0.does() {
            Fault::HasNoRates => Err(Error::device(&self.0.name, "it cannot be measured")),
            _ => Ok(*self.0.rates.lock().unwrap()),
        }
    }

    fn prepare(&self, execution: &Execution, hints: &Hints) -> std::result::Result<Arc<dyn Prepared>, Refusal> {
        self.0.prepared.fetch_add(1, Relaxed);
        if let Fault::Refuses(what) = self.0.does() {
            return Err(Refusal(what.into()));
        }
        let key = format!("{:?}", execution.program());
        let (device, execution, hints) = (Arc::clone(&self.0), execution.clone(), hints.clone());
        Ok(Arc::new(Ready { device, execution, hints, key }))
    }

    fn residency(&self) -> Option<&dyn Residency> {
        Some(&*self.0)
    }
}

impl Prepared for Ready {
    fn estimate(&self) -> Estimate {
        let stored = || self.hints.stored.iter().flatten();
        Estimate {
            read_bytes: stored().map(Stored::bytes).sum(),
            resident_bytes: stored().map(|stored| self.device.resident_bytes(stored)).sum(),
            to_compile: usize::from(!self.device.compiled.lock().unwrap().contains(&self.key)),
        }
    }

    fn run(&self, control: &Control<'_>, take: &mut Take<'_>) -> Result<Vec<DeviceRan>> {
        let device = &self.device;
        device.ran.fetch_add(1, Relaxed);
        let fault = device.does();
        if let Fault::Hangs = fault {
            while !control.cancelled.load(Relaxed) {
                std::thread::sleep(Duration::from_millis(1));
            }
            device.cancelled.fetch_add(1, Relaxed);
            return Err(Error::Cancelled);
        }
        if let Fault::IsFull = fault {
            return Err(Error::Memory { what: "a join table".into(), needed: 1000, available: 10 });
        }
        let is_new = device.compiled.lock().unwrap().insert(self.key.clone());
        let mut execution = self.execution.with_budget(1 << 30);
        let mut chunks = 0;
        let mut taken = |columns| {
            if let Fault::Fails(what, after) = fault
                && chunks >= after
            {
                return Err(Error::device(&device.name, what));
            }
            chunks += 1;
            take(columns)
        };
        let mut all = Vec::new();
        for pipeline in 0..execution.pipelines() {
            let stage = execution.stage(pipeline)?;
            let (sender, made) = std::sync::mpsc::channel();
            let send = move |chunk| sender.send(chunk).map_err(|_| Error::Cancelled);
            let mut worker = Worker::new(&stage, &Arc::default()).with_taker(send);
            let mut ran = DeviceRan { elapsed: Duration::from_millis(2), ..DeviceRan::default() };
            while worker.step()?.is_some() {
                (control.did_rows)(worker.morsel_rows() as u64);
                for chunk in made.try_iter() {
                    taken(chunk)?;
                }
            }
            let source = self.execution.program().pipelines[pipeline].source;
            self.count(source, control, &mut ran);
            if let Answer::Rows(rows) = execution.finish(pipeline, &stage, vec![worker])? {
                for chunk in made.try_iter().chain(rows.chunks) {
                    taken(chunk)?;
                }
            }
            ran.rows = stage.rows();
            ran.skipped = stage.skipped().to_vec();
            ran.steps = stage.step_rows();
            ran.top = stage.top();
            ran.table = execution.tables().get(pipeline).copied();
            (ran.kernel, ran.launches) = (Duration::from_millis(1), 2);
            ran.compiled = if is_new { Compiled::Now(Duration::from_millis(300)) } else { Compiled::Before };
            all.push(ran);
        }
        // Nothing of the answer, and it fails all the same.
        if let Fault::Fails(what, _) = fault {
            return Err(Error::device(&device.name, what));
        }
        Ok(all)
    }
}

impl Ready {
    /// What was moved, and what was there.
    fn count(&self, source: usize, control: &Control<'_>, ran: &mut DeviceRan) {
        let Some(Some(stored)) = self.hints.stored.get(source) else { return };
        ran.resident_bytes = self.device.resident_bytes(stored);
        ran.moved_bytes = stored.bytes() - ran.resident_bytes;
        control.ledgers[source].moved(Hop::HostToDevice, ran.moved_bytes as usize);
        let mut resident = self.device.resident.lock().unwrap();
        for (segment, _) in stored.blocks.iter() {
            for column in &stored.columns {
                if let Some((_, hits, _)) = resident.get_mut(&(SegmentKey::of(segment), *column)) {
                    *hits += 1;
                }
            }
        }
    }
}

impl Residency for Fake {
    fn load(
        &self,
        _: &Arc<dyn Source>,
        stored: &Stored,
        (limit, _): (MemoryLimit, DevicePath),
        control: &Control<'_>,
    ) -> Result<Loaded> {
        if let Fault::IsFull = self.does() {
            let available = limit.bytes_of(100) as usize;
            return Err(Error::Memory { what: "a column".into(), needed: 1000, available });
        }
        if let Fault::Fails(what, _) = self.does() {
            return Err(Error::device(&self.name, what));
        }
        let mut loaded = Loaded::default();
        let mut resident = self.resident.lock().unwrap();
        for column in &stored.columns {
            let mut of_segment: HashMap<SegmentKey, u64> = HashMap::new();
            for (segment, block) in stored.blocks.iter() {
                *of_segment.entry(SegmentKey::of(segment)).or_default() += segment.stored_bytes(*column, block);
            }
            for (segment, bytes) in of_segment {
                loaded.bytes += bytes;
                let entry = resident.entry((segment, *column)).or_insert_with(|| {
                    loaded.moved_bytes += bytes;
                    control.ledgers[0].moved(Hop::HostToDevice, bytes as usize);
                    (bytes, 0, true)
                });
                entry.2 = true;
            }
        }
        Ok(loaded)
    }

    fn evict(&self, columns: &[(SegmentKey, usize)]) -> u64 {
        let mut resident = self.resident.lock().unwrap();
        columns.iter().filter_map(|column| resident.remove(column)).map(|(bytes, ..)| bytes).sum()
    }

    fn resident_bytes(&self, stored: &Stored) -> u64 {
        let resident = self.resident.lock().unwrap();
        let bytes = |column: &usize| -> u64 {
            let blocks = stored.blocks.iter();
            let there = blocks.filter(|(segment, _)| resident.contains_key(&(SegmentKey::of(segment), *column)));
            there.map(|(segment, block)| segment.stored_bytes(*column, block)).sum()
        };
        stored.columns.iter().map(bytes).sum()
    }

    fn sweep(&self) {
        self.swept.fetch_add(1, Relaxed);
        self.resident.lock().unwrap().retain(|(segment, _), _| !segment.is_gone());
    }

    fn list(&self) -> Vec<Resident> {
        let resident = self.resident.lock().unwrap();
        let one = |((segment, column), (bytes, hits, is_kept)): (&(SegmentKey, usize), &Column)| Resident {
            segment: segment.clone(),
            column: *column,
            bytes: *bytes,
            hits: *hits,
            is_kept: *is_kept,
            pins: 0,
        };
        resident.iter().map(one).collect()
    }
}
