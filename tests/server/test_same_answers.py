"""Statements of same_answers/ answered as PostgreSQL answers them: rows, names of columns, tags, and SQLSTATEs of what is refused.

A line is a statement, in the order of the file, on one connection to each server; behind `|=` are values for its parameters, as
Python writes them. Rows are compared without their order, and messages are not compared. Lines with `#` are none.
"""

import ast
from pathlib import Path

import psycopg
import pytest

FILES = sorted((Path(__file__).resolve().parent / "same_answers").glob("*.sql"))


def statements(path):
    for line in path.read_text().splitlines():
        if line and not line.startswith("#"):
            text, _, values = line.partition(" |= ")
            yield text, ast.literal_eval(values) if values else None


def answers(connection, text, values):
    """All that comes of a statement, comparable."""
    cursor, found = connection.cursor(), []
    try:
        # Without values, and in bytes, psycopg leaves the text as it is.
        cursor.execute(text, values) if values is not None else cursor.execute(text.encode())
        while True:
            if cursor.description:
                found.append(([column.name for column in cursor.description], sorted(map(repr, cursor.fetchall()))))
            else:
                found.append(cursor.statusmessage)
            if not cursor.nextset():
                return found
    except psycopg.Error as e:
        return found + [e.sqlstate]


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_answers_are_the_same(path, postgres, server):
    differences, compared = [], 0
    postgres.renew()
    theirs, ours = (psycopg.connect(f"host=127.0.0.1 port={port} user=ada dbname=test", autocommit=True) for port in (postgres.port, server.port))
    with theirs, ours:
        for text, values in statements(path):
            expected, found = answers(theirs, text, values), answers(ours, text, values)
            compared += 1
            if found != expected:
                differences.append((text, expected, found))
    assert not differences
    assert compared > 20
