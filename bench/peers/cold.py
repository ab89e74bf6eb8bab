"""A cold scan beside what the disk gives: `onehop bench io` on the table's largest file, the queries, and DuckDB.

    cargo build --release -p onehop
    bench/peers/.venv/bin/python bench/peers/cold.py DATABASE [--table lineitem] [--duckdb FILE]
        [--make 'SELECT ...'] [--query NAME=SQL ...] [--path auto,direct,buffered,steady] [--cache SIZE] [--mode fused]
        [--rounds 5] [--onehop target/release/onehop] [--at-least 0.95] [--no-touch] [--json out.json]

1. DATABASE is opened for reading only. With --make it is made first, of one table in one segment of up to 16 Mi rows, so
   that the file measured on is the file scanned: --make "SELECT * FROM 'lineitem/*.parquet' LIMIT 16777216".
2. *The disk* is `bench io` on the largest segment of the table, past the page cache by io_uring, at the block size and
   depth that are best by the medians of some passes over several. A round measures everything once, in an order that
   turns, each query beside the disk: its ratio is that of neighbours, since disks of virtual machines are shared. A
   query: a new process, which has the files' pages dropped from the page cache (posix_fadvise) first, runs EXPLAIN ANALYZE
   of it. DuckDB: a new process as well, its file dropped likewise. By the path *steady* the process runs it several times
   past the page cache and keeps nothing (io.path=direct, io.cache=0), so that each time all is read; the first is not
   counted, in which memory is found and cleared, as `bench io` is not measured in its --ramp.
3. A rate is bytes that came from storage by the time that the query ran: *scan*, and with its planning, in which footers
   and dictionaries are read: *all*. Columns that few rows get to are not read whole: bytes are counted, not assumed.
4. *Wanted* is the ratio to the same reads by a program that does something with its bytes: `bench io --touch`, in which
   a processor reads each of them once. Disks of virtual machines are copied into memory by a processor of their host,
   which is slower where that memory was in use by another one, and where it is not the same few MiB again and again.
5. `bound` says what a query waited for, by the processors' time in its pipeline: *processor* from 85 % of all threads'
   time on, *disk* below.

A virtual machine may have given memory back that nobody used, and gets it again page by page, ten times as slowly as
memory is cleared otherwise: 3 s for a GiB where this was written. Before each process as much memory as it may take is
touched and freed; --no-touch leaves that out.
"""

import argparse
import ctypes
import json
import mmap
import os
import shutil
import statistics
import subprocess
import sys
import time
from pathlib import Path

from command import Failed, run

REPOSITORY = Path(__file__).resolve().parents[2]

TEN = ("sum(l_extendedprice), sum(l_quantity), sum(l_discount), sum(l_tax), sum(l_partkey), sum(l_suppkey), "
       "sum(l_orderkey), max(l_shipdate), max(l_receiptdate), max(l_commitdate)")
QUERIES = {
    "ten": f"SELECT {TEN} FROM lineitem",
    "four": "SELECT sum(l_extendedprice), sum(l_partkey), sum(l_suppkey), sum(l_orderkey) FROM lineitem",
    "one": "SELECT sum(l_extendedprice) FROM lineitem",
    "q1": (REPOSITORY / "crates/lab/src/queries/tpch/q01.sql").read_text(),
    "q6": (REPOSITORY / "crates/lab/src/queries/tpch/q06.sql").read_text(),
}
# Block sizes and depths that the disk is asked for its best at, and how often.
RAW = {"--bs": "256KiB,512KiB,1MiB,4MiB", "--iodepth": "4,8,32"}
PASSES = 3
# Threads of `bench io --touch`, each with as many reads in flight as the disk is read best at.
TOUCHING = 2
# How often a process of the path `steady` runs its query.
STEADY = 4


def forget(files: list[Path]) -> None:
    for path in files:
        file = os.open(path, os.O_RDONLY)
        try:
            os.fsync(file)
            os.posix_fadvise(file, 0, 0, os.POSIX_FADV_DONTNEED)
        finally:
            os.close(file)


def touch(size: int) -> float:
    """Has the machine have that much memory, and gives it back to its system. How long that took."""
    began = time.monotonic()
    with mmap.mmap(-1, size) as memory:
        if hasattr(mmap, "MADV_HUGEPAGE"):
            memory.madvise(mmap.MADV_HUGEPAGE)
        at = (ctypes.c_char * size).from_buffer(memory)
        ctypes.memset(at, 1, size)
        del at
    return time.monotonic() - began


def segments(database: Path) -> list[Path]:
    return sorted((database / "segments").glob("*.seg"))


def onehop(options: argparse.Namespace, sql: str, *more: str) -> str:
    return run([options.onehop, str(options.database), "--readonly", *more, "--format", "json", "-c", sql])


