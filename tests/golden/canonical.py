"""The one rendering of answers in the golden files. `tests/src/canonical.rs` is its twin for Arrow.

A row is a line, its values separated by tabs:

    NULL                NULL
    boolean    (B)      true, false
    integer    (I)      plain; a decimal without a fraction is one too
    decimal    (N)      with all the digits of its scale
    float      (R)      %.12g of the double (a REAL is widened first); nan, inf, -inf
    date       (D)      2024-02-29
    timestamp  (P)      2024-02-29 12:34:56, with .ffffff when there is a fraction of a second
    text       (T)      as it is; backslash, tab, newline and carriage return escaped (\\\\ \\t \\n \\r), a space at
                        either end as \\s; the empty string as (empty); a text that reads NULL or (empty) as \\NULL
                        and \\(empty)

The letter in brackets stands for the type in a record's first line. Without an ORDER BY the rows are sorted by their
values' UTF-8 bytes.
"""

import datetime as dt
from decimal import Decimal

_ESCAPES = str.maketrans({"\\": "\\\\", "\t": "\\t", "\n": "\\n", "\r": "\\r"})


def letter(duckdb_type: str) -> str:
    """The letter of a DuckDB type."""
    if duckdb_type.startswith("DECIMAL"):
        return "I" if duckdb_type.endswith(",0)") else "N"
    if duckdb_type.endswith("INT") or duckdb_type.endswith("INTEGER"):
        return "I"
    return {"BOOLEAN": "B", "FLOAT": "R", "DOUBLE": "R", "DATE": "D", "TIMESTAMP": "P", "VARCHAR": "T"}.get(
        duckdb_type.removesuffix("_NS").removesuffix("_S").removesuffix("_MS"), "?"
    )


def _text(text: str) -> str:
    if text == "":
        return "(empty)"
    if text in ("NULL", "(empty)"):
        return "\\" + text
    text = text.translate(_ESCAPES)
    if text.startswith(" "):
        text = "\\s" + text[1:]
    if text.endswith(" "):
        text = text[:-1] + "\\s"
    return text


def render(value: object) -> str:
    """A value as DuckDB's Python client gives it."""
    match value:
        case None:
            return "NULL"
        case bool():
            return "true" if value else "false"
        case int():
            return str(value)
        case float():
            return f"{value:.12g}"
        case Decimal():
            return f"{value:f}"
        case dt.datetime():
            return value.isoformat(sep=" ")
        case dt.date():
            return value.isoformat()
        case str():
            return _text(value)
    raise TypeError(f"no canonical form for {type(value).__name__}: {value!r}")


def sorted_rows(rows: list[list[str]]) -> list[list[str]]:
    return sorted(rows, key=lambda row: [value.encode() for value in row])
