"""ATTACH of a real PostgreSQL: its own answers are what is expected, of every type it has, of random conditions, and of one moment."""

import random
import threading
import time

import psycopg
import pytest
from pg import PASSWORD, Postgres
from test_process import add_user


@pytest.fixture(scope="module")
def postgres():
    server = Postgres()
    with psycopg.connect(server.conninfo(), autocommit=True) as connection:
        connection.execute("CREATE SCHEMA \"My Schema\"")
    yield server
    server.stop()


@pytest.fixture
def pg(postgres):
    with psycopg.connect(postgres.conninfo(), autocommit=True) as connection:
        yield connection


@pytest.fixture
def onehop(make_server, postgres):
    server = make_server()
    with psycopg.connect(server.conninfo(), autocommit=True) as connection:
        connection.execute(f"ATTACH '{postgres.url()}' AS pg")
        yield connection


def made(pg, name, columns, rows=()):
    pg.execute(f"DROP TABLE IF EXISTS {name} CASCADE")
    pg.execute(f"CREATE TABLE {name} ({columns})")
    for row in rows:
        pg.execute(f"INSERT INTO {name} VALUES ({row})")
    pg.execute(f"ANALYZE {name}")


TYPES = {
    "boolean": ["true", "false"],
    "smallint": ["-32768", "32767", "0"],
    "integer": ["-2147483648", "2147483647"],
    "bigint": ["-9223372036854775808", "9223372036854775807"],
    "real": ["'-1.5'", "'3.4028235e38'", "'NaN'", "'-Infinity'", "'1e-45'"],
    "double precision": ["'-0'", "'1.7976931348623157e308'", "'NaN'", "'Infinity'", "'5e-324'", "0.1"],
    "numeric(15,2)": ["-9999999999999.99", "0.01", "0", "12345678.9", "10000", "-0.05"],
    "numeric(38,0)": ["99999999999999999999999999999999999999", "-1", "100000000000000000000"],
    "numeric(38,38)": ["0.12345678901234567890123456789012345678", "-0.00000000000000000000000000000000000001"],
    "numeric(50,10)": ["1234567890123456789012345678901234567890.0123456789", "-1"],
    "numeric(5,-2)": ["1200", "-9999900"],
    "numeric(3,5)": ["0.00999", "-0.00001"],
    "text": ["''", "'x'", "E'tab\\tline\\nquote''backslash\\\\'", "'\u00e4\u4e2d\U0001f600'", "repeat('long ', 5000)"],
    "varchar(10)": ["'abc'", "'  abc  '"],
    "date": ["'1970-01-01'", "'2000-02-29'", "'0001-01-01'", "'9999-12-31'"],
    "timestamp": ["'1970-01-01 00:00:00'", "'2024-02-29 23:59:59.999999'", "'0001-01-01 00:00:00.000001'"],
    "timestamptz": ["'1970-01-01 00:00:00+00'", "'2024-02-29 23:59:59.999999+05:30'", "'1999-12-31 23:00:00-08'"],
    "time": ["'00:00:00'", "'23:59:59.999999'"],
    "interval": ["'0'", "'1 year 2 months -3 days 04:05:06.789'", "'-1 month'"],
    "bytea": ["''", "'\\x00ff27'"],
}
# Those that come as PostgreSQL writes them.
AS_TEXT = {
    "char(5)": ["'a'", "'ab   '", "'     '"],
    "json": ["'{\"b\": 1,   \"a\": [1, 2.50]}'"],
    "jsonb": ["'{\"b\": 1,   \"a\": [1, 2.50]}'", "'null'"],
    "uuid": ["'a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11'"],
    "inet": ["'192.168.0.1/24'"],
    "mood": ["'sad'", "'very happy'"],
    "int4range": ["'[1,5)'"],
    "name": ["'pg'"],
    "oid": ["4294967295"],
    "positive": ["5"],
    "money": ["12.34"],
    "xml": ["'<a/>'"],
    "point": ["'(1,2)'"],
}


