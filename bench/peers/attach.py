#!/usr/bin/env python3
"""Tables of a PostgreSQL by ATTACH: SSB and TPC-H as they are there, answered and loaded, and how fast.

    bench/peers/attach.py --onehop target/release/onehop --sf 1 --json attach.json

Needs Debian's package postgresql (15 or later), and nothing of the environment. PostgreSQL gets a data folder and a port of its own on
127.0.0.1, and ends with this program; as root, it runs as the user postgres, for it refuses to as root.

1. The data is Onehop's (`onehop gen`), and goes to PostgreSQL by COPY out of the one server into the other.
2. Every query is answered from Onehop's own tables, from the attached ones, and from those that CREATE TABLE AS has made of these:
   the same rows three times.
3. `CREATE TABLE AS SELECT * FROM pg.t` of the largest tables, beside what each side can do by itself: PostgreSQL's `COPY t TO` a
   file that is no file, in binary, by as many connections as Onehop has, each with a range of pages; and Onehop's load of the same
   rows from its own table. All in turns; medians.
"""

import argparse
import concurrent.futures
import json
import os
import re
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from pgbench import Failed, Onehop, PostgreSql, run

QUERIES = Path(__file__).parents[2] / "crates" / "lab" / "src" / "queries"
BENCHMARKS = {
    "ssb": ("lineorder", "customer", "supplier", "part", "date"),
    "tpch": ("lineitem", "orders", "customer", "part", "partsupp", "supplier", "nation", "region"),
}


def qualified(query, tables):
    """The query over attached tables: their names, where a FROM or a JOIN has them."""
    pieces, in_list, expects = [], False, False
    for token in re.findall(r"'[^']*'|\"[^\"]*\"|\w+|\s+|.", query, re.DOTALL):
        word = token.lower()
        if word in ("from", "join"):
            in_list, expects = True, True
        elif word == "," and in_list:
            expects = True
        elif word in ("where", "group", "order", "on", "limit", "having", "(", ")"):
            in_list, expects = word == "(" and in_list, False
        elif expects and token.strip():
            token = f"pg.{token}" if word.strip('"') in tables else token
            expects = False
        pieces.append(token)
    return "".join(pieces)


def asked(server, *texts):
    words = ["psql", *server.address(), "-X", "-q", "-A", "-t", "-v", "ON_ERROR_STOP=1", "-d", "postgres"]
    for text in texts:
        words += ["-c", text]
    return run(words)


def answers(onehop, attach, name, tables):
    """Of all queries, in three ways; how many were the same."""
    asked(onehop, attach, *(f'CREATE TABLE "loaded_{table}" AS SELECT * FROM pg."{table}"' for table in tables))
    count = 0
    for path in sorted((QUERIES / name).glob("*.sql")):
        query = path.read_text().strip().rstrip(";")
        over = qualified(query, tables)
        own = asked(onehop, query)
        attached = asked(onehop, attach, over)
        loaded = asked(onehop, re.sub(r"\bpg\.\"?(\w+)\"?", r"loaded_\1", over))
        if not own == attached == loaded:
            raise Failed(f"{path.stem} of {name}: the answers differ\n{own}---\n{attached}---\n{loaded}")
        count += 1
    return count


def page_ranges(postgresql, table, count):
    pages = int(asked(postgresql, f"SELECT pg_relation_size('{table}') / current_setting('block_size')::int"))
    each = -(-pages // count)
    last = count - 1
    ends = [f" AND ctid < '({(n + 1) * each},0)'" if n < last else "" for n in range(count)]
    return [f"ctid >= '({n * each},0)'{end}" for n, end in enumerate(ends)]


def seconds_of(work):
    began = time.perf_counter()
    work()
    return time.perf_counter() - began


def copied(postgresql, table, count):
    """PostgreSQL's rows to nobody."""

    def part(condition):
        text = f"COPY (SELECT * FROM \"{table}\" WHERE {condition}) TO STDOUT (FORMAT binary)"
        words = ["psql", *postgresql.address(), "-X", "-q", "-d", "postgres", "-c", text]
        if subprocess.run(words, stdout=subprocess.DEVNULL, check=False).returncode != 0:
            raise Failed(f"{table} could not be copied")

    with concurrent.futures.ThreadPoolExecutor(count) as pool:
        list(pool.map(part, page_ranges(postgresql, table, count)))


def speeds(onehop, postgresql, attach, table, rounds, threads):
    rows = int(asked(onehop, f'SELECT count(*) FROM "{table}"'))
    size = int(asked(postgresql, f"SELECT pg_relation_size('{table}')"))
    ways = {
        "attach": lambda: asked(onehop, attach, f'CREATE OR REPLACE TABLE made AS SELECT * FROM pg."{table}"'),
        "copy": lambda: copied(postgresql, table, threads),
        "load": lambda: asked(onehop, f'CREATE OR REPLACE TABLE made AS SELECT * FROM "{table}"'),
    }
    times = {way: [] for way in ways}
    for number in range(rounds + 1):
        for way, work in ways.items():
            took = seconds_of(work)
            # The first is to warm up.
            if number:
                times[way].append(took)
    medians = {way: statistics.median(all_times) for way, all_times in times.items()}
    slower = max(medians["copy"], medians["load"])
    row = {"table": table, "rows": rows, "pg_bytes": size, "seconds": medians, "of_the_slower_side": slower / medians["attach"], "all": times}
    print(
        f"{table:10} {rows:9} rows  attach {medians['attach']:6.2f} s ({rows / medians['attach'] / 1e6:.2f} M rows/s)  PostgreSQL's COPY"
        f" {medians['copy']:6.2f} s  load {medians['load']:6.2f} s  {slower / medians['attach']:.2f} of the slower side",
        flush=True,
    )
    return row


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--onehop", type=Path, required=True)
    parser.add_argument("--postgresql", type=Path, default=Path("/usr/lib/postgresql/15/bin"), help="where its programs are")
    parser.add_argument("--sf", default="1")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--benchmarks", default="ssb,tpch")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    threads, found = os.cpu_count() or 1, []
    for name in options.benchmarks.split(","):
        tables = BENCHMARKS[name]
        with tempfile.TemporaryDirectory(prefix="onehop-attach-") as scratch:
            folder = Path(scratch)
            # The server's own user has to get into its folder.
            folder.chmod(0o755)
            run([options.onehop, "gen", name, "--sf", options.sf, "--out", folder / "db"])
            home = folder / "postgresql"
            home.mkdir()
            onehop = Onehop(options.onehop, folder / "db", 20)
            try:
                postgresql = PostgreSql(options.postgresql, home, 40)
                try:
                    print(onehop.psql("SELECT version()").strip(), "|", postgresql.psql("SELECT version()").strip())
                    postgresql.fill_from(onehop, tables)
                    attach = f"ATTACH 'postgresql://postgres@127.0.0.1:{postgresql.port}/postgres' AS pg"
                    count = answers(onehop, attach, name, tables)
                    print(f"{name} SF {options.sf}: {count} queries, each answered three ways alike", flush=True)
                    made = [speeds(onehop, postgresql, attach, table, options.rounds, threads) for table in tables[:2]]
                    found.append({"benchmark": name, "queries": count, "speeds": made})
                finally:
                    postgresql.stop()
            finally:
                onehop.stop()
    if options.json:
        options.json.write_text(json.dumps({"sf": options.sf, "threads": threads, "found": found}, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except Failed as e:
        sys.exit(f"attach.py: {e}")
