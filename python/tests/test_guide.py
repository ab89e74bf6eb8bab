"""Examples of the guide run, each page in a folder of its own, and print what the page says; so do the tutorial's cells.

Pages for users of other engines have sessions of a shell as well: in a block `console`, each line after `$ ` is a command of bash
(`> ` continues it), and the lines below are its output. Blocks of other languages are not run.

`WRITE=1 pytest test_guide.py -k "tutorial or others"` writes what is printed now into the notebook and these pages.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import client
import pytest

DOCS = Path(__file__).parents[2] / "docs"
GUIDE = DOCS / "guide" / "python.md"
TUTORIAL = DOCS / "tutorial" / "flights.ipynb"
BLOCK = re.compile(r"^```python\n(.*?)^```\n(?:\n?```text\n(.*?)^```\n)?", re.MULTILINE | re.DOTALL)
FOR_USERS_OF_OTHERS = [DOCS / "guide" / name for name in ("from-duckdb.md", "from-pg-strom.md")]
EXAMPLE = re.compile(
    r"^```console\n(?P<session>.*?)^```\n|^```python\n(?P<code>.*?)^```\n(?:\n```text\n(?P<printed>.*?)^```\n)?",
    re.MULTILINE | re.DOTALL,
)
COMMAND = re.compile(r"^\$ (?P<command>.*\n(?:> .*\n)*)(?P<output>(?:(?!\$ ).*\n)*)", re.MULTILINE)


def printed_by(code: str, file: Path, names: dict[str, object]) -> str:
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        exec(compile(code, str(file), "exec"), names)
    return out.getvalue()


def test_the_guide(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    blocks = BLOCK.findall(GUIDE.read_text())
    assert len(blocks) > 5
    names: dict[str, object] = {}
    for code, expected in blocks:
        printed = printed_by(code, GUIDE, names)
        if expected:
            assert printed == expected, code


def said_by(command: str) -> str:
    """Standard output and standard error of a command of bash, as a terminal shows them, but for footers."""
    script = command.replace("\n> ", "\n")
    ran = subprocess.run(["bash", "-c", script], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=120)
    return "".join(line.rstrip() + "\n" for line in ran.stdout.splitlines())


@pytest.mark.parametrize("page", FOR_USERS_OF_OTHERS, ids=lambda page: page.stem)
def test_a_page_for_users_of_others(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program, folder = tmp_path / "bin" / "onehop", tmp_path / "work"
    program.parent.mkdir()
    folder.mkdir()
    program.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m onehop "$@"\n')
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{program.parent}:{os.environ['PATH']}")
    monkeypatch.setenv("ONEHOP_FORMAT", "box")
    monkeypatch.setenv("ONEHOP_THREADS", "2")
    monkeypatch.setenv("ONEHOP_GPU_MODE", "off")
    monkeypatch.chdir(folder)
    names: dict[str, object] = {}

    def run(example: re.Match[str]) -> str:
        if example["code"] is None:
            session = COMMAND.sub(lambda line: f"$ {line['command']}{said_by(line['command'])}", example["session"])
            return f"```console\n{session}```\n"
        printed = printed_by(example["code"], page, names)
        shown = "" if example["printed"] is None else f"\n```text\n{printed}```\n"
        return f"```python\n{example['code']}```\n{shown}"

    text = page.read_text()
    examples = list(EXAMPLE.finditer(text))
    assert len(examples) > 5
    now = [run(example) for example in examples]
    if os.environ.get("WRITE"):
        remaining = iter(now)
        page.write_text(EXAMPLE.sub(lambda _: next(remaining), text))
        return
    for example, shown in zip(examples, now, strict=True):
        assert shown == example[0]


def test_the_tutorial(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    notebook = json.loads(TUTORIAL.read_text())
    monkeypatch.chdir(tmp_path)
    names: dict[str, object] = {}
    for cell in notebook["cells"]:
        if cell["cell_type"] != "code":
            continue
        code = "".join(cell["source"])
        printed = printed_by(code, TUTORIAL, names)
        if os.environ.get("WRITE"):
            cell["outputs"] = [
                {"name": "stdout", "output_type": "stream", "text": printed.splitlines(keepends=True)} for _ in [0] if printed
            ]
            continue
        expected = "".join("".join(output["text"]) for output in cell["outputs"])
        assert printed == expected, code
    assert any(cell.get("outputs") for cell in notebook["cells"])
    if os.environ.get("WRITE"):
        TUTORIAL.write_text(json.dumps(notebook, indent=1, ensure_ascii=False) + "\n")


def test_a_client() -> None:
    client.main()
