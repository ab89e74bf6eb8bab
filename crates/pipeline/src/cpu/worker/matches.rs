//! Probes that visit every match of a row. Inner and left joins emit a row for each match; joins
//! with a condition evaluate it for each match. Pairs of rows and matches fill the next frame, up
//! to its capacity at a time.

use std::sync::atomic::Ordering::Relaxed;

use super::{Frame, Worker, not_boolean};
use crate::cpu::clock::Work;
use crate::cpu::stage::{MatchCode, Stage, StepKind};
use crate::cpu::table::{JoinTable, NOTHING};
use crate::cpu::vector::Data;
use crate::{Error, Result, VECTOR_ROWS};

impl Worker {
    /// Emits one row for every match, a frame at a time.
    #[allow(clippy::too_many_arguments, reason = "one step of `run`, which only it calls")]
    pub(super) fn multiply(
        &mut self,
        stage: &Stage,
        at: usize,
        depth: usize,
        table: &JoinTable,
        found: &[u8; VECTOR_ROWS],
        places: &[i32; VECTOR_ROWS],
        is_left: bool,
    ) -> Result<()> {
        self.open_below(stage, depth);
        let number = self.order.steps[at];
        let n = self.frames[depth].n;
        let mut picked = [0u16; VECTOR_ROWS];
        let mut matches = Box::new([NOTHING; VECTOR_ROWS]);
        let (mut filled, mut rows_out) = (0, 0);
        for row in 0..n {
            let run = if found[row] == 1 { table.run(places[row]) } else { 0..0 };
            let alone = is_left && run.is_empty();
            for place in run.map(|place| place as i32).chain(alone.then_some(NOTHING)) {
                picked[filled] = row as u16;
                matches[filled] = place;
                filled += 1;
                if filled == VECTOR_ROWS {
                    rows_out += filled;
                    self.pass_on(stage, at, depth, number, &picked[..filled], &matches)?;
                    filled = 0;
                }
            }
        }
        if filled > 0 {
            rows_out += filled;
            self.pass_on(stage, at, depth, number, &picked[..filled], &matches)?;
        }
        let counts = &mut self.counts[stage.steps[number].number];
        *counts = (counts.0 + n as u64, counts.1 + rows_out as u64);
        Ok(())
    }

    /// Emits one row for every match that meets the condition of a left join, and one for every row
    /// without such a match, a frame at a time.
    pub(super) fn multiply_met(
        &mut self,
        stage: &Stage,
        at: usize,
        depth: usize,
        table: &JoinTable,
        found: &[u8; VECTOR_ROWS],
        places: &[i32; VECTOR_ROWS],
    ) -> Result<()> {
        self.open_below(stage, depth);
        let number = self.order.steps[at];
        let n = self.frames[depth].n;
        let mut met = [0u8; VECTOR_ROWS];
        let mut picked = [0u16; VECTOR_ROWS];
        let mut matches = Box::new([NOTHING; VECTOR_ROWS]);
        let (mut filled, mut rows_out) = (0, 0);
        for row in (0..n).filter(|row| found[*row] == 1) {
            for place in table.run(places[row]) {
                picked[filled] = row as u16;
                matches[filled] = place as i32;
                filled += 1;
                if filled == VECTOR_ROWS {
                    rows_out += self.pass_on_met(stage, at, depth, &mut picked, &mut matches, &mut met)?;
                    filled = 0;
                }
            }
        }
        if filled > 0 {
            rows_out += self.pass_on_met(stage, at, depth, &mut picked[..filled], &mut matches, &mut met)?;
        }
        let mut alone = 0;
        for row in (0..n).filter(|row| met[*row] == 0) {
            picked[alone] = row as u16;
            alone += 1;
        }
        if alone > 0 {
            matches.fill(NOTHING);
            self.pass_on(stage, at, depth, number, &picked[..alone], &matches)?;
        }
        let counts = &mut self.counts[stage.steps[number].number];
        *counts = (counts.0 + n as u64, counts.1 + (rows_out + alone) as u64);
        Ok(())
    }

    /// Emits the pairs that meet the condition, and marks their rows. Returns the number of pairs.
    fn pass_on_met(
        &mut self,
        stage: &Stage,
        at: usize,
        depth: usize,
        picked: &mut [u16],
        matches: &mut [i32; VECTOR_ROWS],
        met: &mut [u8; VECTOR_ROWS],
    ) -> Result<usize> {
        let number = self.order.steps[at];
        let meets = self.try_matches(stage, depth, number, picked, matches)?;
        let mut kept = 0;
        for pair in (0..picked.len()).filter(|pair| meets[*pair] == 1) {
            met[usize::from(picked[pair]) % VECTOR_ROWS] = 1;
            (picked[kept], matches[kept]) = (picked[pair], matches[pair]);
            kept += 1;
        }
        if kept > 0 {
            self.pass_on(stage, at, depth, number, &picked[..kept], matches)?;
        }
        Ok(kept)
    }

