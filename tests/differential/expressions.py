"""Random queries about values, names and guards against PostgreSQL, which is started on a socket in a temporary folder.

    bench/peers/setup.sh
    bench/peers/.venv/bin/python tests/differential/expressions.py [--seed 1] [--queries 400] [--onehop target/release/onehop]
        [--only I] [--canary]

`run.py` has what DuckDB and we mean alike; here are the kinds in which engines are often wrong: decimals of mixed scales that are
rounded, cut and compared, sums beyond 38 digits and beyond BIGINT, averages, moving frames of very different doubles, CASE and
coalesce that guard what fails, ORDER BY of names that hide others, columns that are called as tables, zeros and NaN, positions in
ROLLUP, years, patterns and replacements, joins with NULL, set operations that count, values that are random, and syntax that
both must refuse.

An error is right where PostgreSQL has one, too. It is also right where PostgreSQL's NUMERIC has more digits than a DECIMAL, which
only forms of `wide` reach. Averages of decimals are compared in the digits that both have. What both refuse, and what the engine refuses by name, compares
nothing: a share of more than MOST_REFUSED fails the run.
"""

import random
import re
import sys
from collections.abc import Callable
from decimal import ROUND_HALF_UP, Decimal
from pathlib import Path

import psycopg

sys.path.insert(0, str(Path(__file__).parents[2] / "bench" / "peers"))

import command_line  # noqa: E402
from answer import Answer, Column, Row  # noqa: E402
from engine import EngineError, Onehop  # noqa: E402
from oracle import postgresql  # noqa: E402
from run import compare, shown, spoiled  # noqa: E402

MODES = ["datafusion", "fused"]
COMPARISONS = ["=", "<>", "<", "<=", ">", ">="]
MOST_REFUSED = 0.2
FRACTION = re.compile(r"(\d\d:\d\d:\d\d\.\d*[1-9])0+$")
NINES = "9" * 38

COLUMNS = {
    "id": "INT", "k": "INT", "i": "INT", "b": "BIGINT", "d": "DECIMAL(8,4)", "e": "DECIMAL(8,2)", "f": "DECIMAL(20,10)",
    "g": "DECIMAL(38,0)", "x": "DOUBLE PRECISION", "z": "DOUBLE PRECISION", "s": "TEXT", "p": "BOOLEAN", "t": "TIMESTAMP",
    "h": "TIMESTAMP(9)", "c": "DATE",
}  # fmt: skip
VALUES: dict[str, list[str]] = {
    "k": ["1", "2", "3", "NULL"],
    "i": ["0", "0", "1", "2", "4", "7", "-3", "NULL"],
    "b": ["9223372036854775807", "-9223372036854775808", "1", "-1", "0", "3000000000", "NULL"],
    "d": ["1.2345", "1.2399", "-0.5", "0.5", "0.05", "1.2350", "-1.2350", "2.5", "99.99", "9999.9999", "NULL"],
    "e": ["1.23", "1.24", "1.2", "-0.50", "0.5", "0", "2.50", "99.99", "10000", "NULL"],
    "f": ["1000000000", "900000000.5", "0.0000000001", "1.5", "-1000000000", "1.2345", "NULL"],
    "g": [NINES, f"-{NINES}", "1", "5", "4" + "0" * 37, "NULL"],
    "x": ["1", "2", "3", "0.25", "1e20", "1e-5", "7.5e10", "NULL"],
    "z": ["0.0", "'-0.0'", "1.5", "-1.5", "'NaN'", "'Infinity'", "NULL"],
    "s": ["'1'", "'3'", "'12'", "'x'", "''", "'5 EUR'", "'a_c'", "'abc'", "'a%c'", "'a\\c'", "NULL"],
    "p": ["TRUE", "FALSE", "NULL"],
    "t": ["'9999-12-31 23:59:59'", "'2024-02-29 10:00:00'", "'0001-01-01 00:00:00'", "'2024-01-02 12:00:00.5'", "NULL"],
    "h": ["'2020-06-01 12:00:00'", "'1995-06-01 00:00:00'", "'2024-02-29 23:59:59.5'", "NULL"],
    "c": ["'9999-12-31'", "'2024-02-29'", "'0001-01-01'", "'2024-01-31'", "NULL"],
}
TABLES = ["n", "m"]

# What PostgreSQL refuses, and no engine may answer as if the words were not there.
MEANINGLESS = [
    "SELECT k, sum(i) FROM n GROUP BY k WITH ROLLUP", "SELECT k, sum(i) FROM n GROUP BY k WITH CUBE",
    "SELECT k, sum(i) FROM n GROUP BY k WITH TOTALS", "SELECT i FROM n PREWHERE i > 1",
    "SELECT id FROM n CONNECT BY id = 1", "SELECT id FROM (SELECT id FROM n) AS q TABLESAMPLE BERNOULLI (50)",
    "SELECT s FROM n ORDER BY s COLLATE nocase", "SELECT abs(i) FILTER (WHERE i > 0) FROM n",
    "SELECT count(*) OVER (ORDER BY c RANGE BETWEEN INTERVAL '-1 day' PRECEDING AND CURRENT ROW) FROM n",
    "SELECT sum(i) OVER (ORDER BY id ROWS -1 PRECEDING) FROM n", "SELECT i FROM n LIMIT 1 BY k", "DELETE n",
    "SELECT abs(DISTINCT i) FROM n", "SELECT count(*) OVER (ORDER BY id RANGE -1 PRECEDING) FROM n",
    "SELECT 1st FROM n", "SELECT CAST(id AS DATE) FROM n", "SELECT id FROM n WHERE 'abc' BETWEEN 20 AND TRUE",
]  # fmt: skip

Form = tuple[str, str]


