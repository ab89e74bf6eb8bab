"""Spark on a cluster: a session of it, the committers by name, and what a test asks the file system.

The file system that is asked is the very object that Spark's tasks use, as far as they run in the driver's process
(`local[N]`), so that its ledger has what they have moved.
"""

import contextlib
import os
import subprocess
from dataclasses import dataclass

from pyspark.sql import SparkSession

PROTOCOL = "spark.sql.sources.commitProtocolClass"
STOCK_PROTOCOL = "org.apache.spark.sql.execution.datasources.SQLHadoopMapReduceCommitProtocol"
ALGORITHM = "mapreduce.fileoutputcommitter.algorithm.version"
MAPRED = "mapred.output.committer.class"
STOCK_MAPRED = "org.apache.hadoop.mapred.FileOutputCommitter"

# What is set for each: the protocol of Spark SQL, the committer of RDDs' older interface, FileOutputCommitter's algorithm.
COMMITTERS = {
    "v1": (STOCK_PROTOCOL, STOCK_MAPRED, "1"),
    "v2": (STOCK_PROTOCOL, STOCK_MAPRED, "2"),
    "onehop": ("io.onehop.rados.SparkCommitProtocol", "io.onehop.rados.MapredOutputCommitter", "1"),
}


@dataclass(frozen=True)
class Where:
    """What every program of these tests is told: `arguments` of `options` adds it to the command line."""

    jar: str
    conf: str
    scratch: str
    onehop: str

    @staticmethod
    def arguments(options):
        for name in Where.__dataclass_fields__:
            options.add_argument(f"--{name}", required=True)
        return options

    @staticmethod
    def of(parsed):
        return Where(*(getattr(parsed, name) for name in Where.__dataclass_fields__))

    def words(self):
        return [word for name in Where.__dataclass_fields__ for word in (f"--{name}", getattr(self, name))]


def start(where, master="local[2,4]", **settings):
    """A session; names in `settings` have `__` for a dot and `_` for a hyphen."""
    builder = (
        SparkSession.builder.master(master).appName("onehop")
        .config("spark.jars", where.jar)
        .config("spark.driver.extraClassPath", where.jar)
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.sql.shuffle.partitions", "2")
        .config("spark.sql.session.timeZone", "UTC")
        .config("spark.local.dir", where.scratch)
        .config("spark.sql.warehouse.dir", f"{where.scratch}/warehouse")
        # What a cluster of one's own has in /etc/ceph and by `onehop rados mkfs`.
        .config("spark.hadoop.fs.rados.conf", where.conf)
        .config("spark.hadoop.fs.rados.create.data-pool", "data")
    )
    for name, value in settings.items():
        builder = builder.config(name.replace("__", ".").replace("_", "-"), str(value))
    spark = builder.getOrCreate()
    # Tasks that are to fail would fill the log.
    spark.sparkContext.setLogLevel("OFF")
    return spark


def use(spark, committer):
    """From now on everything is written by this committer."""
    protocol, mapred, algorithm = COMMITTERS[committer]
    spark.conf.set(PROTOCOL, protocol)
    hadoop = spark.sparkContext._jsc.hadoopConfiguration()
    hadoop.set(MAPRED, mapred)
    hadoop.set(ALGORITHM, algorithm)


class Files:
    """The file system of a session."""

    def __init__(self, spark, url):
        self.spark = spark
        self.path = spark.sparkContext._jvm.org.apache.hadoop.fs.Path
        self.fs = self.path(url).getFileSystem(spark.sparkContext._jsc.hadoopConfiguration())

    def exists(self, path):
        return self.fs.exists(self.path(path))

    def read(self, path):
        stream = self.fs.open(self.path(path))
        try:
            return bytes(stream.readAllBytes())
        finally:
            stream.close()

    def below(self, folder):
        """Files below a folder, and their bytes: none, if it is not there."""
        if not self.exists(folder):
            return {}
        files, found = self.fs.listFiles(self.path(folder), True), {}
        while files.hasNext():
            status = files.next()
            found[status.getPath().toString()] = status.getLen()
        return found

    def visible(self, folder):
        """Those of them that a reader of Spark's sees."""
        skip = len(folder) + 1
        return {name: size for name, size in self.below(folder).items()
                if not any(part.startswith(("_", ".")) for part in name[skip:].split("/"))}

    def ledger(self):
        return dict(self.fs.getLedger())

    @contextlib.contextmanager
    def counted(self, figures):
        """Into `figures`: what the ledger and Spark's metrics have counted meanwhile."""
        before, written = self.ledger(), self.output_bytes()
        yield
        # Spark is told of it a little later.
        self.spark.sparkContext._jsc.sc().listenerBus().waitUntilEmpty()
        figures["spark_bytes"] = self.output_bytes() - written
        figures.update({name: value - before[name] for name, value in self.ledger().items()})

    def output_bytes(self):
        """What Spark's metrics say that was written, in all stages so far."""
        context = self.spark.sparkContext
        quantiles = context._gateway.new_array(context._jvm.double, 0)
        none = context._jvm.java.util.ArrayList()
        stages = context._jsc.sc().statusStore().stageList(None, False, False, quantiles, none)
        return sum(stages.apply(i).outputBytes() for i in range(stages.size()))


class Onehop:
    """The command, on the same cluster."""

    def __init__(self, where, timeout="30s"):
        self.program = where.onehop
        self.environment = {**os.environ, "ONEHOP_CEPH_CONF": where.conf, "ONEHOP_CEPH_TIMEOUT": timeout}

    def run(self, *words):
        """Exit code, standard output and standard error."""
        done = subprocess.run([self.program, *words], capture_output=True, text=True, check=False, env=self.environment)
        return done.returncode, done.stdout, done.stderr

    def done(self, *words):
        code, out, err = self.run(*words)
        assert code == 0, (words, code, out, err)
        return out

    def sql(self, query):
        """Rows, as text."""
        lines = self.done("-c", query, "--format", "csv").splitlines()
        return [line.split(",") for line in lines[1:]]

    def transactions(self, url):
        """State of each by its identity."""
        lines = self.done("rados", "txn", "ls", url).splitlines()
        return {line.split()[0]: line.split()[1] for line in lines}
