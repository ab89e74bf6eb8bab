"""How far a statement is: told while a call waits, shown on a terminal and in a notebook, and gone at the end."""

from __future__ import annotations

import io
import sys
import time
import types
from collections.abc import Iterator

import pyarrow
import pytest

import onehop
from onehop import progress


class Told:
    def __init__(self) -> None:
        self.updates: list[tuple[float | None, str]] = []
        self.closed = 0

    def update(self, fraction: float | None, text: str) -> None:
        self.updates.append((fraction, text))

    def close(self) -> None:
        self.closed += 1


def slow(batches: int, seconds: float) -> pyarrow.RecordBatchReader:
    schema = pyarrow.schema([("x", pyarrow.int64())])

    def rows() -> Iterator[pyarrow.RecordBatch]:
        for number in range(batches):
            time.sleep(seconds)
            yield pyarrow.record_batch([pyarrow.array([number])], schema=schema)

    return pyarrow.RecordBatchReader.from_batches(schema, rows())


def test_a_long_statement_tells_how_far_it_is() -> None:
    told = Told()
    with onehop.connect(progress=told) as con:
        assert con.sql("SELECT 6 * 7").fetchone() == (42,)
        assert (told.updates, told.closed) == ([], 0), "nobody is told of a short one"
        con.register("slow", slow(8, 0.5))
        assert con.sql("SELECT sum(x) FROM slow").fetchone() == (28,)
    assert told.updates and told.closed >= 1
    for fraction, text in told.updates:
        assert fraction is None or 0 <= fraction <= 1
        assert " s" in text and "Ctrl-C cancels" in text


def test_what_it_raises_ends_the_statement_and_what_is_closed_stays_closed() -> None:
    class Refuses(Told):
        def update(self, fraction: float | None, text: str) -> None:
            super().update(fraction, text)
            raise KeyboardInterrupt

    refuses = Refuses()
    with onehop.connect(progress=refuses) as con:
        con.register("slow", slow(40, 0.2))
        with pytest.raises(KeyboardInterrupt):
            con.sql("SELECT sum(x) FROM slow").fetchone()
        assert (len(refuses.updates), refuses.closed) == (1, 1)
        assert con.sql("SELECT 1").fetchone() == (1,), "the connection goes on"


def test_others_of_the_same_database_show_it_as_well_and_none_does_without() -> None:
    told = Told()
    with onehop.connect(progress=told) as con, con.cursor() as other:
        other.register("slow", slow(8, 0.4))
        assert other.sql("SELECT count(*) FROM slow").fetchone() == (8,)
    assert told.updates
    for wrong in (3, "yes"):
        with pytest.raises(TypeError, match="progress"):
            onehop.connect(progress=wrong)  # type: ignore[arg-type]


def test_bars() -> None:
    assert progress.bar(None, "3 s") == "… 3 s"
    assert progress.bar(0.0, "3 s") == " " * 32 + "   0% · 3 s"
    assert progress.bar(0.5, "3 s") == "█" * 16 + " " * 16 + "  50% · 3 s"
    assert progress.bar(1.0, "3 s") == "█" * 32 + " 100% · 3 s"
    assert progress.bar(0.51, "").startswith("█" * 16 + "▍")


class Screen(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_a_terminal_has_a_line_and_other_streams_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    screen, log = Screen(), io.StringIO()
    monkeypatch.setattr(sys, "stderr", screen)
    automatic = progress.Automatic()
    automatic.update(0.25, "4 s")
    automatic.close()
    assert screen.getvalue() == "\r\x1b[2K" + progress.bar(0.25, "4 s") + "\r\x1b[2K"
    monkeypatch.setattr(sys, "stderr", log)
    automatic.update(0.25, "4 s")
    automatic.close()
    assert log.getvalue() == ""
    progress.Automatic(always=True).update(None, "4 s")
    assert "… 4 s" in log.getvalue()
    monkeypatch.setattr(sys, "stderr", None)
    automatic.update(0.25, "4 s")
    automatic.close()


def test_a_notebook_has_an_output_that_is_emptied(monkeypatch: pytest.MonkeyPatch) -> None:
    shown: list[dict[str, str]] = []

    class Handle:
        def update(self, content: dict[str, str], raw: bool) -> None:
            assert raw
            shown.append(content)

    def display(content: dict[str, str], raw: bool, display_id: bool) -> Handle:
        assert raw and display_id
        shown.append(content)
        return Handle()

    ipython = types.ModuleType("IPython")
    ipython.get_ipython = lambda: types.SimpleNamespace(kernel=object())  # type: ignore[attr-defined]
    of_display = types.ModuleType("IPython.display")
    of_display.display = display  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "IPython", ipython)
    monkeypatch.setitem(sys.modules, "IPython.display", of_display)
    automatic = progress.Automatic()
    automatic.update(0.5, "<b>4 s</b>")
    automatic.update(None, "5 s")
    automatic.close()
    assert [content["text/plain"] for content in shown] == [progress.bar(0.5, "<b>4 s</b>"), "… 5 s", ""]
    assert 'value="0.5000"' in shown[0]["text/html"] and "&lt;b&gt;" in shown[0]["text/html"]
    assert "value=" not in shown[1]["text/html"] and shown[2]["text/html"] == ""
