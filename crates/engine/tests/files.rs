//! Other people's files: which ones a path means, what is said about those that are wrong, and what COPY TO leaves.
//!
//! Model: a directory of small files per test, each wrong in one way or named in one way; and one large file whose
//! values have line ends, read by several threads. An error names the file, and in text the line as an editor counts
//! it. A target is what the statement wrote, or what was there before, and nothing else is left in its directory.

#![allow(clippy::unwrap_used)]

mod support;

use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::Path;

use arrow::array::{ArrayRef, Float32Array, Float64Array, Int64Array, RecordBatch};
use onehop_engine::{Database, DatabaseOptions, Error, ErrorKind, Session};
use support::{eventually, fails, rows, rows_as_they_come, run, runtime, tiny};
use tempfile::TempDir;
use tokio::runtime::Runtime;

struct Place {
    runtime: Runtime,
    session: Session,
    dir: TempDir,
}

impl Place {
    fn new() -> Self {
        Self::with(&tiny())
    }

    fn with(options: &DatabaseOptions) -> Self {
        let runtime = runtime();
        let session = Database::memory(options).unwrap().session().unwrap();
        let place = Self { runtime, session, dir: tempfile::tempdir().unwrap() };
        place.run("CREATE TABLE t AS SELECT unnest(range(0, 20)) AS x");
        place
    }

    fn at(&self, name: &str) -> String {
        self.dir.path().join(name).display().to_string()
    }

    fn write(&self, name: &str, bytes: impl AsRef<[u8]>) -> String {
        let path = self.at(name);
        fs::create_dir_all(Path::new(&path).parent().unwrap()).unwrap();
        fs::write(&path, bytes).unwrap();
        path
    }

    /// `sql` with `@` for the directory.
    fn sql(&self, sql: &str) -> String {
        sql.replace('@', &format!("{}/", self.dir.path().display()))
    }

    fn rows_as_they_come(&self, sql: &str) -> Vec<String> {
        self.runtime.block_on(rows_as_they_come(&self.session, &self.sql(sql))).unwrap()
    }

    fn run(&self, sql: &str) -> Vec<String> {
        self.runtime.block_on(run(&self.session, &self.sql(sql)))
    }

    fn fails(&self, sql: &str) -> Error {
        self.runtime.block_on(fails(&self.session, &self.sql(sql)))
    }

    /// An error with these words, in the message or in the hint.
    fn says(&self, sql: &str, kind: ErrorKind, words: &[&str]) {
        let e = self.fails(sql);
        assert_eq!(e.kind(), kind, "{sql}: {e}");
        for word in words {
            assert!(e.to_string().contains(word), "{sql}: no {word:?} in: {e}");
        }
        let text = e.to_string().to_lowercase();
        assert!(!text.contains("datafusion") && !text.contains("report") && !text.contains("internal"), "{sql}: {e}");
    }

    /// Names in the directory.
    fn names(&self) -> Vec<String> {
        let mut names: Vec<String> = fs::read_dir(self.dir.path())
            .unwrap()
            .map(|entry| entry.unwrap().file_name().to_string_lossy().into_owned())
            .collect();
        names.sort();
        names
    }
}

// --- Text --------------------------------------------------------------------------------------------------------

#[test]
fn errors_in_text_name_file_line_column_and_value() {
    let place = Place::new();
    place.run("CREATE TABLE c (id BIGINT NOT NULL, name VARCHAR, day DATE)");
    let cases: [(&[u8], &[&str]); 18] = [
        (b"1,a,2024-01-01\nthree,b,2024-01-02\n", &["line 2, column \"id\": cannot read \"three\" as BIGINT"]),
        (
            b"id,name,day\n1,a,2024-01-01\n2,b,2023-02-29\n",
            &["line 3, column \"day\"", "\"2023-02-29\" is out of range for DATE"],
        ),
        (b"id,name,day\r\n\r\n1,a,2024-01-01\r\nx,b,\r\n", &["line 4, column \"id\"", "\"x\""]),
        (b"1,\"a\nb\nc\",2024-01-01\nx,b,\n", &["line 4, column \"id\""]),
        (b"1,\"a\nb\nc\",yesterday\n", &["line 1, column \"day\"", "\"yesterday\""]),
        (b"1,a\n", &["line 1: 2 fields, and 3 are expected"]),
        (b"1,a,\n2,b\n", &["line 2: 2 fields"]),
        (b"1,a,\n2,b,2024-01-01,more\n", &["line 2: 4 fields"]),
        (b"1,a,\n2,\"b,2024-01-01\n3,c,\n", &["line 2: a quote is opened and never closed"]),
        (b"1,a,\n2,\xff\xfe,\n", &["line 2, column \"name\": the text is not UTF-8", "ENCODING 'LATIN1'"]),
        (b"\xff\xfe1\0,\0a\0\n\0", &["UTF-16"]),
        (b"99999999999999999999,a,\n", &["line 1, column \"id\"", "\"99999999999999999999\""]),
        (b"key,label,date\n1,a,\n", &["line 1, column \"id\": cannot read \"key\"", "(HEADER true)"]),
        (b"1,a,2024-01-01\n\0\0\0\0\n", &["line 2: 1 field"]),
        (b"1,a,,\n2,b,,more\n", &["line 2: \"more\" follows the delimiter that ends the first line"]),
        (b"1,a,,\n2,b,2024-01-01\n", &["line 2: no delimiter at the end"]),
        (b"1,a,,\n2,b,,,\n", &["line 2: 4 fields, and 3 are expected"]),
        (b"id,name,day,more\n1,a,,x\n", &["has the columns id, name, day, more", "INSERT INTO c SELECT"]),
    ];
    for (bytes, words) in cases {
        let path = place.write("bad.csv", bytes);
        let e = place.fails("COPY c FROM '@bad.csv'");
        assert!(matches!(e.kind(), ErrorKind::Data | ErrorKind::Invalid), "{:?} {e}", e.kind());
        for word in words.iter().chain([&path.as_str()]) {
            assert!(e.to_string().contains(word), "{}: no {word:?} in: {e}", String::from_utf8_lossy(bytes));
        }
        assert_eq!(place.run("SELECT count(*) FROM c"), ["0"]);
    }
    // Found by the first rows, too, when types are guessed.
    place.write("bad.csv", "a,b\n1,2\n1,2,3\n");
    place.says("SELECT * FROM '@bad.csv'", ErrorKind::Data, &["bad.csv' line 3: 3 fields, and 2 are expected"]);
    place.write("bad.csv", "a,b\n1,\"2\n");
    place.says("SELECT * FROM '@bad.csv'", ErrorKind::Data, &["bad.csv' line 2: a quote is opened"]);
    let late: String = "n\n".to_string() + &"1\n".repeat(5000) + "x\n";
    place.write("late.csv", late);
    assert_eq!(place.run("SELECT max(n) FROM '@late.csv'"), ["x"]);
    place.says(
        "SELECT sum(n) FROM read_csv('@late.csv', sample_size = 100)",
        ErrorKind::Data,
        &["late.csv' line 5002, column \"n\"", "sample_size = -1"],
    );
    // Only what is read can be wrong.
    assert_eq!(place.run("SELECT count(*) FROM '@late.csv'"), ["5001"]);
}

