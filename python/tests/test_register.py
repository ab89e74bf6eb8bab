"""Rows of other libraries as tables: where they are, as they are."""

from __future__ import annotations

import datetime
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy
import pandas
import polars
import pyarrow
import pytest

import onehop

ROWS = 100_000


def address(column: Any, buffer: int = 1) -> int:
    """Where the values of a PyArrow column begin."""
    chunk = column.chunk(0)
    return int(chunk.buffers()[buffer].address + chunk.offset * chunk.type.bit_width // 8)


def test_arrow_comes_back_where_it_was(con: onehop.Connection) -> None:
    table = pyarrow.table({"n": numpy.arange(ROWS), "x": numpy.linspace(0, 1, ROWS)})
    con.register("t", table)
    back = con.sql("SELECT x, n FROM t").arrow()
    assert address(back["n"]) == address(table["n"]) and address(back["x"]) == address(table["x"])
    assert back["n"].to_pylist() == table["n"].to_pylist()
    arrays = con.sql("SELECT n, x FROM t").numpy()
    assert arrays["n"].ctypes.data == address(table["n"]) and arrays["x"].ctypes.data == address(table["x"])
    assert arrays["n"].tolist() == table["n"].to_pylist() and not arrays["n"].flags.writeable


def test_numpys_memory_comes_back_as_numpys(con: onehop.Connection) -> None:
    source = numpy.arange(ROWS, dtype=numpy.float64)
    con.register("t", pyarrow.table({"x": source}))
    assert con.sql("SELECT x FROM t").numpy()["x"].ctypes.data == source.ctypes.data


def test_pandas_numbers_are_not_copied(con: onehop.Connection) -> None:
    frame = pandas.DataFrame({"n": numpy.arange(ROWS), "x": numpy.linspace(0, 1, ROWS)})
    con.register("t", frame)
    arrays = con.sql("SELECT n, x FROM t").numpy()
    assert arrays["n"].ctypes.data == frame["n"].to_numpy().ctypes.data
    assert arrays["x"].ctypes.data == frame["x"].to_numpy().ctypes.data
    back = con.sql("SELECT x FROM t").df()
    pandas.testing.assert_frame_equal(back, frame[["x"]])


def test_polars_numbers_are_not_copied(con: onehop.Connection) -> None:
    frame = polars.DataFrame({"n": numpy.arange(ROWS)})
    con.register("t", frame)
    assert con.sql("SELECT n FROM t").numpy()["n"].ctypes.data == frame["n"].to_numpy().ctypes.data
    assert con.sql("SELECT n FROM t").pl().equals(frame)


@pytest.mark.parametrize("make", [pandas.DataFrame, polars.DataFrame, pyarrow.table])
def test_tables_of_all_kinds(con: onehop.Connection, make: Any) -> None:
    rows = {"n": [1, 2, None], "s": ["a", None, "ß"], "b": [True, False, None]}
    query = "SELECT n::BIGINT, s, b FROM t ORDER BY n NULLS LAST"
    expected = [(1, "a", True), (2, None, False), (None, "ß", None)]
    assert con.sql(query, tables={"t": make(rows)}).fetchall() == expected
    con.register("t", make(rows))
    assert con.sql(query).fetchall() == expected and con.sql(query).fetchall() == expected
    con.sql("CREATE TABLE kept AS SELECT * FROM t")
    con.unregister("t")
    assert con.sql(query.replace("FROM t", "FROM kept")).fetchall() == expected
    with pytest.raises(onehop.NotFoundError):
        con.sql(query)


def test_a_record_batch_and_a_struct_array(con: onehop.Connection) -> None:
    batch = pyarrow.record_batch({"n": [1, 2]})
    assert con.sql("SELECT sum(n) FROM t", tables={"t": batch}).fetchone() == (3,)
    structs = pyarrow.StructArray.from_arrays([pyarrow.array([1, 2])], ["n"])
    assert con.sql("SELECT sum(n) FROM t", tables={"t": structs}).fetchone() == (3,)


def test_our_own_results(con: onehop.Connection) -> None:
    numbers = con.sql("SELECT value AS n FROM generate_series(1, 100000)")
    assert con.sql("SELECT sum(n) FROM numbers", tables={"numbers": numbers}).fetchone() == (5000050000,)


def test_anything_with_the_stream_method(con: onehop.Connection) -> None:
    class Rows:
        asked = 0

        def __arrow_c_stream__(self, requested_schema: object = None) -> object:
            self.asked += 1
            return pyarrow.table({"n": [1, 2, 3]}).__arrow_c_stream__(requested_schema)

    assert con.sql("SELECT sum(n) FROM t", tables={"t": Rows()}).fetchone() == (6,)


def batches(count: int) -> Iterator[pyarrow.RecordBatch]:
    for n in range(count):
        yield pyarrow.record_batch({"n": [n]})


SCHEMA = pyarrow.schema({"n": pyarrow.int64()})


def test_a_reader_is_read_once(con: onehop.Connection) -> None:
    con.register("r", pyarrow.RecordBatchReader.from_batches(SCHEMA, batches(1000)))
    assert con.sql("SELECT count(*), sum(n) FROM r").fetchone() == (1000, 499500)
    with pytest.raises(onehop.ProgrammingError, match='"r" has been read'):
        con.sql("SELECT count(*) FROM r").fetchall()


def test_a_reader_is_read_as_far_as_wanted(con: onehop.Connection) -> None:
    made = []

    def endless() -> Iterator[pyarrow.RecordBatch]:
        n = 0
        while True:
            made.append(n)
            yield pyarrow.record_batch({"n": [n]})
            n += 1

    reader = pyarrow.RecordBatchReader.from_batches(SCHEMA, endless())
    assert con.sql("SELECT n FROM r LIMIT 5", tables={"r": reader}).fetchall() == [(n,) for n in range(5)]
    assert len(made) < 100


def test_what_a_reader_raises_names_it(con: onehop.Connection) -> None:
    def broken() -> Iterator[pyarrow.RecordBatch]:
        yield from batches(3)
        raise RuntimeError("no more of this")

    for read in ("fetchall", "arrow"):
        reader = pyarrow.RecordBatchReader.from_batches(SCHEMA, broken())
        with pytest.raises(onehop.DataError, match='(?s)the reader "bad" failed.*no more of this'):
            getattr(con.sql("SELECT n FROM bad", tables={"bad": reader}), read)()
    assert con.sql("SELECT 1").fetchone() == (1,)


def test_a_reader_that_asks_the_same_connection(con: onehop.Connection) -> None:
    def asking() -> Iterator[pyarrow.RecordBatch]:
        for n in range(3):
            row = con.sql("SELECT $1 * 10", [n]).fetchone()
            assert row is not None
            yield pyarrow.record_batch({"n": [row[0]]})

    reader = pyarrow.RecordBatchReader.from_batches(SCHEMA, asking())
    result = con.sql("SELECT n FROM r", tables={"r": reader})
    assert sorted(result.fetchall()) == [(0,), (10,), (20,)]


def test_other_libraries_read_what_python_makes(con: onehop.Connection) -> None:
    """They may call with the interpreter's lock, which the reader needs on another thread."""
    query = "SELECT n FROM r"

    def result() -> onehop.Result:
        return con.sql(query, tables={"r": pyarrow.RecordBatchReader.from_batches(SCHEMA, batches(100))})

    assert polars.DataFrame(result()).height == pyarrow.table(result()).num_rows == 100
    chain = con.sql(query, tables={"r": con.sql(query, tables={"r": result()})})
    assert sorted(chain.fetchall()) == [(n,) for n in range(100)]


def test_a_reader_that_closes_its_connection() -> None:
    con = onehop.connect()

    def closing() -> Iterator[pyarrow.RecordBatch]:
        yield from batches(1)
        con.close()
        yield from batches(1)

    with pytest.raises(onehop.InterfaceError, match="closed"):
        con.sql("SELECT n FROM r", tables={"r": pyarrow.RecordBatchReader.from_batches(SCHEMA, closing())}).fetchall()


def test_readers_run_without_holding_others_up(con: onehop.Connection) -> None:
    go = threading.Event()

    def waiting() -> Iterator[pyarrow.RecordBatch]:
        assert go.wait(60)
        yield from batches(3)

    reader = pyarrow.RecordBatchReader.from_batches(SCHEMA, waiting())
    threading.Timer(0.2, go.set).start()
    assert con.sql("SELECT sum(n) FROM r", tables={"r": reader}).fetchone() == (3,)


def test_names_are_the_sessions(con: onehop.Connection) -> None:
    table = pyarrow.table({"n": [1]})
    other = con.cursor()
    con.register("df", table)
    with pytest.raises(onehop.NotFoundError):
        other.sql("SELECT * FROM df")
    with pytest.raises(onehop.AlreadyExistsError, match="registered"):
        con.register("df", table)
    with pytest.raises(onehop.AlreadyExistsError):
        con.sql("SELECT 1", tables={"df": table})
    other.sql("CREATE TABLE df AS SELECT 2 AS n")
    with pytest.raises(onehop.ProgrammingError, match="registered by this session as well"):
        con.sql("SELECT n FROM df")
    con.unregister("df")
    assert con.sql("SELECT n FROM df").fetchone() == (2,)
    with pytest.raises(onehop.AlreadyExistsError, match='a table "df"'):
        con.register("df", table)
    with pytest.raises(onehop.NotFoundError, match="nothing is registered"):
        con.unregister("nothing")


def test_tables_of_a_call_are_gone_after_it(con: onehop.Connection) -> None:
    table = pyarrow.table({"n": [1]})
    result = con.sql("SELECT n FROM t", tables={"t": table})
    with pytest.raises(onehop.NotFoundError):
        con.sql("SELECT n FROM t")
    assert result.fetchone() == (1,)
    with pytest.raises(onehop.ProgrammingError):
        con.sql("SELECT nothing FROM t", tables={"t": table})
    assert con.sql("SELECT n FROM t", tables={"t": table}).fetchone() == (1,)


def test_the_same_text_over_other_rows(con: onehop.Connection) -> None:
    con.sql("CREATE TABLE other AS SELECT 1 AS n")
    for n in range(3):
        assert con.sql("SELECT sum(n) FROM t", tables={"t": pyarrow.table({"n": [n]})}).fetchone() == (n,)
    con.sql("CREATE TABLE t AS SELECT 7 AS n")
    assert con.sql("SELECT sum(n) FROM t").fetchone() == (7,)


@pytest.mark.parametrize("name", ["with space", 'quo"te', "Upper", "sélect", "select", "1", "a;b", "'"])
def test_odd_names(con: onehop.Connection, name: str) -> None:
    quoted = '"' + name.replace('"', '""') + '"'
    table = pyarrow.table({name: [1]})
    assert con.sql(f"SELECT {quoted} FROM {quoted}", tables={name: table}).fetchall() == [(1,)]


@pytest.mark.parametrize("name", ["", "a.csv", "a/b", "onehop_tables"])
def test_names_that_mean_something_else(con: onehop.Connection, name: str) -> None:
    with pytest.raises(onehop.ProgrammingError):
        con.register(name, pyarrow.table({"n": [1]}))


def test_nothing_stands_on_registered_rows(con: onehop.Connection) -> None:
    con.register("df", pyarrow.table({"n": [1]}))
    with pytest.raises(onehop.NotFoundError):
        con.sql("CREATE VIEW v AS SELECT * FROM df")
    for change in ("INSERT INTO df VALUES (2)", "DELETE FROM df", "UPDATE df SET n = 2", "DROP TABLE df"):
        with pytest.raises(onehop.ProgrammingError):
            con.sql(change)
    assert con.sql("SELECT n FROM df").fetchall() == [(1,)]


@pytest.mark.parametrize("rows", [[1, 2], {"n": 1}, "text", 1, None, object(), numpy.array(3), {"n": "abc"}], ids=repr)
def test_what_is_no_table_is_refused(con: onehop.Connection, rows: object) -> None:
    with pytest.raises(TypeError, match='"t" cannot be a table'):
        con.register("t", rows)


@pytest.mark.parametrize(
    "rows",
    [
        pyarrow.array([1, 2]),
        pyarrow.chunked_array([[1, 2]]),
        pyarrow.array([{"n": 1}, None]),
    ],
    ids=repr,
)
def test_arrays_that_are_no_tables_are_refused(con: onehop.Connection, rows: object) -> None:
    with pytest.raises((TypeError, ValueError), match='"t" cannot be a table'):
        con.register("t", rows)


def test_what_a_stream_method_raises_is_its_own(con: onehop.Connection) -> None:
    class Broken:
        def __arrow_c_stream__(self, requested_schema: object = None) -> object:
            raise RuntimeError("not today")

    with pytest.raises(TypeError, match="not today") as refused:
        con.register("t", Broken())
    assert isinstance(refused.value.__cause__, RuntimeError)

    class Wrong:
        def __arrow_c_stream__(self, requested_schema: object = None) -> object:
            return 42

    with pytest.raises(TypeError):
        con.register("t", Wrong())


def test_text_that_is_none_is_refused(con: onehop.Connection) -> None:
    buffers = [None, pyarrow.py_buffer(b"\x00\x00\x00\x00\x02\x00\x00\x00"), pyarrow.py_buffer(b"\xff\xfe")]
    broken = pyarrow.Array.from_buffers(pyarrow.string(), 1, buffers)
    with pytest.raises(ValueError, match='column "s" is damaged'):
        con.register("t", pyarrow.table({"s": broken}))
    reader = pyarrow.RecordBatchReader.from_batches(
        pyarrow.schema({"s": pyarrow.string()}), [pyarrow.record_batch({"s": broken})]
    )
    with pytest.raises(onehop.DataError, match="damaged"):
        con.sql("SELECT s FROM t", tables={"t": reader}).fetchall()


def test_empty_tables(con: onehop.Connection) -> None:
    assert con.sql(
        "SELECT count(*) FROM t", tables={"t": pyarrow.table({"n": pyarrow.array([], pyarrow.int64())})}
    ).fetchone() == (0,)
    none = pyarrow.table({"n": pyarrow.array([], pyarrow.int64())}).slice(0, 0)
    assert con.sql("SELECT n FROM t", tables={"t": none}).arrow().num_rows == 0
    no_columns = pandas.DataFrame(index=range(3))
    try:
        assert con.sql("SELECT count(*) FROM t", tables={"t": no_columns}).fetchone() == (3,)
    except onehop.ProgrammingError:
        pass


def test_slices_and_chunks(con: onehop.Connection) -> None:
    table = pyarrow.concat_tables(
        [
            pyarrow.table({"n": list(range(at, at + 10)), "s": [str(n) for n in range(at, at + 10)]})
            for at in (0, 10, 20)
        ]
    )
    part = table.slice(5, 17)
    back = con.sql("SELECT * FROM t", tables={"t": part}).arrow()
    assert back.to_pylist() == part.to_pylist()
    assert con.sql("SELECT n FROM t", tables={"t": part}).numpy()["n"].tolist() == list(range(5, 22))


def test_a_table_as_large_as_others(con: onehop.Connection) -> None:
    numbers = numpy.random.default_rng(1).integers(0, 1000, 2_000_000)
    table = pyarrow.table({"n": numbers, "s": numpy.char.mod("%d", numbers[:1]).repeat(len(numbers))})
    con.register("t", table)
    found = con.sql("SELECT n, count(*) FROM t GROUP BY n ORDER BY n").fetchall()
    values, counts = numpy.unique(numbers, return_counts=True)
    assert found == list(zip(values.tolist(), counts.tolist()))
    assert con.sql("SELECT n FROM t ORDER BY n").numpy()["n"].tolist() == sorted(numbers.tolist())
    assert con.sql("SELECT count(*) FROM t a JOIN t b ON a.n = b.n WHERE a.n < 0").fetchone() == (0,)


def test_arrays_keep_what_they_show(con: onehop.Connection) -> None:
    import gc

    array = con.sql("SELECT n FROM t", tables={"t": pyarrow.table({"n": numpy.arange(ROWS)})}).numpy()["n"]
    gc.collect()
    junk = [numpy.full(ROWS, 7) for _ in range(10)]
    assert array.tolist() == list(range(ROWS)) and len(junk) == 10


def test_dropping_a_relation_while_it_is_read(con: onehop.Connection) -> None:
    con.register("t", pyarrow.table({"n": numpy.arange(10 * ROWS)}))
    result = con.sql("SELECT n FROM t")
    con.unregister("t")
    assert len(result.fetchall()) == 10 * ROWS


def columns_of(con: onehop.Connection, rows: object) -> dict[str, list[Any]]:
    table = con.sql("SELECT * FROM t", tables={"t": rows}).arrow()
    return dict(zip(table.column_names, (column.to_pylist() for column in table.columns)))


@pytest.mark.parametrize(
    "rows, expected",
    [
        (pandas.Series([1, None], name="s", index=[4, 5]), {"s": [1.0, None]}),
        (pandas.Series([1, 2]), {"value": [1, 2]}),
        (pandas.Index([3, 4]), {"value": [3, 4]}),
        (polars.Series("s", [1, None]), {"s": [1, None]}),
        (polars.Series([1, 2]), {"value": [1, 2]}),
        (polars.LazyFrame({"a": [1]}).with_columns(b=polars.col("a") + 1), {"a": [1], "b": [2]}),
        ({"a": numpy.array([1, 2]), "b": ["x", None]}, {"a": [1, 2], "b": ["x", None]}),
        (numpy.array([1, 2], dtype=">i4"), {"column0": [1, 2]}),
        (numpy.array([[1, 2], [3, 4]]), {"column0": [1, 2], "column1": [3, 4]}),
        ([numpy.array([1]), numpy.array(["x"])], {"column0": [1], "column1": ["x"]}),
        (numpy.array([(1, 2.5)], dtype=[("p", "i4"), ("q", "f8")]), {"p": [1], "q": [2.5]}),
        (numpy.ma.MaskedArray([1, 2], mask=[False, True]), {"column0": [1, None]}),
        (polars.DataFrame({"a": [1], "c": [None]}), {"a": [1], "c": [None]}),
        (polars.DataFrame({"a": [[None]], "c": [{"z": None}]}), {"a": [[None]], "c": [{"z": None}]}),
        (polars.DataFrame({"c": polars.Series([None, None], dtype=polars.Categorical)}), {"c": [None, None]}),
        (polars.DataFrame({"c": polars.Series([None], dtype=polars.Enum(["a"]))}), {"c": [None]}),
        (pyarrow.table({"c": pyarrow.array([[(1, "x")], None], pyarrow.map_(pyarrow.int64(), pyarrow.string()))}).to_pandas(),
         {"c": [[(1, "x")], None]}),
        (pandas.DataFrame({0: [1], 1: [2]}), {"0": [1], "1": [2]}),
        (pandas.DataFrame({"a": pandas.arrays.SparseArray([0, 1])}), {"a": [0, 1]}),
        (pandas.DataFrame({"a": pandas.Series([pandas.Timestamp(1), None], dtype=object)}), {"a": [pandas.Timestamp(1), None]}),
    ],
    ids=lambda rows: type(rows).__name__,
)  # fmt: skip
def test_more_kinds_of_tables(con: onehop.Connection, rows: object, expected: dict[str, list[Any]]) -> None:
    assert columns_of(con, rows) == expected


@pytest.mark.parametrize(
    "rows, says",
    [
        (polars.DataFrame({"c": polars.Series([object()], dtype=polars.Object)}), 'column "c" is of type Object'),
        (pandas.DataFrame({"c": [1, "x"]}), 'column "c"'),
        (pandas.DataFrame({"c": pandas.Series([datetime.date(2020, 1, 1), datetime.datetime(2020, 1, 1, 5)])}), "dates"),
        (pandas.DataFrame({"c": [pandas.Timestamp(0), pandas.Timestamp(0, tz="UTC")]}), "others without"),
        (pandas.DataFrame({"c": [datetime.time(1, tzinfo=datetime.timezone.utc)]}), "time zone"),
        (pandas.DataFrame({"c": ["x", b"x"]}), "texts and bytes"),
        (pandas.DataFrame({"c": [[pandas.Timestamp(1)]]}), "nanoseconds"),
        (pandas.DataFrame([[1, 2]], columns=["a", "a"]), "two of its columns"),
        (pandas.DataFrame([[1, 2]], columns=[0, "0"]), "two of its columns"),
        ({"a": [1, 2], "b": [1]}, "1 to 2 values"),
        (numpy.zeros((1, 1, 1)), "3 dimensions"),
    ],
)
def test_what_would_be_another_value_is_refused(con: onehop.Connection, rows: object, says: str) -> None:
    with pytest.raises(TypeError, match=f'"t" cannot be a table.*{says}'):
        con.register("t", rows)


def test_data_sets_are_read_anew(con: onehop.Connection, tmp_path: Path) -> None:
    import pyarrow.dataset
    import pyarrow.parquet

    pyarrow.parquet.write_table(pyarrow.table({"a": list(range(1000))}), tmp_path / "a.parquet")
    data = pyarrow.dataset.dataset(tmp_path / "a.parquet")
    con.register("data", data)
    for _ in range(3):
        assert con.sql("SELECT count(*), sum(a) FROM data").fetchone() == (1000, 499500)
    assert con.sql("SELECT count(*) FROM data x JOIN data y USING (a)").fetchone() == (1000,)
    scanner = data.scanner(columns=["a"], filter=pyarrow.dataset.field("a") < 10)
    assert con.sql("SELECT count(*) FROM t", tables={"t": scanner}).fetchone() == (10,)
    (tmp_path / "a.parquet").unlink()
    with pytest.raises(onehop.Error, match='"data"'):
        con.sql("SELECT sum(a) FROM data").fetchall()


def test_an_index_is_no_column(con: onehop.Connection) -> None:
    frame = pandas.DataFrame({"k": [1, 2, 3, 4], "a": [1, 2, 3, 4]})
    some = frame[frame.k != 3]
    con.sql("CREATE TABLE dst (k BIGINT, a BIGINT)")
    assert con.sql("INSERT INTO dst SELECT * FROM f", tables={"f": some}).rowcount == 3
    same = pandas.DataFrame({"k": [1, 1, 1]}, index=[3, 7, 8])
    assert con.sql("SELECT count(*) FROM (SELECT DISTINCT * FROM t)", tables={"t": same}).fetchone() == (1,)
    both = {"t": pandas.DataFrame({"k": [1], "a": [1]}, index=[5]), "u": pandas.DataFrame({"k": [1], "b": [2]}, index=[5])}
    assert list(con.sql("SELECT * FROM t JOIN u USING (k)", tables=both).df().columns) == ["k", "a", "b"]
    assert list(con.sql("SELECT * FROM t NATURAL JOIN u", tables=both).df().columns) == ["k", "a", "b"]
    for index in (pandas.Index(["x"], name="k"), pandas.MultiIndex.from_tuples([(1, 2)], names=["k", None])):
        assert columns_of(con, both["t"].set_axis(index)) == {"k": [1], "a": [1]}
    assert columns_of(con, both["t"].reset_index()) == {"index": [5], "k": [1], "a": [1]}
