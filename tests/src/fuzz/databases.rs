//! Whole databases: damaged segments and stores, files of one generation beside a store of another,
//! and exchanged files.
//!
//! Forged numbers in segments are only reachable if the catalog has no checksum of the segment. The
//! store of the images therefore has none, as in databases of older builds.
//!
//! The bits of the seal: 1 recomputes the checksums of the edited files; 2 takes the store of the
//! other generation; 4 exchanges the files of two segments; 8 omits a file.

use std::collections::BTreeMap;
use std::sync::Arc;

use onehop_engine::{Database, DatabaseOptions, Error, ErrorKind, check, repair};
use onehop_io::{Ledger, MemoryVolume, Volume};
use onehop_store::medium::{Granularity, Memory};
use onehop_store::{Options, Store};

use super::damage::Damage;
use super::engine::{Engine, options};
use super::{Made, Mutator, Outcome, Target, Verdict, files, judge, seals, segments, together};

/// The folder of segments.
const SEGMENTS: &str = "segments";
/// The file of the store.
const STORE: &str = "store";

/// Settings that make blocks and segments small.
pub(super) const SMALL: [(&str, &str); 4] = [
    ("storage.block_rows", "1024"),
    ("storage.segment_rows", "2048"),
    ("storage.fresh_rows", "50"),
    ("functions.allow_python", "true"),
];

/// The statements that create a varied database, in two generations.
const GENERATIONS: [&[&str]; 2] = [
    &[
        "CREATE TABLE t (id BIGINT NOT NULL, b BOOLEAN, i TINYINT, j SMALLINT, k INT, u BIGINT UNSIGNED, f REAL, \
         x DOUBLE, n DECIMAL(10,2), m DECIMAL(38,4), d DATE, w TIMESTAMP, z TIMESTAMPTZ, s VARCHAR, v VARCHAR) \
         CLUSTER BY (id)",
        "INSERT INTO t SELECT i, i % 3 = 0, i % 100, i % 1000, i * 7, i, i / 3.0, i * 1.5, \
         CASE WHEN i % 5 > 0 THEN i * 1.25 END, i * 1000000.5, DATE '2020-01-01' + CAST(i % 365 AS INT), \
         TIMESTAMP '2024-01-01' + CAST(i || ' seconds' AS INTERVAL), NULL, 'name ' || (i % 9), \
         'a note that is different in every row: ' || i FROM (SELECT unnest(range(0, 2500)) AS i)",
        "CREATE TABLE u PARTITION BY HASH (k) PARTITIONS 2 AS SELECT unnest(range(0, 100)) AS k",
        "CREATE TABLE r (k INT, s VARCHAR) PARTITION BY RANGE (k) (PARTITION a VALUES LESS THAN (10), \
         PARTITION z VALUES LESS THAN (MAXVALUE))",
        "INSERT INTO r SELECT i, 'x' FROM (SELECT unnest(range(0, 90)) AS i)",
        "CREATE VIEW v AS SELECT count(*) AS c, max(s) AS s FROM t WHERE k > 3",
        "SELECT * FROM linregr_train('t', 'line', label => 'x', features => 'id, f')",
        "SELECT * FROM logregr_train('t', 'curve', label => 'b', features => 'k')",
        "CREATE FUNCTION double(x DOUBLE) RETURNS DOUBLE LANGUAGE python IMMUTABLE AS $$ return x * 2 $$",
    ],
    &[
        "DELETE FROM t WHERE id % 7 = 3",
        "INSERT INTO t (id, b, k, n, m, d, w, z, s) VALUES (5000, true, 1, 12.5, -1, DATE '1999-01-01', \
         TIMESTAMP '2001-02-03 04:05:06', now(), 'fresh'), (5001, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL)",
        "UPDATE t SET x = x + 1, s = 'changed' WHERE id < 20",
        "INSERT INTO u VALUES (1000), (2000)",
        "DROP TABLE r",
        "CREATE TABLE r (k INT)",
    ],
];

/// Queries that are answered from statistics, from zone maps, by pipelines, by operators, and from
/// all columns.
const QUERIES: [&str; 13] = [
    "SELECT count(*), min(id), max(id), min(d), max(s) FROM t",
    "SELECT count(*), min(s), max(n) FROM t WHERE id >= 2000 AND k < 9000000",
    "SELECT s, sum(n), count(d), avg(x) FROM t GROUP BY s ORDER BY s LIMIT 5",
    "SELECT * FROM t WHERE id % 97 = 0",
    "SELECT * FROM t ORDER BY x DESC, id LIMIT 3",
    "SELECT v FROM t WHERE s = 'name 3' AND b",
    "SELECT sum(m), sum(u), max(w), min(z), sum(i + j) FROM t WHERE f > 3 OR s LIKE 'name 1%'",
    "SELECT d, count(DISTINCT s) FROM t WHERE d BETWEEN DATE '2020-02-01' AND DATE '2020-02-05' GROUP BY d",
    "SELECT count(*), sum(t.k) FROM t JOIN u ON t.id = u.k",
    "SELECT count(*), sum(k) FROM u WHERE k BETWEEN 10 AND 20",
    "SELECT * FROM r",
    "SELECT * FROM v, (SELECT linregr_predict('line', 1, 2) AS p), (SELECT logregr_predict_prob('curve', 3) AS q)",
    "SELECT * FROM onehop_columns, onehop_models, onehop_functions",
];