#[test]
fn values_with_line_ends_are_whole_in_large_files_read_by_many() {
    let mut options = tiny();
    options.settings[0].1 = "4".into();
    options.settings[2].1 = "100000".into();
    let place = Place::with(&options);
    // Larger than what is read at a time, with a quoted line end in every record, and a lone quote in plain text.
    let record = |i: u64| format!("{i},\"line one of {i}\nline, \"\"two\"\" of {i}\r\n\",5\" pipe\n");
    let mut text = String::from("id,note,size\n");
    let count = 300_000;
    (0..count).for_each(|i| text.push_str(&record(i)));
    place.write("large.csv", &text);
    assert!(text.len() > 10 << 20);
    let sums = format!("{count}|{}|{count}", count * (count - 1) / 2);
    let query = "count(*), sum(id), count(CASE WHEN note = 'line one of ' || id || chr(10) || 'line, \"two\" of ' || id \
                 || chr(13) || chr(10) AND size = '5\" pipe' THEN 1 END)";
    assert_eq!(place.run(&format!("SELECT {query} FROM '@large.csv'")), [sums.as_str()]);
    place.run("CREATE TABLE l (id BIGINT, note VARCHAR, size VARCHAR)");
    place.run("COPY l FROM '@large.csv'");
    assert_eq!(place.run(&format!("SELECT {query} FROM l")), [sums.as_str()]);
    // Rows come in the file's order.
    assert_eq!(place.run("SELECT min(id), max(id) FROM (SELECT id FROM '@large.csv' LIMIT 7)"), ["0|6"]);
    // Three lines a record, and the header.
    text.push_str("oops,x,y\n");
    place.write("large.csv", &text);
    let words = format!("large.csv' line {}, column \"id\": cannot read \"oops\"", 2 + count * 3);
    place.says("COPY l FROM '@large.csv'", ErrorKind::Data, &[&words]);
    assert_eq!(place.run("SELECT count(*) FROM l"), [count.to_string()]);
}

#[test]
fn odd_text_is_read_as_it_is_meant() {
    let place = Place::new();
    place.write("mark.csv", b"\xef\xbb\xbfa,b\n1,2\n");
    assert_eq!(place.run("SELECT a, b FROM '@mark.csv'"), ["1|2"]);
    place.write("names.csv", "a,a,,\" b \"\n1,2,3,4\n");
    assert_eq!(place.run("SELECT a, a_1, column2, b FROM '@names.csv'"), ["1|2|3|4"]);
    place.write("header.csv", "a,b");
    assert_eq!(place.run("SELECT a, b FROM '@header.csv'"), Vec::<String>::new());
    place.run("CREATE OR REPLACE TABLE h AS SELECT * FROM '@header.csv'");
    // A column without a value in the first rows has values all the same.
    place.write("sparse.csv", "n,s\n".to_string() + &"1,\n".repeat(2000) + "2,late\n");
    assert_eq!(place.run("SELECT s FROM '@sparse.csv' WHERE s IS NOT NULL"), ["late"]);
    place.run("COPY t TO '@packed.csv' (COMPRESSION zstd)");
    place.says("SELECT * FROM '@packed.csv'", ErrorKind::Data, &["packed.csv' is compressed by zstd", "ends in .zst"]);
    place.write("wide.csv", "a,b\n1.5,x\ninf,y\n-inf,z\n1e400,w\n");
    // It is no DOUBLE, and so the column is text.
    assert_eq!(place.run("SELECT a FROM '@wide.csv'"), ["-inf", "1.5", "1e400", "inf"]);
    assert_eq!(place.run("SELECT b FROM '@wide.csv'").len(), 4);
    place.write("array.json", "\n[{\"a\": 1},\n {\"a\": 2}]\n");
    assert_eq!(place.run("SELECT sum(a) FROM '@array.json'"), ["3"]);
    place.write("late.json", "{\"a\": null}\n".repeat(2000) + "{\"a\": \"x\"}\n");
    assert_eq!(place.run("SELECT max(a) FROM '@late.json'"), ["x"]);
    let long = "y".repeat(10 << 20);
    place.write("long.csv", format!("a,b\n1,{long}\n2,\"{long}\n\"\n"));
    assert_eq!(place.run("SELECT a, length(b) FROM '@long.csv'"), ["1|10485760", "2|10485761"]);
    place.write("empty.csv", "");
    place.says("SELECT * FROM '@empty.csv'", ErrorKind::Data, &["empty.csv' has no columns"]);
    place.write("escaped.csv", "a,b\n1,\"say \\\"x\\\"\"\n");
    place.run("CREATE TABLE e (a BIGINT, b VARCHAR)");
    place.run("COPY e FROM '@escaped.csv' (ESCAPE '\\')");
    assert_eq!(place.run("SELECT b FROM e"), ["say \"x\""]);
    place.run("COPY e TO '@again.csv' (ESCAPE '\\')");
    assert_eq!(fs::read_to_string(place.at("again.csv")).unwrap(), "a,b\n1,\"say \\\"x\\\"\"\n");
}

