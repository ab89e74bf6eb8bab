"""Statements that compute for long end in time, and leave the server to others."""

import time

import psycopg
import pytest

# Seconds behind `statement_timeout`; a machine that does other things as well is slow.
LATE = 5


def ends_in_time(connection, statement, timeout):
    """Runs a statement that may be done, or stopped, and checks when."""
    connection.execute(f"SET statement_timeout = {int(timeout * 1000)}")
    began = time.monotonic()
    try:
        connection.execute(statement)
        outcome = "done"
    except psycopg.errors.QueryCanceled:
        outcome = "stopped"
    assert time.monotonic() - began < timeout + LATE, statement[:100]
    return outcome


def test_a_call_of_minutes_is_stopped_and_leaves_the_server_to_others(make_server):
    server = make_server("--set", "threads=2")
    distance = "SELECT levenshtein(repeat('a', 1000000), repeat('b', 1000000))"
    with psycopg.connect(server.conninfo(), autocommit=True) as other:
        for _ in range(2):
            with psycopg.connect(server.conninfo(), autocommit=True) as connection:
                assert ends_in_time(connection, distance, 0.5) == "stopped"
            began = time.monotonic()
            assert other.execute("SELECT 1").fetchone() == (1,)
            assert time.monotonic() - began < LATE


def test_patterns_over_much_text_give_their_memory_back(make_server):
    server = make_server("--set", "threads=2", "--set", "memory_limit=1GB")
    rows = "SELECT repeat(CAST(value AS VARCHAR), 20000) AS c FROM generate_series(1, 200000)"
    slow = f"SELECT sum(length(regexp_replace(c, '(x|1|2)*3', 'y', 'g'))) FROM ({rows})"
    with psycopg.connect(server.conninfo(), autocommit=True) as connection:
        for _ in range(5):
            assert ends_in_time(connection, slow, 1) == "stopped"
        held = "SELECT used_bytes FROM onehop_memory WHERE name = 'allocated'"
        connection.execute("SET statement_timeout = 0")
        until = time.monotonic() + 30
        while connection.execute(held).fetchone()[0] > 60 << 20:
            assert time.monotonic() < until
            time.sleep(0.01)


def test_a_format_of_megabytes_is_refused(make_server):
    server = make_server("--set", "threads=2")
    with psycopg.connect(server.conninfo(), autocommit=True) as connection:
        for _ in range(6):
            with pytest.raises(psycopg.errors.ProgramLimitExceeded):
                connection.execute("SELECT to_char(TIMESTAMP '2020-01-01', repeat('YYYY', 10000000))")


def test_statements_of_much_text_end_in_time(make_server):
    server = make_server("--set", "threads=2")
    numbers = ", ".join(map(str, range(1_000_000)))
    columns = ", ".join(f"c{number} INT" for number in range(10_000))
    with psycopg.connect(server.conninfo(), autocommit=True) as connection:
        ends_in_time(connection, f"SELECT count(*) FROM generate_series(1, 10) AS t(a) WHERE a IN ({numbers})", 1)
        if ends_in_time(connection, f"CREATE TABLE w ({columns})", 1) == "done":
            connection.execute("SET statement_timeout = 0")
            assert len(connection.execute("SELECT * FROM w").description) == 10_000
        connection.execute("SET statement_timeout = 0")
        assert connection.execute("SELECT 1").fetchone() == (1,)
