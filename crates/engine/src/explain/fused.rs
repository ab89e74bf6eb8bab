//! Explains a fused subtree as a tree: a node for each step of each pipeline, and below each join
//! the pipeline that built its table.
//!
//! Filters and joins run in the order that removes rows most cheaply, as measured while they run.
//! After a run, the tree has that order: each step is above the one that passed its rows to it.

use std::sync::Arc;
use std::time::Duration;

use datafusion::physical_plan::ExecutionPlan;
use onehop_pipeline::Type;
use onehop_pipeline::backend::ShareRan;
use onehop_pipeline::cpu::{SinkFacts, StageTimes, StepRows};
use onehop_pipeline::ir::{JoinKind, Probe, Step};

use crate::explanation::{
    DevicePipeline, DeviceScan, DeviceShare, EstimateFacts, Facts, GroupFacts, JoinFacts, Moment, Node, PipelineTimes,
    PlacementFacts, RowFacts, Sampled, ScanFacts, TopFacts,
};
use crate::lower::{DerivedInput, DerivedRan, DeviceTimes, Fused, FusedExec, Input, PipelineRan, Scan};
use crate::place::{Cost, Placed, Placement};
use crate::scan::scan_facts;
use crate::units::{bytes, plural};

/// Returns the tree of a fused subtree, with statistics if it has run. `below` explains the plans
/// of derived relations.
pub(super) fn node_of(exec: &FusedExec, moment: Moment, below: &dyn Fn(&Arc<dyn ExecutionPlan>) -> Node) -> Node {
    let fused = exec.fused();
    let ran = exec.ran();
    let subtree = Subtree {
        fused,
        ran: ran.as_ref().map_or(&[], |ran| &ran.pipelines),
        derived: exec.children().into_iter().map(below).collect(),
        derived_ran: ran.as_ref().map_or(&[], |ran| &ran.derived),
        is_running: moment == Moment::Running,
        device: exec.placement().device.as_ref().filter(|_| exec.is_on_device()),
    };
    let last = fused.execution.pipelines() - 1;
    let below = subtree.pipeline(last);
    let words = &fused.words[last];
    let (planned, done) = (fused.planned[last], subtree.ran.get(last));
    let pipeline = done.map(|done| subtree.times(done));
    let facts = match planned {
        SinkFacts::Rows => Facts::Rows(RowFacts { columns: words.values.clone(), pipeline }),
        SinkFacts::Top => Facts::Top(TopFacts {
            rows: fused.top().unwrap_or(0) as u64,
            keys: words.keys.clone(),
            columns: words.values.clone(),
            rows_left_out: done.and_then(|done| done.top).map(|top| top.rows_left_out),
            bytes: done.map(|done| done.sink_bytes as u64),
            pipeline,
        }),
        SinkFacts::Groups(_) | SinkFacts::Table(_) => Facts::Groups(GroupFacts {
            keys: words.keys.clone(),
            aggregates: words.values.clone(),
            grouping: match planned {
                SinkFacts::Groups(grouping) => Some(grouping),
                SinkFacts::Table(_) | SinkFacts::Rows | SinkFacts::Top => None,
            },
            bytes: done.map(|done| done.sink_bytes as u64),
            pipeline,
        }),
    };
    let mut remarks = Vec::new();
    if let Some(reason) = ran.as_ref().and_then(|ran| ran.taken_over.as_ref()) {
        remarks.push(format!("{reason} took over, and did all of it again"));
    }
    if let Some(why) = ran.as_ref().and_then(|ran| ran.device_failed.as_ref()) {
        remarks.push(format!("{why}; the CPU did all of it again"));
    }
    if let Some(spilled) = done.and_then(|done| done.spilled.as_ref()) {
        remarks.push(format!(
            "spilled: {} in {}",
            bytes(spilled.counts.bytes()),
            plural(spilled.partitions as u64, "partition")
        ));
    }
    // The order itself has removed some of the rows before they reached the sink.
    let top = done.and_then(|done| done.top).map(|top| top.rows_in + top.rows_left_out);
    Node {
        operator: exec.name().into(),
        facts,
        rows_in: top.or(done.and(below.rows_out)),
        rows_out: done.and(ran.as_ref().map(|ran| ran.rows)),
        time: done.map(|done| done.elapsed),
        sampled: done.and_then(|done| sampled(&done.times, done.times.sink)),
        placed: placement_facts(exec.placement()),
        shares: done.map_or_else(Vec::new, |done| subtree.shares(done)),
        remarks,
        inputs: vec![below],
    }
}

