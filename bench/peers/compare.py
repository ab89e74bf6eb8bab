"""The same queries on the same data, on Onehop and on DuckDB, in turns.

    bench/peers/setup.sh
    bench/peers/.venv/bin/python bench/peers/compare.py ssb --sf 1 [--data data] [--onehop target/release/onehop]
        [--runs 5] [--threads 2] [--queries 1,2.1-3] [--set io.path=direct] [--reload] [--load-runs 1]
        [--json out.json] [--canary]

1. Both engines load the same Parquet files into tables of their own format, table by table in turns, and keep them for
   the next run, with a note of how long that took and how much memory.
2. A query is asked of both first; only if the answers are the same (`answer.py` says what that means) it is timed.
3. RUNS times each, in turns, after that warm-up, in one session per engine; of each the median. The engine that begins
   changes every time. A timed run with another number of rows counts as another answer.
4. A query with another answer has no time, and the exit code is 1. `--canary` spoils Onehop's first answer: that run
   must fail.

Figures of a noisy machine: read ratios, not milliseconds.
"""

import argparse
import datetime as dt
import json
import math
import os
import platform
import re
import statistics
import subprocess
import sys
from dataclasses import asdict, dataclass, field
from pathlib import Path

import duckdb
from answer import difference, order_keys
from data import REPOSITORY, SUITES, Data, size
from engine import DuckDb, Engine, EngineError, Onehop

# A median of fewer is no figure.
RUNS_MIN = 5


@dataclass
class Timing:
    query: str
    rows: int = 0
    onehop_ns: list[int] = field(default_factory=list)
    duckdb_ns: list[int] = field(default_factory=list)
    ledger: dict[str, int] = field(default_factory=dict)
    difference: str | None = None

    @property
    def ratio(self) -> float | None:
        """How many times faster Onehop is; below 1 it is slower."""
        if self.difference is not None or not self.onehop_ns:
            return None
        return statistics.median(self.duckdb_ns) / statistics.median(self.onehop_ns)


def measure(name: str, sql: str, onehop: Engine, duckdb_: Engine, runs: int, spoil: bool = False) -> Timing:
    timing = Timing(name)
    try:
        theirs = duckdb_.sql(sql).answer
        ours = onehop.sql(sql).answer
        if spoil:
            ours.rows = ours.rows[:-1] if ours.rows else [tuple(None for _ in ours.columns)]
        timing.difference = difference(ours, theirs, order_keys(sql, theirs.columns))
        timing.rows = len(theirs.rows)
        for run in range(runs if timing.difference is None else 0):
            time_once(timing, sql, (onehop, duckdb_) if run % 2 == 0 else (duckdb_, onehop))
    except EngineError as e:
        timing.difference = str(e)
    return timing


def time_once(timing: Timing, sql: str, engines: tuple[Engine, Engine]) -> None:
    for engine in engines:
        result = engine.sql(sql, rows=False)
        if result.row_count != timing.rows:
            raise EngineError(f"{engine.name}: {result.row_count} rows in a timed run, and {timing.rows} before")
        if engine.name == "onehop":
            timing.onehop_ns.append(result.wall_ns)
            timing.ledger = result.ledger
        else:
            timing.duckdb_ns.append(result.wall_ns)


def geometric_mean(values: list[float]) -> float:
    return math.exp(statistics.fmean(map(math.log, values)))


def environment(binary: Path) -> dict[str, object]:
    """Machine, system and versions. Onehop's is what its `doctor` says, the kind of build included."""
    probes = json.loads(subprocess.run([binary, "doctor", "--json"], capture_output=True, text=True).stdout)["probes"]
    cpu = re.search(r"model name\s*:\s*(.+)", Path("/proc/cpuinfo").read_text()) if sys.platform == "linux" else None
    return {
        "date": dt.datetime.now(dt.timezone.utc).isoformat(timespec="seconds"),
        "cpu": cpu.group(1) if cpu else platform.processor(),
        "cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
        "memory_bytes": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
        "os": platform.freedesktop_os_release().get("PRETTY_NAME", platform.system()),
        "kernel": f"{platform.system()} {platform.release()} {platform.machine()}",
        "python": platform.python_version(),
        "onehop": next(probe["found"] for probe in probes if probe["name"] == "onehop"),
        "duckdb": duckdb.__version__,
    }


