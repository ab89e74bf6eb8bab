"""A database that a server has open: backups while clients write, and files that are taken away from it."""

import shutil
import signal
import subprocess
import threading

import psycopg
import pytest
from conftest import ONEHOP


def onehop(*words, code=0):
    done = subprocess.run([ONEHOP, *map(str, words)], capture_output=True, text=True)
    assert done.returncode == code, done.stderr
    return done.stdout


def numbers(database):
    sql = "SELECT count(*) AS n, count(DISTINCT n) AS d, max(n) AS m FROM t"
    return [int(n) for n in onehop("--readonly", "--format", "csv", database, "-c", sql).splitlines()[1].split(",")]


def test_backups_while_clients_write(make_server, tmp_path):
    database = tmp_path / "db"
    server = make_server(path=str(database))
    acknowledged, is_over = [0], threading.Event()

    def write():
        with psycopg.connect(server.conninfo(), autocommit=True) as connection:
            connection.execute("CREATE TABLE t (n BIGINT); CREATE TABLE other (n BIGINT)")
            while not is_over.is_set():
                n = acknowledged[0] + 1
                connection.execute("INSERT INTO t VALUES (%s)", [n])
                acknowledged[0] = n
                if n % 40 == 0:
                    connection.execute("CHECKPOINT")
                if n % 60 == 0:
                    connection.execute("CREATE OR REPLACE TABLE other AS SELECT value AS n FROM generate_series(1, 20000)")

    writer = threading.Thread(target=write)
    writer.start()
    try:
        base = []
        for number in range(4):
            wanted = acknowledged[0] + 70
            while acknowledged[0] < wanted and writer.is_alive():
                is_over.wait(0.01)
            least = acknowledged[0]
            onehop("backup", database, tmp_path / f"backup{number}", *base)
            onehop("restore", tmp_path / f"backup{number}", tmp_path / f"restored{number}")
            count, distinct, greatest = numbers(tmp_path / f"restored{number}")
            assert count == distinct == greatest >= least
            base = ["--base", tmp_path / f"backup{number}"]
    finally:
        is_over.set()
        writer.join()
    assert server.stop() in (0, -signal.SIGTERM, 143)
    assert numbers(database) == [acknowledged[0]] * 3


@pytest.mark.parametrize("taken", ["store", "LOCK", "directory"])
def test_a_server_acknowledges_nothing_that_would_be_lost(make_server, tmp_path, taken):
    database = tmp_path / "db"
    server = make_server(path=str(database))
    server.psql("CREATE TABLE t (n BIGINT)", "INSERT INTO t VALUES (1)")
    if taken == "directory":
        onehop("backup", database, tmp_path / "backup")
        database.rename(tmp_path / "away")
        shutil.copytree(tmp_path / "backup", database)
    else:
        (database / taken).unlink()
    changes = ["INSERT INTO t VALUES (2)", "CREATE TABLE u (n BIGINT)", "CHECKPOINT"]
    with psycopg.connect(server.conninfo(), autocommit=True) as connection:
        for change in [*changes, "INSERT INTO t SELECT value FROM generate_series(1, 30000)"]:
            with pytest.raises(psycopg.Error) as error:
                connection.execute(change)
            assert error.value.sqlstate == "58030", error.value
        assert connection.execute("SELECT n FROM t").fetchall() == [(1,)]