def largest(options: argparse.Namespace) -> Path:
    """The largest segment of the table."""
    sql = f"SELECT file FROM onehop_segments WHERE table_name = '{options.table}' ORDER BY size_bytes DESC LIMIT 1"
    (row,) = json.loads(onehop(options, sql))
    return options.database / "segments" / Path(row["file"]).name


def make(options: argparse.Namespace) -> None:
    shutil.rmtree(options.database, ignore_errors=True)
    run([options.onehop, str(options.database), "--set", "threads=1", "--set", "storage.segment_rows=16777216",
         "-c", f"CREATE TABLE {options.table} AS {options.make}"])


def raw(options: argparse.Namespace, file: Path, sizes: dict[str, str], *more: str) -> dict[tuple[int, int], float]:
    words = [options.onehop, "bench", "io", str(file), "--rw", "read", "--path", "uring", "--runtime", "500ms",
             "--ramp", "100ms", "--json", "-", *more]
    for flag, values in sizes.items():
        words += [flag, values]
    points = json.loads(run(words))["points"]
    return {(point["block_bytes"], point["depth"]): point["bytes_per_sec"] for point in points}


def best_of_disk(options: argparse.Namespace, file: Path) -> dict[str, str]:
    """The block size and depth that it is read best at."""
    passes = [raw(options, file, RAW) for _ in range(PASSES)]
    block, depth = max(passes[0], key=lambda point: median([rates[point] for rates in passes]))
    return {"--bs": str(block), "--iodepth": str(depth)}


def nodes(plan: dict):
    yield plan
    for below in plan["inputs"]:
        yield from nodes(below)


