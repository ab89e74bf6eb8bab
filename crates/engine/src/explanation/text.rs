//! Renders an explanation in lines, for people: each operator's description, and below it, after a
//! bar, its figures.

use std::fmt::Write;
use std::time::Duration;

use onehop_io::{Hop, LedgerSnapshot};
use onehop_pipeline::backend::{Brought, Compiled, Streamed, TakenPath};
use onehop_segment::AheadFacts;

use super::{
    DevicePipeline, DeviceScan, DeviceShare, Explanation, Facts, GroupFacts, JoinFacts, Node, PartitionFacts, PassRun,
    PipelineTimes, PlacementFacts, Sampled, ScanFacts, TopFacts, Totals,
};
use crate::units::{bytes, count, plural, rate, time};

/// The length at which conditions and lists are cut. JSON has all of them.
const MAX_LETTERS: usize = 160;
/// The maximum number of named partitions. JSON has all of them.
const MAX_PARTITIONS: usize = 8;

/// Returns the tree and the summary.
pub(super) fn text(explanation: &Explanation) -> String {
    let mut out = String::new();
    tree(&explanation.plan, "", "", "", &mut out);
    if let Some(totals) = &explanation.totals {
        out.push('\n');
        for (name, line) in summary(totals) {
            let _ = writeln!(out, "{name:<8}{line}");
        }
        if !explanation.passes.is_empty() {
            let _ = writeln!(out, "{:<8}{}", "passes", pass_summary(&explanation.passes));
        }
    }
    if let Some(reason) = &explanation.fails {
        let _ = write!(out, "\nwould fail: {reason}\n");
    }
    if !explanation.not_fused.is_empty() {
        out.push('\n');
        for reason in &explanation.not_fused {
            let _ = writeln!(out, "not fused: {reason}");
        }
    }
    out
}

/// The passes that are named in a summary.
const MOST_NAMED_PASSES: usize = 3;

/// Returns the time of all passes, and those that took longest.
fn pass_summary(passes: &[PassRun]) -> String {
    let mut by_pass: Vec<(&str, Duration)> = Vec::new();
    for run in passes {
        match by_pass.iter_mut().find(|(pass, _)| *pass == run.pass) {
            Some((_, sum)) => *sum += run.time,
            None => by_pass.push((&run.pass, run.time)),
        }
    }
    by_pass.sort_by_key(|(_, sum)| std::cmp::Reverse(*sum));
    let all = passes.iter().map(|run| run.time).sum();
    let longest = by_pass.iter().take(MOST_NAMED_PASSES).map(|(pass, sum)| format!("{pass} {}", time(*sum)));
    format!("{} in {}, longest {}", by_pass.len(), time(all), longest.collect::<Vec<_>>().join(", "))
}

/// Returns a line for each run of a pass, with the plan below it if the pass changed it.
pub(super) fn passes(passes: &[PassRun]) -> String {
    let width = passes.iter().map(|run| run.pass.len()).max().unwrap_or(0);
    let mut out = String::new();
    for PassRun { stage, pass, time: took, change } in passes {
        let _ = writeln!(out, "{stage:<10}{pass:<width$}  {}", time(*took));
        for line in change.iter().flat_map(|change| change.after.lines()) {
            let _ = writeln!(out, "          {line}");
        }
    }
    out
}

/// `first` is before the operator's own line, `rest` before all below it.
fn tree(node: &Node, first: &str, rest: &str, role: &str, out: &mut String) {
    let line = format!("{first}{role}{} {}", node.operator, title(&node.facts));
    let _ = writeln!(out, "{}", line.trim_end());
    let bar = if node.inputs.is_empty() { "     " } else { "│    " };
    for line in figures(node) {
        let _ = writeln!(out, "{rest}{bar}{line}");
    }
    let last = node.inputs.len().saturating_sub(1);
    for (number, input) in node.inputs.iter().enumerate() {
        let (branch, below) = if number == last { ("└─ ", "   ") } else { ("├─ ", "│  ") };
        let role = if number > 0 && matches!(node.facts, Facts::Join(_)) { "build: " } else { "" };
        tree(input, &format!("{rest}{branch}"), &format!("{rest}{below}"), role, out);
    }
}

