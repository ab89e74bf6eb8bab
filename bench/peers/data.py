"""The benchmarks' data, where it lies, and how it gets into both engines from the same Parquet files.

DATA/ssb-sf1/parquet/*.parquet    written by `onehop gen`
DATA/ssb-sf1/duckdb.db            DuckDB's database file
DATA/ssb-sf1/onehop/              Onehop's database directory
"""

import shutil
import subprocess
from dataclasses import dataclass
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
        """Query texts by name (q1.1, q01), in order. `wanted` takes names in any case."""
        folder = REPOSITORY / "crates" / "lab" / "src" / "queries" / self.suite
        queries = {path.stem: path.read_text() for path in sorted(folder.glob("*.sql"))}
        if wanted is None:
            return queries
        names = [name.lower() for name in wanted]
        unknown = [name for name in names if name not in queries]
        if unknown:
            raise SystemExit(f"no query {', '.join(unknown)}; there are {', '.join(queries)}")
        return {name: queries[name] for name in names}

    def is_loaded(self) -> bool:
        return (self.folder / "loaded").is_file()

    def load(self, binary: Path, threads: int) -> tuple[Load, Load]:
        """Loads both databases afresh, table by table in turns. (Onehop's, DuckDB's)"""
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
        (self.folder / "loaded").touch()
        return (
            Load(spent["onehop"], peaks["onehop"], size(self.onehop)),
            Load(spent["duckdb"], peaks["duckdb"], size(self.duckdb)),
        )


def size(path: Path) -> int:
    return path.stat().st_size if path.is_file() else sum(f.stat().st_size for f in path.rglob("*") if f.is_file())
