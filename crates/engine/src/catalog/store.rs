//! The catalog, fresh rows and delete bitmaps in a [store](onehop_store). Each commit is one
//! transaction of the store, and writes the records that it changes. [`records`](super::records)
//! describes the records.
//!
//! A commit gets the next number of the store and becomes durable later. The first thread that
//! waits flushes for all waiting threads: one flush covers many commits.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};

use onehop_store::{Pending, ReadTransaction, Store, WriteTransaction};

use super::records::{
    DATABASE, DELETED, FEATURE_FUNCTIONS, FEATURE_IDENTITY, FEATURE_MODELS, FEATURE_PLACE, FEATURES, FEATURES_KEY,
    FORMAT, FORMAT_KEY, FORMAT_WITH_FEATURES, FORMAT_WITH_MODELS, FUNCTIONS, GENERATION_KEY, IDENTITY_KEY, MODELS,
    NAMES, NEXT_ID_KEY, PLACE_KEY, REMOVED, SEGMENTS, SegmentRecord, TABLES, TableRecord, VIEWS, decode,
    decode_removed, decode_text, deleted_key, deleted_prefix, encode, encode_removed, encode_text, is_long, name_key,
    rows_of, segment_key,
};
use super::sound;
use super::{
    Catalog, CatalogStore, Change, Hear, Identity, RemovedSegment, SegmentEntry, SegmentPlace, StoreReport, TableEntry,
    VectorRows,
};
use crate::error::NEWER;
use crate::{Error, ErrorKind, Result};

/// The store's file in a database's directory.
pub(crate) const STORE_FILE: &str = "store";
/// The name of the store's file while it is being created.
pub(crate) const NEW_FILE: &str = "store.new";

/// A catalog in a store.
#[derive(Debug)]
pub(crate) struct StoreCatalog {
    store: Store,
    /// The name in messages.
    name: String,
    /// The epoch of the store when the catalog was last loaded. New commits are based on it.
    epoch: AtomicU64,
    removed: Removed,
}

/// The treatment of segments that a commit removes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Removed {
    /// The catalog remembers them, so that the next opening can remove a file that a crash leaves.
    Remember,
    /// The catalog forgets them. Their files end with the process, or are told apart in another
    /// way.
    Forget,
}

impl StoreCatalog {
    /// Opens the catalog in a store that has one.
    ///
    /// # Errors
    /// [`ErrorKind::TooNew`] for a later version, [`ErrorKind::Corrupt`] for a store without a
    /// catalog.
    pub fn open(store: Store, name: String) -> Result<Self> {
        let opened = Self { store, name, epoch: AtomicU64::new(0), removed: Removed::Forget };
        let tree = opened.store.read()?.tree(DATABASE)?;
        let Some(format) = tree.get(FORMAT_KEY)? else {
            return Err(opened.corrupt("it holds no catalog"));
        };
        let unknown = |what: String| Err(Error::new(ErrorKind::TooNew, what).with_hint(NEWER));
        match number_of(&format) {
            Some(FORMAT | FORMAT_WITH_MODELS) => {}
            Some(FORMAT_WITH_FEATURES) => match tree.get(FEATURES_KEY)?.as_deref().and_then(number_of) {
                Some(bits) if bits & !FEATURES == 0 => {}
                Some(bits) => {
                    let bits = bits & !FEATURES;
                    return unknown(format!(
                        "{} uses features (bits {bits:#x}) that this build does not know",
                        opened.name
                    ));
                }
                None => return Err(opened.corrupt("what it uses is no number")),
            },
            Some(later) => {
                return unknown(format!(
                    "{} is of format {later}, and this build reads formats up to {FORMAT_WITH_FEATURES}",
                    opened.name
                ));
            }
            None => return Err(opened.corrupt("the version of its catalog is no number")),
        }
        drop(tree);
        Ok(opened)
    }

