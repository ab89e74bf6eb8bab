//! NUMA nodes of GPUs and disks, as reported by Linux under `/sys`.
//!
//! ```text
//! GPU   /sys/bus/pci/devices/0000:3b:00.0/numa_node
//! file  its file system's device, /sys/dev/block/259:1: `numa_node` of the nearest enclosing
//!       directory that has one; of a volume over several devices (`slaves`): their common node
//! ```
//! On a machine with one node, no node is reported. Entries that are missing, unreadable or -1 are
//! unknown; they cause no errors.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// Largest depth of stacked volumes: partitions, encryption, a volume group, a RAID.
const MOST_LAYERS: usize = 8;

/// NUMA nodes of a machine.
#[derive(Clone, Debug)]
pub struct Topology {
    sys: PathBuf,
    has_nodes: bool,
}

impl Topology {
    /// Returns the topology of this machine.
    pub fn of_system() -> Self {
        Self::under(Path::new("/sys"))
    }

    /// Returns the topology described by files under a directory laid out as `/sys`.
    pub fn under(sys: &Path) -> Self {
        let is_node = |name: &str| name.strip_prefix("node").is_some_and(|number| number.parse::<u32>().is_ok());
        let entries = fs::read_dir(sys.join("devices/system/node")).into_iter().flatten().flatten();
        let nodes = entries.filter(|entry| entry.file_name().to_str().is_some_and(is_node)).count();
        Self { sys: sys.to_path_buf(), has_nodes: nodes > 1 }
    }

    /// Returns the node of a device by its PCI address, `0000:3b:00.0`.
    pub fn of_pci(&self, place: &str) -> Option<u32> {
        // The address must be a plain name that does not lead to another directory.
        let is_place = place.bytes().all(|byte| byte.is_ascii_hexdigit() || b":.".contains(&byte));
        self.known(|| is_place.then(|| number_in(&self.sys.join("bus/pci/devices").join(place)))?)
    }

    /// Returns the node of the disk that contains a file.
    pub fn of_file(&self, path: &Path) -> Option<u32> {
        self.known(|| {
            let device = fs::metadata(path).ok()?.dev();
            self.of_block(libc::major(device), libc::minor(device))
        })
    }

    fn of_block(&self, major: u32, minor: u32) -> Option<u32> {
        of_directory(&fs::canonicalize(self.sys.join(format!("dev/block/{major}:{minor}"))).ok()?, MOST_LAYERS)
    }

    fn known(&self, node: impl FnOnce() -> Option<u32>) -> Option<u32> {
        if self.has_nodes { node() } else { None }
    }
}

/// Returns the node of a block device by its directory.
fn of_directory(directory: &Path, layers: usize) -> Option<u32> {
    let below = fs::read_dir(directory.join("slaves")).into_iter().flatten().flatten();
    let mut below = below.filter_map(|entry| fs::canonicalize(entry.path()).ok()).peekable();
    if below.peek().is_none() {
        return directory.ancestors().find_map(number_in);
    }
    let layers = layers.checked_sub(1)?;
    let mut nodes = below.map(|slave| of_directory(&slave, layers));
    let first = nodes.next().flatten()?;
    nodes.all(|node| node == Some(first)).then_some(first)
}

/// Returns the contents of a directory's `numa_node`.
fn number_in(directory: &Path) -> Option<u32> {
    fs::read_to_string(directory.join("numa_node")).ok()?.trim().parse().ok()
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    /// A `/sys` that is removed on drop.
    struct Sys(PathBuf);

    impl Sys {
        fn new(name: &str, nodes: u32) -> Self {
            let root = std::env::temp_dir().join(format!("onehop-topology-{}-{name}", std::process::id()));
            // A killed process with the same id may have left it.
            let _ = fs::remove_dir_all(&root);
            let sys = Self(root);
            (0..nodes).for_each(|node| sys.directory(&format!("devices/system/node/node{node}")));
            sys.put("devices/system/node/possible", "0-1");
            sys
        }

        fn directory(&self, path: &str) {
            fs::create_dir_all(self.0.join(path)).unwrap();
        }

        fn put(&self, path: &str, text: &str) {
            let path = self.0.join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        }

        fn link(&self, from: &str, to: &str) {
            fs::create_dir_all(self.0.join(from).parent().unwrap()).unwrap();
            symlink(self.0.join(to), self.0.join(from)).unwrap();
        }
    }

    impl Drop for Sys {
        fn drop(&mut self) {
            let _ = fs::remove_dir_all(&self.0);
        }
    }

    #[test]
    fn a_gpu_says_itself() {
        let sys = Sys::new("gpu", 2);
        sys.put("bus/pci/devices/0000:3b:00.0/numa_node", "1\n");
        sys.put("bus/pci/devices/0000:4c:00.0/numa_node", "-1\n");
        let topology = Topology::under(&sys.0);
        assert_eq!(topology.of_pci("0000:3b:00.0"), Some(1));
        assert_eq!(topology.of_pci("0000:4c:00.0"), None);
        assert_eq!(topology.of_pci("0000:5d:00.0"), None);
        assert_eq!(topology.of_pci("../devices/0000:3b:00.0"), None);
        assert_eq!(topology.of_pci(""), None);
    }

    #[test]
    fn a_disk_is_where_its_controller_is() {
        let sys = Sys::new("disk", 2);
        let [first, second] = [("0000:3b:00.0", "nvme0"), ("0000:af:00.0", "nvme1")].map(|(place, name)| {
            let controller = format!("devices/pci0000:3a/{place}");
            sys.directory(&format!("{controller}/nvme/{name}/{name}n1/{name}n1p1"));
            format!("{controller}/nvme/{name}/{name}n1")
        });
        sys.put("devices/pci0000:3a/0000:3b:00.0/numa_node", "0");
        sys.put("devices/pci0000:3a/0000:af:00.0/numa_node", "1");
        sys.link("dev/block/259:1", &format!("{first}/nvme0n1p1"));
        sys.link("dev/block/259:2", &second);
        // Volumes over one of them, over both, and over itself.
        for (minor, below) in [(0, vec![&second]), (1, vec![&first, &second])] {
            let volume = format!("devices/virtual/block/dm-{minor}");
            sys.directory(&volume);
            below.iter().enumerate().for_each(|(number, disk)| sys.link(&format!("{volume}/slaves/{number}"), disk));
            sys.link(&format!("dev/block/253:{minor}"), &volume);
        }
        sys.link("devices/virtual/block/dm-2/slaves/dm-2", "devices/virtual/block/dm-2");
        sys.link("dev/block/253:2", "devices/virtual/block/dm-2");
        let topology = Topology::under(&sys.0);
        let nodes = [(259, 1), (259, 2), (253, 0), (253, 1), (253, 2), (8, 0)];
        let nodes = nodes.map(|(major, minor)| topology.of_block(major, minor));
        assert_eq!(nodes, [Some(0), Some(1), Some(1), None, None, None]);
    }

    #[test]
    fn one_node_is_none() {
        let sys = Sys::new("one", 1);
        sys.put("bus/pci/devices/0000:3b:00.0/numa_node", "0");
        assert_eq!(Topology::under(&sys.0).of_pci("0000:3b:00.0"), None);
        assert_eq!(Topology::under(Path::new("/nowhere")).of_file(Path::new("/")), None);
        // Any result is fine on this machine.
        let _ = Topology::of_system().of_file(Path::new("/"));
    }
}
