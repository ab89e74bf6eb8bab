"""Random changes of rows against SQLite: INSERT, UPDATE and DELETE, within transactions and without, over tables of all layouts.

    bench/peers/setup.sh
    bench/peers/.venv/bin/python tests/differential/changes.py [--seed 1] [--queries 600] [--onehop target/release/onehop]
        [--only I] [--canary]

`--canary` spoils the first answer: the run must fail. `--only` repeats the statements up to that number, and checks only it.

Both engines get the same statements. After each, all rows of all tables are compared, in both modes; after some, the
engine under test is told to CHECKPOINT, or is closed and opened again, and they are compared once more. Settings are such
that rows of one table are in the store, in small segments, and deleted in both.
"""

import random
import sqlite3
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2] / "bench" / "peers"))

import command_line  # noqa: E402
from engine import Onehop  # noqa: E402

TABLES = ["t", "u"]
MODES = ["datafusion", "fused"]
SETTINGS = [
    ["storage.fresh_rows=40", "storage.block_rows=1024", "storage.segment_rows=1024"],
    ["storage.fresh_rows=0"],
    ["storage.checkpoint_rows=60"],
    [],
]
CLAUSES = ["", "CLUSTER BY (x)", "CLUSTER BY (s, id)", "PARTITION BY HASH (id) PARTITIONS 3",
           "PARTITION BY RANGE (x) (PARTITION a VALUES LESS THAN (3), PARTITION b VALUES LESS THAN (MAXVALUE))"]

Row = tuple[object, ...]


class Statements:
    """Statements that mean the same to both."""

    def __init__(self, rng: random.Random) -> None:
        self.rng = rng
        self.in_transaction = False
        self.savepoints: list[str] = []
        # The last statement as SQLite is to be asked, if not as it is.
        self.for_sqlite: str | None = None

    def value(self) -> str:
        return self.rng.choice(["NULL", "0", "1", "2", "5", "-3", "7"])

    def text(self) -> str:
        return self.rng.choice(["NULL", "''", "'a'", "'ä'", "'a text of more than twelve bytes'"])

    def number(self, table: str) -> str:
        # Of the table itself SQLite would see what it has updated so far.
        other = next(name for name in TABLES if name != table)
        return self.rng.choice([
            self.value(), "x", "y", "x + y", "x * 2", "id % 5", "coalesce(x, y)",
            f"(SELECT max(o.x) FROM {other} o)", f"(SELECT count(*) FROM {other} o WHERE o.id = {table}.id)",
        ])

    def condition(self, table: str, depth: int = 0) -> str:
        kind = self.rng.random()
        if depth < 2 and kind < 0.25:
            word = self.rng.choice(["AND", "OR"])
            return f"({self.condition(table, depth + 1)} {word} {self.condition(table, depth + 1)})"
        if kind < 0.35:
            return f"NOT ({self.condition(table, depth + 1)})" if depth < 2 else "x IS NULL"
        other = self.rng.choice(TABLES)
        return self.rng.choice([
            f"id % {self.rng.randint(2, 9)} = {self.rng.randint(0, 3)}",
            f"id BETWEEN {self.rng.randint(0, 300)} AND {self.rng.randint(50, 600)}",
            f"x {self.rng.choice(['<', '>=', '=', '<>'])} {self.value()}",
            "y IS NULL", "s IS NOT NULL", f"s = {self.text()}", "x = y",
            f"id IN (SELECT o.id FROM {other} o WHERE o.x > {self.value()})",
            f"EXISTS (SELECT 1 FROM {other} o WHERE o.id = {table}.id AND o.y < 3)",
            f"x > (SELECT avg(o.x) FROM {other} o)",
        ])

    def insert(self, table: str) -> str:
        if self.rng.random() < 0.5:
            rows = [f"({self.rng.randint(0, 700)}, {self.value()}, {self.value()}, {self.text()})"
                    for _ in range(self.rng.randint(1, 6))]
            return f"INSERT INTO {table} (id, x, y, s) VALUES {', '.join(rows)}"
        other, most = self.rng.choice(TABLES), self.rng.choice([5, 50, 400])
        return (f"INSERT INTO {table} SELECT id + {self.rng.randint(1, 100)}, y, x, s FROM {other} "
                f"WHERE id % 2 = {self.rng.randint(0, 1)} AND id < {most}")

    def change(self) -> str:
        table, kind = self.rng.choice(TABLES), self.rng.random()
        where = f" WHERE {self.condition(table)}" if self.rng.random() < 0.95 else ""
        if kind < 0.4:
            return self.insert(table)
        if kind < 0.6:
            return f"DELETE FROM {table}{where}"
        columns = self.rng.sample(["x", "y", "s"], self.rng.randint(1, 2))
        values = [f"{column} = {self.text() if column == 's' else self.number(table)}" for column in columns]
        update = f"UPDATE {table} SET {', '.join(values)}"
        if where:
            # SQLite may ask the condition of a row again after it has changed others; rows that are
            # chosen first stay chosen.
            self.for_sqlite = f"{update} WHERE rowid IN (SELECT rowid FROM {table}{where})"
        return f"{update}{where}"

    def statement(self) -> str:
        kind, self.for_sqlite = self.rng.random(), None
        if not self.in_transaction:
            if kind < 0.2:
                self.in_transaction = True
                return self.rng.choice(["BEGIN", "BEGIN IMMEDIATE", "BEGIN TRANSACTION"])
            return self.change()
        if kind < 0.2:
            self.in_transaction, self.savepoints = False, []
            return self.rng.choice(["COMMIT", "COMMIT", "END", "ROLLBACK"])
        if kind < 0.3:
            self.savepoints.append(f"s{len(self.savepoints)}")
            return f"SAVEPOINT {self.savepoints[-1]}"
        if kind < 0.4 and self.savepoints:
            place = self.rng.randrange(len(self.savepoints))
            name = self.savepoints[place]
            if self.rng.random() < 0.5:
                self.savepoints = self.savepoints[:place]
                return f"RELEASE SAVEPOINT {name}"
            self.savepoints = self.savepoints[: place + 1]
            return f"ROLLBACK TO SAVEPOINT {name}"
        return self.change()


