"""A driver is killed, or stopped, before and after the moment at which its job is committed.

Before it: readers see what was there before, for good; nothing has to be cleaned up by hand, and the job can be run again at once.
After it: readers see all of it, at once and for good, whoever was to tidy up.
"""

import argparse
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import driver
import suite
from session import Files, Onehop, Where, start, use

WAIT_S = 600
OLD = 50


class Driver:
    """One that runs, with all its processes."""

    def __init__(self, where, mode, target, committer, marks, lease):
        self.marks = Path(marks)
        self.marks.mkdir()
        self.log = open(f"{marks}.log", "w+", encoding="utf-8")
        program = Path(__file__).with_name("driver.py")
        self.process = subprocess.Popen(
            [sys.executable, str(program), *where.words(), mode, target, committer, marks, lease],
            stdout=self.log, stderr=subprocess.STDOUT, start_new_session=True)

    def said(self):
        return Path(self.log.name).read_text(encoding="utf-8", errors="replace")

    def wait_until(self, what, is_so):
        end = time.time() + WAIT_S
        while not is_so():
            assert self.process.poll() is None and time.time() < end, f"waiting for {what}: {self.said()[-4000:]}"
            time.sleep(0.2)

    def signal(self, number):
        os.killpg(self.process.pid, number)

    def run_until(self, is_so, slice_s=0.005):
        """Lets it run for slices of time until something is so, and leaves it standing there."""
        end = time.time() + WAIT_S
        while True:
            self.signal(signal.SIGSTOP)
            if is_so():
                return
            assert self.process.poll() is None and time.time() < end, self.said()[-4000:]
            self.signal(signal.SIGCONT)
            time.sleep(slice_s)

    def open_gate(self):
        (self.marks / "gate").touch()

    def kill(self):
        self.signal(signal.SIGKILL)
        self.process.wait()
        # Its Python workers, which are in a group of their own, end when they see that it is gone, or pass the gate.
        self.open_gate()

    def end(self):
        """Exit code of one that ends by itself."""
        return self.process.wait(WAIT_S)


