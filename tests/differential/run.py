"""Random queries over random tables, three ways: by fused pipelines, on DataFusion's operators alone, on DuckDB. All
three give the same answers, as multisets.

    bench/peers/setup.sh
    bench/peers/.venv/bin/python tests/differential/run.py [--seed 1] [--queries 300] [--onehop target/release/onehop]
        [--only I] [--keep DIR] [--canary]

Tables change every QUERIES_PER_DATABASE queries; query I of a seed is the same whatever the number of queries, so that
`--seed S --only I` runs a failure again, alone. `--keep DIR` leaves its tables there as Parquet. `--canary` spoils one
answer: the run must fail, or it could not find a wrong answer either.

Avoided in `generate.py`, because the engines differ by design:

- `/` between integers (DuckDB divides into doubles, PostgreSQL and we into integers), by zero, `%` by zero;
- arithmetic in narrow integer types, and sums, products or casts that leave their type's range;
- arithmetic between decimals of different scale, of which the engines keep different numbers of digits (division is
  compared: both divide decimals as doubles);
- NaN, infinities and -0.0 (ours differs from 0.0 in comparisons, DuckDB's does not);
- ORDER BY without NULLS FIRST or LAST, and LIMIT without a total order;
- casts between texts and anything else, upper() beyond what Unicode maps one to one;
- timestamps with more than microseconds; INTERSECT ALL and EXCEPT ALL.
"""

import argparse
import csv
import math
import random
import re
import sys
import tempfile
import time
from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path

import duckdb

sys.path.insert(0, str(Path(__file__).parents[2] / "bench" / "peers"))

import command_line  # noqa: E402
from answer import Answer, Row, difference, same_row  # noqa: E402
from command_line import QUERIES_PER_DATABASE, batches  # noqa: E402
from engine import DuckDb, Engine, EngineError, Onehop  # noqa: E402
from generate import Queries, Table, tables  # noqa: E402

MODES = ["datafusion", "fused"]
SHOWN_ROWS = 5
NULL = "\\N"
REDUCTION = "wanted"


def save(table: Table, folder: Path) -> Path:
    """The table as a Parquet file."""
    text, path = folder / "rows.csv", folder / f"{table.name}.parquet"
    with text.open("w", newline="", encoding="utf-8") as file:
        csv.writer(file, quoting=csv.QUOTE_ALL).writerows([NULL if v is None else v for v in row] for row in table.rows)
    columns = {column.name: column.sql_type for column in table.columns}
    fields = ", ".join(f"{name} {sql_type}" for name, sql_type in columns.items())
    with duckdb.connect() as con:
        con.execute(f"CREATE TABLE t ({fields})")
        if table.rows:
            con.execute(
                f"INSERT INTO t SELECT * FROM read_csv('{text}', header = false, auto_detect = false, delim = ',', "
                f"quote = '\"', escape = '\"', nullstr = '{NULL}', allow_quoted_nulls = true, columns = {columns})"
            )
        con.execute(f"COPY t TO '{path}' (FORMAT parquet)")
    text.unlink()
    return path


class Database:
    """One set of random tables in both engines."""

    def __init__(self, seed: int, number: int, binary: Path, folder: Path) -> None:
        self.tables = tables(random.Random(f"{seed} tables {number}"))
        self.onehop, self.duckdb = Onehop(binary), DuckDb()
        for table in self.tables:
            path = save(table, folder)
            self.duckdb.sql(f"CREATE TABLE {table.name} AS SELECT * FROM '{path}'")
            for statement in table.onehop_statements(str(path)):
                self.onehop.sql(statement)

    def close(self) -> None:
        self.onehop.close()
        self.duckdb.close()


def exact_first(row: Row) -> tuple:
    """Sorts rows so that the same rows of two answers meet, although floats may differ in their last digits."""
    exact = tuple(
        (value is not None, str(value.normalize()) if isinstance(value, Decimal) else str(value))
        for value in row
        if not isinstance(value, float)
    )
    floats = [float(f"{value:.6g}") for value in row if isinstance(value, float)]
    # NaN is neither less nor greater, which a sort does not stand.
    return (exact, tuple((math.isnan(value), 0.0 if math.isnan(value) else value) for value in floats))


def compare(ours: Answer, theirs: Answer, ordered: bool) -> str | None:
    if ordered:
        return difference(ours, theirs, list(range(len(theirs.columns))))
    a, b = sorted(ours.rows, key=exact_first), sorted(theirs.rows, key=exact_first)
    if len(a) == len(b) and all(map(same_row, a, b)):
        return None
    return difference(Answer(ours.columns, a), Answer(theirs.columns, b), []) or None


def spoiled(answer: Answer) -> Answer:
    """One value of the answer is another one; an answer without rows gets a row."""
    rows = list(answer.rows)
    if not rows:
        return Answer(answer.columns, [tuple(None for _ in answer.columns)])
    first = rows[0][0]
    rows[0] = (0 if first is None else None, *rows[0][1:])
    return Answer(answer.columns, rows)


