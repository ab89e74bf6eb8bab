//! Records of the catalog, fresh rows and deleted rows: changed values within a valid store.
//!
//! An edit selects a tree by its region and a record by its place. It changes bytes, replaces
//! numbers and strings of JSON, removes or duplicates the record, or gives it the value of another.

use onehop_store::Store;

use super::damage::{Damage, Edit};
use super::databases::{self, Files, store_of, try_all, with_store};
use super::engine::Engine;
use super::mutator::EDGES;
use super::{Made, Mutator, Target, Verdict};

struct Records {
    engine: Engine,
    images: [Files; 2],
}

pub(super) fn target() -> Made {
    Ok(Box::new(Records { engine: Engine::new()?, images: databases::images()? }))
}

impl Target for Records {
    fn seeds(&self) -> Vec<Vec<u8>> {
        [0, 1].map(|image| Damage { image, seal: 0, edits: Vec::new() }.encode()).to_vec()
    }

    fn mutate(&self, mutator: &mut Mutator, input: &[u8], _other: &[u8]) -> Vec<u8> {
        Damage::mutate(mutator, input)
    }

    fn run(&mut self, input: &[u8]) -> Verdict {
        let damage = Damage::decode(input);
        let mut files = damage.pick(&self.images).clone();
        let change = |store: &Store| damage.edits.iter().try_for_each(|edit| change(store, *edit, damage.seal));
        let store = with_store(store_of(&files), change).map_err(|e| format!("the store refuses a record: {e}"))?;
        files.insert("store".into(), store);
        try_all(&self.engine, &files, damage.number())
    }
}

fn change(store: &Store, edit: Edit, seal: u8) -> onehop_store::Result<()> {
    let transaction = store.write()?;
    let trees = transaction.trees()?;
    let name = &trees[usize::from(edit.region) % trees.len().max(1)];
    {
        let mut tree = transaction.tree(name)?;
        let records: Vec<_> = tree.iter().collect::<Result<_, _>>()?;
        if records.is_empty() {
            tree.insert(edit.at.to_le_bytes(), edit.value.to_le_bytes())?;
            return Ok(());
        }
        let number = (edit.at >> 16) as usize % records.len();
        let (key, mut value) = (records[number].key().to_vec(), records[number].value().to_vec());
        let other = records[edit.value as usize % records.len()].value().to_vec();
        match (seal % 16, value.get(1)) {
            (0, _) => _ = tree.remove(&key)?,
            (1, _) => _ = tree.insert(&key, other)?,
            (2, _) => {
                let mut key = key;
                Damage { image: 0, seal: 0, edits: vec![edit] }.apply(&mut key, &[]);
                tree.insert(key, value)?;
            }
            (3..10, Some(b'{')) => {
                tree.insert(key, damaged_json(&value, edit))?;
            }
            _ => {
                let edit = Edit { at: edit.at & 0xFFFF, ..edit };
                Damage { image: 0, seal: 0, edits: vec![edit] }.apply(&mut value, &[]);
                tree.insert(key, value)?;
            }
        }
    }
    transaction.commit()
}

/// Returns JSON with another number or another string in it.
fn damaged_json(value: &[u8], edit: Edit) -> Vec<u8> {
    let text = String::from_utf8_lossy(value);
    let is_part = |c: char| c.is_ascii_alphanumeric() || "-._ ()[]".contains(c);
    let mut parts: Vec<String> = Vec::new();
    for c in text.chars() {
        match parts.last_mut().filter(|part| is_part(c) && part.chars().all(is_part)) {
            Some(part) => part.push(c),
            None => parts.push(c.to_string()),
        }
    }
    let words: Vec<usize> = (0..parts.len()).filter(|at| parts[*at].chars().all(is_part)).collect();
    if words.is_empty() {
        return value.to_vec();
    }
    let at = words[edit.at as usize % words.len()];
    let other = &parts[words[(edit.value >> 8) as usize % words.len()]];
    let edge = EDGES[(edit.value >> 4) as usize % EDGES.len()];
    const TYPES: [&str; 8] =
        ["VARCHAR", "DECIMAL(38,38)", "BOOLEAN", "TIMESTAMP(9)", "BIGINT[]", "DECIMAL(0,0)", "INTERVAL", ""];
    parts[at] = match edit.operation % 8 {
        0 | 1 => edge.to_string(),
        2 => other.clone(),
        3 => "null".into(),
        4 => TYPES[edit.value as usize % TYPES.len()].into(),
        5 => format!("-{edge}"),
        6 => parts[at].repeat(2),
        _ => String::new(),
    };
    parts.concat().into_bytes()
}
