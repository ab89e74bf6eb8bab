"""A server that runs out of `memory_limit`: who is told, and what is left."""

import gzip
import resource
import sys
import time
from pathlib import Path

import psycopg
import pytest

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "limits"))
from server import resident  # noqa: E402


def test_cursors_that_wait_give_their_memory_back(make_server):
    server = make_server("--set", "memory_limit=400MB", "--set", "threads=1")
    with psycopg.connect(server.conninfo()) as connection:
        # A debug build has some 150 MiB of its own, and each cursor some 12.
        with pytest.raises(psycopg.errors.OutOfMemory), connection.transaction():
            for number in range(80):
                query = "SELECT x, repeat('x', 1000) FROM generate_series(1, 10000000) AS t(x)"
                connection.execute(f"DECLARE c{number} CURSOR FOR {query}")
                for fetched in range(number + 1):
                    assert len(connection.execute(f"FETCH 3 FROM c{fetched}").fetchall()) == 3
        assert resident(server.process.pid, "VmHWM") < 600
        assert connection.execute("SELECT sum(value) FROM generate_series(1, 1000)").fetchone() == (500500,)
        held = "SELECT used_bytes FROM onehop_memory WHERE name = 'allocated'"
        until = time.monotonic() + 30
        while connection.execute(held).fetchone()[0] > 30 << 20:
            assert time.monotonic() < until
            time.sleep(0.01)


# A debug build holds some 200 MiB without any statement, and `memory_limit` has that in it.
PEAK = 600
LIMITED = ("--set", "memory_limit=256MB", "--set", "threads=2")
# More than `memory_limit`, and less than a process that does not ask first would get.
ADDRESS_SPACE = 12_000_000 << 10


@pytest.mark.parametrize(
    "statement",
    [
        "SELECT array_length(range(0, 500000000))",
        "SELECT array_length(range(0, n)) FROM (VALUES (500000000)) AS v(n)",
        "SELECT array_length(generate_series(n, 0, -1)) FROM (VALUES (400000000)) AS v(n)",
        "SELECT sum(x) FROM (SELECT unnest(range(0, 300000000)) AS x)",
        "SELECT array_length(range(TIMESTAMP '2000-01-01', TIMESTAMP '2100-01-01', INTERVAL '1 minute'))",
        "SELECT array_length(generate_series(TIMESTAMPTZ '2000-01-01', t, INTERVAL '1 minute'))"
        " FROM (VALUES (TIMESTAMPTZ '2100-01-01')) AS v(t)",
        "SELECT array_length(array_repeat(n, 500000000)) FROM (VALUES (7)) AS v(n)",
        "SELECT count(*) FROM (SELECT regexp_matches(repeat('a', 30000000), 'a', 'g'))",
        "SELECT array_length(string_to_array(repeat('a,', 100000000), ','))",
        "SELECT array_length(array_resize([n], 500000000)) FROM (VALUES (7)) AS v(n)",
        "SELECT length(replace(repeat('a', n), 'a', repeat('b', 1000))) FROM (VALUES (1000000)) AS v(n)",
        "SELECT length(array_to_string(range(0, n), repeat('b', 1000))) FROM (VALUES (1000000)) AS v(n)",
    ],
)
def test_lists_that_do_not_fit_are_refused(make_server, statement):
    server = make_server(*LIMITED)
    resource.prlimit(server.process.pid, resource.RLIMIT_AS, (ADDRESS_SPACE, ADDRESS_SPACE))
    with psycopg.connect(server.conninfo(), autocommit=True) as connection:
        for _ in range(6):
            with pytest.raises(psycopg.errors.OutOfMemory):
                connection.execute(statement)
        assert resident(server.process.pid, "VmHWM") < PEAK
        assert connection.execute("SELECT 1").fetchone() == (1,)


@pytest.mark.parametrize("closes", ["transaction", "connection"])
def test_memory_of_cursors_is_shown_and_given_back(make_server, closes):
    server = make_server("--set", "memory_limit=1GB", "--set", "threads=1")
    held = "SELECT coalesce(sum(used_bytes), 0) FROM onehop_memory WHERE name LIKE 'statement %'"
    with psycopg.connect(server.conninfo(), autocommit=True) as other:
        before = other.execute(held).fetchone()[0]
        connection = psycopg.connect(server.conninfo())
        for number in range(5):
            query = "SELECT x, repeat('x', 2000) FROM generate_series(1, 10000000) AS t(x)"
            connection.execute(f"DECLARE c{number} CURSOR FOR {query}")
            connection.execute(f"FETCH 1 FROM c{number}")
        assert other.execute(held).fetchone()[0] > before + (5 << 20)
        connection.rollback() if closes == "transaction" else connection.close()
        until = time.monotonic() + 30
        while other.execute(held).fetchone()[0] > before + (1 << 20):
            assert time.monotonic() < until
            time.sleep(0.01)
        connection.close()


@pytest.mark.parametrize("extension", ["json", "csv"])
def test_a_record_without_an_end_has_a_bound(make_server, tmp_path, extension):
    record = (b'{"a": "' if extension == "json" else b'a\n"') + b"x" * (300 << 20)
    path = tmp_path / f"endless.{extension}.gz"
    path.write_bytes(gzip.compress(record, compresslevel=1))
    server = make_server(*LIMITED)
    with psycopg.connect(server.conninfo(), autocommit=True) as connection:
        with pytest.raises(psycopg.Error, match="longer than"):
            connection.execute(f"SELECT count(*) FROM '{path}'")
        assert resident(server.process.pid, "VmHWM") < PEAK
        assert connection.execute("SELECT 1").fetchone() == (1,)


