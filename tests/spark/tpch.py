"""TPC-H: Spark writes the tables to rados://, in partitions, by our committer; both engines ask all 22 queries, and agree.

The tables come from `onehop gen`, as Parquet; `lineitem` and `orders` are partitioned by the year of a date. Onehop has views on the
files and Spark on the folders. Answers are the same if they have the same rows, in any order that ties allow: numbers no further
apart than one of the last digit that the coarser one has (the engines divide decimals to different scales), all else as text.

    ONEHOP_TPCH_SF=0.01       how large
"""

import argparse
import csv
import io
import json
import os
import sys
import time
from decimal import Decimal, InvalidOperation
from pathlib import Path

import suite
from session import Files, Onehop, Where, start, use

QUERIES = Path(__file__).parents[2] / "crates/lab/src/queries/tpch"
# Of a file on the cluster, what has one checksum.
BLOCK = 64 << 10
# What is partitioned, and by what.
PARTITIONS = {"lineitem": "l_shipdate", "orders": "o_orderdate"}


def number(text):
    try:
        return Decimal(text)
    except InvalidOperation:
        return None


def is_same(one, other):
    left, right = number(one), number(other)
    if left is None or right is None:
        return one == other
    last = Decimal(1).scaleb(max(left.as_tuple().exponent, right.as_tuple().exponent))
    return abs(left - right) <= max(last, abs(left) * Decimal("1e-9"))


def sort_key(row):
    """By what is no number first: numbers that are nearly equal do not decide where they can be helped."""
    values = [number(value) for value in row]
    return [text for text, value in zip(row, values) if value is None], [round(float(v), 2) for v in values if v is not None]


def differ(ours, theirs):
    """The first difference, if there is any."""
    if len(ours) != len(theirs):
        return f"{len(ours)} rows and {len(theirs)}"
    for left, right in zip(sorted(ours, key=sort_key), sorted(theirs, key=sort_key)):
        if len(left) != len(right) or not all(map(is_same, left, right)):
            return f"{left} and {right}"
    return None