@pytest.mark.parametrize("type_name", TYPES)
def test_values_of_types_come_as_they_are(pg, onehop, type_name):
    made(pg, "of_type", f"v {type_name}", [*TYPES[type_name], "NULL"])
    pg.execute("SET TIME ZONE 'UTC'")
    expected = pg.execute("SELECT v FROM of_type").fetchall()
    found = onehop.execute("SELECT v FROM pg.of_type").fetchall()
    assert sorted(repr(row[0]) for row in found) == sorted(repr(row[0]) for row in expected)
    # And whether it is NULL is asked there.
    assert onehop.execute("SELECT count(*) FROM pg.of_type WHERE v IS NULL").fetchone() == (1,)


@pytest.mark.parametrize("type_name", AS_TEXT)
def test_others_come_as_postgres_writes_them(pg, onehop, type_name):
    pg.execute("DROP TABLE IF EXISTS of_type; DROP TYPE IF EXISTS mood; DROP DOMAIN IF EXISTS positive")
    pg.execute("CREATE TYPE mood AS ENUM ('sad', 'very happy'); CREATE DOMAIN positive AS integer CHECK (VALUE > 0)")
    made(pg, "of_type", f"v {type_name}", [*AS_TEXT[type_name], "NULL"])
    expected = {row[0] for row in pg.execute("SELECT v::text FROM of_type")}
    assert {None if row[0] is None else str(row[0]) for row in onehop.execute("SELECT v FROM pg.of_type")} == expected


@pytest.mark.parametrize(
    "type_name, value, said",
    [
        ("date", "'infinity'", "infinity"),
        ("timestamptz", "'-infinity'", "infinity"),
        ("timestamp", "'294276-12-31'", "so far away"),
        ("numeric(10,2)", "'NaN'", "NaN"),
        ("numeric", "1e-20", "more digits"),
        ("numeric", "1e25", "more digits"),
        ("numeric", "'Infinity'", "NaN or an infinite number"),
    ],
)
def test_what_nothing_here_is_the_same_as_is_an_error(pg, onehop, type_name, value, said):
    made(pg, "of_type", f"fine integer, v {type_name}", [f"1, {value}"])
    with pytest.raises(psycopg.Error, match=f'column "v".*{said}'):
        onehop.execute("SELECT v FROM pg.of_type")
    assert onehop.execute("SELECT fine FROM pg.of_type").fetchall() == [(1,)]


def test_arrays_are_refused_and_what_is_beside_them_is_not(pg, onehop):
    made(pg, "of_type", "id integer, tags integer[]", ["1, '{1,2}'"])
    with pytest.raises(psycopg.Error, match=r'column "tags".*integer\[\].*cannot be read'):
        onehop.execute("SELECT * FROM pg.of_type")
    assert onehop.execute("SELECT id FROM pg.public.of_type WHERE id = 1").fetchall() == [(1,)]
    assert onehop.execute("SELECT count(*) FROM pg.of_type").fetchone() == (1,)


def test_numbers_without_a_precision_have_eighteen_digits_behind_the_point(pg, onehop):
    made(pg, "of_type", "v numeric", ["1.5", "-0.000000000000000001", "12345678901234567890"])
    found = {row[0] for row in onehop.execute("SELECT v FROM pg.of_type")}
    assert found == {row[0] for row in pg.execute("SELECT v FROM of_type")}


COLUMNS = """id integer, small smallint, big bigint, amount numeric(12,3), flag boolean, day date, at timestamp, tz timestamptz,
             word text, fixed char(6), loose text COLLATE ignoring, ratio double precision"""
WORDS = ["", "a", "A", "ab", "b", "\u00e4", "a'b", "a\\b", "a%b", "_", "zz", " a", "a "]