#[test]
fn the_text_for_null_goes_both_ways() {
    let place = Place::new();
    place.run("CREATE TABLE n (a BIGINT, b VARCHAR, c DATE)");
    place.write("n.csv", "1,x,2024-01-01\nN/A,N/A,N/A\n,,\n");
    place.run("COPY n FROM '@n.csv' (NULL 'N/A')");
    assert_eq!(place.run("SELECT * FROM n"), ["1|x|2024-01-01", "NULL|NULL|NULL", "NULL|NULL|NULL"]);
    place.run("COPY n TO '@out.csv' (NULL 'N/A')");
    assert_eq!(fs::read_to_string(place.at("out.csv")).unwrap(), "a,b,c\n1,x,2024-01-01\nN/A,N/A,N/A\nN/A,N/A,N/A\n");
    place.write("n.csv", "1,x,2024-01-01\nn/a,x,N/A\n");
    place.says("COPY n FROM '@n.csv' (NULL 'N/A')", ErrorKind::Data, &["n.csv' line 2, column \"a\"", "\"n/a\""]);
}

// --- Which files -------------------------------------------------------------------------------------------------

#[test]
fn files_of_different_tables_are_not_one() {
    let place = Place::new();
    place.write("p/a.csv", "x,y\n1,2\n");
    place.write("p/b.csv", "x,z\n3,4\n");
    let words = ["p/b.csv' has other columns than '", "it lacks y, and has also z", "union_by_name"];
    place.says("SELECT * FROM '@p/*.csv'", ErrorKind::Data, &words);
    place.says("SELECT * FROM '@p'", ErrorKind::Data, &words);
    place.write("p/b.csv", "y,x\n4,3\n");
    assert_eq!(place.run("SELECT sum(x), sum(y) FROM '@p/*.csv'"), ["4|6"]);
    place.write("p/b.csv", "x,y\n3.5,\n");
    place.write("p/c.csv", "");
    assert_eq!(place.run("SELECT sum(x), sum(y) FROM '@p/*.csv'"), ["4.5|2"]);

    place.run("CREATE TABLE xy (x DOUBLE, y BIGINT)");
    place.run("COPY xy FROM '@p/*.csv'");
    assert_eq!(place.run("SELECT sum(x), count(*) FROM xy"), ["4.5|2"]);
    for (text, words) in [("y,x\n4,3\n", "the header y, x"), ("5,6\n", "no header"), ("x,z\n5,6\n", "no header")] {
        place.write("p/b.csv", text);
        place.says("COPY xy FROM '@p/*.csv'", ErrorKind::Data, &["p/b.csv' has", words, "one by one"]);
    }
    place.write("p/b.csv", "1,2\n3,oops\n");
    place.write("p/a.csv", "1,2\n");
    place.says("COPY xy FROM '@p/*.csv'", ErrorKind::Data, &["p/b.csv' line 2, column \"y\": cannot read \"oops\""]);

    for format in ["parquet", "arrow"] {
        place.run(&format!("COPY (SELECT 1 AS x, 'a' AS y) TO '@q-1.{format}'"));
        place.run(&format!("COPY (SELECT 2 AS x, 'b' AS z) TO '@q-2.{format}'"));
        let pattern = format!("SELECT * FROM '@q-*.{format}'");
        place.says(&pattern, ErrorKind::Data, &["q-2.", "other columns than '", "lacks y, and has also z"]);
        place.run(&format!("COPY (SELECT 2 AS x, true AS y) TO '@q-2.{format}'"));
        place.says(&pattern, ErrorKind::Data, &["column \"y\" is VARCHAR in '", "and BOOLEAN in '"]);
    }
    place.run("COPY (SELECT 'b' AS y, CAST(2 AS INT) AS x) TO '@q-2.parquet'");
    assert_eq!(place.run("SELECT x, y FROM '@q-*.parquet'"), ["1|a", "2|b"]);

    place.write("j-1.json", "{\"a\": 1}\n");
    place.write("j-2.json", "{\"a\": 2, \"b\": 3}\n");
    assert_eq!(place.run("SELECT a, b FROM '@j-*.json'"), ["1|NULL", "2|3"]);
    place.write("j-2.json", "{\"b\": 3}\n");
    place.says("SELECT * FROM '@j-*.json'", ErrorKind::Data, &["j-2.json' has other columns"]);
}

#[test]
fn patterns_and_directories_mean_what_they_say() {
    let place = Place::new();
    for name in ["d/1.csv", "d/2.csv.gz", "d/sub/3.csv", "d/.hidden.csv", "d/readme.md", "d/_SUCCESS"] {
        match name.ends_with(".gz") {
            true => _ = place.run(&format!("COPY (SELECT '{name}' AS n) TO '@{name}'")),
            false => _ = place.write(name, format!("n\n{name}\n")),
        }
    }
    std::os::unix::fs::symlink(place.at("d"), place.at("d/sub/up")).unwrap();
    assert_eq!(place.run("SELECT n FROM '@d'"), ["d/1.csv", "d/2.csv.gz", "d/sub/3.csv"]);
    assert_eq!(place.run("SELECT n FROM '@d/'"), ["d/1.csv", "d/2.csv.gz", "d/sub/3.csv"]);
    assert_eq!(place.run("SELECT n FROM '@d/*.csv'"), ["d/1.csv"]);
    assert_eq!(place.run("SELECT n FROM '@d/[0-9].csv*'"), ["d/1.csv", "d/2.csv.gz"]);
    assert_eq!(place.run("SELECT n FROM '@d/?.csv'"), ["d/1.csv"]);
    assert_eq!(place.run("SELECT n FROM '@d/*/*.csv'"), ["d/sub/3.csv"]);
    assert_eq!(place.run("SELECT n FROM '@d/**/*.csv'"), ["d/1.csv", "d/sub/3.csv"]);
    assert_eq!(place.run("SELECT n FROM '@d/sub/up/*.csv'"), ["d/1.csv"]);
    place.says("SELECT * FROM '@absent/*.csv'", ErrorKind::NotFound, &["absent"]);
    place.says("SELECT * FROM '@d/*.parquet'", ErrorKind::NotFound, &["no file matches", "d/*.parquet"]);
    place.run("COPY t TO '@d/4.parquet'");
    place.says("SELECT * FROM '@d'", ErrorKind::Invalid, &["several formats", ".csv and .parquet", "d/*.csv"]);

    // Names that mean something elsewhere.
    for name in ["[x].csv", "a b#c%20?.csv", "ä*.csv", "x;y'z.csv", "{a,b}.csv"] {
        place.write(name, "v\n1\n");
        let quoted = place.at(name).replace('\'', "''");
        assert_eq!(place.run(&format!("SELECT v FROM '{quoted}'")), ["1"], "{name}");
        place.run(&format!("COPY (SELECT 2 AS v) TO '{quoted}'"));
        assert_eq!(fs::read_to_string(place.at(name)).unwrap(), "v\n2\n", "{name}");
        place.run(&format!("COPY (SELECT 3 AS v) TO '{quoted}.parquet'"));
        assert_eq!(place.run(&format!("SELECT v FROM '{quoted}.parquet'")), ["3"], "{name}");
        fs::remove_file(place.at(&format!("{name}.parquet"))).unwrap();
    }
    // A name that no statement can write is no match.
    let odd = place.dir.path().join(std::ffi::OsStr::from_bytes(b"odd\xff.csv"));
    fs::write(odd, "other\nx\n").unwrap();
    assert_eq!(place.run("SELECT count(*) FROM '@*.csv'"), ["5"]);
    place.says("SELECT * FROM '@line\nend.csv'", ErrorKind::NotFound, &["line\nend.csv"]);

    let made = std::process::Command::new("mkfifo").arg(place.at("pipe.csv")).status().unwrap();
    assert!(made.success());
    place.says("SELECT * FROM '@pipe.csv'", ErrorKind::Invalid, &["pipe.csv': it is a pipe"]);
    place.says("COPY t FROM '@pipe.csv'", ErrorKind::Invalid, &["pipe.csv': it is a pipe"]);
    place.says("COPY t FROM '/dev/zero'", ErrorKind::Invalid, &["/dev/zero': it is a pipe or a device"]);
    place.says("SELECT * FROM 's3://bucket/x.csv'", ErrorKind::Invalid, &["s3 is not a place"]);
    place.write("u.csv", "v\n7\n");
    assert_eq!(place.run("SELECT v FROM 'file://@u.csv'"), ["7"]);
}

