"""Fills the answers of the golden queries in: from DuckDB, cross-checked with SQLite, never from our own engine.

    bench/peers/setup.sh && bench/peers/.venv/bin/python tests/golden/fill.py [--check] [FILE.slt ...]

A new query needs only its text:

    query
    SELECT count(*) FROM numbers
    ----

This writes types, sort mode (`rowsort` unless the outermost query has an ORDER BY) and rows into the file, in the
form that `canonical.py` describes. `--check` writes nothing and fails when a file would change.

Every answer is computed twice by DuckDB, the second time over the tables in reverse row order: a query whose answer
depends on the order of rows (a LIMIT over ties, say) is refused. Where SQLite runs the query too, its answer must be
the same; where it honestly differs (its own typing, mostly), the line `# sqlite: REASON` before the record says why it
is not asked; nor is it after a file's first `statement ok`.

`skipif`/`onlyif` know the engines `duckdb` (here) and `onehop` (the harness). In files with `control substitution on`,
${FIXTURES} and ${__TEST_DIR__} are replaced.
"""

import argparse
import datetime as dt
import re
import sqlite3
import sys
import tempfile
from decimal import Decimal
from pathlib import Path

import duckdb
from canonical import letter, render, sorted_rows

HERE = Path(__file__).parent
FIXTURES = HERE / "fixtures"
# Casts to types that SQLite does not have turn into something else there, silently.
SQLITE_CANNOT = re.compile(r"\bAS\s+(DATE|TIMESTAMP|DECIMAL|BOOLEAN|INTERVAL)\b|::|\bDIV\b", re.IGNORECASE)


class Refused(Exception):
    """A record that cannot be a golden one."""


class DuckDb:
    """DuckDB with every fixture as a table, in file order or reversed."""

    def __init__(self, direction: str) -> None:
        self.con = duckdb.connect()
        self.con.execute("SET enable_progress_bar = false")
        for path in sorted(FIXTURES.glob("*.parquet")):
            self.con.execute(
                f"CREATE TABLE {path.stem} AS SELECT * EXCLUDE (file_row_number) "
                f"FROM read_parquet('{path}', file_row_number = true) ORDER BY file_row_number {direction}"
            )

    def statement(self, sql: str) -> None:
        self.con.execute(sql).fetchall()

    def query(self, sql: str) -> tuple[str, list[list[str]]]:
        cursor = self.con.execute(sql)
        letters = "".join(letter(str(column[1])) for column in cursor.description)
        return letters, [[render(value) for value in row] for row in cursor.fetchall()]


class Sqlite:
    """SQLite with the fixtures that it can hold: decimals as doubles, dates and timestamps as text."""

    def __init__(self, source: DuckDb) -> None:
        self.con = sqlite3.connect(":memory:", isolation_level=None)
        self.con.execute("PRAGMA case_sensitive_like = ON")
        for path in sorted(FIXTURES.glob("*.parquet")):
            cursor = source.con.execute(f"SELECT * FROM {path.stem}")
            columns = [(column[0], letter(str(column[1]))) for column in cursor.description]
            rows = [[self.stored(value) for value in row] for row in cursor.fetchall()]
            affinity = {"I": "INTEGER", "B": "INTEGER", "N": "REAL", "R": "REAL"}
            fields = ", ".join(f'"{name}" {affinity.get(kind, "TEXT")}' for name, kind in columns)
            self.con.execute(f"CREATE TABLE {path.stem} ({fields})")
            marks = ", ".join("?" * len(columns))
            self.con.executemany(f"INSERT INTO {path.stem} VALUES ({marks})", rows)

    @staticmethod
    def stored(value: object) -> object:
        match value:
            case dt.datetime() | dt.date() | Decimal():
                text = render(value)
                return float(text) if isinstance(value, Decimal) else text
            case int() if not -(2**63) <= value < 2**63:
                return float(value)
        return value

    def rows(self, sql: str) -> list[tuple] | None:
        """None where SQLite cannot run it."""
        try:
            return self.con.execute(sql).fetchall()
        except (sqlite3.Error, OverflowError):
            return None

    @staticmethod
    def agrees(kind: str, ours: str, theirs: object) -> bool:
        """Whether SQLite's value can be the one that DuckDB rendered, given what SQLite's types can hold."""
        if theirs is None or ours == "NULL":
            return theirs is None and ours == "NULL"
        match kind:
            case "B":
                return theirs == (ours == "true")
            case "I":
                return isinstance(theirs, int | float) and float(theirs) == float(int(ours))
            case "N" | "R":
                if not isinstance(theirs, int | float):
                    return False
                a, b = float(ours), float(theirs)
                return a == b or abs(a - b) <= 1e-9 * max(abs(a), abs(b), 1e-3)
            case _:
                return render(theirs) == ours

    def check(self, sql: str, letters: str, rows: list[list[str]], ordered: bool) -> bool:
        """False where SQLite cannot run the query; Refused where its answer is another one."""
        if SQLITE_CANNOT.search(sql):
            return False
        theirs = self.rows(sql)
        if theirs is None:
            return False
        if len(theirs) != len(rows):
            raise Refused(f"SQLite has {len(theirs)} rows, DuckDB {len(rows)}")
        rest = list(theirs)
        for at, row in enumerate(rows):
            candidates = [at] if ordered else range(len(rest))
            pool = theirs if ordered else rest
            for i in candidates:
                if len(pool[i]) == len(row) and all(map(self.agrees, letters, row, pool[i])):
                    if not ordered:
                        rest.pop(i)
                    break
            else:
                raise Refused(f"SQLite does not have DuckDB's row {row} (it has {theirs[at] if ordered else rest[:3]})")
        return True


