"""Spark on rados://, with the committers that it comes with.

Each test writes by two tasks at a time and reads what it wrote. What is there is compared with what was written; what Spark's
metrics say was written with what the file system has; and what renames copied with nothing.
"""

import argparse
import sys
import time
import traceback

from pyspark.sql import SparkSession
from pyspark.sql import functions as F

ROWS = 200_000


class Suite:
    def __init__(self, spark, base):
        self.spark = spark
        self.base = base
        jvm = spark.sparkContext._jvm
        self.path = jvm.org.apache.hadoop.fs.Path
        self.fs = self.path(base).getFileSystem(spark.sparkContext._jsc.hadoopConfiguration())
        self.frame = spark.range(0, ROWS, 1, 4).select(
            "id",
            (F.col("id") % 7).alias("k"),
            F.concat(F.lit("row ü "), F.col("id").cast("string")).alias("text"),
            (F.col("id") * 0.25).alias("x"),
        )

    def names(self, folder):
        """Files below a folder, and their bytes."""
        files, found = self.fs.listFiles(self.path(folder), True), {}
        while files.hasNext():
            status = files.next()
            found[status.getPath().toString()] = status.getLen()
        return found

    def same(self, back):
        assert back.count() == ROWS, back.count()
        columns = self.frame.columns
        assert self.frame.select(columns).exceptAll(back.select(columns)).count() == 0

    def written_by(self, job):
        """What Spark's metrics say that was written in a job."""
        before = self.output_bytes()
        job()
        # They are told a little later.
        self.spark.sparkContext._jsc.sc().listenerBus().waitUntilEmpty()
        return self.output_bytes() - before

    def output_bytes(self):
        context = self.spark.sparkContext
        quantiles = context._gateway.new_array(context._jvm.double, 0)
        stages = context._jsc.sc().statusStore().stageList(None, False, False, quantiles, context._jvm.java.util.ArrayList())
        return sum(stages.apply(i).outputBytes() for i in range(stages.size()))

    def test_formats(self, version):
        for form in ("parquet", "orc", "json", "csv"):
            target = f"{self.base}/v{version}/{form} of ünïcode"
            write = self.frame.write.option("mapreduce.fileoutputcommitter.algorithm.version", version).format(form)
            written = self.written_by(lambda: write.save(target))
            files = self.names(target)
            assert f"{target}/_SUCCESS" in files, files
            assert not any("_temporary" in name for name in files), files
            assert written == sum(files.values()), (form, written, sum(files.values()))
            reader = self.spark.read.schema(self.frame.schema)
            self.same(reader.format(form).load(target))

    def test_text(self, version):
        target = f"{self.base}/v{version}/text"
        lines = self.frame.select("text")
        lines.write.option("mapreduce.fileoutputcommitter.algorithm.version", version).text(target)
        assert self.spark.read.text(target).count() == ROWS
        rdd = f"{self.base}/v{version}/rdd"
        lines.rdd.map(lambda row: row[0]).saveAsTextFile(rdd)
        assert self.spark.sparkContext.textFile(rdd).count() == ROWS

    def test_partitions(self, version):
        target = f"{self.base}/v{version}/partitioned"
        save = self.frame.write.option("mapreduce.fileoutputcommitter.algorithm.version", version).partitionBy("k")
        save.parquet(target)
        back = self.spark.read.parquet(target)
        self.same(back)
        assert back.where("k = 3").count() == self.frame.where("k = 3").count()
        assert {name.rsplit("/", 2)[1] for name in self.names(target) if "k=" in name} == {f"k={k}" for k in range(7)}
        # Over what is there, and beside it.
        self.frame.where("k < 2").write.mode("overwrite").partitionBy("k").parquet(target)
        assert self.spark.read.parquet(target).count() == self.frame.where("k < 2").count()
        self.frame.where("k >= 2").write.mode("append").partitionBy("k").parquet(target)
        self.same(self.spark.read.parquet(target))

    def test_dynamic_partition_overwrite(self):
        target = f"{self.base}/dynamic"
        self.frame.write.partitionBy("k").parquet(target)
        others = {name: size for name, size in self.names(target).items() if "/k=3/" not in name and "/k=" in name}
        one = self.frame.where("k = 3").limit(10)
        one.write.option("partitionOverwriteMode", "dynamic").mode("overwrite").partitionBy("k").parquet(target)
        assert self.spark.read.parquet(target).where("k = 3").count() == 10
        now = self.names(target)
        assert all(now.get(name) == size for name, size in others.items()), "another partition was touched"

    def test_failed_job_leaves_nothing(self):
        target = f"{self.base}/failed"
        bad = self.frame.select(F.when(F.col("id") == 150_000, F.raise_error(F.lit("on purpose"))).otherwise("x").alias("x"))
        try:
            bad.write.parquet(target)
            raise AssertionError("it has not failed")
        except Exception as error:
            assert "on purpose" in str(error), error
        assert not [name for name in (self.names(target) if self.fs.exists(self.path(target)) else {})
                    if not name.endswith("_SUCCESS")], "something is visible"

    def test_streaming_checkpoint(self):
        """Checkpoints go by FileContext, and replace files."""
        query = (self.spark.readStream.format("rate-micro-batch").option("rowsPerBatch", 100).load()
                 .writeStream.format("parquet").option("checkpointLocation", f"{self.base}/checkpoint")
                 .trigger(processingTime="0 seconds").start(f"{self.base}/stream"))
        end = time.time() + 60
        while time.time() < end and len(query.recentProgress) < 3:
            time.sleep(0.2)
        query.stop()
        assert query.exception() is None, query.exception()
        assert self.spark.read.parquet(f"{self.base}/stream").count() >= 300

    def test_no_rename_has_copied(self):
        assert self.fs.getLedger().get("rename_copy_bytes") == 0

    def run(self):
        tests = [(f"{name} v{version}", lambda name=name, version=version: getattr(self, name)(version))
                 for version in (1, 2) for name in ("test_formats", "test_text", "test_partitions")]
        tests += [(name, getattr(self, name)) for name in (
            "test_dynamic_partition_overwrite", "test_failed_job_leaves_nothing", "test_streaming_checkpoint",
            "test_no_rename_has_copied")]
        failed = 0
        for name, test in tests:
            began = time.time()
            try:
                test()
                print(f"  {name}: {time.time() - began:.1f} s", flush=True)
            except Exception:
                failed += 1
                print(f"  {name}: FAILED", flush=True)
                traceback.print_exc()
        print(f"spark: {len(tests) - failed} passed, {failed} failed")
        return failed


def main():
    options = argparse.ArgumentParser()
    options.add_argument("--jar", required=True)
    options.add_argument("--conf", required=True)
    options.add_argument("--scratch", required=True)
    options = options.parse_args()
    spark = (
        SparkSession.builder.master("local[2]").appName("rados smoke")
        .config("spark.jars", options.jar)
        .config("spark.driver.extraClassPath", options.jar)
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.sql.shuffle.partitions", "4")
        .config("spark.local.dir", options.scratch)
        .config("spark.sql.warehouse.dir", f"{options.scratch}/warehouse")
        # What a cluster of one's own has in /etc/ceph and by `onehop rados mkfs`.
        .config("spark.hadoop.fs.rados.conf", options.conf)
        .config("spark.hadoop.fs.rados.create.data-pool", "data")
        .getOrCreate()
    )
    spark.sparkContext.setLogLevel("ERROR")
    try:
        return Suite(spark, f"rados://meta.spark_{int(time.time())}/data").run()
    finally:
        spark.stop()


if __name__ == "__main__":
    sys.exit(1 if main() else 0)
