#!/usr/bin/env python3
"""`onehop serve` beside PostgreSQL, both asked by pgbench: scans of SSB Q1.1, and single-row inserts mixed with short reads.

    bench/peers/pgbench.py --sf 1 --seconds 20 --connections 1,16,200 --rounds 5 --json pgbench.json

Needs Debian's packages postgresql (15 or later) and postgresql-client, and nothing of the environment. PostgreSQL gets a data folder
and a port of its own on 127.0.0.1, and ends with this program; as root, it runs as the user postgres, for it refuses to as root.

1. The data is Onehop's (`onehop gen`), and goes to PostgreSQL by COPY out of the one server into the other.
2. The query's answers are compared before anything is measured.
3. For each script and number of connections, both are measured in turns, as many rounds as are asked for; at the end there are the
   medians of the rounds. From pgbench's log of transactions come their median and
   99th percentile, and how many the client had that had fewest: whoever starves is seen there. A transaction that fails ends its
   client, which pgbench says.
"""

import argparse
import json
import os
import re
import shutil
import socket
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

REPOSITORY = Path(__file__).parents[2]
QUERY = REPOSITORY / "crates" / "lab" / "src" / "queries" / "ssb" / "q1.1.sql"
TABLES = ("lineorder", "date")
INSERT = "\\set id random(1, 1000000000)\nINSERT INTO bench_log VALUES (:id, :client_id, 'a row of some thirty letters');\n"
READ = "\\set day random(19920101, 19981231)\nSELECT count(*) FROM \"date\" WHERE d_datekey < :day;\n"


class Failed(Exception):
    """What did not work, as a sentence."""


def run(words, **more):
    done = subprocess.run([str(word) for word in words], capture_output=True, text=True, check=False, **more)
    if done.returncode != 0:
        raise Failed(f"{' '.join(map(str, words))}\n{done.stderr.strip() or done.stdout.strip()}")
    return done.stdout


def free_port():
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


class Server:
    """Something that speaks PostgreSQL's protocol on 127.0.0.1."""

    def __init__(self, name, port):
        self.name, self.port = name, port

    def address(self):
        return ["-h", "127.0.0.1", "-p", str(self.port), "-U", "postgres"]

    def psql(self, text):
        return run(["psql", *self.address(), "-X", "-q", "-A", "-t", "-v", "ON_ERROR_STOP=1", "-d", "postgres", "-c", text])

    def restart_log(self):
        self.psql("DROP TABLE IF EXISTS bench_log")
        self.psql("CREATE TABLE bench_log (id BIGINT, client INTEGER, text VARCHAR)")


class Onehop(Server):
    def __init__(self, binary, database, most):
        words = [binary, "serve", database, "--listen", "127.0.0.1:0", "--max-connections", most + 20]
        self.process = subprocess.Popen([str(word) for word in words], stderr=subprocess.PIPE, text=True)
        line = self.process.stderr.readline()
        found = re.search(r" at 127\.0\.0\.1:(\d+)$", line)
        if not found:
            raise Failed(f"onehop serve did not begin: {line.strip()}")
        super().__init__("onehop", int(found.group(1)))

    def stop(self):
        self.process.terminate()
        self.process.wait()


