//! Transfers from storage into GPU memory: the requirements of cuFile, and its actual behavior with
//! a test file.
//!
//! The requirements are looked up in `/proc`, `/sys` and `/run`, which is cheap and names the
//! missing one. If there is a GPU, the probe also reads a page into its memory. The counters of
//! cuFile show the path that it took.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use onehop_cuda::cufile::{Counting, Effective, udev_cure};
use onehop_cuda::{Context, Cufile, CufileFile, Verdict};
use onehop_io::{AlignedBuf, Ledger, LocalFile, RequestedPath, WriteAt};

use super::{Finding, storage};

/// The file systems from which cuFile reads directly.
const DIRECT: [&str; 7] = ["ext4", "xfs", "lustre", "nfs4", "wekafs", "beegfs", "gpfs"];

/// The size of the test read into GPU memory, in bytes.
const TRIAL_BYTES: usize = 64 << 10;

/// Probes the file system of `path`, and reads from it into the memory of the GPU, if there is one.
pub fn probe(path: &Path, gpu: Option<&Arc<Context>>) -> Vec<Finding> {
    let root = Path::new("/");
    let mut findings = vec![way(root, gpu.is_some())];
    if let Ok(folder) = storage::existing_folder(path) {
        findings.push(file_system(&folder, gpu.is_some()));
        findings.push(udev(root, &folder, gpu.is_some()));
        findings.extend(gpu.map(|context| trial(&folder, context)));
    }
    findings
}

/// Returns a finding about something suboptimal: a warning if there is a GPU.
fn lacking(name: &'static str, found: String, has_gpu: bool) -> Finding {
    if has_gpu { Finding::warn(name, found) } else { Finding::info(name, found) }
}

/// Checks for nvidia-fs, or for GPU memory that other devices may write to.
fn way(root: &Path, has_gpu: bool) -> Finding {
    let name = "gpu direct way";
    let version = |file: &str| fs::read_to_string(root.join(file)).ok().map(|text| text.trim().to_string());
    if let Some(version) = version("sys/module/nvidia_fs/version").or_else(|| version("proc/driver/nvidia-fs/version"))
    {
        return Finding::ok(name, format!("nvidia-fs {version}"));
    }
    let devices = fs::read_dir(root.join("sys/bus/pci/devices")).into_iter().flatten().flatten();
    let is_nvidia = |device: &Path| fs::read_to_string(device.join("vendor")).is_ok_and(|id| id.trim() == "0x10de");
    let mut peers =
        devices.map(|device| device.path()).filter(|device| is_nvidia(device) && device.join("p2pmem").exists());
    match peers.next() {
        Some(device) => {
            let at = device.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
            Finding::ok(name, format!("PCI peer-to-peer (P2PDMA) to {at}"))
        }
        None => lacking(name, "none: GPU memory is reached through host memory".into(), has_gpu)
            .because("nvidia-fs is not loaded, and no NVIDIA device offers its memory to others (P2PDMA)")
            .fix("bare metal with a GPU: install nvidia-gds and modprobe nvidia-fs; virtual machines seldom allow it"),
    }
}

/// Reports the file system and the alignment of its device.
fn file_system(folder: &Path, has_gpu: bool) -> Finding {
    let name = "gpu file system";
    let Some(kind) = storage::file_system_of(folder) else {
        return Finding::info(name, "unknown").because("/proc/self/mountinfo does not list it");
    };
    let alignment = match device_of(folder).and_then(|device| alignment(Path::new("/"), device)) {
        Some(bytes) => format!("direct transfers in multiples of {bytes} bytes"),
        None => "no block device of its own".into(),
    };
    match DIRECT.iter().any(|direct| kind.split(' ').next() == Some(direct)) {
        true => Finding::ok(name, format!("{kind}, {alignment}")),
        false => lacking(name, format!("{kind}, {alignment}"), has_gpu)
            .because("cuFile does not read directly from this kind of file system")
            .fix("for reads straight into GPU memory keep databases on ext4 or xfs, on a local NVMe disk"),
    }
}

/// Checks that udev has a record of the file system's device: without it, cuFile refuses its files.
fn udev(root: &Path, folder: &Path, has_gpu: bool) -> Finding {
    let name = "gpu udev record";
    let Some((major, minor)) = device_of(folder) else { return Finding::info(name, "unknown") };
    let record = PathBuf::from(format!("run/udev/data/b{major}:{minor}"));
    match fs::read_to_string(root.join(&record)) {
        Ok(text) if text.lines().any(|line| line == "E:ID_FS_USAGE=filesystem") => {
            Finding::ok(name, format!("/{} is of a file system", record.display()))
        }
        Ok(_) => lacking(name, format!("/{} does not say ID_FS_USAGE=filesystem", record.display()), has_gpu)
            .because("cuFile refuses files on devices of which udev does not say so (error 5027)")
            .fix(udev_cure(major, minor)),
        Err(_) if major == 0 => Finding::info(name, "none, and none needed: there is no block device"),
        Err(e) => lacking(name, format!("no /{}", record.display()), has_gpu)
            .because(format!("{e}; cuFile refuses files on devices that udev does not know (error 5027)"))
            .fix(udev_cure(major, minor)),
    }
}

/// Returns the major and minor number of the device of a folder.
fn device_of(folder: &Path) -> Option<(u32, u32)> {
    let device = fs::metadata(folder).ok()?.dev();
    Some((rustix::fs::major(device), rustix::fs::minor(device)))
}

