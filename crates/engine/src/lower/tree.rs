//! Turns a graph into a program: the largest relation is streamed, the others become join tables.
//!
//! A relation is the child of the one that it was reached from, breadth first. So a star has its
//! tables side by side and a snowflake has them nested: the inner table filters the rows of the
//! outer. Equalities that close a cycle, and conditions over several relations, are filters at the
//! root of their tree, where all their columns are known. Each lookup has a tree of its own, and is
//! probed where its keys are known. From there on, an outer join's columns are available like
//! columns of the relation whose pipeline that is.

use std::cell::Cell;
use std::collections::{BTreeSet, HashMap, HashSet, VecDeque};
use std::sync::Arc;

use arrow::datatypes::Field;
use datafusion::common::{Column, DFSchema, DataFusionError, ScalarValue};
use datafusion::execution::SessionState;
use datafusion::logical_expr::{BinaryExpr, Expr, Operator};
use onehop_io::Ledger;
use onehop_pipeline::ir::{JoinKind, Pipeline, Probe, Program, Sink, Step};
use onehop_pipeline::{BatchSource, Expr as PipelineExpr, SegmentSource, Source};
use onehop_segment::{BlockCache, ColumnType};

use super::dictionaries::Dictionaries;
use super::expr::Translator;
use super::graph::{Graph, Lookup, relation_of};
use super::input::{DerivedInput, Input, Scan};
use super::relation::{Origin, Relation, definition};
use super::words::Words;
use super::{Lowered, because};
use crate::Error;
use crate::scan_plan::ScanPlan;
use crate::snapshot::Table;

/// A program and its inputs.
#[derive(Debug)]
pub(super) struct Planned {
    pub program: Program,
    /// The steps and the sink of each pipeline, for EXPLAIN.
    pub words: Vec<Words>,
    pub sources: Vec<Arc<dyn Source>>,
    /// The input of each source.
    pub inputs: Vec<Input>,
}

/// A pipeline without a sink, and the translator of its expressions.
type Unfinished<'a> = (Pipeline, Words, Translator<'a>);

/// An equality that joins two relations.
struct Edge {
    /// The side of each relation.
    sides: [(usize, Expr); 2],
}

/// A relation and its descendants.
#[derive(Debug, Default)]
struct Node {
    children: Vec<usize>,
    /// The keys of its table: its side and the parent's side.
    keys: Vec<(Expr, Expr)>,
    /// Lookups, by number, that its rows have to pass.
    lookups: Vec<usize>,
    /// Conditions that need the columns of all descendants.
    late: Vec<Expr>,
}

/// A table to probe, in the pipeline of a relation.
struct Pending {
    /// The keys: the table's side, this side.
    keys: Vec<(Expr, Expr)>,
    kind: JoinKind,
    conditions: Vec<Expr>,
    table: usize,
    /// The columns that its payload provides here.
    payload: Vec<Column>,
    words: String,
}

impl Pending {
    /// Returns the columns that must be known when it is probed.
    fn reads(&self) -> impl Iterator<Item = Column> {
        let keys = self.keys.iter().map(|(_, mine)| mine);
        let all = columns_of(keys.chain(&self.conditions));
        all.into_iter().filter(|column| !self.payload.contains(column))
    }
}

pub(super) struct Planner<'a> {
    graph: &'a Graph,
    schema: Arc<DFSchema>,
    state: &'a SessionState,
    cache: Arc<BlockCache>,
    ledger: Arc<Ledger>,
    dictionaries: &'a Dictionaries,
    /// Conditions of one relation each.
    local: Vec<Vec<Expr>>,
    /// Conditions of several relations, and lookups that depend on several.
    late: Vec<Expr>,
    late_lookups: Vec<usize>,
    nodes: Vec<Node>,
    /// The relation whose pipeline provides the columns of an outer join, for those that depend on
    /// one relation only.
    anchors: HashMap<usize, usize>,
    /// The root of each lookup's tree.
    roots: Vec<usize>,
    planned: Planned,
}