#[test]
fn a_file_without_its_quotes_is_recognised() {
    let place = Place::new();
    place.says("SELECT * FROM sales.csv", ErrorKind::NotFound, &["sales.csv", "in quotes: FROM 'sales.csv'"]);
    place.says("SELECT * FROM data.sales.parquet", ErrorKind::NotFound, &["FROM 'data.sales.parquet'"]);
    place.says("DESCRIBE Sales.csv", ErrorKind::NotFound, &["in quotes: FROM 'Sales.csv'"]);
    place.says("SELECT * FROM other.t", ErrorKind::NotFound, &["no schema", "other.t", "one schema, public"]);
    assert_eq!(place.run("SELECT count(*) FROM public.t"), ["20"]);
    assert_eq!(place.run("SELECT count(*) FROM information_schema.tables WHERE table_name = 't'"), ["1"]);
}

#[test]
fn broken_files_are_faults_of_the_data_and_named() {
    let place = Place::new();
    for format in ["parquet", "arrow", "json", "csv.gz", "json.zst"] {
        let name = format!("broken.{format}");
        place.run(&format!("COPY (SELECT x, 'text ' || x AS y FROM t) TO '@{name}'"));
        let whole = fs::read(place.at(&name)).unwrap();
        let mut damaged = vec![b"this is not it".to_vec(), whole[..whole.len() / 2].to_vec()];
        if format == "parquet" || format == "arrow" {
            damaged.push(Vec::new());
            damaged.push(whole[..whole.len() - 1].to_vec());
        }
        for bytes in damaged {
            place.write(&name, &bytes);
            for sql in ["SELECT * FROM '@{}'", "SELECT count(*), max(y) FROM '@{}'", "CREATE TABLE n AS FROM '@{}'"] {
                place.says(&sql.replace("{}", &name), ErrorKind::Data, &[&name]);
            }
        }
    }
    // Also where planning sees nothing of it, and the error is shared by those who wait for the rows.
    let rows = format!("{{\"a\": 1, \"s\": \"{}\"}}\n", "x".repeat(500)).repeat(60_000);
    place.write("late.json", format!("{rows}{{\"a\": \"x\"}}\n"));
    let words = ["late.json' line 60001, column 7: cannot read \"x\" as BIGINT for \"a\"", "COPY into it"];
    place.says("SELECT count(*), max(a) FROM '@late.json'", ErrorKind::Data, &words);
    place.write("late.json", format!("{rows}{{\"a\": 2, \"b\": \"x\"}}\n"));
    let words = ["late.json' line 60001, column 10: the key \"b\" is in none of the first rows", "COPY into it"];
    place.says("SELECT count(*), max(a) FROM '@late.json'", ErrorKind::Data, &words);
    place.run("CREATE TABLE late (a BIGINT, s VARCHAR, b VARCHAR)");
    place.run("COPY late FROM '@late.json'");
    assert_eq!(place.run("SELECT count(*), max(a), max(b) FROM late"), ["60001|2|x"]);
    place.run("COPY (SELECT a.x * b.x AS x, 'text ' || a.x AS y FROM t a, t b) TO '@late.parquet'");
    let mut bytes = fs::read(place.at("late.parquet")).unwrap();
    bytes[8..60].iter_mut().for_each(|byte| *byte ^= 0x5a);
    place.write("late.parquet", bytes);
    place.says("SELECT sum(x), max(y) FROM '@late.parquet'", ErrorKind::Data, &["late.parquet"]);
    // Among others, the one that is broken is named.
    place.run("COPY t TO '@p-1.parquet'");
    place.write("p-2.parquet", "PAR1 no PAR1");
    place.says("SELECT * FROM '@p-*.parquet'", ErrorKind::Data, &["p-2.parquet"]);
    // What a query computes is not the file's fault.
    let e = place.fails("SELECT 1 / (x - 3) FROM '@p-1.parquet'");
    assert!(e.kind() == ErrorKind::Data && !e.message().contains("p-1"), "{e}");
}

// --- COPY TO -----------------------------------------------------------------------------------------------------

const FORMATS: [&str; 5] = ["csv", "parquet", "arrow", "json", "csv.zst"];

