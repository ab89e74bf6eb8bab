"""What Spark writes to rados:// by each committer is what Spark and Onehop read, and nothing was moved twice.

By FileOutputCommitter 1 and 2, with no settings of ours, and by ours: every format, RDDs, partitions, overwriting. Of each job:
- what is read is what was written;
- Spark's metrics say that as many bytes were written as lie there, but for what the driver writes (_SUCCESS);
- the file system's ledger says that exactly these crossed to the cluster, and none back: a rename that copied would read them and
  write them again, whoever did it.
"""

import argparse
import json
import sys
import threading
import time

from pyspark.sql import functions as F

import suite
from session import COMMITTERS, Files, Onehop, Where, start, use

ROWS = 20_000
# Of what both engines know; Onehop's words for what Spark calls otherwise.
SUMS = "count(*), sum(id), sum(k), min(text), max(text), sum(x), count(n)"


class Writes:
    def __init__(self, spark, base, onehop):
        self.spark, self.base, self.onehop = spark, base, onehop
        self.files = Files(spark, base)
        self.frame = spark.range(0, ROWS, 1, 4).select(
            "id",
            (F.col("id") % 7).alias("k"),
            F.concat(F.lit("row ü "), F.col("id").cast("string")).alias("text"),
            (F.col("id") * 0.25).alias("x"),
            F.when(F.col("id") % 5 == 0, F.col("id")).alias("n"),
        )
        self.committer = None

    def at(self, name):
        return f"{self.base}/{self.committer}/{name}"

    def same(self, back, frame=None):
        frame = self.frame if frame is None else frame
        columns = frame.columns
        assert back.count() == frame.count(), (back.count(), frame.count())
        assert frame.select(columns).exceptAll(back.select(columns)).count() == 0

    def write(self, target, job):
        """Runs a job that writes all that is new below `target`, and looks at what that has cost."""
        before, figures = self.files.below(target), {}
        with self.files.counted(figures):
            job()
        after = self.files.below(target)
        new = {name: size for name, size in after.items() if name not in before or name.endswith("/_SUCCESS")}
        assert any(name.endswith("/_SUCCESS") for name in new), after
        assert not any("_temporary" in name or "__transaction" in name for name in after), after
        data = sum(size for name, size in new.items() if not name.endswith("/_SUCCESS"))
        assert figures["spark_bytes"] == data, (figures, new)
        assert figures["host_to_storage_bytes"] == sum(new.values()), (figures, new)
        assert figures["storage_to_host_bytes"] == 0, figures
        assert figures["rename_copy_bytes"] == 0, figures

    def asked_of_onehop(self, pattern, columns=SUMS):
        return self.onehop.sql(f"SELECT {columns} FROM '{pattern}'")[0]

    def asked_of_spark(self, target, columns=SUMS):
        row = self.spark.read.parquet(target).selectExpr(*columns.split(", ")).collect()[0]
        return [str(value) for value in row]

    def test_formats(self):
        for form in ("parquet", "orc", "json", "csv"):
            target = self.at(f"{form} of ünïcode")
            self.write(target, lambda: self.frame.write.format(form).save(target))
            self.same(self.spark.read.schema(self.frame.schema).format(form).load(target))

    def test_text(self):
        target = self.at("text")
        lines = self.frame.select(F.col("text").alias("value"))
        self.write(target, lambda: lines.write.text(target))
        self.same(self.spark.read.text(target), lines)

    def test_rdds(self):
        context = self.spark.sparkContext
        lines = context.parallelize(range(ROWS), 3).map(lambda n: f"line {n} ü")
        for codec in (None, "org.apache.hadoop.io.compress.GzipCodec"):
            target = self.at(f"rdd {codec}")
            self.write(target, lambda: lines.saveAsTextFile(target, codec))
            assert sorted(context.textFile(target).collect()) == sorted(lines.collect())
        # Of Java's objects, which is what Spark has in a sequence file.
        target = self.at("objects")
        values = context._jvm.java.util.ArrayList()
        for n in range(1000):
            values.add(f"object {n}")
        self.write(target, lambda: context._jsc.parallelize(values, 3).saveAsObjectFile(target))
        back = context._jsc.objectFile(target).collect()
        assert sorted(back) == sorted(values)
        # By the newer interface, whose committer is the factory's.
        target = self.at("sequence")
        pairs = lines.map(lambda line: (len(line), line))
        self.write(target, lambda: pairs.saveAsNewAPIHadoopFile(
            target, "org.apache.hadoop.mapreduce.lib.output.SequenceFileOutputFormat",
            "org.apache.hadoop.io.IntWritable", "org.apache.hadoop.io.Text"))
        assert sorted(context.sequenceFile(target).collect()) == sorted(pairs.collect())

    def test_partitions(self):
        target = self.at("partitioned")
        self.write(target, lambda: self.frame.write.partitionBy("k").parquet(target))
        back = self.spark.read.parquet(target)
        self.same(back)
        assert back.where("k = 3").count() == self.frame.where("k = 3").count()
        assert {name.rsplit("/", 2)[1] for name in self.files.visible(target)} == {f"k={k}" for k in range(7)}
        # Over what is there, and beside it.
        self.write(target, lambda: self.frame.where("k < 2").write.mode("overwrite").partitionBy("k").parquet(target))
        self.same(self.spark.read.parquet(target), self.frame.where("k < 2"))
        self.write(target, lambda: self.frame.where("k >= 2").write.mode("append").partitionBy("k").parquet(target))
        self.same(self.spark.read.parquet(target))
        wanted = "count(*), sum(id), min(text), sum(x), sum(k), count(DISTINCT k)"
        for place in (target, f"{target}/*/*.parquet"):
            assert self.asked_of_onehop(place, wanted) == self.asked_of_spark(target, wanted)
        counts = self.spark.read.parquet(target).where("k > 4").groupBy("k").count().orderBy("k").collect()
        ours = self.onehop.sql(f"SELECT k, count(*) FROM '{target}' WHERE k > 4 GROUP BY k ORDER BY k")
        assert ours == [[str(value) for value in row] for row in counts] and len(ours) == 2, ours

    def test_partitions_of_strange_values(self):
        target = self.at("strange")
        values = ["a/b", "c d", "ü=%", "", None, "{x}", "..", "k\\'\""]
        frame = self.spark.createDataFrame([(n, value) for n, value in enumerate(values)], "n int, value string")
        self.write(target, lambda: frame.write.partitionBy("value").json(target))
        back = self.spark.read.schema("n int, value string").json(target)
        # What is empty is null, wherever partitions are written.
        expected = {(n, value or None) for n, value in enumerate(values)}
        assert {tuple(row) for row in back.collect()} == expected, back.collect()
        ours = self.onehop.done("--format", "json", "-c", f"SELECT n, value FROM '{target}/*/*.json'")
        assert {(row["n"], row["value"]) for row in json.loads(ours)} == expected, ours

    def test_dynamic_partition_overwrite(self):
        target = self.at("dynamic")
        self.frame.write.partitionBy("k").parquet(target)
        others = {name: size for name, size in self.files.visible(target).items() if "/k=3/" not in name}
        one = self.frame.where("k = 3").limit(10)
        self.write(target, lambda: one.write.option("partitionOverwriteMode", "dynamic").mode("overwrite")
                   .partitionBy("k").parquet(target))
        assert self.spark.read.parquet(target).where("k = 3").count() == 10
        now = self.files.visible(target)
        assert {name: size for name, size in now.items() if "/k=3/" not in name} == others, "another partition was touched"

    def test_tables_of_sql(self):
        name = f"t_{self.committer}"
        self.spark.sql(f"CREATE TABLE {name} (id BIGINT, k BIGINT) USING parquet PARTITIONED BY (k) "
                       f"LOCATION '{self.at('table')}'")
        self.frame.createOrReplaceTempView("source")
        self.spark.sql(f"INSERT INTO {name} SELECT id, k FROM source")
        assert self.spark.table(name).count() == ROWS
        self.spark.sql(f"INSERT OVERWRITE {name} PARTITION (k = 2) SELECT id FROM source LIMIT 10")
        rest = self.frame.where("k <> 2").count()
        assert self.spark.table(name).count() == rest + 10
        self.spark.sql(f"CREATE TABLE {name}_as USING orc LOCATION '{self.at('as')}' AS SELECT * FROM source WHERE k = 1")
        self.same(self.spark.table(f"{name}_as"), self.frame.where("k = 1"))

    def test_failed_job_leaves_nothing(self):
        target = self.at("failed")
        bad = self.frame.select(F.when(F.col("id") == ROWS * 3 // 4, F.raise_error(F.lit("on purpose")))
                                .otherwise(F.col("x")).alias("x"))
        for path, mode in ((target, "error"), (self.at("kept"), "overwrite")):
            if mode == "overwrite":
                self.frame.write.parquet(path)
            before = self.files.visible(path)
            try:
                bad.write.mode(mode).parquet(path)
            except Exception as error:
                assert "on purpose" in str(error), error
            else:
                raise AssertionError("it has not failed")
            after = self.files.visible(path)
            if self.committer == "v2":
                # Tasks that are done are visible whatever becomes of the job: that is what this version is.
                assert not any("part-00003" in name for name in after), after
            else:
                # FileOutputCommitter has to remove what is there before it begins.
                assert after == (before if self.committer == "onehop" else {}), (mode, after)

    def test_onehop_reads_it(self):
        target = self.at("for onehop")
        self.frame.write.parquet(target)
        assert self.asked_of_onehop(f"{target}/*.parquet") == self.asked_of_spark(target)
        some = self.onehop.sql(f"SELECT id, text, n FROM '{target}/*.parquet' WHERE id BETWEEN 17 AND 21 ORDER BY id")
        wanted = self.spark.read.parquet(target).where("id BETWEEN 17 AND 21").select("id", "text", "n").orderBy("id")
        assert some == [["" if value is None else str(value) for value in row] for row in wanted.collect()], some

    def run_of(self, committer):
        def prepared(test):
            def run():
                self.committer = committer
                use(self.spark, committer)
                test()
            return run
        return [(f"{committer}: {name}", prepared(test)) for name, test in suite.methods(self)]


class Others:
    """What is said once."""

    def __init__(self, spark, base, onehop):
        self.spark, self.base, self.onehop = spark, f"{base}/others", onehop
        self.files = Files(spark, base)

    def test_jobs_beside_each_other(self):
        """FileOutputCommitter loses files here; its temporary directory is one for all jobs."""
        use(self.spark, "onehop")
        target, errors = f"{self.base}/beside", []

        def job(number):
            try:
                self.spark.range(number * 1000, number * 1000 + 1000, 1, 2).write.mode("append").parquet(target)
            except Exception as error:
                errors.append(error)

        threads = [threading.Thread(target=job, args=(number,)) for number in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert not errors, errors
        assert sorted(row[0] for row in self.spark.read.parquet(target).collect()) == list(range(4000))

    def test_success_file(self):
        use(self.spark, "onehop")
        target = f"{self.base}/success"
        self.spark.range(0, 100, 1, 4).selectExpr("id", "id % 3 AS k").write.partitionBy("k").parquet(target)
        success = json.loads(self.files.read(f"{target}/_SUCCESS"))
        data = self.files.visible(target)
        metrics = success["metrics"]
        assert (success["committer"], success["success"]) == ("io.onehop.rados.SparkCommitProtocol", True)
        assert metrics["committer_files"] == len(data) == 12 and metrics["committer_bytes"] == sum(data.values())
        assert metrics["committer_tasks"] == 4 and metrics["committer_directories"] == 3
        assert metrics["rename_copy_bytes"] == 0

    def test_other_file_systems_go_sparks_way(self):
        use(self.spark, "onehop")
        local = f"file://{self.spark.conf.get('spark.sql.warehouse.dir').removeprefix('file:')}/elsewhere"
        self.spark.range(100).write.parquet(local)
        assert self.spark.read.parquet(local).count() == 100

    def test_types_in_parquet(self):
        use(self.spark, "onehop")
        target = f"{self.base}/types"
        frame = self.spark.range(0, 500, 1, 2).selectExpr(
            "CAST(id AS int) AS i", "CAST(id % 100 AS smallint) AS s", "id % 2 = 0 AS b", "CAST(id * 0.5 AS float) AS f",
            "CAST(id * 1.25 AS decimal(18, 3)) AS d", "date_add(DATE '2026-01-01', CAST(id AS int)) AS day",
            "timestamp_micros(1767225600000000 + id * 1000001) AS t", "CASE WHEN id % 3 = 0 THEN id END AS n",
            "CAST(concat('bytes ', id) AS binary) AS raw", "array(id, id + 1) AS list", "named_struct('a', id) AS st")
        frame.write.parquet(target)
        ours = self.onehop.sql(
            "SELECT sum(i), sum(s), count(*) FILTER (WHERE b), sum(f), sum(d), min(day), max(day), "
            "sum(CAST(date_part('microsecond', t) AS BIGINT)), count(DISTINCT t), count(n), max(raw) = CAST('bytes 99' AS bytea), "
            f"sum(list[2]), sum(st['a']) FROM '{target}/*.parquet'")[0]
        theirs = self.spark.read.parquet(target).selectExpr(
            "sum(i)", "sum(s)", "count(*) FILTER (WHERE b)", "sum(f)", "sum(d)", "min(day)", "max(day)",
            "sum(CAST(date_part('second', t) * 1000000 AS bigint))", "count(DISTINCT t)", "count(n)",
            "max(raw) = CAST('bytes 99' AS binary)", "sum(list[1])", "sum(st.a)").collect()[0]
        assert ours == [str(value).lower() if isinstance(value, bool) else str(value) for value in theirs], (ours, theirs)

    def test_spark_reads_what_onehop_wrote(self):
        target = f"{self.base}/by onehop/x.parquet"
        self.onehop.done("-c", "COPY (SELECT n AS id, n % 7 AS k, 'row ü ' || n AS text, n * 0.25e0 AS x, "
                               "DATE '2026-01-01' + CAST(n % 100 AS INT) AS day FROM (SELECT unnest(range(0, 50000)) AS n)) "
                               f"TO '{target}'")
        columns = "count(*), sum(id), sum(k), min(text), max(text), sum(x), max(day)"
        row = self.spark.read.parquet(target).selectExpr(*columns.split(", ")).collect()[0]
        assert [str(value) for value in row] == self.onehop.sql(f"SELECT {columns} FROM '{target}'")[0], row
        assert row[:5] == (50000, 49999 * 25000, sum(n % 7 for n in range(50000)), "row ü 0", "row ü 9999"), row

    def test_streaming_checkpoint(self):
        """Checkpoints go by FileContext, and replace files."""
        use(self.spark, "v1")
        query = (self.spark.readStream.format("rate-micro-batch").option("rowsPerBatch", 100).load()
                 .writeStream.format("parquet").option("checkpointLocation", f"{self.base}/checkpoint")
                 .trigger(processingTime="0 seconds").start(f"{self.base}/stream"))
        end = time.time() + 120
        while time.time() < end and len(query.recentProgress) < 3:
            time.sleep(0.2)
        query.stop()
        assert query.exception() is None, query.exception()
        assert self.spark.read.parquet(f"{self.base}/stream").count() >= 300


def main():
    where = Where.of(Where.arguments(argparse.ArgumentParser()).parse_args())
    spark = start(where)
    fs = f"rados://meta.spark_{int(time.time())}"
    onehop = Onehop(where)
    writes, others = Writes(spark, f"{fs}/data", onehop), Others(spark, f"{fs}/data", onehop)

    def test_nothing_is_left():
        found = onehop.done("rados", "fsck", fs, "--objects", "--deep")
        assert "damaged" not in found and "nobody" not in found, found
        assert set(onehop.transactions(fs).values()) <= {"committed", "aborted"}, onehop.transactions(fs)

    try:
        tests = [test for committer in COMMITTERS for test in writes.run_of(committer)]
        return suite.run([*tests, *suite.methods(others), ("test_nothing_is_left", test_nothing_is_left)])
    finally:
        spark.stop()


if __name__ == "__main__":
    sys.exit(1 if main() else 0)
