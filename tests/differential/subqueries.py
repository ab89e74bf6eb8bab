"""Random subqueries against SQLite, which evaluates them row by row, as they are written: nobody who joins instead can
be an oracle here (DuckDB 2.0.0 has wrong answers, too).

    bench/peers/setup.sh
    bench/peers/.venv/bin/python tests/differential/subqueries.py [--seed 1] [--queries 200] [--onehop target/release/onehop]
        [--only I] [--canary]

`--canary` spoils the first answer: the run must fail.

A LATERAL join is what SQLite has not: it is asked for the subquery of each row, with that row's values in place of its columns.

Each query is a condition in WHERE, in ON of an inner join, or in HAVING: comparisons, IN, NOT IN, EXISTS and aggregates of
subqueries, aggregates, unions and parts of them among these, rows beside rows, nested, about the queries around them, below AND, OR, NOT and IS [NOT] NULL, over joins of tables whose columns
all have the same names, with NULLs everywhere. In LATERAL: columns, DISTINCT, GROUP BY, aggregates, HAVING, LIMIT and OFFSET, windows, unions, INTERSECT and EXCEPT,
one after another. What the engine refuses with an error is counted; a share of more than
MOST_REFUSED of the queries fails the run.
"""

import random
import re
import sqlite3
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2] / "bench" / "peers"))

import command_line  # noqa: E402
from engine import EngineError, Onehop  # noqa: E402

TABLES = ["t", "u", "v"]
COLUMNS = ["id", "x", "y"]
MODES = ["datafusion", "fused"]
DEEPEST = 3
MOST_REFUSED = 0.25
# The share of LATERAL joins among the queries.
LATERAL = 0.4
REFUSED = "refused"

Row = tuple[int | None, ...]


def rows(rng: random.Random) -> list[Row]:
    values = [None, None, 1, 2, 3, 4, 5]
    return [(number, rng.choice(values), rng.choice([*values, 6])) for number in range(1, rng.randint(2, 7))]


