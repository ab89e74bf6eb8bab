"""Writes values.txt anew: what PostgreSQL sends for its expressions, as text and in binary.

    tests/server/.venv/bin/python tests/server/fill_values.py "host=... user=..."     a PostgreSQL 15, never a server of ours
"""

import sys
from pathlib import Path

import psycopg

VALUES = Path(__file__).with_name("values.txt")


def value(connection, expression):
    """The number of its type, and the bytes of the value in both formats."""
    results = [connection.pgconn.exec_params(f"SELECT {expression}".encode(), [], result_format=f) for f in (0, 1)]
    for result in results:
        assert result.status == psycopg.pq.ExecStatus.TUPLES_OK, result.error_message.decode()
    text, binary = (result.get_value(0, 0) for result in results)
    return results[0].ftype(0), text.decode(), binary.hex()


def stored():
    """(expression, type, text, binary) to a line."""
    for line in VALUES.read_text().splitlines():
        expression, oid, text, binary = line.split("\t")
        yield expression, (int(oid), text, binary)


if __name__ == "__main__":
    with psycopg.connect(sys.argv[1], autocommit=True) as connection:
        version = connection.execute("SELECT version()").fetchone()[0]
        assert version.startswith("PostgreSQL 15.") and "Onehop" not in version, version
        lines = ["\t".join(map(str, [e, *value(connection, e)])) + "\n" for e, _ in stored()]
    VALUES.write_text("".join(lines))
