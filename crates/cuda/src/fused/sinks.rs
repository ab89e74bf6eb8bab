//! Device memory of the outputs of pipelines: its size and its initialization.
//!
//! The total size of an output is computed before the first allocation. An output that does not fit
//! is thus recorded as one object, and the code that makes room knows its pipeline.

use std::collections::BTreeMap;

use onehop_pipeline::cpu::{ResultColumn, TableKind};
use onehop_pipeline::ir::Sink;

use super::Result;
use super::built::{Built, TableKey};
use super::codegen::{Generated, Groups, Output, SinkShape};
use super::memory::Piece;
use super::partition::{How, Partition, Thing};
use super::plan::Plan;
use super::result::{of_groups, of_rows, rank_of_last, words_of};
use super::run::{Attempt, PipelineFacts, Run};
use super::table::{Rows, TableShape};

/// Initial bytes of collected rows.
const ROWS_BYTES: u64 = 256 << 20;
/// Initial number of rows of the first rows in an order.
const FIRST_ROWS: u64 = 1 << 20;
/// Maximum and minimum of the initial number of places of hashed groups.
const GROUP_PLACES: u64 = 1 << 20;
const LEAST_GROUP_PLACES: u64 = 64;

/// Memory requirement of a pipeline's output, as far as it was learned.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Room {
    /// Rows of a table with chains, or collected rows.
    pub rows: u64,
    /// Places of hashed keys.
    pub places: u64,
    /// Rank of the last row that may be among the first rows of the order.
    pub threshold: Option<u64>,
}

/// Memory that the passes of a pipeline add to.
#[derive(Debug)]
pub(super) struct SinkMemory {
    /// Status words that kernels write, shared by all passes.
    pub status: Piece,
    pub table: Option<Built>,
    pub targets: Targets,
    /// Number of rows that the passes so far have read.
    pub scanned: u64,
}

/// Memory for groups or rows.
#[derive(Debug, Default)]
pub(super) struct Targets {
    pub groups: Option<Piece>,
    pub group_keys: Option<Piece>,
    pub group_places: u64,
    pub outputs: Vec<(Piece, Option<Piece>)>,
    pub capacity: u64,
}

impl SinkMemory {
    pub fn pieces(&self) -> impl Iterator<Item = Piece> + '_ {
        let table = self.table.iter().flat_map(|table| table.memory.values().copied());
        let targets = &self.targets;
        let outputs = targets.outputs.iter().flat_map(|(values, valid)| [Some(*values), *valid]);
        let groups = [Some(self.status), targets.groups, targets.group_keys];
        table.chain(groups.into_iter().chain(outputs).flatten())
    }
}

/// Initial content of a piece.
#[derive(Clone, Copy, Debug)]
enum Fill {
    Nothing,
    Zeros,
    NoKeys,
}