class PostgreSql(Server):
    def __init__(self, programs, folder, most):
        super().__init__("postgresql", free_port())
        self.programs, self.data = programs, folder / "data"
        self.user = ["runuser", "-u", "postgres", "--"] if os.getuid() == 0 else []
        if self.user:
            shutil.chown(folder, "postgres")
        self.control("initdb", "-D", self.data, "-A", "trust", "-U", "postgres", "-E", "UTF8", "--locale=C.UTF-8")
        memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") >> 20
        # What its documentation advises for a machine of its own; commits are as durable as Onehop's.
        settings = {
            "listen_addresses": "127.0.0.1", "port": self.port, "unix_socket_directories": folder, "max_connections": most + 20,
            "shared_buffers": f"{memory // 4}MB", "work_mem": "64MB", "max_wal_size": "4GB", "synchronous_commit": "on",
        }
        options = " ".join(f"-c {name}={value}" for name, value in settings.items())
        self.control("pg_ctl", "-D", self.data, "-l", folder / "log", "-o", options, "-w", "start")

    def control(self, program, *words):
        # A server that goes on would keep the pipes open.
        with tempfile.TemporaryFile("w+") as said:
            words = [*self.user, str(self.programs / program), *map(str, words)]
            if subprocess.run(words, stdout=said, stderr=said, check=False).returncode != 0:
                said.seek(0)
                raise Failed(f"{' '.join(words)}\n{said.read()}")

    def stop(self):
        self.control("pg_ctl", "-D", self.data, "-m", "fast", "-w", "stop")

    def fill_from(self, other, tables=TABLES):
        for table in tables:
            columns = other.psql(
                "SELECT a.attname, format_type(a.atttypid, a.atttypmod) FROM pg_attribute a JOIN pg_class c ON a.attrelid = c.oid "
                f"WHERE c.relname = '{table}' AND a.attnum > 0 ORDER BY a.attnum"
            )
            described = ", ".join(f'"{name}" {kind}' for name, kind in (line.split("|") for line in columns.splitlines()))
            self.psql(f'CREATE TABLE "{table}" ({described})')
            ways = [(other, f'COPY "{table}" TO STDOUT'), (self, f'COPY "{table}" FROM STDIN')]
            words = [["psql", *server.address(), "-X", "-q", "-v", "ON_ERROR_STOP=1", "-d", "postgres", "-c", text] for server, text in ways]
            out = subprocess.Popen(words[0], stdout=subprocess.PIPE)
            into = subprocess.run(words[1], stdin=out.stdout, check=False)
            if out.wait() or into.returncode:
                raise Failed(f"table {table} could not be copied")
        self.psql("VACUUM ANALYZE")


def percentile(values, part):
    return values[min(len(values) - 1, int(len(values) * part))]


def measure(server, scripts, connections, seconds, folder):
    """What pgbench finds for scripts with their weights."""
    prefix = folder / f"log-{server.name}"
    words = ["pgbench", *server.address(), "-n", "-c", connections, "-j", min(connections, os.cpu_count() or 1), "-T", seconds, "-l", f"--log-prefix={prefix}"]
    for path, weight in scripts:
        words += ["-f", f"{path}@{weight}"]
    done = subprocess.run([str(word) for word in [*words, "postgres"]], capture_output=True, text=True, check=False)
    latencies, counts = [], dict.fromkeys(range(connections), 0)
    for path in folder.glob(f"{prefix.name}.*"):
        for line in path.read_text().splitlines():
            client, _, micros, *_ = line.split()
            if not micros.isdigit():
                continue
            latencies.append(int(micros) / 1000)
            counts[int(client)] += 1
        path.unlink()
    latencies.sort()
    errors = [line for line in done.stderr.splitlines() if "aborted" in line or "error:" in line]
    if not latencies:
        raise Failed(f"pgbench has done nothing with {server.name}: {done.stderr.strip()}")
    found = re.search(r"tps = ([\d.]+)", done.stdout)
    return {
        "server": server.name, "connections": connections, "tps": float(found.group(1)) if found else None,
        "transactions": len(latencies), "p50_ms": statistics.median(latencies), "p99_ms": percentile(latencies, 0.99),
        "fewest": min(counts.values()), "most": max(counts.values()), "errors": len(errors), "error": errors[:1],
    }


def show(script, row):
    print(
        f"{script:8} {row['connections']:4} {row['server']:10} {row['tps'] or 0:10.1f}/s  p50 {row['p50_ms']:9.2f} ms  p99 {row['p99_ms']:9.2f} ms"
        f"  per client {row['fewest']}..{row['most']}  errors {row['errors']}",
        flush=True,
    )
    for error in row["error"]:
        print(f"    {error}")