def literal(rng, column):
    def text():
        return "'" + rng.choice(WORDS).replace("'", "''") + "'"

    return {
        "id": lambda: str(rng.randrange(-5, 400)),
        "small": lambda: str(rng.randrange(-4, 5)),
        "big": lambda: str(rng.choice([0, -1, 9223372036854775807, -5000000000, 3])),
        "amount": lambda: str(rng.choice([0, -1.5, "0.001", "-0.001", 1000, "12.345"])),
        "flag": lambda: rng.choice(["true", "false"]),
        "day": lambda: f"DATE '{rng.choice(['1969-12-31', '1970-01-01', '2000-02-29', '1999-06-15'])}'",
        "at": lambda: f"TIMESTAMP '{rng.choice(['1969-12-31 23:59:59.999999', '2000-02-29 12:00:00', '1970-01-01 00:00:00'])}'",
        "tz": lambda: f"TIMESTAMPTZ '{rng.choice(['1970-01-01 00:00:00+00', '2000-02-29 12:00:00+00'])}'",
        "word": text,
        "fixed": lambda: rng.choice(["'a'", "'ab'", "'zz'"]),
        "loose": text,
        "ratio": lambda: rng.choice(["0.0", "-1.5", "1e10"]),
    }[column]()


def condition(rng, depth=0):
    kind = rng.randrange(10)
    if depth < 3 and kind < 4:
        words = [condition(rng, depth + 1) for _ in range(2)]
        word = rng.choice([" AND ", " OR "])
        return f"({word.join(words)})"
    if depth < 3 and kind == 4:
        return f"(NOT {condition(rng, depth + 1)})"
    column = rng.choice(["id", "small", "big", "amount", "flag", "day", "at", "tz", "word", "fixed", "ratio"])
    if kind == 5:
        return f"{column} IS {rng.choice(['', 'NOT '])}NULL"
    if column == "flag":
        return rng.choice(["flag", "flag = true", "flag <> false"])
    if kind == 6:
        return f"{column} {rng.choice(['', 'NOT '])}IN ({', '.join(literal(rng, column) for _ in range(3))})"
    if kind == 7 and column not in ("word", "fixed"):
        return f"{column} {rng.choice(['', 'NOT '])}BETWEEN {literal(rng, column)} AND {literal(rng, column)}"
    if kind == 8 and column == "word":
        return f"word {rng.choice(['', 'NOT '])}LIKE '{rng.choice(['a%', '%b', '_', '%', 'a_b', '%a%'])}'"
    # PostgreSQL's order of texts is another one unless it is told: that is asked for in the test below.
    operators = ["=", "<>"] if column in ("word", "fixed") else ["=", "<>", "<", "<=", ">", ">="]
    words = [column, rng.choice(operators), literal(rng, column)]
    if rng.randrange(4) == 0:
        words = [words[2], {"<": ">", "<=": ">=", ">": "<", ">=": "<="}.get(words[1], words[1]), words[0]]
    return " ".join(words)


@pytest.fixture
def things(pg):
    pg.execute("DROP TABLE IF EXISTS things CASCADE")
    pg.execute("DROP COLLATION IF EXISTS ignoring")
    pg.execute("CREATE COLLATION ignoring (provider = icu, locale = 'und-u-ks-level2', deterministic = false)")
    pg.execute(f"CREATE TABLE things ({COLUMNS})")
    rng = random.Random(7)
    with pg.cursor().copy("COPY things FROM STDIN") as copy:
        for number in range(400):
            word, fixed = rng.choice(WORDS), rng.choice(["a", "ab", "zz"])
            day = rng.choice(["1969-12-31", "1970-01-01", "2000-02-29", "1999-06-15"])
            row = [
                number,
                rng.randrange(-4, 5),
                rng.choice([0, -1, 9223372036854775807, -5000000000, 3]),
                rng.choice(["0", "-1.5", "0.001", "-0.001", "1000", "12.345"]),
                rng.choice([True, False]),
                day,
                rng.choice(["1969-12-31 23:59:59.999999", "2000-02-29 12:00:00", "1970-01-01"]),
                rng.choice(["1970-01-01 00:00:00+00", "2000-02-29 12:00:00+00"]),
                word,
                fixed,
                word,
                rng.choice(["0", "-0", "-1.5", "1e10", "NaN", "Infinity"]),
            ]
            copy.write_row([None if place and rng.randrange(10) == 0 else value for place, value in enumerate(row)])
    pg.execute("ANALYZE things")