impl Run<'_> {
    /// Allocates the memory that the passes of a pipeline add to, with a status of `status_words`
    /// words.
    pub(super) fn sink_memory(
        &mut self,
        attempt: &Attempt<'_>,
        generated: &Generated,
        status_words: usize,
        rows: u64,
    ) -> Result<SinkMemory> {
        let table = attempt.built.map(|shape| self.table(attempt, shape, rows)).transpose()?;
        let targets = self.targets(attempt, generated, rows)?;
        let status = self.zeros(status_words as u64 * 8)?;
        Ok(SinkMemory { status, table, targets, scanned: 0 })
    }

    fn fill(&mut self, bytes: u64, fill: Fill) -> Result<Piece> {
        match fill {
            Fill::Nothing => self.piece(bytes),
            Fill::Zeros => self.zeros(bytes),
            Fill::NoKeys => self.filled(bytes, 0xff),
        }
    }

    /// Allocates the memory of a table.
    fn table(&mut self, attempt: &Attempt<'_>, shape: &TableShape, rows: u64) -> Result<Built> {
        let Attempt { number, partition, room, .. } = *attempt;
        let places = shape.places(rows, partition).max(room.places);
        let has_chains = shape.rows == Rows::Chains;
        let capacity = if has_chains { room.rows.max(1) } else { places };
        let mut pieces: Vec<(TableKey, u64, Fill)> = Vec::new();
        match shape.kind {
            TableKind::Direct => pieces.push((TableKey::Bits, places.div_ceil(64) * 8, Fill::Zeros)),
            TableKind::Hashed => pieces.push((TableKey::Keys, places * 8, Fill::NoKeys)),
        }
        if has_chains || shape.rows == Rows::Unique && shape.kind == TableKind::Hashed {
            pieces.push((TableKey::Head, places * 4, Fill::Zeros));
        }
        if has_chains {
            pieces.push((TableKey::Next, capacity * 4, Fill::Nothing));
        }
        for (column, element) in shape.payload.iter().enumerate() {
            let Some(element) = element else { continue };
            pieces.push((TableKey::Payload(column), capacity * element.bytes as u64, Fill::Nothing));
            if element.nullable {
                pieces.push((TableKey::PayloadValid(column), capacity, Fill::Nothing));
            }
        }
        let bytes = pieces.iter().map(|(_, bytes, _)| bytes).sum();
        self.wanted[number] = Some(Thing { pipeline: number, bytes, how: shape.how() });
        if capacity >= u64::from(u32::MAX) && has_chains {
            // Rows are numbered with 32 bits.
            self.is_full = true;
            return Err(self.too_much(capacity * 8));
        }
        let mut memory = BTreeMap::new();
        for (key, bytes, fill) in pieces {
            memory.insert(key, self.fill(bytes, fill)?);
        }
        let before = &self.tables[number];
        Ok(Built { places, memory, rows: capacity, ..before.of_partition(shape.clone(), partition) })
    }

    /// Allocates the memory of groups or rows.
    fn targets(&mut self, attempt: &Attempt<'_>, generated: &Generated, rows: u64) -> Result<Targets> {
        let Attempt { number, room, partition, .. } = *attempt;
        let mut targets = Targets::default();
        // Tables that are built and released need some of it, too.
        let left = self.lane.arena.room() / 4 * 3;
        match &generated.sink {
            SinkShape::Table | SinkShape::Fold => {}
            SinkShape::Groups(groups) => {
                let place_bytes = groups.words as u64 * 8 + if groups.is_hashed() { 8 } else { 0 };
                targets.group_places = match groups.is_hashed() {
                    true => {
                        let most = rows.min(groups.count()).div_ceil(partition.of);
                        let mut places = (most.max(32) * 2).next_power_of_two().min(GROUP_PLACES);
                        while places > LEAST_GROUP_PLACES && places * place_bytes > left {
                            places /= 2;
                        }
                        places.max(room.places)
                    }
                    false => self.group_range(groups, partition).1,
                };
                let bytes = targets.group_places.saturating_mul(place_bytes);
                let how = if groups.is_hashed() { How::Grows } else { How::Range };
                self.wanted[number] = groups.may_be_split().then_some(Thing { pipeline: number, bytes, how });
                let states = targets.group_places.saturating_mul(groups.words as u64 * 8);
                targets.groups = Some(self.zeros(states)?);
                if groups.is_hashed() {
                    targets.group_keys = Some(self.filled(targets.group_places * 8, 0xff)?);
                }
            }
            SinkShape::Rows { outputs, has_threshold } => {
                let bytes: u64 = outputs.iter().map(|output| output.bytes() as u64 + 1).sum::<u64>().max(1);
                let most = match &attempt.plan.pipeline.sink {
                    Sink::Top { rows, .. } if *has_threshold => {
                        (*rows as u64 * 16).max(self.executor.options.many_rows.min(FIRST_ROWS))
                    }
                    _ => ROWS_BYTES / bytes,
                };
                targets.capacity = rows.clamp(1, most.clamp(1, (left / bytes).max(1))).max(room.rows);
                let bytes = targets.capacity * bytes;
                self.wanted[number] = Some(Thing { pipeline: number, bytes, how: How::Range });
                for output in outputs {
                    let values = self.piece(targets.capacity * output.bytes() as u64)?;
                    let valid = output.domain.nullable.then(|| self.piece(targets.capacity)).transpose()?;
                    targets.outputs.push((values, valid));
                }
            }
        }
        Ok(targets)
    }

    /// Returns the resident range of groups that are not hashed: the first group and their number.
    pub(super) fn group_range(&self, groups: &Groups, partition: Partition) -> (u64, u64) {
        if groups.is_split { partition.range(groups.count()) } else { (0, groups.count()) }
    }

    pub(super) fn groups(
        &mut self,
        groups: &Groups,
        targets: &Targets,
        partition: Partition,
        facts: &mut PipelineFacts,
    ) -> Result<Vec<ResultColumn>> {
        let mut words = |piece: Option<Piece>| -> Result<Vec<u64>> {
            let Some(piece) = piece else { return Ok(Vec::new()) };
            facts.bytes_down += piece.len as u64;
            Ok(words_of(&self.read(piece)?))
        };
        let states = words(targets.groups)?;
        let keys = words(targets.group_keys)?;
        let first = self.group_range(groups, partition).0;
        Ok(of_groups(groups, &states, groups.is_hashed().then_some(&keys), first, targets.group_places as usize))
    }

    /// Returns the rank of the last of the first rows, among the rows that the sink holds.
    pub(super) fn threshold(&self, plan: &Plan<'_>, first: &Output, targets: &Targets) -> Result<Option<u64>> {
        let Sink::Top { rows, keys, .. } = &plan.pipeline.sink else { return Ok(None) };
        let (Some(key), Some((values, valid))) = (keys.first(), targets.outputs.first()) else { return Ok(None) };
        let count = targets.capacity as usize;
        let values = self.lane.arena.read(*values, count * first.bytes())?;
        let valid = valid.map(|valid| self.lane.arena.read(valid, count)).transpose()?;
        Ok(rank_of_last(&of_rows(first, &values, valid.as_deref()), key, *rows))
    }

    /// Copies the collected rows to the host. Rows in an order begin with its keys.
    pub(super) fn rows(
        &mut self,
        outputs: &[Output],
        targets: &Targets,
        rows: u64,
        facts: &mut PipelineFacts,
    ) -> Result<Vec<ResultColumn>> {
        let mut columns = Vec::with_capacity(outputs.len());
        for (output, (values, valid)) in outputs.iter().zip(&targets.outputs) {
            let values = self.lane.arena.read(*values, rows as usize * output.bytes())?;
            let valid = valid.map(|valid| self.lane.arena.read(valid, rows as usize)).transpose()?;
            facts.bytes_down += (values.len() + valid.as_ref().map_or(0, Vec::len)) as u64;
            columns.push(of_rows(output, &values, valid.as_deref()));
        }
        Ok(columns)
    }
}
