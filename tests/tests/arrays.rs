//! Tables and results as arrays on a device, through the session. A driver and a compiler of the
//! host decode, keep, share and open them. After any change of the table, arrays have the rows that
//! the same query returns on the CPU.
#![allow(clippy::unwrap_used)]

use std::sync::Arc;

use onehop_cuda::fused::Options;
use onehop_cuda::{CudaDevices, fake};
use onehop_engine::arrays::export::import;
use onehop_engine::arrays::{Array, Arrays, Layout, Memory, Nulls, Target, Wanted};
use onehop_engine::backend::Devices;
use onehop_engine::{Database, DatabaseOptions, Element, Error, ErrorKind, Hop, Session};
use onehop_tests::generated;

/// Settings that make several segments, with few blocks in each.
const SETTINGS: [(&str, &str); 3] =
    [("storage.block_rows", "4096"), ("storage.segment_rows", "8192"), ("threads", "2")];

/// Integers of three types, some NULLs, doubles, booleans, strings and decimals.
const ROWS: &str = "CREATE TABLE t CLUSTER BY (id) AS SELECT v AS id, CAST(v % 1000 AS INTEGER) AS small, CAST(v % 3 AS SMALLINT) AS kind, \
    v * 1000003 % 700000000000 AS wide, CASE WHEN v % 97 = 3 THEN NULL ELSE v * 2 END AS gaps, sin(v * 12.9898) AS x, \
    CASE WHEN v % 5 = 0 THEN NULL ELSE cos(v * 78.233) END AS y, v % 2 = 0 AS even, 'row ' || (v % 9) AS name, \
    CAST(v AS DECIMAL(12, 2)) AS price FROM (SELECT unnest(range(0, 30000)) AS v)";

fn devices() -> Arc<dyn Devices> {
    let options = Options { threads: 64, wide_threads: 64, blocks: 2, ..Options::default() };
    CudaDevices::of_contexts(&[fake::context()], &fake::nvrtc(), options)
}

async fn made() -> Session {
    let settings = SETTINGS.map(|(name, value)| (name.to_string(), value.to_string())).to_vec();
    let database = Database::memory(&DatabaseOptions { settings, ..DatabaseOptions::default() }).unwrap();
    database.register_devices(devices());
    let session = database.session().unwrap();
    session.sql(ROWS).await.unwrap();
    session
}

fn wanted(columns: &[&str]) -> Wanted {
    Wanted { columns: columns.iter().map(ToString::to_string).collect(), ..Wanted::default() }
}

async fn arrays(session: &Session, wanted: &Wanted) -> Arrays {
    session.table_arrays("t", wanted).await.unwrap()
}

async fn one(session: &Session, column: &str) -> Array {
    arrays(session, &wanted(&[column])).await.arrays.remove(0)
}

/// Returns the contents of an array. The device's memory is the host's.
fn bytes(array: &Array) -> &[u8] {
    match &array.memory {
        Memory::Host(buffer) => &buffer.as_slice()[..array.bytes()],
        Memory::Device(memory) => {
            assert!(memory.bytes() >= array.bytes() as u64);
            // SAFETY: the fake device's memory, of at least that length, held by the array.
            unsafe { std::slice::from_raw_parts(memory.address() as *const u8, array.bytes()) }
        }
    }
}

fn is_on_device(array: &Array) -> bool {
    matches!(array.memory, Memory::Device(_))
}

/// Compares arrays with the same columns of a query, in host memory.
async fn same_as_query(session: &Session, of: &Wanted) {
    let on_device = arrays(session, of).await;
    let on_host = arrays(session, &Wanted { target: Target::Host, ..of.clone() }).await;
    assert_eq!(on_device.columns, on_host.columns);
    for ((device, host), name) in on_device.arrays.iter().zip(&on_host.arrays).zip(&on_device.columns) {
        assert!(is_on_device(device) && !is_on_device(host), "{name}");
        assert_eq!((device.element, device.rows, device.columns), (host.element, host.rows, host.columns), "{name}");
        assert!(bytes(device) == bytes(host), "{name}");
    }
}

