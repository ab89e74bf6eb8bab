//! Renders an explanation for programs. Units are in the names: rows, blocks, bytes, seconds. A
//! `schema_version` may gain members, but none changes its meaning.

use std::time::Duration;

use onehop_io::LedgerSnapshot;
use onehop_pipeline::backend::{Brought, Compiled};
use onehop_pipeline::cpu::TableFacts;
use serde_json::{Map, Value, json};

use super::{
    DevicePipeline, DeviceShare, Explanation, Facts, GroupFacts, JoinFacts, Node, PartitionFacts, PassRun,
    PipelineTimes, PlacementFacts, Sampled, ScanFacts, TopFacts,
};

const SCHEMA_VERSION: u64 = 1;

/// Returns the whole explanation.
pub(super) fn json(explanation: &Explanation) -> Value {
    let mut all = json!({
        "schema_version": SCHEMA_VERSION,
        "sql": explanation.sql,
        "analyzed": explanation.totals.is_some(),
        "plan": node(&explanation.plan),
        "not_fused": explanation.not_fused,
        "fails": explanation.fails,
    });
    if let (Some(totals), Value::Object(all)) = (&explanation.totals, &mut all) {
        all.insert("rows".into(), totals.rows.into());
        all.insert("answer_bytes".into(), totals.answer_bytes.into());
        all.insert("plan_seconds".into(), seconds(totals.plan_time));
        all.insert("run_seconds".into(), seconds(totals.run_time));
        all.insert("ledger".into(), ledger(&totals.ledger));
        all.insert("copy_amplification".into(), totals.ledger.copy_amplification().into());
    }
    if let (false, Value::Object(all)) = (explanation.passes.is_empty(), &mut all) {
        let pass = |run: &PassRun| {
            let change = run.change.as_ref().map(|change| json!({ "before": change.before, "after": change.after }));
            json!({ "stage": run.stage, "pass": run.pass, "seconds": seconds(run.time), "change": change })
        };
        all.insert("passes".into(), explanation.passes.iter().map(pass).collect());
    }
    all
}

fn node(node: &Node) -> Value {
    let mut all = Map::new();
    all.insert("operator".into(), node.operator.clone().into());
    let facts = match &node.facts {
        Facts::Scan(facts) => scan(facts),
        Facts::Filter(condition) => json!({ "condition": condition }),
        Facts::Join(facts) => join(facts),
        Facts::Groups(facts) => groups(facts),
        Facts::Rows(facts) => json!({
            "columns": facts.columns,
            "threads": facts.pipeline.map(|pipeline| pipeline.threads),
            "pipeline": facts.pipeline.as_ref().map(pipeline),
        }),
        Facts::Top(facts) => top(facts),
        Facts::Other(detail) => json!({ "detail": detail }),
    };
    if let Value::Object(facts) = facts {
        all.extend(facts);
    }
    for (name, rows) in [("rows_in", node.rows_in), ("rows_out", node.rows_out)] {
        all.extend(rows.map(|rows| (name.to_string(), rows.into())));
    }
    all.extend(node.time.map(|time| ("seconds".to_string(), seconds(time))));
    all.extend(node.sampled.map(|sampled| ("sampled".to_string(), self::sampled(&sampled))));
    all.extend(node.placed.as_ref().map(|placed| ("placement".to_string(), placement(placed))));
    if !node.shares.is_empty() {
        all.insert("devices".into(), node.shares.iter().map(share).collect());
    }
    all.insert("remarks".into(), node.remarks.clone().into());
    all.insert("inputs".into(), node.inputs.iter().map(self::node).collect());
    all.into()
}

fn placement(placed: &PlacementFacts) -> Value {
    json!({
        "device": placed.device.as_ref().map(|(name, _)| name),
        "description": placed.device.as_ref().map(|(_, description)| description),
        "why": placed.why,
        "estimate": placed.estimate.as_ref().map(|estimate| {
            json!({
                "cpu_seconds": seconds(estimate.cpu),
                "device_seconds": seconds(estimate.device),
                "read_bytes": estimate.read_bytes,
                "resident_bytes": estimate.resident_bytes,
                "kept_bytes": estimate.kept_bytes,
                "kernels_to_compile": estimate.to_compile,
            })
        }),
    })
}

fn scan(scan: &ScanFacts) -> Value {
    let by_joins = scan.skipped_by_joins.iter().map(|(join, blocks)| json!({ "join": join, "blocks": blocks }));
    json!({
        "table": scan.table,
        "alias": scan.alias,
        "columns": scan.columns,
        "late_columns": scan.late_columns,
        "stored_bytes": scan.stored_bytes,
        "planned_bytes": scan.planned_bytes,
        "blocks": scan.blocks,
        "blocks_left": scan.blocks_left(),
        "blocks_skipped_by_zone_map": scan.skipped_by_zone_map,
        "blocks_skipped_by_partition": scan.skipped_by_partition,
        "blocks_skipped_by_joins": by_joins.collect::<Vec<_>>(),
        "blocks_skipped_by_top_k": scan.skipped_by_top_k,
        "fresh_rows": scan.fresh_rows,
        "deleted_rows": scan.deleted_rows,
        "partitions": (!scan.partitions.is_empty()).then(|| partitions(scan)),
        "zone_condition": scan.zone_condition,
        "path": scan.path,
        "limit_rows": scan.limit,
        "ledger": scan.ledger.as_ref().map(ledger),
        "read_ahead": scan.ahead.as_ref().map(|ahead| {
            json!({ "way": ahead.way, "bytes": ahead.ahead_bytes, "late_bytes": ahead.late_bytes })
        }),
        "read": scan.read.map(|(blocks, bytes)| json!({ "blocks": blocks, "bytes": bytes })),
        "device": scan.device.as_ref().map(|scan| {
            json!({
                "name": scan.device,
                "resident_bytes": scan.resident_bytes,
                "moved_bytes": scan.moved_bytes,
                "path": scan.brought.as_ref().map(|brought| brought.path.name()),
                "path_reason": scan.brought.as_ref().map(|brought| &brought.because),
                "cufile_bytes": scan.brought.as_ref().map(|brought| brought.bytes - brought.bounced_bytes()),
                "bounced_bytes": scan.brought.as_ref().map(Brought::bounced_bytes),
            })
        }),
    })
}

