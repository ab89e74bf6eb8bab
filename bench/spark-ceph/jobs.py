"""Jobs of Spark's that write files of a given size each, some at a time, and what each of them must have written: of small files so
many that it is the writing that is measured, and not the beginning of a job.

Records are of 1 KiB, a number of 16 digits and what is the same in all: nothing is read, and little is computed, so that it is the
writing that is measured. (A hash of the number, repeated, took longer than text's serializer.) Formats that compress do not, so that a
file's size is what is asked for, and dictionaries are off.
"""

from pyspark.sql import functions as F

# Of a job, whatever it has to write.
MOST_FILES = 32
RECORD = 1024
# Numbers are of 16 digits from here on.
FIRST = 10 ** 15
# What follows: letters and digits, which no format has to escape.
REST = "".join(chr(97 + number * 7 % 26) if number % 3 else chr(48 + number % 10) for number in range(RECORD - 16))


class Job:
    """One of a format; `rows` of 1 KiB in `files` files, of which `tasks` are written at a time."""

    def __init__(self, spark, form, file_bytes, job_bytes, tasks):
        self.spark, self.form = spark, form
        self.files = max(tasks, min(MOST_FILES, job_bytes // file_bytes))
        self.rows = self.files * (file_bytes // RECORD)
        self.frame = spark.range(0, self.rows, 1, self.files).select(
            F.expr(f"concat(CAST(id + {FIRST}L AS string), '{REST}')").alias("value"))

    def write(self, target):
        writer = self.frame.write
        match self.form:
            case "rdd-text":
                self.frame._jdf.toJavaRDD().saveAsTextFile(target)
            case "objects":
                self.frame._jdf.toJavaRDD().saveAsObjectFile(target)
            case "parquet":
                writer.option("compression", "none").option("parquet.enable.dictionary", "false").parquet(target)
            case "orc":
                writer.option("compression", "none").option("orc.dictionary.key.threshold", "0").orc(target)
            case form:
                writer.format(form).save(target)

    def check(self, target):
        """Fails if it is not there, all of it."""
        context = self.spark.sparkContext
        match self.form:
            case "rdd-text":
                count = context._jsc.textFile(target).count()
            case "objects":
                count = context._jsc.objectFile(target).count()
            case form:
                found = self.spark.read.schema(self.frame.schema).format(form).load(target)
                count, length = found.agg(F.count("*"), F.sum(F.length("value"))).collect()[0]
                assert length == self.rows * RECORD, (length, self.rows)
        assert count == self.rows, (count, self.rows)


FORMATS = ("rdd-text", "objects", "text", "json", "orc", "parquet")