    /// Writes a whole catalog into an empty store. It is durable on return.
    pub fn create(store: Store, name: String, catalog: &Catalog, place: Option<&SegmentPlace>) -> Result<Self> {
        let made = Self { store, name, epoch: AtomicU64::new(0), removed: Removed::Forget };
        let transaction = made.store.write()?;
        transaction.tree(DATABASE)?.insert(FORMAT_KEY, FORMAT.to_le_bytes())?;
        put_numbers(&transaction, catalog)?;
        if let Some(place) = place {
            put_place(&transaction, place)?;
        }
        for (name, table) in &catalog.tables {
            put_table(&transaction, name, table, catalog.generation)?;
        }
        for (name, text) in &catalog.views {
            put_named(&transaction, VIEWS, name, encode_text(text))?;
        }
        for (name, text) in &catalog.models {
            put_model(&transaction, name, text)?;
        }
        for (name, text) in &catalog.functions {
            put_function(&transaction, name, text)?;
        }
        transaction.commit()?;
        Ok(made)
    }

    /// Sets whether the catalog remembers removed segments.
    pub fn with_removed(self, removed: Removed) -> Self {
        Self { removed, ..self }
    }

    fn corrupt(&self, reason: &str) -> Error {
        Error::new(ErrorKind::Corrupt, format!("the catalog in {} is corrupt: {reason}", self.name))
            .with_hint("restore the database directory from a backup; its segment files may be intact")
    }

    fn number(&self, key: &[u8]) -> Result<u64> {
        let value = self.store.read()?.tree(DATABASE)?.get(key)?;
        let bytes = value.as_deref().and_then(|value| <[u8; 8]>::try_from(value).ok());
        bytes
            .map(u64::from_le_bytes)
            .ok_or_else(|| self.corrupt(&format!("\"{}\" is missing, or no number", String::from_utf8_lossy(key))))
    }

    fn bad_record(&self, tree: &str, key: &[u8], reason: &str) -> Error {
        self.corrupt(&format!("record \"{}\" of {tree}: {reason}", String::from_utf8_lossy(key).escape_debug()))
    }

    fn text_of_key<'a>(&self, tree: &str, key: &'a [u8]) -> Result<&'a str> {
        std::str::from_utf8(key).map_err(|_| self.bad_record(tree, key, "its key is not UTF-8"))
    }

    /// Returns the name that a key stands for.
    fn name_of(&self, read: &ReadTransaction, tree: &str, key: &[u8]) -> Result<String> {
        let name = if is_long(key) {
            let whole = read.tree(NAMES)?.get(key)?.ok_or_else(|| self.bad_record(tree, key, "its name is missing"))?;
            decode_text(&whole).map_err(|reason| self.bad_record(NAMES, key, &reason))?
        } else {
            self.text_of_key(tree, key)?.to_string()
        };
        if name_key(&name) == key { Ok(name) } else { Err(self.bad_record(tree, key, "its name is another's")) }
    }

    /// Returns the strings of a tree, by name.
    fn texts(&self, read: &ReadTransaction, tree: &str) -> Result<BTreeMap<String, String>> {
        let mut texts = BTreeMap::new();
        for entry in read.tree(tree)?.iter() {
            let entry = entry?;
            let name = self.name_of(read, tree, entry.key())?;
            let text = decode_text(entry.value()).map_err(|reason| self.bad_record(tree, entry.key(), &reason))?;
            texts.insert(name, text);
        }
        Ok(texts)
    }

    /// Returns the segments of a table, in order.
    fn segments(&self, table: u64) -> Result<Vec<SegmentEntry>> {
        let mut segments = Vec::new();
        for entry in self.store.read()?.tree(SEGMENTS)?.prefix(table.to_be_bytes()) {
            let entry = entry?;
            let file = self.text_of_key(SEGMENTS, entry.key().get(8..).unwrap_or_default())?;
            let record: SegmentRecord =
                decode(entry.value()).map_err(|reason| self.bad_record(SEGMENTS, file.as_bytes(), &reason))?;
            segments.push(((record.generation, record.index), record.with_file(file)));
        }
        segments.sort_by_key(|(place, segment)| (segment.partition, *place));
        Ok(segments.into_iter().map(|(_, segment)| segment).collect())
    }
}