class Query:
    """A statement, and how its rows are compared: `rows`, `ordered`, `wide` or `averages`."""

    def __init__(self, rng: random.Random) -> None:
        self.rng = rng
        self.forms: list[Callable[[], Form]] = [
            self.rounded, self.rounded, self.rounded, self.rounded_keys, self.narrowed, self.narrowed, self.narrowed, self.wide, self.wide, self.averages,
            self.frames, self.frames, self.named_windows, self.order_names, self.order_names, self.order_names, self.guards,
            self.guards, self.guards, self.group_positions, self.column_names, self.equal_values, self.equal_values, self.years,
            self.replacements, self.patterns, self.null_joins, self.using, self.set_operations, self.chance_values, self.rows_of,
            self.lists, self.listed, self.moments, self.moments, self.meaningless, self.distinct, self.distinct, self.mixed, self.regressions, self.nested_with,
            self.window_keys, self.outer, self.mixed, self.grouping_sets, self.computed_sets, self.one_type, self.one_type, self.offsets,
            self.multiplied, self.multiplied, self.never_true, self.limited, self.limited, self.settled, self.settled,
        ]  # fmt: skip

    def pick(self, *items: str) -> str:
        return self.rng.choice(items)

    def made(self) -> Form:
        return self.rng.choice(self.forms)()

    def comparison(self) -> str:
        return self.rng.choice(COMPARISONS)

    def constant(self) -> str:
        return self.pick("1.2", "1.24", "1.23", "1.235", "0.5", "-0.5", "1", "0", "100", "2.5", "1.2400")

    def lossy(self, of: str = "") -> str:
        """A decimal with fewer digits than it had."""
        column = of + self.pick("d", "d", "d", "e", "f")
        scale = self.rng.randint(0, 3)
        return self.pick(
            f"round({column}, {scale})", f"round({column})", f"trunc({column}, {scale})", f"floor({column})", f"ceil({column})",
            f"CAST({column} AS DECIMAL(20,{scale}))", f"CAST({column} AS INT)" if column[-1] != "f" else f"CAST({column} AS BIGINT)",
            f"round({column} * {self.pick('2', '0.5', '1.1')}, {scale})", f"round({column}, -1)",
        )  # fmt: skip

    def rounded(self) -> Form:
        lossy = self.lossy()
        return self.pick(
            f"SELECT id FROM n WHERE {lossy} {self.comparison()} {self.constant()}",
            f"SELECT id, {lossy} {self.comparison()} {self.pick('d', 'e', 'f', 'i', self.lossy())} FROM n",
            f"SELECT id, {lossy} FROM n",
            f"SELECT id FROM n WHERE {lossy} {self.pick('', 'NOT ')}IN ({self.constant()}, {self.constant()}, {self.pick('1.3', 'e', 'NULL')})",
            f"SELECT id FROM n WHERE {lossy} BETWEEN {self.constant()} AND {self.pick('2', '1.24', '100.5')}",
            f"SELECT id, coalesce({lossy}, {self.pick('e', 'd', '0.25')}), nullif({lossy}, {self.constant()}) FROM n",
            f"SELECT id, CASE WHEN {lossy} > {self.constant()} THEN {lossy} ELSE {self.pick('d', 'e', '0')} END FROM n",
            f"SELECT k, count(*) FILTER (WHERE {lossy} = {self.constant()}) FROM n GROUP BY k",
        ), "rows"

    def rounded_keys(self) -> Form:
        key, of_a, of_b = self.lossy(), self.lossy("a."), self.lossy("b.")
        return self.pick(
            f"SELECT a.id, b.id FROM n AS a JOIN m AS b ON {of_a} = {self.pick('b.e', 'b.d', of_b)}",
            f"SELECT id FROM n WHERE {key} {self.pick('', 'NOT ')}IN (SELECT {self.pick('e', 'd')} FROM m WHERE e IS NOT NULL AND d IS NOT NULL)",
            f"SELECT {key}, count(*) FROM n GROUP BY {key}",
            f"SELECT k, sum(d) FROM n GROUP BY k HAVING round(sum(d), {self.rng.randint(0, 3)}) {self.comparison()} {self.constant()}",
            f"SELECT id, row_number() OVER (PARTITION BY {key} ORDER BY id) FROM n",
            f"SELECT id FROM n ORDER BY {key} NULLS FIRST, id LIMIT 3",
            f"SELECT {key} FROM n UNION SELECT {self.pick('e', 'd', key)} FROM m",
        ), "rows"

    def narrowed(self) -> Form:
        cast, constants, guard = self.rng.choice([
            ("CAST(d AS DECIMAL(8,2))", ["1.23", "1.24", "-0.5", "0.05", "100"], ""),
            ("CAST(d AS DECIMAL(8,1))", ["1.2", "-1.2", "0.5", "0.1"], ""),
            ("CAST(d AS INT)", ["1", "-1", "0", "2", "3"], ""),
            ("CAST(e AS INT)", ["1", "-1", "0", "2", "3"], ""),
            ("CAST(f AS BIGINT)", ["1", "2", "900000001", "0"], ""),
            ("CAST(x AS BIGINT)", ["0", "1", "3"], "x < 1e9"),
            ("CAST(z AS INT)", ["0", "2", "-2"], "abs(z) < 9"),
            ("CAST(t AS DATE)", ["DATE '2024-02-29'", "DATE '9999-12-31'"], ""),
        ])  # fmt: skip
        first, second = self.rng.choice(constants), self.rng.choice(constants)
        compared = self.pick(f"{cast} {self.comparison()} {first}", f"{cast} {self.comparison()} {first}",
                             f"{cast} {self.pick('', 'NOT ')}IN ({first}, {second})", f"{cast} BETWEEN {first} AND {second}")  # fmt: skip
        form = f"CASE WHEN {guard} THEN {compared} END" if guard else compared
        return self.pick(f"SELECT id, {form} FROM n", f"SELECT id FROM n WHERE {form}", f"SELECT id FROM n WHERE {form}"), "rows"

    def wide(self) -> Form:
        a, b = self.pick("g", "f", "b", "i", "d"), self.pick("g", "f", "b", "f", "10")
        operation = f"{a} {self.pick('+', '-', '*')} {b}"
        sized = self.pick("b + b", "b * 2", "b - 1", "-b", "b + i", "b * b", "i * 2000000000", "abs(b)")
        return self.pick(
            f"SELECT sum({self.pick('g', 'f', 'b', 'f * f', 'f * 1000000000')}) FROM n WHERE id <= {self.rng.randint(1, 9)}",
            f"SELECT {operation} FROM n WHERE id = {self.rng.randint(1, 6)}",
            f"SELECT {sized} FROM n WHERE id = {self.rng.randint(1, 6)}",
            f"SELECT sum({operation}) FROM n WHERE id <= {self.rng.randint(1, 6)}",
            f"SELECT id, sum({self.pick('g', 'b')}) OVER (ORDER BY id ROWS 1 PRECEDING) FROM n WHERE id < 4",
            f"SELECT k, sum({self.pick('g', 'b', 'f * f')}) FROM n GROUP BY k",
        ), "wide"

    def averages(self) -> Form:
        of = self.pick("d", "e", "f", "round(d, 2)", "CAST(e AS DECIMAL(5,1))", "CASE WHEN p THEN d END", "CAST(k AS DECIMAL(5,1))")
        of = "CAST(CASE WHEN abs(e) < 1000 THEN e END AS DECIMAL(5,1))" if of.endswith("DECIMAL(5,1))") and "e" in of[:7] else of
        return self.pick(
            f"SELECT avg({of}) FROM n",
            f"SELECT k, avg({of}) FROM n GROUP BY k",
            f"SELECT id, avg({of}) OVER (ORDER BY id ROWS BETWEEN 2 PRECEDING AND CURRENT ROW) FROM n",
            f"SELECT k, avg({of}) FROM n GROUP BY ROLLUP (k)",
            f"SELECT k, avg({of}) FILTER (WHERE i > 0) FROM n GROUP BY k",
            "SELECT avg(g) FROM n WHERE id = 1",
        ), "averages"

    def frame(self) -> str:
        return self.pick("ROWS BETWEEN 1 PRECEDING AND CURRENT ROW", "ROWS BETWEEN CURRENT ROW AND 2 FOLLOWING",
                         "ROWS BETWEEN 1 PRECEDING AND 1 FOLLOWING", "ROWS BETWEEN 3 PRECEDING AND 1 PRECEDING",
                         "RANGE BETWEEN 1 PRECEDING AND CURRENT ROW", "GROUPS 1 PRECEDING", "ROWS UNBOUNDED PRECEDING")  # fmt: skip

    def frames(self) -> Form:
        call = self.pick("sum(x)", "avg(x)", "sum(x)", "avg(x)", "min(z)", "max(z)", "count(x)", "bool_and(p)", "bool_or(p)", "string_agg(s, ',')",
                         "sum(d)", "max(s)", "bit_or(i)", "array_agg(id)", "var_pop(CAST(i AS DOUBLE PRECISION))",
                         "lead(x, 2)", "lag(s)", "first_value(d)", "nth_value(e, 2)", "last_value(i)")  # fmt: skip
        call = f"array_to_string({call} OVER w, ',')" if call.startswith("array") else f"{call} OVER w"
        window = f"WINDOW w AS ({self.pick('', 'PARTITION BY k ', 'PARTITION BY i % 2 ')}ORDER BY id {self.frame()})"
        limit = self.pick("", "", " ORDER BY id LIMIT 3")
        return f"SELECT id, {call} FROM n {window}{limit}", "rows"

    def named_windows(self) -> Form:
        call = self.pick("sum(i)", "count(*)", "max(d)", "row_number()", "min(s)")
        over = self.pick("(w)", "(w ORDER BY id)", "(w ORDER BY id ROWS 1 PRECEDING)", "(v ROWS 1 PRECEDING)", "v", "(u)")
        frame = "ORDER BY id" if over in ("(w)", "(u)") and call == "row_number()" else ""
        over = "(w ORDER BY id)" if frame else over
        windows = "WINDOW w AS (PARTITION BY k), v AS (w ORDER BY id), u AS (w)"
        return f"SELECT id, {call} OVER {over} FROM n {windows}", "rows"

    def order_names(self) -> Form:
        direction = self.pick("", " DESC")
        return self.pick(
            f"SELECT -id AS id, i FROM n ORDER BY id + 0{direction} LIMIT 3",
            f"SELECT 100 - i AS i, id FROM n ORDER BY CASE WHEN i > 1 THEN 0 ELSE 1 END, n.id LIMIT 3",
            f"SELECT k, sum(i) AS i FROM n GROUP BY k ORDER BY sum(i){direction} NULLS LAST, k NULLS FIRST LIMIT 2",
            f"SELECT k, max(i) AS i FROM n GROUP BY k ORDER BY count(i){direction}, min(i) NULLS FIRST, k NULLS LAST LIMIT 2",
            f"SELECT CAST(i AS TEXT) AS i, id FROM n ORDER BY n.i{direction} NULLS LAST, n.id LIMIT 4",
            f"SELECT -id AS id, k AS i FROM n ORDER BY id{direction} LIMIT 3",
            f"SELECT -id AS id, i FROM n ORDER BY abs(id){direction}, i LIMIT 3",
            f"SELECT id AS k, k AS id FROM n ORDER BY -id{direction} NULLS LAST, n.id LIMIT 3",
            f"SELECT -id AS id FROM n ORDER BY (SELECT count(*) FROM m WHERE m.id <= n.id){direction}, 1 LIMIT 3",
            f"SELECT -id AS id, row_number() OVER (ORDER BY id) AS r FROM n ORDER BY r{direction}, id + 0 LIMIT 3",
            f"SELECT id, x AS d FROM n ORDER BY -d NULLS LAST, id LIMIT 3",
        ), "ordered"

    def guard(self) -> str:
        """A condition that fails where its guard does not hold."""
        number = self.rng.randint(0, 3)
        return self.pick(
            f"CASE WHEN i = 0 THEN {self.pick('FALSE', 'TRUE', 'NULL')} ELSE 8 / i {self.comparison()} {number} END",
            f"CASE WHEN i <> 0 THEN 1 / i = {number} END",
            f"CASE WHEN n.i <> 0 THEN (SELECT 8 / n.i) {self.comparison()} {number} END",
            f"CASE WHEN i <> 0 THEN 8 % i > {number} ELSE p END",
            f"CASE WHEN s ~ '^[0-9]+$' THEN CAST(s AS INT) > {number} END",
            f"CASE WHEN s ~ '^[0-9]+$' THEN CAST(s AS INT) IN (1, {number}) ELSE FALSE END",
            f"coalesce(s !~ '^[0-9]+$' OR NULL, CAST(s AS INT) = {number})",
            f"coalesce(i = 0 OR NULL, 7 / i > {number})",
            f"CASE WHEN i = 0 THEN NULL WHEN 7 / i > {number} THEN p ELSE TRUE END",
            f"CASE i WHEN 0 THEN FALSE ELSE 6 / i = {number} END",
            f"CASE WHEN d > 0 THEN ln(d) > {number} ELSE p END",
        )

    def joined_guard(self) -> str:
        """A condition of a join without an equality, which fails where its guard does not hold."""
        compared = f"8 / n.i {self.comparison()} q.i"
        return self.pick(
            f"CASE WHEN n.i = 0 THEN {self.pick('FALSE', 'TRUE', 'NULL')} ELSE {compared} END",
            f"CASE WHEN n.i <> 0 THEN {compared} END",
            f"(n.i = 0 OR {compared})",
            f"(n.i <> 0 AND {compared})",
            f"coalesce(n.i = 0 OR NULL, {compared})",
            f"CASE WHEN n.s ~ '^[0-9]+$' THEN CAST(n.s AS INT) > q.i ELSE FALSE END",
        )

    def guards(self) -> Form:
        guard = self.guard()
        return self.pick(
            f"SELECT id FROM n WHERE {guard}",
            f"SELECT id, {guard} FROM n",
            f"SELECT count(*) FILTER (WHERE {guard}) FROM n",
            f"SELECT {guard} AS q, count(*) FROM n GROUP BY 1",
            f"SELECT id FROM n WHERE {self.pick('NOT', 'p AND', 'p OR')} ({guard})",
            f"SELECT id FROM n ORDER BY {guard} NULLS LAST, id LIMIT 4",
            f"SELECT id, count(*) OVER (PARTITION BY {guard}) FROM n",
            f"SELECT n.id, q.id FROM n JOIN (SELECT id AS id FROM m) AS q ON n.id = q.id AND {guard}",
            f"SELECT n.id, q.i FROM n {self.pick('', 'LEFT ')}JOIN (SELECT DISTINCT i AS i FROM m) AS q ON {self.joined_guard()}",
            f"SELECT id FROM n WHERE {self.pick('', 'NOT ')}EXISTS (SELECT 1 FROM (SELECT i AS i FROM m) AS q WHERE {self.joined_guard()})",
            f"SELECT id FROM n WHERE ({guard}) IS NOT TRUE",
            f"SELECT sum(CASE WHEN {guard} THEN 1 ELSE 0 END) FROM n",
            f"SELECT id FROM n WHERE id IN (SELECT id FROM m WHERE {guard})",
            f"SELECT k FROM n GROUP BY k HAVING CASE WHEN min(i) <> 0 THEN 4 / min(i) > 1 ELSE FALSE END",
        ), "rows"

    def group_positions(self) -> Form:
        sets = self.pick("ROLLUP (1)", "CUBE (1, 2)", "ROLLUP (1, 2)", "GROUPING SETS ((1), (2), ())", "1, ROLLUP (2)", "(1, 2)", "ROLLUP (1, k)",
                         "GROUPING SETS ((1, 2), (1))", "k, p, k", "ROLLUP ((1, 2))")  # fmt: skip
        return f"SELECT k, p, sum(i), count(*) FROM n{self.pick('', ' WHERE k = 2', ' WHERE k = id')} GROUP BY {sets}", "rows"

    def grouping_sets(self) -> Form:
        key = self.pick("k", "i", "p")
        sets = self.pick(f"ROLLUP ({key})", f"CUBE ({key}, p)", f"GROUPING SETS (({key}), ())")
        subquery = f"SELECT {self.pick('1', 'count(*)', f'm.{key}')} FROM m WHERE m.k = n.k GROUP BY {sets.replace(key, f'm.{key}').replace(', p', ', m.p')}"
        return self.pick(
            f"SELECT id FROM n WHERE {self.pick('', 'NOT ')}EXISTS ({subquery})",
            f"SELECT id FROM n WHERE id {self.pick('', 'NOT ')}IN (SELECT count(*) FROM m WHERE m.k = n.k GROUP BY ROLLUP (m.i))",
            f"SELECT id FROM n WHERE k {self.pick('', 'NOT ')}IN (SELECT m.k FROM m WHERE m.id <= n.id GROUP BY ROLLUP (m.k))",
            f"SELECT id, EXISTS ({subquery}) FROM n",
        ), "rows"

    def computed_sets(self) -> Form:
        key = self.pick("CAST(c + 3 AS VARCHAR)", "round(d, 1)", "i / 2.0", "CAST(e AS INT)", "d IN (1, 1.2345)", "c >= '2024-02-29'", "x * 2",
                        "coalesce(c, DATE '2020-01-01')", "CASE WHEN c > DATE '2024-01-01' THEN 'late' ELSE 'early' END", "i + 1")  # fmt: skip
        sets = self.pick(f"ROLLUP ({key})", f"CUBE (k, {key})", f"GROUPING SETS (({key}), (k), ())", f"k, ROLLUP ({key})")
        first = "k, " if "k" in sets.replace(key, "") else ""
        return self.pick(
            f"SELECT {first}{key}, count(*), sum(i) FROM n GROUP BY {sets}",
            f"SELECT {first}{key} AS q, grouping({key}) FROM n GROUP BY {sets} HAVING count(*) > 1",
            f"SELECT count(*) FROM (SELECT {first}{key} AS q FROM n GROUP BY {sets}) AS g WHERE q IS NULL",
        ), "rows"

    def one_type(self) -> Form:
        """Dates beside timestamps, where they become values of one type."""
        value = self.pick("coalesce(c, t)", "coalesce(t, c)", "greatest(c, t)", "least(t, c)", "CASE WHEN p THEN c ELSE t END",
                          "CASE WHEN i > 1 THEN t WHEN p THEN c END", "coalesce(nullif(c, t), t)")  # fmt: skip
        constant = self.pick("TIMESTAMP '2024-02-29 10:00:00'", "DATE '9999-12-31'", "TIMESTAMP '0001-01-01'", "c", "t")
        return self.pick(
            f"SELECT id, {value} FROM n",
            f"SELECT id FROM n WHERE {value} {self.comparison()} {constant}",
            f"SELECT {value}, count(*) FROM n GROUP BY {value}",
            f"SELECT k, max({value}) FROM n GROUP BY k",
            f"SELECT a.id, m.id FROM (SELECT id AS id, {value} AS v FROM n) AS a JOIN m ON a.v = m.{self.pick('c', 't')}",
            f"SELECT c AS v FROM n {self.pick('UNION', 'UNION ALL', 'INTERSECT', 'EXCEPT', 'INTERSECT ALL', 'EXCEPT ALL')} SELECT t FROM m",
            f"SELECT id FROM n WHERE {self.pick('c', 't')} IN (SELECT c FROM m UNION ALL SELECT t FROM m)",
            f"SELECT id FROM n WHERE {value} {self.comparison()} {self.pick('ANY', 'ALL')} (SELECT c FROM m)",
        ), "rows"

    def offsets(self) -> Form:
        """RANGE offsets that have more digits than the key, or end past its type."""
        offsets = [self.pick("0.005", "1.245", "0.5", "0.01", "1.23999", "100.125") for _ in range(2)]
        if self.rng.random() < 0.3:
            far = self.pick("3000000000", "2147483647", "9223372036854775807", "1")
            frame = self.pick(f"BETWEEN CURRENT ROW AND {far} FOLLOWING", f"{far} PRECEDING", f"BETWEEN 1 FOLLOWING AND {far} FOLLOWING")
            key = self.pick("i", "k", "b", "b", "id") + self.pick("", " DESC", " NULLS FIRST", " DESC NULLS LAST")
            return f"SELECT id, count(*) OVER (ORDER BY {key} RANGE {frame}) FROM n", "rows"
        frame = self.pick(
            f"BETWEEN {offsets[0]} PRECEDING AND CURRENT ROW", f"BETWEEN CURRENT ROW AND {offsets[0]} FOLLOWING",
            f"BETWEEN {offsets[0]} PRECEDING AND {offsets[1]} FOLLOWING", f"{offsets[0]} PRECEDING",
        )  # fmt: skip
        key = self.pick("e", "d", "round(d, 1)", "CAST(e AS DECIMAL(8,1))") + self.pick("", " DESC", " NULLS FIRST")
        return f"SELECT id, {self.pick('count(*)', 'sum(e)', 'min(id)')} OVER ({self.pick('', 'PARTITION BY k ')}ORDER BY {key} RANGE {frame}) FROM n", "rows"

    def column_names(self) -> Form:
        return self.pick(
            "SELECT n.id FROM n WHERE EXISTS (SELECT 1 FROM w WHERE w.id = n.id)",
            "SELECT n.id, (SELECT max(w.n) FROM w WHERE w.id = n.id) FROM n",
            "SELECT n.id FROM n WHERE n.k IN (SELECT w.n FROM w WHERE w.id >= n.id)",
            "SELECT m.id FROM m WHERE EXISTS (SELECT 1 FROM w JOIN n ON n.id = w.id WHERE n.id = m.id)",
            "SELECT w.n, n.id FROM w JOIN n ON w.id = n.id",
            "SELECT n, id FROM w WHERE EXISTS (SELECT 1 FROM m WHERE m.id = w.id AND n > 1)",
            "SELECT k > 1 AND id IN (SELECT 1) AS q, count(*) FROM n GROUP BY k > 1 AND id IN (SELECT 1)",
        ), "rows"

    def equal_values(self) -> Form:
        return self.pick(
            "SELECT id, nullif(z, 0.0), nullif(-z, z) FROM n",
            "SELECT nullif(CAST(0.0 AS DOUBLE PRECISION), CAST('-0.0' AS DOUBLE PRECISION)) IS NULL",
            "SELECT count(*) FROM (SELECT DISTINCT z FROM n) AS q",
            "SELECT count(*), z = 0 FROM n GROUP BY z",
            f"SELECT a.id, b.id FROM n AS a JOIN m AS b ON a.z = {self.pick('b.z', '-b.z')}",
            f"SELECT id FROM n WHERE z {self.comparison()} {self.pick('0', '-z', 'CAST(0 AS DOUBLE PRECISION)')}",
            "SELECT id FROM n WHERE z IN (SELECT -z FROM m)",
            "SELECT id, rank() OVER (ORDER BY z), count(*) OVER (PARTITION BY z) FROM n",
            "SELECT k, min(z), max(z) FROM n GROUP BY k",
            "SELECT id FROM n WHERE z = CAST('NaN' AS DOUBLE PRECISION) OR -z = CAST('NaN' AS DOUBLE PRECISION)",
            "SELECT id, CASE z WHEN 0 THEN 'zero' WHEN 1.5 THEN 'more' END FROM n",
            "SELECT z + 0 FROM n UNION SELECT -z + 0 FROM m",
        ), "rows"

    def years(self) -> Form:
        year = self.pick("9999", "1000", "2020", "1995", "2300", "1600")
        return self.pick(
            f"SELECT id FROM n WHERE extract(year FROM {self.pick('h', 't', 'c')}) {self.comparison()} {year}",
            f"SELECT id, extract(year FROM h) {self.comparison()} {year} FROM n",
            f"SELECT id FROM n WHERE h {self.comparison()} DATE '{self.pick('3000-01-01', '1500-01-01', '2020-06-01')}'",
        ), "rows"

    def replacements(self) -> Form:
        words = [r"\1", r"\2", r"\&", "$1", "$price", "$$", r"\\", "x", "${1}", "&"]
        replacement = "".join(self.rng.choice(words) for _ in range(self.rng.randint(1, 3)))
        pattern = self.pick("EUR", "([0-9]+)", "(a)(.)", "b", "[a-z]", "(x)|(y)")
        flags = self.pick("", ", 'g'", ", 'i'")
        return f"SELECT id, regexp_replace(s, '{pattern}', '{replacement}'{flags}) FROM n", "rows"

    def patterns(self) -> Form:
        condition = self.pick(
            r"s LIKE 'a\_c'", "s LIKE 'a!%c' ESCAPE '!'", "s LIKE 'a#_c' ESCAPE '#'", r"s LIKE 'a\c' ESCAPE ''", "s SIMILAR TO 'a(b|_)c'",
            "s SIMILAR TO 'a%'", "s SIMILAR TO '[0-9]+'", "s ~ '.*'", r"s ~ 'a\%c'", "NOT (s ~ '.*')", "s ~* 'ABC'", "s LIKE 'a%' ESCAPE '$'",
            "s NOT LIKE '%'", "s ILIKE 'A%C'", "s SIMILAR TO 'b'", "s NOT SIMILAR TO '%b%'",
        )  # fmt: skip
        return self.pick(f"SELECT id FROM n WHERE {condition}", f"SELECT id, {condition} FROM n"), "rows"

    def null_joins(self) -> Form:
        more = self.pick("a.i = b.i", "a.e = b.e", "a.id = b.id", "a.p = b.p")
        join = self.pick("JOIN", "LEFT JOIN", "FULL JOIN") if "id" in more else "JOIN"
        return self.pick(
            f"SELECT a.id, b.id FROM n AS a JOIN m AS b ON a.k IS NOT DISTINCT FROM b.k WHERE {more}",
            f"SELECT a.id, b.id FROM n AS a {join} m AS b ON {more}",
            f"SELECT a.id, b.id, c.id FROM n AS a JOIN m AS b ON a.k IS NOT DISTINCT FROM b.k JOIN n AS c ON c.i = b.i WHERE {more}",
            f"SELECT id FROM n WHERE k {self.pick('', 'NOT ')}IN (SELECT k FROM m{self.pick('', ' WHERE k > 1', ' WHERE FALSE')})",
            f"SELECT id FROM n WHERE {self.settled_value()} {self.pick('', 'NOT ', 'NOT ')}IN (SELECT k FROM m{self.pick('', ' WHERE k > 1', ' WHERE FALSE')})",
            f"SELECT id FROM n WHERE (k, i) {self.pick('', 'NOT ')}IN (SELECT k, i FROM m)",
            f"SELECT id, k {self.pick('', 'NOT ')}IN (SELECT k FROM m WHERE m.id > n.id) FROM n",
            "SELECT id FROM n WHERE (k IN (SELECT m.k FROM m WHERE m.id < n.id)) IN (SELECT p FROM m) OR id = 2",
        ), "rows"

    def settled_value(self) -> str:
        """A value that names a column, and is a constant for all that."""
        return self.pick("CASE WHEN FALSE THEN k END", "CASE WHEN TRUE THEN 9 ELSE k END", "coalesce(9, k)", "k + NULL", "nullif(k, k)")

    def using(self) -> Form:
        join = self.pick("JOIN", "LEFT JOIN", "RIGHT JOIN", "FULL JOIN")
        return self.pick(
            f"SELECT id, a.k, b.k FROM n AS a {join} (SELECT id + 1 AS id, k FROM m) AS b USING (id)",
            f"SELECT * FROM (SELECT id, k FROM n) AS a {join} (SELECT id + 1 AS id, i FROM m) AS b USING (id)",
            f"SELECT id, count(*) FROM n AS a {join} (SELECT id + 2 AS id FROM m) AS b USING (id) GROUP BY id",
            f"SELECT * FROM (SELECT id, i FROM n) AS a NATURAL {join} (SELECT id + 1 AS id, p FROM m) AS b",
        ), "rows"

    def set_operations(self) -> Form:
        operation = self.pick("INTERSECT ALL", "EXCEPT ALL", "INTERSECT", "EXCEPT", "UNION", "UNION ALL")
        columns = self.pick("k", "i", "k, p", "s", "z")
        return self.pick(
            f"SELECT {columns} FROM n {operation} SELECT {columns} FROM m",
            f"SELECT count(*) FROM (SELECT {columns} FROM n {operation} SELECT {columns} FROM m) AS q",
            f"SELECT id FROM n WHERE k IN (SELECT k FROM n WHERE id > 2 {operation} SELECT k FROM m)",
        ), "rows"

    def chance_values(self) -> Form:
        """Of values that are random: what is so whatever they are."""
        return self.pick(
            "SELECT bool_and(q) FROM (SELECT random() < 0.5 AS q, count(*) FROM n, m AS a, m AS b GROUP BY 1) AS r WHERE q",
            "SELECT count(*) FROM n HAVING random() > 1000",
            "SELECT count(*) FROM n, m AS a, m AS b WHERE random() * 0 + 1 NOT BETWEEN 1 AND 1",
            "SELECT count(q) - count(*) FROM (SELECT coalesce(CASE WHEN random() < 0.5 THEN 1 END, 2) AS q FROM n, m) AS r",
            "SELECT count(*) FROM (SELECT nullif(random() < 0.5, TRUE) AS q FROM n, m AS a, m AS b) AS r WHERE q",
            "SELECT count(*) FROM (SELECT floor(random() * 3) AS q FROM n, m AS a, m AS b) AS r WHERE q NOT BETWEEN 0 AND 2 OR q NOT IN (0, 1, 2)",
            "SELECT count(*) FROM n, m AS a, m AS b WHERE floor(random() * 3) NOT IN (0, 1, 2)",
            "SELECT count(*) FROM n, m AS a, m AS b WHERE NOT (floor(random() * 2) IN (0, 1))",
        ), "rows"

    def rows_of(self) -> Form:
        operator = self.comparison()
        return self.pick(
            f"SELECT id FROM n WHERE (k, i) {operator} ({self.rng.randint(1, 3)}, {self.rng.randint(0, 4)})",
            f"SELECT id, (k, id) {operator} (i, 3) FROM n",
            "SELECT id FROM n WHERE (k, p) IN ((1, TRUE), (2, NULL), (3, FALSE))",
            "SELECT id FROM n WHERE (k, p) NOT IN ((1, TRUE), (2, NULL))",
            "SELECT id FROM n WHERE (k, i) IS NOT DISTINCT FROM (2, NULL)",
        ), "rows"

    def lists(self) -> Form:
        column = self.pick("k", "i")
        quantified = f"{self.comparison()} {self.pick('ANY', 'ALL')}"
        return self.pick(
            f"SELECT id FROM n WHERE {column} {quantified} (ARRAY[1, {self.pick('2', 'NULL', 'k', 'id')}])",
            f"SELECT id, {column} {quantified} (ARRAY[2, NULL]) FROM n",
            f"SELECT id FROM n WHERE {column} {quantified} (SELECT {column} FROM n WHERE id > 2)",
            f"SELECT id FROM n WHERE {column} {quantified} (SELECT {column} FROM n WHERE {column} IS NOT NULL)",
            "SELECT n.id, q.v FROM n CROSS JOIN LATERAL (SELECT unnest(ARRAY[n.id, n.k]) AS v) AS q",
            "SELECT id, ARRAY[k, NULL] > ARRAY[k, 2], ARRAY[1, i] < ARRAY[1, k] FROM n",
            "SELECT id, cardinality(ARRAY[1, 2] || k), cardinality(ARRAY[k] || ARRAY[i]) FROM n",
        ), "rows"

    def listed(self) -> Form:
        column = self.pick("k", "i", "d", "s")
        items = {"s": ["'x'", "'1'", "s", "NULL"], "d": ["1.2345", "0.5", "e", "NULL"]}.get(column, ["1", "2", "id", "NULL", "k + 1"])
        first, second = (", ".join(self.rng.sample(items, self.rng.randint(1, 3))) for _ in range(2))
        word = self.pick("AND", "OR")
        condition = f"{column} {self.pick('', 'NOT ')}IN ({first}) {word} {column} {self.pick('', 'NOT ')}IN ({second})"
        return self.pick(f"SELECT id FROM n WHERE {condition}", f"SELECT id, {condition} FROM n"), "rows"

    def moments(self) -> Form:
        unit = self.pick("day", "week", "month", "quarter", "year", "decade", "century")
        interval = self.pick("1 day", "36 hours", "1 month", "1.5 days")
        of = self.pick(
            f"CAST(date_trunc('{unit}', t) AS TEXT)", "extract(epoch FROM h - TIMESTAMP '2024-01-01 10:00:00')",
            "extract(hour FROM h - TIMESTAMP '2020-01-01 10:00:00.5')", "CAST(h - TIMESTAMP '2020-01-01 10:00:00.5' AS TEXT)",
            f"CAST(h + INTERVAL '{interval}' * {self.pick('2', '0.5', '1.5')} AS TEXT)", "c - DATE '2024-01-31'", "CAST(c + 1 AS TEXT)",
            "extract(epoch FROM INTERVAL '1 year')", f"CAST(CAST(h AS TIMESTAMP({self.pick('0', '3')})) AS TEXT)",
            "CAST(coalesce(t, '2030-01-01') AS TEXT)", f"INTERVAL '{interval}' > h - TIMESTAMP '2020-06-01'",
            "CAST(date_bin(INTERVAL '1 day', t, TIMESTAMP '2000-01-01 12:00:00') AS TEXT)",
        )  # fmt: skip
        guard = "t < '9000-01-01' AND t > '0002-01-01'" if "(t" in of or "t," in of else "c < DATE '9000-01-01'" if "c " in of else "TRUE"
        return self.pick(f"SELECT id, {of} FROM n", f"SELECT id, {of} FROM n WHERE {guard}"), "rows"

    def meaningless(self) -> Form:
        return self.rng.choice(MEANINGLESS), "rows"

    def distinct(self) -> Form:
        return self.pick(
            "SELECT count(DISTINCT k), sum(d), sum(i) FROM n",
            "SELECT p, count(DISTINCT k), sum(e), max(d) FROM n GROUP BY p",
            "SELECT p, sum(DISTINCT i), sum(i), count(*) FROM n GROUP BY p",
            "SELECT count(DISTINCT z), count(DISTINCT s), count(z) FROM n",
            "SELECT k, count(DISTINCT p) FILTER (WHERE i > 0), sum(d) FROM n GROUP BY k",
            "SELECT sum(k) + sum(CAST(k AS BIGINT)), count(k), count((k)) FROM n",
            "SELECT k, count(*), count(*) AS again FROM n GROUP BY k",
            "SELECT sum(k), sum(CAST(k AS BIGINT)), count(s), count(CAST(s AS VARCHAR)) FROM n",
            "SELECT sum(i * (k + 1)), sum(i * k + 1), max(i), max(CAST(i AS DOUBLE PRECISION)) FROM n",
            "SELECT array_to_string(array_agg(id ORDER BY i DESC NULLS LAST, id), ',') FROM n",
            "SELECT string_agg(s, ',' ORDER BY id DESC), string_agg(s, ',' ORDER BY s) FROM n",
        ), "rows"

    def regressions(self) -> Form:
        function = self.pick("regr_r2", "regr_slope", "regr_intercept", "regr_count", "regr_sxx", "corr", "covar_pop")
        first, second = self.pick("1.0", "i", "id"), self.pick("id", "i", "k")
        call = f"{function}(CAST({first} AS DOUBLE PRECISION), CAST({second} AS DOUBLE PRECISION))"
        # Doubles that are nearly 0 differ.
        return f"SELECT CAST({call} AS DECIMAL(20,8)) FROM n WHERE id < 5", "rows"

    def nested_with(self) -> Form:
        return self.pick(
            "WITH a AS (SELECT 1 AS id), b AS (WITH a AS (SELECT 2 AS id) SELECT * FROM a) SELECT a.id, b.id FROM a, b",
            "WITH n AS (SELECT id, k + 1 AS k FROM n) SELECT id FROM n WHERE k IN (WITH n AS (SELECT k FROM m) SELECT k FROM n)",
            "WITH a AS (SELECT id, k FROM n) SELECT id FROM a WHERE EXISTS (WITH a AS (SELECT id FROM m WHERE id > 2) SELECT 1 FROM a WHERE a.id = 3)",
            "WITH m AS (SELECT id AS k FROM n) SELECT n.id, (SELECT count(*) FROM m WHERE m.k > n.k) FROM n",
        ), "rows"

    def window_keys(self) -> Form:
        key = self.pick("length(s) > 1", "abs(i - 9) % 7", "i % 3 = 1", "coalesce(k, 0) * 2 > length(s)", "-i", "upper(s) || 'x'", "k IS NULL", "z", "d > e",
                        "round(d, 1)")  # fmt: skip
        other = self.pick("abs(k)", "-id", "length(s) DESC", "i + k", "CASE WHEN i > 1 THEN 0 ELSE k END")
        call = self.pick("count(*)", "sum(id)", "max(id)", "dense_rank()")
        return self.pick(
            f"SELECT id, {call} OVER (PARTITION BY {key} ORDER BY {other} NULLS FIRST) FROM n",
            f"SELECT id, {call} OVER (ORDER BY {key} NULLS LAST) FROM n",
            f"SELECT id, {call} OVER (PARTITION BY {key} ORDER BY {other}), {call} OVER (PARTITION BY {other.removesuffix(' DESC')} ORDER BY {key}) FROM n",
            f"SELECT id, row_number() OVER (PARTITION BY {key} ORDER BY id) AS r FROM n ORDER BY r DESC, id LIMIT 3",
            f"SELECT id, lead(q, 2) OVER (ORDER BY id) FROM (SELECT id, sum(i) OVER (ORDER BY id ROWS BETWEEN CURRENT ROW AND 3 FOLLOWING) AS q FROM n) AS r ORDER BY id LIMIT {self.rng.randint(1, 4)}",
        ), "rows"

    def outer(self) -> Form:
        """Aggregates about rows around, constants behind outer joins, and NULL of no rows."""
        return self.pick(
            "SELECT k, (SELECT max(n.i) + count(*) FROM m) FROM n GROUP BY k",
            "SELECT k, (SELECT sum(n.id) FROM m WHERE m.id = 1) FROM n GROUP BY k",
            "SELECT k FROM n GROUP BY k HAVING EXISTS (SELECT 1 FROM m WHERE m.id = max(n.id))",
            "SELECT n.id, q.one, q.k FROM n LEFT JOIN (SELECT id, k, 1 AS one FROM m WHERE id > 2) AS q ON n.id = q.id",
            "SELECT n.id FROM n LEFT JOIN (SELECT id, 1 AS one FROM m WHERE id > 2) AS q ON n.id = q.id WHERE q.one IS NULL",
            "SELECT q.one, count(*) FROM n LEFT JOIN (SELECT id, 'c' AS one FROM m WHERE id < 3) AS q ON n.id = q.id GROUP BY q.one",
            "SELECT id, (SELECT 1 FROM m WHERE m.id = n.id + 3) IS NULL FROM n",
            "SELECT (SELECT id FROM m WHERE FALSE) IS NULL, (SELECT count(*) FROM m WHERE FALSE)",
            "SELECT n.id, q.c FROM n LEFT JOIN LATERAL (SELECT count(*) AS c FROM m WHERE m.k = n.k) AS q ON TRUE",
        ), "rows"

    def limited(self) -> Form:
        """The first rows of windows that look ahead, and of joins that may miss a side."""
        order = self.pick("", " DESC")
        return self.pick(
            f"SELECT id, lag(i, -{self.pick('1', '2')}) OVER (ORDER BY id{order}) AS l FROM n ORDER BY id{order} LIMIT {self.rng.randint(1, 3)}",
            f"SELECT id, lead(q, {self.pick('1', '2', '3')}) OVER (ORDER BY id ROWS UNBOUNDED PRECEDING) AS l FROM (SELECT id, sum(id) OVER (ORDER BY id ROWS BETWEEN 1 FOLLOWING AND 3 FOLLOWING) AS q FROM n) AS r ORDER BY id LIMIT {self.rng.randint(1, 3)}",
            f"SELECT n.id, q.c FROM n LEFT JOIN (SELECT k, 'b' AS c FROM m WHERE k = 1) AS q ON n.k = q.k ORDER BY c{order} NULLS {self.pick('FIRST', 'LAST')}, n.id LIMIT 3",
            f"SELECT q.k, n.id FROM (SELECT k FROM m WHERE k = {self.pick('1', '2')}) AS q RIGHT JOIN n ON n.id = q.k ORDER BY q.k{order} NULLS {self.pick('FIRST', 'LAST')}, n.id LIMIT 4",
        ), "ordered"

    def settled(self) -> Form:
        """What is of one type, one row or one order by what it is."""
        return self.pick(
            f"SELECT k, count(DISTINCT i), sum({self.pick('d', 'e')}) FROM n GROUP BY k HAVING sum({self.pick('d', 'e')}) {self.comparison()} 1",
            "SELECT id, (SELECT g FROM generate_series(1, 3) AS s(g) WHERE g > 3) IS NULL FROM n",
            "SELECT id, coalesce((SELECT g FROM generate_series(1, 3) AS s(g) WHERE g > 3), id) FROM n",
            f"SELECT id, cardinality(ARRAY[id, {self.pick('2', 'k')}] || NULL), cardinality(NULL || ARRAY[id]) FROM n",
            f"SELECT array_to_string(array_agg(DISTINCT i ORDER BY i), ','), array_to_string(array_agg({self.pick('id', 'i')} ORDER BY id DESC), ',') FROM n",
            f"SELECT id FROM n WHERE x {self.comparison()} {self.pick('1e300', '1e20', '7.5e10', '0.25', '1' * 45 + '.5')}",
            f"SELECT id, CAST(INTERVAL '{self.pick('1 day 02:03', '3 hours 4 minutes', '1-2', '-1 day +1 hour')}' AS TEXT) FROM n",
        ), "rows"

    def multiplied(self) -> Form:
        """Derived tables whose rows are multiplied, so that their keys are none."""
        derived = self.pick(
            "(SELECT DISTINCT k FROM n)", "(SELECT k, count(*) AS c FROM n GROUP BY k)", "(SELECT k FROM n UNION SELECT i FROM m)",
            "(SELECT max(k) AS k FROM n)", "(SELECT k FROM n INTERSECT SELECT k FROM m)",
        )  # fmt: skip
        join = self.pick("JOIN m ON m.id >= a.k", "LEFT JOIN m ON m.k = a.k", "CROSS JOIN m", "RIGHT JOIN m ON m.id > a.k")
        other, call = self.pick("m.id", "m.p", "m.i"), self.pick("count(DISTINCT m.i)", "count(*)", "sum(m.id)")
        joined = f"SELECT a.k AS x, {other} AS y, {call} AS c FROM {derived} AS a {join} GROUP BY a.k, {other}"
        return self.pick(
            f"SELECT a.k, {call} FROM {derived} AS a {join} GROUP BY a.k, {other}",
            f"SELECT x, sum(c) FROM ({joined}) AS q GROUP BY {self.pick('x', 'x, y', 'ROLLUP (x, y)')}",
            f"SELECT DISTINCT x FROM ({joined}) AS q",
            f"SELECT x FROM (SELECT DISTINCT a.k AS x, {other} AS y FROM {derived} AS a {join}) AS q {self.pick('INTERSECT', 'EXCEPT', 'UNION')} SELECT id FROM n",
            f"SELECT k, count(*) FROM (SELECT k, unnest(ARRAY[3, 1, 3]) AS g FROM {derived} AS a) AS q GROUP BY k, g",
            f"SELECT x, y, row_number() OVER (ORDER BY x NULLS FIRST, y DESC NULLS LAST) FROM (SELECT DISTINCT a.k AS x, {other} AS y FROM {derived} AS a {join}) AS q",
            f"SELECT q.x, count(*) FROM n, LATERAL (SELECT m.k, count(*) FROM m WHERE m.id <> n.id GROUP BY m.k) AS q(x, y) GROUP BY q.x",
        ), "rows"

    def never_true(self) -> Form:
        """Conditions that are never true, or known beforehand, about aggregates that have a row whatever they are given."""
        call = self.pick("count(*)", "max(i)", "sum(id)")
        never = self.pick("c = 1 AND c = 3", "c > 5 AND c < 3", "c IS NULL AND c = 0", "FALSE", "NULL", "c = 2 AND FALSE", "(SELECT FALSE)")
        having = never.replace("c ", f"{call} ")
        return self.pick(
            f"SELECT c FROM (SELECT {call} AS c FROM n) AS q WHERE {never}",
            f"SELECT {call} FROM n HAVING {having}",
            f"SELECT k, {call} FROM n GROUP BY {self.pick('k', 'ROLLUP (k)', 'GROUPING SETS ((k), ())')} HAVING {having}",
            f"SELECT m.id, q.c FROM m {self.pick('LEFT', 'RIGHT')} JOIN (SELECT {call} AS c FROM n) AS q ON {never}",
            f"SELECT id FROM m WHERE {self.pick('', 'NOT ')}EXISTS (SELECT {call} FROM n HAVING {having})",
            f"SELECT id, (SELECT {call} FROM n WHERE n.k = m.k HAVING {self.pick(f'{call} IS NULL', f'{call} > 1', 'count(*) = 0')}) FROM m",
        ), "rows"

    def mixed(self) -> Form:
        """Types that meet: decimals, doubles, integers and texts."""
        return self.pick(
            f"SELECT id, d / {self.pick('3', '0.7', '1.25')} > {self.pick('0.4', '1', '2')} FROM n",
            f"SELECT id, d / {self.pick('3', '7', '0.7')} FROM n WHERE abs(d) < 100",
            f"SELECT id, e / {self.pick('3', 'nullif(d, 0)')} FROM n WHERE abs(e) < 100 AND abs(d) < 100",
            f"SELECT id FROM n WHERE i {self.comparison()} {self.pick('0.5', '1.5', '2.0', '-0.1')}",
            f"SELECT id FROM n WHERE b {self.comparison()} {self.pick('9223372036854775807', '9223372036854775806.5', '0.5')}",
            "SELECT id, CASE WHEN p THEN d ELSE x END, coalesce(e, x) FROM n",
            f"SELECT id FROM n WHERE x {self.comparison()} {self.pick('0.25', 'd', '1e20', 'i')}",
            "SELECT CAST(x AS REAL) FROM n UNION ALL SELECT d FROM m",
            f"SELECT id, CAST({self.pick('2.5', '3.5', '-0.5', '1.75')} * id AS INT), CAST(CAST(id AS DOUBLE PRECISION) / 2 AS INT) FROM n",
            f"SELECT CAST('{self.pick('1e400', '1e300', '1e40')}' AS REAL)",
            f"SELECT id, CAST(x * {self.pick('1e30', '1e15', '1')} AS REAL) FROM n WHERE x >= 1",
            f"SELECT id, {self.pick('1e3', '1e0', '1.5e2')} * i FROM n",
            "SELECT id, sqrt(CAST(id AS REAL)), power(CAST(id AS REAL), 0.5) FROM n",
        ), "rows"


