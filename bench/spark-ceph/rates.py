"""How fast Spark writes, by format, committer and size of file, beside `rados bench` and the local disk.

By turns, in each round, for each size and format: `rados bench` of objects as large as the file's chunks, as many in flight as all
writers would have with a whole window each, though they take turns; the job, by each committer; the job to the local disk. The first jobs of each kind are not counted: the virtual machine
compiles meanwhile, and what it compiles last is what all of them wait for. What was written is read, and its bytes are compared with what the file system says has crossed the network.
A rate is the bytes that lie there by the time of the whole job, commit included.

What the cluster has acknowledged lies on its disks; what the local disk has, in the page cache: *flushed* is the same job with that
written as well. *Busy* is the share of this program's processors' time that was not idle meanwhile. Where the cluster has the same
processors as Spark, and these are all busy, a job takes the time of both. *Both* is the rate if it does: of the job on the local disk,
and of `rados bench`, one after the other. `run.sh` can give each processors of its own (`CLUSTER_CPUS`, `SPARK_CPUS`).

The serializer is the limit where the job to the local disk keeps its processors busy and still writes less than `rados bench`.
"""

import argparse
import json
import os
import shutil
import statistics
import time
from pathlib import Path

import plot
from cluster import Cluster
from jobs import FORMATS, MOST_FILES, Job
from session import COMMITTERS, Files, Where, start, use

# What a job's rate is compared with.
OTHERS = ("rados_bench", "local_disk", "local_disk_flushed", "both")
CHUNK = 4 << 20
# What a writer has in flight: 64 MiB.
CHUNKS_IN_FLIGHT = 16
UNITS = {"KiB": 10, "MiB": 20, "GiB": 30}


def size(text):
    return int(text[:-3]) << UNITS[text[-3:]]


