"""The same transfers by fio and by `onehop bench io`, in turns.

    cargo build --release -p onehop
    python3 bench/peers/fio.py /data [--onehop target/release/onehop] [--rounds 6] [--most-rounds 40] [--runtime 1s]
        [--size 1GiB] [--bs 4KiB,1MiB] [--rw read,randread,write,randwrite] [--path buffered,host,uring]
        [--iodepth 1,8] [--numjobs 1,4] [--at-least 0.97] [--json out.json]

1. `onehop bench io --keep` lays out one file, which both then use: fio may not make one.
2. For each point fio's command is the one that `onehop bench io --emit fio` prints: same file, pattern, block size,
   depth, jobs, page cache or O_DIRECT, registered buffers and files, no hints to the page cache.
3. In turns; who begins changes every time. A round's ratio is Onehop's rate by fio's, measured one right after the
   other, so that what changes slowly on the machine is in both; a point's ratio is the median of its rounds'.
4. At least ROUNDS of them, and then until the interval that has the true median with 95 % confidence lies on one side
   of --at-least, or MOST-ROUNDS are over. The interval is printed: what a disk shared with others does not decide is
   seen to be undecided.
5. If a ratio is below --at-least, the exit code is 1; of points whose rate was the page cache's it says so, because
   those compare memory. 2: there is no fio, or a command failed.

The file goes at the end. Needs nothing but Python and fio (Debian: apt install fio). Read ratios, and on a machine that
does nothing else: a neighbour's transfers are in one side's figures and not in the other's.
"""

import argparse
import json
import math
import os
import shlex
import shutil
import statistics
import sys
from dataclasses import asdict, dataclass, field
from pathlib import Path

from command import Failed, run

REPOSITORY = Path(__file__).resolve().parents[2]


@dataclass
class Point:
    rw: str
    path: str
    bs: str
    depth: int
    jobs: int
    onehop: list[float] = field(default_factory=list)
    fio: list[float] = field(default_factory=list)
    onehop_p99_us: list[float] = field(default_factory=list)
    fio_p99_us: list[float] = field(default_factory=list)
    notes: set[str] = field(default_factory=set)

    @property
    def ratio(self) -> float:
        """Above 1 Onehop is faster."""
        return statistics.median(self.ratios)

    @property
    def ratios(self) -> list[float]:
        return [ours / max(theirs, 1e-9) for ours, theirs in zip(self.onehop, self.fio)]

    @property
    def interval(self) -> tuple[float, float | None]:
        """Has the median of all rounds there could be with 95 % confidence, whatever their distribution. It has no end
        if there are too few to say."""
        ratios = sorted(self.ratios)
        n, cut, outside = len(ratios), 0, 0.0
        # Of n rounds, fewer than k fall below the true median as often as n coins show fewer than k heads.
        while (outside := outside + 2 * math.comb(n, cut) / 2**n) <= 0.05:
            cut += 1
        return (ratios[cut - 1], ratios[n - cut]) if cut > 0 else (0.0, None)

    @property
    def is_page_cache(self) -> bool:
        return any("page cache" in note for note in self.notes)


def onehop(options: argparse.Namespace, point: Point, file: Path, *more: str) -> str:
    words = [options.onehop, "bench", "io", str(file), "--rw", point.rw, "--path", point.path, "--bs", point.bs]
    words += ["--iodepth", str(point.depth), "--numjobs", str(point.jobs), "--size", options.size]
    words += ["--runtime", options.runtime, "--ramp", options.ramp, *more]
    return run(words)


def measure_onehop(options: argparse.Namespace, point: Point, file: Path) -> None:
    (figures,) = json.loads(onehop(options, point, file, "--json", "-"))["points"]
    point.onehop.append(figures["bytes_per_sec"])
    point.onehop_p99_us.append(figures["latency"]["p99_us"])
    point.notes.update(figures["notes"])


def measure_fio(options: argparse.Namespace, point: Point, file: Path) -> None:
    (line,) = onehop(options, point, file, "--emit", "fio").splitlines()
    text = run([*shlex.split(line), "--output-format=json"])
    # fio may say something before its JSON.
    (job,) = json.loads(text[text.index("{"):])["jobs"]
    if job["error"]:
        raise Failed(f"fio: error {job['error']} at {point}")
    side = job["write" if "write" in point.rw else "read"]
    point.fio.append(float(side["bw_bytes"]))
    point.fio_p99_us.append(side["clat_ns"].get("percentile", {}).get("99.000000", 0) / 1e3)


