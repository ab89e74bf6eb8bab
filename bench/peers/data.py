"""The benchmarks' data, where it lies, and how it gets into both engines from the same Parquet files.

DATA/ssb-sf1/parquet/*.parquet    written by `onehop gen`
DATA/ssb-sf1/duckdb.db            DuckDB's database file
DATA/ssb-sf1/onehop/              Onehop's database directory
DATA/ssb-sf1/loaded               how those two were loaded, when both are whole: times, memory, versions
"""

import json
import re
import shutil
import subprocess
from dataclasses import asdict, dataclass
from pathlib import Path

from engine import DuckDb, Engine, Onehop

REPOSITORY = Path(__file__).parents[2]
SUITES = ("ssb", "tpch")


@dataclass
class Load:
    """One load of all tables."""

    load_ns: int
    peak_rss_bytes: int | None
    size_bytes: int


class Data:
    """The data of one suite at one scale factor."""

    def __init__(self, folder: Path, suite: str, scale: str) -> None:
        self.suite, self.scale = suite, scale
        self.folder = folder / f"{suite}-sf{scale}"
        self.parquet = self.folder / "parquet"
        self.duckdb = self.folder / "duckdb.db"
        self.onehop = self.folder / "onehop"

    def generate(self, binary: Path) -> None:
        """Writes the Parquet files, unless a former run did."""
        if self.parquet.is_dir():
            return
        half = self.folder / "parquet.half"
        shutil.rmtree(half, ignore_errors=True)
        half.parent.mkdir(parents=True, exist_ok=True)
        command = [binary, "gen", self.suite, "--sf", self.scale, "--format", "parquet", "--out", half]
        subprocess.run([str(part) for part in command], check=True)
        half.rename(self.parquet)

    def tables(self) -> list[str]:
        tables = sorted(path.stem for path in self.parquet.glob("*.parquet"))
        if not tables:
            raise SystemExit(f"no Parquet files in {self.parquet}")
        return tables

    def queries(self, wanted: list[str] | None = None) -> dict[str, str]:
        """Query texts by name (q1.1, q01). `wanted` takes what `onehop bench --queries` takes."""
        folder = REPOSITORY / "crates" / "lab" / "src" / "queries" / self.suite
        queries = {path.stem: path.read_text() for path in sorted(folder.glob("*.sql"))}
        if wanted is None:
            return queries
        names = list(queries)
        chosen = []
        for item in wanted:
            first, last = (re.split(r"\.\.|-", item, maxsplit=1) * 2)[:2]
            start, end = find(names, first)[0], find(names, last)[1]
            if start >= end:
                raise SystemExit(f"--queries {item} ends before it begins; there are {', '.join(names)}")
            chosen += names[start:end]
        return {name: queries[name] for name in chosen}

    def loaded(self) -> dict | None:
        """How the databases that are there were loaded; None if they have to be."""
        try:
            return json.loads((self.folder / "loaded").read_text())
        except (OSError, ValueError):
            return None

    def load(self, binary: Path, threads: int, environment: dict[str, object]) -> dict:
        """Loads both databases afresh, table by table in turns. What is returned is what `loaded` will say."""
        (self.folder / "loaded").unlink(missing_ok=True)
        for old in self.folder.glob("duckdb.db*"):
            old.unlink()
        shutil.rmtree(self.onehop, ignore_errors=True)
        with Onehop(binary, self.onehop, threads) as onehop, DuckDb(self.duckdb, threads) as duckdb:
            engines: list[Engine] = [onehop, duckdb]
            spent = {engine.name: 0 for engine in engines}
            for turn, table in enumerate(self.tables()):
                statement = f"CREATE TABLE \"{table}\" AS SELECT * FROM '{self.parquet / table}.parquet'"
                for engine in engines if turn % 2 == 0 else reversed(engines):
                    spent[engine.name] += engine.sql(statement).wall_ns
            # DuckDB's rows are in its log until then; Onehop's are in segments, synchronised, already.
            spent["duckdb"] += duckdb.sql("CHECKPOINT").wall_ns
            peaks = {engine.name: engine.peak_rss_bytes() for engine in engines}
        loads = {
            "onehop": asdict(Load(spent["onehop"], peaks["onehop"], size(self.onehop))),
            "duckdb": asdict(Load(spent["duckdb"], peaks["duckdb"], size(self.duckdb))),
            "threads": threads,
            "environment": environment,
        }
        (self.folder / "loaded").write_text(json.dumps(loads, indent=2) + "\n")
        return loads


def find(names: list[str], wanted: str) -> tuple[int, int]:
    """Where the queries of a name start and end. `2` and `q2` are q2.1 to q2.3 of SSB, and q02 of TPC-H."""

    def key(name: str) -> list[int] | None:
        found = re.fullmatch(r"[qQ]?([0-9]+)(?:\.([0-9]+))?", name.strip())
        return [int(part) for part in found.groups() if part] if found else None

    want = key(wanted)
    fits = [at for at, name in enumerate(names) if want and (key(name) or [])[: len(want)] == want]
    if not fits:
        raise SystemExit(f"--queries: there is no query {wanted.strip()!r}; there are {', '.join(names)}")
    return fits[0], fits[-1] + 1


def size(path: Path) -> int:
    return path.stat().st_size if path.is_file() else sum(f.stat().st_size for f in path.rglob("*") if f.is_file())
