//! NVIDIA GPUs: on the bus, and usable.

use std::fs;
use std::path::Path;

use super::Finding;

/// Looks.
pub fn probe() -> Vec<Finding> {
    let on_bus = on_bus(Path::new("/sys/bus/pci/devices"));
    let nodes = nodes(Path::new("/dev"));
    vec![finding(on_bus, &nodes)]
}

fn finding(on_bus: usize, nodes: &[String]) -> Finding {
    match (on_bus, nodes) {
        (0, []) => Finding::info("gpu", "no NVIDIA GPU; this version computes on the CPU only"),
        (n, []) => Finding::warn("gpu", format!("{n} NVIDIA on the PCI bus, no device node"))
            .because("the driver is not loaded, or the container was not given the devices")
            .fix("load the driver (modprobe nvidia), or start the container with --gpus all"),
        (_, nodes) => Finding::ok("gpu", format!("{}; not used by this version", nodes.join(", "))),
    }
}

/// Display and 3D controllers of NVIDIA's.
fn on_bus(devices: &Path) -> usize {
    let read = |device: &Path, name: &str| fs::read_to_string(device.join(name)).unwrap_or_default();
    let is_gpu = |device: &Path| read(device, "vendor").trim() == "0x10de" && read(device, "class").starts_with("0x03");
    fs::read_dir(devices).into_iter().flatten().flatten().filter(|entry| is_gpu(&entry.path())).count()
}

/// `/dev/nvidia0` and so on; not `/dev/nvidiactl`.
fn nodes(dev: &Path) -> Vec<String> {
    let entries = fs::read_dir(dev).into_iter().flatten().flatten();
    let is_gpu = |name: &String| {
        name.strip_prefix("nvidia").is_some_and(|n| !n.is_empty() && n.chars().all(|c| c.is_ascii_digit()))
    };
    let mut names: Vec<String> =
        entries.filter_map(|entry| entry.file_name().into_string().ok()).filter(is_gpu).collect();
    names.sort();
    names.iter().map(|name| dev.join(name).display().to_string()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::doctor::Status;

    #[test]
    fn a_machine_without_a_gpu_is_healthy() {
        assert_eq!(finding(0, &[]).status, Status::Info);
        assert_eq!(finding(1, &[]).status, Status::Warn);
        assert_eq!(finding(1, &["/dev/nvidia0".into()]).status, Status::Ok);
    }

    #[test]
    fn device_nodes_are_told_from_control_nodes() -> std::io::Result<()> {
        let dev = tempfile::tempdir()?;
        for name in ["nvidia1", "nvidia0", "nvidiactl", "nvidia-uvm", "null"] {
            fs::write(dev.path().join(name), "")?;
        }
        let found = nodes(dev.path());
        assert!(found.len() == 2 && found[0].ends_with("/nvidia0") && found[1].ends_with("/nvidia1"), "{found:?}");
        Ok(())
    }
}
