"""How long a job's commit takes that has written many files into many directories, by each committer; and a rename of all of them.

The job writes one Parquet file for each task and directory. What its commit took is Spark's own metric, *job commit time*, which for
FileOutputCommitter 2 and the tasks' share of version 1 is not all: *task commit time* is there as well. Renames are of the
directory that has all of it.
"""

import argparse
import json
import time
from pathlib import Path

from cluster import Cluster
from session import COMMITTERS, Files, Where, start, use


def metrics(spark):
    """What Spark's last command has said of itself."""
    store = spark._jsparkSession.sharedState().statusStore()
    spark.sparkContext._jsc.sc().listenerBus().waitUntilEmpty()
    executions = store.executionsList()
    for number in range(executions.size() - 1, -1, -1):
        execution = executions.apply(number)
        values, found = store.executionMetrics(execution.executionId()), {}
        for at in range(execution.metrics().size()):
            metric = execution.metrics().apply(at)
            value = values.get(metric.accumulatorId())
            if value.isDefined() and metric.name() in ("job commit time", "task commit time"):
                found[metric.name()] = " ".join(value.get().split())
        if "job commit time" in found:
            return found
    return {}


def renames(files, folder, rounds):
    """Milliseconds of each, to and fro."""
    took = []
    for number in range(rounds):
        names = (folder, f"{folder}-renamed") if number % 2 == 0 else (f"{folder}-renamed", folder)
        began = time.monotonic()
        assert files.fs.rename(files.path(names[0]), files.path(names[1]))
        took.append((time.monotonic() - began) * 1000)
    return sorted(took)


def main():
    options = Where.arguments(argparse.ArgumentParser(description=__doc__))
    options.add_argument("--files", default=10_000, type=int)
    options.add_argument("--directories", default=100, type=int)
    options.add_argument("--committers", default=",".join(COMMITTERS), type=lambda text: text.split(","))
    options.add_argument("--json")
    options = options.parse_args()
    cluster = Cluster(options.conf)
    environment = cluster.environment()
    print(json.dumps(environment), flush=True)
    spark = start(Where.of(options), "local[2]", spark__driver__memory="3g")
    tasks = options.files // options.directories
    url = f"rados://meta.commits_{int(time.time())}"
    files, found = Files(spark, url), []
    frame = spark.range(0, options.files, 1, tasks).selectExpr("id", f"id % {options.directories} AS k")
    try:
        spark.range(10).write.parquet(f"{url}/warm")
        for committer in options.committers:
            use(spark, committer)
            folder, figures = f"{url}/{committer}", {}
            with files.counted(figures):
                began = time.monotonic()
                frame.write.partitionBy("k").parquet(folder)
                took = time.monotonic() - began
            assert len(files.visible(folder)) == options.files
            assert figures["rename_copy_bytes"] == figures["storage_to_host_bytes"] == 0, figures
            row = {"committer": committer, "job_sec": took, **metrics(spark), "rename_ms": renames(files, folder, 10)}
            found.append(row)
            print(f"{committer}: job {took:.1f} s, {json.dumps(row)}", flush=True)
    finally:
        spark.stop()
    if options.json:
        Path(options.json).write_text(json.dumps(
            {"schema_version": 1, "environment": environment, "files": options.files, "directories": options.directories,
             "runs": found}, indent=1), encoding="utf-8")


if __name__ == "__main__":
    main()
