"""Values as text and in binary, byte for byte what PostgreSQL 15 sends for the same expressions."""

import psycopg

from fill_values import stored, value


def test_values_are_sent_as_postgresql_sends_them(server):
    with psycopg.connect(server.conninfo(), autocommit=True) as connection:
        wrong = [(e, value(connection, e), expected) for e, expected in stored() if value(connection, e) != expected]
    assert not wrong
    assert sum(1 for _ in stored()) > 45