#[test]
fn a_target_is_whole_or_as_it_was() {
    let place = Place::new();
    for format in FORMATS {
        let name = format!("half.{format}");
        let sql = format!("COPY (SELECT 100 / (15 - x) AS y FROM t) TO '@{name}'");
        place.says(&sql, ErrorKind::Data, &[]);
        assert_eq!(place.names(), Vec::<String>::new(), "{format}");
        place.write(&name, "what was there");
        fs::set_permissions(place.at(&name), fs::Permissions::from_mode(0o640)).unwrap();
        place.says(&sql, ErrorKind::Data, &[]);
        assert_eq!(fs::read(place.at(&name)).unwrap(), b"what was there");
        place.run(&format!("COPY (SELECT x FROM t) TO '@{name}'"));
        assert_eq!(place.run(&format!("SELECT sum(x) FROM '@{name}'")), ["190"]);
        assert_eq!(fs::metadata(place.at(&name)).unwrap().mode() & 0o777, 0o640);
        // Onto what is read.
        place.run(&format!("COPY (SELECT x + 1 AS x FROM '@{name}') TO '@{name}'"));
        assert_eq!(place.run(&format!("SELECT sum(x) FROM '@{name}'")), ["210"], "{format}");
        assert_eq!(place.names(), [name.as_str()]);
        fs::remove_file(place.at(&name)).unwrap();
    }
    // A link stays one.
    place.write("real.csv", "");
    std::os::unix::fs::symlink("real.csv", place.at("link.csv")).unwrap();
    place.run("COPY t TO '@link.csv'");
    assert!(fs::symlink_metadata(place.at("link.csv")).unwrap().is_symlink());
    assert_eq!(place.run("SELECT count(*) FROM '@real.csv'"), ["20"]);
}

#[test]
fn a_cancelled_export_leaves_nothing() {
    let place = Place::new();
    let many = "(SELECT a.x * b.x * c.x AS n, 'some text ' || a.x AS s FROM t a, t b, t c, t d, t e)";
    for format in FORMATS {
        let sql = place.sql(&format!("COPY {many} TO '@big.{format}'"));
        let cancelled = place.runtime.block_on(async {
            tokio::time::timeout(std::time::Duration::from_millis(300), rows(&place.session, &sql)).await
        });
        assert!(cancelled.is_err(), "{format}: too small to be cancelled");
        assert_eq!(place.names(), Vec::<String>::new(), "{format}");
    }
}

#[test]
fn what_refuses_a_target_is_said() {
    let place = Place::new();
    place.write("file", "");
    fs::create_dir(place.at("folder.csv")).unwrap();
    for format in FORMATS {
        let to = |path: &str| format!("COPY t TO '{path}' (FORMAT {})", format.trim_end_matches(".zst"));
        place.says(&to(&format!("@file/below.{format}")), ErrorKind::Io, &["file/below", "Not a directory"]);
        let words = ["absent/x", "No such file or directory", "make it first"];
        place.says(&to(&format!("@absent/x.{format}")), ErrorKind::NotFound, &words);
        place.says(&to("@folder.csv"), ErrorKind::Io, &["folder.csv': it is a directory", "slash"]);
        place.says(&to("/dev/full"), ErrorKind::Io, &["/dev/full", "No space left on device", "make room"]);
        place.run(&to("/dev/null"));
        place.says(&to(""), ErrorKind::Invalid, &["empty"]);
        place.says(&to("https://host/x.csv"), ErrorKind::Invalid, &["https"]);
    }
    assert!(fs::read_dir(place.at("folder.csv")).unwrap().next().is_none());
    let made = std::process::Command::new("mkfifo").arg(place.at("pipe.csv")).status().unwrap();
    assert!(made.success());
    place.says("COPY t TO '@pipe.csv'", ErrorKind::Io, &["pipe.csv", "No such device"]);
    let reader = std::thread::spawn({
        let path = place.at("pipe.csv");
        move || fs::read_to_string(path).unwrap()
    });
    eventually("somebody reads", || rows_now(&place, "COPY t TO '@pipe.csv'").is_ok());
    assert_eq!(reader.join().unwrap().lines().count(), 21);

    assert_eq!(place.names(), ["file", "folder.csv", "pipe.csv"]);
    for (options, word) in [
        ("(FORMAT parquet, HEADER true)", "HEADER is an option of csv"),
        ("(FORMAT csv, DELIMITER '\"')", "the same character"),
        ("(FORMAT arrow, COMPRESSION zstd)", "COMPRESSION is for"),
    ] {
        place.says(&format!("COPY t TO '@new.csv' {options}"), ErrorKind::Invalid, &[word]);
    }
    place.says("EXPLAIN ANALYZE COPY t TO '@new.csv'", ErrorKind::Invalid, &["EXPLAIN ANALYZE of COPY"]);
    place.run("EXPLAIN COPY t TO '@new.csv'");
    assert_eq!(place.names(), ["file", "folder.csv", "pipe.csv"]);
    place.says("COPY t FROM '@file' (COMPRESSION gzip)", ErrorKind::Invalid, &["COPY TO"]);
}

fn rows_now(place: &Place, sql: &str) -> onehop_engine::Result<Vec<String>> {
    place.runtime.block_on(rows(&place.session, &place.sql(sql)))
}

#[test]
fn the_database_directory_is_no_target() {
    let runtime = runtime();
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("db");
    let database = Database::open(&path, &tiny()).unwrap();
    let session = database.session().unwrap();
    runtime.block_on(run(&session, "CREATE TABLE t AS SELECT 1 AS x"));
    for name in ["x.csv", "catalog", "segments/x.parquet", "segments/../catalog", "new/"] {
        let sql = format!("COPY t TO '{}/{name}' (FORMAT csv)", path.display());
        let e = runtime.block_on(fails(&session, &sql));
        assert_eq!(e.kind(), ErrorKind::Invalid, "{sql}: {e}");
        assert!(e.message().contains("directory of the database"), "{sql}: {e}");
    }
    drop((session, database));
    let database = Database::open(&path, &tiny()).unwrap();
    assert_eq!(runtime.block_on(run(&database.session().unwrap(), "SELECT x FROM t")), ["1"]);
}

#[test]
fn a_directory_of_files_is_made_as_a_whole() {
    let place = Place::new();
    for format in FORMATS {
        let to = format!("TO '@parts/' (FORMAT {})", format.trim_end_matches(".zst"));
        place.says(&format!("COPY (SELECT 1 / (15 - x) AS y FROM t) {to}"), ErrorKind::Data, &[]);
        assert_eq!(place.names(), Vec::<String>::new(), "{format}");
        place.run(&format!("COPY t {to}"));
        assert_eq!(place.names(), ["parts"]);
        assert_eq!(place.run("SELECT count(*), sum(x) FROM '@parts'"), ["20|190"], "{format}");
        place.says(&format!("COPY t {to}"), ErrorKind::AlreadyExists, &["parts/", "not empty"]);
        fs::remove_dir_all(place.at("parts")).unwrap();
        fs::create_dir(place.at("parts")).unwrap();
        place.run(&format!("COPY t {to}"));
        assert_eq!(place.run("SELECT count(*) FROM '@parts/*'"), ["20"], "{format}");
        fs::remove_dir_all(place.at("parts")).unwrap();
    }
}

