//! NVIDIA GPUs: on the bus, and usable. The driver is loaded only if there is a device for it.

use std::fs;
use std::path::Path;
use std::sync::Arc;

use onehop_cuda::{Context, Device, Driver};
use onehop_engine::backend::{Backend, Devices, Rates};
use onehop_engine::units;

use super::Finding;

/// Probes the GPUs, and opens the first one for further probes.
pub fn probe() -> (Vec<Finding>, Option<Arc<Context>>) {
    let on_bus = on_bus(Path::new("/sys/bus/pci/devices"));
    let nodes = nodes(Path::new("/dev"));
    if nodes.is_empty() {
        return (vec![finding(on_bus)], None);
    }
    let opened = Driver::load().and_then(|driver| Ok((driver.version(), driver.devices()?)));
    match opened {
        Err(e) => (vec![unusable(&nodes, &e)], None),
        Ok((version, devices)) => {
            let context = devices.first().and_then(|device| device.context().ok());
            let mut findings: Vec<Finding> = devices.iter().map(|device| usable(version, device)).collect();
            findings.extend(rates(&*onehop_cuda::devices(None, onehop_cuda::Ending::AtOnce)));
            (findings, context)
        }
    }
}

/// Opens a GPU. Fails with the probe's reason if it cannot.
pub fn open(number: usize) -> Result<Arc<Context>, String> {
    let nodes = nodes(Path::new("/dev"));
    if nodes.is_empty() {
        return Err(finding(on_bus(Path::new("/sys/bus/pci/devices"))).sentence());
    }
    let devices = Driver::load().and_then(|driver| driver.devices());
    let devices = devices.map_err(|e| unusable(&nodes, &e).sentence())?;
    let Some(device) = devices.get(number) else {
        return Err(format!("there is no GPU {number}: this process may use {}", devices.len()));
    };
    device.context().map_err(|e| unusable(&nodes, &e).sentence())
}

/// Measures the rates of each GPU that can run queries. The placement of queries uses the same
/// rates.
fn rates(devices: &dyn Devices) -> Vec<Finding> {
    let backends = match devices.all() {
        Ok(backends) => backends,
        Err(why) => return vec![Finding::warn("gpu_queries", "queries run on the CPU").because(why)],
    };
    let measured = |backend: &Arc<dyn Backend>| match backend.rates() {
        Ok(rates) => Finding::ok("gpu_queries", measured(backend.name(), &rates, backend.node())),
        Err(e) => Finding::warn("gpu_queries", format!("{} cannot be measured", backend.name())).because(e.to_string()),
    };
    backends.iter().map(measured).collect()
}

fn measured(name: &str, rates: &Rates, node: Option<u32>) -> String {
    let rate = |rate: f64| format!("{}/s", units::bytes(rate as u64));
    let node = node.map_or_else(String::new, |node| format!("; NUMA node {node}"));
    format!(
        "{name}: copies {} in its memory, {} from the host, {} to it; {} for a pipeline of nothing{node}",
        rate(rates.copy_bytes_per_sec),
        rate(rates.to_device_bytes_per_sec),
        rate(rates.to_host_bytes_per_sec),
        units::time(rates.launch)
    )
}

fn finding(on_bus: usize) -> Finding {
    match on_bus {
        0 => Finding::info("gpu", "no NVIDIA GPU; queries run on the CPU"),
        n => Finding::warn("gpu", format!("{n} NVIDIA on the PCI bus, no device node"))
            .because("the driver is not loaded, or the container was not given the devices")
            .fix("load the driver (modprobe nvidia), or start the container with --gpus all"),
    }
}

fn unusable(nodes: &[String], error: &onehop_cuda::Error) -> Finding {
    let finding = Finding::warn("gpu", format!("{}, not usable", nodes.join(", "))).because(error.to_string());
    match error.cure() {
        Some(cure) => finding.fix(cure),
        None => finding,
    }
}

fn usable(version: i32, device: &Device) -> Finding {
    let (cuda, (major, minor)) = (format!("CUDA {}.{}", version / 1000, version % 1000 / 10), device.compute);
    let memory = units::bytes(device.memory_bytes);
    let what = format!("{}, {memory}, compute {major}.{minor}, {cuda}, at {}", device.name, device.pci);
    Finding::ok("gpu", what)
}

/// Counts NVIDIA's display and 3D controllers.
fn on_bus(devices: &Path) -> usize {
    let read = |device: &Path, name: &str| fs::read_to_string(device.join(name)).unwrap_or_default();
    let is_gpu = |device: &Path| read(device, "vendor").trim() == "0x10de" && read(device, "class").starts_with("0x03");
    fs::read_dir(devices).into_iter().flatten().flatten().filter(|entry| is_gpu(&entry.path())).count()
}

/// Lists `/dev/nvidia0` and so on, without `/dev/nvidiactl`.
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
        assert_eq!(finding(0).status, Status::Info);
        assert_eq!(finding(1).status, Status::Warn);
    }

    #[test]
    fn rates_have_their_units() {
        let rates = Rates {
            copy_bytes_per_sec: 4.03e12,
            to_device_bytes_per_sec: 53.4e9,
            to_host_bytes_per_sec: 9.9e9,
            launch: std::time::Duration::from_micros(40),
            compile: std::time::Duration::ZERO,
        };
        let text = "cuda:0: copies 4.03 TB/s in its memory, 53.4 GB/s from the host, 9.90 GB/s to it; 0.04 ms for a \
                    pipeline of nothing";
        assert_eq!(measured("cuda:0", &rates, None), text);
        assert_eq!(measured("cuda:0", &rates, Some(1)), format!("{text}; NUMA node 1"));
    }

    #[test]
    fn a_gpu_without_a_driver_has_its_reason() {
        let error =
            onehop_cuda::Error::NotThere { library: "libcuda", reason: "no such file".into(), cure: "install it" };
        let found = unusable(&["/dev/nvidia0".into()], &error);
        assert_eq!((found.status, found.fix.as_deref()), (Status::Warn, Some("install it")));
        assert_eq!(found.cause.as_deref(), Some("libcuda cannot be loaded: no such file"));
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
