//! Passes: filters and probes that are executed for all remaining rows of a vector before any row
//! continues.
//!
//! After a selective act, a warp's threads have very different numbers of rows left. In one loop
//! over rows, most of them would wait for the thread with most rows. A pass is short, and the code
//! after it starts with few rows again.

use onehop_pipeline::cpu::TableKind;
use onehop_pipeline::ir::JoinKind;

use super::pipeline::Builder;
use crate::fused::Result;
use crate::fused::plan::{Act, ActKind, Register, registers_of};
use crate::fused::table::Rows;

/// An act is worth a pass if it passes less than this fraction of the rows.
const FEW: f64 = 0.6;

impl Builder<'_> {
    /// Returns the number of acts, starting at `from`, that are passes.
    pub fn passes(&self, from: usize) -> usize {
        let is_pass = |act: &&Act| {
            let finds_one = match &act.kind {
                ActKind::Filter(_) => true,
                ActKind::Probe(probe) => {
                    let shape = &self.input.tables[probe.table];
                    // Hashed keys are not looked up twice.
                    let is_read = probe.added.clone().any(|register| self.used[register]);
                    let is_near = shape.kind == TableKind::Direct || !is_read;
                    probe.condition.is_none() && probe.kind != JoinKind::Left && shape.rows != Rows::Chains && is_near
                }
            };
            let is_stored = act.needs.iter().all(|register| self.is_stored(*register));
            finds_one && is_stored && !act.is_fallible && act.passes < FEW
        };
        self.input.plan.acts[from..].iter().take_while(is_pass).count()
    }

    /// Returns true if a register depends on columns alone.
    fn is_stored(&self, register: usize) -> bool {
        match &self.input.plan.registers[register] {
            Register::Column(_) => true,
            Register::Payload { .. } => false,
            Register::Map(bound) => registers_of([bound]).into_iter().all(|register| self.is_stored(register)),
        }
    }

    /// Generates a pass.
    pub fn pass(&mut self, number: usize) -> Result<()> {
        let before = self.w.registers.clone();
        self.w.open("{");
        self.w.line("u32 keep = 0;");
        self.w.open("for (u32 rest = live; rest != 0;) {");
        self.w.line("const u32 i = __ffs((int)rest) - 1;");
        self.w.line("rest &= rest - 1;");
        self.act(number)?;
        self.w.line("keep |= 1u << i;");
        self.w.close();
        self.w.line("live = keep;");
        self.w.close();
        // Values were loaded for the rows of the pass alone.
        self.w.registers = before;
        self.found[self.input.plan.acts[number].step] = None;
        Ok(())
    }
}
