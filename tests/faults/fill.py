"""Fills the answers of the fault cases in: from DuckDB or PostgreSQL, never from our own engine.

    bench/peers/setup.sh && bench/peers/.venv/bin/python tests/faults/fill.py [--check] [FILE.slt ...]

A file is a list of cases. `tests/tests/faults.rs` runs each of them in a new database:

    # case AA1
    # from datafusion#23095; what was wrong, in one line
    # oracle duckdb

    statement ok
    CREATE TABLE p (id INT, pay INT)

    query
    SELECT id FROM p WHERE pay > ANY (SELECT pay FROM p)
    ----

The line `# oracle` names where the answers come from:

    both                  DuckDB and PostgreSQL, which must give the same answer
    duckdb, postgresql    the one of them that has the syntax, or the meaning that Onehop takes
    stated REASON         neither; the answers are written by hand, and the reason says where they come from

The oracle writes types, sort mode (`rowsort` unless the outermost query has an ORDER BY) and rows, in the form of
`tests/golden/canonical.py`. `statement error` and `query error` are checked: the oracle refuses them too.
`skipif duckdb` and `skipif postgresql` before a record keep it from that oracle; `onlyif` gives it to one alone.
`system ok` runs a shell command, `${__TEST_DIR__}` is the case's folder: files are read by DuckDB alone.

PostgreSQL is started on a socket in a temporary folder, for this run. It must be installed (Debian: `postgresql`).
"""

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import duckdb
import psycopg

sys.path.insert(0, str(Path(__file__).parents[1] / "golden"))

from canonical import letter, render, sorted_rows  # noqa: E402
from fill import Refused, blocks, is_ordered  # noqa: E402

HERE = Path(__file__).parent
OID_LETTERS = {
    16: "B", 20: "I", 21: "I", 23: "I", 26: "I", 700: "R", 701: "R", 1082: "D", 1114: "P",
    25: "T", 1043: "T", 1042: "T", 18: "T", 19: "T", 705: "T",
}  # fmt: skip
NUMERIC_OID = 1700


class DuckDb:
    """A new database of DuckDB's."""

    name = "duckdb"

    def __init__(self) -> None:
        self.con = duckdb.connect()
        self.con.execute("SET enable_progress_bar = false")

    def run(self, sql: str) -> tuple[str, list[list[str]]]:
        cursor = self.con.execute(sql)
        if cursor.description is None:
            return "", []
        letters = "".join(letter(str(column[1])) for column in cursor.description)
        rows = cursor.fetchall()
        return letters, [[value if known == "?" else render(value) for known, value in zip(letters, row)] for row in rows]

    def close(self) -> None:
        self.con.close()


class PostgreSql:
    """A new schema in a server of PostgreSQL's."""

    name = "postgresql"
    server: "Server | None" = None

    def __init__(self) -> None:
        if PostgreSql.server is None:
            PostgreSql.server = Server()
        self.con = psycopg.connect(PostgreSql.server.dsn, autocommit=True)
        self.con.execute("DROP SCHEMA public CASCADE")
        self.con.execute("CREATE SCHEMA public")

    def run(self, sql: str) -> tuple[str, list[list[str]]]:
        cursor = self.con.execute(sql)
        if cursor.description is None:
            return "", []
        rows = cursor.fetchall()
        letters = ""
        for at, column in enumerate(cursor.description):
            if column.type_code == NUMERIC_OID:
                letters += "N" if any(row[at] is not None and "." in f"{row[at]:f}" for row in rows) else "I"
            else:
                letters += OID_LETTERS.get(column.type_code, "?")
        return letters, [[value if known == "?" else render(value) for known, value in zip(letters, row)] for row in rows]

    def close(self) -> None:
        self.con.close()


class Server:
    """PostgreSQL on a socket in a temporary folder."""

    def __init__(self) -> None:
        programs = sorted(Path("/usr/lib/postgresql").glob("*/bin"))
        if not programs:
            sys.exit("fill.py: PostgreSQL is not installed; Debian and Ubuntu have it in the package postgresql")
        self.programs = programs[-1]
        self.folder = tempfile.mkdtemp()
        self.data = f"{self.folder}/data"
        self.user = "postgres" if os.geteuid() == 0 else None
        os.chmod(self.folder, 0o755)
        if self.user:
            shutil.chown(self.folder, self.user)
        self.command("initdb", "-D", self.data, "-A", "trust", "-U", "postgres", "--no-sync", "-E", "UTF8")
        self.command("pg_ctl", "-D", self.data, "-w", "-l", f"{self.folder}/log", "-o", f"-h '' -k {self.folder} -F", "start")
        self.dsn = f"host={self.folder} user=postgres dbname=postgres options='-c TimeZone=UTC'"

    def command(self, program: str, *arguments: str) -> None:
        subprocess.run(
            [str(self.programs / program), *arguments], check=True, stdout=subprocess.DEVNULL, user=self.user, cwd="/"
        )

    def stop(self) -> None:
        self.command("pg_ctl", "-D", self.data, "-m", "immediate", "stop")
        shutil.rmtree(self.folder)


ORACLES = {"duckdb": [DuckDb], "postgresql": [PostgreSql], "both": [DuckDb, PostgreSql]}
ERRORS = (duckdb.Error, psycopg.Error, OverflowError)


