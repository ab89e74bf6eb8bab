"""Random names in queries within queries against PostgreSQL: which column a name is, and whether it is one at all.

    bench/peers/setup.sh
    bench/peers/.venv/bin/python tests/differential/names.py [--seed 1] [--queries 300] [--onehop target/release/onehop]
        [--only I] [--canary]

`--canary` spoils the first answer: the run must fail. PostgreSQL is started on a socket in a temporary folder (Debian's
package `postgresql`).

Five tables share some of their columns' names. They are joined by comma, ON, USING and NATURAL JOIN, with an alias or without,
up to four queries deep, and a name without a table may be a column of any of them, of several, or of none. What PostgreSQL
answers, Onehop answers so; what it refuses, as ambiguous, unknown or an aggregate of the query around, Onehop refuses.

A share of more than MOST_REFUSED queries that the engine refuses and PostgreSQL does not fails the run.
"""

import importlib.util
import random
import sys
from pathlib import Path

import psycopg

sys.path.insert(0, str(Path(__file__).parents[2] / "bench" / "peers"))

import command_line  # noqa: E402
from engine import EngineError, Onehop  # noqa: E402

# There are two of that name.
specification = importlib.util.spec_from_file_location("fill_faults", Path(__file__).parents[1] / "faults" / "fill.py")
fill_faults = importlib.util.module_from_spec(specification)
specification.loader.exec_module(fill_faults)

TABLES = {"z": ["id", "w", "k"], "t": ["id", "x", "k"], "u": ["id", "y"], "v": ["id", "x"], "c": ["v", "q", "k"]}
COLUMNS = sorted({column for columns in TABLES.values() for column in columns})
MODES = ["datafusion", "fused"]
DEEPEST = 3
MOST_REFUSED = 0.02
REFUSED = "refused"
# What the engine says of queries that it cannot answer yet; of `v`, a row of the table of that name, and of `v.id` in ORDER BY,
# where a table has a column `v`.
REFUSALS = ["not supported", "cannot be joined", "Nested identifiers", 'no column "v"', 'no column "id" in v', 'no column "x" in v']

# The tables of one FROM, by their names there, and their columns.
Scope = list[tuple[str, list[str]]]
Row = tuple[object, ...]


class Query:
    """One random query."""

    def __init__(self, rng: random.Random) -> None:
        self.rng = rng

    def chance(self, share: float) -> bool:
        return self.rng.random() < share

    def column(self, scopes: list[Scope]) -> str:
        """A column of the nearest scope, or of one further out; mostly one that a single table has."""
        if self.chance(0.04):
            return self.rng.choice(COLUMNS)
        if self.chance(0.25):
            table, columns = self.rng.choice([table for scope in scopes for table in scope])
            return f"{table}.{self.rng.choice(columns)}"
        scope = scopes[min(len(scopes) - 1, self.rng.choice([0, 0, 0, 1, 1, 2]))]
        names = [column for _, columns in scope for column in columns]
        alone = [name for name in names if names.count(name) == 1]
        return self.rng.choice(alone if alone and self.chance(0.6) else names)

    def table(self, taken: set[str]) -> tuple[str, str, list[str]]:
        """A table, or a query for two columns of one: as it is written, its name, and its columns."""
        base = self.rng.choice(list(TABLES))
        alias = self.rng.choice([name for name in "abdefghij" if name not in taken])
        if self.chance(0.25):
            columns = self.rng.sample(TABLES[base], 2)
            return f"(SELECT {', '.join(columns)} FROM {base}) AS {alias}", alias, columns
        if base in taken or self.chance(0.3):
            return f"{base} AS {alias}", alias, TABLES[base]
        return base, base, TABLES[base]

    def source(self) -> tuple[str, Scope]:
        """What stands behind FROM."""
        text, name, columns = self.table(set())
        scope, names = [(name, columns)], set(columns)
        for _ in range(self.rng.choice([0, 0, 1, 1, 1, 2])):
            right, name, columns = self.table({name for name, _ in scope})
            common = sorted(names.intersection(columns))
            join = self.rng.choice(["JOIN", "LEFT JOIN", "RIGHT JOIN", "FULL JOIN"])
            last, last_columns = scope[-1]
            forms = [
                f" NATURAL {join} {right}",
                f" JOIN {right} ON {name}.{self.rng.choice(columns)} = {last}.{self.rng.choice(last_columns)}",
                f" JOIN {right} ON {self.rng.choice(columns)} IS NOT NULL",
                f", {right}",
            ]
            if common and self.chance(0.4):
                text += f" {join} {right} USING ({self.rng.choice(common)})"
            else:
                text += self.rng.choices(forms, [1, 3, 1, 2])[0]
            scope.append((name, columns))
            names.update(columns)
        return text, scope

    def condition(self, scopes: list[Scope], depth: int) -> str:
        kind = self.rng.random() if depth < DEEPEST else 1
        if kind < 0.4:
            return f"{self.rng.choice(['', 'NOT '])}EXISTS ({self.exists(scopes, depth + 1)})"
        if kind < 0.55:
            return f"{self.column(scopes)} {self.rng.choice(['', 'NOT '])}IN ({self.column_of(scopes, depth + 1)})"
        if kind < 0.62:
            operator = self.rng.choice(["<", "=", ">="])
            return f"{self.column(scopes)} {operator} ({self.value(scopes, depth + 1)})"
        if self.chance(0.6):
            return f"{self.column(scopes)} = {self.column(scopes)}"
        return f"{self.column(scopes)} {self.rng.choice('<=>')} {self.rng.randint(0, 7)}"

    def rows(self, scopes: list[Scope], depth: int) -> tuple[str, list[Scope]]:
        """FROM and WHERE, and all that can be named behind them."""
        source, scope = self.source()
        scopes = [scope, *scopes]
        conditions = [self.condition(scopes, depth) for _ in range(self.rng.choice([1, 1, 2]))]
        return f"FROM {source} WHERE {' AND '.join(conditions)}", scopes

    def exists(self, scopes: list[Scope], depth: int) -> str:
        rows, scopes = self.rows(scopes, depth)
        if self.chance(0.1):
            having = f" HAVING count(*) > {self.rng.choice(['0', '1', self.column(scopes)])}" if self.chance(0.5) else ""
            return f"SELECT 1 {rows} GROUP BY {self.column(scopes[:1])}{having}"
        if self.chance(0.1):
            wanted = self.rng.choice(["1", "*", self.column(scopes)])
            return f"SELECT {wanted} {rows} ORDER BY {self.column(scopes)} LIMIT 1"
        return f"SELECT {self.rng.choice(['1', '*', self.column(scopes)])} {rows}"

    def column_of(self, scopes: list[Scope], depth: int) -> str:
        rows, scopes = self.rows(scopes, depth)
        return f"SELECT {self.column(scopes[:1])} {rows}"

    def value(self, scopes: list[Scope], depth: int) -> str:
        """One value: an aggregate, or the first of some."""
        rows, scopes = self.rows(scopes, depth)
        if self.chance(0.2):
            first = self.column(scopes[:1])
            name = self.rng.choice(["", "", " AS id", " AS k"])
            order = self.rng.choice([first, first.split(".")[-1]])
            return f"SELECT {first}{name} {rows} ORDER BY {order} LIMIT 1"
        return f"SELECT {self.rng.choice(['max', 'min', 'count', 'sum'])}({self.column(scopes)}) {rows}"

    def text(self) -> str:
        rows, scopes = self.rows([], 0)
        table, columns = scopes[0][0]
        wanted = [f"{table}.{self.rng.choice(columns)} AS first"]
        if self.chance(0.3):
            wanted.append(f"({self.value(scopes, 1)}) AS second")
        return f"SELECT {', '.join(wanted)} {rows}"


