#!/usr/bin/env python3
"""Rounds of kills, full disks and replaced files under a mixed load: nothing that was acknowledged is lost.

    tests/reliability/rounds.py --onehop PATH [--rounds 9] [--seed 1] [--clients 4] [--faults kill ...] [--canary]

A round starts a server over the same database. Clients, each with a table of its own, insert, update, delete,
truncate, replace their tables, commit transactions and roll them back, and checkpoint. In the middle of it

- `kill`: the server is killed;
- `full`: the disk gets full, and has room again; the server is killed while it is full, or goes on (a disk of
  its own for this needs root; otherwise the server's files may not grow);
- `displaced`: the store is removed or replaced by a copy, or the lock is removed. From then on nothing may be
  acknowledged. Then the server is killed, and the store put back.

A new server must have, for each client, what its last acknowledged statement left, or what the one left that
was under way, or a commit that failed half-way (`58030`): after one of those nothing is acknowledged. `onehop check`
finds nothing. Answers come from a dictionary per client. `--canary` forgets one
acknowledged row in each round: then the check must fail.
"""

import argparse
import contextlib
import os
import random
import resource
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

import psycopg

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "limits"))
from server import Server  # noqa: E402

DISK_MIB = 64
# What a full disk has left, in bytes.
ROOM = [0, 4 << 10, 20 << 10, 100 << 10]
FAULTS = ["kill", "full", "displaced"]


class Model:
    """The rows of one client's table: a number for each id. `None`: there is no table."""

    def __init__(self):
        self.rows = None

    @staticmethod
    def fingerprint(rows):
        if rows is None:
            return None
        values = rows.items()
        return (len(rows), sum(rows), sum(rows.values()), sum(i * v % 1009 for i, v in values))


def change(rng, table, rows):
    """A statement, and the rows after it."""
    if rows is None:
        return f"CREATE TABLE {table} (id BIGINT NOT NULL, v BIGINT)", {}
    base = max(rows, default=0) + 1
    kind = rng.choices(["few", "bulk", "update", "delete", "truncate", "replace", "drop"], [8, 3, 4, 4, 0.3, 1, 0.2])[0]
    modulus, rest, by = rng.randrange(2, 9), rng.randrange(2), rng.randrange(1, 50)
    match kind:
        case "few":
            new = {base + i: rng.randrange(1000) for i in range(rng.randrange(1, 6))}
            values = ", ".join(f"({i}, {v})" for i, v in new.items())
            return f"INSERT INTO {table} VALUES {values}", {**rows, **new}
        case "bulk":
            count = rng.randrange(500, 4000)
            sql = f"INSERT INTO {table} SELECT {base} + value, value % {modulus} FROM generate_series(1, {count})"
            return sql, {**rows, **{base + i: i % modulus for i in range(1, count + 1)}}
        case "update":
            after = {i: v + by if i % modulus == rest else v for i, v in rows.items()}
            return f"UPDATE {table} SET v = v + {by} WHERE id % {modulus} = {rest}", after
        case "delete":
            after = {i: v for i, v in rows.items() if i % modulus != rest}
            return f"DELETE FROM {table} WHERE id % {modulus} = {rest}", after
        case "truncate":
            return f"TRUNCATE {table}", {}
        case "replace":
            after = {i: v + by for i, v in rows.items() if i % 2 == 0}
            return f"CREATE OR REPLACE TABLE {table} AS SELECT id, v + {by} AS v FROM {table} WHERE id % 2 = 0", after
        case "drop":
            return f"DROP TABLE {table}", None
    raise AssertionError(kind)


