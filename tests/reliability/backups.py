#!/usr/bin/env python3
"""Backups while clients commit: each restores to the state of exactly one commit, and commits are not slowed.

    tests/reliability/backups.py --onehop PATH [--seconds 5] [--every 1] [--rate 300] [--clients 4] [--strict] [--canary]

Clients commit at a steady rate. A commit adds a row with the client's number and a count to two tables. At first
there are no backups. Then there is one every `--every` seconds, each with the one before as its `--base`. At the
end each is restored and judged:

- both tables have the same rows, and of each client the counts from 1 on: no commit is there in part;
- every commit that was acknowledged before the backup began is there;
- with a commit that began after another was acknowledged, that other one is there: it is one state.

`--strict` fails if clients reach less than 95 % of what they reached without backups. `--canary` takes one
restored row away: then the check must fail.
"""

import argparse
import bisect
import shutil
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from dataclasses import dataclass
from pathlib import Path

import psycopg

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "limits"))
from server import Server  # noqa: E402

# Of the rate without backups, what clients must reach beside them.
LEAST_SHARE = 0.95


class Client(threading.Thread):
    """Commits the counts 1, 2, 3, ... at a steady rate."""

    def __init__(self, server, number, rate, end):
        super().__init__(daemon=True)
        self.server, self.number, self.rate, self.end = server, number, rate, end
        # When each commit began, and when it was acknowledged; the count n is at n - 1.
        self.began, self.acknowledged = [], []
        self.fault = None

    def run(self):
        try:
            with self.server.connect() as connection:
                due = time.monotonic()
                while not self.end.is_set():
                    if self.rate:
                        due += 1 / self.rate
                        time.sleep(max(due - time.monotonic(), 0))
                    self.commit(connection)
        except Exception as e:  # whatever it is, the run has failed
            self.fault = f"client {self.number}: {type(e).__name__}: {e}"

    def commit(self, connection):
        row = f"({self.number}, {len(self.began) + 1})"
        self.began.append(time.monotonic())
        connection.execute(f"INSERT INTO a VALUES {row}; INSERT INTO b VALUES {row}")
        self.acknowledged.append(time.monotonic())

    def acknowledged_before(self, moment):
        return bisect.bisect_left(self.acknowledged, moment)


@dataclass
class Backup:
    path: Path
    began: float
    seconds: float = 0.0


def run(words):
    done = subprocess.run(list(map(str, words)), capture_output=True, text=True)
    if done.returncode != 0:
        raise SystemExit(f"{' '.join(map(str, words))}: {done.stderr}")
    return done.stdout


def take_backups(args, database, folder):
    """A backup every so many seconds."""
    backups, start = [], time.monotonic()
    while True:
        due = start + args.every * (len(backups) + 1)
        if due > start + args.seconds:
            return backups
        time.sleep(max(due - time.monotonic(), 0))
        backup = Backup(folder / f"backup{len(backups)}", time.monotonic())
        base = ["--base", backups[-1].path] if backups else []
        run([args.onehop, "backup", database, backup.path, *base])
        backup.seconds = time.monotonic() - backup.began
        backups.append(backup)


def rows_of(args, database, table):
    """For each client the number of its rows, of different counts, and the greatest count."""
    sql = f"SELECT client, count(*) AS rows, count(DISTINCT n) AS counts, max(n) AS most FROM {table} GROUP BY client ORDER BY client"
    lines = run([args.onehop, "--readonly", "--format", "csv", database, "-c", sql]).splitlines()[1:]
    return {client: rest for client, *rest in (map(int, line.split(",")) for line in lines)}