/// The changes made after the queries.
const CHANGES: [&str; 5] = [
    "UPDATE t SET x = 0 WHERE id % 11 = 0",
    "INSERT INTO u SELECT k + 10 FROM u",
    "DELETE FROM t WHERE s = 'name 4'",
    "CHECKPOINT",
    "SELECT count(*), sum(x) FROM t",
];

/// The files of a database by their names. Those of segments begin with `segments/`.
pub(super) type Files = BTreeMap<String, Vec<u8>>;

/// Returns the files of a database of the first generation, and of both.
pub(super) fn images() -> Result<[Files; 2], Error> {
    let engine = Engine::new()?;
    let root: Arc<dyn Volume> = Arc::new(MemoryVolume::new("made"));
    let mut images = Vec::new();
    for statements in GENERATIONS {
        let database = Database::on_volume(Arc::clone(&root), &options("60s", &SMALL))?;
        let session = database.session()?;
        for statement in statements {
            // Functions need a Python installation, which may be missing.
            match engine.run(&session, statement) {
                Err(e) if !statement.contains("python") => return Err(e),
                _ => {}
            }
        }
        drop((session, database));
        images.push(read_all(&*root)?);
    }
    <[Files; 2]>::try_from(images).map_err(|_| Error::new(ErrorKind::Internal, "there are two generations"))
}

fn read_all(root: &dyn Volume) -> Result<Files, Error> {
    let mut all = Files::new();
    let segments = root.folder(SEGMENTS)?;
    for (folder, prefix) in [(root, String::new()), (&*segments, format!("{SEGMENTS}/"))] {
        for name in folder.list()? {
            let file = folder.open(&name)?;
            let mut bytes = vec![0; usize::try_from(file.len()?).unwrap_or(0)];
            file.read_at(0, &mut bytes, &Ledger::default())?;
            all.insert(format!("{prefix}{name}"), bytes);
        }
    }
    Ok(all)
}

/// Returns a directory in memory with these files.
pub(super) fn volume(files: &Files) -> Result<Arc<dyn Volume>, Error> {
    let root: Arc<dyn Volume> = Arc::new(MemoryVolume::new("db"));
    let segments = root.folder(SEGMENTS)?;
    for (name, bytes) in files {
        let file = match name.strip_prefix(SEGMENTS) {
            Some(name) => segments.create(&name[1..])?,
            None => root.create(name)?,
        };
        file.write_at(0, bytes, &Ledger::default())?;
    }
    Ok(root)
}

/// Changes the records of a store.
pub(super) fn with_store(
    bytes: &[u8],
    change: impl FnOnce(&Store) -> onehop_store::Result<()>,
) -> onehop_store::Result<Vec<u8>> {
    let medium = Arc::new(Memory::with_bytes(Granularity::Page, bytes.to_vec()));
    let store = Store::open_on(Arc::clone(&medium) as Arc<_>, &Options::default().cache_bytes(1 << 20))?;
    change(&store)?;
    store.close()?;
    Ok(medium.to_vec())
}

/// Returns the bytes of a database's store.
pub(super) fn store_of(files: &Files) -> &[u8] {
    files.get(STORE).map_or(&[], Vec::as_slice)
}

/// Removes the checksums of segments from the catalog.
fn forget_checksums(files: &mut Files) -> onehop_store::Result<()> {
    let changed = with_store(store_of(files), |store| {
        let transaction = store.write()?;
        {
            let mut tree = transaction.tree(SEGMENTS)?;
            let records: Vec<_> = tree.iter().collect::<Result<_, _>>()?;
            for record in records {
                let text = String::from_utf8_lossy(record.value()).into_owned();
                if let Some((before, rest)) = text.split_once("\"checksum\":")
                    && let Some((_, after)) = rest.split_once(',')
                {
                    tree.insert(record.key(), format!("{before}{after}"))?;
                }
            }
        }
        transaction.commit()
    })?;
    files.insert(STORE.into(), changed);
    Ok(())
}

/// The number of queries per input. The input's number selects them.
const ASKED: usize = 6;