class Case:
    """The blocks of lines of one case."""

    def __init__(self, name: str, folder: str) -> None:
        self.name, self.folder = name, folder
        self.engines: list[DuckDb | PostgreSql] = []
        self.queries = 0

    def substituted(self, sql: str) -> str:
        return sql.replace("${__TEST_DIR__}", self.folder).replace("${FILES}", str(HERE / "files"))

    def block(self, lines: list[str]) -> list[str]:
        for line in lines:
            if line.startswith("# oracle "):
                word = line.split()[2]
                if word != "stated" and word not in ORACLES:
                    raise Refused(f"there is no oracle {word}")
                self.engines = [make() for make in ORACLES.get(word, [])]
        at = next((i for i, line in enumerate(lines) if line.startswith(("query", "statement", "system"))), None)
        if at is None or not self.engines:
            return lines
        prefix, header, body = lines[:at], lines[at], lines[at + 1 :]
        sql = self.substituted("\n".join(body[: body.index("----")] if "----" in body else body))
        if header.startswith("system"):
            subprocess.run(["bash", "-c", sql], check=True, stdout=subprocess.DEVNULL)
            return lines
        only = [line.split()[1] for line in prefix if line.startswith("onlyif")]
        skipped = [line.split()[1] for line in prefix if line.startswith("skipif")]
        engines = [e for e in self.engines if e.name not in skipped and (not only or e.name in only)]
        if header.startswith("query") and not header.startswith("query error"):
            return self.query(prefix, header, body, sql, engines) if engines else lines
        for engine in engines:
            self.statement(engine, header, sql)
        return lines

    def statement(self, engine: DuckDb | PostgreSql, header: str, sql: str) -> None:
        try:
            engine.run(sql)
        except ERRORS as e:
            if "error" not in header:
                raise Refused(f"{engine.name}: {e}") from e
        else:
            if "error" in header:
                raise Refused(f"{engine.name} takes this")

    def query(
        self, prefix: list[str], header: str, body: list[str], sql: str, engines: list[DuckDb | PostgreSql]
    ) -> list[str]:
        ordered = is_ordered(sql)
        answers = []
        for engine in engines:
            try:
                letters, rows = engine.run(sql)
            except ERRORS as e:
                raise Refused(f"{engine.name}: {e}") from e
            if "?" in letters:
                raise Refused(f"{engine.name}: a column has a type without canonical form ({letters}); cast it to VARCHAR")
            answers.append((letters, rows if ordered else sorted_rows(rows)))
        if any(rows != answers[0][1] for _, rows in answers):
            raise Refused("the oracles differ: " + "; ".join(f"{e.name} {a}" for e, a in zip(engines, answers)))
        letters, rows = answers[0]
        self.queries += 1
        # PostgreSQL's sums of integers are numeric, DuckDB's HUGEINT: both are integers here.
        header = f"query {letters}" + ("" if ordered else " rowsort")
        return prefix + [header] + body[: body.index("----")] + ["----"] + ["\t".join(row) for row in rows]

    def close(self) -> None:
        for engine in self.engines:
            engine.close()


def fill(path: Path) -> tuple[str, int, int, int]:
    """The file with its answers, and how many cases, queries and refused records it has."""
    out: list[str] = []
    cases = queries = refused = 0
    case: Case | None = None
    with tempfile.TemporaryDirectory() as folder:
        for number, block in blocks(path):
            name = next((line.removeprefix("# case ") for line in block if line.startswith("# case ")), None)
            if name is not None:
                if case is not None:
                    case.close()
                    queries += case.queries
                own = f"{folder}/{cases}"
                os.mkdir(own)
                case = Case(name, own)
                cases += 1
            try:
                out.append("\n".join(case.block(block) if case else block))
            except Refused as e:
                refused += 1
                out.append("\n".join(block))
                print(f"{path}:{number}: {case.name if case else ''}: refused: {e}", *block[:8], sep="\n    ", file=sys.stderr)
        if case is not None:
            case.close()
            queries += case.queries
    return "\n\n".join(out) + "\n", cases, queries, refused


def main() -> None:
    parser = argparse.ArgumentParser(description="Fill the answers of the fault cases in.")
    parser.add_argument("--check", action="store_true", help="write nothing; fail when a file would change")
    parser.add_argument("files", nargs="*", type=Path)
    options = parser.parse_args()
    cases = queries = refused = 0
    stale = []
    try:
        for path in options.files or sorted(HERE.glob("*.slt")):
            filled, here, asked, no = fill(path)
            if filled != path.read_text(encoding="utf-8"):
                stale.append(path.name)
                if not options.check:
                    path.write_text(filled, encoding="utf-8")
            cases, queries, refused = cases + here, queries + asked, refused + no
            print(f"{path.name}: {here} cases, {asked} queries answered")
    finally:
        if PostgreSql.server is not None:
            PostgreSql.server.stop()
    print(f"faults: {cases} cases, {queries} queries answered, {len(stale)} files changed")
    if refused:
        sys.exit(f"faults: {refused} records refused")
    if options.check and stale:
        sys.exit(f"faults: out of date: {', '.join(stale)}")


if __name__ == "__main__":
    main()
