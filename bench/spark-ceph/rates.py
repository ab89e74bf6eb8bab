"""How fast Spark writes, by format, committer and size of file, beside `rados bench` and the local disk.

By turns, in each round, for each size and format: `rados bench` of objects as large as the file's chunks, as many in flight as both
writers have; the job, by each committer; the job to the local disk. The first job of each kind is not counted (the virtual machine
compiles meanwhile). What was written is read, and its bytes are compared with what the file system says has crossed the network.
A rate is the bytes that lie there by the time of the whole job, commit included.
"""

import argparse
import json
import shutil
import statistics
import time
from pathlib import Path

import plot
from cluster import Cluster
from jobs import FORMATS, TASKS, Job
from session import COMMITTERS, Files, Where, start, use

CHUNK = 8 << 20
# What a writer has in flight: 32 MiB.
CHUNKS_IN_FLIGHT = 4
UNITS = {"KiB": 10, "MiB": 20, "GiB": 30}


def size(text):
    return int(text[:-3]) << UNITS[text[-3:]]


class Rates:
    def __init__(self, spark, cluster, options):
        self.spark, self.cluster, self.options = spark, cluster, options
        self.cells = 0

    def bench(self, file_bytes):
        return self.cluster.write_rate(min(file_bytes, CHUNK), TASKS * CHUNKS_IN_FLIGHT, self.options.bench_seconds)

    def to_cluster(self, job, committer):
        """MiB/s, into a file system of its own, which is gone afterwards."""
        self.cells += 1
        url = f"rados://meta.rates{self.cells}_{int(time.time())}"
        files, figures = Files(self.spark, url), {}
        use(self.spark, committer)
        with files.counted(figures):
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
        return data / took / (1 << 20)

    def to_disk(self, job):
        folder = Path(self.options.scratch) / "local"
        use(self.spark, "v2")
        began = time.monotonic()
        job.write(f"file://{folder}")
        took = time.monotonic() - began
        data = sum(file.stat().st_size for file in folder.glob("part-*"))
        job.check(f"file://{folder}")
        shutil.rmtree(folder)
        return data / took / (1 << 20)

    def cell(self, form, file_bytes):
        job = Job(self.spark, form, file_bytes)
        row = {"rados_bench": self.bench(file_bytes)}
        for committer in self.options.committers:
            row[committer] = self.to_cluster(job, committer)
        row["local_disk"] = self.to_disk(job)
        return row

    def warm(self):
        for form in self.options.formats:
            job = Job(self.spark, form, 1 << 20)
            for committer in self.options.committers:
                self.to_cluster(job, committer)
            self.to_disk(job)

    def run(self):
        self.warm()
        found = []
        for number in range(self.options.rounds):
            for file_bytes in self.options.sizes:
                for form in self.options.formats:
                    row = self.cell(form, file_bytes)
                    found.append({"round": number, "file_bytes": file_bytes, "format": form, "mib_per_sec": row})
                    print(f"round {number} {file_bytes >> 20:5} MiB {form:9} "
                          + " ".join(f"{name} {rate:6.1f}" for name, rate in row.items()), flush=True)
        return found


def medians(found, committers):
    """Of all rounds: rates, and each committer's as a part of what `rados bench` and the disk did in the same round."""
    table = {}
    for line in found:
        table.setdefault((line["file_bytes"], line["format"]), []).append(line["mib_per_sec"])
    rows = []
    for (file_bytes, form), rates in table.items():
        row = {"file_bytes": file_bytes, "format": form}
        for name in ("rados_bench", *committers, "local_disk"):
            row[name] = statistics.median(rate[name] for rate in rates)
        for name in committers:
            row[f"{name}_of_rados_bench"] = statistics.median(rate[name] / rate["rados_bench"] for rate in rates)
            row[f"{name}_of_local_disk"] = statistics.median(rate[name] / rate["local_disk"] for rate in rates)
        rows.append(row)
    return rows


def markdown(rows, committers):
    names = ("rados_bench", *committers, "local_disk")
    ratios = [f"{name}_of_{other}" for name in committers[-1:] for other in ("rados_bench", "local_disk")]
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
    options.add_argument("--bench-seconds", default=3, type=int)
    options.add_argument("--json")
    options.add_argument("--svg")
    options = options.parse_args()
    cluster = Cluster(options.conf)
    environment = cluster.environment()
    print(json.dumps(environment), flush=True)
    spark = start(Where.of(options), f"local[{TASKS}]", spark__driver__memory="4g")
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