pub(super) fn title(facts: &Facts) -> String {
    match facts {
        Facts::Scan(scan) if scan.alias != scan.table => format!("{} {}", scan.table, scan.alias),
        Facts::Scan(scan) => scan.table.clone(),
        Facts::Filter(condition) => cut(condition),
        Facts::Join(join) => format!("{} on {}", join.kind, cut(&join.on)),
        Facts::Rows(rows) => cut(&rows.columns.join(", ")),
        Facts::Top(top) => format!("first {} by {}", count(top.rows), cut(&top.keys.join(", "))),
        Facts::Groups(GroupFacts { keys, aggregates, .. }) if keys.is_empty() => cut(&aggregates.join(", ")),
        Facts::Groups(GroupFacts { keys, aggregates, .. }) if aggregates.is_empty() => {
            format!("by {}", cut(&keys.join(", ")))
        }
        Facts::Groups(GroupFacts { keys, aggregates, .. }) => {
            format!("by {}: {}", cut(&keys.join(", ")), cut(&aggregates.join(", ")))
        }
        Facts::Other(text) => cut(text),
    }
}

pub(super) fn figures(node: &Node) -> Vec<String> {
    let mut lines = match &node.facts {
        Facts::Scan(scan) => scan_figures(scan),
        Facts::Join(join) => join_figures(join),
        Facts::Groups(groups) => group_figures(groups),
        Facts::Top(top) => top_figures(top),
        Facts::Rows(_) | Facts::Filter(_) | Facts::Other(_) => Vec::new(),
    };
    lines.extend(node.placed.as_ref().map(placed));
    let mut done = Vec::new();
    match (node.rows_in, node.rows_out) {
        (Some(rows_in), Some(rows_out)) => done.push(format!("rows {} -> {}", count(rows_in), count(rows_out))),
        (None, Some(rows)) => done.push(format!("rows {}", count(rows))),
        (_, None) => {}
    }
    let pipeline = match &node.facts {
        Facts::Groups(groups) => groups.pipeline,
        Facts::Rows(rows) => rows.pipeline,
        Facts::Top(top) => top.pipeline,
        _ => None,
    };
    match (&node.sampled, &node.facts) {
        // Computed first, then read.
        (Some(share), Facts::Other(_)) => {
            done.extend(node.time.map(|elapsed| format!("{}, then read in {}", time(elapsed), sampled(share))));
        }
        (Some(share), _) => done.push(sampled(share)),
        // The time of a pipeline has a line of its own.
        (None, Facts::Groups(_) | Facts::Rows(_) | Facts::Top(_)) => {}
        (None, _) => done.extend(node.time.map(time)),
    }
    if let (Facts::Scan(scan), Some(elapsed)) = (&node.facts, node.time) {
        let rate = scan.ledger.and_then(|ledger| rate(ledger.needed_bytes, elapsed));
        done.extend(rate.map(|rate| format!("{rate} for {}", time(elapsed))));
    }
    if !done.is_empty() {
        lines.push(done.join(", "));
    }
    lines.extend(pipeline.map(|times| format!("pipeline {}", pipeline_times(&times))));
    lines.extend(node.shares.iter().map(share));
    lines.extend(node.remarks.iter().cloned());
    lines
}

/// Returns the placement of pipelines, and the reason.
fn placed(placed: &PlacementFacts) -> String {
    let place = match &placed.device {
        Some((name, description)) => format!("{name} ({description})"),
        None => "the CPU".into(),
    };
    let mut text = format!("placed on {place}: {}", placed.why);
    if let Some(estimate) = &placed.estimate {
        let moved = estimate.read_bytes.saturating_sub(estimate.resident_bytes);
        let _ = write!(text, "; {} resident, {} to be moved", bytes(estimate.resident_bytes), bytes(moved));
        if estimate.kept_bytes > 0 {
            let _ = write!(text, " to stay");
        }
        if estimate.to_compile > 0 {
            let _ = write!(text, ", {} to be compiled", plural(estimate.to_compile, "kernel"));
        }
    }
    text
}