def test_texts_that_a_dictionary_repeats_have_room_or_are_refused(make_server, tmp_path):
    path = tmp_path / "wide.parquet"
    server = make_server(*LIMITED)
    with psycopg.connect(server.conninfo(), autocommit=True) as connection:
        rows = "SELECT repeat('a', 500000) AS s FROM generate_series(1, 1000)"
        connection.execute(f"COPY ({rows}) TO '{path}' (FORMAT parquet, COMPRESSION zstd)")
        assert path.stat().st_size < 1 << 20
        for query, expected in [("SELECT length(max(s))", 500000), ("SELECT count(DISTINCT s)", 1)]:
            try:
                assert connection.execute(f"{query} FROM '{path}'").fetchone() == (expected,)
            except psycopg.errors.OutOfMemory:
                pass
        assert resident(server.process.pid, "VmHWM") < PEAK


def test_statements_of_megabytes_hold_to_the_limit(make_server):
    server = make_server(*LIMITED)
    with psycopg.connect(server.conninfo(), autocommit=True) as connection:
        # Passes of the planner copy a constant.
        try:
            length = connection.execute("SELECT length('" + "x" * 20_000_000 + "')").fetchone()
            assert length == (20_000_000,)
        except psycopg.errors.OutOfMemory:
            pass
        with pytest.raises(psycopg.Error, match="SELECTs"):
            connection.execute(" UNION ALL ".join(["SELECT 1"] * 50_000))
        assert resident(server.process.pid, "VmHWM") < PEAK
        assert connection.execute("SELECT 1").fetchone() == (1,)


def test_windows_over_groups_hold_to_the_limit(make_server):
    server = make_server(*LIMITED)
    with psycopg.connect(server.conninfo(), autocommit=True) as connection:
        rows = "SELECT value % 1000 AS k FROM generate_series(1, 3000000)"
        counts = f"SELECT count(*) OVER (PARTITION BY k) AS c FROM ({rows})"
        assert connection.execute(f"SELECT sum(c) FROM ({counts})").fetchone() == (9_000_000_000,)
        assert resident(server.process.pid, "VmHWM") < PEAK


def keep_in_transaction(connection):
    connection.execute("CREATE TABLE kept (n BIGINT, s VARCHAR)")
    with connection.transaction():
        for _ in range(2000):
            connection.execute("INSERT INTO kept SELECT value, repeat('x', 500) FROM generate_series(1, 5000)")


def keep_prepared(connection):
    for number in range(5000):
        connection.execute(f"PREPARE p{number} AS SELECT '{'x' * 300_000}'")


def keep_prepared_by_protocol(connection):
    for number in range(5000):
        answer = connection.pgconn.prepare(b"p%d" % number, b"SELECT '%s'" % (b"x" * 300_000))
        if answer.status != psycopg.pq.ExecStatus.COMMAND_OK:
            raise psycopg.errors.OutOfMemory(answer.error_message.decode())


def keep_in_memory(connection):
    connection.execute("CREATE TABLE kept (n BIGINT, s VARCHAR)")
    for number in range(2000):
        connection.execute(f"INSERT INTO kept VALUES ({number}, '{'x' * 300_000}')")


@pytest.mark.parametrize("keep", [keep_in_transaction, keep_prepared, keep_prepared_by_protocol, keep_in_memory])
def test_what_is_kept_is_bounded(make_server, keep):
    server = make_server(*LIMITED)
    with psycopg.connect(server.conninfo(), autocommit=True) as connection:
        with pytest.raises(psycopg.errors.OutOfMemory) as refused:
            keep(connection)
        assert "memory_limit" in str(refused.value)
        assert resident(server.process.pid, "VmHWM") < PEAK
        # Queries go on, and what is given up makes room.
        assert connection.execute("SELECT sum(value) FROM generate_series(1, 1000)").fetchone() == (500500,)
        connection.execute("DEALLOCATE ALL")
        connection.execute("DROP TABLE IF EXISTS kept")
    until = time.monotonic() + 30
    while True:
        with psycopg.connect(server.conninfo(), autocommit=True) as connection:
            try:
                connection.execute("CREATE TABLE next AS SELECT 1 AS one")
                break
            except psycopg.errors.OutOfMemory:
                assert time.monotonic() < until
                time.sleep(0.05)


@pytest.mark.parametrize("format", ["text", "csv", "binary"])
def test_a_value_that_a_client_copies_is_bounded(make_server, format):
    server = make_server(*LIMITED)
    with psycopg.connect(server.conninfo(), autocommit=True) as connection:
        connection.execute("CREATE TABLE t (s VARCHAR)")
        with pytest.raises(psycopg.errors.BadCopyFileFormat, match="longer than 30 MiB"), connection.cursor() as cursor:
            with cursor.copy(f"COPY t FROM STDIN (FORMAT {format})") as copy:
                if format == "binary":
                    copy.write(b"PGCOPY\n\xff\r\n\0" + bytes(8) + b"\0\1" + (200 << 20).to_bytes(4, "big"))
                for _ in range(200):
                    copy.write(b"x" * (1 << 20))
        assert resident(server.process.pid, "VmHWM") < PEAK
