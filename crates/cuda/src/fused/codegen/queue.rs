//! Queues: rows that screens have left wait in shared memory until there is one for each lane of
//! the warp.
//!
//! If few rows of a vector are left, a loop over each lane's own rows leaves most lanes idle. For
//! each vector, the warp waits for memory as often as the lane with most rows. A queue collects
//! rows of all vectors of a unit instead:
//!
//! ```text
//! vector       screens
//!   push         lanes that have rows append one each to `queue`, by their rank among such lanes
//!   pass         32 of them: selective filters and probes; the remaining rows go to `left`
//!   row          32 of those: the rest
//! after the last vector of a unit, less than 32 of each
//! ```
//! A row has 16 bits: its vector in the unit, its number in its lane, and its lane. Neither queue
//! ever holds 64 rows: there are less than 32 when up to 32 are added.

use std::ops::Range;

use onehop_pipeline::VECTOR_ROWS;

use super::pipeline::Builder;
use super::sink::SinkPlan;
use crate::fused::Result;
use crate::fused::launch::UNIT_VECTORS;

/// Maximum fraction of the rows that are left. With more, each lane has enough of its own.
const FEW: f64 = 0.25;

const _: () = assert!(UNIT_VECTORS as usize * VECTOR_ROWS <= 1 << 16, "a row of a unit is 16 bits");

impl Builder<'_> {
    /// Returns true if the rows left by `acts` acts are queued.
    pub fn is_queued(&self, sink: &SinkPlan, acts: usize) -> bool {
        let is_dense = matches!(sink, SinkPlan::Groups { groups, .. } if groups.dense.is_some());
        let left: f64 = self.input.plan.acts[..acts].iter().map(|act| act.passes).product();
        let is_read_on = matches!(sink, SinkPlan::Groups { .. } | SinkPlan::Rows { .. });
        is_read_on && !is_dense && left <= FEW
    }

    /// Generates the declarations that precede the units.
    pub fn begin_queue(&mut self, passes: usize) {
        self.w.line("WARP_QUEUE(queue);");
        if passes > 0 {
            self.w.line("WARP_QUEUE(left);");
        }
        self.w.line("const u32 below = (1u << lane) - 1;");
    }

    /// Generates the loop over vectors, with one more iteration after the last, which takes the
    /// rows that still wait.
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

    /// Generates the code by which each lane with rows appends one to the queue. While the queue
    /// has few rows, the loop continues with the next vector, if there is one.
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

    /// Generates the processing of waiting rows: filters and probes one after the other, then the
    /// rest for the rows that they leave.
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
        // Values were loaded for these rows alone.
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

    /// Generates the removal of up to 32 rows from a queue.
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

    /// Opens the scope of a lane's row among those taken. `continue` ends it.
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