fn scan_figures(scan: &ScanFacts) -> Vec<String> {
    let mut lines = Vec::new();
    if !scan.columns.is_empty() {
        lines.push(format!("columns {}", cut(&scan.columns.join(", "))));
    }
    if !scan.late_columns.is_empty() {
        lines.push(format!("texts read late {}", cut(&scan.late_columns.join(", "))));
    }
    let mut blocks = format!("blocks {} of {}", count(scan.blocks_left()), count(scan.blocks));
    if let Some(condition) = &scan.zone_condition {
        let by = [(scan.skipped_by_zone_map, "zone maps"), (scan.skipped_by_partition, "partition")];
        let by = by.iter().filter(|(blocks, _)| *blocks > 0).map(|(n, by)| format!("{} by {by}", count(*n)));
        let by = by.collect::<Vec<_>>().join(", ");
        let _ = write!(blocks, "; skipped {} for {}", if by.is_empty() { "none" } else { &by }, cut(condition));
    }
    for (join, skipped) in &scan.skipped_by_joins {
        let _ = write!(blocks, "; skipped {} by the keys of {}", count(*skipped), cut(join));
    }
    if scan.skipped_by_top_k > 0 {
        let _ = write!(blocks, "; skipped {} by the first rows of others", count(scan.skipped_by_top_k));
    }
    lines.push(blocks);
    let changed = [(scan.fresh_rows, "fresh"), (scan.deleted_rows, "deleted")];
    let changed = changed.iter().filter(|(rows, _)| *rows > 0).map(|(rows, what)| format!("{} {what}", count(*rows)));
    let changed = changed.collect::<Vec<_>>();
    if !changed.is_empty() {
        lines.push(format!("rows {}", changed.join(", ")));
    }
    lines.extend(partition_figures(scan));
    let limit = scan.limit.map(|rows| format!(", limit {}", count(rows))).unwrap_or_default();
    let (planned, stored) = (bytes(scan.planned_bytes), bytes(scan.stored_bytes));
    lines.push(format!("bytes {planned} of {stored} stored{limit}, path {}", scan.path));
    if let Some(ledger) = &scan.ledger {
        lines.push(moved(ledger));
    }
    if let Some(AheadFacts { way: Some(way), ahead_bytes, late_bytes }) = &scan.ahead {
        lines.push(format!("read ahead {} by {way}; {} when wanted", bytes(*ahead_bytes), bytes(*late_bytes)));
    }
    if let Some(DeviceScan { device, resident_bytes, moved_bytes, brought }) = &scan.device {
        let (resident, moved) = (bytes(*resident_bytes), bytes(*moved_bytes));
        let way = brought.as_ref().map(way).unwrap_or_default();
        lines.push(format!("{device}: {resident} were resident, {moved} moved there{way}"));
    }
    if let Some((blocks, read)) = scan.read {
        lines.push(format!("read {} of {}", bytes(read), plural(blocks, "block")));
    }
    lines
}

/// Returns the path of bytes to a device.
fn way(brought: &Brought) -> String {
    let Brought { path, bytes: read, because } = brought;
    match path {
        TakenPath::Staged => format!(", staged ({because})"),
        TakenPath::Bounced => format!(", {} of them bounced ({because})", bytes(*read)),
        taken => format!(", {} of them by cuFile, {} ({because})", bytes(*read), taken.name()),
    }
}

