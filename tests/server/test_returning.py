"""INSERT, UPDATE and DELETE with RETURNING: random ones, with the answers of SQLite."""

import random
import sqlite3

import psycopg
import pytest

EXPRESSIONS = ["*", "a", "b", "a + 1 AS next", "a * a, b", "coalesce(b, 'none') || '!'", "t.a, t.b", "CASE WHEN a > 5 THEN b END", "length(b)", "(SELECT count(*) FROM u)"]


def condition(choice):
    return choice(["", " WHERE a > 4", " WHERE a % 3 = 1", " WHERE b IS NULL", " WHERE b LIKE '%x%'", " WHERE a IN (SELECT c FROM u)"])


def statement(rng):
    """A statement that both understand alike."""
    choice, returning = rng.choice, rng.choice(EXPRESSIONS)
    match rng.randrange(5):
        case 0 | 1:
            rows = [f"({rng.randrange(12)}, {choice(['NULL', 'NULL', repr('x'), repr('yy'), repr('xyz')])})" for _ in range(rng.randrange(1, 5))]
            return f"INSERT INTO t VALUES {', '.join(rows)} RETURNING {returning.replace('t.', '')}"
        case 2:
            return f"INSERT INTO t SELECT c, 'u' || CAST(c AS VARCHAR) FROM u WHERE c < {rng.randrange(9)} RETURNING {returning.replace('t.', '')}"
        case 3:
            change = choice(["a = a + 1", "b = 'x'", "a = 12 - a, b = NULL", "b = b || 'x'"])
            return f"UPDATE t SET {change}{condition(choice)} RETURNING {returning}"
        case _:
            return f"DELETE FROM t{condition(choice)} RETURNING {returning}"


def key(row):
    return [(value is None, value if value is not None else 0) for value in row]


@pytest.mark.parametrize("seed", range(3))
def test_what_comes_back_is_what_sqlite_says(server, seed):
    rng = random.Random(seed)
    other = sqlite3.connect(":memory:", isolation_level=None)
    with psycopg.connect(server.conninfo(), autocommit=True) as connection:
        for each in ["CREATE TABLE t (a INTEGER, b VARCHAR)", "CREATE TABLE u (c INTEGER)", "INSERT INTO u VALUES (1), (4), (7)"]:
            connection.execute(each)
            other.execute(each)
        for _ in range(60):
            text = statement(rng)
            found, expected = connection.execute(text), other.execute(text).fetchall()
            assert sorted(map(tuple, found.fetchall()), key=key) == sorted(expected, key=key), text
            assert found.statusmessage.split()[0] == text.split()[0]
            assert found.rowcount == len(expected), text
            left = "SELECT a, b FROM t"
            assert sorted(connection.execute(left).fetchall(), key=key) == sorted(other.execute(left).fetchall(), key=key), text
