"""The same queries on the same data, on Onehop and on DuckDB, in turns.

    bench/peers/setup.sh
    bench/peers/.venv/bin/python bench/peers/compare.py ssb --sf 1 [--data data] [--onehop target/release/onehop]
        [--runs 5] [--threads 2] [--queries q1.1,q2.1] [--reload] [--load-runs 1] [--json out.json]

Both engines load the same Parquet files into tables of their own format, and keep them for the next run. A query is
asked of both first; only if the answers are the same (`answer.py` says what that means) it is timed: RUNS times each,
in turns, after that warm-up, in one session per engine. A query with another answer has no time, and the exit code
is 1. Figures of a noisy machine: read ratios, not milliseconds.
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
from data import REPOSITORY, SUITES, Data, Load, size
from engine import DuckDb, Engine, EngineError, Onehop


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
        if not self.onehop_ns:
            return None
        return statistics.median(self.duckdb_ns) / statistics.median(self.onehop_ns)


def measure(name: str, sql: str, onehop: Engine, duckdb_: Engine, runs: int) -> Timing:
    timing = Timing(name)
    try:
        theirs = duckdb_.sql(sql).answer
        ours = onehop.sql(sql).answer
        timing.difference = difference(ours, theirs, order_keys(sql, theirs.columns))
    except EngineError as e:
        timing.difference = str(e)
    if timing.difference is not None:
        return timing
    timing.rows = len(theirs.rows)
    for run in range(runs):
        for engine in (onehop, duckdb_) if run % 2 == 0 else (duckdb_, onehop):
            result = engine.sql(sql, rows=False)
            if engine is onehop:
                timing.onehop_ns.append(result.wall_ns)
                timing.ledger = result.ledger
            else:
                timing.duckdb_ns.append(result.wall_ns)
    return timing


def geometric_mean(values: list[float]) -> float:
    return math.exp(statistics.fmean(map(math.log, values)))


def environment(binary: Path) -> dict[str, object]:
    cpu = re.search(r"model name\s*:\s*(.+)", Path("/proc/cpuinfo").read_text()) if sys.platform == "linux" else None
    version = subprocess.run([str(binary), "--version"], capture_output=True, text=True, check=True)
    return {
        "date": dt.datetime.now(dt.timezone.utc).isoformat(timespec="seconds"),
        "cpu": cpu.group(1) if cpu else platform.processor(),
        "cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
        "kernel": platform.release(),
        "python": platform.python_version(),
        "onehop": version.stdout.strip(),
        "duckdb": duckdb.__version__,
    }


def load(data: Data, options: argparse.Namespace) -> list[tuple[Load, Load]]:
    """Loads, unless it was done before; every load that was done now."""
    if data.is_loaded() and not options.reload:
        return []
    return [data.load(options.onehop, options.threads) for _ in range(options.load_runs)]


def megabytes(count: int | None) -> str:
    return "?" if count is None else f"{count / 1e6:,.1f} MB"


def print_loads(data: Data, loads: list[tuple[Load, Load]]) -> None:
    ours, theirs = size(data.onehop), size(data.duckdb)
    print(f"size on disk: onehop {megabytes(ours)}, duckdb {megabytes(theirs)}, ratio {ours / theirs:.3f}")
    for onehop, duck in loads:
        print(
            f"load: onehop {onehop.load_ns / 1e9:.2f} s (peak {megabytes(onehop.peak_rss_bytes)} resident), "
            f"duckdb {duck.load_ns / 1e9:.2f} s (peak {megabytes(duck.peak_rss_bytes)}), "
            f"{duck.load_ns / onehop.load_ns:.2f}x"
        )


def print_timing(timing: Timing) -> None:
    if timing.ratio is None:
        print(f"{timing.query:6}  WRONG: {timing.difference}", flush=True)
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


def report(data: Data, options: argparse.Namespace, loads: list[tuple[Load, Load]], timings: list[Timing]) -> dict:
    ratios = [timing.ratio for timing in timings if timing.ratio is not None]
    return {
        "schema_version": 1,
        "suite": data.suite,
        "scale_factor": float(data.scale),
        "threads": options.threads,
        "runs": options.runs,
        "environment": environment(options.onehop),
        "size_bytes": {"onehop": size(data.onehop), "duckdb": size(data.duckdb)},
        "loads": [{"onehop": asdict(onehop), "duckdb": asdict(duck)} for onehop, duck in loads],
        "queries": [asdict(timing) | {"ratio": timing.ratio} for timing in timings],
        "geometric_mean_ratio": geometric_mean(ratios) if ratios else None,
    }


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Time Onehop and DuckDB side by side.")
    parser.add_argument("suite", choices=SUITES)
    parser.add_argument("--sf", default="1", help="scale factor (1)")
    parser.add_argument("--data", type=Path, default=REPOSITORY / "data", help="where data is kept (data)")
    parser.add_argument("--onehop", type=Path, default=REPOSITORY / "target" / "release" / "onehop")
    parser.add_argument("--runs", type=int, default=5, help="timed runs of each query (5)")
    parser.add_argument("--threads", type=int, default=2, help="of both engines (2)")
    parser.add_argument("--queries", type=lambda text: text.split(","), help="only these, as q1.1,q2.1")
    parser.add_argument("--reload", action="store_true", help="load again, and time it")
    parser.add_argument("--load-runs", type=int, default=1, help="how often to load, when loading (1)")
    parser.add_argument("--json", type=Path, help="write the report there, too")
    return parser.parse_args()


def main() -> None:
    options = parse()
    data = Data(options.data.resolve(), options.suite, options.sf)
    data.generate(options.onehop)
    queries = data.queries(options.queries)
    loads = load(data, options)
    for name, value in environment(options.onehop).items():
        print(f"{name}: {value}")
    print(f"{data.suite} at scale factor {data.scale}, {options.threads} threads, {options.runs} runs")
    print_loads(data, loads)
    print("query    rows  onehop ms: median, min, max     duckdb ms: median, min, max    faster    MB read  skipped")
    timings = []
    with Onehop(options.onehop, data.onehop, options.threads) as onehop, DuckDb(data.duckdb, options.threads) as duck:
        for name, sql in queries.items():
            timings.append(measure(name, sql, onehop, duck, options.runs))
            print_timing(timings[-1])
    whole = report(data, options, loads, timings)
    if whole["geometric_mean_ratio"]:
        print(f"geometric mean: {whole['geometric_mean_ratio']:.2f}x")
    if options.json:
        options.json.write_text(json.dumps(whole, indent=2) + "\n")
    wrong = [timing.query for timing in timings if timing.difference is not None]
    if wrong:
        sys.exit(f"{len(wrong)} of {len(timings)} answers are wrong: {', '.join(wrong)}")


if __name__ == "__main__":
    main()
