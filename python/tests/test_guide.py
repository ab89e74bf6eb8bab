"""What the guide shows runs, in a folder of its own, and prints what it says."""

from __future__ import annotations

import contextlib
import io
import re
from pathlib import Path

import client
import pytest

GUIDE = Path(__file__).parents[2] / "docs" / "guide" / "python.md"
BLOCK = re.compile(r"^```python\n(.*?)^```\n(?:\n?```text\n(.*?)^```\n)?", re.MULTILINE | re.DOTALL)


def test_the_guide(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    blocks = BLOCK.findall(GUIDE.read_text())
    assert len(blocks) > 5
    names: dict[str, object] = {}
    for code, printed in blocks:
        out = io.StringIO()
        with contextlib.redirect_stdout(out):
            exec(compile(code, str(GUIDE), "exec"), names)
        if printed:
            assert out.getvalue() == printed, code


def test_a_client() -> None:
    client.main()