impl<'a> Planner<'a> {
    /// Creates a planner of a graph.
    pub fn new(
        graph: &'a Graph,
        state: &'a SessionState,
        cache: Arc<BlockCache>,
        ledger: Arc<Ledger>,
        dictionaries: &'a Dictionaries,
    ) -> Lowered<Self> {
        let relations = graph.relations.len();
        Ok(Self {
            graph,
            schema: Arc::new(graph.schema()?),
            state,
            cache,
            ledger,
            dictionaries,
            local: vec![Vec::new(); relations],
            late: Vec::new(),
            late_lookups: Vec::new(),
            roots: Vec::new(),
            anchors: HashMap::new(),
            nodes: (0..relations).map(|_| Node::default()).collect(),
            planned: Planned {
                program: Program { pipelines: Vec::new() },
                words: Vec::new(),
                sources: Vec::new(),
                inputs: Vec::new(),
            },
        })
    }

    /// Returns a program whose sink, made by `sink`, reads `outputs`.
    pub fn plan(mut self, outputs: &[Expr], sink: impl FnOnce(&Translator<'_>) -> Lowered<Sink>) -> Lowered<Planned> {
        let edges = self.sort_conditions();
        let mut scans = Vec::with_capacity(self.graph.relations.len());
        for (relation, local) in self.graph.relations.iter().zip(&self.local) {
            scans.push(match &relation.origin {
                Origin::Table(table) => {
                    let plan = ScanPlan::new(table, local).map_err(DataFusionError::from)?;
                    Some(plan.by_path(self.cache.path()))
                }
                Origin::Derived(_) | Origin::Joined(_) => None,
            });
        }
        let root = self.arrange(edges, &scans)?;
        let wanted = columns_of(outputs);
        let (mut pipeline, words, translator) = self.pipeline(root, &wanted, &mut scans)?;
        pipeline.sink = sink(&translator)?;
        let mut planned = self.planned;
        planned.program.pipelines.push(pipeline);
        planned.words.push(words);
        Ok(planned)
    }

    /// Sorts conditions into those of one relation, edges, and the rest.
    fn sort_conditions(&mut self) -> Vec<Edge> {
        let mut edges = Vec::new();
        for (relation, condition) in &self.graph.constants {
            self.local[*relation].push(condition.clone());
        }
        for condition in &self.graph.conditions {
            let relations = relations_of(condition);
            match relations.iter().collect::<Vec<_>>().as_slice() {
                [relation] if !self.is_joined(**relation) => self.local[**relation].push(condition.clone()),
                // A comparison with the only row of a relation is no key, so its type is not
                // limited.
                [a, b] => match edge(condition).filter(|_| !self.has_one_row(**a) && !self.has_one_row(**b)) {
                    Some(edge) => edges.push(edge),
                    None => self.late.push(condition.clone()),
                },
                _ => self.late.push(condition.clone()),
            }
        }
        edges
    }

    fn is_joined(&self, relation: usize) -> bool {
        self.graph.relations[relation].joined().is_some()
    }

    fn has_one_row(&self, relation: usize) -> bool {
        self.graph.relations[relation].has_one_row()
    }

    /// Builds a tree for each lookup's relations, and one for the others. Returns the root of the
    /// latter.
    fn arrange(&mut self, mut edges: Vec<Edge>, scans: &[Option<ScanPlan>]) -> Lowered<usize> {
        // The root is the largest table. The size of a derived relation is unknown.
        let relations = &self.graph.relations;
        let rows = |relation: &usize| match &scans[*relation] {
            Some(scan) => (2, scan.rows()),
            None => (usize::from(!relations[*relation].has_one_row()), 0),
        };
        let mut free: BTreeSet<usize> = (0..self.graph.relations.len()).filter(|r| !self.is_joined(*r)).collect();
        // Nested lookups come before those that contain them.
        for (number, lookup) in self.graph.lookups.iter().enumerate() {
            let inside: BTreeSet<usize> = free.iter().copied().filter(|r| lookup.inside.contains(r)).collect();
            free.retain(|relation| !inside.contains(relation));
            let Some(root) = inside.iter().copied().max_by_key(rows) else { return because("a lookup in nothing") };
            let (here, elsewhere) =
                edges.into_iter().partition(|edge: &Edge| edge.sides.iter().all(|(r, _)| lookup.inside.contains(r)));
            edges = elsewhere;
            self.hang(root, &inside, here)?;
            self.roots.push(root);
            // It is probed where its keys are known, as early as possible.
            let outside = lookup.outside();
            let outside: BTreeSet<&usize> = outside.iter().map(|r| self.anchors.get(r).unwrap_or(r)).collect();
            match outside.into_iter().copied().collect::<Vec<_>>().as_slice() {
                [relation] if !self.is_joined(*relation) => {
                    self.nodes[*relation].lookups.push(number);
                    self.anchors.extend(lookup.joined.map(|joined| (joined, *relation)));
                }
                _ => self.late_lookups.push(number),
            }
        }
        let Some(root) = free.iter().copied().max_by_key(rows) else { return because("no table") };
        self.hang(root, &free, edges)?;
        // A lookup or condition that needs several relations is applied at the root of their tree.
        for number in std::mem::take(&mut self.late_lookups) {
            let root = self.root_of(&self.graph.lookups[number].outside(), root);
            self.nodes[root].lookups.push(number);
        }
        for condition in std::mem::take(&mut self.late) {
            let root = self.root_of(&relations_of(&condition), root);
            self.nodes[root].late.push(condition);
        }
        Ok(root)
    }

    /// Returns the root of the tree that has all these relations; `main` if no lookup's has.
    fn root_of(&self, relations: &BTreeSet<usize>, main: usize) -> usize {
        let has_all = |root: &&usize| relations.is_subset(&self.subtree(**root).into_iter().collect());
        match relations.is_empty() {
            true => main,
            false => self.roots.iter().find(has_all).copied().unwrap_or(main),
        }
    }

    /// Makes each relation of `all` a descendant of the root.
    fn hang(&mut self, root: usize, all: &BTreeSet<usize>, edges: Vec<Edge>) -> Lowered<()> {
        let (edges, of_joined): (Vec<Edge>, Vec<Edge>) =
            edges.into_iter().partition(|edge| !edge.sides.iter().any(|(relation, _)| self.is_joined(*relation)));
        let mut reached = HashSet::from([root]);
        let mut edges = self.reach(VecDeque::from([root]), &mut reached, edges);
        // The columns of outer joins are known where these are probed. Those that need several
        // relations are probed at the root.
        for mut edge in of_joined {
            for (relation, _) in edge.sides.iter_mut().filter(|(relation, _)| self.is_joined(*relation)) {
                *relation = self.anchors.get(relation).copied().unwrap_or(root);
            }
            match &edge.sides {
                // Both are in the tree already.
                [a, b] if reached.contains(&a.0) && reached.contains(&b.0) => self.late.push(equality(edge)),
                _ => edges.push(edge),
            }
        }
        let again = reached.iter().copied().collect::<BTreeSet<usize>>();
        self.reach(again.into_iter().collect(), &mut reached, edges);
        // Each row matches the only row of a relation, whatever the key.
        for alone in all.iter().filter(|relation| self.graph.relations[**relation].has_one_row()) {
            if reached.insert(*alone) {
                let key = Expr::Literal(ScalarValue::Int64(Some(0)), None);
                self.nodes[root].children.push(*alone);
                self.nodes[*alone].keys.push((key.clone(), key));
            }
        }
        match reached.len() == all.len() {
            true => Ok(()),
            false => because("a join without an equality between columns of two tables"),
        }
    }

    /// Attaches the relations that edges reach from the queue, repeatedly. Returns the edges that
    /// do not connect yet.
    fn reach(&mut self, mut queue: VecDeque<usize>, reached: &mut HashSet<usize>, mut edges: Vec<Edge>) -> Vec<Edge> {
        while let Some(parent) = queue.pop_front() {
            let (here, elsewhere): (Vec<Edge>, Vec<Edge>) =
                edges.into_iter().partition(|edge| edge.sides.iter().any(|(relation, _)| *relation == parent));
            edges = elsewhere;
            for Edge { sides: [a, b] } in here {
                let (mine, theirs) = if a.0 == parent { (a.1, b) } else { (b.1, a) };
                let (child, theirs) = theirs;
                if reached.insert(child) {
                    self.nodes[parent].children.push(child);
                    queue.push_back(child);
                } else if !self.nodes[parent].children.contains(&child) {
                    // It closes a cycle.
                    self.late.push(equality(Edge { sides: [(parent, mine), (child, theirs)] }));
                    continue;
                }
                self.nodes[child].keys.push((theirs, mine));
            }
        }
        edges
    }

    /// Plans the pipeline of a relation up to its sink, after the pipelines that build the tables
    /// below it.
    fn pipeline(
        &mut self,
        relation: usize,
        wanted: &BTreeSet<Column>,
        scans: &mut [Option<ScanPlan>],
    ) -> Lowered<Unfinished<'a>> {
        let mut pending = self.pending(relation, wanted, scans)?;
        let late = std::mem::take(&mut self.nodes[relation].late);
        let graph = self.graph;
        // Its own columns that are read here: by its conditions, by probes, and as wanted columns.
        let mut used = columns_of(&self.local[relation]);
        used.extend(wanted.iter().cloned().chain(columns_of(&late)));
        used.extend(pending.iter().flat_map(Pending::reads));
        used.retain(|column| relation_of(column) == Some(relation));
        let mut registers: HashMap<Column, usize> = HashMap::new();
        used.iter().for_each(|column| {
            registers.insert(column.clone(), registers.len());
        });
        let source = self.source(relation, &used, scans)?;
        let schema = Arc::clone(&self.schema);
        let (relations, depth) = (graph.relations.as_slice(), Cell::new(0));
        let mut translator = Translator { schema, relations, state: self.state, registers, depth };
        let mut steps = Vec::new();
        let mut words = Words::default();
        for condition in &self.local[relation] {
            words.steps.push(graph.sql(condition));
            steps.push(Step::Filter(translator.translate(condition)?));
        }
        let mut next = used.len();
        while !pending.is_empty() {
            // The key of one probe may be the payload of another.
            let is_known = |probe: &Pending| probe.reads().all(|column| translator.registers.contains_key(&column));
            let Some(first) = pending.iter().position(is_known) else {
                return because("joins of which each needs what the other brings");
            };
            let Pending { keys, kind, conditions, table, payload, words: text } = pending.remove(first);
            words.steps.push(text);
            let keys = keys.iter().map(|(_, mine)| translator.translate(mine)).collect::<Lowered<Vec<_>>>()?;
            let columns = (0..payload.len()).collect();
            for column in payload {
                translator.registers.insert(column, next);
                next += 1;
            }
            let mut conditions =
                conditions.iter().map(|condition| translator.translate(condition)).collect::<Lowered<Vec<_>>>()?;
            let condition = if conditions.len() > 1 { Some(PipelineExpr::And(conditions)) } else { conditions.pop() };
            steps.push(Step::Probe(Probe { table, kind, keys, payload: columns, condition }));
        }
        for condition in &late {
            words.steps.push(graph.sql(condition));
            steps.push(Step::Filter(translator.translate(condition)?));
        }
        let columns = (0..used.len()).collect();
        let sink = Sink::Collect { columns: Vec::new() };
        Ok((Pipeline { source, columns, steps, sink }, words, translator))
    }

