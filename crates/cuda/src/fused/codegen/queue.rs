//! Queues: rows that screens have left wait in shared memory until there is one for each lane of the warp.
//!
//! Where few rows of a vector are left, a loop over each lane's own has most lanes idle, and a warp waits for memory as
//! often as the lane that has most of them, for each vector anew. What waits here is rows of whatever vectors of a unit:
//!
//! ```text
//! vector       screens
//!   push         lanes that have rows put their next one into `queue`, by their rank among those that do
//!   pass         32 of them: filters and probes that let few through; what is left of them goes to `left`
//!   row          32 of those: the rest
//! behind the last vector of a unit, less than 32 of each
//! ```
//! A row is 16 bits: its vector in the unit, its number in its lane, its lane. Neither queue ever holds 64: there are less
//! than 32 when up to 32 come.

use std::ops::Range;

use onehop_pipeline::VECTOR_ROWS;

use super::pipeline::Builder;
use super::sink::SinkPlan;
use crate::fused::Result;
use crate::fused::launch::UNIT_VECTORS;

/// The part of the rows that is left, at most: of more, each lane has enough of its own.
const FEW: f64 = 0.25;

const _: () = assert!(UNIT_VECTORS as usize * VECTOR_ROWS <= 1 << 16, "a row of a unit is 16 bits");

impl Builder<'_> {
    /// Whether rows are queued that so many acts have left.
    pub fn is_queued(&self, sink: &SinkPlan, acts: usize) -> bool {
        let is_dense = matches!(sink, SinkPlan::Groups { groups, .. } if groups.dense.is_some());
        let left: f64 = self.input.plan.acts[..acts].iter().map(|act| act.passes).product();
        let is_read_on = matches!(sink, SinkPlan::Groups { .. } | SinkPlan::Rows { .. });
        is_read_on && !is_dense && left <= FEW
    }

    /// What is before the units.
    pub fn begin_queue(&mut self, passes: usize) {
        self.w.line("WARP_QUEUE(queue);");
        if passes > 0 {
            self.w.line("WARP_QUEUE(left);");
        }
        self.w.line("const u32 below = (1u << lane) - 1;");
    }

    /// Vector by vector, and once more behind the last, when those that still wait are taken.
    pub fn queued_vectors(
        &mut self,
        columns: &[usize],
        screens: &[(usize, usize)],
        through: usize,
        sink: &SinkPlan,
    ) -> Result<()> {
        let has_passes = through > screens.len();
        self.w.line(if has_passes { "u32 waiting = 0, ready = 0;" } else { "u32 waiting = 0;" });
        self.w.open("for (u32 vector = first;; vector++) {");
        self.w.line("const bool is_more = vector < end && vector * VECTOR_ROWS < morsel.rows;");
        self.w.line("u32 live = 0;");
        self.w.open("if (is_more) {");
        self.w.line("live = lane_rows(morsel.rows - vector * VECTOR_ROWS, lane);");
        for number in 0..screens.len() {
            self.screen(screens, number)?;
        }
        self.w.close();
        self.w.open("for (;;) {");
        self.push();
        match has_passes {
            false => {
                self.w.line("if (waiting == 0) break;");
                self.take("queue", "waiting");
                self.rows("queue", "waiting", columns, through, sink)?;
            }
            true => self.passes_of_queue(columns, screens.len()..through, sink)?,
        }
        self.w.close();
        self.w.line("if (!is_more) break;");
        self.w.close();
        Ok(())
    }

    /// A row of each lane that has one goes into the queue; on to the next vector, if there is one, while there are few.
    fn push(&mut self) {
        self.w.line("const u32 those = __ballot_sync(ALL_LANES, live != 0);");
        self.w.open("if (live) {");
        self.w.line("const u32 i = __ffs((int)live) - 1;");
        self.w.line("live &= live - 1;");
        self.w.line("queue[waiting + __popc(those & below)] = (u16)((vector - first) << 10 | i << 5 | lane);");
        self.w.close();
        self.w.line("waiting += __popc(those);");
        self.w.open("if (is_more && waiting < LANES) {");
        self.w.line("if (those) continue;");
        self.w.line("break;");
        self.w.close();
    }

    /// What is done with rows that wait: filters and probes, one after the other, and the rest with those that they leave.
    fn passes_of_queue(&mut self, columns: &[usize], passes: Range<usize>, sink: &SinkPlan) -> Result<()> {
        let through = passes.end;
        self.w.line("if (waiting == 0 && ready == 0) break;");
        self.take("queue", "waiting");
        self.w.line("bool keep = false;");
        self.w.line("u16 which = 0;");
        self.open_row("queue", "waiting", columns);
        let before = self.w.registers.clone();
        for act in passes {
            self.act(act)?;
            self.found[self.input.plan.acts[act].step] = None;
        }
        // What was loaded was of its rows alone.
        self.w.registers = before;
        self.w.line("keep = true;");
        self.w.line("which = row;");
        self.close_row();
        self.w.line("const u32 kept = __ballot_sync(ALL_LANES, keep);");
        self.w.line("__syncwarp();");
        self.w.line("if (keep) left[ready + __popc(kept & below)] = which;");
        self.w.line("ready += __popc(kept);");
        self.w.open("while (ready >= LANES || (!is_more && waiting == 0 && ready != 0)) {");
        self.take("left", "ready");
        self.rows("left", "ready", columns, through, sink)?;
        self.w.close();
        Ok(())
    }

    /// Up to 32 rows of a queue are going to be taken.
    fn take(&mut self, queue: &str, count: &str) {
        self.w.line("__syncwarp();");
        self.w.line(format!("const u32 {queue}_taken = {count} < LANES ? {count} : LANES;"));
        self.w.line(format!("{count} -= {queue}_taken;"));
    }

    fn rows(&mut self, queue: &str, count: &str, columns: &[usize], through: usize, sink: &SinkPlan) -> Result<()> {
        self.open_row(queue, count, columns);
        self.row(sink, through)?;
        self.close_row();
        self.w.line("__syncwarp();");
        Ok(())
    }

    /// A lane's row of those that are taken, which `continue` ends.
    fn open_row(&mut self, queue: &str, count: &str, columns: &[usize]) {
        self.w.open(format!("if (lane < {queue}_taken) {{"));
        self.w.line(format!("const u16 row = {queue}[{count} + lane];"));
        self.w.open("do {");
        self.w.line("const u32 vector = first + (row >> 10), i = row >> 5 & 31, lane = row & 31;");
        for register in columns {
            if self.input.plan.domains[*register].nullable {
                self.w.line(format!("const u32 valid{register} = valid_rows(p{register}, vector, lane);"));
            }
        }
    }

    fn close_row(&mut self) {
        self.w.depth -= 1;
        self.w.line("} while (false);");
        self.w.close();
    }
}