def in_order(rows: list[Row]) -> list[Row]:
    def rank(row: Row) -> list[tuple]:
        return [(value is not None, str(type(value)), 0 if value is None else value) for value in row]

    return sorted((tuple(row) for row in rows), key=rank)


class Database:
    """Both engines, with the same tables."""

    def __init__(self, seed: int, start: int, binary: Path, folder: Path) -> None:
        self.rng = random.Random(f"{seed} database {start}")
        self.binary, self.folder = binary, folder / str(start)
        self.settings = self.rng.choice(SETTINGS)
        self.sqlite = sqlite3.connect(":memory:", isolation_level=None)
        self.onehop = Onehop(binary, self.folder, settings=self.settings)
        self.statements = Statements(self.rng)
        for table in TABLES:
            columns = f"CREATE TABLE {table} (id BIGINT, x BIGINT, y BIGINT, s TEXT)"
            self.sqlite.execute(columns)
            self.onehop.sql(f"{columns} {self.rng.choice(CLAUSES)}")
            rows = ", ".join(f"({i}, {i % 7}, {i % 11 - 3}, 'row {i % 5}')" for i in range(self.rng.choice([0, 30, 500])))
            if rows:
                self.both(f"INSERT INTO {table} VALUES {rows}")

    def both(self, sql: str, for_sqlite: str | None = None) -> None:
        self.sqlite.execute(for_sqlite or sql)
        self.onehop.sql(sql)

    def wrong(self, spoil: bool) -> str | None:
        for table in TABLES:
            sql = f"SELECT id, x, y, s FROM {table}"
            expected = in_order(self.sqlite.execute(sql).fetchall() + ([(None,) * 4] if spoil else []))
            for mode in MODES:
                self.onehop.sql(f"SET exec.mode = '{mode}'")
                found = in_order(self.onehop.sql(sql).answer.rows)
                if found != expected:
                    more, less = [r for r in found if r not in expected], [r for r in expected if r not in found]
                    return (f"{table} ({mode}) has {len(found)} rows, and {len(expected)} in SQLite; only here: "
                            f"{more[:5]}, only there: {less[:5]}")
                total = f"SELECT count(*), sum(x), count(s) FROM {table} WHERE id > 20"
                if tuple(self.onehop.sql(total).answer.rows[0]) != self.sqlite.execute(total).fetchone():
                    return f"{total} ({mode}) is another one than in SQLite"
        return None

    def step(self, check: bool, spoil: bool) -> str | None:
        """Carries out the next statement; what is wrong afterwards."""
        sql = self.statements.statement()
        upkeep = self.rng.random()
        self.both(sql, self.statements.for_sqlite)
        wrong = self.wrong(spoil) if check else None
        if wrong is None and not self.statements.in_transaction and upkeep < 0.25:
            if upkeep < 0.15:
                self.onehop.sql("CHECKPOINT")
            else:
                self.onehop.close()
                self.onehop = Onehop(self.binary, self.folder, settings=self.settings)
            wrong = self.wrong(spoil) if check else None
            sql += "; then " + ("CHECKPOINT" if upkeep < 0.15 else "opened again")
        return wrong and f"{wrong}\n  {sql}\n  settings {self.settings}"

    def close(self) -> None:
        self.onehop.close()
        self.sqlite.close()


def main() -> int:
    options = command_line.parser("Random changes of rows against SQLite.", queries=600).parse_args()
    print(f"changes: seed {options.seed}, {options.queries} statements", flush=True)
    passed = failed = 0
    with tempfile.TemporaryDirectory() as folder:
        for start, numbers in command_line.batches(options):
            database = Database(options.seed, start, options.onehop, Path(folder))
            for number in range(start, numbers.stop):
                wrong = database.step(number in numbers, spoil=options.canary and number == 0)
                if wrong is None:
                    passed += number in numbers
                    continue
                failed += 1
                print(f"\nstatement {number} (--seed {options.seed} --only {number}): {wrong}", flush=True)
                # What follows would only be wrong for the same reason.
                break
            database.close()
    print(f"changes: {passed} passed, {failed} failed")
    return 1 if failed or not passed else 0


if __name__ == "__main__":
    sys.exit(main())