class Conditions:
    """Of `here`, the aliases of a query's own tables, and `around`, those of the queries around it."""

    def __init__(self, rng: random.Random) -> None:
        self.rng = rng
        self.aliases = 0

    def column(self, tables: list[str]) -> str:
        return f"{self.rng.choice(tables)}.{self.rng.choice(COLUMNS)}"

    def value(self, tables: list[str]) -> str:
        kind = self.rng.random()
        if kind < 0.6:
            return self.column(tables)
        if kind < 0.8:
            return f"{self.column(tables)} + {self.column(tables)}"
        return self.rng.choice(["1", "3", "NULL"])

    def comparison(self, here: list[str], around: list[str]) -> str:
        there = here + (around[:2] if self.rng.random() < 0.6 else [])
        forms = [
            f"{self.column(here)} = {self.column(there)}",
            f"{self.column(here)} > {self.rng.randint(1, 4)}",
            f"{self.column(here)} IS NULL",
        ]
        return self.rng.choice(forms)

    def source(self, around: list[str]) -> tuple[list[str], str]:
        """Tables, joins of two, joins of two derived tables that may be about the queries around."""
        self.aliases += 1
        i, j = f"i{self.aliases}", f"j{self.aliases}"
        left, right = self.rng.choice(TABLES), self.rng.choice(TABLES)
        kind = self.rng.random()
        if kind < 0.45:
            return [i], f"{left} AS {i}"
        if kind < 0.85:
            join, operator = self.rng.choice(["JOIN", "LEFT JOIN"]), self.rng.choice(["=", "<"])
            about = f" AND {j}.x = {self.column(around)}" if self.rng.random() < 0.15 else ""
            return [i, j], f"{left} AS {i} {join} {right} AS {j} ON {i}.id {operator} {j}.id{about}"
        about = self.rng.random() < 0.5
        conditions = [f"{k}.{self.rng.choice('xy')} = {self.column(around)}" if about else f"{k}.x > 1" for k in (i, j)]
        derived = [
            f"(SELECT * FROM {table} AS {k} WHERE {condition}) AS {k}"
            for table, k, condition in zip([left, right], [i, j], conditions, strict=True)
        ]
        return [i, j], f"{derived[0]} JOIN {derived[1]} ON {i}.id <> {j}.id"

    def subquery(self, around: list[str], depth: int, aggregate: str | None = None, columns: int = 1) -> str:
        here, source = self.source(around)
        wanted = ", ".join(self.column(here) for _ in range(columns))
        wanted = f"{aggregate}({wanted})" if aggregate else wanted
        where = f" WHERE {self.condition(here, around, depth + 1)}" if self.rng.random() < 0.9 else ""
        return f"SELECT {wanted} FROM {source}{where}"

    def rows_of(self, around: list[str], depth: int) -> str:
        """Of IN and EXISTS: some are aggregates, unions, or parts of what there is."""
        kind = self.rng.random()
        if kind < 0.7:
            return self.subquery(around, depth)
        if kind < 0.85:
            return self.subquery(around, depth, self.rng.choice(["sum", "max", "count"]))
        if kind < 0.9:
            parts = [self.subquery(around, depth, self.rng.choice([None, None, "max"])) for _ in range(2)]
            return f" {self.rng.choice(['UNION', 'UNION ALL', 'EXCEPT', 'INTERSECT'])} ".join(parts)
        if kind < 0.93:
            return self.numbered(around, depth)
        if kind < 0.95:
            return self.ordered(around, depth, self.rng.choice(["LIMIT 1", "LIMIT 2 OFFSET 1"]))
        table, column = self.rng.choice(TABLES), self.column(around)
        part = self.rng.choice(["LIMIT 1", "LIMIT 1 OFFSET 1", "LIMIT 0"])
        return f"SELECT k.x FROM {table} AS k WHERE k.y = {column} ORDER BY k.id {part}"

    def ordered(self, around: list[str], depth: int, part: str) -> str:
        """So many rows, of those that are first by keys."""
        here, source = self.source(around)
        order = ", ".join(f"{alias}.id NULLS LAST" for alias in here)
        wanted = self.column(here)
        return f"SELECT {wanted} FROM {source} WHERE {self.condition(here, around, depth + 1)} ORDER BY {order} {part}"

    def numbered(self, around: list[str], depth: int) -> str:
        """A column, or what a window function says of it."""
        here, source = self.source(around)
        order = ", ".join(f"{alias}.id NULLS LAST" for alias in here)
        window = self.rng.choice([f"row_number() OVER (ORDER BY {order})", f"sum({self.column(here)}) OVER ()", "count(*) OVER ()"])
        return f"SELECT {window} FROM {source} WHERE {self.condition(here, around, depth + 1)}"

    def lateral(self, around: list[str]) -> str:
        """A query of one column about each row of others."""
        depth = self.rng.choice([1, 2, 2])
        kind = self.rng.random()
        if kind < 0.15:
            return self.ordered(around, depth, self.rng.choice(["LIMIT 1", "LIMIT 2", "LIMIT 1 OFFSET 1", "LIMIT 0"]))
        if kind < 0.3:
            return self.numbered(around, depth)
        if kind < 0.45:
            operator = self.rng.choice(["UNION", "UNION ALL", "EXCEPT", "INTERSECT"])
            return f"{self.subquery(around, depth)} {operator} {self.subquery(around, depth)}"
        here, source = self.source(around)
        where = f"FROM {source} WHERE {self.condition(here, around, depth + 1)}"
        column = self.column(here)
        forms = [
            f"SELECT {column} {where}",
            f"SELECT DISTINCT {column} {where}",
            f"SELECT {column} {where} GROUP BY {column}",
            f"SELECT count(*) {where} GROUP BY {column}",
            f"SELECT {self.rng.choice(['sum', 'max', 'count', 'count'])}({column}) {where}",
            f"SELECT {self.rng.choice(['sum', 'max', 'count'])}({column}) {where} HAVING count(*) > {self.rng.randint(0, 2)}",
            f"SELECT {column} + {self.column(around)} {where}",
            f"SELECT count(DISTINCT {column}) + {self.column(around)} {where}",
        ]
        return self.rng.choice(forms)

    def row(self, here: list[str], around: list[str], depth: int) -> str:
        """Rows beside rows."""
        left = f"({self.column(here)}, {self.column(here)})"
        if self.rng.random() < 0.5:
            return f"{left} IN ({self.subquery(here + around, depth, columns=2)})"
        operator = self.rng.choice(["=", "<>", "<", "<=", ">", ">="])
        return f"{left} {operator} ({self.value(here)}, {self.value(here)})"

    def condition(self, here: list[str], around: list[str], depth: int = 0, below: int = 0) -> str:
        kind = self.rng.random()
        if below > 2 or kind < 0.25:
            return self.comparison(here, around)
        negation = self.rng.choice(["", "NOT "])
        if depth < DEEPEST:
            if kind < 0.45:
                tables = here + (around if self.rng.random() < 0.15 else [])
                return f"{self.value(tables)} {negation}IN ({self.rows_of(here + around, depth)})"
            if kind < 0.63:
                return f"{negation}EXISTS ({self.rows_of(here + around, depth)})"
            # Where a condition is asked whether it is so.
            if kind < 0.65 and depth == below == 0:
                return self.row(here, around, depth)
            if kind < 0.67:
                return f"{self.column(here)} {self.rng.choice(['>', '<='])} ({self.ordered(here, depth, 'LIMIT 1')})"
            if kind < 0.7:
                aggregate = self.rng.choice(["sum", "max", "count"])
                return f"{self.column(here)} {self.rng.choice(['>', '<='])} ({self.subquery(here, depth, aggregate)})"
        first = self.condition(here, around, depth, below + 1)
        if kind < 0.85:
            return f"({first} {self.rng.choice(['AND', 'OR'])} {self.condition(here, around, depth, below + 1)})"
        if kind < 0.93:
            return f"NOT ({first})"
        return f"({first}) IS {negation}{self.rng.choice(['NULL', 'TRUE', 'FALSE'])}"

    def query(self) -> str:
        kind = self.rng.random()
        if kind < 0.45:
            return f"SELECT a.id FROM t AS a WHERE {self.condition(['a'], [])}"
        if kind < 0.5:
            value = self.rng.choice([
                f"EXISTS ({self.subquery(['a'], 2)})",
                f"a.x {self.rng.choice(['', 'NOT '])}IN ({self.subquery(['a'], 2)})",
                f"CASE WHEN NOT EXISTS ({self.rows_of(['a'], 2)}) THEN 1 ELSE 2 END",
            ])
            return f"SELECT a.id, CAST({value} AS INTEGER) FROM t AS a"
        both = self.condition(["a", "b"], [])
        if kind < 0.8:
            return f"SELECT a.id, b.id FROM t AS a JOIN u AS b ON a.id = b.id AND {both}"
        if kind < 0.9:
            return f"SELECT a.id, b.id FROM t AS a LEFT JOIN u AS b ON a.id = b.id WHERE {both}"
        groups = self.condition(["a"], []).replace("a.id", "a.x").replace("a.y", "a.x")
        return f"SELECT a.x, count(*) FROM t AS a GROUP BY a.x HAVING {groups}"


