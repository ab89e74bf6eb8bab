//! The processor: model, usable cores, vector instructions.

use std::fs;

use super::Finding;

/// Probes the processor.
pub fn probe() -> Vec<Finding> {
    vec![cores(), vectors()]
}

fn cores() -> Finding {
    let model = model().unwrap_or_else(|| std::env::consts::ARCH.to_string());
    // Counts the cores that affinity masks and cgroup quotas permit.
    match std::thread::available_parallelism() {
        Ok(n) => Finding::ok("cpu", format!("{model}, {n} usable core{}", if n.get() == 1 { "" } else { "s" })),
        Err(e) => Finding::warn("cpu", format!("{model}, cores unknown"))
            .because(e.to_string())
            .fix("say how many threads to use: --threads N"),
    }
}

/// Returns the model, if the system reports it.
pub fn model() -> Option<String> {
    model_of(&fs::read_to_string("/proc/cpuinfo").ok()?)
}

fn model_of(cpuinfo: &str) -> Option<String> {
    let (_, model) = cpuinfo.lines().find(|line| line.starts_with("model name"))?.split_once(':')?;
    Some(model.trim().to_string())
}

#[cfg(target_arch = "x86_64")]
fn vectors() -> Finding {
    let has = [
        ("AVX2", std::arch::is_x86_feature_detected!("avx2")),
        ("AVX-512", std::arch::is_x86_feature_detected!("avx512f") && std::arch::is_x86_feature_detected!("avx512bw")),
    ];
    let list =
        |wanted| has.iter().filter(|(_, has)| *has == wanted).map(|(name, _)| *name).collect::<Vec<_>>().join(", ");
    match (list(true), list(false)) {
        (there, absent) if absent.is_empty() => Finding::ok("vector units", there),
        (there, absent) if there.is_empty() => Finding::info("vector units", format!("neither of {absent}"))
            .because("the processor is older, or a virtual machine hides them; scans take portable code"),
        (there, absent) => Finding::ok("vector units", format!("{there} (not {absent})")),
    }
}

#[cfg(not(target_arch = "x86_64"))]
fn vectors() -> Finding {
    Finding::info("vector units", format!("portable code on {}", std::env::consts::ARCH))
}

#[cfg(test)]
mod tests {
    use super::model_of;

    #[test]
    fn the_model_is_read_from_cpuinfo() {
        assert_eq!(model_of("processor\t: 0\nmodel name\t: Some CPU @ 2.0GHz\n"), Some("Some CPU @ 2.0GHz".into()));
        assert_eq!(model_of("processor\t: 0\n"), None);
    }
}
