//! Invariants of a catalog. Records are checked when they are read, and later code relies on the
//! result.
//!
//! - Generations and ids are far enough from overflow.
//! - Tables have distinct ids. The columns of a table have distinct names.
//! - The columns that a table is sorted by exist in it.
//! - A partitioned table has its partitioning column, and between 1 and [`MOST_PARTITIONS`]
//!   partitions. Each segment is in one of them.
//! - A segment has at most [`MAX_SEGMENT_ROWS`] rows, so that sums of rows and bytes stay below
//!   2^63.
//! - The file of a segment is a name in the folder of segments and leads nowhere else. Files are
//!   removed by this name.

use std::collections::BTreeSet;

use onehop_segment::MAX_SEGMENT_ROWS;

use super::{Catalog, PartitionBy, SegmentEntry, TableEntry};

/// The maximum number of partitions of a table.
pub(crate) const MOST_PARTITIONS: usize = 4096;
/// The limit of generations and ids. No database reaches it, and counting on from a larger number
/// could overflow.
const MOST_COUNTED: u64 = 1 << 62;
/// The maximum length of a segment's file, in bytes.
const MOST_FILE_BYTES: u64 = 1 << 44;

/// Returns the first violated invariant of a catalog, as a message, or `None` if the catalog is
/// sound.
pub(super) fn fault(catalog: &Catalog) -> Option<String> {
    if catalog.generation >= MOST_COUNTED || catalog.next_id >= MOST_COUNTED {
        return Some(format!("generation {} and next id {} cannot be", catalog.generation, catalog.next_id));
    }
    let mut ids = BTreeSet::new();
    for (name, table) in &catalog.tables {
        if !ids.insert(table.id) {
            return Some(format!("table \"{name}\" has the id of another one"));
        }
        if let Some(fault) = fault_of_table(table) {
            return Some(format!("table \"{name}\": {fault}"));
        }
    }
    None
}

fn fault_of_table(table: &TableEntry) -> Option<String> {
    let mut names = BTreeSet::new();
    if let Some(twice) = table.columns.iter().find(|column| !names.insert(column.name.as_str())) {
        return Some(format!("two of its columns are called \"{}\"", twice.name));
    }
    if let Some(missing) = table.cluster_by.iter().find(|name| !names.contains(name.as_str())) {
        return Some(format!("there is no column \"{missing}\" to cluster by"));
    }
    let partitions = table.partition_by.as_ref().map_or(1, PartitionBy::count);
    if !(1..=MOST_PARTITIONS).contains(&partitions) {
        return Some(format!("{partitions} partitions cannot be"));
    }
    let column = table.partition_by.as_ref().map(PartitionBy::column);
    if let Some(missing) = column.filter(|column| !names.contains(column)) {
        return Some(format!("there is no column \"{missing}\" to partition by"));
    }
    table.segments.iter().find_map(|segment| fault_of_segment(segment, partitions))
}

fn fault_of_segment(segment: &SegmentEntry, partitions: usize) -> Option<String> {
    let SegmentEntry { file, rows, bytes, partition, .. } = segment;
    let is_name = !file.is_empty() && !file.starts_with('.') && !file.contains(['/', '\0']);
    match () {
        () if !is_name => Some(format!("{file:?} is no name of a segment's file")),
        () if *rows > MAX_SEGMENT_ROWS || *bytes > MOST_FILE_BYTES => {
            Some(format!("segment {file} cannot have {rows} rows and {bytes} bytes"))
        }
        () if *partition as usize >= partitions => {
            Some(format!("segment {file} is in partition {partition}, and there are {partitions}"))
        }
        () => None,
    }
}

#[cfg(test)]
mod tests {
    use super::super::{ColumnEntry, RangePartition};
    use super::*;

    type Change = Box<dyn FnOnce(&mut TableEntry)>;

    fn catalog(change: impl FnOnce(&mut TableEntry)) -> Catalog {
        let column = |name: &str| ColumnEntry { name: name.into(), type_name: "BIGINT".into(), nullable: true };
        let mut table = TableEntry {
            id: 3,
            columns: vec![column("k"), column("v")],
            cluster_by: Vec::new(),
            partition_by: Some(PartitionBy::Hash { column: "k".into(), partitions: 4 }),
            residence: None,
            segments: vec![SegmentEntry {
                file: "00000003-00000004.seg".into(),
                rows: MAX_SEGMENT_ROWS,
                bytes: 4096,
                checksum: None,
                partition: 3,
            }],
        };
        change(&mut table);
        Catalog { generation: 5, next_id: 9, tables: [("t".to_string(), table)].into(), ..Catalog::default() }
    }

    #[test]
    fn what_no_commit_writes_is_a_fault() {
        assert_eq!(fault(&catalog(|_| {})), None);
        let hash = |partitions| Some(PartitionBy::Hash { column: "k".into(), partitions });
        let faults: [(&str, Change); 12] = [
            ("0 partitions", Box::new(move |t| t.partition_by = hash(0))),
            ("4294967295 partitions", Box::new(move |t| t.partition_by = hash(u32::MAX))),
            (
                "0 partitions",
                Box::new(|t| {
                    t.partition_by =
                        Some(PartitionBy::Range { column: "k".into(), partitions: Vec::<RangePartition>::new() });
                }),
            ),
            (
                "no column \"x\"",
                Box::new(|t| t.partition_by = Some(PartitionBy::Hash { column: "x".into(), partitions: 4 })),
            ),
            ("is in partition 4", Box::new(|t| t.segments[0].partition = 4)),
            ("cannot have", Box::new(|t| t.segments[0].rows = u64::MAX)),
            ("cannot have", Box::new(|t| t.segments[0].bytes = u64::MAX)),
            ("no name", Box::new(|t| t.segments[0].file = "../store".into())),
            ("no name", Box::new(|t| t.segments[0].file = "/etc/passwd".into())),
            ("no name", Box::new(|t| t.segments[0].file = "..".into())),
            ("no column \"x\" to cluster by", Box::new(|t| t.cluster_by = vec!["v".into(), "x".into()])),
            ("two of its columns", Box::new(|t| t.columns[1].name = "k".into())),
        ];
        for (expected, change) in faults {
            let found = fault(&catalog(change)).unwrap_or_default();
            assert!(found.starts_with("table \"t\": ") && found.contains(expected), "{expected}: {found}");
        }
        let mut twice = catalog(|_| {});
        let table = twice.tables["t"].clone();
        twice.tables.insert("u".into(), table);
        assert!(fault(&twice).is_some_and(|fault| fault.contains("id of another")));
        assert!(fault(&Catalog { generation: u64::MAX, ..Catalog::default() }).is_some());
    }
}