async fn fails(session: &Session, of: &Wanted) -> Error {
    session.table_arrays("t", of).await.unwrap_err()
}

#[tokio::test(flavor = "multi_thread")]
async fn columns_are_decoded_once_and_stay() {
    let session = made().await;
    same_as_query(&session, &wanted(&["id", "small", "kind", "wide", "x", "even"])).await;
    let first = one(&session, "wide").await;
    let moved = || session.query().ledger().hop(Hop::HostToDevice);
    let again = one(&session, "wide").await;
    assert_eq!((again.address(), moved()), (first.address(), 0), "a second hand-off moves nothing");
    // Fresh rows and deleted rows: the array comes from a query, and its rows are copied.
    session.sql("INSERT INTO t SELECT * FROM t WHERE id < 100").await.unwrap();
    session.sql("DELETE FROM t WHERE id % 10 = 7").await.unwrap();
    let changed = one(&session, "wide").await;
    assert!(changed.rows < first.rows && changed.address() != first.address() && moved() >= changed.bytes() as u64);
    same_as_query(&session, &wanted(&["id", "x"])).await;
    session.sql("CHECKPOINT").await.unwrap();
    same_as_query(&session, &wanted(&["wide", "id"])).await;
    assert_eq!(one(&session, "wide").await.rows, changed.rows);
    // Evicted, replaced and dropped: exported arrays stay unchanged.
    session.sql("EVICT TABLE t").await.unwrap();
    assert_ne!(one(&session, "wide").await.address(), again.address());
    session.sql("DROP TABLE t").await.unwrap();
    let expected: Vec<u8> = (0..30_000i64).flat_map(|v| (v * 1_000_003 % 700_000_000_000).to_ne_bytes()).collect();
    assert!(bytes(&first) == expected && bytes(&again) == expected);
    drop(session);
    assert!(bytes(&first) == expected);
}

#[tokio::test(flavor = "multi_thread")]
async fn nulls_types_and_matrices_have_rules() {
    let session = made().await;
    let nan = |columns: &[&str]| Wanted { nulls: Nulls::NaN, ..wanted(columns) };
    let refused = fails(&session, &wanted(&["id", "gaps"])).await;
    assert!(refused.kind() == ErrorKind::Data && refused.message().contains("\"gaps\" has 310 NULLs"), "{refused:?}");
    let on_host = fails(&session, &Wanted { target: Target::Host, ..wanted(&["gaps"]) }).await;
    assert_eq!(on_host.message(), refused.message());
    // NaNs of both have the same bits.
    same_as_query(&session, &nan(&["gaps", "y", "id"])).await;
    let arrays_with_nan = arrays(&session, &nan(&["gaps", "id"])).await.arrays;
    assert_eq!((arrays_with_nan[0].element, arrays_with_nan[1].element), (Element::Float64, Element::Int64));
    for (column, hint) in [("name", "leave it out"), ("price", "AS DOUBLE")] {
        let refused = fails(&session, &nan(&["id", column])).await;
        assert!(refused.kind() == ErrorKind::Invalid && refused.message().contains(column), "{refused:?}");
        assert!(refused.hint().unwrap().contains(hint), "{refused:?}");
    }
    assert_eq!(fails(&session, &wanted(&["idd"])).await.kind(), ErrorKind::NotFound);
    assert_eq!(fails(&session, &wanted(&["id", "id"])).await.kind(), ErrorKind::Invalid);
    let matrix = Wanted { layout: Layout::Matrix, ..wanted(&["wide", "id"]) };
    same_as_query(&session, &matrix).await;
    let made = arrays(&session, &matrix).await.arrays.remove(0);
    assert_eq!((made.rows, made.columns, made.bytes()), (30_000, Some(2), 480_000));
    assert!(bytes(&made)[240_000..] == *bytes(&one(&session, "id").await));
    let differ = fails(&session, &Wanted { layout: Layout::Matrix, ..wanted(&["id", "x"]) }).await;
    assert!(differ.kind() == ErrorKind::Invalid && differ.message().contains("\"x\" is float64"), "{differ:?}");
    let nowhere = fails(&session, &Wanted { target: Target::Device("cuda:7".into()), ..wanted(&["id"]) }).await;
    assert_eq!(nowhere.kind(), ErrorKind::Unmet);
    session.sql("SET gpu.mode = 'off'").await.unwrap();
    assert!(!is_on_device(&one(&session, "id").await));
}