def rows(rng: random.Random) -> list[str]:
    return [f"({number}, {', '.join(rng.choice(VALUES[column]) for column in VALUES)})" for number in range(1, rng.randint(4, 12))]


def setup(rng: random.Random) -> list[str]:
    statements = ["DROP TABLE IF EXISTS w", "CREATE TABLE w (id INT, n INT)", "INSERT INTO w VALUES (1, 2), (2, 1), (3, NULL)"]
    for table in TABLES:
        columns = ", ".join(f"{name} {sql_type}" for name, sql_type in COLUMNS.items())
        statements += [
            f"DROP TABLE IF EXISTS {table}",
            f"CREATE TABLE {table} ({columns})",
            f"INSERT INTO {table} VALUES {', '.join(rows(rng))}",
        ]
    return statements


def expected(con: psycopg.Connection, sql: str) -> Answer | str:
    try:
        cursor = con.execute(sql)
        if cursor.description is None:
            return Answer([], [])
        return Answer([Column(column.name, "other") for column in cursor.description], cursor.fetchall())
    except psycopg.Error as e:
        return str(e)


def found(engine: Onehop, sql: str) -> Answer | str:
    try:
        return engine.sql(sql).answer
    except EngineError as e:
        return str(e)


def plain(row: Row) -> Row:
    """A row without what two engines write otherwise: timestamps without zeros at the end of a fraction, decimals as numbers."""
    is_plain = bool | int | float | Decimal | None
    return tuple(value if isinstance(value, is_plain) else FRACTION.sub(r"\1", str(value)) for value in row)