def setup(rng: random.Random) -> list[str]:
    """Statements that make the tables."""
    statements = []
    for table, columns in TABLES.items():
        rows = [[rng.choice(["NULL", *"1123456"]) for _ in columns] for _ in range(rng.randint(2, 5))]
        values = ", ".join(f"({', '.join(row)})" for row in rows)
        fields = ", ".join(f"{column} INT" for column in columns)
        statements += [f"DROP TABLE IF EXISTS {table}", f"CREATE TABLE {table} ({fields})", f"INSERT INTO {table} VALUES {values}"]
    return statements


def sorted_rows(answer: list[Row]) -> list[Row]:
    rows = [tuple(None if value is None else int(value) for value in row) for row in answer]
    return sorted(rows, key=lambda row: [(value is None, value or 0) for value in row])


def check(onehop: Onehop, postgresql: psycopg.Connection, query: str, spoil: bool) -> str | None:
    """What is wrong, in words, or REFUSED; None if both answer so, or neither does."""
    try:
        expected = sorted_rows(postgresql.execute(query).fetchall() + ([(None,)] if spoil else []))
    except psycopg.Error as e:
        expected = e
    for mode in MODES:
        onehop.sql(f"SET exec.mode = '{mode}'")
        try:
            found = sorted_rows(onehop.sql(query).answer.rows)
        except EngineError as e:
            if isinstance(expected, psycopg.Error):
                return None
            if any(refusal in str(e) for refusal in REFUSALS):
                return REFUSED
            return f"an error that is no refusal ({mode}): {e}"
        if isinstance(expected, psycopg.Error):
            return f"rows ({mode}): {found}\n  postgresql: {expected}"
        if found != expected:
            return f"wrong rows ({mode}): {found}\n  postgresql: {expected}"
    return None


def main() -> int:
    options = command_line.parser("Random names in queries within queries against PostgreSQL.", queries=300).parse_args()
    print(f"names: seed {options.seed}, {options.queries} queries", flush=True)
    server = fill_faults.Server()
    passed = refused = failed = 0
    try:
        postgresql = psycopg.connect(server.dsn, autocommit=True)
        for start, numbers in command_line.batches(options):
            onehop = Onehop(options.onehop)
            for statement in setup(random.Random(f"{options.seed} tables {start}")):
                postgresql.execute(statement)
                onehop.sql(statement)
            for number in numbers:
                text = Query(random.Random(f"{options.seed} query {number}")).text()
                wrong = check(onehop, postgresql, text, spoil=options.canary and not failed)
                if wrong is None:
                    passed += 1
                elif wrong == REFUSED:
                    refused += 1
                else:
                    failed += 1
                    print(f"\nquery {number} (--seed {options.seed} --only {number}): {wrong}\n  {text}", flush=True)
                    if options.stop:
                        break
            onehop.close()
            if failed and options.stop:
                break
    finally:
        server.stop()
    print(f"{refused} were refused")
    if refused > MOST_REFUSED * options.queries and options.only is None:
        failed += 1
        print("more than the engine should refuse")
    print(f"names: {passed} passed, {failed} failed")
    return 1 if failed or not passed else 0


if __name__ == "__main__":
    sys.exit(main())
