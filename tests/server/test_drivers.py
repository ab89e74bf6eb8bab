"""psycopg 3 and SQLAlchemy, as their documentation uses them."""

import datetime
import decimal
import threading

import psycopg
import psycopg.rows
import pytest
import sqlalchemy as sa


@pytest.fixture
def connection(server):
    with psycopg.connect(server.conninfo(), autocommit=True) as connection:
        yield connection


def test_values_come_back_as_they_went(connection):
    connection.execute(
        "CREATE TABLE t (a BIGINT, b DOUBLE, c DECIMAL(20,5), d VARCHAR, e DATE, f TIMESTAMP, g BOOLEAN, h TIMESTAMPTZ)"
    )
    utc = datetime.timezone.utc
    rows = [
        (1, 0.1, decimal.Decimal("12.50000"), "it's ä", datetime.date(2024, 2, 29), datetime.datetime(2024, 2, 29, 12, 0, 0, 5), True, datetime.datetime(2024, 7, 1, tzinfo=utc)),
        (-(2**63), float("-inf"), decimal.Decimal("-123456789012345.00001"), "", datetime.date(1, 1, 1), datetime.datetime(1, 1, 1), False, datetime.datetime(1969, 12, 31, 23, 59, 59, tzinfo=utc)),
        (None,) * 8,
    ]
    with connection.cursor() as cursor:
        cursor.executemany("INSERT INTO t VALUES (%s, %s, %s, %s, %s, %s, %s, %s)", rows)
        for binary in (False, True):
            found = connection.cursor(binary=binary).execute("SELECT * FROM t ORDER BY a DESC NULLS LAST").fetchall()
            assert found == rows, f"binary: {binary}"
            found = connection.cursor(binary=binary).execute("SELECT count(*) FROM t WHERE c = %b AND d = %b", (rows[0][2], rows[0][3])).fetchone()
            assert found == (1,)


def test_lists_as_parameters(connection):
    connection.execute("CREATE TABLE t (a BIGINT)")
    connection.execute("INSERT INTO t VALUES (1), (2), (3)")
    found = connection.execute("SELECT a FROM t WHERE a = ANY(%s) ORDER BY a", ([1, 3, 5],)).fetchall()
    assert found == [(1,), (3,)]


def test_transactions_and_their_states(server):
    with psycopg.connect(server.conninfo(), autocommit=True) as connection:
        connection.execute("CREATE TABLE t (a INTEGER)")
        with pytest.raises(ZeroDivisionError):
            with connection.transaction():
                connection.execute("INSERT INTO t VALUES (1)")
                1 / 0
        with connection.transaction():
            connection.execute("INSERT INTO t VALUES (2)")
            with pytest.raises(psycopg.errors.UndefinedTable):
                with connection.transaction():
                    connection.execute("SELECT * FROM missing")
        assert connection.execute("SELECT a FROM t").fetchall() == [(2,)]
        connection.autocommit = False
        with pytest.raises(psycopg.errors.DivisionByZero):
            connection.execute("SELECT 1/0")
        with pytest.raises(psycopg.errors.InFailedSqlTransaction):
            connection.execute("SELECT 1")
        connection.rollback()


def test_copy(connection):
    connection.execute("CREATE TABLE t (a INTEGER, b VARCHAR)")
    with connection.cursor().copy("COPY t (a, b) FROM STDIN") as copy:
        for row in [(1, "x\ty"), (2, None), (3, "\\N")]:
            copy.write_row(row)
    with connection.cursor().copy("COPY t TO STDOUT") as copy:
        assert sorted(copy.rows()) == [("1", "x\ty"), ("2", None), ("3", "\\N")]
    with pytest.raises(psycopg.errors.QueryCanceled):
        with connection.cursor().copy("COPY t FROM STDIN") as copy:
            copy.write(b"4\tz\n")
            raise psycopg.errors.QueryCanceled("enough")
    assert connection.execute("SELECT count(*) FROM t").fetchone() == (3,)


def test_temporary_tables(server):
    with psycopg.connect(server.conninfo()) as one, psycopg.connect(server.conninfo(), autocommit=True) as other:
        one.execute("CREATE TABLE kept (a INTEGER)")
        one.execute("CREATE TEMPORARY TABLE staged (a INTEGER) ON COMMIT DROP")
        with one.cursor().copy("COPY staged FROM STDIN") as copy:
            for number in range(20_000):
                copy.write_row((number,))
        one.execute("INSERT INTO kept SELECT a FROM staged WHERE a % 2 = 0")
        with pytest.raises(psycopg.errors.UndefinedTable):
            other.execute("SELECT * FROM staged")
        other.execute("CREATE TEMP TABLE staged AS SELECT 'mine' AS word")
        one.commit()
        with pytest.raises(psycopg.errors.UndefinedTable):
            one.execute("SELECT * FROM staged")
        one.rollback()
        assert one.execute("SELECT count(*), max(a) FROM kept").fetchone() == (10_000, 19_998)
        assert other.execute("SELECT word FROM staged").fetchone() == ("mine",)
        # What a pool says before it hands a connection to the next.
        other.execute("DISCARD ALL")
        with pytest.raises(psycopg.errors.UndefinedTable):
            other.execute("SELECT * FROM staged")