impl CatalogStore for StoreCatalog {
    fn load(&self) -> Result<Catalog> {
        // No commit that is not durable is in order at this point: earlier ones were taken back or
        // waited for, and new ones are refused.
        self.epoch.store(self.store.epoch(), SeqCst);
        let mut catalog = Catalog {
            generation: self.number(GENERATION_KEY)?,
            next_id: self.number(NEXT_ID_KEY)?,
            ..Catalog::default()
        };
        let read = self.store.read()?;
        for entry in read.tree(TABLES)?.iter() {
            let entry = entry?;
            let name = self.name_of(&read, TABLES, entry.key())?;
            let record: TableRecord =
                decode(entry.value()).map_err(|reason| self.bad_record(TABLES, entry.key(), &reason))?;
            let segments = self.segments(record.id)?;
            catalog.tables.insert(name, record.with_segments(segments));
        }
        catalog.views = self.texts(&read, VIEWS)?;
        catalog.models = self.texts(&read, MODELS)?;
        catalog.functions = self.texts(&read, FUNCTIONS)?;
        match sound::fault(&catalog) {
            None => Ok(catalog),
            Some(fault) => Err(self.corrupt(&fault)),
        }
    }

    fn segment_place(&self) -> Result<Option<SegmentPlace>> {
        let Some(value) = self.store.read()?.tree(DATABASE)?.get(PLACE_KEY)? else { return Ok(None) };
        decode(&value).map(Some).map_err(|reason| self.bad_record(DATABASE, PLACE_KEY, &reason))
    }

    fn identity(&self) -> Result<Option<Identity>> {
        let Some(value) = self.store.read()?.tree(DATABASE)?.get(IDENTITY_KEY)? else { return Ok(None) };
        decode(&value).map(Some).map_err(|reason| self.bad_record(DATABASE, IDENTITY_KEY, &reason))
    }

    fn removed(&self) -> Result<Vec<RemovedSegment>> {
        let mut removed = Vec::new();
        for entry in self.store.read()?.tree(REMOVED)?.iter() {
            let entry = entry?;
            let file = self.text_of_key(REMOVED, entry.key())?.to_string();
            let (bytes, checksum) =
                decode_removed(entry.value()).map_err(|reason| self.bad_record(REMOVED, entry.key(), &reason))?;
            removed.push(RemovedSegment { file, bytes, checksum });
        }
        Ok(removed)
    }

    fn rows(&self, table: u64, hear: Hear<'_>) -> Result<()> {
        let mut rows = self.store.read()?.tree(rows_of(table))?.iter();
        while let Some((key, value)) = rows.next_ref()? {
            let Ok(id) = <[u8; 8]>::try_from(key) else {
                return Err(self.bad_record(&rows_of(table), key, "its key is no row's id"));
            };
            hear(u64::from_be_bytes(id), value)?;
        }
        Ok(())
    }

    fn deleted(&self, table: u64, file: &str, hear: &mut dyn FnMut(u32, VectorRows) -> Result<()>) -> Result<()> {
        let prefix = deleted_prefix(table, file);
        for entry in self.store.read()?.tree(DELETED)?.prefix(&prefix) {
            let entry = entry?;
            let bad = |reason: &str| self.bad_record(DELETED, entry.key(), reason);
            let vector = <[u8; 4]>::try_from(&entry.key()[prefix.len()..]).map_err(|_| bad("its key has no vector"))?;
            hear(u32::from_be_bytes(vector), VectorRows::decode(entry.value()).map_err(|reason| bad(&reason))?)?;
        }
        Ok(())
    }

    fn commit(&self, next: &Catalog, changes: &[Change]) -> Result<Pending> {
        let mut transaction = self.store.write()?;
        if transaction.epoch() != self.epoch.load(SeqCst) {
            return Err(stands_on_nothing());
        }
        if changes.iter().all(makes_room) {
            transaction.use_reserve();
        }
        if changes.iter().any(is_of_catalog) {
            put_numbers(&transaction, next)?;
        }
        for (index, change) in changes.iter().enumerate() {
            apply(&mut transaction, next, change, index, self.removed)?;
        }
        // The result concerns this commit alone. The outcome of other commits is reported to the
        // threads that wait for them.
        Ok(transaction.commit_later()?)
    }

    fn is_behind(&self) -> bool {
        self.store.epoch() != self.epoch.load(SeqCst)
    }

    fn report(&self) -> StoreReport {
        StoreReport { domain: self.store.domain(), stats: self.store.stats() }
    }

    fn check(&self, found: &mut dyn FnMut(String)) -> Result<()> {
        self.store.check()?.findings.into_iter().for_each(found);
        Ok(())
    }
}

/// Reads a number of 4 bytes.
fn number_of(value: &[u8]) -> Option<u32> {
    <[u8; 4]>::try_from(value).ok().map(u32::from_le_bytes)
}