def points(options: argparse.Namespace) -> list[Point]:
    found = []
    for rw in options.rw.split(","):
        for bs in options.bs.split(","):
            for jobs in options.numjobs.split(","):
                for path in options.path.split(","):
                    depths = options.iodepth.split(",") if path.startswith("uring") else ["1"]
                    found += [Point(rw, path, bs, int(depth), int(jobs)) for depth in depths]
    return found


def compare(options: argparse.Namespace, file: Path) -> list[Point]:
    all_points = points(options)
    print(f"{'rw':<10}{'path':<16}{'block':>8}{'depth':>6}{'jobs':>5}{'onehop MB/s':>13}{'fio MB/s':>10}{'ratio':>8}"
          f"{'95 % of it':>13}{'rounds':>7}{'spread':>13}  p99 us onehop/fio")
    for point in all_points:
        sides = [measure_onehop, measure_fio]
        for number in range(options.most_rounds):
            low, high = point.interval
            if number >= options.rounds and (low >= options.at_least or (high or math.inf) < options.at_least):
                break
            for measure in sides if number % 2 == 0 else reversed(sides):
                measure(options, point, file)
        show(point)
    return all_points


def show(point: Point) -> None:
    def spread(rates: list[float]) -> str:
        return f"{(max(rates) - min(rates)) / max(statistics.median(rates), 1e-9):.0%}"

    onehop_rate, fio_rate = statistics.median(point.onehop) / 1e6, statistics.median(point.fio) / 1e6
    p99 = f"{statistics.median(point.onehop_p99_us):.0f}/{statistics.median(point.fio_p99_us):.0f}"
    low, high = point.interval
    interval = f"{low:.2f} to {high:.2f}" if high else "?"
    note = "  page cache" if point.is_page_cache else ""
    print(f"{point.rw:<10}{point.path:<16}{point.bs:>8}{point.depth:>6}{point.jobs:>5}{onehop_rate:>13,.0f}"
          f"{fio_rate:>10,.0f}{point.ratio:>8.3f}{interval:>13}{len(point.ratios):>7}"
          f"{spread(point.onehop) + '/' + spread(point.fio):>13}  {p99}{note}", flush=True)


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--onehop", default=str(REPOSITORY / "target" / "release" / "onehop"))
    parser.add_argument("--rounds", type=int, default=6)
    parser.add_argument("--most-rounds", type=int, default=40)
    parser.add_argument("--runtime", default="1s")
    parser.add_argument("--ramp", default="500ms")
    parser.add_argument("--size", default="1GiB")
    parser.add_argument("--bs", default="4KiB,1MiB")
    parser.add_argument("--rw", default="read,randread,write,randwrite")
    parser.add_argument("--path", default="buffered,host,uring")
    parser.add_argument("--iodepth", default="1,8")
    parser.add_argument("--numjobs", default="1")
    parser.add_argument("--at-least", type=float, default=0.97)
    parser.add_argument("--json", type=Path)
    return parser.parse_args()


def main() -> int:
    options = arguments()
    if shutil.which("fio") is None:
        print("fio is not installed, and nothing was compared: apt install fio", file=sys.stderr)
        return 2
    file = options.folder / f"onehop-bench-fio-{os.getpid()}"
    try:
        print(f"{run([options.onehop, '--version']).strip()}, {run(['fio', '--version']).strip()}, {os.cpu_count()} cores,"
              f" {options.size} in {options.folder}, {options.rounds} to {options.most_rounds} rounds of {options.runtime}",
              flush=True)
        layout = Point("read", "buffered", "1MiB", 1, 1)
        run([options.onehop, "bench", "io", str(file), "--size", options.size, "--rw", layout.rw, "--path", layout.path,
             "--bs", layout.bs, "--runtime", "10ms", "--ramp", "0s", "--keep"])
        compared = compare(options, file)
    except (Failed, FileNotFoundError) as e:
        print(f"FAILED: {e}", file=sys.stderr)
        return 2
    finally:
        file.unlink(missing_ok=True)
    if options.json:
        rows = [asdict(point) | {"notes": sorted(point.notes), "ratio": point.ratio, "ratio_95": point.interval}
                for point in compared]
        options.json.write_text(json.dumps({"schema_version": 1, "points": rows}, indent=2) + "\n")
    slow = [point for point in compared if point.ratio < options.at_least]
    mean = statistics.geometric_mean(point.ratio for point in compared)
    print(f"geometric mean {mean:.3f}, lowest {min(point.ratio for point in compared):.3f}")
    if slow:
        print(f"FAILED: {len(slow)} of {len(compared)} points below {options.at_least} of fio's rate")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