class Lateral:
    """LATERAL joins in a row, each about the rows of all before it."""

    def __init__(self, rng: random.Random) -> None:
        conditions = Conditions(rng)
        self.joins: list[tuple[str, str, str]] = []
        for number in range(rng.choice([1, 1, 1, 2])):
            query = conditions.lateral(["a"])
            if number > 0:
                # About the one before it.
                query = query.replace("a.x", "l0.v")
            self.joins.append((f"l{number}", rng.choice(["CROSS JOIN", "LEFT JOIN"]), query))
        self.condition = rng.choice(["", "", f" AND l0.v > {rng.randint(0, 3)}"])

    def query(self) -> str:
        joins = [
            f"{kind} LATERAL ({query}) AS {alias}(v)" + (f" ON TRUE{self.condition}" if kind == "LEFT JOIN" else "")
            for alias, kind, query in self.joins
        ]
        columns = ", ".join(f"{alias}.v" for alias, _, _ in self.joins)
        return f"SELECT a.id, {columns} FROM t AS a {' '.join(joins)}"

    def answer(self, sqlite: sqlite3.Connection) -> list[Row]:
        """Row by row."""
        found = []
        for row in sqlite.execute("SELECT id, x, y FROM t").fetchall():
            values = dict(zip((f"a.{column}" for column in COLUMNS), row, strict=True))
            found += [(row[0], *more) for more in self.rows_of(sqlite, values, 0)]
        return found

    def rows_of(self, sqlite: sqlite3.Connection, values: dict[str, int | None], at: int) -> list[Row]:
        if at == len(self.joins):
            return [()]
        alias, kind, query = self.joins[at]
        for name, value in values.items():
            query = re.sub(rf"\b{re.escape(name)}\b", "NULL" if value is None else str(value), query)
        rows = [row[0] for row in sqlite.execute(query).fetchall()]
        if kind == "LEFT JOIN":
            first = values.get("l0.v") if at else None
            if self.condition:
                least = int(self.condition.split()[-1])
                rows = [v for v in rows if ((first if at else v) is not None and (first if at else v) > least)]
            rows = rows or [None]
        return [(v, *more) for v in rows for more in self.rows_of(sqlite, {**values, f"{alias}.v": v}, at + 1)]