/// Returns the block size of a device, or of the disk that contains it, in bytes.
fn alignment(root: &Path, (major, minor): (u32, u32)) -> Option<usize> {
    let device = root.join(format!("sys/dev/block/{major}:{minor}"));
    let read = |file: PathBuf| fs::read_to_string(file).ok()?.trim().parse().ok();
    let disk = fs::canonicalize(&device).ok().and_then(|device| device.parent().map(Path::to_path_buf));
    read(device.join("queue/logical_block_size")).or_else(|| read(disk?.join("queue/logical_block_size")))
}

/// Reads a page of a temporary file into GPU memory.
fn trial(folder: &Path, context: &Arc<Context>) -> Finding {
    let name = "gpu reads";
    match read_once(folder, context) {
        Ok(verdict) if verdict.effective == Effective::Direct => {
            Finding::ok(name, format!("direct: {}", verdict.because))
        }
        Ok(verdict) if verdict.effective == Effective::NotVerified => {
            Finding::warn(name, "cuFile reads; which way is not verified").because(verdict.because)
        }
        Ok(verdict) => Finding::info(name, "cuFile reads in compat mode, through host memory").because(verdict.because),
        Err((cause, fix)) => {
            let finding = Finding::warn(name, "not with cuFile: through pinned host memory").because(cause);
            match fix {
                Some(fix) => finding.fix(fix),
                None => finding,
            }
        }
    }
}

type Why = (String, Option<String>);

fn read_once(folder: &Path, context: &Arc<Context>) -> Result<Verdict, Why> {
    let of_cuda = |e: onehop_cuda::Error| (e.to_string(), e.cure().map(String::from));
    let of_io = |e: onehop_io::Error| (e.to_string(), None);
    let cufile = Cufile::open(context, Counting::On).map_err(of_cuda)?;
    let trial = storage::Trial::create(folder).map_err(|e| (format!("no file can be made there: {e}"), None))?;
    let file = LocalFile::open_for_update(&trial.path, RequestedPath::PreferHostDirect).map_err(of_io)?;
    file.write_at(0, &AlignedBuf::zeroed(TRIAL_BYTES), &Ledger::default()).map_err(of_io)?;
    file.sync().map_err(of_io)?;
    let file = CufileFile::new(&cufile, Arc::new(file)).map_err(of_cuda)?;
    Ok(file.verdict().clone())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::doctor::Status;

    fn put(root: &Path, file: &str, text: &str) -> std::io::Result<()> {
        let path = root.join(file);
        path.parent().map(fs::create_dir_all).transpose()?;
        fs::write(path, text)
    }

    #[test]
    fn a_way_is_found_or_its_absence_explained() -> std::io::Result<()> {
        let root = tempfile::tempdir()?;
        assert_eq!(way(root.path(), false).status, Status::Info);
        let none = way(root.path(), true);
        assert!(none.status == Status::Warn && none.cause.is_some() && none.fix.is_some());
        put(root.path(), "sys/bus/pci/devices/0000:01:00.0/vendor", "0x10de\n")?;
        assert_eq!(way(root.path(), true).status, Status::Warn);
        put(root.path(), "sys/bus/pci/devices/0000:01:00.0/p2pmem/size", "1\n")?;
        assert_eq!(way(root.path(), true).found, "PCI peer-to-peer (P2PDMA) to 0000:01:00.0");
        put(root.path(), "sys/module/nvidia_fs/version", "2.25.6\n")?;
        assert_eq!(way(root.path(), true).found, "nvidia-fs 2.25.6");
        Ok(())
    }

    #[test]
    fn a_missing_udev_record_has_its_cure() -> std::io::Result<()> {
        let root = tempfile::tempdir()?;
        let Some((major, minor)) = device_of(root.path()) else { return Ok(()) };
        if major == 0 {
            return Ok(());
        }
        let record = format!("run/udev/data/b{major}:{minor}");
        let missing = udev(root.path(), root.path(), true);
        assert_eq!(missing.status, Status::Warn);
        assert!(missing.fix.is_some_and(|fix| fix.contains(&record)));
        put(root.path(), &record, "I:1\nE:ID_FS_TYPE=ext4\n")?;
        assert_eq!(udev(root.path(), root.path(), true).status, Status::Warn);
        put(root.path(), &record, "I:1\nE:ID_FS_USAGE=filesystem\n")?;
        assert_eq!(udev(root.path(), root.path(), true).status, Status::Ok);
        Ok(())
    }

    #[test]
    fn the_alignment_of_a_partition_is_its_disk_s() -> std::io::Result<()> {
        let root = tempfile::tempdir()?;
        put(root.path(), "sys/disk/queue/logical_block_size", "4096\n")?;
        fs::create_dir_all(root.path().join("sys/disk/part1"))?;
        fs::create_dir_all(root.path().join("sys/dev/block"))?;
        std::os::unix::fs::symlink(root.path().join("sys/disk/part1"), root.path().join("sys/dev/block/8:1"))?;
        std::os::unix::fs::symlink(root.path().join("sys/disk"), root.path().join("sys/dev/block/8:0"))?;
        assert_eq!((alignment(root.path(), (8, 1)), alignment(root.path(), (8, 0))), (Some(4096), Some(4096)));
        assert_eq!(alignment(root.path(), (9, 0)), None);
        Ok(())
    }
}
