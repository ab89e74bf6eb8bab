"""A driver that is to be killed: `driver.py MODE TARGET COMMITTER MARKS LEASE`, and what every program is told.

It writes a table in which each task leaves a mark `MARKS/begun-N` when it begins and one of them ends only when there is `MARKS/gate`.
MODE is what becomes of what is there: `append` or `overwrite`. It says `written` when the job has ended.
"""

import argparse
import os
import time

from pyspark.sql import functions as F

from session import Where, start, use

TASKS = 3
DIRECTORIES = 40
ROWS = TASKS * DIRECTORIES * 2
FIRST = 1_000_000


def waits(marks):
    def of(number):
        task, last = divmod(number - FIRST, ROWS // TASKS)
        if last == 0:
            open(f"{marks}/begun-{task}", "w").close()
        # Not in the first task's place: it is the others that are committed meanwhile.
        while task == TASKS - 1 and last == ROWS // TASKS - 1 and not os.path.exists(f"{marks}/gate"):
            time.sleep(0.05)
        return number

    return F.udf(of, "bigint")


def main():
    options = Where.arguments(argparse.ArgumentParser())
    for name in ("mode", "target", "committer", "marks", "lease"):
        options.add_argument(name)
    options = options.parse_args()
    spark = start(Where.of(options), f"local[{TASKS}]", spark__hadoop__fs__rados__committer__lease=options.lease)
    use(spark, options.committer)
    frame = spark.range(FIRST, FIRST + ROWS, 1, TASKS).select(waits(options.marks)("id").alias("id"))
    frame.withColumn("k", F.col("id") % DIRECTORIES).write.mode(options.mode).partitionBy("k").parquet(options.target)
    print("written", flush=True)
    spark.stop()


if __name__ == "__main__":
    main()
