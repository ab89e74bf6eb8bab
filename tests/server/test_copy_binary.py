"""COPY in PostgreSQL's binary format: byte for byte what PostgreSQL 15 writes for the same table, of all types that tables have, and
back again."""

import psycopg
import pytest

COLUMNS = """b BOOLEAN, s SMALLINT, i INTEGER, l BIGINT, r REAL, d DOUBLE PRECISION, n NUMERIC(20,5), t VARCHAR, e DATE,
    p TIMESTAMP, z TIMESTAMPTZ"""
ROWS = r"""(true, -7, 2147483647, -9223372036854775808, 1.5, -0.1, 12345.67890, 'it''s ä', '2024-02-29',
    '1969-12-31 23:59:59.999999', '2024-07-01 12:00:00+02'),
    (false, 0, 0, 0, 'NaN', 'Infinity', -0.00001, '', '0001-01-01', '2000-01-01 00:00:00', '2000-01-01 00:00:00+00'),
    (NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL)"""
# CREATE TABLE b (COLUMNS); INSERT INTO b VALUES ROWS; COPY b TO STDOUT (FORMAT binary), of PostgreSQL 15.
BYTES = bytes.fromhex(
    "5047434f50590aff0d0a000000000000000000000b000000010100000002fff9000000047fffffff000000088000000000000000000000"
    "043fc0000000000008bfb999999999999a0000000e0003000100000005000109291a85000000076974277320c3a4000000040000227900"
    "000008fffca2fec4c81fff000000080002bf2b6dcbe800000b000000010000000002000000000004000000000000000800000000000000"
    "00000000047fc00000000000087ff00000000000000000000a0001fffe4000000503e80000000000000004fff4dbf90000000800000000"
    "00000000000000080000000000000000000bffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffff"
    "ffffffffffffffffff"
)


@pytest.fixture
def connection(server):
    with psycopg.connect(server.conninfo(), autocommit=True) as connection:
        connection.execute(f"CREATE TABLE b ({COLUMNS})")
        yield connection


def copied_out(connection, query="COPY b TO STDOUT (FORMAT binary)"):
    with connection.cursor().copy(query) as copy:
        return b"".join(map(bytes, copy))


@pytest.mark.parametrize("piece", [1, 7, 100_000])
def test_postgresql_s_bytes_go_in_and_come_out(connection, piece):
    with connection.cursor().copy("COPY b FROM STDIN (FORMAT binary)") as copy:
        for at in range(0, len(BYTES), piece):
            copy.write(BYTES[at : at + piece])
    assert copied_out(connection) == BYTES
    found = connection.execute("SELECT i, t, CAST(n AS VARCHAR), CAST(z AS VARCHAR) FROM b ORDER BY i NULLS LAST").fetchall()
    assert [row[:2] for row in found] == [(0, ""), (2147483647, "it's ä"), (None, None)]
    assert found[1][2] == "12345.67890"


def test_rows_of_psycopg(connection):
    types = ["int4", "text", "float8"]
    with connection.cursor().copy("COPY b (i, t, d) FROM STDIN WITH BINARY") as copy:
        copy.set_types(types)
        for number in range(20_000):
            copy.write_row((number, None if number % 7 == 0 else f"row {number}", number / 4))
    assert connection.execute("SELECT count(*), sum(i), count(t), sum(d) FROM b").fetchone() == (20_000, 199_990_000, 17_142, 49_997_500.0)
    with connection.cursor().copy("COPY (SELECT i, t, d FROM b WHERE i < 3 ORDER BY i) TO STDOUT (FORMAT binary)") as copy:
        copy.set_types(types)
        assert list(copy.rows()) == [(0, None, 0.0), (1, "row 1", 0.25), (2, "row 2", 0.5)]
    empty = copied_out(connection, "COPY (SELECT i FROM b WHERE i < 0) TO STDOUT (FORMAT binary)")
    assert empty == BYTES[:19] + b"\xff\xff"


@pytest.mark.parametrize(
    ("bytes_", "said"),
    [
        (b"1\t2\n", "signature not recognized"),
        (BYTES[:19] + b"\0\2", "row field count is 2, expected 11"),
        (BYTES[:60], "unexpected EOF"),
        (BYTES + b"\0", "after EOF"),
        (BYTES[:26] + b"\0\0\0\1" + BYTES[31:], "incorrect binary data format"),
    ],
)
def test_what_is_no_such_thing_leaves_nothing(connection, bytes_, said):
    with pytest.raises(psycopg.DataError, match=said):
        with connection.cursor().copy("COPY b FROM STDIN (FORMAT binary)") as copy:
            copy.write(bytes_)
    assert connection.execute("SELECT count(*) FROM b").fetchone() == (0,)