def shown(answer: Answer) -> str:
    lines = [str(row) for row in answer.rows[:SHOWN_ROWS]]
    more = f" ... {len(answer.rows)} rows" if len(answer.rows) > SHOWN_ROWS else ""
    return "\n    ".join(lines) + more


def answered(engine: Engine, sql: str) -> Answer | str:
    try:
        return engine.sql(sql).answer
    except EngineError as e:
        return str(e)


def limited(answer: Answer, sql: str, ordered: bool) -> Answer:
    """The answer up to the query's LIMIT: DuckDB 2.0.0 can return rows beyond it (seed 22, query 3755)."""
    limit = re.search(r" LIMIT (\d+)$", sql)
    if not ordered or limit is None or len(answer.rows) <= int(limit[1]):
        return answer
    print(f"\nthe oracle returns {len(answer.rows)} rows for LIMIT {limit[1]}: the first are taken", flush=True)
    return Answer(answer.columns, answer.rows[: int(limit[1])])


def check(database: Database, sql: str, ordered: bool, spoil: bool) -> str | None:
    """What is wrong, in words; None if nothing is."""
    theirs = answered(database.duckdb, sql)
    if isinstance(theirs, str):
        return f"the oracle refuses the query (a bug of the generator): {theirs}"
    theirs = limited(theirs, sql, ordered)
    for mode in MODES:
        database.onehop.sql(f"SET exec.mode = '{mode}'")
        ours = answered(database.onehop, sql)
        if isinstance(ours, str):
            return f"an error instead of an answer ({mode}): {ours}"
        if spoil:
            ours = spoiled(ours)
        if reason := compare(ours, theirs, ordered):
            return f"{reason}\n  onehop ({mode}):\n    {shown(ours)}\n  duckdb:\n    {shown(theirs)}"
    return None


def plan_of(database: Database, sql: str) -> str:
    plan = answered(database.onehop, f"EXPLAIN {sql}")
    return "\n".join(str(value) for row in plan.rows for value in row) if isinstance(plan, Answer) else ""


def query(database: Database, seed: int, number: int) -> tuple[str, bool]:
    return Queries(random.Random(f"{seed} query {number}"), database.tables).query()


def databases(options: argparse.Namespace, folder: Path) -> Iterator[tuple[Database, range]]:
    """Each database with the numbers of its queries."""
    for start, numbers in batches(options):
        database = Database(options.seed, start // QUERIES_PER_DATABASE, options.onehop, folder)
        yield database, numbers
        database.close()


def parse() -> argparse.Namespace:
    parser = command_line.parser("Random queries against DuckDB.", queries=300)
    parser.add_argument("--keep", type=Path, help="leave the (last) tables there")
    return parser.parse_args()


def run(options: argparse.Namespace, folder: Path) -> tuple[int, int, int, int]:
    """(passed, failed, passed with a part that was fused, and with one that a semi join was put into)"""
    passed = failed = fused = reduced = 0
    for database, numbers in databases(options, folder):
        for number in numbers:
            sql, ordered = query(database, options.seed, number)
            wrong = check(database, sql, ordered, spoil=options.canary and number == numbers.start)
            if wrong is None:
                passed += 1
                plan = plan_of(database, sql)
                # Some part of it runs as a pipeline; a join has handed keys down.
                fused += any(name in plan for name in ("CpuPreAgg", "CpuCollect", "CpuTopK"))
                reduced += REDUCTION in plan
                continue
            failed += 1
            layouts = ", ".join(f"{table.name} {table.layout} {len(table.rows)} rows" for table in database.tables)
            print(f"\nquery {number}: {wrong}\n  sql: {sql}\n  tables: {layouts}")
            print(f"  again: {Path(sys.argv[0])} --seed {options.seed} --only {number}", flush=True)
            if options.stop:
                return passed, failed, fused, reduced
    return passed, failed, fused, reduced


def main() -> None:
    options = parse()
    started = time.monotonic()
    print(f"differential: seed {options.seed}, {1 if options.only is not None else options.queries} queries")
    if options.keep:
        options.keep.mkdir(parents=True, exist_ok=True)
        passed, failed, fused, reduced = run(options, options.keep.resolve())
    else:
        with tempfile.TemporaryDirectory() as folder:
            passed, failed, fused, reduced = run(options, Path(folder))
    print(f"{time.monotonic() - started:.0f} s; a part of {fused} queries was fused, one of {reduced} reduced")
    print(f"differential: {passed} passed, {failed} failed")
    if failed or not passed:
        sys.exit(1)
    if not fused and options.only is None and not options.stop:
        sys.exit("no query was fused: nothing was compared with pipelines")


if __name__ == "__main__":
    main()
