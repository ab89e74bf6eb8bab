"""An answer: typed columns and rows; when two engines' answers are the same; how an answer is kept in a file.

The same means:

- integers, decimals, booleans, dates, timestamps and texts are equal (a decimal's scale does not count: 1.5 = 1.50);
- where one side is a float, both are numbers no further apart than 1e-9 of the larger; where the other side is a
  decimal (one engine divides decimals into a double, the other into a decimal), no further than one of its last digit;
- rows come in the order that ORDER BY asks for; rows that it leaves equal may come in any order.

A kept answer is a CSV file: first a line of `name:kind` for each column (kinds: boolean, integer, decimal, float, date,
timestamp, text), then the rows in the order of the query. Texts are always in double quotes (doubled inside), nothing
else ever is, and NULL is that word. Floats are the shortest text that reads back the same.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from decimal import Decimal
from itertools import zip_longest

RELATIVE = 1e-9

Value = None | bool | int | float | Decimal | str
Row = tuple[Value, ...]


@dataclass
class Column:
    name: str
    kind: str


@dataclass
class Answer:
    columns: list[Column]
    rows: list[Row]


def kind_of(type_name: str) -> str:
    """The kind of an Arrow or DuckDB type, by its name."""
    name = type_name.upper()
    if name.startswith("DECIMAL"):
        return "decimal"
    if name.startswith("INTERVAL"):
        return "other"
    if name.startswith(("INT", "UINT")) or name.endswith(("INT", "INTEGER")):
        return "integer"
    if name.startswith(("FLOAT", "DOUBLE", "REAL")):
        return "float"
    if name.startswith(("UTF8", "LARGEUTF8", "VARCHAR")):
        return "text"
    for kind in ("boolean", "timestamp", "date"):
        if name.startswith(kind.upper()):
            return kind
    return "other"


def read_value(kind: str, value: Value) -> Value:
    """A value as `onehop pipe` writes it."""
    if value is None:
        return None
    match kind:
        case "float":
            return float(value)
        case "decimal":
            return Decimal(value)
        case "timestamp":
            return str(value).replace("T", " ")
    return value


def same_value(a: Value, b: Value) -> bool:
    if a is None or b is None:
        return a is None and b is None
    if isinstance(a, float) or isinstance(b, float):
        if isinstance(a, str | bool) or isinstance(b, str | bool):
            return False
        x, y = float(a), float(b)
        if x == y or (x != x and y != y):
            return True
        return abs(x - y) <= max(RELATIVE * max(abs(x), abs(y)), _last_digit(a), _last_digit(b))
    return isinstance(a, str) == isinstance(b, str) and isinstance(a, bool) == isinstance(b, bool) and a == b


def _last_digit(value: Value) -> float:
    return float(Decimal(1).scaleb(int(value.as_tuple().exponent))) if isinstance(value, Decimal) else 0.0


def same_row(a: Row, b: Row) -> bool:
    return len(a) == len(b) and all(map(same_value, a, b))


def order_keys(sql: str, columns: list[Column]) -> list[int]:
    """The columns that the outermost ORDER BY names; empty without one."""
    depth, start = 0, None
    for token in re.finditer(r"'(?:[^']|'')*'|[()]|\border\s+by\b", sql, re.IGNORECASE):
        text = token.group()
        depth += {"(": 1, ")": -1}.get(text, 0)
        if depth == 0 and text[0] in "oO":
            start = token.end()
    if start is None:
        return []
    clause = re.split(r"\b(?:limit|offset)\b", sql[start:], flags=re.IGNORECASE)[0]
    names = [column.name for column in columns]
    keys = []
    for part in clause.split(","):
        name = re.sub(r"\s+(asc|desc|nulls\s+(first|last))\b", "", part.strip(), flags=re.IGNORECASE).strip().strip('"')
        if name not in names:
            raise ValueError(f"ORDER BY {name}: not a column of the answer ({', '.join(names)})")
        keys.append(names.index(name))
    return keys


def difference(ours: Answer, theirs: Answer, keys: list[int]) -> str | None:
    """What tells two answers apart; None where they are the same. `keys` are the columns of ORDER BY."""
    if len(ours.columns) != len(theirs.columns):
        return f"{len(ours.columns)} columns instead of {len(theirs.columns)}"
    if len(ours.rows) != len(theirs.rows):
        return f"{len(ours.rows)} rows instead of {len(theirs.rows)}"
    for start, end in _ties(theirs.rows, keys):
        rest = list(theirs.rows[start:end])
        for at in range(start, end):
            match = next((i for i, row in enumerate(rest) if same_row(ours.rows[at], row)), None)
            if match is None:
                return f"row {at + 1} is {_shown(ours.rows[at])}, expected {_shown(rest[0])}"
            rest.pop(match)
    return None


def _ties(rows: list[Row], keys: list[int]) -> Iterator[tuple[int, int]]:
    """Runs of rows that the order leaves equal."""
    start = 0
    for at in range(1, len(rows) + 1):
        if at == len(rows) or not all(same_value(rows[at][key], rows[start][key]) for key in keys):
            yield start, at
            start = at


def _shown(row: Row) -> str:
    return "(" + ", ".join("NULL" if value is None else str(value) for value in row) + ")"


def _written(kind: str, value: Value) -> str:
    match value:
        case None:
            return "NULL"
        case bool():
            return "true" if value else "false"
        case float():
            return repr(value)
        case Decimal():
            return f"{value:f}"
        case _ if kind == "text":
            return '"' + str(value).replace('"', '""') + '"'
    return str(value)


def to_csv(answer: Answer) -> str:
    lines = [",".join(f"{column.name}:{column.kind}" for column in answer.columns)]
    kinds = [column.kind for column in answer.columns]
    lines += [",".join(map(_written, kinds, row)) for row in answer.rows]
    return "\n".join(lines) + "\n"


def from_csv(text: str) -> Answer:
    header, *lines = _records(text)
    columns = [Column(*field.rsplit(":", 1)) for field in header]
    rows = []
    for fields in lines:
        if len(fields) != len(columns):
            raise ValueError(f"{len(fields)} fields in a row, {len(columns)} in the header")
        rows.append(tuple(_read(column.kind, field) for column, field in zip_longest(columns, fields)))
    return Answer(columns, rows)


def _records(text: str) -> Iterator[list[str]]:
    """Fields as they are written, quotes included: Python's reader would not tell NULL from a text of that word."""
    field = r'"(?:[^"]|"")*"|[^",\n]*'
    at = 0
    while at < len(text):
        fields = []
        while True:
            found = re.compile(field).match(text, at)
            fields.append(found.group() if found else "")
            at += len(fields[-1])
            separator = text[at : at + 1]
            at += 1
            if separator != ",":
                break
        yield fields


def _read(kind: str, field: str) -> Value:
    if field == "NULL":
        return None
    match kind:
        case "text":
            return field[1:-1].replace('""', '"')
        case "boolean":
            return field == "true"
        case "integer":
            return int(field)
        case "decimal":
            return Decimal(field)
        case "float":
            return float(field)
    return field
