"""What the guide shows runs, in a folder of its own, and prints what it says; and so does the tutorial, which is a notebook.

`WRITE=1 pytest test_guide.py -k tutorial` has the notebook keep what its cells print now.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import re
from pathlib import Path

import client
import pytest

DOCS = Path(__file__).parents[2] / "docs"
GUIDE = DOCS / "guide" / "python.md"
TUTORIAL = DOCS / "tutorial" / "flights.ipynb"
BLOCK = re.compile(r"^```python\n(.*?)^```\n(?:\n?```text\n(.*?)^```\n)?", re.MULTILINE | re.DOTALL)


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