    /// Plans the tables that a relation's rows are looked up in, each built by a pipeline. The
    /// tables of its children come first, then those of lookups. Besides the `wanted` columns they
    /// provide the columns that they need of each other.
    fn pending(
        &mut self,
        relation: usize,
        wanted: &BTreeSet<Column>,
        scans: &mut [Option<ScanPlan>],
    ) -> Lowered<Vec<Pending>> {
        let graph = self.graph;
        let children = std::mem::take(&mut self.nodes[relation].children);
        let keys: Vec<Vec<(Expr, Expr)>> =
            children.iter().map(|child| std::mem::take(&mut self.nodes[*child].keys)).collect();
        let lookups = std::mem::take(&mut self.nodes[relation].lookups);
        let lookups: Vec<(usize, &Lookup)> = lookups.iter().map(|number| (*number, &graph.lookups[*number])).collect();
        let mut wanted = wanted.clone();
        wanted.extend(columns_of(&self.nodes[relation].late));
        wanted.extend(columns_of(keys.iter().flatten().map(|(_, mine)| mine)));
        for (_, lookup) in &lookups {
            wanted.extend(columns_of(lookup.keys.iter().map(|(theirs, _)| theirs)));
            wanted.extend(columns_of(&lookup.conditions));
        }
        let mut all = Vec::with_capacity(children.len() + lookups.len());
        for (number, lookup) in lookups {
            let keys: Vec<(Expr, Expr)> =
                lookup.keys.iter().map(|(theirs, ours)| (ours.clone(), theirs.clone())).collect();
            let others = lookup.conditions.iter().map(|condition| graph.sql(condition));
            let words = std::iter::once(graph.equalities(&keys)).chain(others).collect::<Vec<_>>().join(" AND ");
            let is_inside = |column: &Column| relation_of(column).is_some_and(|r| lookup.inside.contains(&r));
            let of_joined =
                wanted.iter().filter(|column| lookup.joined.is_some() && relation_of(column) == lookup.joined);
            let mut payload: Vec<Column> = of_joined.cloned().collect();
            payload.extend(columns_of(&lookup.conditions).into_iter().filter(is_inside));
            // The definition of a nullable column is computed inside, where rows exist.
            let values = payload.iter().map(|column| match definition(&graph.relations, column) {
                Some(what) if !is_inside(column) => what.clone(),
                _ => Expr::Column(column.clone()),
            });
            let values: Vec<Expr> = values.collect();
            let table = self.build(self.roots[number], &keys, &values, scans)?;
            let (kind, conditions) = (lookup.kind, lookup.conditions.clone());
            all.push(Pending { keys, kind, conditions, table, payload, words });
        }
        let lookups = all.len();
        for (child, keys) in children.into_iter().zip(keys) {
            let below = self.subtree(child);
            let payload: Vec<Column> = wanted
                .iter()
                .filter(|column| relation_of(column).is_some_and(|r| below.contains(&r)))
                .cloned()
                .collect();
            let values: Vec<Expr> = payload.iter().cloned().map(Expr::Column).collect();
            let table = self.build(child, &keys, &values, scans)?;
            let words = graph.equalities(&keys);
            all.push(Pending { keys, kind: JoinKind::Inner, conditions: Vec::new(), table, payload, words });
        }
        all.rotate_left(lookups);
        Ok(all)
    }