/// Returns the error of a commit that is based on a commit which was taken back.
pub(crate) fn stands_on_nothing() -> Error {
    Error::new(ErrorKind::Resources, "a commit of another session, which this one would stand on, found no room")
        .with_hint("make room on the disk, and try again")
}

/// Returns whether a change is one of the catalog, not of rows.
fn is_of_catalog(change: &Change) -> bool {
    use Change::{AddRows, DeleteRows, ForgetRemoved, PutIdentity, PutPlace, RemoveRows};
    !matches!(
        change,
        AddRows { .. }
            | RemoveRows { .. }
            | DeleteRows { .. }
            | PutPlace { .. }
            | PutIdentity { .. }
            | ForgetRemoved { .. }
    )
}

/// Returns whether a change may use the reserve of a full disk. Such a change removes more than it
/// adds, or, like marks of deleted rows, precedes a change that does. Without the reserve no
/// statement could free space.
fn makes_room(change: &Change) -> bool {
    use Change::{DeleteRows, DropFunction, DropModel, DropTable, DropView, ForgetRemoved, RemoveRows, RemoveSegments};
    matches!(
        change,
        RemoveRows { .. }
            | RemoveSegments { .. }
            | DeleteRows { .. }
            | DropTable { .. }
            | DropView { .. }
            | DropModel { .. }
            | DropFunction { .. }
            | ForgetRemoved { .. }
    )
}

fn put_numbers(transaction: &WriteTransaction, catalog: &Catalog) -> Result<()> {
    let mut tree = transaction.tree(DATABASE)?;
    tree.insert(GENERATION_KEY, catalog.generation.to_le_bytes())?;
    tree.insert(NEXT_ID_KEY, catalog.next_id.to_le_bytes())?;
    Ok(())
}

/// Writes the record of a table, a view, a model or a function.
fn put_named(transaction: &WriteTransaction, tree: &str, name: &str, record: Vec<u8>) -> Result<()> {
    let key = name_key(name);
    if is_long(&key) {
        let mut names = transaction.tree(NAMES)?;
        let whole = encode_text(name);
        if names.get(&key)?.is_some_and(|there| *there != whole) {
            let message = "there is another name that begins like this one and cannot be told from it by the catalog";
            return Err(Error::new(ErrorKind::AlreadyExists, message).with_hint("choose a shorter name"));
        }
        names.insert(&key, whole)?;
    }
    transaction.tree(tree)?.insert(key, record)?;
    Ok(())
}

/// Writes the record of a model. The first one changes the format of the catalog, so that builds
/// without models refuse it. They would otherwise show the database as complete without its models.
fn put_model(transaction: &WriteTransaction, name: &str, text: &str) -> Result<()> {
    let mut tree = transaction.tree(DATABASE)?;
    let features = tree.get(FEATURES_KEY)?.as_deref().and_then(number_of);
    match features {
        Some(bits) => tree.insert(FEATURES_KEY, (bits | FEATURE_MODELS).to_le_bytes())?,
        None => tree.insert(FORMAT_KEY, FORMAT_WITH_MODELS.to_le_bytes())?,
    };
    drop(tree);
    put_named(transaction, MODELS, name, encode_text(text))
}

/// Writes the record of a function, and sets its feature bit.
fn put_function(transaction: &WriteTransaction, name: &str, text: &str) -> Result<()> {
    use_feature(transaction, FEATURE_FUNCTIONS)?;
    put_named(transaction, FUNCTIONS, name, encode_text(text))
}

/// Sets a feature bit. Builds that do not know it refuse the database.
fn use_feature(transaction: &WriteTransaction, feature: u32) -> Result<()> {
    let mut tree = transaction.tree(DATABASE)?;
    let format = tree.get(FORMAT_KEY)?.as_deref().and_then(number_of);
    // Before feature bits existed, the format said whether there are models.
    let before = if format == Some(FORMAT_WITH_MODELS) { FEATURE_MODELS } else { 0 };
    let bits = tree.get(FEATURES_KEY)?.as_deref().and_then(number_of).unwrap_or(before);
    tree.insert(FORMAT_KEY, FORMAT_WITH_FEATURES.to_le_bytes())?;
    tree.insert(FEATURES_KEY, (bits | feature).to_le_bytes())?;
    Ok(())
}