/// Returns the placement, if there was a choice.
fn placement_facts(placement: &Placement) -> Option<PlacementFacts> {
    let device = placement.device.as_ref().map(|placed| {
        let backend = &placed.backend;
        (backend.name().to_string(), backend.description().to_string())
    });
    let estimate = placement.cost.map(|Cost { cpu, device, estimate, kept_bytes }| EstimateFacts {
        cpu,
        device,
        read_bytes: estimate.read_bytes,
        resident_bytes: estimate.resident_bytes,
        kept_bytes,
        to_compile: estimate.to_compile as u64,
    });
    Some(PlacementFacts { device, why: placement.why.clone()?, estimate })
}

struct Subtree<'a> {
    fused: &'a Fused,
    /// Statistics of the pipelines that have run.
    ran: &'a [PipelineRan],
    /// The plans of derived relations, and their statistics.
    derived: Vec<Node>,
    derived_ran: &'a [(usize, DerivedRan)],
    /// True if scans have statistics before their pipelines have ended.
    is_running: bool,
    /// The device that runs it, or ran it; `None` for the CPU.
    device: Option<&'a Placed>,
}

impl Subtree<'_> {
    /// Returns the name of an operator by its processor.
    fn named(&self, cpu: &'static str, gpu: &'static str) -> String {
        if self.device.is_some() { gpu.into() } else { cpu.into() }
    }

    fn times(&self, ran: &PipelineRan) -> PipelineTimes {
        PipelineTimes {
            elapsed: ran.elapsed,
            threads: ran.workers as u64,
            thread_time: ran.times.threads,
            cpu: ran.times.cpu,
            finishing: ran.finishing,
            device: ran.device.map(|times| on_device(&times, self.device.and_then(Placed::copy_rate))),
        }
    }

    /// Returns the statistics of a pipeline on each of several devices.
    fn shares(&self, ran: &PipelineRan) -> Vec<DeviceShare> {
        let share = |ShareRan { device, blocks, ran }: &ShareRan| {
            let rate = self.device.and_then(|placed| placed.copy_rate_of(device));
            DeviceShare {
                device: device.clone(),
                blocks: *blocks,
                rows: ran.rows,
                elapsed: ran.elapsed,
                resident_bytes: ran.resident_bytes,
                moved_bytes: ran.moved_bytes,
                pipeline: on_device(&DeviceTimes::from(ran), rate),
            }
        };
        ran.shares.iter().map(share).collect()
    }

    /// Returns the last step of a pipeline, above all others and its scan.
    fn pipeline(&self, number: usize) -> Node {
        let pipeline = &self.fused.execution.program().pipelines[number];
        let ran = self.ran.get(number);
        let mut node = self.scan(number);
        for step in order(pipeline.steps.len(), ran) {
            let words = &self.fused.words[number].steps[step];
            let (operator, facts, build) = match &pipeline.steps[step] {
                Step::Filter(_) => (self.named("CpuFilter", "GpuFilter"), Facts::Filter(words.clone()), None),
                Step::Probe(probe) => {
                    let facts = self.join(probe, words.clone());
                    let name = self.named("CpuJoin", "GpuJoin");
                    (name, Facts::Join(Box::new(facts)), Some(self.pipeline(probe.table)))
                }
                // Lowering emits no map by itself, and a map does not change the number of rows.
                Step::Map(_) => continue,
            };
            // A device may not have counted them.
            let rows = ran.and_then(|ran| ran.steps.get(step));
            let passes = match &pipeline.steps[step] {
                Step::Probe(probe) => self.ran.get(probe.table).map_or(1, |table| table.passes),
                _ => 1,
            };
            let remark = format!("built in {passes} parts, each with a pass of its own: memory_limit was reached");
            node = Node {
                operator,
                facts,
                rows_in: rows.map(|rows| rows.rows_in),
                rows_out: rows.map(|rows| rows.rows_out),
                time: None,
                sampled: ran.and_then(|ran| sampled(&ran.times, *ran.times.steps.get(step)?)),
                placed: None,
                shares: Vec::new(),
                remarks: (passes > 1).then_some(remark).into_iter().collect(),
                inputs: std::iter::once(node).chain(build).collect(),
            };
        }
        // The rows left after all steps are the output, in whatever order the steps ran. If only
        // the first rows in an order are wanted, the order has removed some.
        let counted = ran.filter(|ran| ran.steps.len() >= pipeline.steps.len());
        node.rows_out = counted.map(|ran| {
            let change = |rows: &StepRows| rows.rows_out as i64 - rows.rows_in as i64;
            match ran.top {
                Some(top) if !ran.steps.is_empty() => top.rows_in,
                _ => ran.rows.saturating_add_signed(ran.steps.iter().map(change).sum()),
            }
        });
        node
    }

    fn scan(&self, number: usize) -> Node {
        let pipeline = &self.fused.execution.program().pipelines[number];
        let ran = self.ran.get(number);
        let scan = match &self.fused.inputs[pipeline.source] {
            Input::Table(scan) => scan,
            Input::Derived(input) => return self.derived(input, ran),
        };
        let mut facts = scan_facts(&scan.table, &scan.plan, &scan.columns);
        facts.alias = scan.name.clone();
        let domains = self.fused.execution.sources()[pipeline.source].columns();
        let columns = facts.columns.iter().zip(domains);
        let late = columns.filter(|(_, domain)| domain.ty == Type::LateText).map(|(name, _)| name.clone());
        facts.late_columns = late.collect();
        facts.ledger = (ran.is_some() || self.is_running).then(|| scan.ledger.snapshot());
        facts.ahead = ran.map(|ran| ran.ahead.clone()).filter(|ahead| ahead.way.is_some());
        for skipped in ran.iter().flat_map(|ran| &ran.skipped) {
            let join = self.fused.words[number].steps[skipped.step].clone();
            facts.skipped_by_joins.push((join, skipped.morsels.len() as u64));
            count_partitions(&mut facts, scan, &skipped.morsels);
        }
        let times = ran.and_then(|ran| ran.device);
        // Devices do not count them separately.
        if let Some(DeviceTimes { morsels_skipped: skipped @ 1.., .. }) = times {
            facts.skipped_by_joins.push(("its filters and joins".into(), skipped));
        }
        facts.device = self.device.zip(times).map(|(placed, times)| DeviceScan {
            device: placed.backend.name().into(),
            resident_bytes: times.resident_bytes,
            moved_bytes: times.moved_bytes,
            brought: ran.and_then(|ran| ran.brought.clone()),
        });
        facts.skipped_by_top_k = ran.and_then(|ran| ran.top).map_or(0, |top| top.morsels_skipped as u64);
        Node {
            operator: self.named("CpuScan", "GpuScan"),
            facts: Facts::Scan(Box::new(facts)),
            rows_in: None,
            rows_out: ran.map(|ran| ran.rows),
            time: ran.map(|ran| ran.elapsed),
            sampled: ran.and_then(|ran| sampled(&ran.times, ran.times.source)),
            placed: None,
            shares: Vec::new(),
            remarks: Vec::new(),
            inputs: Vec::new(),
        }
    }

    fn derived(&self, input: &DerivedInput, pipeline: Option<&PipelineRan>) -> Node {
        let ran = self.derived_ran.iter().find(|(number, _)| *number == input.number).map(|(_, ran)| ran);
        Node {
            operator: "CpuDerived".into(),
            facts: Facts::Other(format!("{}: {}", input.name, input.column_names.join(", "))),
            rows_in: None,
            rows_out: ran.map(|ran| ran.rows),
            time: ran.map(|ran| ran.elapsed),
            sampled: pipeline.and_then(|ran| sampled(&ran.times, ran.times.source)),
            placed: None,
            shares: Vec::new(),
            remarks: ran.map(|ran| format!("{} in memory", bytes(ran.bytes))).into_iter().collect(),
            inputs: self.derived.get(input.number).cloned().into_iter().collect(),
        }
    }

    fn join(&self, probe: &Probe, on: String) -> JoinFacts {
        let words = &self.fused.words[probe.table];
        let ran = self.ran.get(probe.table);
        let source = self.fused.execution.program().pipelines[probe.table].source;
        let is_derived = matches!(self.fused.inputs[source], Input::Derived(_));
        JoinFacts {
            kind: match probe.kind {
                JoinKind::Inner => "inner",
                JoinKind::Left => "left",
                JoinKind::Semi => "semi",
                JoinKind::Anti => "anti",
                JoinKind::NotIn => "not in",
            },
            on,
            keys: words.keys.clone(),
            payload: words.values.clone(),
            planned: match self.fused.planned[probe.table] {
                // The number of rows of a plan is unknown.
                SinkFacts::Table(table) => Some(table).filter(|_| !is_derived),
                SinkFacts::Groups(_) | SinkFacts::Rows | SinkFacts::Top => None,
            },
            built: ran.and_then(|ran| ran.table),
            build: ran.map(|ran| self.times(ran)),
            collecting: ran.and_then(|ran| sampled(&ran.times, ran.times.sink)),
        }
    }
}