    /// Builds the table of a relation and its descendants. Returns its number.
    fn build(
        &mut self,
        relation: usize,
        keys: &[(Expr, Expr)],
        payload: &[Expr],
        scans: &mut [Option<ScanPlan>],
    ) -> Lowered<usize> {
        let theirs: Vec<Expr> = keys.iter().map(|(theirs, _)| theirs.clone()).collect();
        let wanted = columns_of(theirs.iter().chain(payload));
        let (mut pipeline, mut words, translator) = self.pipeline(relation, &wanted, scans)?;
        words.keys = theirs.iter().map(|key| self.graph.sql(key)).collect();
        words.values = payload.iter().map(|value| self.graph.sql(value)).collect();
        self.planned.words.push(words);
        let keys = theirs.iter().map(|key| translator.translate(key)).collect::<Lowered<Vec<_>>>()?;
        let payload = payload.iter().map(|value| translator.translate(value)).collect::<Lowered<Vec<_>>>()?;
        pipeline.sink = Sink::Build { keys, payload };
        self.planned.program.pipelines.push(pipeline);
        Ok(self.planned.program.pipelines.len() - 1)
    }

    fn subtree(&self, relation: usize) -> HashSet<usize> {
        let mut all = HashSet::from([relation]);
        for child in &self.nodes[relation].children {
            all.extend(self.subtree(*child));
        }
        all.extend(self.nodes[relation].lookups.iter().filter_map(|number| self.graph.lookups[*number].joined));
        all
    }