class Tpch:
    def __init__(self, spark, fs, onehop, where):
        self.spark, self.fs, self.onehop, self.where = spark, fs, onehop, where
        self.files = Files(spark, fs)
        self.database = f"{where.scratch}/views"

    def write(self):
        """All tables: from local files to the cluster."""
        folder = Path(self.where.scratch) / "tpch"
        self.onehop.done("gen", "tpch", "--sf", os.environ.get("ONEHOP_TPCH_SF", "0.01"), "--format", "parquet", "--out", str(folder))
        use(self.spark, "onehop")
        for file in sorted(folder.glob("*.parquet")):
            self.write_table(file.stem, self.spark.read.parquet(f"file://{file}"))

    def write_table(self, name, frame):
        target, writer = f"{self.fs}/tpch/{name}", frame.write
        if name in PARTITIONS:
            writer = frame.selectExpr("*", f"year({PARTITIONS[name]}) AS year").write.partitionBy("year")
        writer.parquet(target)
        self.spark.read.parquet(target).select(frame.columns).createOrReplaceTempView(name)
        pattern = f"{target}/*/*.parquet" if name in PARTITIONS else f"{target}/*.parquet"
        self.onehop.done(self.database, "-c", f"CREATE VIEW {name} AS SELECT * FROM '{pattern}'")

    def tests(self):
        def of(query):
            def run():
                text = query.read_text(encoding="utf-8").strip().rstrip(";")
                out = self.onehop.done(self.database, "--format", "csv", "-c", text)
                # A line with nothing in it is one column that is null.
                ours = [row or [""] for row in csv.reader(io.StringIO(out))][1:]
                rows = self.spark.sql(text).collect()
                theirs = [["" if value is None else str(value) for value in row] for row in rows]
                assert (difference := differ(ours, theirs)) is None, difference
                assert theirs or query.stem in ("q02", "q18", "q20"), "nothing to compare"
            return run
        return [(f"test_{query.stem}", of(query)) for query in sorted(QUERIES.glob("q*.sql"))]

    def test_tables_are_there(self):
        assert len(list(self.files.visible(f"{self.fs}/tpch"))) >= 8
        for name in PARTITIONS:
            spark = self.spark.table(name).count()
            assert self.onehop.done(self.database, "--format", "csv", "-c", f"SELECT count(*) FROM {name}").split()[1] == str(spark)

    def test_directories_of_partitions_are_columns_and_those_that_cannot_match_are_not_read(self):
        for name, day in PARTITIONS.items():
            target = f"{self.fs}/tpch/{name}"
            spark = self.spark.read.parquet(target).groupBy("year").count().orderBy("year").collect()
            ours = self.onehop.sql(f"SELECT year, count(*) FROM '{target}' GROUP BY year ORDER BY year")
            assert ours == [[str(value) for value in row] for row in spark] and len(ours) == 7, (ours, spark)
            plan = self.onehop.done("-c", f"EXPLAIN SELECT sum(extract(doy FROM {day})) FROM '{target}' WHERE year = 1995")
            assert "year=1995/" in plan and "year=1994/" not in plan, plan
            ours, theirs = (self.onehop.sql(f"SELECT sum(extract(doy FROM {day})), count(*) FROM '{target}' WHERE {condition}")
                            for condition in ("year = 1995", f"extract(year FROM {day}) = 1995"))
            assert ours == theirs and ours[0][1] != "0", (ours, theirs)

    def test_of_files_on_the_cluster_no_more_is_read_than_of_local_ones(self):
        """The same file in both places: columns that nobody wants, and groups of rows that cannot match, are left where they are."""
        local = Path(self.where.scratch) / "tpch" / "lineitem.parquet"
        there = f"{self.fs}/copied/lineitem.parquet"
        self.files.fs.copyFromLocalFile(self.files.path(f"file://{local}"), self.files.path(there))
        whole = local.stat().st_size
        for query, columns, most in [
            ("SELECT count(*) FROM '{}'", 0, 0.02),
            ("SELECT sum(l_quantity) FROM '{}'", 1, 0.2),
            ("SELECT count(*), sum(l_extendedprice) FROM '{}' WHERE l_orderkey < 100", 2, 0.25),
            ("SELECT * FROM '{}' WHERE l_orderkey = 7 ORDER BY l_linenumber", 16, 0.05),
        ]:
            (ours, answer), (theirs, other) = (self.read_bytes(query.format(place)) for place in (there, local))
            assert answer == other and answer, (query, answer, other)
            # Where each request takes its time, a footer is fetched by a larger guess at its length, and ranges that are close as
            # one, with what lies between them. Of a block, which has one checksum, all is read: the guess begins within one.
            more = (512 << 10) + BLOCK + (columns * 256 << 10)
            assert ours <= theirs * 1.02 + more and ours <= most * whole + more, (query, ours, theirs, whole)

    def read_bytes(self, query):
        """How many came from storage, and the answer."""
        plan = json.loads(self.onehop.done("--format", "json", "-c", f"EXPLAIN (ANALYZE, FORMAT JSON) {query}"))[0]["plan"]
        plan = plan if isinstance(plan, dict) else json.loads(plan)
        return plan["ledger"]["storage_to_host_bytes"], self.onehop.done("--format", "csv", "-c", query)

    def test_no_rename_has_copied(self):
        assert self.files.ledger()["rename_copy_bytes"] == 0


def main():
    where = Where.of(Where.arguments(argparse.ArgumentParser()).parse_args())
    spark = start(where)
    fs = f"rados://meta.tpch_{int(time.time())}"
    tpch = Tpch(spark, fs, Onehop(where), where)
    try:
        tpch.write()
        return suite.run([*suite.methods(tpch), *tpch.tests()])
    finally:
        spark.stop()


if __name__ == "__main__":
    sys.exit(1 if main() else 0)
