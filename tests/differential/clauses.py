"""Random subqueries in every clause against PostgreSQL: with names that mean one thing inside, and another outside.

    bench/peers/setup.sh
    bench/peers/.venv/bin/python tests/differential/clauses.py [--seed 1] [--queries 200] [--onehop target/release/onehop]
        [--only I] [--canary]

`--canary` spoils the first answer: the run must fail. PostgreSQL is started on a socket in a temporary folder (Debian's
package `postgresql`).

`subqueries.py` gives every table an alias of its own. Here the tables inside and outside are the same, mostly without alias,
and columns mostly without a table's name: `t` may be a table, a WITH query or a subquery that has taken the name. Subqueries are
ANY, ALL, IN and EXISTS, scalars and ARRAY(..), rows beside rows, with ROLLUP, CUBE and GROUPING SETS, `SELECT *`, DISTINCT,
LIMIT and set operations; in the SELECT list, WHERE, ON of every join, GROUP BY, HAVING, ORDER BY, CASE, arguments of
aggregates, FILTER and windows, and in UPDATE and DELETE.

A share of more than MOST_REFUSED queries that the engine refuses fails the run.
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

TABLES = ["t", "u"]
COLUMNS = ["id", "x", "y"]
MODES = ["datafusion", "fused"]
OPERATORS = ["=", "<>", "<", "<=", ">", ">="]
DEEPEST = 2
MOST_REFUSED = 0.1
REFUSED = "refused"
ALL_ROWS = "SELECT 't', * FROM t UNION ALL SELECT 'u', * FROM u"

Row = tuple[object, ...]


class Query:
    """One random statement."""

    def __init__(self, rng: random.Random) -> None:
        self.rng = rng

    def chance(self, share: float) -> bool:
        return self.rng.random() < share

    def column(self, tables: list[str]) -> str:
        """A column of the nearest table of that name, which may have a name of its own."""
        column = self.rng.choice(COLUMNS)
        return f"{self.rng.choice(tables)}.{column}" if len(set(tables)) > 1 or self.chance(0.4) else column

    def value(self, tables: list[str]) -> str:
        column = self.column(tables)
        return self.rng.choice([column, column, column, f"{column} + 1", f"-{column}", f"coalesce({column}, 2)", "3", "NULL::INT"])

    def source(self) -> tuple[str, list[str]]:
        """A table, or what has taken its name."""
        table, other = self.rng.choice(TABLES), self.rng.choice(TABLES)
        return self.rng.choice([
            (table, [table]),
            (table, [table]),
            (f"{table} AS {other}", [other]),
            (f"(SELECT * FROM {other}) AS {table}", [table]),
            (f"(SELECT id, y AS x, x AS y FROM {table} WHERE id > 1) AS {table}", [table]),
            ("t JOIN u ON t.id = u.id", ["t", "u"]),
            ("t LEFT JOIN u ON t.x = u.y", ["t", "u"]),
        ])

    def about(self, here: list[str], around: list[str]) -> str:
        """A condition, on both queries where names allow it."""
        outer = [table for table in around if table not in here]
        column = self.column(here)
        if outer and self.chance(0.7):
            return f"{column} {self.rng.choice(OPERATORS)} {self.rng.choice(outer)}.{self.rng.choice(COLUMNS)}"
        return self.rng.choice([f"{column} > {self.rng.randint(0, 4)}", f"{column} IS NOT NULL", f"{column} < 4", "TRUE"])

    def where(self, here: list[str], around: list[str], depth: int) -> str:
        if depth < DEEPEST and self.chance(0.25):
            return self.condition(here, depth + 1)
        return self.about(here, around)

    def rows(self, around: list[str], depth: int, columns: int = 1) -> str:
        """The query of ANY, ALL, IN and EXISTS."""
        source, here = self.source()
        where = self.where(here, around, depth)
        wanted = ", ".join(self.column(here) for _ in range(columns))
        forms = [f"SELECT {wanted} FROM {source} WHERE {where}"] * 4
        forms.append(f"SELECT DISTINCT {wanted} FROM {source} WHERE {where}")
        forms.append(f"SELECT * FROM (SELECT {wanted} FROM {source} WHERE {self.about(here, [])}) AS s({self.named(columns)})")
        if columns == 1:
            key = self.column(here)
            sets = self.rng.choice([f"ROLLUP({key})", f"CUBE({key})", f"GROUPING SETS (({key}), ())", key])
            forms += [
                f"SELECT {key} FROM {source} WHERE {where} GROUP BY {sets}",
                f"SELECT {self.rng.choice(['max', 'min', 'sum', 'count'])}({key}) FROM {source} WHERE {where}",
                f"SELECT {key} FROM {source} WHERE {where} ORDER BY {key} NULLS LAST LIMIT {self.rng.randint(0, 2)}",
                f"SELECT {key} FROM {source} WHERE {where} {self.rng.choice(['UNION', 'UNION ALL', 'EXCEPT'])} SELECT x FROM u",
                f"WITH t AS (SELECT id, x, y + 1 AS y FROM t) SELECT x FROM t WHERE y > {self.rng.randint(0, 3)}",
                f"SELECT row_number() OVER (ORDER BY {', '.join(f'{table}.id' for table in here)}) FROM {source} WHERE {where}",
            ]
        return self.rng.choice(forms)

    def named(self, columns: int) -> str:
        return ", ".join(f"c{at}" for at in range(columns))

    def scalar(self, around: list[str], depth: int) -> str:
        source, here = self.source()
        where = self.where(here, around, depth)
        function = self.rng.choice(["max", "min", "count", "sum"])
        return self.rng.choice([
            f"(SELECT {function}({self.column(here)}) FROM {source} WHERE {where})",
            f"cardinality(ARRAY(SELECT {self.column(here)} FROM {source} WHERE {where}))",
            f"(ARRAY(SELECT {here[0]}.x FROM {source} WHERE {where} ORDER BY {', '.join(f'{table}.id DESC' for table in here)}))[1]",
        ])

    def condition(self, tables: list[str], depth: int = 0) -> str:
        kind, negation = self.rng.random(), self.rng.choice(["", "", "NOT "])
        if kind < 0.4:
            word = self.rng.choice(["ANY", "ALL", "SOME"])
            return f"{negation}{self.value(tables)} {self.rng.choice(OPERATORS)} {word} ({self.rows(tables, depth)})"
        if kind < 0.55:
            return f"{self.value(tables)} {negation}IN ({self.rows(tables, depth)})"
        if kind < 0.65:
            return f"{negation}EXISTS ({self.rows(tables, depth)})"
        if kind < 0.72:
            return f"({self.column(tables)}, {self.column(tables)}) {negation}IN ({self.rows(tables, depth, 2)})"
        if kind < 0.8:
            return f"{self.column(tables)} {self.rng.choice(OPERATORS)} {self.scalar(tables, depth)}"
        if depth < DEEPEST:
            both = [self.condition(tables, depth + 1), self.rng.choice([self.about(tables, []), self.condition(tables, depth + 1)])]
            self.rng.shuffle(both)
            return self.rng.choice([
                f"({both[0]} {self.rng.choice(['AND', 'OR'])} {both[1]})",
                f"({both[0]}) IS {negation}{self.rng.choice(['NULL', 'TRUE', 'FALSE'])}",
                f"CASE WHEN {both[0]} THEN {both[1]} ELSE {tables[0]}.id > 2 END",
                f"coalesce({both[0]}, {both[1]})",
            ])
        return self.about(tables, [])

    def text(self) -> str:
        table = self.rng.choice(TABLES)
        here = [table]
        value = f"CAST({self.condition(here)} AS VARCHAR)"
        forms = [
            f"SELECT id FROM {table} WHERE {self.condition(here)}",
            f"SELECT id FROM {table} WHERE {self.condition(here)}",
            f"SELECT id, {value} FROM {table}",
            f"SELECT id, {value} FROM {table} WHERE {self.about(here, [])}",
            f"SELECT id, {self.scalar(here, 0)} FROM {table}",
            f"SELECT {value} AS c, count(*) FROM {table} GROUP BY {value}",
            f"SELECT id FROM {table} ORDER BY {value} NULLS FIRST, id LIMIT {self.rng.randint(1, 4)}",
            f"SELECT count(*) FILTER (WHERE {self.condition(here)}), sum(CASE WHEN {self.condition(here)} THEN 1 ELSE 0 END) FROM {table}",
            f"SELECT id, count(*) OVER (PARTITION BY {value}) FROM {table}",
            f"SELECT * FROM (SELECT id, y AS x, x AS y FROM {table}) AS {table} WHERE {self.condition(here)}",
            f"WITH {table} AS (SELECT id, x + 1 AS x, y FROM {table}) SELECT id FROM {table} WHERE {self.condition(here)}",
        ]
        forms.append(f"SELECT x, count(*) FROM {table} GROUP BY x HAVING {self.group_condition()}")
        both = ["t", "u"]
        join = self.rng.choice(["JOIN", "LEFT JOIN", "RIGHT JOIN"])
        forms += [
            f"SELECT t.id, u.id FROM t {join} u ON t.id = u.id AND {self.on_condition()}",
            f"SELECT t.id, u.id FROM t {join} u ON t.id = u.id WHERE {self.condition(both)}",
        ]
        return self.rng.choice(forms)

    def group_condition(self) -> str:
        value = self.rng.choice(["sum(y)", "max(id)", "count(*)", "x", "min(y) + 1"])
        return self.rng.choice([
            f"{value} {self.rng.choice(OPERATORS)} {self.rng.choice(['ANY', 'ALL'])} ({self.rows([], 1)})",
            f"{value} {self.rng.choice(['', 'NOT '])}IN ({self.rows([], 1)})",
            f"{value} > (SELECT avg(x) FROM u)",
        ])

    def on_condition(self) -> str:
        """Of subqueries that are about one side, or about neither."""
        side = self.rng.choice(TABLES)
        column = f"{side}.{self.rng.choice(COLUMNS)}"
        return self.rng.choice([
            f"{column} {self.rng.choice(OPERATORS)} {self.rng.choice(['ANY', 'ALL'])} ({self.rows([side], 1)})",
            f"{column} {self.rng.choice(['', 'NOT '])}IN ({self.rows([side], 1)})",
            f"{self.rng.choice(['', 'NOT '])}EXISTS ({self.rows([side], 1)})",
            f"t.x + u.x IN ({self.rows([], 1)})",
            f"{column} >= {self.scalar([side], 1)}",
        ])

    def change(self) -> str:
        table = self.rng.choice(TABLES)
        condition = self.condition([table])
        return self.rng.choice([
            f"DELETE FROM {table} WHERE {condition}",
            f"UPDATE {table} SET y = coalesce(y, 0) + 1 WHERE {condition}",
            f"UPDATE {table} SET y = {self.scalar([table], 0)} WHERE id < 4",
        ])


def rows(rng: random.Random) -> list[Row]:
    values = [None, None, 1, 2, 3, 4, 5]
    return [(number, rng.choice(values), rng.choice([*values, 6])) for number in range(1, rng.randint(3, 8))]


def setup(rng: random.Random) -> list[str]:
    statements = []
    for table in TABLES:
        values = ", ".join(str(row).replace("None", "NULL") for row in rows(rng))
        statements += [
            f"DROP TABLE IF EXISTS {table}",
            f"CREATE TABLE {table} (id INT, x INT, y INT)",
            f"INSERT INTO {table} VALUES {values}",
        ]
    return statements


def plain(value: object) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    return "NULL" if value is None else str(value)


def sorted_rows(answer: list[Row]) -> list[tuple[str, ...]]:
    return sorted(tuple(plain(value) for value in row) for row in answer)


def check(onehop: Onehop, postgresql: psycopg.Connection, queries: list[str], spoil: bool) -> str | None:
    """What is wrong, in words, or REFUSED; None if the answers are right. The first statement may be a change."""
    *changes, query = queries
    try:
        for change in changes:
            postgresql.execute(change)
        expected = sorted_rows(postgresql.execute(query).fetchall() + ([(None,)] if spoil else []))
    except psycopg.Error as e:
        return f"the oracle refuses the query (a bug of the generator): {e}"
    try:
        for change in changes:
            onehop.sql(change)
    except EngineError as e:
        return REFUSED if "not supported" in str(e) or "cannot be joined" in str(e) else f"an error that is no refusal: {e}"
    for mode in MODES:
        onehop.sql(f"SET exec.mode = '{mode}'")
        try:
            found = sorted_rows(onehop.sql(query).answer.rows)
        except EngineError as e:
            if "not supported" in str(e) or "cannot be joined" in str(e):
                return REFUSED
            return f"an error that is no refusal ({mode}): {e}"
        if found != expected:
            return f"wrong rows ({mode}): {found}\n  postgresql: {expected}"
    return None


def main() -> int:
    options = command_line.parser("Random subqueries in every clause against PostgreSQL.", queries=200).parse_args()
    print(f"clauses: seed {options.seed}, {options.queries} queries", flush=True)
    server = fill_faults.Server()
    passed = refused = failed = 0
    try:
        postgresql = psycopg.connect(server.dsn, autocommit=True)
        for start, numbers in command_line.batches(options):
            onehop = Onehop(options.onehop)
            tables = setup(random.Random(f"{options.seed} tables {start}"))
            is_as_made = False
            for number in numbers:
                query = Query(random.Random(f"{options.seed} query {number}"))
                changes = [query.change()] if query.chance(0.15) else []
                text = ALL_ROWS if changes else query.text()
                before = [] if is_as_made else tables
                wrong = check(onehop, postgresql, [*before, *changes, text], spoil=options.canary and number == 0)
                is_as_made = wrong is None and not changes
                if wrong is None:
                    passed += 1
                elif wrong == REFUSED:
                    refused += 1
                else:
                    failed += 1
                    shown = "\n  ".join([*changes, text])
                    print(f"\nquery {number} (--seed {options.seed} --only {number}): {wrong}\n  {shown}", flush=True)
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
    print(f"clauses: {passed} passed, {failed} failed")
    return 1 if failed or not passed else 0


if __name__ == "__main__":
    sys.exit(main())
