//! Values of settings, as text: each `parse` function returns the value, or says what would be one.

use std::time::Duration;

use onehop_pipeline::backend::MemoryLimit;

use super::Parsed;

pub(super) fn parse_count(text: &str, least: u64, most: u64) -> Parsed {
    match text.parse::<u64>() {
        Ok(n) if (least..=most).contains(&n) => Ok(n.to_string()),
        _ => Err(format!("a whole number from {least} to {most}")),
    }
}

pub(super) fn parse_word(text: &str, words: &[&str]) -> Parsed {
    let word = text.to_ascii_lowercase();
    if words.contains(&word.as_str()) { Ok(word) } else { Err(words.join(", ")) }
}

/// Paths between storage and host memory. Those to a device are another setting's.
pub(super) fn parse_path(text: &str) -> Parsed {
    let known = ["auto", "buffered", "direct"];
    parse_word(text, &known).map_err(|known| match text.to_ascii_lowercase().as_str() {
        "staged" | "compat" | "cufile" | "gpu" => format!("{known}; how bytes get to a GPU is gpu.path's to say"),
        _ => known,
    })
}

pub(super) fn parse_memory(text: &str) -> std::result::Result<u64, String> {
    if let Some(percent) = text.strip_suffix('%') {
        return match percent.trim().parse::<u64>() {
            Ok(percent @ 1..=100) => Ok(total_memory_bytes() / 100 * percent),
            _ => Err("a share from 1% to 100%".into()),
        };
    }
    parse_size(text).filter(|bytes| *bytes >= 16 << 20).ok_or_else(|| "a size of 16MiB or more, such as 4GiB".into())
}

/// `cuda:0`, or its number alone, or several of them.
pub(super) fn parse_devices(text: &str) -> Parsed {
    let text = text.to_ascii_lowercase();
    if text == "all" {
        return Ok(text);
    }
    let name = |one: &str| {
        let one = one.trim();
        let number = one.strip_prefix("cuda:").unwrap_or(one);
        number.parse::<u32>().map(|number| format!("cuda:{number}"))
    };
    let names = text.split(',').map(name).collect::<std::result::Result<Vec<_>, _>>();
    names.map(|names| names.join(",")).map_err(|_| "all, or a list of devices, such as cuda:0,cuda:1".into())
}

pub(super) fn parse_device_memory(text: &str) -> std::result::Result<MemoryLimit, String> {
    if let Some(percent) = text.strip_suffix('%') {
        return match percent.trim().parse() {
            Ok(percent @ 1..=100) => Ok(MemoryLimit::Percent(percent)),
            _ => Err("a share from 1% to 100%".into()),
        };
    }
    let bytes = parse_size(text).filter(|bytes| *bytes > 0);
    bytes.map(MemoryLimit::Bytes).ok_or_else(|| "a size, such as 40GiB, or a share, such as 90%".into())
}

pub(super) fn format_device_memory(limit: MemoryLimit) -> String {
    match limit {
        MemoryLimit::Percent(percent) => format!("{percent}%"),
        MemoryLimit::Bytes(bytes) if bytes < 1 << 20 => bytes.to_string(),
        MemoryLimit::Bytes(bytes) => format_size(bytes),
    }
}

pub(super) fn parse_min_bytes(text: &str) -> std::result::Result<Option<u64>, String> {
    if text.eq_ignore_ascii_case("auto") {
        return Ok(None);
    }
    parse_size(text).map(Some).ok_or_else(|| "auto, or a size, such as 64MiB".into())
}

pub(super) fn parse_cache(text: &str) -> std::result::Result<u64, String> {
    if text == "0" || text == "0.0MiB" {
        return Ok(0);
    }
    parse_memory(text).map_err(|wanted| format!("0, or {wanted}"))
}

/// Units of durations, in milliseconds, the largest first.
const DURATION_UNITS: [(&str, u64); 4] = [("h", 3_600_000), ("min", 60_000), ("s", 1000), ("ms", 1)];

pub(super) fn parse_duration(text: &str) -> std::result::Result<Duration, String> {
    if text == "0" {
        return Ok(Duration::ZERO);
    }
    let digits = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    let unit = text[digits..].trim().to_ascii_lowercase();
    let unit = DURATION_UNITS.iter().find(|(name, _)| *name == unit);
    let milliseconds = text[..digits].parse::<u64>().ok().zip(unit).and_then(|(n, (_, unit))| n.checked_mul(*unit));
    milliseconds.map(Duration::from_millis).ok_or_else(|| "a duration with its unit (500ms, 5s, 2min, 1h), or 0".into())
}

/// In the largest unit that leaves a whole number which says as much: `90s`, not `1.5min`.
pub(crate) fn format_duration(duration: Duration) -> String {
    let milliseconds = u64::try_from(duration.as_millis()).unwrap_or(u64::MAX);
    match DURATION_UNITS.iter().find(|(_, unit)| milliseconds.is_multiple_of(*unit)) {
        Some((name, unit)) if milliseconds > 0 => format!("{}{name}", milliseconds / unit),
        _ => "0".into(),
    }
}

/// `64KiB`, `1MiB`, `10GB`, `4096`: powers of 1,024 with an i, of 1,000 without.
pub fn parse_size(text: &str) -> Option<u64> {
    let text = text.trim();
    let digits = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
    let number: f64 = text[..digits].parse().ok()?;
    let unit = match text[digits..].trim().to_ascii_lowercase().as_str() {
        "" | "b" => 1.0,
        "k" | "kb" => 1e3,
        "m" | "mb" => 1e6,
        "g" | "gb" => 1e9,
        "t" | "tb" => 1e12,
        "kib" => 1024.0,
        "mib" => 1024.0 * 1024.0,
        "gib" => 1024.0 * 1024.0 * 1024.0,
        "tib" => 1024.0 * 1024.0 * 1024.0 * 1024.0,
        _ => return None,
    };
    let bytes = number * unit;
    (bytes.is_finite() && bytes < u64::MAX as f64).then_some(bytes as u64)
}

pub(crate) fn format_size(bytes: u64) -> String {
    match bytes {
        b if b >= 1 << 30 => format!("{:.1}GiB", b as f64 / (1u64 << 30) as f64),
        b => format!("{:.1}MiB", b as f64 / (1u64 << 20) as f64),
    }
}

/// Beside the quarter of the memory that hot blocks may take: together they leave some to the
/// process and the system.
pub(super) fn default_memory_limit() -> u64 {
    total_memory_bytes() / 100 * 60
}

pub(super) fn total_memory_bytes() -> u64 {
    let info = rustix::system::sysinfo();
    info.totalram as u64 * u64::from(info.mem_unit)
}

/// PostgreSQL's times are milliseconds where they are nothing else.
pub(crate) fn with_unit(name: &str, value: &str) -> String {
    let is_time = ["statement_timeout", "lock_timeout"].iter().any(|time| name.eq_ignore_ascii_case(time));
    match is_time && value != "0" && !value.is_empty() && value.bytes().all(|byte| byte.is_ascii_digit()) {
        true => format!("{value}ms"),
        false => value.into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_read_as_people_write_them() {
        for (text, bytes) in
            [("64KiB", 65_536), ("1MiB", 1 << 20), ("10GB", 10_000_000_000), ("1.5 kb", 1500), ("7", 7)]
        {
            assert_eq!(parse_size(text), Some(bytes), "{text}");
        }
        for text in ["", "MiB", "1 parsec", "-4", "1e400GB"] {
            assert_eq!(parse_size(text), None, "{text}");
        }
    }
}
