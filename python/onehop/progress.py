"""How far a statement is, where somebody sees it: a line on a terminal, or an output of a notebook's cell."""

from __future__ import annotations

import html
import sys
from typing import Any, Protocol, TextIO

WIDTH = 32
"""Characters of a bar."""


class Progress(Protocol):
    """What is told how far a statement is that takes longer than two seconds, some times a second, while a call waits for it."""

    def update(self, fraction: float | None, text: str) -> None:
        """`fraction` of it is done, from 0 to 1, or nobody knows; `text` has times, bytes and rates, for people."""

    def close(self) -> None:
        """The call does not wait any more: what was shown goes."""


def bar(fraction: float | None, text: str) -> str:
    """A bar of characters and what is said about it."""
    if fraction is None:
        return f"… {text}"
    eighths = round(fraction * WIDTH * 8)
    partial = " ▏▎▍▌▋▊▉"[eighths % 8] if eighths < WIDTH * 8 else ""
    return f"{('█' * (eighths // 8) + partial).ljust(WIDTH)} {fraction:4.0%} · {text}"


class Terminal:
    """A line that is written over again and again."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def update(self, fraction: float | None, text: str) -> None:
        self._write("\r\x1b[2K" + bar(fraction, text))

    def close(self) -> None:
        self._write("\r\x1b[2K")

    def _write(self, text: str) -> None:
        self._stream.write(text)
        self._stream.flush()


class Cell:
    """An output of a notebook's cell, which is emptied at the end."""

    def __init__(self, display: Any) -> None:
        self._display = display
        self._handle: Any = None

    def update(self, fraction: float | None, text: str) -> None:
        value = "" if fraction is None else f' value="{fraction:.4f}"'
        said = f"<progress max=\"1\"{value}></progress> <small>{html.escape(text)}</small>"
        self._show(said, bar(fraction, text))

    def close(self) -> None:
        self._show("", "")
        self._handle = None

    def _show(self, as_html: str, as_text: str) -> None:
        content = {"text/html": as_html, "text/plain": as_text}
        if self._handle is None:
            self._handle = self._display(content, raw=True, display_id=True)
        else:
            self._handle.update(content, raw=True)


class Automatic:
    """A notebook's cell in a notebook, a line on a terminal, and nothing elsewhere. It is looked for when there is something to show."""

    def __init__(self, always: bool = False) -> None:
        self._always = always
        self._shown: Progress | None = None

    def update(self, fraction: float | None, text: str) -> None:
        if self._shown is None:
            self._shown = self._find()
        if self._shown is not None:
            self._shown.update(fraction, text)

    def close(self) -> None:
        shown, self._shown = self._shown, None
        if shown is not None:
            shown.close()

    def _find(self) -> Progress | None:
        display = _display_of_notebook()
        if display is not None:
            return Cell(display)
        # There may be none: a program without a console has no streams.
        if sys.stderr is not None and (self._always or sys.stderr.isatty()):
            return Terminal(sys.stderr)
        return None


def _display_of_notebook() -> Any:
    """IPython's `display`, where a kernel shows what it is given; IPython on a terminal is a terminal."""
    ipython = sys.modules.get("IPython")
    shell = ipython.get_ipython() if ipython is not None else None
    if shell is None or not hasattr(shell, "kernel"):
        return None
    from IPython.display import display  # type: ignore[import-not-found, unused-ignore]

    return display