class Client(threading.Thread):
    """Changes its table until it is told to end, or its connection does."""

    def __init__(self, server, number, model, seed, end):
        super().__init__(daemon=True)
        self.server, self.table, self.model, self.end = server, f"t{number}", model, end
        self.rng = random.Random(seed)
        # What the statement under way makes, if one is; and what those make that failed half-way.
        self.under_way, self.in_doubt = None, []
        self.acknowledged, self.refused, self.began_last = 0, 0, 0.0
        self.last_refusal = None
        self.wrong = []

    def run(self):
        try:
            with self.server.connect() as connection:
                while not self.end.is_set():
                    self.step(connection)
        except psycopg.OperationalError:
            pass
        except Exception as e:  # whatever else it is, the round has failed
            self.wrong.append(f"{type(e).__name__}: {e}")

    def step(self, connection):
        kind = self.rng.choices(["change", "transaction", "checkpoint", "look"], [10, 3, 1, 2])[0]
        match kind:
            case "look":
                self.look(connection)
            case "checkpoint":
                self.attempt(connection, ["CHECKPOINT"], self.model.rows)
            case "change":
                sql, after = change(self.rng, self.table, self.model.rows)
                self.attempt(connection, [sql], after)
            case "transaction":
                rows, statements = self.model.rows, ["BEGIN"]
                for _ in range(self.rng.randrange(1, 4)):
                    if rows is None:
                        break
                    sql, after = change(self.rng, self.table, rows)
                    if sql.startswith(("CREATE", "DROP", "TRUNCATE")):
                        continue
                    statements.append(sql)
                    rows = after
                is_kept = self.rng.random() < 0.8
                statements.append("COMMIT" if is_kept else "ROLLBACK")
                self.attempt(connection, statements, rows if is_kept else self.model.rows)

    def attempt(self, connection, statements, after):
        began = time.monotonic()
        self.under_way = (after,)
        try:
            for sql in statements:
                connection.execute(sql)
        except psycopg.Error as e:
            if connection.broken:
                raise
            self.refused += 1
            self.last_refusal = f"{statements} -> {e.sqlstate} {e}"
            if e.sqlstate == "58030" and "an earlier commit" not in str(e):
                self.in_doubt.append(after)
            if connection.info.transaction_status != psycopg.pq.TransactionStatus.IDLE:
                connection.execute("ROLLBACK")
            self.under_way = None
            time.sleep(0.005)
            return
        # What changes nothing is no commit.
        if after != self.model.rows:
            self.began_last = began
        self.model.rows, self.under_way = after, None
        self.acknowledged += 1

    def look(self, connection):
        try:
            found = fingerprint(connection, self.table)
        except psycopg.Error:
            if connection.broken:
                raise
            self.refused += 1
            return
        # A commit that failed half-way is seen if one that came after it was acknowledged.
        allowed = [Model.fingerprint(rows) for rows in [self.model.rows, *self.in_doubt]]
        if found not in allowed:
            self.wrong.append(f"{self.table}: {found} and not one of {allowed}; last refused: {self.last_refusal}")


def fingerprint(connection, table):
    try:
        row = connection.execute(
            f"SELECT count(*), coalesce(sum(id), 0), coalesce(sum(v), 0), coalesce(sum(id * v % 1009), 0) FROM {table}"
        ).fetchone()
    except psycopg.errors.UndefinedTable:
        return None
    return tuple(map(int, row))


class Disk:
    """Where the database lies, and how it gets full."""

    def __init__(self, folder):
        self.path = folder / "disk"
        self.path.mkdir()
        mount = ["mount", "-t", "tmpfs", "-o", f"size={DISK_MIB}m", "onehop-rounds", str(self.path)]
        self.is_own = os.geteuid() == 0 and subprocess.run(mount, capture_output=True).returncode == 0

    def fill(self, server, rng):
        if self.is_own:
            free = shutil.disk_usage(self.path).free
            with open(self.path / "ballast", "wb") as ballast, contextlib.suppress(OSError):
                os.posix_fallocate(ballast.fileno(), 0, max(free - rng.choice(ROOM), 1))
            return
        most = resource.prlimit(server.process.pid, resource.RLIMIT_FSIZE)[1]
        store = (self.path / "db" / "store").stat().st_size
        resource.prlimit(server.process.pid, resource.RLIMIT_FSIZE, (store + rng.choice(ROOM), most))

    def make_room(self, server):
        (self.path / "ballast").unlink(missing_ok=True)
        if not self.is_own and server.is_alive():
            most = resource.prlimit(server.process.pid, resource.RLIMIT_FSIZE)[1]
            resource.prlimit(server.process.pid, resource.RLIMIT_FSIZE, (most, most))

    def close(self):
        if self.is_own:
            subprocess.run(["umount", "-l", str(self.path)], check=False)


def displace(rng, database):
    """Removes or replaces a file of an open database; what undoes it."""
    store, kept = database / "store", database.parent / "kept"
    kept.unlink(missing_ok=True)
    kind = rng.choice(["removed", "replaced", "lock"])
    if kind == "lock":
        (database / "LOCK").unlink()
        return kind, lambda: None
    os.link(store, kept)
    if kind == "removed":
        store.unlink()
    else:
        copy = database.parent / "copy"
        shutil.copyfile(store, copy)
        copy.rename(store)
    return kind, lambda: kept.rename(store)


