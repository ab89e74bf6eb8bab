//! Foreign files: read by their extension, copied into a table of every type, and named by invalid
//! paths.

use std::fs;

use onehop_engine::{Database, Error, ErrorKind, Session};

use super::engine::{Engine, options};
use super::{Made, Outcome, Target, Verdict, judge, together};

/// A table with a column of each type that a field can be converted to.
const TABLE: &str = "CREATE TABLE c (b BOOLEAN, i SMALLINT, j INT, k BIGINT, u BIGINT UNSIGNED, f REAL, x DOUBLE, \
    n DECIMAL(10,2), m DECIMAL(38,10), s VARCHAR, d DATE, t TIMESTAMP, z TIMESTAMPTZ)";
/// Rows of the table, as separated text.
const ROWS: [&str; 4] = [
    "true,1,-2,3,4,1.5,2.5e10,12.50,1234567890.0123456789,text,2024-02-29,2024-02-29 12:34:56.789,2024-02-29 12:00:00+01",
    "f,-32768,2147483647,-9223372036854775808,18446744073709551615,-0,inf,-99999999.99,0,\"a \"\"b\"\", c\",0001-01-01,1677-09-21 00:12:44,1970-01-01T00:00:00Z",
    ",,,,,,,,,,,,",
    "1,0,+7,0007,0,NaN,-1e-300,.5,-.0000000001,'x',9999-12-31,9999-12-31 23:59:59.999999,now",
];

/// A session, and a folder with the input in it.
struct Place {
    engine: Engine,
    session: Session,
    folder: tempfile::TempDir,
}

impl Place {
    fn new() -> Result<Self, Error> {
        let engine = Engine::new()?;
        let session = Database::memory(&options("20s", &[]))?.session()?;
        Ok(Self { engine, session, folder: folder()? })
    }

    fn write(&self, extension: &str, input: &[u8]) -> Result<String, String> {
        let path = self.folder.path().join(format!("input.{extension}"));
        fs::write(&path, input).map_err(|e| format!("cannot write {}: {e}", path.display()))?;
        Ok(path.display().to_string())
    }
}

pub(super) fn folder() -> Result<tempfile::TempDir, Error> {
    tempfile::tempdir().map_err(|e| Error::new(ErrorKind::Io, e.to_string()))
}

/// `SELECT * FROM 'input.EXTENSION'`.
struct Queried(Place, &'static str);

pub(super) fn queried(extension: &'static str) -> Made {
    Ok(Box::new(Queried(Place::new()?, extension)))
}

impl Target for Queried {
    fn run(&mut self, input: &[u8]) -> Verdict {
        let Self(place, extension) = self;
        let path = place.write(extension, input)?;
        judge(&place.engine.run(&place.session, &format!("SELECT * FROM '{path}'")))
    }
}

/// `COPY c FROM 'input.EXTENSION'`.
struct Copied(Place, &'static str);

pub(super) fn copied(extension: &'static str) -> Made {
    let place = Place::new()?;
    place.engine.run(&place.session, TABLE)?;
    Ok(Box::new(Copied(place, extension)))
}

impl Target for Copied {
    fn seeds(&self) -> Vec<Vec<u8>> {
        let columns = "b,i,j,k,u,f,x,n,m,s,d,t,z";
        match self.1 {
            "csv" => vec![
                format!("{columns}\n{}\n", ROWS[..3].join("\n")).into_bytes(),
                format!("{columns}\n{}\n", ROWS[0]).into_bytes(),
                format!("{columns}\n{}\n", ROWS[3]).into_bytes(),
            ],
            "tbl" => vec![
                format!("{}|\n", ROWS[0].replace(',', "|")).into_bytes(),
                format!("{0}|\n{1}|\n", ROWS[3].replace(',', "|"), ROWS[0].replace(',', "|")).into_bytes(),
            ],
            _ => vec![
                br#"{"b": true, "i": 1, "j": -2, "k": 3, "u": 4, "f": 1.5, "x": 2.5e10, "n": 12.5, "m": "0.1", "s": "t", "d": "2024-02-29", "t": "2024-02-29 12:34:56", "z": "2024-02-29T12:00:00+01:00"}"#.to_vec(),
                br#"[{"b": null, "s": {"deep": [1, 2, {"x": "y"}]}}, {"k": 1e18, "n": -0.01, "u": 18446744073709551615, "s": "\ud83e\udd80"}]"#.to_vec(),
            ],
        }
    }

    fn run(&mut self, input: &[u8]) -> Verdict {
        let Self(place, extension) = self;
        let path = place.write(extension, input)?;
        let run = |sql: &str| place.engine.run(&place.session, sql);
        let begun = judge(&run("BEGIN"));
        let copied = judge(&run(&format!("COPY c FROM '{path}'")));
        // After an error the transaction refuses everything except its end.
        let read = judge(&run("SELECT count(b), sum(k), max(m), min(t), max(z) FROM c"));
        let ended = judge(&run("ROLLBACK"));
        together([begun, copied, read, ended])
    }
}

/// The input is a path or a glob, looked up in a folder of three fixed files. The target writes no
/// file for it.
struct Paths(Place);

pub(super) fn paths() -> Made {
    let place = Place::new()?;
    for name in ["a.csv", "b [1].csv", "ü.csv"] {
        fs::write(place.folder.path().join(name), "x\n1\n").map_err(|e| Error::new(ErrorKind::Io, e.to_string()))?;
    }
    Ok(Box::new(Paths(place)))
}

impl Target for Paths {
    fn seeds(&self) -> Vec<Vec<u8>> {
        let seeds = [
            "a.csv",
            "*.csv",
            "**/[a-b]*.c?v",
            "{a,b [[]1]}.csv",
            "./a.csv",
            "../*/a.csv",
            "y=*/m=1/*.parquet",
            "b [1].csv",
            "~/a.csv",
            "file:///a.csv",
            "http://127.0.0.1:1/a.csv",
            "s3://bucket/a/*.parquet",
            "rados://pool/dir/a.csv",
            "ü*.csv",
            "a.csv.gz",
        ];
        seeds.into_iter().map(|seed| seed.as_bytes().to_vec()).collect()
    }

    fn run(&mut self, input: &[u8]) -> Verdict {
        let Self(place) = self;
        let text = String::from_utf8_lossy(input).replace('\'', "''");
        // A path that leaves the folder is used as it is, except below /dev, /proc and /sys.
        let path = match text.contains("..") || text.starts_with(['/', '~']) || text.contains("://") {
            true => text,
            false => format!("{}/{text}", place.folder.path().display()),
        };
        if path.starts_with("/dev") || path.starts_with("/proc") || path.starts_with("/sys") || path.starts_with("/*") {
            return Ok(Outcome::Refused);
        }
        judge(&place.engine.run(&place.session, &format!("SELECT * FROM '{path}'")))
    }
}