def digits(value: object) -> int:
    return -value.as_tuple().exponent if isinstance(value, Decimal) and value.is_finite() else 0


def rounded_alike(ours: Answer, theirs: Answer) -> tuple[Answer, Answer]:
    """Both with as many digits after the point as each has, column by column: PostgreSQL has sixteen of a number at least."""
    columns = range(len(ours.columns))
    scales = [max((digits(row[at]) for row in ours.rows), default=0) for at in columns]
    fewest = [min([scales[at], *(digits(row[at]) for row in theirs.rows if digits(row[at]))]) for at in columns]

    def rounded(value: object, scale: int) -> object:
        return value.quantize(Decimal(1).scaleb(-scale), ROUND_HALF_UP) if digits(value) > scale > 0 else value

    def of(answer: Answer) -> Answer:
        return Answer(ours.columns, [tuple(rounded(value, scale) for value, scale in zip(row, fewest)) for row in answer.rows])

    return of(ours), of(theirs)


REFUSED = "refused"
REFUSAL = "is not supported"


def check(onehop: Onehop, con: psycopg.Connection, sql: str, how: str, spoil: bool) -> str | None:
    """What is wrong, in words, or REFUSED; None if the answers are right."""
    theirs = expected(con, sql)
    for mode in MODES:
        onehop.sql(f"SET exec.mode = '{mode}'")
        ours = found(onehop, sql)
        if isinstance(ours, str):
            if isinstance(theirs, str) and "internal" not in ours:
                continue
            if how == "wide" and "out of range" in ours:
                continue
            if REFUSAL in ours:
                return REFUSED
            shown_theirs = theirs if isinstance(theirs, str) else shown(theirs)
            return f"an error instead of an answer ({mode}): {ours}\n  postgresql:\n    {shown_theirs}"
        if isinstance(theirs, str):
            return f"an answer instead of an error ({mode}): {shown(ours)}\n  postgresql: {theirs}"
        ours = Answer(ours.columns, [plain(row) for row in ours.rows])
        wanted = Answer(ours.columns, [plain(row) for row in theirs.rows])
        if how == "averages":
            ours, wanted = rounded_alike(ours, wanted)
        if reason := compare(spoiled(ours) if spoil else ours, wanted, how == "ordered"):
            return f"{reason}\n  onehop ({mode}):\n    {shown(ours)}\n  postgresql:\n    {shown(wanted)}"
    return REFUSED if isinstance(theirs, str) else None


