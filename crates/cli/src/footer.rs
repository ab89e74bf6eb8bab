//! The line after a result: its size, its time, and the bytes moved.
//!
//! `3 rows · 214 ms · CPU · 1.19 GB read buffered at 6.61 GB/s · 48/60 blocks skipped`
//! `3 rows · 2.4 ms · cuda:0 · 1.19 GB in memory · 4.19 kB to the GPU · 48/60 blocks skipped`

use std::time::Duration;

use onehop_engine::{Engine, Hop, LedgerSnapshot};

use crate::statement::{Finished, Outcome};
use onehop_engine::units;

/// Returns the footer of a finished statement.
pub fn line(finished: &Finished) -> String {
    let what = match &finished.outcome {
        Outcome::Rows(n) => units::plural(*n, "row"),
        Outcome::Done(done) => match done.rows {
            Some(rows) => format!("{} {}", done.tag, units::count(rows)),
            None => done.tag.to_string(),
        },
    };
    let mut parts = vec![what, units::time(finished.elapsed), ran_by(&finished.engine)];
    parts.extend(read(&finished.ledger, finished.elapsed.saturating_sub(finished.plan_time)));
    parts.extend(on_device(finished));
    parts.extend(written(&finished.ledger));
    parts.extend(spilled(&finished.ledger));
    parts.extend(skipped(&finished.ledger));
    parts.join(" · ")
}

/// Returns the devices that ran it: `CPU`, `cuda:0`, `cuda:0 + CPU`.
fn ran_by(engine: &Engine) -> String {
    match engine {
        Engine::Cpu => "CPU".into(),
        Engine::Gpu(devices) => devices.join(" + "),
        Engine::Mixed(devices) => format!("{} + CPU", devices.join(" + ")),
    }
}

/// Returns the bytes on a device, and those moved to it.
fn on_device(finished: &Finished) -> Option<String> {
    let ledger = &finished.ledger;
    let moved = ledger.hop(Hop::HostToDevice) + ledger.hop(Hop::StorageToDevice);
    let moved = (moved > 0).then(|| format!("{} to the GPU", units::bytes(moved)));
    let is_all = matches!(finished.engine, Engine::Gpu(_));
    let resident =
        (is_all && ledger.cached_bytes > 0).then(|| format!("{} in memory", units::bytes(ledger.cached_bytes)));
    let parts: Vec<String> = [resident, moved].into_iter().flatten().collect();
    (!parts.is_empty()).then(|| parts.join(" · "))
}

fn read(ledger: &LedgerSnapshot, run_time: Duration) -> Option<String> {
    let bytes = ledger.read_bytes();
    if bytes == 0 {
        return None;
    }
    let mut text = format!("{} read", units::bytes(bytes));
    // A buffered read copies every byte once more, from the page cache. A direct read copies at
    // most its edges.
    if ledger.hop(Hop::StorageToDevice) == 0 && ledger.hop(Hop::HostToHost) >= bytes {
        text.push_str(" buffered");
    }
    if let Some(rate) = units::rate(bytes, run_time) {
        text.push_str(" at ");
        text.push_str(&rate);
    }
    Some(text)
}

fn written(ledger: &LedgerSnapshot) -> Option<String> {
    let bytes = ledger.hop(Hop::HostToStorage).saturating_sub(ledger.spilled_bytes);
    (bytes > 0).then(|| format!("{} written", units::bytes(bytes)))
}

fn spilled(ledger: &LedgerSnapshot) -> Option<String> {
    let bytes = ledger.spilled_bytes;
    (bytes > 0).then(|| format!("{} spilled", units::bytes(bytes)))
}

fn skipped(ledger: &LedgerSnapshot) -> Option<String> {
    let all = ledger.blocks_considered;
    (all > 0).then(|| format!("{}/{} blocks skipped", units::count(ledger.blocks_skipped), units::count(all)))
}

#[cfg(test)]
mod tests {
    use onehop_engine::{Done, Ledger};

    use super::*;

    fn finished(outcome: Outcome, ledger: &Ledger) -> Finished {
        Finished {
            outcome,
            elapsed: Duration::from_millis(214),
            plan_time: Duration::from_millis(34),
            ledger: ledger.snapshot(),
            engine: Engine::Cpu,
        }
    }

    #[test]
    fn a_scan_says_what_it_read_and_what_it_did_not() {
        let ledger = Ledger::default();
        ledger.moved(Hop::StorageToHost, 1_190_000_000);
        ledger.moved(Hop::HostToHost, 1_190_000_000);
        ledger.planned_blocks(60, 48);
        assert_eq!(
            line(&finished(Outcome::Rows(3), &ledger)),
            "3 rows · 214 ms · CPU · 1.19 GB read buffered at 6.61 GB/s · 48/60 blocks skipped"
        );
    }

    #[test]
    fn what_was_spilled_was_not_written() {
        let ledger = Ledger::default();
        ledger.moved(Hop::HostToStorage, 3_000_000);
        ledger.spilled(3_000_000);
        assert_eq!(line(&finished(Outcome::Rows(1), &ledger)), "1 row · 214 ms · CPU · 3.00 MB spilled");
    }

    #[test]
    fn a_device_is_named_with_its_bytes() {
        let ledger = Ledger::default();
        ledger.resident(4, 1_190_000_000);
        ledger.moved(Hop::HostToDevice, 4190);
        let on = |engine| line(&Finished { engine, ..finished(Outcome::Rows(3), &ledger) });
        assert_eq!(
            on(Engine::Gpu(vec!["cuda:0".into()])),
            "3 rows · 214 ms · cuda:0 · 1.19 GB in memory · 4.19 kB to the GPU"
        );
        assert_eq!(
            on(Engine::Mixed(vec!["cuda:0".into(), "cuda:1".into()])),
            "3 rows · 214 ms · cuda:0 + cuda:1 + CPU · 4.19 kB to the GPU"
        );
    }

    #[test]
    fn a_direct_read_is_not_called_buffered() {
        let ledger = Ledger::default();
        ledger.moved(Hop::StorageToHost, 1_000_000_000);
        ledger.moved(Hop::HostToHost, 4096);
        assert_eq!(line(&finished(Outcome::Rows(1), &ledger)), "1 row · 214 ms · CPU · 1.00 GB read at 5.56 GB/s");
    }

    #[test]
    fn a_statement_without_rows_says_its_tag() {
        let ledger = Ledger::default();
        let done = |tag, rows| Outcome::Done(Done { tag, rows });
        assert_eq!(line(&finished(done("CREATE TABLE", None), &ledger)), "CREATE TABLE · 214 ms · CPU");
        ledger.moved(Hop::HostToStorage, 26_000);
        assert_eq!(
            line(&finished(done("INSERT", Some(1000)), &ledger)),
            "INSERT 1,000 · 214 ms · CPU · 26.0 kB written"
        );
    }
}