class Rates:
    def __init__(self, spark, cluster, options):
        self.spark, self.cluster, self.options = spark, cluster, options
        self.cells = 0

    def job(self, form, file_bytes):
        return Job(self.spark, form, file_bytes, self.options.job_bytes, self.options.tasks)

    def bench(self, file_bytes):
        """MiB/s, and how busy the processors were."""
        settled()
        with Busy() as busy:
            rate = self.cluster.write_rate(min(file_bytes, CHUNK), self.options.tasks * CHUNKS_IN_FLIGHT, self.options.bench_seconds)
        return rate, busy.share

    def to_cluster(self, job, committer):
        """The same of a job into a file system of its own, which is gone afterwards."""
        self.cells += 1
        url = f"rados://meta.rates{self.cells}_{int(time.time())}"
        files, figures = Files(self.spark, url), {}
        use(self.spark, committer)
        settled()
        with files.counted(figures), Busy() as busy:
            began = time.monotonic()
            job.write(f"{url}/table")
            took = time.monotonic() - began
        data = sum(files.visible(f"{url}/table").values())
        # A rename that copies would be here twice.
        assert figures["storage_to_host_bytes"] == 0 and figures["rename_copy_bytes"] == 0, figures
        assert data <= figures["host_to_storage_bytes"] < data + 4096, (data, figures)
        assert figures["spark_bytes"] == data, (data, figures)
        job.check(f"{url}/table")
        files.fs.close()
        self.cluster.empty()
        return data / took / (1 << 20), busy.share

    def to_disk(self, job):
        """The same, into the page cache, and on the disk."""
        folder = Path(self.options.scratch) / "local"
        use(self.spark, "v2")
        settled()
        began = time.monotonic()
        with Busy() as busy:
            job.write(f"file://{folder}")
            took = time.monotonic() - began
        os.sync()
        flushed = time.monotonic() - began
        data = sum(file.stat().st_size for file in folder.glob("part-*"))
        job.check(f"file://{folder}")
        shutil.rmtree(folder)
        return (data / took / (1 << 20), busy.share), data / flushed / (1 << 20)

    def cell(self, form, file_bytes):
        job = self.job(form, file_bytes)
        cells = {"rados_bench": self.bench(file_bytes)}
        for committer in self.options.committers:
            cells[committer] = self.to_cluster(job, committer)
        cells["local_disk"], flushed = self.to_disk(job)
        row = {name: rate for name, (rate, _) in cells.items()}
        row["local_disk_flushed"] = flushed
        row["both"] = 1 / (1 / row["local_disk"] + 1 / row["rados_bench"])
        return row, {name: busy for name, (_, busy) in cells.items()}

    def warm(self):
        """Jobs of all kinds, of files of the greatest size, but of no more than 256 MiB."""
        file_bytes = min(max(self.options.sizes), 256 << 20)
        for form in self.options.formats:
            job = self.job(form, file_bytes)
            for _ in range(max(2, self.options.warm_bytes // (job.files * file_bytes))):
                for committer in self.options.committers:
                    self.to_cluster(job, committer)
                self.to_disk(job)

    def run(self):
        self.warm()
        found = []
        for number in range(self.options.rounds):
            for file_bytes in self.options.sizes:
                for form in self.options.formats:
                    row, busy = self.cell(form, file_bytes)
                    found.append({"round": number, "file_bytes": file_bytes, "format": form, "mib_per_sec": row,
                                  "processors_busy": busy})
                    print(f"round {number} {file_bytes >> 20:5} MiB {form:9} "
                          + " ".join(f"{name} {rate:6.1f}" + (f" ({busy[name]:.0%})" if name in busy else "")
                                     for name, rate in row.items()), flush=True)
        return found


def settled():
    """Waits until what was measured before is over: what it has left is flushed, and the cluster has done with what was deleted."""
    os.sync()
    for _ in range(40):
        with Busy() as busy:
            time.sleep(0.25)
        if busy.share < 0.1:
            return


class Busy:
    """The share of the time of the processors that this program may use that was not idle."""

    def __enter__(self):
        self.before = self.times()
        return self

    def __exit__(self, *_):
        idle, everything = (after - before for after, before in zip(self.times(), self.before))
        self.share = 1 - idle / max(everything, 1)

    @staticmethod
    def times():
        ours = {f"cpu{number}" for number in os.sched_getaffinity(0)}
        with open("/proc/stat", encoding="utf-8") as stat:
            # cpu0 user nice system idle iowait ...
            lines = [[int(word) for word in line.split()[1:9]] for line in stat if line.split()[0] in ours]
        return sum(times[3] + times[4] for times in lines), sum(sum(times) for times in lines)


def medians(found, committers):
    """Of all rounds: rates, and each committer's as a part of what others did in the same round."""
    table = {}
    for line in found:
        table.setdefault((line["file_bytes"], line["format"]), []).append(line)
    rows = []
    for (file_bytes, form), lines in table.items():
        rates = [line["mib_per_sec"] for line in lines]
        row = {"file_bytes": file_bytes, "format": form}
        for name in ("rados_bench", *committers, "local_disk", "local_disk_flushed"):
            row[name] = statistics.median(rate[name] for rate in rates)
        for name in committers:
            for other in OTHERS:
                row[f"{name}_of_{other}"] = statistics.median(rate[name] / rate[other] for rate in rates)
        row["local_disk_of_rados_bench"] = statistics.median(rate["local_disk"] / rate["rados_bench"] for rate in rates)
        for name in (*committers, "local_disk"):
            row[f"{name}_busy"] = statistics.median(line["processors_busy"][name] for line in lines)
        rows.append(row)
    return rows


def markdown(rows, committers):
    names = ("rados_bench", *committers, "local_disk", "local_disk_flushed")
    ours = committers[-1]
    ratios = [*(f"{ours}_of_{other}" for other in OTHERS), "local_disk_of_rados_bench", f"{ours}_busy", "local_disk_busy"]
    heads = ["file", "format", *names, *ratios]
    lines = ["| " + " | ".join(head.replace("_", " ") for head in heads) + " |", "|" + "---|" * len(heads)]
    for row in rows:
        cells = [f"{row['file_bytes'] >> 20} MiB", row["format"]]
        cells += [f"{row[name]:.0f}" for name in names] + [f"{row[name]:.0%}" for name in ratios]
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


def main():
    options = Where.arguments(argparse.ArgumentParser(description=__doc__))
    options.add_argument("--sizes", default="16MiB,128MiB", type=lambda text: [size(word) for word in text.split(",")])
    options.add_argument("--formats", default=",".join(FORMATS), type=lambda text: text.split(","))
    options.add_argument("--committers", default=",".join(COMMITTERS), type=lambda text: text.split(","))
    options.add_argument("--rounds", default=3, type=int)
    options.add_argument("--tasks", default=2, type=int, help="at a time, each of which writes a file")
    options.add_argument("--bench-seconds", default=3, type=int)
    options.add_argument("--job-bytes", default=1 << 30, type=size, help=f"how much a job writes, of small files at most {MOST_FILES}")
    options.add_argument("--warm-bytes", default=1 << 30, type=size,
                         help="how much is written of each kind before anything counts, at least by two jobs")
    options.add_argument("--json")
    options.add_argument("--svg")
    options = options.parse_args()
    cluster = Cluster(options.conf)
    environment = cluster.environment()
    print(json.dumps(environment), flush=True)
    spark = start(Where.of(options), f"local[{options.tasks}]", spark__driver__memory="4g")
    try:
        found = Rates(spark, cluster, options).run()
    finally:
        spark.stop()
    rows = medians(found, options.committers)
    print("\n" + markdown(rows, options.committers))
    if options.json:
        Path(options.json).write_text(json.dumps(
            {"schema_version": 1, "environment": environment, "runs": found, "medians": rows}, indent=1), encoding="utf-8")
    if options.svg:
        Path(options.svg).write_text(plot.bars(rows, ("rados_bench", *options.committers, "local_disk")), encoding="utf-8")


if __name__ == "__main__":
    main()