def warn_of_debug_build(versions: dict[str, object]) -> None:
    if "debug" in str(versions["onehop"]):
        print("WARNING: onehop is a debug build: these times say nothing about it", file=sys.stderr, flush=True)


def io_path(onehop: Engine, tables: list[str]) -> str:
    """How Onehop's bytes travel, from its files as they are open: the setting is a wish."""
    paths = set()
    for table in tables:
        plan = onehop.sql(f'EXPLAIN SELECT * FROM "{table}"').answer
        lines = [line for row in plan.rows for line in str(row[-1]).splitlines()]
        paths |= {found.group(1) for line in lines if (found := re.search(r", path (.+)$", line))}
    return ", ".join(sorted(paths - {"none"})) or "none"


def load(data: Data, options: argparse.Namespace, versions: dict[str, object]) -> list[dict]:
    """Every load that is made now; else the last one."""
    before = data.loaded()
    if before and not options.reload:
        return [before]
    return [data.load(options.onehop, options.threads, versions) for _ in range(options.load_runs)]


def megabytes(count: int | None) -> str:
    return "?" if count is None else f"{count / 1e6:,.1f} MB"


def print_head(data: Data, options: argparse.Namespace, versions: dict[str, object], path: str) -> None:
    shown = versions | {"memory": f"{versions['memory_bytes'] / 2**30:.1f} GiB"}
    del shown["memory_bytes"]
    for name, value in shown.items():
        print(f"{name}: {value}")
    print(f"data: {data.suite} at scale factor {data.scale}; fixed seed: the rows are a function of the scale factor")
    print(f"io path: onehop {path}; duckdb its own buffers")
    print(f"runs: median of {options.runs}, in turns, after 1 that warms up (hot); {options.threads} threads each")
    if options.runs < RUNS_MIN:
        print(f"runs: fewer than {RUNS_MIN}: a trial, not a figure")


def print_loads(data: Data, loads: list[dict], date: object) -> None:
    ours, theirs = size(data.onehop), size(data.duckdb)
    print(f"size on disk: onehop {megabytes(ours)}, duckdb {megabytes(theirs)}, ratio {ours / theirs:.3f}")
    for one in loads:
        onehop, duck = one["onehop"], one["duckdb"]
        when = one["environment"]["date"]
        print(
            f"load: onehop {onehop['load_ns'] / 1e9:.2f} s (peak {megabytes(onehop['peak_rss_bytes'])} resident), "
            f"duckdb {duck['load_ns'] / 1e9:.2f} s (peak {megabytes(duck['peak_rss_bytes'])}), "
            f"{duck['load_ns'] / onehop['load_ns']:.2f}x"
            + ("" if when == date else f"; measured {when} by onehop {one['environment']['onehop']}, --reload repeats it")
        )