fn join(join: &JoinFacts) -> Value {
    json!({
        "kind": join.kind,
        "on": join.on,
        "table": {
            "keys": join.keys,
            "payload": join.payload,
            "planned": join.planned.as_ref().map(table),
            "built": join.built.as_ref().map(table),
            "build_seconds": join.build.map(|pipeline| seconds(pipeline.elapsed)),
            "pipeline": join.build.as_ref().map(pipeline),
            "collecting": join.collecting.as_ref().map(sampled),
        },
    })
}

fn table(table: &TableFacts) -> Value {
    json!({ "kind": table.kind.name(), "is_unique": table.is_unique, "rows": table.rows, "bytes": table.bytes })
}

fn groups(groups: &GroupFacts) -> Value {
    json!({
        "keys": groups.keys,
        "aggregates": groups.aggregates,
        "grouping": groups.grouping.map(|grouping| grouping.name()),
        "group_bytes": groups.bytes,
        "threads": groups.pipeline.map(|pipeline| pipeline.threads),
        "pipeline": groups.pipeline.as_ref().map(pipeline),
    })
}

fn top(top: &TopFacts) -> Value {
    json!({
        "limit_rows": top.rows,
        "keys": top.keys,
        "columns": top.columns,
        "rows_left_out": top.rows_left_out,
        "candidate_bytes": top.bytes,
        "threads": top.pipeline.map(|pipeline| pipeline.threads),
        "pipeline": top.pipeline.as_ref().map(pipeline),
    })
}

fn partitions(scan: &ScanFacts) -> Value {
    let each = |partition: &PartitionFacts| {
        json!({
            "name": partition.name,
            "blocks": partition.blocks,
            "blocks_left": partition.blocks_left(),
            "blocks_skipped_by_zone_map": partition.skipped_by_zone_map,
            "blocks_skipped_by_partition": partition.skipped_by_partition,
            "blocks_skipped_by_joins": partition.skipped_by_joins,
        })
    };
    let planned = |partition: &&PartitionFacts| partition.blocks_left() + partition.skipped_by_joins > 0;
    json!({
        "wanted": scan.partitions.iter().filter(planned).count(),
        "left": scan.partitions_left(),
        "all": scan.partitions.len(),
        "each": scan.partitions.iter().map(each).collect::<Vec<_>>(),
    })
}

fn pipeline(times: &PipelineTimes) -> Value {
    json!({
        "seconds": seconds(times.elapsed),
        "threads": times.threads,
        "thread_seconds": seconds(times.thread_time),
        "cpu_seconds": seconds(times.cpu),
        "finish_seconds": seconds(times.finishing),
        "device": times.device.as_ref().map(on_device),
    })
}

fn on_device(device: &DevicePipeline) -> Value {
    let compiled = match device.compiled {
        Compiled::Now(took) => Some(seconds(took)),
        Compiled::Before => None,
    };
    json!({
        "kernel_seconds": seconds(device.kernel),
        "launches": device.launches,
        "is_compiled_now": compiled.is_some(),
        "compile_seconds": compiled,
        "read_bytes": device.read_bytes,
        "returned_bytes": device.returned_bytes,
        "bytes_per_sec": device.bytes_per_sec(),
        "copy_bytes_per_sec": device.copy_bytes_per_sec,
        "copy_rate_ratio": device.share(),
        "passes": device.passes,
        "streamed": device.streamed.map(|streamed| json!({
            "batches": streamed.batches,
            "bytes": streamed.bytes,
            "waited_seconds": seconds(streamed.waited),
        })),
    })
}

fn share(share: &DeviceShare) -> Value {
    let mut value = on_device(&share.pipeline);
    if let Value::Object(all) = &mut value {
        all.insert("name".into(), share.device.clone().into());
        all.insert("blocks".into(), share.blocks.into());
        all.insert("rows".into(), share.rows.into());
        all.insert("seconds".into(), seconds(share.elapsed));
        all.insert("resident_bytes".into(), share.resident_bytes.into());
        all.insert("moved_bytes".into(), share.moved_bytes.into());
    }
    value
}

fn sampled(sampled: &Sampled) -> Value {
    json!({ "thread_seconds": seconds(sampled.time), "share": sampled.share })
}

/// Returns the counters by their names.
fn ledger(ledger: &LedgerSnapshot) -> Value {
    ledger.counters().map(|(name, count)| (name.to_string(), Value::from(count))).collect::<Map<_, _>>().into()
}

fn seconds(time: Duration) -> Value {
    time.as_secs_f64().into()
}