def cold(options: argparse.Namespace, sql: str, path: str) -> dict:
    more = ["--set", f"exec.mode={options.mode}"]
    if path == "steady":
        more += ["--set", "io.path=direct", "--set", "io.cache=0"]
    else:
        more += ["--set", f"io.path={path}"]
        if options.cache:
            more += ["--set", f"io.cache={options.cache}"]
    forget(segments(options.database))
    explain = f"EXPLAIN (ANALYZE, FORMAT JSON) {sql.strip().rstrip(';')};"
    times = STEADY if path == "steady" else 1
    found = [facts(answer) for answer in answers(onehop(options, explain * times, *more))]
    counted = sorted(found[times > 1:], key=lambda one: one["scan"])
    return counted[len(counted) // 2]


def answers(text: str):
    """One after the other."""
    decoder, at = json.JSONDecoder(), 0
    while text[at:].strip():
        at += len(text[at:]) - len(text[at:].lstrip())
        rows, at = decoder.raw_decode(text, at)
        yield rows


def facts(rows: list[dict]) -> dict:
    (row,) = rows
    explained = row["plan"] if isinstance(row["plan"], dict) else json.loads(row["plan"])
    read = explained["ledger"]["storage_to_host_bytes"]
    busy = [node["pipeline"] for node in nodes(explained["plan"]) if node.get("pipeline")]
    share = sum(p["cpu_seconds"] for p in busy) / max(sum(p["seconds"] * p["threads"] for p in busy), 1e-9)
    ways = [node["read_ahead"]["way"] for node in nodes(explained["plan"]) if node.get("read_ahead")]
    return {
        "read_bytes": read,
        "scan": read / explained["run_seconds"],
        "all": read / (explained["run_seconds"] + explained["plan_seconds"]),
        "seconds": explained["run_seconds"] + explained["plan_seconds"],
        "cpu_share": share if busy else None,
        "way": ", ".join(sorted(set(ways))) or None,
    }


def duckdb(options: argparse.Namespace, sql: str) -> float:
    forget([options.duckdb])
    words = [sys.executable, str(Path(__file__).with_name("duckdb_pipe.py")), str(options.duckdb)]
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        out, _ = process.communicate(json.dumps({"sql": sql, "rows": False}) + "\n")
    answer = json.loads(out.splitlines()[0])
    if not answer["ok"]:
        raise Failed(f"DuckDB: {answer['error']['message']}")
    return answer["wall_ns"] / 1e9


def median(values: list[float]) -> float:
    return statistics.median(values)


def spread(values: list[float]) -> str:
    return f"{(max(values) - min(values)) / max(median(values), 1e-9):.0%}"


def measure(options: argparse.Namespace, queries: dict[str, str]) -> dict:
    file = largest(options)
    best = best_of_disk(options, file)
    disk: list[float] = []
    wanted: list[float] = []
    runs: dict[tuple[str, str], list] = {}
    steps = [(name, path) for name in queries for path in options.path.split(",")]
    if options.duckdb:
        steps += [(name, "duckdb") for name in queries]
    touched = []
    for number in range(options.rounds):
        turned = steps[number % len(steps):] + steps[:number % len(steps)]
        for name, path in turned:
            if not options.no_touch:
                touched.append(touch(options.touch << 20))
            if path == "duckdb":
                runs.setdefault((name, path), []).append(duckdb(options, queries[name]))
                continue
            (beside,) = raw(options, file, best).values()
            one = cold(options, queries[name], path)
            # The same number of reads in flight, and as many beside whose bytes are being read by a processor.
            (touched_rate,) = raw(options, file, best | {"--numjobs": str(TOUCHING)}, "--touch").values()
            disk.append(beside)
            wanted.append(touched_rate)
            runs.setdefault((name, path), []).append(
                one | {"ratio": one["scan"] / beside, "wanted_ratio": one["scan"] / touched_rate})
    print(f"{file.name}, {file.stat().st_size / 1e6:,.0f} MB: the disk gives {median(disk) / 1e6:,.0f} MB/s by blocks of "
          f"{int(best['--bs']) >> 10} KiB, {best['--iodepth']} at once; spread {spread(disk)}, {options.rounds} rounds")
    print(f"  {median(wanted) / 1e6:,.0f} MB/s to a program whose processors read every byte once (bench io --touch, "
          f"{TOUCHING} threads); spread {spread(wanted)}")
    if touched:
        print(f"memory: {options.touch} MiB touched in {min(touched):.2f} to {max(touched):.2f} s")
    print(f"{'query':<8}{'path':<10}{'MB read':>9}{'seconds':>9}{'scan MB/s':>11}{'ratio':>7}{'spread':>8}{'wanted':>8}{'all MB/s':>10}"
          f"  {'cpu':>5}  bound      way")
    found = {"file": str(file), "disk_at": best, "disk_bytes_per_sec": disk, "queries": []}
    for (name, path), all_runs in runs.items():
        if path == "duckdb":
            print(f"{name:<8}{'DuckDB':<10}{'':>9}{median(all_runs):>9.3f}")
            found["queries"].append({"query": name, "path": path, "seconds": all_runs})
            continue
        of = {key: [one[key] for one in all_runs] for key in ("scan", "all", "seconds", "read_bytes", "ratio", "wanted_ratio")}
        shares = [one["cpu_share"] for one in all_runs if one["cpu_share"] is not None]
        share = median(shares) if shares else 0.0
        ratio = median(of["ratio"])
        print(f"{name:<8}{path:<10}{median(of['read_bytes']) / 1e6:>9,.0f}{median(of['seconds']):>9.3f}"
              f"{median(of['scan']) / 1e6:>11,.0f}{ratio:>7.2f}{spread(of['ratio']):>8}{median(of['wanted_ratio']):>8.2f}{median(of['all']) / 1e6:>10,.0f}"
              f"  {share:>5.0%}  {'processor' if share >= 0.85 else 'disk':<10} {all_runs[0]['way']}")
        found["queries"].append({"query": name, "path": path, "ratio": ratio, "runs": all_runs})
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("database", type=Path)
    parser.add_argument("--table", default="lineitem")
    parser.add_argument("--duckdb", type=Path, help="DuckDB's database with the same table")
    parser.add_argument("--make", metavar="SQL", help="make the database first, of one table in one segment")
    parser.add_argument("--query", action="append", metavar="NAME=SQL", help="instead of the queries there are")
    parser.add_argument("--queries", default="ten,four,one,q1,q6", help="of the queries there are")
    parser.add_argument("--path", default="auto,direct,buffered,steady")
    parser.add_argument("--cache", help="io.cache")
    parser.add_argument("--mode", default="fused", help="exec.mode")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--touch", type=int, default=2048, metavar="MIB", help="memory touched before each process")
    parser.add_argument("--no-touch", action="store_true")
    parser.add_argument("--onehop", default=str(REPOSITORY / "target" / "release" / "onehop"))
    parser.add_argument("--at-least", type=float, help="exit with 1 if the best path of a query is below this ratio")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    queries = dict(one.split("=", 1) for one in options.query or []) or {
        name: QUERIES[name] for name in options.queries.split(",")
    }
    try:
        if options.make:
            make(options)
        found = measure(options, queries)
    except Failed as e:
        print(e, file=sys.stderr)
        return 2
    if options.json:
        options.json.write_text(json.dumps(found, indent=1))
    best: dict[str, float] = {}
    for one in found["queries"]:
        if "ratio" in one:
            best[one["query"]] = max(best.get(one["query"], 0), one["ratio"])
    missed = [name for name, ratio in best.items() if options.at_least and ratio < options.at_least]
    for name in missed:
        print(f"{name}: {best[name]:.2f} of the disk, below {options.at_least}")
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