/// Returns the remaining blocks of each partition, or the reason why none are left.
fn partition_figures(scan: &ScanFacts) -> Vec<String> {
    if scan.partitions.is_empty() {
        return Vec::new();
    }
    let (left, gone): (Vec<&PartitionFacts>, Vec<_>) = scan.partitions.iter().partition(|p| p.blocks_left() > 0);
    let read = left.iter().map(|p| format!("{} {} of {} blocks", p.name, count(p.blocks_left()), count(p.blocks)));
    let read = listed(read);
    let mut lines = vec![format!("partitions {} of {}", left.len(), scan.partitions.len())];
    if !read.is_empty() {
        let _ = write!(lines[0], ": {read}");
    }
    let by_joins = |p: &&&PartitionFacts| p.skipped_by_joins > 0;
    let empty = |p: &&&PartitionFacts| p.blocks == 0;
    let names = |of: &dyn Fn(&&&PartitionFacts) -> bool| -> Vec<String> {
        gone.iter().filter(of).map(|p| p.name.clone()).collect()
    };
    let condition = cut(scan.zone_condition.as_deref().unwrap_or("the condition"));
    for (names, why) in [
        (names(&|p| !empty(p) && !by_joins(p)), format!("ruled out by {condition}")),
        (names(&by_joins), "ruled out by the keys of joins".to_string()),
        (names(&empty), "empty".to_string()),
    ] {
        if !names.is_empty() {
            lines.push(format!("partitions {} {why}: {}", names.len(), listed(names.into_iter())));
        }
    }
    lines
}

/// Returns the first items of a list, and the number of the others.
fn listed(mut all: impl Iterator<Item = String>) -> String {
    let mut first: Vec<String> = all.by_ref().take(MAX_PARTITIONS).collect();
    let more = all.count();
    if more > 0 {
        first.push(format!("and {more} more"));
    }
    first.join(", ")
}

fn sampled(sampled: &Sampled) -> String {
    format!("~{} ({:.0} %)", time(sampled.time), sampled.share * 100.0)
}

/// Returns the times of a pipeline.
fn pipeline_times(times: &PipelineTimes) -> String {
    if let Some(device) = &times.device {
        return format!("{}, {}", time(times.elapsed), on_device(device));
    }
    let (elapsed, threads) = (time(times.elapsed), plural(times.threads, "thread"));
    let mut text = format!("{elapsed}, {} on {threads}, CPU {}", time(times.thread_time), time(times.cpu));
    // A merge of less than a twentieth of the time is not reported.
    if times.finishing * 20 > times.elapsed {
        let _ = write!(text, ", then {} to put it together", time(times.finishing));
    }
    text
}

/// Returns the statistics of one of several devices.
fn share(share: &DeviceShare) -> String {
    let DeviceShare { device, blocks, rows, elapsed, resident_bytes, moved_bytes, pipeline } = share;
    let (blocks, rows) = (plural(*blocks, "block"), plural(*rows, "row"));
    let (resident, moved) = (bytes(*resident_bytes), bytes(*moved_bytes));
    let times = on_device(pipeline);
    format!("{device}: {blocks}, {rows}; {resident} were resident, {moved} moved there; {}, {times}", time(*elapsed))
}

/// Returns the times of a pipeline on a device.
fn on_device(device: &DevicePipeline) -> String {
    let kernel = time(device.kernel);
    let launches =
        if device.launches == 1 { "1 launch".into() } else { format!("{} launches", count(device.launches)) };
    let mut text = format!("kernels {kernel} in {launches}");
    if device.passes > 1 {
        let _ = write!(text, " of {} passes", count(device.passes));
    }
    if let Some(rate) = rate(device.read_bytes, device.kernel) {
        let _ = write!(text, ", {} at {rate}", bytes(device.read_bytes));
        if let Some(share) = device.share() {
            let _ = write!(text, ", {:.0} % of the copy rate", share * 100.0);
        }
    }
    if let Some(Streamed { batches, bytes: brought, waited }) = device.streamed {
        let batches = if batches == 1 { "1 batch".into() } else { format!("{} batches", count(batches)) };
        let _ = write!(text, "; {} streamed in {batches}, waited {} for them", bytes(brought), time(waited));
    }
    match device.compiled {
        Compiled::Now(took) => {
            let _ = write!(text, "; compiled in {}", time(took));
        }
        Compiled::Before => text.push_str("; compiled before"),
    }
    text
}

