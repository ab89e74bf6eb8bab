"""Two engines that speak one protocol: a process each, one JSON request a line in, one JSON response a line out.

`Onehop` is `onehop pipe`; `DuckDb` is `duckdb_pipe.py`, the same around DuckDB's Python package. Each measures its own
statements inside its own process, so that neither pays for this protocol, and each has a peak of resident memory of
its own.
"""

import json
import re
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from answer import Answer, Column, kind_of, read_value


class EngineError(Exception):
    """The engine answered with an error, or not at all."""


@dataclass
class Result:
    answer: Answer
    row_count: int
    wall_ns: int
    ledger: dict[str, int]


class Engine:
    """A process that answers requests in order. Close it, or use it in a `with`."""

    def __init__(self, name: str, command: list[str]) -> None:
        self.name = name
        self.process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, encoding="utf-8", bufsize=1
        )

    def __enter__(self) -> "Engine":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def sql(self, sql: str, rows: bool = True) -> Result:
        """Runs one statement. Without `rows` the answer is complete in the engine, but stays there."""
        assert self.process.stdin and self.process.stdout
        try:
            self.process.stdin.write(json.dumps({"sql": sql, "rows": rows}) + "\n")
            self.process.stdin.flush()
            line = self.process.stdout.readline()
        except BrokenPipeError:
            line = ""
        if not line:
            raise EngineError(f"{self.name} ended with status {self.process.wait()}")
        response = json.loads(line)
        if not response["ok"]:
            error = response["error"]
            raise EngineError(f"{self.name}: {error['kind']}: {error['message']}")
        columns = [Column(column["name"], kind_of(column["type"])) for column in response["columns"]]
        kinds = [column.kind for column in columns]
        answer = Answer(columns, [tuple(map(read_value, kinds, row)) for row in response["rows"]])
        return Result(answer, response["row_count"], response["wall_ns"], response.get("ledger", {}))

    def peak_rss_bytes(self) -> int | None:
        """The most memory the process ever had resident; None where the system does not say."""
        try:
            status = Path(f"/proc/{self.process.pid}/status").read_text()
        except OSError:
            return None
        found = re.search(r"VmHWM:\s+(\d+) kB", status)
        return int(found.group(1)) * 1024 if found else None

    def close(self) -> None:
        if self.process.stdin:
            self.process.stdin.close()
        status = self.process.wait()
        if self.process.stdout:
            self.process.stdout.close()
        if status:
            raise EngineError(f"{self.name} ended with status {status}")


class Onehop(Engine):
    """`onehop pipe [DIR]`, with settings as NAME=VALUE."""

    def __init__(
        self, binary: Path, directory: Path | None = None, threads: int | None = None, settings: list[str] | None = None
    ) -> None:
        flags = [word for setting in settings or [] for word in ("--set", setting)]
        super().__init__("onehop", [str(binary), "pipe", *([str(directory)] if directory else []), *flags])
        if threads:
            self.sql(f"SET threads = {threads}")


class DuckDb(Engine):
    """DuckDB in a Python process of its own."""

    def __init__(self, file: Path | None = None, threads: int | None = None) -> None:
        worker = Path(__file__).parent / "duckdb_pipe.py"
        super().__init__("duckdb", [sys.executable, str(worker), str(file or ":memory:")])
        if threads:
            self.sql(f"SET threads = {threads}")