def test_conditions_mean_what_they_mean_there(pg, onehop, things):
    rng = random.Random(20261125)
    asked_there = 0
    for number in range(400):
        where = condition(rng)
        # A zero's sign is none there.
        if "ratio" in where:
            where = where.replace("ratio", "(ratio + 0.0)")
        expected = [row[0] for row in pg.execute(f"SELECT id FROM things WHERE {where} ORDER BY id")]
        found = [row[0] for row in onehop.execute(f"SELECT id FROM pg.things WHERE {where} ORDER BY id")]
        assert found == expected, (number, where)
        plan = onehop.execute(f"EXPLAIN SELECT id FROM pg.things WHERE {where}").fetchone()[1]
        asked_there += "filtered there" in plan
    assert asked_there > 200


def test_texts_are_in_the_order_of_their_bytes_and_equal_by_them(pg, onehop, things):
    for operator in ["<", "<=", ">", ">="]:
        for word in WORDS:
            word = word.replace("'", "''")
            expected = pg.execute(f"SELECT count(*) FROM things WHERE word COLLATE \"C\" {operator} '{word}'").fetchone()
            assert onehop.execute(f"SELECT count(*) FROM pg.things WHERE word {operator} '{word}'").fetchone() == expected
    # Under this collation PostgreSQL takes 'a' and 'A' for equal; here they are two.
    same = "SELECT count(*) FROM things WHERE loose COLLATE \"C\" = 'a'"
    assert onehop.execute("SELECT count(*) FROM pg.things WHERE loose = 'a'").fetchone() == pg.execute(same).fetchone()


def test_all_kinds_of_relations_are_read(pg, onehop):
    pg.execute("DROP TABLE IF EXISTS parent, parts CASCADE; DROP MATERIALIZED VIEW IF EXISTS kept")
    pg.execute("CREATE TABLE parent (a integer); CREATE TABLE child (b text) INHERITS (parent)")
    pg.execute("INSERT INTO parent VALUES (1); INSERT INTO child VALUES (2, 'x')")
    pg.execute("CREATE TABLE parts (k integer, v text) PARTITION BY RANGE (k)")
    pg.execute("CREATE TABLE low PARTITION OF parts FOR VALUES FROM (0) TO (10)")
    pg.execute("CREATE TABLE high PARTITION OF parts FOR VALUES FROM (10) TO (20)")
    pg.execute("INSERT INTO parts SELECT n, n::text FROM generate_series(0, 19) n")
    pg.execute("CREATE VIEW of_parts AS SELECT v FROM parts WHERE k > 15; CREATE MATERIALIZED VIEW kept AS SELECT * FROM parts")
    pg.execute('CREATE TABLE IF NOT EXISTS "My Schema"."Odd ""name" ("A column" integer); DELETE FROM "My Schema"."Odd ""name"')
    pg.execute('INSERT INTO "My Schema"."Odd ""name" VALUES (5)')
    ask = lambda query: onehop.execute(query).fetchall()  # noqa: E731
    assert ask("SELECT sum(a), count(*) FROM pg.parent") == [(3, 2)]
    assert ask("SELECT sum(k), count(*) FROM pg.parts") == [(190, 20)]
    assert ask("SELECT count(*) FROM pg.of_parts") == [(4,)]
    assert ask("SELECT max(k) FROM pg.kept") == [(19,)]
    assert ask('SELECT "A column" FROM pg."My Schema"."Odd ""name"') == [(5,)]
    # What PostgreSQL says of itself.
    assert ("parts",) in ask("SELECT table_name FROM pg.information_schema.tables WHERE table_schema = 'public'")
    assert ask("SELECT count(*) > 100 FROM pg.pg_catalog.pg_class") == [(True,)]
    # Beside tables of one's own, and into them.
    onehop.execute("CREATE TABLE mine AS SELECT k, v FROM pg.parts WHERE k < 5")
    assert ask("SELECT count(*) FROM mine m JOIN pg.parts p ON m.k = p.k") == [(5,)]
    assert ask("SELECT v FROM pg.parts ORDER BY k LIMIT 2") == [("0",), ("1",)]
    assert len(ask("SELECT v FROM pg.parts LIMIT 3")) == 3
    assert ask("SELECT 1 FROM pg.parts WHERE false") == []
    with pytest.raises(psycopg.Error, match="has no table"):
        onehop.execute("SELECT * FROM pg.nothing")
    with pytest.raises(psycopg.Error, match="has no table"):
        onehop.execute("SELECT * FROM pg.nowhere.parts")
    with pytest.raises(psycopg.Error):
        onehop.execute("INSERT INTO pg.parts VALUES (1, 'x')")
    assert pg.execute("SELECT count(*) FROM parts").fetchone() == (20,)