class Plain:
    """A query that SQLite knows, too."""

    def __init__(self, rng: random.Random) -> None:
        self.sql = Conditions(rng).query()

    def query(self) -> str:
        return self.sql

    def answer(self, sqlite: sqlite3.Connection) -> list[Row]:
        return sqlite.execute(self.sql).fetchall()


def made(rng: random.Random) -> Lateral | Plain:
    return Lateral(rng) if rng.random() < LATERAL else Plain(rng)


def sorted_rows(answer: list[Row]) -> list[Row]:
    return sorted(answer, key=lambda row: [(value is not None, value or 0) for value in row])


def check(onehop: Onehop, sqlite: sqlite3.Connection, query: Lateral | Plain, spoil: bool) -> str | None:
    """What is wrong, in words, or REFUSED; None if the answer is right."""
    expected = sorted_rows(query.answer(sqlite) + ([(None,)] if spoil else []))
    for mode in MODES:
        onehop.sql(f"SET exec.mode = '{mode}'")
        try:
            found = sorted_rows(onehop.sql(query.query()).answer.rows)
        except EngineError as e:
            if "not supported" in str(e) or "cannot be joined" in str(e):
                return REFUSED
            return f"an error that is no refusal ({mode}): {e}"
        if found != expected:
            return f"wrong rows ({mode}): {found}\n  sqlite: {expected}"
    return None


def databases(seed: int, start: int, binary: Path) -> tuple[sqlite3.Connection, Onehop]:
    """Both engines, with the same random tables."""
    sqlite, onehop = sqlite3.connect(":memory:"), Onehop(binary)
    rng = random.Random(f"{seed} tables {start}")
    for table in TABLES:
        values = ", ".join(str(row).replace("None", "NULL") for row in rows(rng))
        for statement in [
            f"CREATE TABLE {table} (id BIGINT, x BIGINT, y BIGINT)",
            f"INSERT INTO {table} VALUES {values}",
        ]:
            sqlite.execute(statement)
            onehop.sql(statement)
    return sqlite, onehop


def main() -> int:
    options = command_line.parser("Random subqueries against SQLite.", queries=200).parse_args()
    print(f"subqueries: seed {options.seed}, {options.queries} queries", flush=True)
    passed = refused = failed = 0
    for start, numbers in command_line.batches(options):
        sqlite, onehop = databases(options.seed, start, options.onehop)
        for number in numbers:
            query = made(random.Random(f"{options.seed} query {number}"))
            wrong = check(onehop, sqlite, query, spoil=options.canary and number == 0)
            if wrong is None:
                passed += 1
            elif wrong == REFUSED:
                refused += 1
            else:
                failed += 1
                print(f"\nquery {number} (--seed {options.seed} --only {number}): {wrong}\n  {query.query()}", flush=True)
                if options.stop:
                    break
        onehop.close()
        sqlite.close()
        if failed and options.stop:
            break
    print(f"{refused} were refused")
    if refused > MOST_REFUSED * options.queries and options.only is None:
        failed += 1
        print("more than the engine should refuse")
    print(f"subqueries: {passed} passed, {failed} failed")
    return 1 if failed or not passed else 0


if __name__ == "__main__":
    sys.exit(main())
