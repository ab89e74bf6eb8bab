//! The arguments of `onehop bench commit`.

use std::path::PathBuf;
use std::time::Duration;

use onehop_lab::bench::commit::drive::{Data, Point};
use onehop_lab::osp::random::{Distribution, Order};
use onehop_store::MediumKind;

use super::io::{parallel, positive_time, size, time};
use super::report::ReportArgs;

/// The examples of the help text.
pub const EXAMPLES: &str = "\
Examples:
  onehop bench commit /data                                 1, 10, 100 keys; uniform and Zipf; 1 and 8 threads
  onehop bench commit /data --tx-keys 1 --threads 1,2,4,8,16 --json commit.json
  onehop bench commit /data --keys 10000000 --recover 1000000,10000000
  onehop bench commit /dev/shm --runtime 1s                 memory: what the store itself takes
  onehop bench commit /dev/shm --medium pmem --tx-keys 1    mapped memory: lines flushed, fences

All keys are there beforehand, and transactions replace values: a steady state. A commit returns when it is durable. A store
is made under PATH, and removed when it is done.";

/// `onehop bench commit`.
#[derive(Debug, clap::Args)]
pub struct CommitArgs {
    /// The folder for the store, on the storage to be measured
    pub path: PathBuf,
    /// The medium of the store: file (an fdatasync a commit), pmem (mapped memory, lines that are
    /// flushed; persistent only if the file system is, which the report says)
    #[arg(long, value_name = "LIST", value_delimiter = ',', default_value = "file", value_parser = medium)]
    pub medium: Vec<MediumKind>,
    /// The number of keys in the store
    #[arg(long, value_name = "N", default_value_t = 100_000, value_parser = keys)]
    pub keys: u64,
    /// Bytes of a value; keys have 8
    #[arg(long, value_name = "SIZE", default_value = "100", value_parser = value_bytes)]
    pub value: usize,
    /// The number of keys of a transaction
    #[arg(long, value_name = "LIST", value_delimiter = ',', default_value = "1,10,100", value_parser = transaction_keys)]
    pub tx_keys: Vec<u64>,
    /// The distribution of keys: uniform (all alike), zipf (some far more often; scattered)
    #[arg(long, value_name = "LIST", value_delimiter = ',', default_value = "uniform,zipf", value_parser = distribution)]
    pub keys_by: Vec<Distribution>,
    /// The number of threads that commit
    #[arg(long, value_name = "LIST", value_delimiter = ',', default_value = "1,8", value_parser = parallel)]
    pub threads: Vec<usize>,
    /// The measured time of each point: 500ms, 3s, 2min
    #[arg(long, value_name = "TIME", default_value = "3s", value_parser = positive_time)]
    pub runtime: Duration,
    /// The warm-up time of each point
    #[arg(long, value_name = "TIME", default_value = "1s", value_parser = time)]
    pub ramp: Duration,
    /// The numbers of keys of stores that are opened as a crash has left them; 0 for none
    #[arg(long, value_name = "LIST", value_delimiter = ',', default_value = "10000,100000,1000000")]
    pub recover: Vec<u64>,
    /// Sessions that insert rows by SQL, one at a time, beside as many threads that put them into a
    /// bare store; 0 for none
    #[arg(long, value_name = "LIST", value_delimiter = ',', default_value = "1,8")]
    pub inserts: Vec<usize>,
    /// The seed of everything random
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub seed: u64,
    /// Keep the store
    #[arg(long)]
    pub keep: bool,
    #[command(flatten)]
    pub reports: ReportArgs,
}

impl CommitArgs {
    /// Returns the contents of the store.
    pub fn data(&self) -> Data {
        Data { keys: self.keys, value_bytes: self.value, seed: self.seed }
    }

    /// Returns the points to measure, in order.
    pub fn points(&self) -> Vec<Point> {
        let mut points = Vec::new();
        for transaction_keys in &self.tx_keys {
            for keys in &self.keys_by {
                let point =
                    |threads: &usize| Point { transaction_keys: *transaction_keys, keys: *keys, threads: *threads };
                points.extend(self.threads.iter().map(point));
            }
        }
        points
    }
}

fn keys(text: &str) -> Result<u64, String> {
    text.parse().ok().filter(|n| (100..=1 << 32).contains(n)).ok_or_else(|| "a whole number from 100".into())
}

fn transaction_keys(text: &str) -> Result<u64, String> {
    text.parse().ok().filter(|n| (1..=100_000).contains(n)).ok_or_else(|| "a whole number from 1 to 100000".into())
}

fn value_bytes(text: &str) -> Result<usize, String> {
    let bytes = Some(size(text, "100 or 4KiB")?).filter(|bytes| (1..=1 << 20).contains(bytes));
    bytes.and_then(|bytes| usize::try_from(bytes).ok()).ok_or_else(|| "a size from 1 byte to 1 MiB".into())
}

fn medium(text: &str) -> Result<MediumKind, String> {
    match text {
        "file" => Ok(MediumKind::File),
        "pmem" => Ok(MediumKind::Pmem),
        _ => Err("there are file and pmem".into()),
    }
}

fn distribution(text: &str) -> Result<Distribution, String> {
    match text {
        "uniform" => Ok(Distribution::Uniform),
        "zipf" => Ok(Distribution::Zipf { exponent: 0.99, order: Order::Scrambled }),
        _ => Err("there are uniform and zipf".into()),
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use clap::{Args, FromArgMatches};

    use super::*;

    #[test]
    fn points_are_all_that_the_words_say() {
        let words = ["commit", "/data", "--tx-keys", "1,10", "--threads", "1,2,4"];
        let matches = CommitArgs::augment_args(clap::Command::new("commit")).get_matches_from(words);
        let args = CommitArgs::from_arg_matches(&matches).unwrap();
        assert_eq!(args.points().len(), 2 * 2 * 3);
        assert_eq!(args.data(), Data { keys: 100_000, value_bytes: 100, seed: 1 });
        assert!(distribution("zip").is_err() && keys("99").is_err() && transaction_keys("0").is_err());
        assert_eq!(args.medium, [MediumKind::File]);
        assert!(medium("persistent").is_err() && medium("pmem") == Ok(MediumKind::Pmem));
        assert!(value_bytes("0").is_err() && value_bytes("2MiB").is_err() && value_bytes("4KiB") == Ok(4096));
    }
}
