"""Five hundred dialects of text files, generated: found out as DuckDB finds them, and none read wrongly without a word.

    bench/peers/.venv/bin/python tests/files/dialects.py --onehop target/debug/onehop [--seed 20] [--count 500] [--only 17]

Each file has its own delimiter, quotes, escapes, header, lines before the table, line ends and types. The rows that were
written are known: an answer is *right* if it has them, *refused* if it is an error, and *wrong* otherwise. At least 98 in
a hundred have to be right where DuckDB is, and none may be wrong.
"""

import argparse
import datetime as dt
import itertools
import random
import subprocess
import sys
import tempfile
from pathlib import Path

import duckdb

WORDS = ["alpha", "beta", "gamma delta", "Epsilon", "zeta-eta", "theta", "x1", "Ünïcode", "iota kappa"]
HARD = ["say {q}hi{q}", "a{d}b", "two\nlines", "{d}", "end{q}"]


class Dialect:
    """How one file is written."""

    def __init__(self, random_: random.Random) -> None:
        self.delimiter = random_.choice([",", ";", "\t", "|"])
        self.quote = random_.choice(['"', '"', "'", ""])
        self.escape = random_.choice([self.quote, "\\"]) if self.quote == '"' else self.quote
        self.has_header = random_.random() < 0.7
        self.preamble = random_.choice(["", "", "", "# made by hand\n", "Report of a day\n\n", "Title\nSource: a file\n"])
        self.line_end = random_.choice(["\n", "\n", "\r\n"])
        self.quotes_all = bool(self.quote) and random_.random() < 0.2
        self.types = random_.choices(["int", "float", "text", "date", "timestamp", "bool"], k=random_.randint(2, 7))
        if self.has_header and all(kind == "text" for kind in self.types):
            self.types[0] = "int"
        if not self.has_header and all(kind == "text" for kind in self.types):
            self.types[-1] = "float"
        self.rows = random_.randint(4, 60)
        self.hard = bool(self.quote) and random_.random() < 0.5

    def __str__(self) -> str:
        parts = [f"delimiter {self.delimiter!r}", f"quote {self.quote!r}", f"escape {self.escape!r}"]
        parts += [f"header {self.has_header}", f"preamble {self.preamble!r}", f"line end {self.line_end!r}"]
        return ", ".join(parts + [f"types {','.join(self.types)}"])

    def value(self, kind: str, random_: random.Random) -> object:
        if random_.random() < 0.08:
            return None
        if kind == "int":
            return random_.randint(-5000, 100_000)
        if kind == "float":
            return round(random_.uniform(-100, 100), 3) + 0.0005
        if kind == "date":
            return dt.date(2000, 1, 1) + dt.timedelta(days=random_.randint(0, 9000))
        if kind == "timestamp":
            return dt.datetime(2001, 2, 3, 4, 5, 6) + dt.timedelta(seconds=random_.randint(0, 10**8))
        if kind == "bool":
            return random_.random() < 0.5
        if self.hard and random_.random() < 0.3:
            return random_.choice(HARD).format(q=self.quote, d=self.delimiter)
        return random_.choice(WORDS)

    def text(self, value: object) -> str:
        if value is None:
            return ""
        text = {True: "true", False: "false"}[value] if isinstance(value, bool) else str(value)
        special = (self.delimiter, self.quote or "\0", "\n", "\r")
        if self.quote and (self.quotes_all or any(mark in text for mark in special)):
            if self.escape != self.quote:
                text = text.replace(self.escape, self.escape * 2)
            return self.quote + text.replace(self.quote, self.escape + self.quote) + self.quote
        return text

    def write(self, path: Path, random_: random.Random) -> list[list[object]]:
        rows = [[self.value(kind, random_) for kind in self.types] for _ in range(self.rows)]
        for at in range(len(self.types)):
            if all(row[at] is None for row in rows[:3]):
                rows[0][at] = next((row[at] for row in rows if row[at] is not None), None)
        lines = [self.delimiter.join(self.text(value) for value in row) for row in rows]
        if self.has_header:
            lines.insert(0, self.delimiter.join(self.text(f"col_{at}") for at in range(len(self.types))))
        text = self.preamble.replace("\n", self.line_end) + self.line_end.join(lines) + self.line_end
        path.write_bytes(text.encode())
        return rows


def canonical(value: object) -> str:
    """A value as both engines print it, whatever they take its type for."""
    if value is None:
        return "NULL"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, float):
        return repr(value)
    return str(value)


def by_duckdb(path: Path) -> list[list[str]] | None:
    try:
        con = duckdb.connect()
        return [[canonical(value) for value in row] for row in con.execute(f"FROM '{path}'").fetchall()]
    except duckdb.Error:
        return None


def by_onehop(onehop: str, path: Path) -> tuple[list[list[str]] | None, str]:
    """The rows, every value as text between marks that no value has."""
    import json

    run = subprocess.run(
        [onehop, "--format", "jsonl", "-c", f"SELECT * FROM '{path}'"], capture_output=True, text=True, check=False
    )
    if run.returncode:
        return None, run.stderr
    rows = []
    for line in run.stdout.splitlines():
        if line.startswith("{"):
            pairs = json.loads(line, object_pairs_hook=list)
            rows.append([canonical(value) for _, value in pairs])
    return rows, ""


def same(found: list[list[str]] | None, rows: list[list[object]]) -> bool:
    if found is None:
        return False
    wanted = [[canonical(value) for value in row] for row in rows]
    if len(found) != len(wanted):
        return False
    return all(
        len(a) == len(b) and all(equal(x, y) for x, y in itertools.zip_longest(a, b)) for a, b in zip(found, wanted)
    )


def equal(a: str, b: str) -> bool:
    if a == b or a.replace("T", " ") == b:
        return True
    try:
        return float(a) == float(b)
    except ValueError:
        return False


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--onehop", default="target/debug/onehop")
    parser.add_argument("--seed", type=int, default=20)
    parser.add_argument("--count", type=int, default=500)
    parser.add_argument("--only", type=int)
    options = parser.parse_args()
    right = by_both = of_duckdb = 0
    wrong: list[str] = []
    refused: list[str] = []
    with tempfile.TemporaryDirectory() as folder:
        for number in range(options.count):
            random_ = random.Random(options.seed * 100_000 + number)
            dialect = Dialect(random_)
            path = Path(folder) / f"{number}.csv"
            rows = dialect.write(path, random_)
            if options.only not in (None, number):
                continue
            theirs = same(by_duckdb(path), rows)
            found, error = by_onehop(options.onehop, path)
            ours = same(found, rows)
            right, of_duckdb, by_both = right + ours, of_duckdb + theirs, by_both + (ours and theirs)
            if not ours and found is not None:
                wrong.append(f"{number}: {dialect}: {found[:2]}, and {rows[:2]} were written")
            elif not ours:
                refused.append(f"{number}: {dialect}: {error.strip().splitlines()[0] if error else ''}")
            if options.only is not None:
                print(dialect, path.read_text(encoding="utf-8")[:600], found, error, sep="\n")
    for line in wrong:
        print("wrong:", line)
    for line in refused:
        print("refused:", line)
    share = 100 * by_both / max(of_duckdb, 1)
    print(f"dialects: {options.count} files, seed {options.seed}: {right} right, {len(refused)} refused, {len(wrong)} wrong; "
          f"DuckDB has {of_duckdb} right, and {by_both} of them are ({share:.1f} %)")  # fmt: skip
    print(f"dialects: {options.count - len(wrong)} passed, {len(wrong)} failed")
    if wrong or share < 98:
        sys.exit(1)


if __name__ == "__main__":
    main()