def test_server_side_cursor_fetches_in_parts(server):
    with psycopg.connect(server.conninfo()) as connection:
        cursor = connection.cursor(binary=True)
        rows = cursor.stream("SELECT value FROM generate_series(1, 100000)")
        assert sum(value for (value,) in rows) == 100000 * 100001 // 2


def test_cursors_by_name(server):
    with psycopg.connect(server.conninfo()) as connection:
        with connection.cursor("own") as cursor:
            cursor.itersize = 1000
            cursor.execute("SELECT value, value * 2 AS twice FROM generate_series(1, %s) ORDER BY value", (10_000,))
            assert [column.name for column in cursor.description] == ["value", "twice"]
            assert cursor.fetchmany(3) == [(1, 2), (2, 4), (3, 6)]
            cursor.scroll(2)
            assert cursor.fetchone() == (6, 12)
            assert sum(1 for _ in cursor) == 9_994
        with connection.cursor("\"odd\" name", binary=True) as cursor:
            cursor.execute("SELECT 1.5, 'x'")
            assert cursor.fetchall() == [(decimal.Decimal("1.5"), "x")]
        connection.execute("DECLARE c CURSOR FOR SELECT 1")
        with pytest.raises(psycopg.errors.DuplicateCursor):
            connection.execute("DECLARE c CURSOR FOR SELECT 1")
        connection.rollback()
        with pytest.raises(psycopg.errors.InvalidCursorName):
            connection.execute("FETCH c")
    with psycopg.connect(server.conninfo(), autocommit=True) as connection:
        with pytest.raises(psycopg.errors.NoActiveSqlTransaction):
            connection.execute("DECLARE c CURSOR FOR SELECT 1")
        # One that is held is over what was there, and in nobody's way.
        connection.execute("CREATE TABLE held (x INT)")
        connection.execute("INSERT INTO held SELECT value FROM generate_series(1, 100000)")
        with connection.cursor("kept", withhold=True) as cursor:
            cursor.execute("SELECT x FROM held")
            assert len(cursor.fetchmany(10)) == 10
            connection.execute("DELETE FROM held")
            connection.execute("DROP TABLE held")
            assert sum(1 for _ in cursor) == 99_990


def test_cursors_are_over_what_was_there(server):
    with psycopg.connect(server.conninfo(), autocommit=True) as connection, psycopg.connect(server.conninfo(), autocommit=True) as other:
        connection.execute("CREATE TABLE m (a INT)")
        connection.execute("INSERT INTO m VALUES (1), (2), (3)")
        declare = "DECLARE h CURSOR WITH HOLD FOR SELECT a FROM m ORDER BY a"
        connection.execute(declare)
        other.execute("DELETE FROM m WHERE a < 3")
        assert connection.execute("FETCH ALL FROM h").fetchall() == [(1,), (2,), (3,)]
        connection.execute("CLOSE h")
        # What was never committed is in no cursor either.
        for undone in ("ROLLBACK", "ROLLBACK TO s"):
            for statement in ("BEGIN", "SAVEPOINT s", "INSERT INTO m VALUES (100)", declare, "FETCH 1 FROM h", undone):
                connection.execute(statement)
            with pytest.raises(psycopg.errors.InvalidCursorName):
                connection.execute("FETCH ALL FROM h")
            connection.execute("ROLLBACK")
        for statement in ("BEGIN", "INSERT INTO m VALUES (9)", declare, "DELETE FROM m", "COMMIT"):
            connection.execute(statement)
        assert connection.execute("FETCH ALL FROM h").fetchall() == [(3,), (9,)]


def test_columns_are_called_as_by_postgresql(connection):
    row = connection.cursor(row_factory=psycopg.rows.dict_row).execute("SELECT count(*), max(value)::text, 1 AS one FROM generate_series(1, 3)").fetchone()
    assert row == {"count": 3, "max": "3", "one": 1}
    names = [column.name for column in connection.execute("SELECT 1, 2, value, value FROM generate_series(1, 1)").description]
    assert names == ["?column?", "?column?", "value", "value"]


def test_transactions_that_only_read(server):
    with psycopg.connect(server.conninfo()) as connection:
        connection.execute("CREATE TABLE only_read (x INT)")
        connection.commit()
        connection.read_only = True
        assert connection.execute("SELECT count(*) FROM only_read").fetchone() == (0,)
        with pytest.raises(psycopg.errors.ReadOnlySqlTransaction):
            connection.execute("INSERT INTO only_read VALUES (1)")
        connection.rollback()
        connection.read_only = False
        connection.execute("INSERT INTO only_read VALUES (1)")