/// Returns the sources of bytes.
fn moved(ledger: &LedgerSnapshot) -> String {
    let mut parts = vec![format!("read {} from storage", bytes(ledger.read_bytes()))];
    let copied = ledger.hop(Hop::HostToHost);
    if copied > 0 {
        parts.push(format!("{} copied in memory", bytes(copied)));
    }
    parts.push(format!("{} were in memory", bytes(ledger.cached_bytes)));
    parts.join(", ")
}

fn join_figures(join: &JoinFacts) -> Vec<String> {
    let keys = join.keys.join(", ");
    let payload =
        if join.payload.is_empty() { String::new() } else { format!(" with {}", cut(&join.payload.join(", "))) };
    let mut lines = vec![format!("table by {}{payload}", cut(&keys))];
    if let Some(planned) = &join.planned {
        let (rows, size) = (plural(planned.rows as u64, "row"), bytes(planned.bytes as u64));
        lines.push(format!("planned {}, {rows} at most, {size} if every key has one row", planned.kind.name()));
    }
    if let Some(built) = &join.built {
        let unique = match built.is_unique {
            Some(true) => ", one row a key",
            Some(false) => ", several rows a key",
            None => "",
        };
        let (rows, size) = (plural(built.rows as u64, "row"), bytes(built.bytes as u64));
        lines.push(format!("built {}{unique}, {rows} and {size}", built.kind.name()));
        if let Some(build) = &join.build {
            let collecting = join.collecting.as_ref().map(|share| format!("; its rows {}", sampled(share)));
            lines.push(format!("pipeline {}{}", pipeline_times(build), collecting.unwrap_or_default()));
        }
    }
    lines
}

fn group_figures(groups: &GroupFacts) -> Vec<String> {
    let kind =
        groups.grouping.filter(|_| !groups.keys.is_empty()).map(|grouping| format!("{} groups", grouping.name()));
    let size = groups.bytes.map(bytes);
    let all: Vec<String> = [kind, size].into_iter().flatten().collect();
    if all.is_empty() { Vec::new() } else { vec![all.join(", ")] }
}

fn top_figures(top: &TopFacts) -> Vec<String> {
    let mut lines = vec![format!("columns {}", cut(&top.columns.join(", ")))];
    lines.extend(top.bytes.map(bytes));
    if let Some(left_out @ 1..) = top.rows_left_out {
        lines.push(format!("left out {} by their first key alone", plural(left_out, "row")));
    }
    lines
}

/// Returns the lines below the tree, by name.
pub(super) fn summary(totals: &Totals) -> Vec<(&'static str, String)> {
    let Totals { plan_time, run_time, rows, answer_bytes, ledger } = totals;
    let all = |totals: Duration| time(totals);
    let mut lines = vec![
        ("answer", format!("{}, {}", plural(*rows, "row"), bytes(*answer_bytes))),
        ("time", format!("plan {} + run {}", all(*plan_time), all(*run_time))),
    ];
    let hops = Hop::ALL.into_iter().filter(|hop| ledger.hop(*hop) > 0);
    let hops: Vec<String> = hops.map(|hop| format!("{} {}", hop_name(hop), bytes(ledger.hop(hop)))).collect();
    let hops = if hops.is_empty() { "none".into() } else { hops.join(", ") };
    lines.push(("moved", hops));
    if ledger.needed_bytes == 0 {
        lines.push(("needed", "none".into()));
        return lines;
    }
    let (needed, cached) = (bytes(ledger.needed_bytes), bytes(ledger.cached_bytes));
    let at = rate(ledger.needed_bytes, *run_time).map(|rate| format!(", {rate}")).unwrap_or_default();
    lines.push(("needed", format!("{needed}, of which {cached} were in memory{at}")));
    if let Some(amplification) = ledger.copy_amplification() {
        lines.push(("copies", format!("{amplification:.2} bytes moved for a byte needed")));
    }
    lines
}

/// Returns a hop in words.
fn hop_name(hop: Hop) -> String {
    hop.name().trim_end_matches("_bytes").replace('_', " ")
}

fn cut(text: &str) -> String {
    match text.char_indices().nth(MAX_LETTERS) {
        Some((at, _)) => format!("{}...", &text[..at]),
        None => text.to_string(),
    }
}
