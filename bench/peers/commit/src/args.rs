//! The command line: words with a value each.

use std::path::PathBuf;
use std::time::Duration;

use crate::drive::{Failure, Point};
use crate::engine::NAMES;
use crate::osp::random::{Distribution, Order};

const HELP: &str = "\
commit-peers: commits of Onehop's store beside those of redb, LMDB and SQLite

  --folder DIR      where the stores are made; on the file system to be measured [commit-peers-data]
  --engines LIST    onehop,redb,lmdb,sqlite
  --keys N          keys that are there before [100000]
  --value N         bytes of a value [100]
  --tx-keys LIST    keys of a transaction [1,10,100]
  --keys-by LIST    uniform, zipf (0.99, scrambled) [uniform,zipf]
  --threads LIST    [1,8]
  --seconds N       measured time of each engine at each point in each round [3]
  --warm-up N       seconds before that, unmeasured [1]
  --rounds N        [3]
  --seed N          [1]
  --json FILE";

/// What was typed.
#[derive(Clone, Debug)]
pub struct Args {
    pub folder: PathBuf,
    pub engines: Vec<String>,
    pub keys: u64,
    pub value_bytes: usize,
    pub points: Vec<Point>,
    pub runtime: Duration,
    pub warm_up: Duration,
    pub rounds: u32,
    pub seed: u64,
    pub json: Option<PathBuf>,
    /// The engine, in a child.
    pub child: Option<String>,
    /// Which run of all, in a child, from 1; 0 fills the store.
    pub round: u32,
}

impl Args {
    /// Reads the command line.
    pub fn parse() -> Result<Self, Failure> {
        let words: Vec<String> = std::env::args().skip(1).collect();
        if words.iter().any(|word| word == "--help" || word == "-h") {
            println!("{HELP}");
            std::process::exit(0);
        }
        let mut args = Self {
            folder: "commit-peers-data".into(),
            engines: NAMES.map(String::from).into(),
            keys: 100_000,
            value_bytes: 100,
            points: Vec::new(),
            runtime: Duration::from_secs(3),
            warm_up: Duration::from_secs(1),
            rounds: 3,
            seed: 1,
            json: None,
            child: None,
            round: 0,
        };
        let (mut tx_keys, mut threads) = (vec![1, 10, 100], vec![1, 8]);
        let mut keys_by: Vec<String> = vec!["uniform".into(), "zipf".into()];
        for pair in words.chunks(2) {
            let [word, value] = pair else { return Err(format!("{} has no value\n\n{HELP}", pair[0]).into()) };
            match word.as_str() {
                "--folder" => args.folder = value.into(),
                "--engines" => args.engines = list(value)?,
                "--keys" => args.keys = value.parse()?,
                "--value" => args.value_bytes = value.parse()?,
                "--tx-keys" => tx_keys = list(value)?,
                "--keys-by" => keys_by = list(value)?,
                "--threads" => threads = list(value)?,
                "--seconds" => args.runtime = Duration::try_from_secs_f64(value.parse()?)?,
                "--warm-up" => args.warm_up = Duration::try_from_secs_f64(value.parse()?)?,
                "--rounds" => args.rounds = value.parse()?,
                "--seed" => args.seed = value.parse()?,
                "--json" => args.json = Some(value.into()),
                "--child" => args.child = Some(value.clone()),
                "--round" => args.round = value.parse()?,
                other => return Err(format!("{other} means nothing\n\n{HELP}").into()),
            }
        }
        for transaction_keys in tx_keys {
            if transaction_keys == 0 || transaction_keys * 10 > args.keys {
                return Err("a transaction has from 1 to a tenth of all keys".into());
            }
            for name in &keys_by {
                let keys = distribution(name)?;
                args.points.extend(threads.iter().map(|threads| Point { transaction_keys, keys, threads: *threads }));
            }
        }
        Ok(args)
    }

    /// The words for a child at one point.
    pub fn for_child(&self, name: &str, round: u32, point: Option<&Point>) -> Vec<String> {
        let mut pairs = vec![
            ("--child", name.to_string()),
            ("--round", round.to_string()),
            ("--folder", self.folder.display().to_string()),
            ("--keys", self.keys.to_string()),
            ("--value", self.value_bytes.to_string()),
            ("--seconds", self.runtime.as_secs_f64().to_string()),
            ("--warm-up", self.warm_up.as_secs_f64().to_string()),
            ("--seed", self.seed.to_string()),
        ];
        if let Some(point) = point {
            pairs.push(("--tx-keys", point.transaction_keys.to_string()));
            pairs.push(("--keys-by", name_of(&point.keys).into()));
            pairs.push(("--threads", point.threads.to_string()));
        }
        pairs.into_iter().flat_map(|(word, value)| [word.to_string(), value]).collect()
    }
}

/// A distribution's name.
pub fn name_of(keys: &Distribution) -> &'static str {
    if *keys == Distribution::Uniform { "uniform" } else { "zipf" }
}

fn distribution(name: &str) -> Result<Distribution, Failure> {
    match name {
        "uniform" => Ok(Distribution::Uniform),
        "zipf" => Ok(Distribution::Zipf { exponent: 0.99, order: Order::Scrambled }),
        other => Err(format!("{other}: there are uniform and zipf").into()),
    }
}

fn list<T: std::str::FromStr>(text: &str) -> Result<Vec<T>, Failure>
where
    T::Err: std::error::Error + Send + Sync + 'static,
{
    text.split(',').map(|word| Ok(word.parse()?)).collect()
}
