//! The system's counters of written bytes, at three stages towards the device.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use serde::{Deserialize, Serialize};

/// The size of a sector in `/sys/dev/block`, independent of the device's, in bytes.
const SECTOR_BYTES: u64 = 512;

/// Cumulative bytes. `None` if the system does not report them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Written {
    /// Bytes passed by this process in write calls (`wchar` of `/proc/self/io`).
    pub handed_bytes: Option<u64>,
    /// Bytes of pages that this process dirtied, less those cancelled before they were written
    /// (`write_bytes` and `cancelled_write_bytes`). Newer kernels cache files in folios of up to
    /// megabytes, and count a whole folio for a byte.
    pub dirtied_bytes: Option<u64>,
    /// Bytes written to the device of a folder's file system by all processes, the file system's
    /// own journal included. They describe this process if no other process uses that device.
    pub device_bytes: Option<u64>,
}

impl Written {
    /// Reads the counters now, with the device of `folder`.
    pub fn now(folder: &Path) -> Self {
        let io = fs::read_to_string("/proc/self/io").unwrap_or_default();
        Self { device_bytes: device(folder), ..Self::of_process(&io) }
    }

    /// Returns the difference since `earlier`.
    pub fn since(&self, earlier: &Self) -> Self {
        let since = |now: Option<u64>, then: Option<u64>| Some(now?.saturating_sub(then?));
        Self {
            handed_bytes: since(self.handed_bytes, earlier.handed_bytes),
            dirtied_bytes: since(self.dirtied_bytes, earlier.dirtied_bytes),
            device_bytes: since(self.device_bytes, earlier.device_bytes),
        }
    }

    fn of_process(io: &str) -> Self {
        let field = |name: &str| {
            let line = io.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'))?;
            line.trim().parse::<u64>().ok()
        };
        let cancelled = field("cancelled_write_bytes").unwrap_or(0);
        Self {
            handed_bytes: field("wchar"),
            dirtied_bytes: field("write_bytes").map(|bytes| bytes.saturating_sub(cancelled)),
            device_bytes: None,
        }
    }
}

fn device(folder: &Path) -> Option<u64> {
    let number = fs::metadata(folder).ok()?.dev();
    let (major, minor) = (rustix::fs::major(number), rustix::fs::minor(number));
    sectors(&fs::read_to_string(format!("/sys/dev/block/{major}:{minor}/stat")).ok()?)
}

/// Returns the bytes of the seventh number: sectors written.
fn sectors(stat: &str) -> Option<u64> {
    Some(stat.split_ascii_whitespace().nth(6)?.parse::<u64>().ok()? * SECTOR_BYTES)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_are_found_where_the_system_puts_them() {
        let io = "rchar: 1\nwchar: 2\nsyscr: 3\nread_bytes: 5\nwrite_bytes: 8192\ncancelled_write_bytes: 4096\n";
        let written = Written::of_process(io);
        assert_eq!((written.handed_bytes, written.dirtied_bytes), (Some(2), Some(4096)));
        assert_eq!(Written::of_process("write_bytes: x\n"), Written::default());
        assert_eq!(sectors("   63  0  2226  44  31  776  137608  89  0\n"), Some(137_608 * 512));
        assert_eq!((sectors(""), sectors("1 2 3 4 5 6 x")), (None, None));
    }

    #[test]
    fn what_came_later_is_the_difference() {
        let at = |bytes| Written { handed_bytes: Some(bytes), dirtied_bytes: Some(bytes), device_bytes: None };
        assert_eq!(at(7).since(&at(5)), at(2));
        assert_eq!(at(7).since(&Written::default()), Written::default());
    }
}