def summarize(rows):
    """The medians of each script and number of connections, and how many times as many Onehop does."""
    print(f"\n{'':8} {'':4} {'onehop /s':>11} {'p50':>8} {'p99':>8} {'postgresql /s':>14} {'p50':>8} {'p99':>8} {'times':>7}")
    for script, connections in dict.fromkeys((row["script"], row["connections"]) for row in rows):
        of = lambda server, what: statistics.median(
            row[what] for row in rows if (row["script"], row["connections"], row["server"]) == (script, connections, server)
        )
        ours, theirs = ([of(server, what) for what in ("tps", "p50_ms", "p99_ms")] for server in ("onehop", "postgresql"))
        print(
            f"{script:8} {connections:4} {ours[0]:11.1f} {ours[1]:8.2f} {ours[2]:8.2f} {theirs[0]:14.1f} {theirs[1]:8.2f} {theirs[2]:8.2f}"
            f" {ours[0] / theirs[0]:7.2f}"
        )


def arguments():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--onehop", type=Path, default=REPOSITORY / "target" / "release" / "onehop")
    parser.add_argument("--postgresql", type=Path, default=Path("/usr/lib/postgresql/15/bin"), help="where its programs are")
    parser.add_argument("--db", type=Path, help="a database that has SSB already; without, it is made in a folder that goes away")
    parser.add_argument("--sf", default="1")
    parser.add_argument("--seconds", type=int, default=20)
    parser.add_argument("--connections", default="1,16,200")
    parser.add_argument("--scripts", default="q1.1,insert,mixed")
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--json", type=Path)
    return parser.parse_args()


def main():
    options = arguments()
    numbers = [int(number) for number in options.connections.split(",")]
    rows = []
    with tempfile.TemporaryDirectory(prefix="onehop-pgbench-") as scratch:
        folder = Path(scratch)
        # The server's own user has to get into its folder.
        folder.chmod(0o755)
        database = options.db or folder / "ssb.onehop"
        if not options.db:
            run([options.onehop, "gen", "ssb", "--sf", options.sf, "--out", database])
        scripts = {}
        for name, text in {"q1.1": QUERY.read_text().strip() + ";\n", "insert": INSERT, "read": READ}.items():
            scripts[name] = folder / f"{name}.sql"
            scripts[name].write_text(text)
        mixes = {"q1.1": [(scripts["q1.1"], 1)], "insert": [(scripts["insert"], 1)], "mixed": [(scripts["insert"], 1), (scripts["read"], 1)]}
        onehop = Onehop(options.onehop, database, max(numbers))
        try:
            home = folder / "postgresql"
            home.mkdir()
            postgresql = PostgreSql(options.postgresql, home, max(numbers))
            try:
                print(onehop.psql("SELECT version()").strip(), "|", postgresql.psql("SELECT version()").strip())
                postgresql.fill_from(onehop)
                answers = {server.name: server.psql(QUERY.read_text()).strip() for server in (onehop, postgresql)}
                if len(set(answers.values())) != 1:
                    raise Failed(f"the answers differ: {answers}")
                for script, mix in ((name, mixes[name]) for name in options.scripts.split(",")):
                    for connections in numbers:
                        for _ in range(options.rounds):
                            for server in (onehop, postgresql):
                                server.restart_log()
                                row = measure(server, mix, connections, options.seconds, folder)
                                rows.append({"script": script, **row})
                                show(script, row)
                summarize(rows)
            finally:
                postgresql.stop()
        finally:
            onehop.stop()
    if options.json:
        options.json.write_text(json.dumps({"sf": options.sf, "seconds": options.seconds, "rows": rows}, indent=1) + "\n")
    return 1 if any(row["errors"] for row in rows) else 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except Failed as e:
        sys.exit(f"pgbench.py: {e}")