def main() -> int:
    options = command_line.parser("Random queries about values, names and guards against PostgreSQL.", queries=400).parse_args()
    print(f"expressions: seed {options.seed}, {options.queries} queries", flush=True)
    passed = refused = failed = 0
    with postgresql() as con:
        for start, numbers in command_line.batches(options):
            onehop = Onehop(options.onehop)
            for statement in setup(random.Random(f"{options.seed} tables {start}")):
                con.execute(statement)
                onehop.sql(statement)
            for number in numbers:
                sql, how = Query(random.Random(f"{options.seed} query {number}")).made()
                wrong = check(onehop, con, sql, how, spoil=options.canary and number == 0)
                if wrong is None:
                    passed += 1
                elif wrong == REFUSED:
                    refused += 1
                else:
                    failed += 1
                    print(f"\nquery {number} (--seed {options.seed} --only {number}): {wrong}\n  {sql}", flush=True)
                    if options.stop:
                        break
            onehop.close()
            if failed and options.stop:
                break
    print(f"{refused} were refused")
    if refused > MOST_REFUSED * options.queries and options.only is None:
        failed += 1
        print("more than may compare nothing")
    print(f"expressions: {passed + refused} passed, {failed} failed")
    return 1 if failed or not passed + refused else 0


if __name__ == "__main__":
    sys.exit(main())