def print_timing(timing: Timing) -> None:
    if timing.ratio is None:
        reason = f"WRONG: {timing.difference}" if timing.difference else "same answer, not timed"
        print(f"{timing.query:6} {timing.rows:6}  {reason}", flush=True)
        return
    cells = []
    for times in (timing.onehop_ns, timing.duckdb_ns):
        milliseconds = [ns / 1e6 for ns in times]
        cells.append(f"{statistics.median(milliseconds):9.2f} {min(milliseconds):9.2f} {max(milliseconds):9.2f}")
    ledger = timing.ledger
    read = ledger.get("storage_to_host_bytes", 0) + ledger.get("storage_to_device_bytes", 0)
    blocks = f"{ledger.get('blocks_skipped', 0)}/{ledger.get('blocks_considered', 0)}"
    print(
        f"{timing.query:6} {timing.rows:6}  {cells[0]}  {cells[1]}  {timing.ratio:6.2f}x  {read / 1e6:9.1f}  {blocks}",
        flush=True,
    )


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Time Onehop and DuckDB side by side.")
    parser.add_argument("suite", choices=SUITES)
    parser.add_argument("--sf", default="1", help="scale factor (1)")
    parser.add_argument("--data", type=Path, default=REPOSITORY / "data", help="where data is kept (data)")
    parser.add_argument("--onehop", type=Path, default=REPOSITORY / "target" / "release" / "onehop")
    parser.add_argument("--runs", type=int, default=RUNS_MIN, help=f"timed runs of each query ({RUNS_MIN})")
    parser.add_argument("--threads", type=int, default=2, help="of both engines (2)")
    parser.add_argument("--queries", type=lambda text: text.split(","), help="only these, as 1.1,2-3 or q01,6-8")
    parser.add_argument("--set", action="append", default=[], metavar="NAME=VALUE", help="a setting of Onehop's")
    parser.add_argument("--reload", action="store_true", help="load again, and time it")
    parser.add_argument("--load-runs", type=int, default=1, help="how often to load, when loading (1)")
    parser.add_argument("--json", type=Path, help="write the report there, too")
    parser.add_argument("--canary", action="store_true", help="spoil an answer: the run must fail")
    options = parser.parse_args()
    if options.runs < 0 or options.threads < 1 or options.load_runs < 1:
        parser.error("--runs cannot be negative, --threads and --load-runs are 1 or more")
    if not options.onehop.is_file():
        parser.error(f"there is no {options.onehop}: cargo build --release -p onehop, or name one with --onehop")
    return options


def main() -> None:
    options = parse()
    data = Data(options.data.resolve(), options.suite, options.sf)
    queries = data.queries(options.queries)
    versions = environment(options.onehop)
    warn_of_debug_build(versions)
    data.generate(options.onehop)
    loads = load(data, options, versions)
    onehop_ = Onehop(options.onehop, data.onehop, options.threads, options.set)
    with onehop_ as onehop, DuckDb(data.duckdb, options.threads) as duck:
        path = io_path(onehop, data.tables())
        print_head(data, options, versions, path)
        print_loads(data, loads, versions["date"])
        print("query    rows  onehop ms: median, min, max     duckdb ms: median, min, max    faster    MB read  skipped")
        timings = []
        for name, sql in queries.items():
            timings.append(measure(name, sql, onehop, duck, options.runs, options.canary and not timings))
            print_timing(timings[-1])
        peaks = {engine.name: engine.peak_rss_bytes() for engine in (onehop, duck)}
    print(f"peak memory of the queries: onehop {megabytes(peaks['onehop'])}, duckdb {megabytes(peaks['duckdb'])} resident")
    ratios = [timing.ratio for timing in timings if timing.ratio is not None]
    mean = geometric_mean(ratios) if ratios else None
    if mean:
        print(f"geometric mean: {mean:.2f}x")
    if options.json:
        report = {
            "schema_version": 2,
            "suite": data.suite,
            "scale_factor": float(data.scale),
            "seed": "fixed",
            "threads": options.threads,
            "runs": options.runs,
            "warm_up_runs": 1,
            "cache": "hot",
            "io_path": path,
            "settings": options.set,
            "environment": versions,
            "size_bytes": {"onehop": size(data.onehop), "duckdb": size(data.duckdb)},
            "loads": loads,
            "peak_rss_bytes": peaks,
            "queries": [asdict(timing) | {"ratio": timing.ratio} for timing in timings],
            "geometric_mean_ratio": mean,
        }
        options.json.write_text(json.dumps(report, indent=2) + "\n")
    warn_of_debug_build(versions)
    wrong = [timing.query for timing in timings if timing.difference is not None]
    if wrong:
        sys.exit(f"FAILED: {len(wrong)} of {len(timings)} answers are wrong: {', '.join(wrong)}")


if __name__ == "__main__":
    main()
