//! The arguments of `onehop bench logreg`.

use std::path::PathBuf;

use clap::ValueEnum;
use onehop_lab::bench::logreg::data::Labels;
use onehop_lab::bench::logreg::{Device, Point, Source};

use super::report::ReportArgs;
use super::thread_count;

/// The examples of the help text.
pub const EXAMPLES: &str = "\
Examples:
  onehop bench logreg                                40,000,000 rows of 4 features, as a table in memory
  onehop bench logreg --rows 1000000 --runs 9 --json logreg.json
  onehop bench logreg --source arrow --threads 2     rows that a program has in memory
  onehop bench logreg --db /data/logreg.onehop       a table on storage; it stays there
  onehop bench logreg --device cpu,cuda:0            passes by the CPU, and by a GPU over what is in its memory

Labels are noisy, of a known logistic model that must be found again, and separable, of which no best model exists, which must
be said. 40,000,000 rows take 4 GB of memory, and 8 GB with both kinds of labels.";

/// `onehop bench logreg`.
#[derive(Debug, clap::Args)]
pub struct LogregArgs {
    /// Rows
    #[arg(long, value_name = "N", default_value_t = 40_000_000, value_parser = clap::value_parser!(u64).range(1000..=1_000_000_000))]
    pub rows: u64,
    /// The kind of labels
    #[arg(long, value_name = "LIST", value_delimiter = ',', default_value = "noisy,separable")]
    pub labels: Vec<LabelsArg>,
    /// The device that makes the passes: cpu, or cuda:0, with the table in its memory
    #[arg(long, value_name = "LIST", value_delimiter = ',', default_value = "cpu")]
    pub device: Vec<Device>,
    /// The source of the rows: a table, or Arrow arrays
    #[arg(long, value_name = "WHERE", default_value = "table")]
    pub source: SourceArg,
    /// Database directory for the tables; in memory without it
    #[arg(long, value_name = "DIR")]
    pub db: Option<PathBuf>,
    /// Measured runs
    #[arg(long, value_name = "N", default_value_t = 5, value_parser = clap::value_parser!(u64).range(1..=1000))]
    pub runs: u64,
    /// Threads; one per core without it
    #[arg(long, value_name = "N", value_parser = thread_count)]
    pub threads: Option<usize>,
    #[command(flatten)]
    pub reports: ReportArgs,
}

/// A value of `--labels`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum LabelsArg {
    Noisy,
    Separable,
}

/// A value of `--source`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum SourceArg {
    Table,
    Arrow,
}

impl LogregArgs {
    /// Returns the labels, each once.
    pub fn labels(&self) -> Vec<Labels> {
        let all = [(LabelsArg::Noisy, Labels::Noisy), (LabelsArg::Separable, Labels::Separable)];
        all.iter().filter(|(arg, _)| self.labels.contains(arg)).map(|(_, labels)| *labels).collect()
    }

    /// Returns the points to measure, in order.
    pub fn points(&self) -> Vec<Point> {
        let of = |labels: Labels| self.device.iter().map(move |device| Point { labels, device: *device });
        self.labels().into_iter().flat_map(of).collect()
    }

    /// Returns the source of the rows.
    pub fn source(&self) -> Source {
        match self.source {
            SourceArg::Table => Source::Table,
            SourceArg::Arrow => Source::Arrow,
        }
    }
}