def test_a_large_table_comes_in_parts_whole(pg, onehop):
    made(pg, "large", "id bigint, pad text, word text")
    # About 9,000 pages.
    pg.execute("INSERT INTO large SELECT n, repeat('x', 400), 'w' || n FROM generate_series(1, 150000) n")
    pg.execute("DELETE FROM large WHERE id % 3 = 0; UPDATE large SET word = 'changed' WHERE id % 7 = 0; ANALYZE large")
    query = "SELECT count(*), sum(id), count(DISTINCT word), min(id), max(id) FROM {}"
    assert onehop.execute(query.format("pg.large")).fetchone() == pg.execute(query.format("large")).fetchone()
    plan = onehop.execute("EXPLAIN SELECT id FROM pg.large").fetchone()[1]
    assert "parts" in plan and "2 connections" in plan, plan
    onehop.execute("CREATE TABLE large AS SELECT * FROM pg.large")
    assert onehop.execute(query.format("large")).fetchone() == pg.execute(query.format("large")).fetchone()
    # Twice in one statement.
    both = "WITH RECURSIVE r(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM r WHERE n < 3 AND n < (SELECT count(*) FROM pg.large)) SELECT count(*) FROM r"
    assert onehop.execute(both).fetchone() == (3,)


def test_a_statement_sees_one_moment(pg, onehop, postgres):
    made(pg, "left_account", "id integer, amount integer", ["1, 1000"])
    made(pg, "right_account", "id integer, amount integer", ["1, 0"])
    # Long enough that something happens between the two.
    made(pg, "waiting", "n integer")
    pg.execute("INSERT INTO waiting SELECT n FROM generate_series(1, 20000) n")
    stop = threading.Event()

    def move():
        with psycopg.connect(postgres.conninfo(), autocommit=True) as connection:
            while not stop.is_set():
                with connection.transaction():
                    connection.execute("UPDATE left_account SET amount = amount - 1")
                    connection.execute("UPDATE right_account SET amount = amount + 1")

    mover = threading.Thread(target=move)
    mover.start()
    try:
        sums, states = set(), set()
        for _ in range(40):
            query = """SELECT (SELECT sum(amount) FROM pg.left_account), (SELECT count(*) FROM pg.waiting),
                       (SELECT sum(amount) FROM pg.right_account)"""
            left, count, right = onehop.execute(query).fetchone()
            sums.add(left + right)
            states.add(left)
            assert count == 20000
    finally:
        stop.set()
        mover.join()
    assert sums == {1000} and len(states) > 5


def sessions(pg):
    return pg.execute("SELECT count(*) FROM pg_stat_activity WHERE application_name = 'onehop' AND state <> 'idle'").fetchone()[0]