def wait_until(is_so, seconds):
    end = time.monotonic() + seconds
    while not is_so() and time.monotonic() < end:
        time.sleep(0.01)


def kill(server):
    server.process.kill()
    server.process.wait()
    server.log.close()


def play(args, number, fault, models, disk, folder, rng):
    """One round; what is wrong."""
    wrong, database = [], disk.path / "db"
    server = Server(args.onehop, {"threads": 2, "storage.fresh_rows": 300}, folder, database=str(database))
    end = threading.Event()
    clients = [Client(server, i, model, rng.randrange(1 << 60), end) for i, model in enumerate(models)]
    for client in clients:
        client.start()
    time.sleep(rng.uniform(0.05, 0.8))
    undo, what = (lambda: None), fault
    match fault:
        case "kill":
            kill(server)
        case "full":
            disk.fill(server, rng)
            time.sleep(rng.uniform(0.2, 0.8))
            if rng.random() < 0.5:
                kill(server)
                disk.make_room(server)
            else:
                before = sum(client.acknowledged for client in clients)
                disk.make_room(server)
                wait_until(lambda: sum(client.acknowledged for client in clients) > before + 3, 20)
                if sum(client.acknowledged for client in clients) <= before + 3:
                    wrong.append("commits do not go on once there is room")
                end.set()
                for client in clients:
                    client.join(30)
                server.stop()
        case "displaced":
            what, undo = displace(rng, database)
            since = time.monotonic()
            time.sleep(0.4)
            kill(server)
            undo()
            late = [client.table for client in clients if client.began_last > since]
            if late:
                wrong.append(f"acknowledged after the store was {what}: {late}")
    end.set()
    for client in clients:
        client.join(30)
        wrong += client.wrong
        if client.is_alive():
            wrong.append(f"{client.table}: its client hangs")
    if args.canary and clients[0].model.rows:
        clients[0].model.rows.popitem()
    wrong += judge(args, clients, database, folder)
    counts = f"{sum(c.acknowledged for c in clients)} acknowledged, {sum(c.refused for c in clients)} refused"
    if args.verbose or wrong:
        print(f"round {number}, {what}: {counts}" + "".join(f"\n    {text}" for text in wrong), flush=True)
    return wrong, sum(c.acknowledged for c in clients)


def judge(args, clients, database, folder):
    """Whether a new server has what was acknowledged."""
    server = Server(args.onehop, {"threads": 2}, folder, database=str(database))
    try:
        with server.connect() as connection:
            for client in clients:
                found = fingerprint(connection, client.table)
                allowed = [client.model.rows, *(client.under_way or ()), *client.in_doubt]
                held = next((rows for rows in allowed if Model.fingerprint(rows) == found), "none")
                if held == "none":
                    yield f"{client.table}: {found}, and not one of {[Model.fingerprint(rows) for rows in allowed]}"
                else:
                    client.model.rows = held
    finally:
        server.stop()
    checked = subprocess.run([args.onehop, "check", str(database)], capture_output=True, text=True)
    if checked.returncode != 0:
        yield f"check: {checked.stdout[-300:]}{checked.stderr[-300:]}"


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--onehop", required=True)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--clients", type=int, default=4)
    parser.add_argument("--faults", nargs="+", choices=FAULTS, default=FAULTS)
    parser.add_argument("--canary", action="store_true")
    parser.add_argument("--verbose", action="store_true")
    args = parser.parse_args()
    args.onehop = str(Path(args.onehop).resolve())
    rng = random.Random(args.seed)
    failed, acknowledged = 0, 0
    with tempfile.TemporaryDirectory(prefix="onehop-rounds-") as folder:
        folder = Path(folder)
        disk = Disk(folder)
        models = [Model() for _ in range(args.clients)]
        try:
            for number in range(args.rounds):
                wrong, done = play(args, number, args.faults[number % len(args.faults)], models, disk, folder, rng)
                failed, acknowledged = failed + bool(wrong), acknowledged + done
                if wrong:
                    break
        finally:
            disk.close()
    kind = "on a disk of its own" if disk.is_own else "with files that may not grow"
    print(f"seed {args.seed}: {acknowledged} statements acknowledged, full disks {kind}")
    print(f"rounds: {number + 1 - failed} passed, {failed} failed")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
