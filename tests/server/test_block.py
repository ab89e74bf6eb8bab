"""Several statements as one: in one text of the simple protocol, and in a pipeline of the extended one. What psql prints is what it
prints for the same commands with PostgreSQL 15."""

import psycopg
import pytest

SETUP = "CREATE TABLE t (a INTEGER NOT NULL)"

# Commands of psql's, each one text, and what it says: outputs and messages.
CASES = {
    "all or nothing": (
        ["INSERT INTO t VALUES (1); INSERT INTO t VALUES (2), (3)", "INSERT INTO t VALUES (4); SELECT 1 / 0; INSERT INTO t VALUES (5)", "SELECT a FROM t ORDER BY a"],
        "1\n2\n3\n", ["ERROR:  division by zero"],
    ),
    "the last one counts as well": (
        ["INSERT INTO t VALUES (1); INSERT INTO t VALUES (NULL)", "SELECT count(*) FROM t"],
        "0\n", ["ERROR:"],
    ),
    "tables too": (
        ["CREATE TABLE u (b INTEGER); INSERT INTO u VALUES (7); DROP TABLE t; SELECT b FROM u; SELECT 1 / 0", "SELECT count(*) FROM t", "SELECT count(*) FROM u"],
        "7\n0\n", ["ERROR:  division by zero", "ERROR:"],
    ),
    "COMMIT ends it where it stands": (
        ["INSERT INTO t VALUES (1); COMMIT; INSERT INTO t VALUES (2); SELECT 1 / 0", "SELECT a FROM t"],
        "1\n", ["WARNING:  there is no transaction in progress", "ERROR:  division by zero"],
    ),
    "ROLLBACK undoes what was before it": (
        ["INSERT INTO t VALUES (1); ROLLBACK; INSERT INTO t VALUES (2)", "SELECT a FROM t"],
        "2\n", ["WARNING:  there is no transaction in progress"],
    ),
    "BEGIN makes it the client's own": (
        ["INSERT INTO t VALUES (1); BEGIN; INSERT INTO t VALUES (2)", "INSERT INTO t VALUES (3)", "ROLLBACK", "SELECT count(*) FROM t"],
        "0\n", [],
    ),
    "and it fails as such": (
        ["INSERT INTO t VALUES (1); BEGIN; SELECT 1 / 0", "SELECT 2", "COMMIT", "SELECT count(*) FROM t"],
        "0\n", ["ERROR:  division by zero", "ERROR:  current transaction is aborted, commands ignored until end of transaction block"],
    ),
    "a transaction within the text": (
        ["BEGIN; INSERT INTO t VALUES (1); COMMIT; INSERT INTO t VALUES (2); SELECT 1 / 0", "SELECT a FROM t"],
        "1\n", ["ERROR:  division by zero"],
    ),
    "BEGIN twice": (
        ["BEGIN; INSERT INTO t VALUES (1); BEGIN; COMMIT", "SELECT a FROM t"],
        "1\n", ["WARNING:  there is already a transaction in progress"],
    ),
}


def said(stderr):
    """Messages, without what is said about them, and without the words that differ."""
    return [line for line in stderr.splitlines() if line.startswith(("ERROR:", "WARNING:"))]


@pytest.mark.parametrize("case", CASES)
def test_texts_of_several_statements(server, case):
    commands, printed, messages = CASES[case]
    server.psql(SETUP)
    words = [word for command in commands for word in ("-c", command)]
    done = server.run_psql("-t", *words)
    assert done.stdout == printed
    found = said(done.stderr)
    assert len(found) == len(messages), done.stderr
    for message, expected in zip(found, messages):
        assert message.startswith(expected), done.stderr


def test_a_pipeline_is_all_or_nothing(server):
    with psycopg.connect(server.conninfo(), autocommit=True) as connection:
        connection.execute(SETUP)
        with connection.pipeline():
            connection.execute("INSERT INTO t VALUES (1)")
            connection.execute("INSERT INTO t VALUES (2)")
        assert connection.execute("SELECT count(*) FROM t").fetchone() == (2,)
        with pytest.raises(psycopg.errors.DivisionByZero):
            with connection.pipeline():
                connection.execute("INSERT INTO t VALUES (3)")
                connection.execute("SELECT 1 / 0")
                connection.execute("INSERT INTO t VALUES (4)")
        assert connection.execute("SELECT count(*) FROM t").fetchone() == (2,)
        # Up to its Sync: what comes after it is another.
        with pytest.raises(psycopg.errors.DivisionByZero):
            with connection.pipeline() as pipeline:
                connection.execute("INSERT INTO t VALUES (5)")
                connection.execute("INSERT INTO t VALUES (6)")
                pipeline.sync()
                connection.execute("INSERT INTO t VALUES (7)")
                connection.execute("SELECT 1 / 0")
        assert connection.execute("SELECT a FROM t ORDER BY a").fetchall() == [(1,), (2,), (5,), (6,)]


def test_a_transaction_in_a_pipeline_is_the_client_s(server):
    with psycopg.connect(server.conninfo(), autocommit=True) as connection:
        connection.execute(SETUP)
        with connection.pipeline():
            with connection.transaction():
                connection.execute("INSERT INTO t VALUES (1)")
                connection.execute("INSERT INTO t VALUES (2)")
            connection.execute("INSERT INTO t VALUES (3)")
        assert connection.execute("SELECT count(*) FROM t").fetchone() == (3,)
        with pytest.raises(psycopg.errors.DivisionByZero):
            with connection.pipeline():
                with connection.transaction():
                    connection.execute("INSERT INTO t VALUES (4)")
                    connection.execute("SELECT 1 / 0")
        assert connection.info.transaction_status == psycopg.pq.TransactionStatus.IDLE
        assert connection.execute("SELECT count(*) FROM t").fetchone() == (3,)


def test_drivers_begin_transactions_before_they_make_tables(server):
    """What psycopg and SQLAlchemy do by themselves."""
    with psycopg.connect(server.conninfo()) as connection:
        connection.execute(SETUP)
        connection.execute("INSERT INTO t VALUES (1)")
        connection.rollback()
        connection.execute(SETUP)
        connection.execute("CREATE VIEW v AS SELECT a + 1 AS a FROM t")
        connection.execute("INSERT INTO t VALUES (1)")
        connection.commit()
        assert connection.execute("SELECT a FROM v").fetchall() == [(2,)]