def test_what_nobody_waits_for_ends_there(pg, onehop):
    made(pg, "large", "id bigint, pad text")
    pg.execute("INSERT INTO large SELECT n, repeat('x', 400) FROM generate_series(1, 50000) n")
    pg.execute("CREATE OR REPLACE VIEW slow AS SELECT l.id FROM large l, large m, large n WHERE l.id + m.id = -n.id")
    onehop.execute("SET statement_timeout = '300ms'")
    with pytest.raises(psycopg.errors.QueryCanceled):
        onehop.execute("SELECT count(*) FROM pg.slow")
    onehop.execute("RESET statement_timeout")
    for _ in range(1200):
        if sessions(pg) == 0:
            break
        time.sleep(0.05)
    assert sessions(pg) == 0
    # The first rows of many.
    assert len(onehop.execute("SELECT id FROM pg.large LIMIT 5").fetchall()) == 5
    # Connections are used again, and none is left in a transaction.
    for _ in range(20):
        onehop.execute("SELECT count(*) FROM pg.large")
    for _ in range(1200):
        if sessions(pg) == 0:
            break
        time.sleep(0.05)
    total = pg.execute("SELECT count(*) FROM pg_stat_activity WHERE application_name = 'onehop'").fetchone()[0]
    assert sessions(pg) == 0 and total < 10, total


def test_a_server_that_went_away_is_an_error_and_comes_back(pg, onehop):
    made(pg, "of_type", "v integer", ["1"])
    assert onehop.execute("SELECT v FROM pg.of_type").fetchall() == [(1,)]
    pg.execute("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'onehop'")
    time.sleep(0.2)
    assert onehop.execute("SELECT v FROM pg.of_type").fetchall() == [(1,)]


CHANGES = [
    "ALTER TABLE lk RENAME a TO x; ALTER TABLE lk RENAME c TO a; ALTER TABLE lk RENAME x TO c",
    "ALTER TABLE lk RENAME TO lkold; ALTER TABLE lkother RENAME TO lk",
    "ALTER TABLE lk ALTER id TYPE bigint",
    "ALTER TABLE lk SET UNLOGGED",
    "ALTER TABLE lk ADD COLUMN z float8 DEFAULT random()",
    "ALTER TABLE lk DROP COLUMN a",
    "TRUNCATE lk; INSERT INTO lk VALUES (9, 9, 9)",
    "DROP TABLE lk; CREATE TABLE lk AS SELECT 7 AS id, 7 AS a, 7 AS c",
]


@pytest.mark.parametrize("change", CHANGES)
def test_a_table_that_is_waited_for_is_read_as_it_is_then(pg, onehop, postgres, change):
    pg.execute("DROP TABLE IF EXISTS lk, lkold, lkother CASCADE")
    made(pg, "lk", "id int, a int, c int", ["1, 1, -1", "2, 2, -2", "3, 3, -3"])
    made(pg, "lkother", "id float4, a int, c int", ["1.5, 10, -1"])
    query = "SELECT * FROM {}lk ORDER BY 1"
    found = []
    waiting = threading.Thread(target=lambda: found.extend(onehop.execute(query.format("pg.")).fetchall()))
    with psycopg.connect(postgres.conninfo()) as other:
        other.execute(change)
        waiting.start()
        # Until it waits.
        for _ in range(400):
            if pg.execute("SELECT count(*) FROM pg_locks WHERE NOT granted").fetchone()[0]:
                break
            time.sleep(0.01)
        other.commit()
    waiting.join()
    expected = pg.execute(query.format("")).fetchall()
    assert len(expected) > 0 and found == expected


def test_who_waits_to_change_a_table_is_not_waited_for(pg, onehop, postgres):
    made(pg, "lk", "id int", ["1"])
    pg.execute("CREATE OR REPLACE VIEW slowly AS SELECT 1 AS id, pg_sleep(1.5)::text AS s")
    failed = []

    def read():
        try:
            onehop.execute("SELECT count(*) FROM pg.slowly JOIN pg.lk ON lk.id = slowly.id")
        except psycopg.Error as error:
            failed.append(error)

    reading = threading.Thread(target=read)
    reading.start()
    time.sleep(0.5)
    # It gets its turn when the statement is over, whichever way.
    pg.execute("SET lock_timeout = '30s'")
    pg.execute("ALTER TABLE lk ADD COLUMN x int")
    pg.execute("RESET lock_timeout")
    reading.join()
    assert all("lock timeout" in str(error) for error in failed), failed


