//! The storage of an I/O benchmark's file, in addition to the general environment.

use std::fs;
use std::path::Path;

use onehop_engine::units;
use onehop_lab::bench::io::{BenchFile, Gpu};
use serde_json::{Value, json};

use super::Environment;
use crate::doctor::storage;

/// Returns the environment for the report.
pub fn json(environment: &Environment, path: &Path, file: &BenchFile, gpu: Option<&Gpu>) -> Value {
    let mut all = environment.json();
    let mount = storage::mount_under(path);
    all["file_system"] = json!(mount.as_ref().map(|mount| &mount.kind));
    all["mounted_device"] = json!(mount.as_ref().map(|mount| &mount.source));
    all["mount_options"] = json!(mount.as_ref().map(|mount| &mount.options));
    all["device"] = device(file.device());
    if let Some(gpu) = gpu {
        let device = gpu.context().device();
        all["gpu"] = json!({
            "name": device.name,
            "pci": device.pci,
            "memory_bytes": device.memory_bytes,
            "compute": format!("{}.{}", device.compute.0, device.compute.1),
            "cuda": cuda(gpu),
        });
        all["cufile"] = json!(cufile(gpu));
    }
    all
}

/// Describes the GPU in one line.
pub fn gpu_line(gpu: &Gpu) -> String {
    let device = gpu.context().device();
    let memory = units::memory(device.memory_bytes);
    format!("{}, {memory}, at {}, CUDA {}; {}", device.name, device.pci, cuda(gpu), cufile(gpu))
}

fn cuda(gpu: &Gpu) -> String {
    let version = gpu.context().device().driver_version();
    format!("{}.{}", version / 1000, version % 1000 / 10)
}

fn cufile(gpu: &Gpu) -> String {
    match gpu.cufile() {
        Ok(cufile) => cufile.describe(),
        Err(why) => format!("no cuFile: {why}"),
    }
}

/// Returns the kernel's attributes of a block device, or of the disk that contains it; null if
/// there is none.
fn device(number: u64) -> Value {
    let (major, minor) = (rustix::fs::major(number), rustix::fs::minor(number));
    let Ok(found) = fs::canonicalize(format!("/sys/dev/block/{major}:{minor}")) else { return Value::Null };
    let disk = match found.parent() {
        Some(parent) if found.join("partition").exists() => parent.to_path_buf(),
        _ => found.clone(),
    };
    let text = |name: &str| fs::read_to_string(disk.join(name)).ok().map(|text| text.trim().to_string());
    let number = |name: &str| text(name).and_then(|text| text.parse::<u64>().ok());
    // The active scheduler is in brackets.
    let scheduler = text("queue/scheduler").map(|text| {
        text.split_once('[').and_then(|(_, rest)| rest.split_once(']')).map_or(text.clone(), |(name, _)| name.into())
    });
    json!({
        "name": disk.file_name().map(|name| name.to_string_lossy().into_owned()),
        "model": text("device/model"),
        "is_rotational": number("queue/rotational").map(|n| n == 1),
        "scheduler": scheduler,
        "logical_block_bytes": number("queue/logical_block_size"),
        "max_transfer_bytes": number("queue/max_sectors_kb").map(|n| n * 1024),
        "read_ahead_bytes": number("queue/read_ahead_kb").map(|n| n * 1024),
        "requests": number("queue/nr_requests"),
    })
}
