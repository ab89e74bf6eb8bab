"""What people see."""

from __future__ import annotations

import re

import onehop


def test_a_box(con: onehop.Connection) -> None:
    text = repr(con.sql("SELECT 1 AS n, 'a' AS s UNION ALL SELECT NULL, '漢字' ORDER BY n NULLS LAST"))
    lines = text.splitlines()
    assert lines[0].startswith("┌") and lines[-1] == "2 rows" and "NULL" in text and "bigint" in text
    assert lines[4] == "│      1 │ a       │" and "漢字" in lines[5]


def test_nothing_moves_the_cursor(con: onehop.Connection) -> None:
    text = repr(con.sql('SELECT $1 AS "a\nb"', ["x\n\x1b[31m\u202e" + "y" * 500]))
    assert "\x1b" not in text and "\u202e" not in text and "…" in text
    assert len({len(line) for line in text.splitlines()[:-1]}) == 1


def test_html_is_escaped(con: onehop.Connection) -> None:
    html = con.sql('SELECT $1 AS "<img src=x>", NULL AS n', ["<script>alert('&')</script>"])._repr_html_()
    assert html is not None
    tags = set(re.findall(r"</?(\w+)", html))
    assert tags <= {"table", "thead", "tbody", "tr", "th", "td", "br", "small", "em", "p"}
    assert "&lt;script&gt;" in html and "&lt;img src=x&gt;" in html and "<em>NULL</em>" in html


def test_statements_without_rows_have_no_table(con: onehop.Connection) -> None:
    made = con.sql("CREATE TABLE t (n BIGINT)")
    assert made._repr_html_() is None and repr(made) == "CREATE TABLE"


def test_wide_and_empty(con: onehop.Connection) -> None:
    assert repr(con.sql("SELECT 1 AS n WHERE false")).endswith("0 rows")
    many = ", ".join(f"{n} AS c{n}" for n in range(200))
    assert "c199" in repr(con.sql(f"SELECT {many}"))