def test_columns_may_change_between_statements(pg, onehop):
    made(pg, "of_type", "v integer", ["1"])
    assert onehop.execute("SELECT v FROM pg.of_type").fetchall() == [(1,)]
    pg.execute("ALTER TABLE of_type ALTER v TYPE text USING 'text ' || v")
    assert onehop.execute("SELECT v FROM pg.of_type").fetchall() == [("text 1",)]
    pg.execute("ALTER TABLE of_type RENAME v TO w")
    assert onehop.execute("SELECT w FROM pg.of_type").fetchall() == [("text 1",)]


def test_names_of_attached_databases(onehop, postgres, make_server, tmp_path):
    assert onehop.execute("SELECT name, address FROM onehop_attached").fetchall() == [
        ("pg", f"postgres@127.0.0.1:{postgres.port}/postgres")
    ]
    with pytest.raises(psycopg.Error, match="there is an attached database"):
        onehop.execute(f"ATTACH '{postgres.url()}' AS pg")
    onehop.execute(f"ATTACH DATABASE IF NOT EXISTS '{postgres.url()}' AS pg (TYPE postgres)")
    for name in ["public", "onehop", "pg_catalog", "information_schema"]:
        with pytest.raises(psycopg.Error, match="cannot be the name"):
            onehop.execute(f"ATTACH '{postgres.url()}' AS {name}")
    for address, said in [
        (postgres.url(password="wrong"), "password authentication failed"),
        (postgres.url(database="nothing"), 'database "nothing" does not exist'),
        ("postgresql://ada@127.0.0.1:1/x", "cannot connect"),
        ("nonsense", "no address"),
        (postgres.url() + "?sslmode=require", "not encrypted"),
    ]:
        with pytest.raises(psycopg.Error, match=said) as error:
            onehop.execute(f"ATTACH '{address}' AS other")
        assert PASSWORD not in str(error.value)
    # However it is written, and whether it is a statement at all.
    url = postgres.url()
    escaped = url.replace(":/", ":\\x2f", 1)
    for text in [
        f"ATTACH E'{escaped}' AS one",
        f"ATTACH '{postgres.url(password='x')[:-9]}/postgres?p%61ssword={url.split(':')[2].split('@')[0]}' AS two",
        f"ATTACH '{url}' three",
        f"ATTACH $${url}$$ AS four",
        f"ATTACH 'host=127.0.0.1 user=postgres passsecret' AS five",
    ]:
        try:
            onehop.execute(text)
        except psycopg.Error as error:
            assert "secret" not in str(error.diag.message_primary) + str(error.diag.message_hint), text
    # No password is told to anybody.
    for table in ["onehop_queries", "onehop_activity", "onehop_attached"]:
        for row in onehop.execute(f"SELECT * FROM {table}"):
            assert PASSWORD not in str(row) and "secret" not in str(row), row
    # A view is for all sessions, and a database one's own.
    with pytest.raises(psycopg.Error):
        onehop.execute("CREATE VIEW v AS SELECT * FROM pg.of_type")
    onehop.execute("DETACH pg")
    with pytest.raises(psycopg.Error):
        onehop.execute("SELECT * FROM pg.of_type")
    with pytest.raises(psycopg.Error, match="there is no attached database"):
        onehop.execute("DETACH pg")
    onehop.execute("DETACH IF EXISTS pg")


def test_who_is_no_admin_attaches_nothing(make_server, postgres, tmp_path):
    users = tmp_path / "users"
    add_user(users, "ada", "x", "write")
    server = make_server("--users", users)
    with psycopg.connect(server.conninfo(password="x"), autocommit=True) as connection:
        with pytest.raises(psycopg.errors.InsufficientPrivilege, match="ATTACH needs the role admin"):
            connection.execute(f"ATTACH '{postgres.url()}' AS pg")