/// Writes the place of segments. Builds that would look for them elsewhere refuse the resulting
/// format.
fn put_place(transaction: &WriteTransaction, place: &SegmentPlace) -> Result<()> {
    use_feature(transaction, FEATURE_PLACE)?;
    transaction.tree(DATABASE)?.insert(PLACE_KEY, encode(place)?)?;
    Ok(())
}

/// Writes the identity of the database. Builds that remove every file which the catalog does not
/// mention refuse the database from then on.
fn put_identity(transaction: &WriteTransaction, identity: &Identity) -> Result<()> {
    use_feature(transaction, FEATURE_IDENTITY)?;
    transaction.tree(DATABASE)?.insert(IDENTITY_KEY, encode(identity)?)?;
    Ok(())
}

/// Removes the record of a segment. The record that remains in `removed` is shorter.
fn remove_segment(transaction: &WriteTransaction, key: &[u8], removed: Removed) -> Result<()> {
    let Some(value) = transaction.tree(SEGMENTS)?.get(key)?.map(|value| value.to_vec()) else { return Ok(()) };
    transaction.tree(SEGMENTS)?.remove(key)?;
    let record = decode::<SegmentRecord>(&value).ok();
    // Without a checksum the file cannot be identified: it is kept if a crash leaves it.
    if let (Removed::Remember, Some((bytes, checksum)), Some(file)) =
        (removed, record.and_then(|record| Some((record.bytes, record.checksum?))), key.get(8..))
    {
        transaction.tree(REMOVED)?.insert(file, encode_removed(bytes, checksum))?;
    }
    Ok(())
}

/// Removes the record of a table, a view, a model or a function.
fn remove_named(transaction: &WriteTransaction, tree: &str, name: &str) -> Result<()> {
    let key = name_key(name);
    if is_long(&key) {
        transaction.tree(NAMES)?.remove(&key)?;
    }
    transaction.tree(tree)?.remove(key)?;
    Ok(())
}

fn put_table(transaction: &WriteTransaction, name: &str, table: &TableEntry, generation: u64) -> Result<()> {
    put_named(transaction, TABLES, name, encode(&TableRecord::of(table))?)?;
    put_segments(transaction, table.id, &table.segments, generation, 0)
}

/// Writes segments in this order, after those of earlier generations. `first` keeps several lists
/// of one commit apart.
fn put_segments(
    transaction: &WriteTransaction,
    table: u64,
    segments: &[SegmentEntry],
    generation: u64,
    first: usize,
) -> Result<()> {
    if segments.is_empty() {
        return Ok(());
    }
    let mut tree = transaction.tree(SEGMENTS)?;
    for (index, segment) in segments.iter().enumerate() {
        let record = SegmentRecord::of(segment, generation, first + index);
        tree.insert(segment_key(table, &segment.file), encode(&record)?)?;
    }
    Ok(())
}

/// An upper bound of the segments that one change adds.
const SEGMENTS_PER_CHANGE: usize = 1 << 32;

