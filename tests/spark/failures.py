"""Tasks that fail, tasks that are run twice, tasks that go on when they should not: every row is there, once.

Executors are processes of their own, so that what the driver and they know of each other is what Spark sends. Each
attempt at a task leaves a mark in a local folder when it begins, so that a test can tell that what it is about has happened.
"""

import argparse
import os
import sys
import time

from pyspark import TaskContext
from pyspark.sql import functions as F

import suite
from session import COMMITTERS, Files, Onehop, Where, start, use
from standalone import Standalone

ROWS = 4_000
TASKS = 4


def attempts(folder):
    """Attempts that have begun, by task."""
    found = {}
    for name in sorted(os.listdir(folder)):
        task, attempt = name.split("-")
        found.setdefault(int(task), []).append(int(attempt))
    return found


def marked(marks, action):
    """A function of rows that keeps their number, marks each attempt, and does something at the task's last row."""

    def of(number):
        context = TaskContext.get()
        task, attempt = context.partitionId(), context.attemptNumber()
        mark = f"{marks}/{task}-{attempt}"
        if not os.path.exists(mark):
            open(mark, "w").close()
        if number % (ROWS // TASKS) == ROWS // TASKS - 1:
            action(marks, task, attempt)
        return number

    return F.udf(of, "bigint")


def fails_at_first(_, task, attempt):
    if attempt < task % 3:
        raise RuntimeError(f"task {task} fails on purpose, attempt {attempt}")


def dies_at_first(_, task, attempt):
    if task == 1 and attempt == 0:
        # The executor, whose child this is, dies with it.
        os.kill(java_above(), 9)


def java_above():
    """The executor: the first process above that is a virtual machine."""
    pid = os.getpid()
    while pid > 1:
        with open(f"/proc/{pid}/stat", encoding="utf-8") as stat:
            pid = int(stat.read().rsplit(")", 1)[1].split()[1])
        with open(f"/proc/{pid}/comm", encoding="utf-8") as comm:
            if comm.read().strip() == "java":
                return pid
    raise RuntimeError("no executor above")


def until_there_is_another(marks, task):
    """Another attempt at a task; not for ever: then the test fails by what has begun."""
    end = time.time() + 300
    while time.time() < end and not os.path.exists(f"{marks}/{task}-1"):
        time.sleep(0.05)


def is_slow_at_first(marks, task, attempt):
    """The first attempt is not done before the other one is: its executor kills it, or it comes too late."""
    if task == 2 and attempt == 0:
        until_there_is_another(marks, task)
        time.sleep(15)


def ends_when_the_other_does(marks, task, attempt):
    """Both are about to be committed at the same time."""
    if task == 2 and attempt == 0:
        until_there_is_another(marks, task)
    if task == 2:
        time.sleep(0.2)


class Failures:
    def __init__(self, spark, base, where):
        self.spark, self.base, self.where = spark, base, where
        self.files = Files(spark, base)
        self.committer = None

    def written(self, name, action, partitions=True):
        """Writes a table in which each task does something at its last row: attempts that have begun, and the folder."""
        marks = f"{self.where.scratch}/{name}-{self.committer}"
        os.mkdir(marks)
        target = f"{self.base}/{self.committer}/{name}"
        frame = self.spark.range(0, ROWS, 1, TASKS).select(marked(marks, action)("id").alias("id"))
        frame = frame.withColumn("k", F.col("id") % 3)
        writer = frame.write.partitionBy("k") if partitions else frame.write
        writer.parquet(target)
        return attempts(marks), target

    def all_there_once(self, target):
        rows = sorted(row[0] for row in self.spark.read.parquet(target).select("id").collect())
        assert rows == list(range(ROWS)), (len(rows), len(set(rows)))
        names = self.files.below(target)
        assert not any("_temporary" in name or "__transaction" in name for name in names), names
        # One file of each task and partition: none of an attempt that does not count.
        assert len(self.files.visible(target)) == TASKS * 3, names

    def test_tasks_that_fail(self):
        begun, target = self.written("fail", fails_at_first)
        # And perhaps more: those that fail are slower than the others, so that they may be run twice as well.
        assert {0, 1} <= set(begun[1]) and {0, 1, 2} <= set(begun[2]), begun
        self.all_there_once(target)

    def test_an_executor_that_dies(self):
        begun, target = self.written("die", dies_at_first)
        assert 1 in begun[1], begun
        self.all_there_once(target)

    def in_two_attempts(self, name, run):
        """Until there are two attempts at a task: one whose executor is lost before it begins is none, and who comes after another
        test's may be. Every row is there once in any case."""
        for turn in range(5):
            begun = run(f"{name}-{turn}")
            if {0, 1} <= set(begun[2]):
                return
        raise AssertionError(begun)

    def table_of(self, action):
        def run(name):
            begun, target = self.written(name, action)
            self.all_there_once(target)
            return begun
        return run

    def test_speculation(self):
        self.in_two_attempts("speculate", self.table_of(is_slow_at_first))

    def test_attempts_that_end_together(self):
        self.in_two_attempts("together", self.table_of(ends_when_the_other_does))

    def test_rdds_that_are_speculated(self):
        self.in_two_attempts("rdd", self.text_of_rdd)

    def text_of_rdd(self, name):
        marks = f"{self.where.scratch}/{name}-{self.committer}"
        os.mkdir(marks)
        target = f"{self.base}/{self.committer}/{name}"

        def slow(task, rows):
            attempt = TaskContext.get().attemptNumber()
            open(f"{marks}/{task}-{attempt}", "w").close()
            for row in rows:
                yield f"{row}"
            is_slow_at_first(marks, task, attempt)

        self.spark.sparkContext.range(0, ROWS, 1, TASKS).mapPartitionsWithIndex(slow).saveAsTextFile(target)
        back = sorted(int(line) for line in self.spark.sparkContext.textFile(target).collect())
        assert back == list(range(ROWS)), len(back)
        assert len(self.files.visible(target)) == TASKS, self.files.below(target)
        return attempts(marks)

    def run_of(self, committer):
        def prepared(test):
            def run():
                self.committer = committer
                use(self.spark, committer)
                test()
            return run
        return [(f"{committer}: {name}", prepared(test)) for name, test in suite.methods(self)]


def main():
    where = Where.of(Where.arguments(argparse.ArgumentParser()).parse_args())
    with Standalone(where.scratch) as master:
        spark = start(
            where, master, spark__executor__extraClassPath=where.jar, spark__task__maxFailures=4, spark__executor__memory="1g",
            spark__speculation="true", spark__speculation__interval="200ms", spark__speculation__multiplier=1.2,
            spark__speculation__quantile=0.5, spark__speculation__efficiency__enabled="false")
        try:
            return run(spark, where)
        finally:
            spark.stop()


def run(spark, where):
    fs = f"rados://meta.spark_failures_{int(time.time())}"
    onehop = Onehop(where)
    failures = Failures(spark, f"{fs}/data", where)

    def test_nothing_is_left():
        found = onehop.done("rados", "fsck", fs, "--objects", "--deep")
        assert "damaged" not in found and "nobody" not in found, found
        assert set(onehop.transactions(fs).values()) <= {"committed", "aborted"}, onehop.transactions(fs)

    tests = [test for committer in COMMITTERS for test in failures.run_of(committer)]
    return suite.run([*tests, ("test_nothing_is_left", test_nothing_is_left)])


if __name__ == "__main__":
    sys.exit(1 if main() else 0)