/// Row groups of a file: with NaN and without, of NaN alone, of both zeros.
const FLOATS: [&[Option<f64>]; 7] = [
    &[Some(1.0), Some(2.0), Some(f64::NAN), Some(3.0)],
    &[Some(10.0), Some(20.0), Some(30.0)],
    &[Some(f64::NAN), Some(f64::NAN)],
    &[Some(0.0), None, Some(5.0)],
    &[Some(-0.0), Some(0.0), Some(f64::NAN), None],
    &[Some(f64::NEG_INFINITY), Some(f64::INFINITY)],
    &[None, None],
];

/// Writers leave NaN out of what they say of a row group, and it is greater than all numbers.
#[test]
fn statistics_of_parquet_know_nothing_of_nan() {
    use std::cmp::Ordering::{self, Equal, Greater, Less};
    type Wanted = fn(Option<f64>) -> bool;
    /// As SQL has it: both zeros are equal, NaN is greater than all others.
    fn order(a: f64, b: f64) -> Ordering {
        a.partial_cmp(&b).unwrap_or_else(|| a.is_nan().cmp(&b.is_nan()))
    }
    fn is(x: Option<f64>, orders: &[Ordering], y: f64) -> bool {
        x.is_some_and(|x| orders.contains(&order(x, y)))
    }
    let conditions: [(&str, Wanted); 26] = [
        ("x > 10", |x| is(x, &[Greater], 10.0)),
        ("x > 1000", |x| is(x, &[Greater], 1000.0)),
        ("1000 < x", |x| is(x, &[Greater], 1000.0)),
        ("x >= 1000", |x| is(x, &[Greater, Equal], 1000.0)),
        ("x < 5", |x| is(x, &[Less], 5.0)),
        ("x <= 3", |x| is(x, &[Less, Equal], 3.0)),
        ("x = 2", |x| is(x, &[Equal], 2.0)),
        ("x = 0", |x| is(x, &[Equal], 0.0)),
        ("x <> 2", |x| is(x, &[Less, Greater], 2.0)),
        ("x > 0", |x| is(x, &[Greater], 0.0)),
        ("x BETWEEN 2 AND 20", |x| is(x, &[Greater, Equal], 2.0) && is(x, &[Less, Equal], 20.0)),
        ("x NOT BETWEEN 2 AND 20", |x| is(x, &[Less], 2.0) || is(x, &[Greater], 20.0)),
        ("x > 100 AND x < 1000", |_| false),
        ("x > 0 AND x < 4", |x| is(x, &[Greater], 0.0) && is(x, &[Less], 4.0)),
        ("NOT (x < 5)", |x| is(x, &[Greater, Equal], 5.0)),
        ("NOT (x > 5)", |x| is(x, &[Less, Equal], 5.0)),
        ("x IN (2, 30)", |x| is(x, &[Equal], 2.0) || is(x, &[Equal], 30.0)),
        ("x NOT IN (2, 30)", |x| is(x, &[Less, Greater], 2.0) && is(x, &[Less, Greater], 30.0)),
        ("x = 'NaN'", |x| is(x, &[Equal], f64::NAN)),
        ("x < 'NaN'", |x| is(x, &[Less], f64::NAN)),
        ("x > 'Infinity'", |x| is(x, &[Greater], f64::INFINITY)),
        ("x IS NULL OR x < 2", |x| x.is_none() || is(x, &[Less], 2.0)),
        ("x IS NOT NULL", |x| x.is_some()),
        ("x IS NULL", |x| x.is_none()),
        ("x < 2 OR x > 25", |x| is(x, &[Less], 2.0) || is(x, &[Greater], 25.0)),
        ("x + 1 > 31", |x| is(x.map(|x| x + 1.0), &[Greater], 31.0)),
    ];
    let place = Place::new();
    for (data_type, narrow) in [("double", false), ("real", true)] {
        let array = |values: &[Option<f64>]| -> ArrayRef {
            match narrow {
                true => std::sync::Arc::new(values.iter().map(|v| v.map(|v| v as f32)).collect::<Float32Array>()),
                false => std::sync::Arc::new(values.iter().copied().collect::<Float64Array>()),
            }
        };
        let path = place.at(&format!("{data_type}.parquet"));
        let mut writer = None;
        for (group, values) in FLOATS.iter().enumerate() {
            let groups: ArrayRef = std::sync::Arc::new(Int64Array::from(vec![group as i64; values.len()]));
            let batch =
                RecordBatch::try_from_iter_with_nullable([("x", array(values), true), ("g", groups, false)]).unwrap();
            let writer = writer.get_or_insert_with(|| {
                parquet::arrow::ArrowWriter::try_new(fs::File::create(&path).unwrap(), batch.schema(), None).unwrap()
            });
            writer.write(&batch).unwrap();
            writer.flush().unwrap();
        }
        writer.unwrap().close().unwrap();
        let from = format!("FROM '@{data_type}.parquet'");
        let all = || FLOATS.iter().flat_map(|values| values.iter().copied());
        for (condition, wanted) in &conditions {
            let count = all().filter(|x| wanted(*x)).count();
            assert_eq!(
                place.run(&format!("SELECT count(*) {from} WHERE {condition}")),
                [count.to_string()],
                "{condition}"
            );
            // Whole row groups are taken for a limit.
            for limit in [1, 3, 6] {
                let rows = place.run(&format!("SELECT x {from} WHERE {condition} LIMIT {limit}"));
                assert_eq!(rows.len(), count.min(limit), "{condition} LIMIT {limit}");
                let rows = rows.iter().map(|x| if x == "NULL" { None } else { Some(x.parse::<f64>().unwrap()) });
                assert_eq!(rows.filter(|x| !wanted(*x)).collect::<Vec<_>>(), [], "{condition} LIMIT {limit}");
            }
        }
        assert_eq!(place.run(&format!("SELECT max(x), min(x), count(x) {from}")), ["NaN|-inf|16"]);
        assert_eq!(place.run(&format!("SELECT max(x), min(x) {from} WHERE g = 1")), ["30.0|10.0"]);
        assert_eq!(
            place.run(&format!("SELECT x {from} ORDER BY x DESC NULLS LAST LIMIT 5")),
            ["NaN", "NaN", "NaN", "NaN", "inf"]
        );
        assert_eq!(place.run(&format!("SELECT x {from} WHERE g = 3 ORDER BY x LIMIT 1")), ["0.0"]);
    }
    place.run("COPY (SELECT 0e0 AS x) TO '@zero.parquet'");
    assert_eq!(place.run("SELECT min(x), max(x) FROM '@zero.parquet'"), ["0.0|0.0"]);
    // A range leaves row groups out by both its ends: one has both less and more, and nothing is said of that of NaN alone.
    let plan = place.run("EXPLAIN ANALYZE SELECT count(*) FROM '@double.parquet' WHERE x BETWEEN 6 AND 9").join("\n");
    let scan = plan.split("DataSourceExec").nth(1).and_then(|scan| scan.lines().nth(1)).unwrap_or_default();
    assert!(scan.contains(" rows 4,"), "{plan}");
}