    /// Returns 1 for each row of a frame that has a match meeting the condition of a probe, 0 for
    /// others.
    pub(super) fn any_match(
        &mut self,
        stage: &Stage,
        depth: usize,
        number: usize,
        found: &[u8; VECTOR_ROWS],
        places: &[i32; VECTOR_ROWS],
    ) -> Result<[u8; VECTOR_ROWS]> {
        let StepKind::Probe { table, .. } = &stage.steps[number].kind else { return Err(not_boolean()) };
        self.open_below(stage, depth);
        let mut met = [0u8; VECTOR_ROWS];
        let mut picked = [0u16; VECTOR_ROWS];
        let mut matches = Box::new([NOTHING; VECTOR_ROWS]);
        let mut filled = 0;
        for row in (0..self.frames[depth].n).filter(|row| found[*row] == 1) {
            for place in table.matches(places[row]) {
                // One match is enough.
                if met[row] == 1 {
                    break;
                }
                picked[filled] = row as u16;
                matches[filled] = place as i32;
                filled += 1;
                if filled == VECTOR_ROWS {
                    mark(&mut met, &picked, &self.try_matches(stage, depth, number, &picked, &matches)?);
                    filled = 0;
                }
            }
        }
        if filled > 0 {
            let picked = &picked[..filled];
            mark(&mut met, picked, &self.try_matches(stage, depth, number, picked, &matches)?);
        }
        Ok(met)
    }

    /// Ensures that there is a frame below this one.
    fn open_below(&mut self, stage: &Stage, depth: usize) {
        if self.frames.len() == depth + 1 {
            self.frames.push(Frame::new(stage));
        }
    }

    /// Returns 1 for each pair of a frame's row and its match that meets the condition of a probe.
    fn try_matches(
        &mut self,
        stage: &Stage,
        depth: usize,
        number: usize,
        picked: &[u16],
        matches: &[i32; VECTOR_ROWS],
    ) -> Result<[u8; VECTOR_ROWS]> {
        if self.cancelled.load(Relaxed) {
            return Err(Error::Cancelled);
        }
        let StepKind::Probe { condition: Some(MatchCode { code, needs, of_row }), .. } = &stage.steps[number].kind
        else {
            return Err(not_boolean());
        };
        let (before, after) = self.frames.split_at_mut(depth + 1);
        let pairs = &mut after[0];
        pairs.pick(&before[depth], picked, of_row);
        pairs.put(number, matches);
        for register in needs {
            self.ensure(stage, depth + 1, *register)?;
        }
        let pairs = &mut self.frames[depth + 1];
        code.run(&mut pairs.vectors, picked.len())?;
        let result = &pairs.vectors[code.result];
        let Data::Bool(values) = &result.data else { return Err(not_boolean()) };
        let mut meets = [0u8; VECTOR_ROWS];
        for (pair, meets) in meets.iter_mut().enumerate().take(picked.len()) {
            *meets = u8::from(values[pair] == 1 && result.is_valid(pair));
        }
        Ok(meets)
    }

    /// Passes the picked rows of a frame on to the next frame.
    fn pass_on(
        &mut self,
        stage: &Stage,
        at: usize,
        depth: usize,
        number: usize,
        picked: &[u16],
        matches: &[i32; VECTOR_ROWS],
    ) -> Result<()> {
        let (before, after) = self.frames.split_at_mut(depth + 1);
        let (from, to) = (&before[depth], &mut after[0]);
        to.pick(from, picked, &self.order.needed[at]);
        to.put(number, matches);
        self.run(stage, at + 1, depth + 1)?;
        self.clock.turn_to(Work::Step(number));
        Ok(())
    }
}

impl Frame {
    /// Sets the match of each row for a step's probe.
    fn put(&mut self, number: usize, matches: &[i32; VECTOR_ROWS]) {
        match &mut self.places[number] {
            Some(places) => places.copy_from_slice(matches),
            none => *none = Some(Box::new(*matches)),
        }
        self.is_placed[number] = true;
    }
}

/// Marks the rows of the pairs that meet the condition.
fn mark(met: &mut [u8; VECTOR_ROWS], picked: &[u16], meets: &[u8; VECTOR_ROWS]) {
    for (row, meets) in picked.iter().zip(meets) {
        met[usize::from(*row) % VECTOR_ROWS] |= meets;
    }
}
