//! Memory: the machine's total, the control group's limit, and the limit on pinned memory.

use std::fs;
use std::path::{Path, PathBuf};

use rustix::process::{Resource, getrlimit};

use super::Finding;
use onehop_engine::units;

/// The least pinned memory that a GPU's staging buffers fit into.
const ENOUGH_LOCKED_BYTES: u64 = 64 << 20;
/// The least memory with which large sorts and joins neither spill nor fail.
const ENOUGH_MEMORY_BYTES: u64 = 1 << 30;

/// Probes the memory.
pub fn probe() -> Vec<Finding> {
    vec![memory(), memlock()]
}

fn memory() -> Finding {
    let text = fs::read_to_string("/proc/meminfo").unwrap_or_default();
    let Some(total) = meminfo(&text, "MemTotal") else {
        return Finding::warn("memory", "unknown")
            .because("/proc/meminfo cannot be read")
            .fix("say how much to use: --memory-limit SIZE");
    };
    let available = meminfo(&text, "MemAvailable").unwrap_or(total);
    let mut found = format!("{}, {} available", units::memory(total), units::memory(available));
    let limit = cgroup_limit().filter(|limit| *limit < total);
    if let Some(limit) = limit {
        found += &format!(", {} allowed by the control group", units::memory(limit));
    }
    if limit.unwrap_or(total) < ENOUGH_MEMORY_BYTES {
        return Finding::warn("memory", found).fix("large joins and sorts want 1 GiB and more");
    }
    Finding::ok("memory", found)
}

/// Returns the machine's memory in bytes, if the system reports it.
pub fn total_bytes() -> Option<u64> {
    meminfo(&fs::read_to_string("/proc/meminfo").ok()?, "MemTotal")
}

/// Returns a line of /proc/meminfo, in bytes.
fn meminfo(text: &str, name: &str) -> Option<u64> {
    let line = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'))?;
    line.trim().strip_suffix("kB")?.trim().parse::<u64>().ok().map(|kib| kib << 10)
}

/// Returns the lowest memory limit of the control group and its ancestors.
fn cgroup_limit() -> Option<u64> {
    let text = fs::read_to_string("/proc/self/cgroup").ok()?;
    let files = text.lines().filter_map(limit_file).flat_map(|(root, group, file)| upwards(root, &group, file));
    // Without a limit the file says "max", or a number beyond any machine.
    files.filter_map(|file| fs::read_to_string(file).ok()?.trim().parse().ok()).min()
}

/// Parses a line of /proc/self/cgroup. Returns the mount point of groups, our group, and the name
/// of the limit's file.
fn limit_file(line: &str) -> Option<(&'static Path, PathBuf, &'static str)> {
    let mut parts = line.splitn(3, ':').skip(1);
    let (controllers, group) = (parts.next()?, parts.next()?);
    let group = PathBuf::from(group.trim_start_matches('/'));
    if controllers.is_empty() {
        return Some((Path::new("/sys/fs/cgroup"), group, "memory.max"));
    }
    let is_memory = controllers.split(',').any(|controller| controller == "memory");
    is_memory.then(|| (Path::new("/sys/fs/cgroup/memory"), group, "memory.limit_in_bytes"))
}

fn upwards(root: &Path, group: &Path, file: &str) -> Vec<PathBuf> {
    group.ancestors().map(|group| root.join(group).join(file)).collect()
}

fn memlock() -> Finding {
    let limit = getrlimit(Resource::Memlock).current;
    let found = limit.map_or("unlimited".to_string(), units::memory);
    match limit {
        Some(bytes) if bytes < ENOUGH_LOCKED_BYTES => Finding::info("memlock", found)
            .because("the limit on pinned memory; only GPUs and io_uring's registered buffers need more")
            .fix("ulimit -l unlimited, or `* - memlock unlimited` in /etc/security/limits.conf"),
        _ => Finding::ok("memlock", found),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn meminfo_is_in_kib() {
        let text = "MemTotal:       16384 kB\nMemAvailable:    1024 kB\n";
        assert_eq!(meminfo(text, "MemTotal"), Some(16 << 20));
        assert_eq!(meminfo(text, "Mem"), None);
    }

    #[test]
    fn both_generations_of_control_groups_are_known() {
        let of = |line| limit_file(line).map(|(root, group, file)| upwards(root, &group, file));
        let v2 = ["/sys/fs/cgroup/a/b/memory.max", "/sys/fs/cgroup/a/memory.max", "/sys/fs/cgroup/memory.max"];
        assert_eq!(of("0::/a/b"), Some(v2.map(PathBuf::from).to_vec()));
        let v1 = ["/sys/fs/cgroup/memory/x/memory.limit_in_bytes", "/sys/fs/cgroup/memory/memory.limit_in_bytes"];
        assert_eq!(of("5:memory:/x"), Some(v1.map(PathBuf::from).to_vec()));
        assert_eq!(of("4:cpu,cpuacct:/x"), None);
    }
}