#[test]
fn directories_named_by_keys_are_columns() {
    for format in ["parquet", "arrow", "csv", "json"] {
        let place = Place::new();
        let of = |directory: &str, rows: &str| {
            fs::create_dir_all(place.at(directory)).unwrap();
            place.run(&format!("COPY (SELECT * FROM (VALUES {rows}) AS v(x, z)) TO '@{directory}/a.{format}'"));
        };
        of("t/year=2023/day=2023-05-01", "(1, 'a'), (2, 'b')");
        of("t/year=2024/day=2024-02-29", "(3, 'c'), (4, 'd'), (5, 'e')");
        of("t/year=2024/day=__HIVE_DEFAULT_PARTITION__", "(6, 'f')");
        let from = format!("FROM '@t/*/*/*.{format}'");
        // Every answer by hand.
        for (sql, expected) in [
            (
                format!("SELECT * {from} ORDER BY x"),
                &[
                    "1|a|2023|2023-05-01",
                    "2|b|2023|2023-05-01",
                    "3|c|2024|2024-02-29",
                    "4|d|2024|2024-02-29",
                    "5|e|2024|2024-02-29",
                    "6|f|2024|NULL",
                ][..],
            ),
            ("SELECT * FROM '@t' WHERE x = 2".to_string(), &["2|b|2023|2023-05-01"]),
            (format!("SELECT year, day {from} WHERE x = 6"), &["2024|NULL"]),
            (format!("SELECT count(*) {from}"), &["6"]),
            (
                format!("SELECT count(day), min(day), max(day), min(year), sum(year) {from}"),
                &["5|2023-05-01|2024-02-29|2023|12142"],
            ),
            (format!("SELECT count(*) {from} WHERE day IS NULL"), &["1"]),
            (format!("SELECT count(*) {from} WHERE day IS NOT NULL AND year = 2024"), &["3"]),
            (format!("SELECT sum(x) {from} WHERE year = 2024"), &["18"]),
            (format!("SELECT sum(x) {from} WHERE year = '2024'"), &["18"]),
            (format!("SELECT sum(x) {from} WHERE year = 2024 OR x = 1"), &["19"]),
            (format!("SELECT count(*) {from} WHERE year = 1999"), &["0"]),
            (format!("SELECT x {from} WHERE year = 1999"), &[]),
            // Of an `AND` the first decides whether the second is evaluated.
            (format!("SELECT count(*) {from} WHERE year <> 2023 AND 10 / (year - 2023) > 3"), &["4"]),
            (format!("SELECT year, count(*) {from} GROUP BY year ORDER BY year"), &["2023|2", "2024|4"]),
            (
                format!("SELECT a.x {from} AS a JOIN t ON t.x + 2005 = a.year AND a.day = '2024-02-29' ORDER BY 1"),
                &["3", "4", "5"],
            ),
            (format!("SELECT x {from} WHERE year = (SELECT max(x) + 2004 FROM t) LIMIT 1"), &["1"]),
            (format!("SELECT count(*) FROM (SELECT year {from} WHERE year > 2023 LIMIT 2)"), &["2"]),
            // One directory that the statement names is a column like one that it does not.
            (format!("SELECT year, x FROM '@t/year=2023/*/a.{format}' ORDER BY x"), &["2023|1", "2023|2"]),
        ] {
            assert_eq!(place.run(&sql), expected, "{format}: {sql}");
        }
        let by_zero = format!("SELECT 10 / (year - 2023) {from} WHERE x < 3");
        assert!(place.fails(&by_zero).to_string().contains("ivision"), "{format}");
        // Only files in which there can be rows are read.
        let plan =
            place.run(&format!("EXPLAIN SELECT x, day {from} WHERE year = 2024 AND day > '2024-01-01'")).join("\n");
        assert!(plan.contains("day=2024-02-29/a"), "{plan}");
        assert!(!plan.contains("year=2023") && !plan.contains("HIVE"), "{plan}");
        // Rows of files in which a key is NULL and others are of one schema, in whatever order they come.
        for _ in 0..20 {
            let sorted = place.run(&format!("SELECT x, day {from} ORDER BY x DESC LIMIT 3"));
            assert_eq!(sorted, ["4|2024-02-29", "5|2024-02-29", "6|NULL"], "{format}");
        }
        // By name with the directories' columns, by position without them.
        place.run("CREATE TABLE named (day DATE, year INT, x BIGINT)");
        place.run("CREATE TABLE two (year INT, x BIGINT)");
        place.run("CREATE TABLE placed (one BIGINT, other VARCHAR)");
        if format != "csv" {
            place.run(&format!("COPY named FROM '@t/*/*/*.{format}'"));
            assert_eq!(place.run("SELECT count(day), sum(year), sum(x) FROM named"), ["5|12142|21"]);
            place.run(&format!("COPY two FROM '@t/*/*/*.{format}'"));
            assert_eq!(place.run("SELECT sum(year), sum(x) FROM two"), ["12142|21"]);
        }
        let header = if format == "csv" { "(HEADER true)" } else { "" };
        place.run(&format!("COPY placed FROM '@t/*/*/*.{format}' {header}"));
        assert_eq!(place.run("SELECT sum(one), max(other) FROM placed"), ["21|f"]);
        // Where the files have such a column, the directory's value is in its place; an underscore is Spark's only without a key.
        of("own/z=9/_k=1", "(1, 'a'), (2, 'b')");
        assert_eq!(place.run("SELECT * FROM '@own' ORDER BY x"), ["1|9|1", "2|9|1"]);
        assert_eq!(place.run("SELECT x FROM '@own' WHERE z = 9 AND x > 1"), ["2"]);
        assert_eq!(place.run("SELECT count(*) FROM '@own' WHERE z = 8"), ["0"]);
        of("own/Z=9/_k=2", "(3, 'c')");
        fs::remove_dir_all(place.at("own/z=9")).unwrap();
        assert_eq!(place.run("SELECT x, z, _k FROM '@own' WHERE z = 9"), ["3|9|2"]);
        // Files without rows have no values.
        of("none/k=1", "(1, 'a')");
        fs::create_dir_all(place.at("none/k=9")).unwrap();
        place.run(&format!("COPY (SELECT CAST(1 AS BIGINT) AS x, 'a' AS z WHERE false) TO '@none/k=9/a.{format}'"));
        assert_eq!(place.run(&format!("SELECT max(k), min(k), count(k) FROM '@none/*/a.{format}'")), ["1|1|1"]);
        // A directory beside one that is not named so is a directory.
        of("mixed/k=1", "(1, 'a')");
        of("mixed/k", "(2, 'b')");
        assert_eq!(place.run("SELECT * FROM '@mixed' ORDER BY x"), ["1|a", "2|b"]);
        // One file cannot be in two.
        std::os::unix::fs::symlink("k=1", place.at("none/k=2")).unwrap();
        place.says(&format!("FROM '@none/*/a.{format}'"), ErrorKind::Data, &["twice, by links", "none/k=1/a"]);
    }
}