#[tokio::test(flavor = "multi_thread")]
async fn another_process_opens_what_was_exported() {
    let (session, elsewhere) = (made().await, devices());
    let handle = |sql: &'static str| {
        let session = &session;
        async move { generated::rows(session, sql).await.map(|rows| rows[0].clone()) }
    };
    let exported = handle("SELECT onehop_export('t', 'wide, x')").await.unwrap();
    let imported = import(&exported, &["x".into(), "wide".into()], Some(&elsewhere)).unwrap();
    assert_eq!(imported.columns, ["x", "wide"]);
    let own = one(&session, "wide").await;
    assert!(is_on_device(&imported.arrays[1]) && bytes(&imported.arrays[1]) == bytes(&own));
    // Without the device, the import fails.
    assert_eq!(import(&exported, &[], None).unwrap_err().kind(), ErrorKind::Unmet);
    // All columns. Columns with NULLs or unsupported types are refused.
    let refused = handle("SELECT onehop_export('t')").await.unwrap_err();
    assert!(refused.kind() == ErrorKind::Data && refused.message().contains("\"gaps\""), "{refused:?}");
    for (sql, kind) in [
        ("SELECT onehop_export('nothing')", ErrorKind::NotFound),
        ("SELECT onehop_export('t', 'name')", ErrorKind::Invalid),
        ("SELECT onehop_export('t', 'id', 'zero')", ErrorKind::Invalid),
        ("SELECT onehop_release('onehop-1:x')", ErrorKind::Invalid),
    ] {
        assert_eq!(handle(sql).await.unwrap_err().kind(), kind, "{sql}");
    }
    // In host memory, with NaN for NULL, invisible to another transaction.
    session.sql("SET gpu.mode = 'off'").await.unwrap();
    let on_host = handle("SELECT onehop_export('t', 'y,id', 'nan')").await.unwrap();
    let mapped = import(&on_host, &[], None).unwrap();
    let nan = Wanted { nulls: Nulls::NaN, ..wanted(&["y", "id"]) };
    for (mapped, own) in mapped.arrays.iter().zip(&arrays(&session, &nan).await.arrays) {
        assert!(!is_on_device(mapped) && bytes(mapped) == bytes(own));
    }
    session.sql("BEGIN").await.unwrap();
    assert_eq!(handle("SELECT onehop_export('t', 'id')").await.unwrap_err().kind(), ErrorKind::Invalid);
    session.sql("ROLLBACK").await.unwrap();
    for handle in [&exported, &on_host] {
        let release = format!("SELECT onehop_release('{handle}')");
        for was_there in ["true", "false"] {
            assert_eq!(generated::rows(&session, &release).await.unwrap(), [was_there]);
        }
        assert_eq!(import(handle, &[], Some(&elsewhere)).unwrap_err().kind(), ErrorKind::NotFound);
    }
    assert_eq!(generated::rows(&session, "SELECT onehop_export(NULL) IS NULL").await.unwrap(), ["true"]);
    assert!(bytes(&imported.arrays[1]) == bytes(&own) && bytes(&mapped.arrays[1]) == bytes(&one(&session, "id").await));
}
