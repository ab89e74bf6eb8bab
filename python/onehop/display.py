"""Rows as people read them: in a box, or as a table of HTML."""

from __future__ import annotations

import html as escape
import unicodedata
from collections.abc import Iterable, Sequence

MOST_WIDTH = 60
"""Columns of a terminal that a value may take."""

Cells = Sequence[Sequence[str | None]]


def box(columns: Sequence[str], types: Sequence[str], rows: Cells, is_all: bool) -> str:
    """A box of text; numbers stand to the right."""
    if not columns:
        return _count(len(rows), is_all)
    right = [_is_number(type_) for type_ in types]
    head = [[_cell(name) for name in columns], [_cell(type_.lower()) for type_ in types]]
    body = [[_cell("NULL" if value is None else value) for value in row] for row in rows]
    widths = [max(_width(line[at]) for line in [*head, *body]) for at in range(len(columns))]

    def rule(left: str, middle: str, end: str) -> str:
        return left + middle.join("─" * (width + 2) for width in widths) + end

    def line(cells: Iterable[str]) -> str:
        padded = (_padded(cell, width, side) for cell, width, side in zip(cells, widths, right))
        return "│ " + " │ ".join(padded) + " │"

    lines = [rule("┌", "┬", "┐"), *map(line, head), rule("├", "┼", "┤"), *map(line, body), rule("└", "┴", "┘")]
    return "\n".join([*lines, _count(len(rows), is_all)])


def html(columns: Sequence[str], types: Sequence[str], rows: Cells, is_all: bool) -> str:
    """A table of HTML, in which whatever the values say is text."""
    head = "".join(
        f"<th>{escape.escape(name)}<br><small>{escape.escape(type_.lower())}</small></th>"
        for name, type_ in zip(columns, types)
    )
    body = "".join(
        "<tr>" + "".join(f"<td>{'<em>NULL</em>' if v is None else escape.escape(v)}</td>" for v in row) + "</tr>"
        for row in rows
    )
    count = _count(len(rows), is_all)
    return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table><p><small>{count}</small></p>"


def _count(rows: int, is_all: bool) -> str:
    if not is_all:
        return f"the first {rows} row{'' if rows == 1 else 's'}"
    return f"{rows} row{'' if rows == 1 else 's'}"


def _is_number(type_: str) -> bool:
    return type_.startswith(("TINYINT", "SMALLINT", "INTEGER", "BIGINT", "REAL", "DOUBLE", "DECIMAL"))


def _cell(text: str) -> str:
    """On one line, and not too long. What would move the cursor is shown as what it is."""
    shown = "".join(char if char.isprintable() else repr(char)[1:-1] for char in text[: MOST_WIDTH + 1])
    if _width(shown) <= MOST_WIDTH and len(text) <= MOST_WIDTH:
        return shown
    while _width(shown) > MOST_WIDTH - 1:
        shown = shown[:-1]
    return shown + "…"


def _width(text: str) -> int:
    """Columns of a terminal that a text takes."""
    if text.isascii():
        return len(text)
    wide = sum(unicodedata.east_asian_width(char) in "WF" for char in text)
    return len(text) + wide - sum(unicodedata.combining(char) != 0 for char in text)


def _padded(text: str, width: int, is_right: bool) -> str:
    room = " " * (width - _width(text))
    return room + text if is_right else text + room
