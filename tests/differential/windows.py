"""Forms of queries about windows and groups: named windows that copy others, computed keys, moving frames of all aggregates,
NULLs that are ignored, grouping sets beside equalities.

Answers must not depend on what SQL leaves open: frames of rows are over a unique order, and of peers only what does not mind
their order is computed. Variances are left out: DuckDB's differ from ours by more than their last digits where they are near 0.
"""

import random
from typing import Protocol

ROW_FRAMES = [
    "ROWS UNBOUNDED PRECEDING",
    "ROWS 2 PRECEDING",
    "ROWS BETWEEN 1 PRECEDING AND 1 FOLLOWING",
    "ROWS BETWEEN 1 FOLLOWING AND 3 FOLLOWING",
    "ROWS BETWEEN 5 PRECEDING AND 2 PRECEDING",
    "ROWS BETWEEN CURRENT ROW AND UNBOUNDED FOLLOWING",
    "ROWS BETWEEN UNBOUNDED PRECEDING AND UNBOUNDED FOLLOWING",
]
PEER_FRAMES = [
    "",
    "RANGE BETWEEN 3 PRECEDING AND CURRENT ROW",
    "RANGE BETWEEN 2 PRECEDING AND 5 FOLLOWING",
    "RANGE BETWEEN 4 FOLLOWING AND 9 FOLLOWING",
    "RANGE BETWEEN CURRENT ROW AND UNBOUNDED FOLLOWING",
    "GROUPS BETWEEN 1 PRECEDING AND 1 FOLLOWING",
    "GROUPS 2 PRECEDING",
]


class Field(Protocol):
    sql: str
    kind: str