    fn source(&mut self, relation: usize, used: &BTreeSet<Column>, scans: &mut [Option<ScanPlan>]) -> Lowered<usize> {
        let graph = self.graph;
        let Relation { name, schema, origin } = &graph.relations[relation];
        let mut columns = Vec::with_capacity(used.len());
        for column in used {
            let Some(found) = schema.column_with_name(&column.name) else {
                return because(format!("no column {column}"));
            };
            columns.push(found);
        }
        let (source, input): (Arc<dyn Source>, Input) = match origin {
            Origin::Joined(_) => return because(format!("the columns of {name} where they are not known")),
            Origin::Table(table) => {
                let Some(plan) = scans[relation].take() else { return because("a table that is read twice") };
                let (source, scan) = self.table_source(table, name, &columns, plan)?;
                (Arc::new(source), Input::Table(scan))
            }
            Origin::Derived(derived) => {
                let places: Vec<usize> = columns.iter().map(|(place, _)| *place).collect();
                let input = DerivedInput {
                    name: name.clone(),
                    number: graph.relations[..relation].iter().filter(|relation| relation.derived().is_some()).count(),
                    columns: columns.iter().map(|(place, field)| (*place, field.data_type().clone())).collect(),
                    column_names: columns.iter().map(|(_, field)| field.name().clone()).collect(),
                };
                let expected = BatchSource::expected(name, derived.expected(&places)?);
                (Arc::new(expected), Input::Derived(Arc::new(input)))
            }
        };
        self.planned.sources.push(source);
        self.planned.inputs.push(input);
        Ok(self.planned.sources.len() - 1)
    }

