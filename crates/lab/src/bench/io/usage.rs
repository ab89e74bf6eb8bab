//! The system's cost of a measurement: processor time of the process and of the machine, and the
//! actual transfers of the device. The machine's counters include all processes.

use std::fs;
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

/// Readings of the system's counters.
#[derive(Clone, Debug)]
pub struct Meters {
    at: Instant,
    process: (Duration, Duration),
    machine: Option<Machine>,
    device: Option<(u64, u64)>,
    device_number: u64,
}

#[derive(Clone, Copy, Debug)]
struct Machine {
    user: f64,
    system: f64,
    iowait: f64,
    all: f64,
}

/// The differences of two readings.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Usage {
    /// The wall time between the readings.
    pub seconds: f64,
    /// The processor time of this process in its own code, in processors: 1 is one core, all the
    /// time.
    pub process_user_cores: f64,
    /// The same in the kernel.
    pub process_system_cores: f64,
    /// The share of all processors' time in programs. `None` if the system does not report it.
    pub machine_user_share: Option<f64>,
    /// The share in the kernel.
    pub machine_system_share: Option<f64>,
    /// The share idle while waiting for storage.
    pub machine_iowait_share: Option<f64>,
    /// The bytes that the device read, for all processes. `None` if it has no counters.
    pub device_read_bytes: Option<u64>,
    /// The bytes that the device wrote.
    pub device_written_bytes: Option<u64>,
}

impl Meters {
    /// Reads the counters, for the block device of this number.
    pub fn read(device_number: u64) -> Self {
        let (user, system) = process_times();
        Self {
            at: Instant::now(),
            process: (user, system),
            machine: fs::read_to_string("/proc/stat").ok().and_then(|text| machine(&text)),
            device: fs::read_to_string("/proc/diskstats").ok().and_then(|text| device(&text, device_number)),
            device_number,
        }
    }

    /// Returns the differences since this reading.
    pub fn since(&self) -> Usage {
        let now = Self::read(self.device_number);
        let seconds = (now.at - self.at).as_secs_f64();
        let cores = |from: Duration, to: Duration| (to.saturating_sub(from)).as_secs_f64() / seconds;
        let share = |of: fn(&Machine) -> f64| {
            let (from, to) = (self.machine?, now.machine?);
            (to.all > from.all).then(|| (of(&to) - of(&from)) / (to.all - from.all))
        };
        let moved = |of: fn(&(u64, u64)) -> u64| Some(of(&now.device?).saturating_sub(of(&self.device?)));
        Usage {
            seconds,
            process_user_cores: cores(self.process.0, now.process.0),
            process_system_cores: cores(self.process.1, now.process.1),
            machine_user_share: share(|machine| machine.user),
            machine_system_share: share(|machine| machine.system),
            machine_iowait_share: share(|machine| machine.iowait),
            device_read_bytes: moved(|device| device.0),
            device_written_bytes: moved(|device| device.1),
        }
    }
}

/// Returns the times in its own code, and in the kernel.
fn process_times() -> (Duration, Duration) {
    // The first field after the name is the state. User and system time are the 14th and 15th of
    // all fields, in ticks. The name may contain spaces and brackets.
    let text = fs::read_to_string("/proc/self/stat").unwrap_or_default();
    let fields: Vec<&str> = text.rsplit_once(')').map_or(Vec::new(), |(_, rest)| rest.split_whitespace().collect());
    let ticks = |n: usize| fields.get(n).and_then(|field| field.parse::<u64>().ok()).unwrap_or(0);
    let per_second = rustix::param::clock_ticks_per_second().max(1);
    let time = |n| Duration::from_secs_f64(ticks(n) as f64 / per_second as f64);
    (time(11), time(12))
}

/// Parses the first line: user, nice, system, idle, iowait, irq, softirq, steal.
fn machine(text: &str) -> Option<Machine> {
    let line = text.lines().next()?.strip_prefix("cpu ")?;
    let times: Vec<f64> = line.split_whitespace().take(8).map_while(|field| field.parse().ok()).collect();
    let [user, nice, system, _idle, iowait, irq, softirq, ..] = times[..] else { return None };
    Some(Machine { user: user + nice, system: system + irq + softirq, iowait, all: times.iter().sum() })
}

/// Returns the bytes read and written by a device: sectors of 512 bytes in the sixth and tenth
/// field.
fn device(text: &str, number: u64) -> Option<(u64, u64)> {
    let (major, minor) = (rustix::fs::major(number), rustix::fs::minor(number));
    let of_device = |line: &str| {
        let fields: Vec<u64> =
            line.split_whitespace().enumerate().filter(|(n, _)| *n != 2).map_while(|(_, f)| f.parse().ok()).collect();
        (fields.first() == Some(&u64::from(major)) && fields.get(1) == Some(&u64::from(minor))).then_some(fields)
    };
    let fields = text.lines().find_map(of_device)?;
    Some((fields.get(4)? * 512, fields.get(8)? * 512))
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn the_system_s_tables_are_read() {
        let machine = machine("cpu  10 1 5 80 3 1 0 0 0 0\ncpu0 1 2 3\n").unwrap();
        assert_eq!((machine.user, machine.system, machine.iowait, machine.all), (11.0, 6.0, 3.0, 100.0));
        let text = "   7       0 loop0 1 2 3 4 5 6 7 8 9 10 11\n 254       0 vda 100 1 2000 5 50 2 4000 7 0 9 12\n";
        assert_eq!(device(text, rustix::fs::makedev(254, 0)), Some((2000 * 512, 4000 * 512)));
        assert_eq!(device(text, rustix::fs::makedev(9, 9)), None);
    }

    #[test]
    fn work_costs_time() {
        let meters = Meters::read(0);
        let mut x = 1u64;
        // This may take long on a busy machine.
        loop {
            for _ in 0..1_000_000 {
                x = std::hint::black_box(x.wrapping_mul(31));
            }
            let usage = meters.since();
            if usage.process_user_cores > 0.0 {
                assert!(usage.seconds > 0.0, "{usage:?}");
                break;
            }
        }
    }
}