def test_rows_are_locked(server):
    """What Django's select_for_update() and SQLAlchemy's with_for_update() send."""
    engine = sa.create_engine(f"postgresql+psycopg://ada@127.0.0.1:{server.port}/test")
    stock = sa.Table("stock", sa.MetaData(), sa.Column("id", sa.BigInteger), sa.Column("pieces", sa.BigInteger))
    with engine.begin() as connection:
        stock.create(connection)
        connection.execute(stock.insert(), [{"id": 1, "pieces": 5}, {"id": 2, "pieces": 7}])
    query = sa.select(stock.c.pieces).where(stock.c.id == 1)
    with engine.begin() as one, engine.begin() as other:
        assert one.scalar(query.with_for_update()) == 5
        assert other.scalar(query) == 5
        with pytest.raises(sa.exc.OperationalError) as refused, other.begin_nested():
            other.execute(query.with_for_update(nowait=True))
        assert isinstance(refused.value.orig, psycopg.errors.LockNotAvailable)
        one.execute(stock.update().where(stock.c.id == 1).values(pieces=4))
    with engine.begin() as connection:
        assert connection.scalar(query.with_for_update(read=True, of=stock)) == 4
        for options in ({"skip_locked": True}, {"key_share": True}, {"key_share": True, "read": True}, {"of": [stock, stock.c.id]}):
            assert connection.scalar(query.with_for_update(**options)) == 4
    with psycopg.connect(server.conninfo()) as one, psycopg.connect(server.conninfo()) as other:
        assert one.execute("SELECT pieces FROM stock WHERE id = %s", (2,)).fetchone() == (7,)
        other.execute("UPDATE stock SET pieces = 6 WHERE id = 2")
        other.commit()
        with pytest.raises(psycopg.errors.SerializationFailure):
            one.execute("SELECT pieces FROM stock WHERE id = %s FOR UPDATE", (2,))
        one.rollback()
        assert one.execute("SELECT pieces FROM stock WHERE id = %s FOR UPDATE", (2,)).fetchone() == (6,)


def test_a_query_is_cancelled_from_another_thread(connection):
    timer = threading.Timer(0.5, connection.cancel_safe)
    timer.start()
    with pytest.raises(psycopg.errors.QueryCanceled):
        connection.execute(
            "SELECT count(*) FROM generate_series(1, 100000000) a, generate_series(1, 100000000) b WHERE a.a = -b.b"
        )
    timer.join()
    assert connection.execute("SELECT 1").fetchone() == (1,)


def test_notices_and_parameters(connection):
    notices = []
    connection.add_notice_handler(lambda notice: notices.append(notice.message_primary))
    connection.execute("COMMIT")
    assert notices == ["there is no transaction to commit: every statement by itself is one"]
    connection.execute("SET TIME ZONE 'Europe/Berlin'")
    assert connection.info.parameter_status("TimeZone") == "Europe/Berlin"
    at = connection.execute("SELECT TIMESTAMPTZ '2024-07-01 00:00:00+00'").fetchone()[0]
    assert at.isoformat() == "2024-07-01T02:00:00+02:00"
    assert connection.info.server_version == 150000


def test_pipeline(connection):
    connection.execute("CREATE TABLE t (a INTEGER)")
    with connection.pipeline() as pipeline:
        for value in range(10):
            connection.execute("INSERT INTO t VALUES (%s)", (value,))
        count = connection.execute("SELECT count(*), sum(a) FROM t")
        pipeline.sync()
        assert count.fetchone() == (10, 45)


def test_sqlalchemy(server):
    engine = sa.create_engine(
        f"postgresql+psycopg://ada@127.0.0.1:{server.port}/test", isolation_level="AUTOCOMMIT"
    )
    metadata = sa.MetaData()
    people = sa.Table(
        "people",
        metadata,
        sa.Column("id", sa.BigInteger, nullable=False),
        sa.Column("name", sa.String),
        sa.Column("height", sa.Numeric(5, 2)),
    )
    metadata.create_all(engine)
    metadata.create_all(engine)
    with engine.connect() as connection:
        connection.execute(people.insert(), [{"id": 1, "name": "Ada", "height": decimal.Decimal("1.65")}, {"id": 2, "name": None, "height": None}])
        query = sa.select(people.c.name, people.c.height).where(people.c.id.in_([1, 3]))
        assert connection.execute(query).all() == [("Ada", decimal.Decimal("1.65"))]
    inspector = sa.inspect(engine)
    assert inspector.get_table_names() == ["people"]
    assert inspector.has_table("people") and not inspector.has_table("nobody")
    columns = {column["name"]: column for column in inspector.get_columns("people")}
    assert str(columns["height"]["type"]) == "NUMERIC(5, 2)" and not columns["id"]["nullable"]
    assert inspector.get_pk_constraint("people")["constrained_columns"] == []
    assert inspector.get_foreign_keys("people") == [] and inspector.get_indexes("people") == []
    with engine.connect() as connection:
        connection.execute(sa.text("CREATE TEMP TABLE scratch (a INTEGER)"))
        inspector = sa.inspect(connection)
        assert inspector.get_temp_table_names() == ["scratch"] and inspector.get_table_names() == ["people"]
    reflected = sa.Table("people", sa.MetaData(), autoload_with=engine)
    assert [column.name for column in reflected.columns] == ["id", "name", "height"]