class Windows:
    """Mixed into `generate.Queries`."""

    rng: random.Random

    def windows(self) -> tuple[str, bool]:
        source, fields = self.single()
        unique = next(field.sql for field in fields if field.sql.endswith(".id"))
        partition = self.rng.choice([self.group_key(fields), self.key(fields), f"{self.key(fields)}, {self.key(fields)}"])
        base = f"PARTITION BY {partition}" if self.rng.random() < 0.7 else ""
        nulls = self.rng.choice(["FIRST", "LAST"])
        rows = f"{self.key(fields)} {self.rng.choice(['ASC', 'DESC'])} NULLS {nulls}, {unique}"
        peers = f"{self.integer(fields)} NULLS {nulls}"
        calls = [self.call(fields, unique) for _ in range(self.rng.randint(1, 3))]
        outputs, named = [], [f"base AS ({base})", f"r AS (base ORDER BY {rows})", f"p AS (base ORDER BY {peers})"]
        for i, (call, is_of_rows) in enumerate(calls):
            name, order, frames = ("r", rows, ROW_FRAMES) if is_of_rows else ("p", peers, PEER_FRAMES)
            frame = self.rng.choice(frames)
            over = self.rng.choice([f"({name} {frame})", f"(base ORDER BY {order} {frame})", f"({base} ORDER BY {order} {frame})"])
            outputs.append(f"{call} OVER {over} AS w{i}")
        window = f" WINDOW {', '.join(named)}"
        return f"SELECT {unique} AS id, {', '.join(outputs)} FROM {source}{self.where(fields)}{window}", False

    def call(self, fields: list[Field], unique: str) -> tuple[str, bool]:
        """A call, and whether it minds the order of rows."""
        field = self.rng.choice(fields)
        number = self.rng.choice([f for f in fields if f.kind in ("integer", "decimal", "float")])
        ordered = field.sql if field.kind != "boolean" else unique
        nulls = self.rng.choice([" IGNORE NULLS", ""])
        calls = [
            ("count(*)", False),
            (f"count({field.sql})", False),
            (f"count(DISTINCT {field.sql})", False),
            (self.total(fields), False),
            (f"min({ordered})", False),
            (f"max({ordered})", False),
            (f"avg(CAST({number.sql} AS DOUBLE))", False),
            (f"bit_and(CAST({self.integer(fields)} AS BIGINT))", False),
            (f"bit_or(CAST({self.integer(fields)} AS BIGINT))", False),
            (f"bit_xor(CAST({self.integer(fields)} AS BIGINT))", False),
            (f"bool_and({self.predicate(fields, 0)})", False),
            (f"bool_or({self.predicate(fields, 0)})", False),
            (f"string_agg(CAST({unique} AS VARCHAR), ',')", True),
            (f"first_value({field.sql}{nulls})", True),
            (f"last_value({field.sql}{nulls})", True),
            (f"nth_value({field.sql}, {self.rng.randint(1, 3)}{nulls})", True),
            (f"lead({field.sql}, {self.rng.randint(1, 3)}{nulls})", True),
            (f"lag({field.sql}, {self.rng.randint(1, 3)}{nulls})", True),
            ("row_number()", True),
            ("dense_rank()", False),
        ]
        call, minds_order = self.rng.choice(calls)
        if not minds_order and call != "dense_rank()" and self.rng.random() < 0.2:
            call += f" FILTER (WHERE {self.predicate(fields, 0)})"
        return call, minds_order or self.rng.random() < 0.5

    def grouping_sets(self) -> tuple[str, bool]:
        """Grouping sets over keys of which some are equal, or constant, by WHERE."""
        source, fields = self.single()
        field = self.rng.choice(fields)
        alike = [other for other in fields if other.kind == field.kind and other is not field][:1]
        some = [field.sql, *(other.sql for other in alike)] if self.rng.random() < 0.5 else []
        keys = list(dict.fromkeys([*some, self.group_key(fields), self.key(fields)]))
        while len(keys) < 2:
            keys.append(f"{self.integer(fields)} % {len(keys) + 5}")
        first, second, *_ = keys
        sets = self.rng.choice(
            [
                f"ROLLUP ({first}, {second})",
                f"CUBE ({first}, {second})",
                f"GROUPING SETS (({first}), ({second}))",
                f"GROUPING SETS (({first}, {second}), ({second}), ())",
                f"{first}, ROLLUP ({second})",
                f"ROLLUP (({first}, {second}))",
                f"({first}, {second})",
                "ROLLUP (1, 2)",
                "GROUPING SETS ((1), (2), (1, 2))",
            ]
        )
        where = self.rng.choice(["", f" WHERE {first} IS NOT NULL", f" WHERE {field.sql} = {self.literal(field)}"])
        if alike and self.rng.random() < 0.5:
            where = f" WHERE {field.sql} = {alike[0].sql}"
        grouped = f"SELECT {first} AS a, {second} AS b, count(*) AS n, {self.total(fields)} AS s FROM {source}{where} GROUP BY {sets}"
        order = self.rng.sample(["a", "b", "n", "s"], 4)
        by = ", ".join(f"{name} {self.rng.choice(['ASC', 'DESC'])} NULLS {self.rng.choice(['FIRST', 'LAST'])}" for name in order)
        limit = f" LIMIT {self.rng.choice([1, 3, 20])}" if self.rng.random() < 0.5 else ""
        match self.rng.randrange(3):
            case 0:
                return f"{grouped} ORDER BY {by}{limit}", True
            case 1:
                over = f"PARTITION BY {self.rng.choice('ab')} ORDER BY {by}"
                return f"SELECT a, b, n, s, row_number() OVER ({over}) AS r FROM ({grouped}) AS g", False
        return f"SELECT {self.rng.choice('ab')} AS k, count(*) AS c, sum(n) AS t FROM ({grouped}) AS g GROUP BY 1", False

    def integer(self, fields: list[Field]) -> str:
        return f"CAST({self.rng.choice([f for f in fields if f.kind == 'integer']).sql} AS BIGINT)"

    def key(self, fields: list[Field]) -> str:
        """An expression that rows are partitioned or ordered by."""
        integer = self.integer(fields)
        return self.rng.choice(
            [
                f"abs({integer} - 9) % 7",
                f"coalesce({integer}, 0) * 2",
                f"CASE WHEN {self.predicate(fields, 0)} THEN 1 ELSE 0 END",
                f"{integer} % 3",
                f"-{integer}",
                f"{self.rng.choice(fields).sql} IS NULL",
            ]
        )