/// Small segments, and as many threads as a larger machine has.
fn many_threads() -> DatabaseOptions {
    let mut settings = support::TINY;
    settings[0] = ("threads", "8");
    support::options(&settings)
}

/// `SELECT .. LIMIT`, copies and new tables keep the order of files and of tables.
#[test]
fn rows_stay_in_their_order() {
    let place = Place::with(&many_threads());
    const FILES: usize = 6;
    const ROWS: usize = 20_000;
    fs::create_dir(place.at("copies")).unwrap();
    for format in ["csv", "json", "parquet", "arrow"] {
        fs::create_dir(place.at(format)).unwrap();
        for file in 0..FILES {
            let rows = format!("SELECT unnest(range({}, {})) AS x", file * ROWS, (file + 1) * ROWS);
            place.run(&format!("COPY ({rows}) TO '@{format}/{file}.{format}' (FORMAT {format})"));
        }
        let (files, all) = (format!("'@{format}/*.{format}'"), FILES * ROWS);
        let is_whole = |sql: &str| {
            let found = place.rows_as_they_come(sql);
            assert_eq!(found.len(), all, "{sql}");
            let first = found.iter().enumerate().find(|(at, x)| **x != at.to_string());
            assert_eq!(first, None, "{sql}");
        };
        for _ in 0..3 {
            assert_eq!(place.run(&format!("FROM {files} LIMIT 3")), ["0", "1", "2"]);
            assert_eq!(place.run(&format!("SELECT x FROM {files} WHERE x % 7 = 3 LIMIT 2 OFFSET 1")), ["10", "17"]);
            let late = format!("SELECT x + 1 FROM {files} WHERE x >= 50000 LIMIT 2");
            assert_eq!(place.run(&late), ["50001", "50002"]);
        }
        is_whole(&format!("SELECT x FROM {files}"));
        place.run(&format!("CREATE TABLE of_{format} AS FROM {files}"));
        is_whole(&format!("FROM of_{format}"));
        assert_eq!(place.run(&format!("FROM of_{format} LIMIT 2 OFFSET 70000")), ["70000", "70001"]);
        for to in ["csv", "parquet"] {
            place.run(&format!("COPY (FROM {files}) TO '@copies/{format}_files.{to}'"));
            is_whole(&format!("SELECT x FROM '@copies/{format}_files.{to}'"));
            place.run(&format!("COPY of_{format} TO '@copies/{format}_table.{to}'"));
            is_whole(&format!("SELECT x FROM '@copies/{format}_table.{to}'"));
        }
        place.run(&format!("DELETE FROM of_{format} WHERE x >= 100000"));
        place.run(&format!("INSERT INTO of_{format} SELECT x FROM {files} WHERE x >= 100000"));
        is_whole(&format!("FROM of_{format}"));
        is_whole(&format!(
            "SELECT x FROM {files} WHERE x < 60000 UNION ALL SELECT x FROM of_{format} WHERE x >= 60000"
        ));
    }
    place.run("SET preserve_order = false");
    assert_eq!(place.run("SELECT count(*), sum(x) FROM '@csv/*.csv'"), ["120000|7199940000"]);
}

/// There are fewer row groups than partitions, and one file is longer than all others.
#[test]
fn files_of_all_sizes_stay_in_their_order() {
    let place = Place::with(&many_threads());
    for format in ["csv", "parquet"] {
        fs::create_dir(place.at(format)).unwrap();
    }
    let mut first = 0;
    for (file, rows) in [200_000, 1, 30, 50_000, 0, 7].into_iter().enumerate() {
        for format in ["csv", "parquet"] {
            let numbers = format!("SELECT unnest(range({first}, {})) AS x", first + rows);
            place.run(&format!("COPY ({numbers}) TO '@{format}/{file}.{format}'"));
        }
        first += rows;
    }
    for format in ["csv", "parquet"] {
        let found = place.rows_as_they_come(&format!("SELECT x FROM '@{format}/*.{format}' WHERE x >= 199000"));
        assert!(found.iter().enumerate().all(|(at, x)| *x == (199_000 + at).to_string()), "{format}");
        assert_eq!(found.len(), first - 199_000, "{format}");
        place.run(&format!("COPY (FROM '@{format}/*.{format}') TO '@all.{format}'"));
        assert_eq!(place.run(&format!("SELECT x FROM '@all.{format}' LIMIT 2 OFFSET 200000")), ["200000", "200001"]);
    }
}