fn apply(
    transaction: &mut WriteTransaction,
    next: &Catalog,
    change: &Change,
    index: usize,
    removed: Removed,
) -> Result<()> {
    match change {
        Change::PutTable { name } => {
            let Some(table) = next.tables.get(name) else { return Ok(()) };
            match id_of(transaction, name)? {
                // Its segments stay where they are.
                Some(same) if same == table.id => {
                    put_named(transaction, TABLES, name, encode(&TableRecord::of(table))?)?;
                }
                before => {
                    before.map_or(Ok(()), |other| remove_contents(transaction, other, removed))?;
                    put_table(transaction, name, table, next.generation)?;
                }
            }
        }
        Change::DropTable { name } => {
            if let Some(id) = id_of(transaction, name)? {
                remove_named(transaction, TABLES, name)?;
                remove_contents(transaction, id, removed)?;
            }
        }
        Change::AddSegments { table, segments } => {
            put_segments(transaction, *table, segments, next.generation, index * SEGMENTS_PER_CHANGE)?;
        }
        Change::RemoveSegments { table, files } => {
            for file in files {
                remove_segment(transaction, &segment_key(*table, file), removed)?;
                remove_prefix(transaction, DELETED, &deleted_prefix(*table, file))?;
            }
        }
        Change::PutView { name } => {
            if let Some(text) = next.views.get(name) {
                put_named(transaction, VIEWS, name, encode_text(text))?;
            }
        }
        Change::DropView { name } => {
            remove_named(transaction, VIEWS, name)?;
        }
        Change::PutModel { name } => {
            if let Some(text) = next.models.get(name) {
                put_model(transaction, name, text)?;
            }
        }
        Change::DropModel { name } => {
            remove_named(transaction, MODELS, name)?;
        }
        Change::PutFunction { name } => {
            if let Some(text) = next.functions.get(name) {
                put_function(transaction, name, text)?;
            }
        }
        Change::DropFunction { name } => {
            remove_named(transaction, FUNCTIONS, name)?;
        }
        Change::PutPlace { place } => put_place(transaction, place)?,
        Change::PutIdentity { identity } => put_identity(transaction, identity)?,
        Change::ForgetRemoved { files } => {
            let mut tree = transaction.tree(REMOVED)?;
            for file in files {
                tree.remove(file)?;
            }
        }
        Change::AddRows { table, first_id, rows } => {
            let mut tree = transaction.tree(rows_of(*table))?;
            for (id, row) in (*first_id..).zip(rows.iter()) {
                tree.insert(id.to_be_bytes(), row)?;
            }
        }
        Change::RemoveRows { table, rows } => {
            let mut tree = transaction.tree(rows_of(*table))?;
            for id in rows {
                tree.remove(id.to_be_bytes())?;
            }
        }
        Change::DeleteRows { table, file, vectors } => {
            let mut tree = transaction.tree(DELETED)?;
            for (vector, rows) in vectors {
                tree.insert(deleted_key(*table, file, *vector), rows.encode())?;
            }
        }
    }
    Ok(())
}

/// Returns the id of a table in the transaction so far.
fn id_of(transaction: &WriteTransaction, name: &str) -> Result<Option<u64>> {
    let Some(value) = transaction.tree(TABLES)?.get(name_key(name))? else { return Ok(None) };
    let record: TableRecord = decode(&value).map_err(|reason| {
        Error::new(ErrorKind::Corrupt, format!("the record of table \"{name}\" in the store is corrupt: {reason}"))
    })?;
    Ok(Some(record.id))
}

/// Removes the records that belong to a removed table.
fn remove_contents(transaction: &mut WriteTransaction, table: u64, removed: Removed) -> Result<()> {
    for key in keys_of(transaction, SEGMENTS, &table.to_be_bytes())? {
        remove_segment(transaction, &key, removed)?;
    }
    remove_prefix(transaction, DELETED, &table.to_be_bytes())?;
    transaction.drop_tree(rows_of(table))?;
    Ok(())
}

fn keys_of(transaction: &WriteTransaction, tree: &str, prefix: &[u8]) -> Result<Vec<Vec<u8>>> {
    transaction.tree(tree)?.prefix(prefix).map(|entry| Ok(entry?.key().to_vec())).collect()
}