/// Opens a database, runs some of the queries, changes it, and opens it again.
pub(super) fn try_all(engine: &Engine, files: &Files, number: usize) -> Verdict {
    let root = volume(files).map_err(|e| e.to_string())?;
    let database = match Database::on_volume(Arc::clone(&root), &options("5s", &SMALL[..3])) {
        Ok(database) => database,
        Err(e) => return judge::<()>(&Err(e)),
    };
    let session = match database.session() {
        Ok(session) => session,
        Err(e) => return judge::<()>(&Err(e)),
    };
    let asked = QUERIES.iter().cycle().skip(number % QUERIES.len()).take(ASKED);
    let changes = CHANGES.iter().filter(|_| number.is_multiple_of(2));
    let run = |sql: &&str| judge(&engine.run(&session, sql)).map_err(|e| format!("{sql}: {e}"));
    let verdicts: Vec<Verdict> = asked.chain(changes).map(run).collect();
    drop((session, database));
    let again = Database::on_volume(root, &options("5s", &SMALL[..3]));
    together(verdicts.into_iter().chain([judge(&again)]))
}

struct Databases {
    engine: Engine,
    images: [Files; 2],
    folder: tempfile::TempDir,
    runs: u64,
}

pub(super) fn target() -> Made {
    let mut images = images()?;
    for image in &mut images {
        forget_checksums(image).map_err(|e| Error::new(ErrorKind::Internal, e.to_string()))?;
    }
    Ok(Box::new(Databases { engine: Engine::new()?, images, folder: files::folder()?, runs: 0 }))
}

impl Target for Databases {
    fn seeds(&self) -> Vec<Vec<u8>> {
        [(0, 1), (1, 1)].map(|(image, seal)| Damage { image, seal, edits: Vec::new() }.encode()).to_vec()
    }

    fn mutate(&self, mutator: &mut Mutator, input: &[u8], _other: &[u8]) -> Vec<u8> {
        Damage::mutate(mutator, input)
    }

    fn run(&mut self, input: &[u8]) -> Verdict {
        let damage = Damage::decode(input);
        let mut files = damage.pick(&self.images).clone();
        if damage.seal & 2 != 0 && !damage.edits.is_empty() {
            let other = &self.images[1 - usize::from(damage.image) % 2];
            files.insert(STORE.into(), store_of(other).to_vec());
        }
        let names: Vec<String> = files.keys().cloned().collect();
        let named = |number: u32| names[number as usize % names.len()].clone();
        for edit in &damage.edits {
            // Most of the time, all edits of an input change one file.
            let name = named(damage.edits[0].value >> 3);
            let bytes = files.entry(name.clone()).or_default();
            let regions =
                if name == STORE { std::iter::once(0..bytes.len()).collect() } else { segments::regions(bytes) };
            Damage { edits: vec![*edit], ..damage }.apply(bytes, &regions);
            match (damage.seal & 1, name == STORE) {
                (0, _) => {}
                (_, true) => seals::seal_flips(bytes, true),
                (_, false) => segments::seal(bytes),
            }
        }
        if let Some(edit) = damage.edits.first() {
            let (one, two) = (named(edit.at), named(edit.value));
            if damage.seal & 12 == 4 {
                let (a, b) =
                    (files.get(&one).cloned().unwrap_or_default(), files.get(&two).cloned().unwrap_or_default());
                files.extend([(one, b), (two, a)]);
            } else if damage.seal & 12 == 8 {
                files.remove(&one);
            }
        }
        self.runs += 1;
        let tried = try_all(&self.engine, &files, damage.number());
        // The file system is slow, so only one of four inputs goes to disk.
        match self.runs % 4 {
            1 => together([tried, self.on_disk(&files)]),
            _ => tried,
        }
    }
}

impl Databases {
    /// Checks and repairs the database in a directory.
    fn on_disk(&self, files: &Files) -> Verdict {
        let path = self.folder.path().join("db");
        let _ = std::fs::remove_dir_all(&path);
        let written = (|| {
            std::fs::create_dir_all(path.join(SEGMENTS))?;
            files.iter().try_for_each(|(name, bytes)| std::fs::write(path.join(name), bytes))
        })();
        written.map_err(|e| format!("cannot write {}: {e}", path.display()))?;
        let checked = check::check(&path, &mut |_, _| {});
        let found = checked.as_ref().map(|report| {
            let kinds = report.problems.iter().map(|problem| problem.error.kind());
            (kinds.filter(|kind| *kind == ErrorKind::Internal).count(), report.problems.len())
        });
        let checked = match found {
            Ok((0, 0)) => Ok(Outcome::Accepted),
            Ok((0, _)) => Ok(Outcome::Refused),
            Ok(_) => Err(format!("internal: {:?}", checked.map(|report| report.problems))),
            Err(_) => judge(&checked),
        };
        let options = DatabaseOptions::default();
        let surveyed = judge(&repair::survey(&path, &options));
        let repaired = judge(&repair::repair(&path, &options));
        let again = judge(&check::check(&path, &mut |_, _| {}));
        together([checked, surveyed, repaired, again])
    }
}