def is_ordered(sql: str) -> bool:
    """Whether the outermost query has an ORDER BY."""
    depth, words = 0, []
    for token in re.findall(r"'(?:[^']|'')*'|[()]|\w+", sql):
        depth += {"(": 1, ")": -1}.get(token, 0)
        if depth == 0:
            words.append(token.upper())
    return ("ORDER", "BY") in zip(words, words[1:])


def blocks(path: Path) -> list[tuple[int, list[str]]]:
    """Runs of lines between blank ones, with their line numbers."""
    found: list[tuple[int, list[str]]] = []
    fresh = True
    for number, line in enumerate(path.read_text(encoding="utf-8").split("\n"), 1):
        if line == "":
            fresh = True
        elif fresh:
            found.append((number, [line]))
            fresh = False
        else:
            found[-1][1].append(line)
    return found


class Filler:
    """Walks the records of one file."""

    def __init__(self, path: Path, folder: str) -> None:
        self.path = path
        self.variables = {"${FIXTURES}": str(FIXTURES), "${__TEST_DIR__}": folder}
        self.forward, self.backward = DuckDb("ASC"), DuckDb("DESC")
        self.sqlite = Sqlite(self.forward)
        self.ask_sqlite = True
        self.queries = self.cross_checked = self.refused = 0

    def substituted(self, sql: str) -> str:
        for name, value in self.variables.items():
            sql = sql.replace(name, value)
        return sql

    def fill(self) -> str:
        """The file with its answers; a refused record stays as it is."""
        out = []
        for number, block in blocks(self.path):
            try:
                out.append("\n".join(self.record(block)))
            except (Refused, duckdb.Error) as e:
                self.refused += 1
                out.append("\n".join(block))
                print(f"{self.path}:{number}: refused: {e}", *block[:6], sep="\n    ", file=sys.stderr)
        return "\n\n".join(out) + "\n"

    def record(self, lines: list[str]) -> list[str]:
        at = next((i for i, line in enumerate(lines) if line.startswith(("query", "statement"))), None)
        if at is None:
            return lines
        prefix, header, body = lines[:at], lines[at], lines[at + 1 :]
        sql = self.substituted("\n".join(body[: body.index("----")] if "----" in body else body))
        others_only = any(line.startswith("onlyif") and line != "onlyif duckdb" for line in prefix)
        skipped = others_only or "skipif duckdb" in prefix
        if header.startswith("statement"):
            if not skipped:
                self.statement(header, sql)
            return lines
        if skipped:
            raise Refused("a query that DuckDB does not run has no oracle")
        letters, mode, rows = self.query(sql, not any(line.startswith("# sqlite:") for line in prefix))
        header = f"query {letters}" + (" rowsort" if mode == "rowsort" else "")
        return prefix + [header] + body[: body.index("----")] + ["----"] + ["\t".join(row) for row in rows]

    def statement(self, header: str, sql: str) -> None:
        # SQLite does not follow other engines' DDL.
        self.ask_sqlite = self.ask_sqlite and header.startswith("statement error")
        for db in (self.forward, self.backward):
            try:
                db.statement(sql)
            except duckdb.Error:
                if header.startswith("statement ok"):
                    raise
            else:
                if header.startswith("statement error"):
                    raise Refused("DuckDB takes this statement")

    def query(self, sql: str, ask_sqlite: bool) -> tuple[str, str, list[list[str]]]:
        ordered = is_ordered(sql)
        letters, rows = self.forward.query(sql)
        _, reverse = self.backward.query(sql)
        if "?" in letters:
            raise Refused(f"a column has a type without canonical form ({letters})")
        if not ordered:
            rows, reverse = sorted_rows(rows), sorted_rows(reverse)
        if rows != reverse:
            raise Refused("the answer depends on the order of the rows")
        self.queries += 1
        if ask_sqlite and self.ask_sqlite:
            self.cross_checked += self.sqlite.check(sql, letters, rows, ordered)
        return letters, "nosort" if ordered else "rowsort", rows


def main() -> None:
    parser = argparse.ArgumentParser(description="Fill the golden answers in from DuckDB.")
    parser.add_argument("--check", action="store_true", help="write nothing; fail when a file would change")
    parser.add_argument("files", nargs="*", type=Path)
    options = parser.parse_args()
    queries = cross_checked = refused = 0
    stale = []
    for path in options.files or sorted((HERE / "slt").glob("*.slt")):
        with tempfile.TemporaryDirectory() as folder:
            filler = Filler(path, folder)
            filled = filler.fill()
        if filled != path.read_text(encoding="utf-8"):
            stale.append(path.name)
            if not options.check:
                path.write_text(filled, encoding="utf-8")
        queries += filler.queries
        cross_checked += filler.cross_checked
        refused += filler.refused
        print(f"{path.name}: {filler.queries} queries, {filler.cross_checked} cross-checked with SQLite")
    print(f"golden: {queries} queries, {cross_checked} cross-checked with SQLite, {len(stale)} files changed")
    if refused:
        sys.exit(f"golden: {refused} records refused")
    if options.check and stale:
        sys.exit(f"golden: out of date: {', '.join(stale)}")


if __name__ == "__main__":
    main()