fn remove_prefix(transaction: &WriteTransaction, tree: &str, prefix: &[u8]) -> Result<()> {
    let keys = keys_of(transaction, tree, prefix)?;
    let mut tree = transaction.tree(tree)?;
    for key in keys {
        tree.remove(key)?;
    }
    Ok(())
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::catalog::row::EncodedRows;
    use crate::catalog::{ColumnEntry, PartitionBy};

    fn segment(file: &str, partition: u32) -> SegmentEntry {
        SegmentEntry { file: file.into(), rows: 10, bytes: 4096, checksum: Some(7), partition }
    }

    fn table(id: u64, segments: Vec<SegmentEntry>) -> TableEntry {
        let columns = vec![ColumnEntry { name: "a".into(), type_name: "BIGINT".into(), nullable: true }];
        let partition_by = Some(PartitionBy::Hash { column: "a".into(), partitions: 2 });
        TableEntry { id, columns, cluster_by: vec!["a".into()], partition_by, residence: None, segments }
    }

    fn catalog() -> Catalog {
        let mut catalog = Catalog { generation: 1, next_id: 9, ..Catalog::default() };
        catalog.tables.insert("t".into(), table(1, vec![segment("b.seg", 0), segment("a.seg", 0)]));
        catalog.views.insert("v".into(), "SELECT 1".into());
        catalog
    }

    fn commit(store: &StoreCatalog, catalog: &mut Catalog, changes: &[Change]) {
        catalog.generation += 1;
        store.commit(catalog, changes).unwrap().wait().unwrap();
    }

    fn rows(store: &StoreCatalog, table: u64) -> Vec<(u64, Vec<u8>)> {
        let mut rows = Vec::new();
        let mut hear = |id, row: &[u8]| {
            rows.push((id, row.to_vec()));
            Ok(())
        };
        store.rows(table, &mut hear).unwrap();
        rows
    }

    fn encoded(rows: &[&[u8]]) -> Arc<EncodedRows> {
        Arc::new(rows.into())
    }

    fn deleted(store: &StoreCatalog, table: u64, file: &str) -> Vec<(u32, VectorRows)> {
        let mut vectors = Vec::new();
        let mut hear = |vector, rows| {
            vectors.push((vector, rows));
            Ok(())
        };
        store.deleted(table, file, &mut hear).unwrap();
        vectors
    }

    #[test]
    fn a_catalog_comes_back_as_changes_left_it() {
        let mut catalog = catalog();
        let store = StoreCatalog::create(Store::memory().unwrap(), "test".into(), &catalog, None).unwrap();
        assert_eq!(store.load().unwrap(), catalog);

        let more = vec![segment("0.seg", 1), segment("9.seg", 0)];
        let entry = catalog.tables.get_mut("t").unwrap();
        entry.segments = vec![segment("b.seg", 0), segment("a.seg", 0), segment("9.seg", 0), segment("0.seg", 1)];
        commit(&store, &mut catalog, &[Change::AddSegments { table: 1, segments: more }]);
        assert_eq!(store.load().unwrap(), catalog);

        // The same table with another description, and another table that takes the name of a
        // removed one.
        catalog.tables.get_mut("t").unwrap().residence = Some("cuda:0".into());
        catalog.tables.insert("u".into(), table(2, vec![segment("u.seg", 0)]));
        let put = |name: &str| Change::PutTable { name: name.into() };
        commit(&store, &mut catalog, &[put("t"), put("u")]);
        assert_eq!(store.load().unwrap(), catalog);
        commit(&store, &mut catalog, &[Change::AddRows { table: 2, first_id: 5, rows: encoded(&[&[1]]) }]);
        catalog.tables.insert("u".into(), table(3, Vec::new()));
        catalog.views.remove("v");
        commit(&store, &mut catalog, &[put("u"), Change::DropView { name: "v".into() }]);
        assert_eq!(store.load().unwrap(), catalog);
        assert_eq!(rows(&store, 2), []);

        catalog.tables.remove("t");
        commit(&store, &mut catalog, &[Change::DropTable { name: "t".into() }]);
        assert_eq!(store.load().unwrap(), catalog);
        assert_eq!(store.segments(1).unwrap(), []);
    }

    #[test]
    fn rows_and_deleted_rows_come_and_go_with_what_they_belong_to() {
        let mut catalog = catalog();
        let store = StoreCatalog::create(Store::memory().unwrap(), "test".into(), &catalog, None).unwrap();
        let all = VectorRows::decode(&[1, 0]).unwrap();
        let some = VectorRows::decode(&[1, 1, 3, 0]).unwrap();
        let changes = [
            Change::AddRows { table: 1, first_id: 300, rows: encoded(&[&[3]]) },
            Change::AddRows { table: 1, first_id: 1, rows: encoded(&[&[1, 2], &[]]) },
            Change::DeleteRows { table: 1, file: "a.seg".into(), vectors: vec![(0, some), (300, all)] },
            Change::DeleteRows { table: 1, file: "b.seg".into(), vectors: vec![(1, some)] },
        ];
        let generation = catalog.generation;
        store.commit(&catalog, &changes).unwrap().wait().unwrap();
        assert_eq!(store.load().unwrap().generation, generation, "rows are no change of the catalog");
        assert_eq!(rows(&store, 1), [(1, vec![1, 2]), (2, vec![]), (300, vec![3])]);
        assert_eq!(deleted(&store, 1, "a.seg"), [(0, some), (300, all)]);

        let changes = [
            Change::RemoveRows { table: 1, rows: vec![2, 300, 77] },
            Change::DeleteRows { table: 1, file: "a.seg".into(), vectors: vec![(0, all)] },
        ];
        store.commit(&catalog, &changes).unwrap().wait().unwrap();
        assert_eq!(rows(&store, 1), [(1, vec![1, 2])]);
        assert_eq!(deleted(&store, 1, "a.seg"), [(0, all), (300, all)]);

        catalog.tables.get_mut("t").unwrap().segments.retain(|segment| segment.file != "a.seg");
        commit(&store, &mut catalog, &[Change::RemoveSegments { table: 1, files: vec!["a.seg".into()] }]);
        assert_eq!(deleted(&store, 1, "a.seg"), []);
        assert_eq!(deleted(&store, 1, "b.seg"), [(1, some)]);
        assert_eq!(store.load().unwrap(), catalog);
        catalog.tables.remove("t");
        commit(&store, &mut catalog, &[Change::DropTable { name: "t".into() }]);
        assert_eq!((rows(&store, 1), deleted(&store, 1, "b.seg")), (vec![], vec![]));
    }

    #[test]
    fn a_later_format_and_a_store_of_something_else_are_refused() {
        let store = Store::memory().unwrap();
        let error = StoreCatalog::open(store.clone(), "x/store".into()).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Corrupt);
        let transaction = store.write().unwrap();
        transaction.tree(DATABASE).unwrap().insert(FORMAT_KEY, 4u32.to_le_bytes()).unwrap();
        transaction.commit().unwrap();
        let error = StoreCatalog::open(store, "x/store".into()).unwrap_err();
        assert_eq!(
            (error.kind(), error.message()),
            (ErrorKind::TooNew, "x/store is of format 4, and this build reads formats up to 3")
        );
    }

    #[test]
    fn a_store_says_what_it_uses_and_what_is_not_known_is_refused() {
        let mut catalog = catalog();
        let inner = Store::memory().unwrap();
        let mut place = SegmentPlace { url: "rados://pool/x".into(), marks: vec!["a".into()] };
        let store = StoreCatalog::create(inner.clone(), "x/store".into(), &catalog, Some(&place)).unwrap();
        assert_eq!(store.segment_place().unwrap().as_ref(), Some(&place));
        let put = |key: &[u8], value: u32| {
            let transaction = inner.write().unwrap();
            transaction.tree(DATABASE).unwrap().insert(key, value.to_le_bytes()).unwrap();
            transaction.commit().unwrap();
        };
        let number =
            |key: &[u8]| inner.read().unwrap().tree(DATABASE).unwrap().get(key).unwrap().as_deref().and_then(number_of);
        assert_eq!((number(FORMAT_KEY), number(FEATURES_KEY)), (Some(FORMAT_WITH_FEATURES), Some(FEATURE_PLACE)));
        // Models set another bit, and the format stays.
        catalog.models.insert("m".into(), "{}".into());
        place.marks.push("b".into());
        commit(
            &store,
            &mut catalog,
            &[Change::PutModel { name: "m".into() }, Change::PutPlace { place: place.clone() }],
        );
        let used = FEATURE_PLACE | FEATURE_MODELS;
        assert_eq!((number(FORMAT_KEY), number(FEATURES_KEY)), (Some(FORMAT_WITH_FEATURES), Some(used)));
        let store = StoreCatalog::open(inner.clone(), "x/store".into()).unwrap();
        assert_eq!((store.load().unwrap(), store.segment_place().unwrap()), (catalog, Some(place)));
        put(FEATURES_KEY, 0x80 | FEATURE_PLACE);
        let error = StoreCatalog::open(inner.clone(), "x/store".into()).unwrap_err();
        assert_eq!(
            (error.kind(), error.message()),
            (ErrorKind::TooNew, "x/store uses features (bits 0x80) that this build does not know")
        );
    }

    #[test]
    fn a_store_with_models_is_not_for_builds_that_know_none() {
        let mut catalog = catalog();
        let inner = Store::memory().unwrap();
        let store = StoreCatalog::create(inner.clone(), "test".into(), &catalog, None).unwrap();
        let format = || inner.read().unwrap().tree(DATABASE).unwrap().get(FORMAT_KEY).unwrap();
        assert_eq!(format().as_deref(), Some(&FORMAT.to_le_bytes()[..]));
        catalog.models.insert("m".into(), "{}".into());
        commit(&store, &mut catalog, &[Change::PutModel { name: "m".into() }]);
        assert_eq!(format().as_deref(), Some(&FORMAT_WITH_MODELS.to_le_bytes()[..]));
        assert_eq!(StoreCatalog::open(inner.clone(), "test".into()).unwrap().load().unwrap(), catalog);
    }
}
