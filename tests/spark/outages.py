"""A cluster that is full, half dead, or down is an error that says so, in time, to Spark and to the command; when it is well again, so
is the session.

The cluster has two OSDs and one copy of everything, so that half of it is gone with one of them. *In time*: an operation has the
timeout that is set, and whoever is told that one has failed has a few more to tidy up; a job or a statement that takes longer than
ten times the timeout has not minded it.
"""

import argparse
import os
import subprocess
import sys
import time

from pyspark.sql import functions as F

import suite
from session import Files, Onehop, Where, start, use

TIMEOUT_S = 6
# Of all that a job or a statement does.
LIMIT_S = 10 * TIMEOUT_S
RATIOS = {"nearfull": "0.85", "backfillfull": "0.90", "full": "0.95"}


class Cluster:
    """One of its own."""

    def __init__(self, folder):
        self.folder = folder
        self.script = os.environ["ONEHOP_CEPH_SCRIPT"]
        self.conf = self.call("up", {"OSDS": "2", "REPLICAS": "1", "OSD_GIB": "4"}).strip()

    def call(self, word, settings=None, *more):
        done = subprocess.run([self.script, word, self.folder, *more], env={**os.environ, **(settings or {})},
                              stdout=subprocess.PIPE, text=True, check=True)
        return done.stdout

    def kill(self, name):
        self.call("kill", None, name)

    def ceph(self, *words):
        subprocess.run(["ceph", "-c", self.conf, *words], check=True, capture_output=True)

    def ratios(self, ratios):
        # OSDs raise those above to those below.
        for name, ratio in ratios.items():
            self.ceph("osd", f"set-{name}-ratio", ratio)


class Outages:
    def __init__(self, spark, cluster, onehop):
        self.spark, self.cluster, self.onehop = spark, cluster, onehop
        self.fs = f"rados://meta.outages_{int(time.time())}"
        self.files = Files(spark, self.fs)
        self.number = 0
        # Some hundred objects, in all placement groups.
        self.frame = spark.range(0, 400_000, 1, 8).select("id", F.md5(F.col("id").cast("string")).alias("x"))
        self.table = f"{self.fs}/table"

    def new(self):
        self.number += 1
        return f"{self.fs}/new {self.number}"

    def timed(self, what, action):
        began = time.time()
        found = action()
        took = time.time() - began
        print(f"    {what}: {took:.1f} s: {str(found).strip().splitlines()[0][:160]}", flush=True)
        assert took < LIMIT_S, f"{what} took {took:.0f} s"
        return found

    def fails(self, what, action, *words):
        """What the exception says; one of `words` is in it."""
        def run():
            try:
                action()
            except Exception as error:
                return "".join(line for line in str(error).splitlines(True) if any(word in line for word in words)) \
                    or f"none of {words}: {error}"
            raise AssertionError(f"{what} has not failed")
        said = self.timed(what, run)
        assert not said.startswith("none of"), said

    def command_fails(self, query, *words):
        code, _, err = self.timed(f"onehop {query[:30]}", lambda: self.onehop.run("-c", query))
        assert code == 1 and any(word in err for word in words), (code, err)

    def is_well(self):
        for committer in ("v1", "onehop"):
            use(self.spark, committer)
            target = self.new()
            self.frame.write.parquet(target)
            assert self.spark.read.parquet(target).count() == self.frame.count()
        assert self.spark.read.parquet(self.table).count() == self.frame.count()
        assert self.onehop.sql(f"SELECT count(*) FROM '{self.table}/*.parquet'") == [["400000"]]

    def until_well(self):
        """Clients hear a little later that OSDs are back, or have room again."""
        end = time.time() + 120
        while True:
            try:
                return self.is_well()
            except Exception:
                if time.time() > end:
                    raise
                time.sleep(2)

    def writing_fails(self, *words):
        for committer in ("v1", "onehop"):
            use(self.spark, committer)
            target = self.new()
            self.fails(f"{committer} writes", lambda: self.frame.write.parquet(target), *words)
        self.command_fails(f"COPY (SELECT unnest(range(0, 4000000)) AS x) TO '{self.new()}.parquet'", *words)

    def test_full(self):
        self.cluster.ratios(dict(zip(RATIOS, ("0.0001", "0.0002", "0.0003"))))
        try:
            # OSDs say how full they are every few seconds.
            end = time.time() + 90
            while "HEALTH_ERR" not in subprocess.run(["ceph", "-c", self.cluster.conf, "health"], capture_output=True,
                                                     text=True, check=True).stdout:
                assert time.time() < end, "it does not get full"
                time.sleep(1)
            self.writing_fails("No space", "no space", "full")
            # What is there can be read.
            assert self.spark.read.parquet(self.table).count() == self.frame.count()
        finally:
            self.cluster.ratios(dict(reversed(RATIOS.items())))
        self.until_well()

    def test_half_dead(self):
        self.cluster.kill("osd.1")
        try:
            self.writing_fails("no answer", "timed out")
            self.fails("spark reads", lambda: self.spark.read.parquet(self.table).agg(F.max("x")).collect(),
                       "no answer", "timed out")
            self.command_fails(f"SELECT max(x) FROM '{self.table}/*.parquet'", "no answer", "timed out")
        finally:
            self.cluster.call("up")
        self.until_well()

    def test_without_osds(self):
        self.cluster.kill("osd.0")
        self.cluster.kill("osd.1")
        try:
            self.writing_fails("no answer", "timed out")
        finally:
            self.cluster.call("up")
        self.until_well()

    def test_down(self):
        """Last: a session that has lost its cluster, and one that never had it."""
        for name in ("mon.a", "osd.0", "osd.1"):
            self.cluster.kill(name)
        self.writing_fails("no answer", "timed out", "cannot connect")
        self.fails("a new file system", lambda: self.spark.range(9).write.parquet(f"{self.fs}_other/x"),
                   "cannot connect", "no answer")
        self.command_fails(f"SELECT * FROM '{self.fs}/x.csv'", "cannot connect", "no answer")
        code, _, err = self.timed("onehop rados ls", lambda: self.onehop.run("rados", "ls", self.fs))
        assert code == 1 and ("cannot connect" in err or "no answer" in err), (code, err)

    def test_0_well(self):
        use(self.spark, "onehop")
        self.frame.write.parquet(self.table)
        self.is_well()


def main():
    where = Where.of(Where.arguments(argparse.ArgumentParser()).parse_args())
    cluster = Cluster(f"{where.scratch}/cluster")
    try:
        where = Where(where.jar, cluster.conf, where.scratch, where.onehop)
        # One attempt at a task: more would take as much longer.
        spark = start(where, "local[2,1]", spark__hadoop__fs__rados__timeout=f"{TIMEOUT_S}s",
                      spark__hadoop__fs__rados__create__chunk__bytes="64K")
        try:
            outages = Outages(spark, cluster, Onehop(where, f"{TIMEOUT_S}s"))
            return suite.run(suite.methods(
                outages, "test_0_well", "test_full", "test_half_dead", "test_without_osds", "test_down"))
        finally:
            spark.stop()
    finally:
        cluster.call("wipe")


if __name__ == "__main__":
    sys.exit(1 if main() else 0)