    fn table_source(
        &self,
        table: &Arc<Table>,
        name: &str,
        columns: &[(usize, &Field)],
        plan: ScanPlan,
    ) -> Lowered<(SegmentSource, Scan)> {
        let mut typed = Vec::with_capacity(columns.len());
        for (place, field) in columns {
            let column_type = ColumnType::of(field.name(), field.data_type());
            let column_type = column_type.map_err(|e| DataFusionError::from(Error::from(e)))?;
            typed.push((*place, column_type, field.is_nullable()));
        }
        let blocks = Arc::clone(&plan.blocks);
        let ledger = Arc::new(Ledger::below(&self.ledger));
        let (cache, most_texts) = (Arc::clone(&self.cache), self.dictionaries.most_texts(&plan));
        let (of_source, changes) = (Arc::clone(&ledger), plan.changes().map_err(DataFusionError::from)?);
        let source = SegmentSource::with_changes(&table.name, blocks, &typed, cache, of_source, most_texts, changes)?;
        self.dictionaries.look_at(&source, &plan);
        let columns = columns.iter().map(|(place, _)| *place).collect();
        Ok((source, Scan { table: Arc::clone(table), name: name.into(), columns, plan: Arc::new(plan), ledger }))
    }
}

/// Returns the edge `a = b`, if each side reads one relation, and these differ.
fn edge(condition: &Expr) -> Option<Edge> {
    let Expr::BinaryExpr(BinaryExpr { left, op: Operator::Eq, right }) = condition else { return None };
    let side = |expr: &Expr| {
        let relations = relations_of(expr);
        let only = relations.iter().next().copied()?;
        (relations.len() == 1).then(|| (only, expr.clone()))
    };
    let (left, right) = (side(left)?, side(right)?);
    (left.0 != right.0).then_some(Edge { sides: [left, right] })
}

/// Returns the condition of an edge.
fn equality(Edge { sides: [(_, left), (_, right)] }: Edge) -> Expr {
    Expr::BinaryExpr(BinaryExpr::new(Box::new(left), Operator::Eq, Box::new(right)))
}

fn relations_of(expr: &Expr) -> BTreeSet<usize> {
    expr.column_refs().into_iter().filter_map(relation_of).collect()
}

fn columns_of<'e>(exprs: impl IntoIterator<Item = &'e Expr>) -> BTreeSet<Column> {
    exprs.into_iter().flat_map(|expr| expr.column_refs()).cloned().collect()
}
