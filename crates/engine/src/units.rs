//! Quantities as a person reads them: decimal units for storage and links, GiB for memory, times at their own scale.

use std::time::Duration;

/// Bytes in storage or on a link, in decimal units and three digits: `999 B`, `1.19 GB`.
pub fn bytes(n: u64) -> String {
    scaled(n as f64, 1000.0, &["B", "kB", "MB", "GB", "TB", "PB", "EB"])
}

/// Bytes of memory, in binary units: `23.4 GiB`.
pub fn memory(n: u64) -> String {
    scaled(n as f64, 1024.0, &["B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"])
}

/// A throughput: `6.61 GB/s`. `None` if no time has passed to speak of.
pub fn rate(n: u64, time: Duration) -> Option<String> {
    let seconds = time.as_secs_f64();
    (seconds > 1e-6).then(|| format!("{}/s", bytes((n as f64 / seconds) as u64)))
}

fn scaled(n: f64, step: f64, units: &[&str]) -> String {
    let mut value = n;
    let mut unit = 0;
    // 999.5 would print as "1000 MB".
    while value >= 999.5 && unit + 1 < units.len() {
        value /= step;
        unit += 1;
    }
    let digits = match value {
        _ if unit == 0 => 0,
        v if v < 9.995 => 2,
        v if v < 99.95 => 1,
        _ => 0,
    };
    format!("{value:.digits$} {}", units[unit])
}

/// A time: `0.42 ms`, `214 ms`, `1.23 s`, `2 min 05 s`.
pub fn time(t: Duration) -> String {
    let ms = t.as_secs_f64() * 1e3;
    match ms {
        ms if ms < 1.0 => format!("{ms:.2} ms"),
        ms if ms < 9.95 => format!("{ms:.1} ms"),
        ms if ms < 999.5 => format!("{ms:.0} ms"),
        ms if ms < 59_995.0 => format!("{:.2} s", ms / 1e3),
        _ => {
            let seconds = t.as_secs_f64().round() as u64;
            match seconds / 3600 {
                0 => format!("{} min {:02} s", seconds / 60, seconds % 60),
                hours => format!("{hours} h {:02} min", seconds / 60 % 60),
            }
        }
    }
}

/// A count with its thousands apart: `1,234,567`.
pub fn count(n: u64) -> String {
    let digits = n.to_string();
    let mut text = String::with_capacity(digits.len() * 4 / 3);
    for (i, digit) in digits.chars().enumerate() {
        if i > 0 && (digits.len() - i).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

/// A count of things: `1 row`, `1,204 rows`.
pub fn plural(n: u64, thing: &str) -> String {
    format!("{} {thing}{}", count(n), if n == 1 { "" } else { "s" })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_keep_three_digits() {
        assert_eq!(bytes(0), "0 B");
        assert_eq!(bytes(999), "999 B");
        assert_eq!(bytes(1_000), "1.00 kB");
        assert_eq!(bytes(1_194_000_000), "1.19 GB");
        assert_eq!(bytes(12_345_678), "12.3 MB");
        assert_eq!(bytes(999_999_999), "1.00 GB");
        assert_eq!(bytes(u64::MAX), "18.4 EB");
        assert_eq!(memory(24 << 30), "24.0 GiB");
        assert_eq!(memory(1023), "1.00 KiB");
    }

    #[test]
    fn rates_need_time() {
        assert_eq!(rate(1_394_710_000, Duration::from_millis(211)).as_deref(), Some("6.61 GB/s"));
        assert_eq!(rate(5, Duration::ZERO), None);
    }

    #[test]
    fn times_scale_themselves() {
        assert_eq!(time(Duration::from_micros(421)), "0.42 ms");
        assert_eq!(time(Duration::from_micros(4_210)), "4.2 ms");
        assert_eq!(time(Duration::from_millis(214)), "214 ms");
        assert_eq!(time(Duration::from_millis(1_234)), "1.23 s");
        assert_eq!(time(Duration::from_secs(125)), "2 min 05 s");
        assert_eq!(time(Duration::from_secs(3_720)), "1 h 02 min");
    }

    #[test]
    fn counts_are_grouped() {
        assert_eq!(count(0), "0");
        assert_eq!(count(999), "999");
        assert_eq!(count(1_000), "1,000");
        assert_eq!(count(1_234_567), "1,234,567");
        assert_eq!(plural(1, "row"), "1 row");
        assert_eq!(plural(0, "row"), "0 rows");
    }
}