fn on_device(times: &DeviceTimes, copy_bytes_per_sec: Option<f64>) -> DevicePipeline {
    DevicePipeline {
        kernel: times.kernel,
        launches: times.launches,
        compiled: times.compiled,
        read_bytes: times.resident_bytes + times.moved_bytes,
        returned_bytes: times.returned_bytes,
        copy_bytes_per_sec,
        passes: times.passes,
        streamed: times.streamed,
    }
}

/// Counts the blocks that a join excludes, by their partitions.
fn count_partitions(facts: &mut ScanFacts, scan: &Scan, morsels: &[usize]) {
    for morsel in morsels {
        let partition = scan.plan.partition_of(*morsel).and_then(|number| facts.partitions.get_mut(number));
        partition.into_iter().for_each(|partition| partition.skipped_by_joins += 1);
    }
}

fn sampled(times: &StageTimes, time: Duration) -> Option<Sampled> {
    (!times.threads.is_zero()).then(|| Sampled { time, share: times.share(time) })
}

/// Returns the steps in the order in which rows passed them, judging by their counts: each is
/// followed by the one whose input is closest to its output. Without counts, returns the planned
/// order.
fn order(steps: usize, ran: Option<&PipelineRan>) -> Vec<usize> {
    let mut left: Vec<usize> = (0..steps).collect();
    let Some(ran) = ran else { return left };
    let mut order = Vec::with_capacity(steps);
    let mut rows = ran.rows;
    // Without counts, the order is as planned.
    if ran.steps.len() < steps {
        return left;
    }
    while let Some(at) = (0..left.len()).min_by_key(|at| ran.steps[left[*at]].rows_in.abs_diff(rows)) {
        let step = left.remove(at);
        rows = ran.steps[step].rows_out;
        order.push(step);
    }
    order
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn steps_are_told_in_the_order_of_their_rows() {
        let steps = [(10, 5), (1000, 100), (100, 10)].map(|(rows_in, rows_out)| StepRows { rows_in, rows_out });
        let ran = PipelineRan { rows: 1000, steps: steps.to_vec(), passes: 1, ..PipelineRan::default() };
        assert_eq!(order(3, Some(&ran)), [1, 2, 0]);
        assert_eq!(order(3, None), [0, 1, 2]);
    }
}