def judge(args, backup, clients, folder):
    """What is wrong with a backup."""
    restored = folder / "restored"
    run([args.onehop, "restore", backup.path, restored])
    if args.canary:
        run([args.onehop, restored, "-c", "DELETE FROM b WHERE client = 0 AND n = 1"])
    a, b = rows_of(args, restored, "a"), rows_of(args, restored, "b")
    shutil.rmtree(restored)
    if a != b:
        return [f"commits in part: {a} in a, {b} in b"]
    wrong = [f"client {client}: (rows, counts, greatest) = {tuple(found)}" for client, found in a.items() if len(set(found)) > 1]
    held = [a.get(client.number, [0, 0, 0])[0] for client in clients]
    # The youngest commit that is there: what was acknowledged before it began is there too.
    youngest = max((client.began[count - 1] for client, count in zip(clients, held) if count), default=0)
    for client, count in zip(clients, held):
        for what, moment in [("the backup", backup.began), ("another that is there", youngest)]:
            least = client.acknowledged_before(moment)
            if count < least:
                wrong.append(f"client {client.number}: {count} commits; {least} were acknowledged before {what} began")
    return wrong


def rate_of(clients, start, end):
    """Acknowledged commits per second, and milliseconds of the median one and of the 99th of a hundred."""
    waits = []
    for client in clients:
        for began, acknowledged in zip(client.began, client.acknowledged):
            if start <= acknowledged < end:
                waits.append(acknowledged - began)
    cuts = statistics.quantiles(waits, n=100)
    return len(waits) / (end - start), cuts[49] * 1e3, cuts[98] * 1e3


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--onehop", required=True)
    parser.add_argument("--seconds", type=float, default=5)
    parser.add_argument("--every", type=float, default=1)
    parser.add_argument("--rate", type=float, default=300, help="commits per second of all clients; 0: as many as they can")
    parser.add_argument("--clients", type=int, default=4)
    parser.add_argument("--alone", type=float, help="seconds without backups (as many as with them, 60 at most)")
    parser.add_argument("--folder", help="where the database and its backups lie (the system's)")
    parser.add_argument("--strict", action="store_true")
    parser.add_argument("--canary", action="store_true")
    args = parser.parse_args()
    args.onehop = str(Path(args.onehop).resolve())
    with tempfile.TemporaryDirectory(dir=args.folder) as folder:
        failed, count, share = measure(args, Path(folder))
    print(f"backups: {count - failed} passed, {failed} failed")
    if args.strict and share < LEAST_SHARE:
        print(f"commits are slowed to {share:.3f} of what they were")
        return 1
    return 1 if failed else 0


def measure(args, folder):
    server = Server(args.onehop, {}, folder, database=str(folder / "db"))
    end = threading.Event()
    clients = [Client(server, i, args.rate / args.clients, end) for i in range(args.clients)]
    try:
        with server.connect() as connection:
            connection.execute("CREATE TABLE a (client BIGINT, n BIGINT); CREATE TABLE b (client BIGINT, n BIGINT)")
        for client in clients:
            client.start()
        time.sleep(min(args.every, 2))
        start = time.monotonic()
        time.sleep(args.alone if args.alone is not None else min(args.seconds, 60))
        middle = time.monotonic()
        backups = take_backups(args, folder / "db", folder)
        last = time.monotonic()
    finally:
        end.set()
        for client in clients:
            if client.is_alive():
                client.join(30)
        server.stop()
    faults = [client.fault for client in clients if client.fault]
    if faults:
        raise SystemExit("\n".join(faults))
    failed = 0
    for number, backup in enumerate(backups):
        wrong = judge(args, backup, clients, folder)
        failed += bool(wrong)
        for text in wrong:
            print(f"backup {number}: {text}", flush=True)
    before, beside = rate_of(clients, start, middle), rate_of(clients, middle, last)
    share, seconds = beside[0] / before[0], [backup.seconds for backup in backups]
    print(f"{sum(len(client.acknowledged) for client in clients)} commits of {args.clients} clients")
    for when, rate in [("without backups", before), ("beside backups", beside)]:
        print("{}: {:.0f} commits/s, median {:.2f} ms, 99th percentile {:.2f} ms".format(when, *rate))
    print(f"backups took {statistics.median(seconds):.2f} s (median), {max(seconds):.2f} s (longest); {share:.3f} of the rate without")
    return failed, len(backups), share


if __name__ == "__main__":
    sys.exit(main())