class Drivers:
    def __init__(self, spark, fs, onehop, where):
        self.spark, self.fs, self.onehop, self.where = spark, fs, onehop, where
        self.files = Files(spark, fs)

    def table(self, name):
        """One that has something in it."""
        target = f"{self.fs}/{name}"
        use(self.spark, "onehop")
        self.spark.range(0, OLD, 1, 1).selectExpr("id", f"id % {driver.DIRECTORIES} AS k").write.partitionBy("k").parquet(target)
        return target

    def begun(self, name, mode, committer="onehop", lease="4s"):
        """A driver whose tasks have all begun, and all but one are done."""
        target = self.table(name)
        before = set(self.onehop.transactions(self.fs))
        begun = Driver(self.where, mode, target, committer, f"{self.where.scratch}/{name}", lease)
        begun.wait_until("tasks", lambda: len(list(begun.marks.glob("begun-*"))) == driver.TASKS)
        if committer != "onehop":
            begun.wait_until("tasks' files", lambda: self.files.exists(f"{target}/_temporary"))
            return target, begun, None
        transaction = (set(self.onehop.transactions(self.fs)) - before).pop()
        begun.wait_until("committed tasks", lambda: self.tasks(transaction) == driver.TASKS - 1)
        return target, begun, transaction

    def tasks(self, transaction):
        return self.onehop.done("rados", "txn", "show", self.fs, transaction).count("\n  task ")

    def state(self, transaction):
        return self.onehop.transactions(self.fs).get(transaction, "gone")

    def until_aborted(self, transaction):
        """Its lease is over: the next collection aborts it."""
        end = time.time() + WAIT_S
        while self.state(transaction) == "pending":
            assert time.time() < end, "it is pending still"
            time.sleep(0.5)
            self.onehop.done("rados", "gc", self.fs)
        assert self.state(transaction) in ("aborted", "gone"), self.state(transaction)

    def rows(self, target):
        """What is there, as both engines say."""
        rows = sorted(row[0] for row in self.spark.read.parquet(target).select("id").collect())
        count, total = self.onehop.sql(f"SELECT count(*), sum(id) FROM '{target}/*/*.parquet'")[0]
        assert (int(count), int(total)) == (len(rows), sum(rows)), (count, total, len(rows), sum(rows))
        return rows

    def old(self):
        return list(range(OLD))

    def new(self):
        return list(range(driver.FIRST, driver.FIRST + driver.ROWS))

    def test_killed_before_the_commit(self):
        for mode in ("append", "overwrite"):
            target, begun, transaction = self.begun(f"killed_{mode}", mode)
            begun.kill()
            assert self.rows(target) == self.old(), mode
            # Nobody has to wait for what is left of it.
            use(self.spark, "onehop")
            self.spark.range(OLD, OLD + 10, 1, 1).selectExpr("id", "id % 3 AS k").write.mode("append").partitionBy("k").parquet(target)
            assert self.rows(target) == list(range(OLD + 10)), mode
            self.until_aborted(transaction)
            assert self.rows(target) == list(range(OLD + 10)), mode

    def test_killed_after_the_commit(self):
        for mode in ("append", "overwrite"):
            target, begun, transaction = self.begun(f"after_{mode}", mode, lease="600s")
            # It is at the moment of the commit that this name's file becomes another one.
            before = self.etag(f"{target}/_SUCCESS")
            begun.open_gate()
            begun.run_until(lambda: self.etag(f"{target}/_SUCCESS") != before)
            begun.kill()
            print(f"    {mode}: killed when the transaction was {self.state(transaction)},"
                  f" {'after' if 'written' in begun.said() else 'before'} the job's end", flush=True)
            wanted = self.new() if mode == "overwrite" else self.old() + self.new()
            assert self.rows(target) == wanted, mode
            self.onehop.done("rados", "gc", self.fs)
            assert self.rows(target) == wanted, mode

    def etag(self, path):
        return self.files.fs.getFileStatus(self.files.path(path)).getEtag() if self.files.exists(path) else None

    def test_one_that_stood_still_too_long(self):
        target, begun, transaction = self.begun("zombie", "overwrite")
        begun.signal(signal.SIGSTOP)
        self.until_aborted(transaction)
        begun.open_gate()
        begun.signal(signal.SIGCONT)
        assert begun.end() != 0 and "written" not in begun.said(), begun.said()[-2000:]
        assert transaction in begun.said() or "transaction" in begun.said(), begun.said()[-4000:]
        assert self.rows(target) == self.old()

    def test_killed_with_the_stock_committer(self):
        target, begun, _ = self.begun("stock", "append", "v1")
        begun.kill()
        assert self.rows(target) == self.old()
        # The next job's commit removes what is left.
        use(self.spark, "v1")
        self.spark.range(OLD, OLD + 10, 1, 1).selectExpr("id", "id % 3 AS k").write.mode("append").partitionBy("k").parquet(target)
        assert self.rows(target) == list(range(OLD + 10))
        assert not any("_temporary" in name for name in self.files.below(target)), self.files.below(target)


def main():
    where = Where.of(Where.arguments(argparse.ArgumentParser()).parse_args())
    spark = start(where, "local[2]")
    fs = f"rados://meta.spark_drivers_{int(time.time())}"
    onehop = Onehop(where)
    drivers = Drivers(spark, fs, onehop, where)

    def test_nothing_is_damaged():
        found = onehop.done("rados", "fsck", fs, "--objects", "--deep")
        assert "damaged" not in found and "nobody" not in found, found
        assert "pending" not in onehop.transactions(fs).values(), onehop.transactions(fs)

    try:
        return suite.run([*suite.methods(drivers), ("test_nothing_is_damaged", test_nothing_is_damaged)])
    finally:
        spark.stop()


if __name__ == "__main__":
    sys.exit(1 if main() else 0)
