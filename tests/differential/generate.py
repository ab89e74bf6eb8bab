"""Random tables and random queries over them.

Everything follows from the random generator that comes in: the same seed gives the same tables and queries. Queries
are built by type, so that each is valid, and stay where both engines mean the same (`run.py` lists what is avoided).
"""

import datetime as dt
import random
from collections.abc import Callable
from dataclasses import dataclass
from decimal import Decimal

from windows import Windows

INTEGER, BIGINT, EXTREME, DECIMAL, FLOAT, BOOLEAN, DATE, TIMESTAMP, TEXT = (
    "integer", "bigint", "extreme", "decimal", "float", "boolean", "date", "timestamp", "text",
)  # fmt: skip

# What a column can be: its SQL type and its kind. An `extreme` column holds limits; it is compared, never added.
SQL_TYPES = [
    ("TINYINT", INTEGER), ("SMALLINT", INTEGER), ("INTEGER", INTEGER), ("UTINYINT", INTEGER), ("USMALLINT", INTEGER),
    ("UINTEGER", INTEGER), ("BIGINT", BIGINT), ("INTEGER", EXTREME), ("BIGINT", EXTREME), ("DECIMAL(9,2)", DECIMAL),
    ("DECIMAL(18,4)", DECIMAL), ("DECIMAL(38,6)", DECIMAL), ("REAL", FLOAT), ("DOUBLE", FLOAT), ("BOOLEAN", BOOLEAN),
    ("DATE", DATE), ("TIMESTAMP", TIMESTAMP), ("VARCHAR", TEXT), ("VARCHAR", TEXT),
]  # fmt: skip
ROW_COUNTS = [0, 1, 7, 50, 50, 300, 300, 300, 1023, 1024, 1025, 3000]
NULL_SHARES = [0.0, 0.0, 0.0, 0.1, 0.1, 0.1, 0.5, 0.5, 1.0]
KEY_NULL_SHARES = [0.0, 0.1, 0.3]
WORDS = ["", " ", "a", "A", "ab", "abc", "b", "ba", "né", "日本", "%", "a_c", "zz top", "a rather long text, one",
         "a rather long text, two", "a rather long text, three"]  # fmt: skip
LAYOUTS = ["VIEW", "TABLE", "TABLE", "PARTITION", "CLUSTER", "TINY"]


@dataclass(frozen=True)
class Column:
    name: str
    sql_type: str
    kind: str


@dataclass
class Table:
    name: str
    columns: list[Column]
    rows: list[list]
    layout: str

    def onehop_statements(self, path: str) -> list[str]:
        """How Onehop gets it from its Parquet file."""
        source = f"AS SELECT * FROM '{path}'"
        match self.layout:
            case "VIEW":
                return [f"CREATE VIEW {self.name} {source}"]
            case "PARTITION":
                return [f"CREATE TABLE {self.name} PARTITION BY HASH (k) PARTITIONS 3 {source}"]
            case "CLUSTER":
                return [f"CREATE TABLE {self.name} CLUSTER BY ({self.columns[-1].name}, k) {source}"]
            case "TINY":
                return [
                    "SET storage.block_rows = 1024",
                    f"CREATE TABLE {self.name} {source}",
                    "SET storage.block_rows = 65536",
                ]
        return [f"CREATE TABLE {self.name} {source}"]


def _value(rng: random.Random, column: Column) -> object:
    sql_type = column.sql_type
    match column.kind:
        case "integer":
            return rng.randint(0 if sql_type.startswith("U") else -100, 100)
        case "bigint":
            return rng.randint(-(10**12), 10**12)
        case "extreme":
            bits = 31 if sql_type == "INTEGER" else 63
            return rng.choice([2**bits - 1, -(2**bits), 0, 1, -1, rng.randint(-(2**bits), 2**bits - 1)])
        case "decimal":
            scale = int(sql_type[:-1].split(",")[1])
            return Decimal(rng.randint(-(10**6), 10**6)).scaleb(-scale)
        case "float":
            return rng.randint(-400, 400) / 4
        case "boolean":
            return rng.random() < 0.5
        case "date":
            return dt.date(2020, 1, 1) + dt.timedelta(days=rng.randint(0, 400))
        case "timestamp":
            return dt.datetime(2020, 1, 1) + dt.timedelta(seconds=rng.randint(0, 400 * 86_400))
    return rng.choice(WORDS) if rng.random() < 0.8 else f"a rather long text, number {rng.randint(0, 500):03}"


def tables(rng: random.Random) -> list[Table]:
    """Four tables. Each has `id` (unique), `k` (to join by) and some random columns."""
    made = []
    for number in range(4):
        columns = [Column("id", "INTEGER", INTEGER), Column("k", "INTEGER", INTEGER)]
        for i in range(rng.randint(3, 8)):
            sql_type, kind = rng.choice(SQL_TYPES)
            columns.append(Column(f"c{i}", sql_type, kind))
        shares = [0.0, rng.choice(KEY_NULL_SHARES)] + [rng.choice(NULL_SHARES) for _ in columns[2:]]
        keys = rng.choice([3, 20, 200])
        rows: list[list] = []
        for i in range(rng.choice(ROW_COUNTS)):
            row = [i, rng.randint(0, keys)] + [_value(rng, column) for column in columns[2:]]
            rows.append([None if rng.random() < share else value for value, share in zip(row, shares)])
        made.append(Table(f"t{number}", columns, rows, rng.choice(LAYOUTS)))
    return made


@dataclass(frozen=True)
class Field:
    """A column as a query can name it."""

    sql: str
    kind: str
    sql_type: str
    values: tuple = ()  # some that it has


class Queries(Windows):
    """Builds queries over some tables."""

    def __init__(self, rng: random.Random, tables: list[Table]) -> None:
        self.rng = rng
        self.tables = tables
        self.aliases = 0

    def query(self) -> tuple[str, bool]:
        """(SQL, whether its rows come in a total order)"""
        forms: list[Callable[[], tuple[str, bool]]] = [
            self.plain, self.plain, self.aggregate, self.aggregate, self.aggregate, self.distinct, self.ordered,
            self.ordered, self.set_operation, self.derived, self.window, self.pipeline, self.pipeline, self.pipeline,
            self.outer, self.outer, self.outer, self.reduction, self.reduction, self.first, self.first,
            self.windows, self.windows, self.windows, self.grouping_sets, self.grouping_sets,
        ]  # fmt: skip
        return self.rng.choice(forms)()

    # Forms

    def plain(self) -> tuple[str, bool]:
        source, fields = self.source()
        return f"SELECT {self.outputs(fields)} FROM {source}{self.where(fields)}", False

    def distinct(self) -> tuple[str, bool]:
        source, fields = self.source()
        return f"SELECT DISTINCT {self.outputs(fields, most=2)} FROM {source}{self.where(fields)}", False

    def ordered(self) -> tuple[str, bool]:
        """Ordered by every column of the answer: rows that are still equal cannot be told apart."""
        source, fields = self.source()
        count = self.rng.randint(1, 4)
        outputs = [self.scalar(fields, self.kind(fields)) for _ in range(count)]
        order = list(range(1, count + 1))
        self.rng.shuffle(order)
        keys = ", ".join(
            f"{i} {self.rng.choice(['ASC', 'DESC'])} NULLS {self.rng.choice(['FIRST', 'LAST'])}" for i in order
        )
        selected = ", ".join(f"{output} AS o{i}" for i, output in enumerate(outputs, 1))
        limit = f" LIMIT {self.rng.choice([0, 1, 5, 20, 1000])}" if self.rng.random() < 0.7 else ""
        offset = f" OFFSET {self.rng.choice([1, 7, 100])}" if limit and self.rng.random() < 0.3 else ""
        return f"SELECT {selected} FROM {source}{self.where(fields)} ORDER BY {keys}{limit}{offset}", True

    def aggregate(self) -> tuple[str, bool]:
        source, fields = self.source()
        groups = [self.group_key(fields) for _ in range(self.rng.choice([0, 1, 1, 1, 2]))]
        aggregates = [self.aggregate_of(fields) for _ in range(self.rng.randint(1, 4))]
        selected = ", ".join(f"{sql} AS o{i}" for i, sql in enumerate(groups + aggregates))
        by = f" GROUP BY {', '.join(groups)}" if groups else ""
        having = f" HAVING {self.having(fields)}" if self.rng.random() < 0.25 else ""
        return f"SELECT {selected} FROM {source}{self.where(fields)}{by}{having}", False

    def pipeline(self) -> tuple[str, bool]:
        """What fused pipelines are for: exact aggregates over inner, semi and anti joins, any number of keys."""
        source, fields = self.single()
        for _ in range(self.rng.choice([0, 0, 1, 1, 2, 3])):
            other, others = self.single()
            source = f"{source} JOIN {other} ON {self.join_condition(fields, others)}"
            fields = fields + others
        exact = [field for field in fields if field.kind != FLOAT]
        conditions = [self.predicate(exact, depth=1) for _ in range(self.rng.choice([0, 1, 1, 2]))]
        for _ in range(self.rng.choice([0, 0, 0, 1, 2])):
            inner, inner_fields = self.single()
            outer = self.rng.choice([field for field in fields if field.sql.endswith((".k", ".id"))])
            key = self.rng.choice(inner_fields[:2])
            some = self.predicate(inner_fields, depth=0)
            negation = self.rng.choice(["", "NOT "])
            conditions.append(f"{negation}EXISTS (SELECT 1 FROM {inner} WHERE {key.sql} = {outer.sql} AND {some})")
        where = f" WHERE {' AND '.join(f'({condition})' for condition in conditions)}" if conditions else ""
        groups = [self.group_key(exact) for _ in range(self.rng.choice([0, 1, 1, 2, 3, 6]))]
        aggregates = [self.exact_aggregate_of(exact) for _ in range(self.rng.randint(1, 4))]
        selected = ", ".join(f"{sql} AS o{i}" for i, sql in enumerate(groups + aggregates))
        by = f" GROUP BY {', '.join(groups)}" if groups else ""
        return f"SELECT {selected} FROM {source}{where}{by}", False

    def reduction(self) -> tuple[str, bool]:
        """What semi-join reductions are for: few rows, and aggregates or sets of many that are joined with them."""
        source, fields = self.single()
        outer = fields[self.rng.choice([0, 1, 1])].sql
        few = [f"{fields[0].sql} BETWEEN {(low := self.rng.randint(0, 40))} AND {low + self.rng.choice([0, 3, 30])}"]
        if self.rng.random() < 0.5:
            few.append(f"({self.predicate(fields, depth=1)})")
        if self.rng.random() < 0.2:
            few = []
        if self.rng.random() < 0.3:
            other, others = self.single()
            source = f"{source} JOIN {other} ON {self.join_condition(fields, others)}"
        inner, inner_fields = self.single()
        key = inner_fields[self.rng.choice([0, 1, 1])].sql
        if self.rng.random() < 0.3:
            other, others = self.single()
            inner = f"{inner} {self.rng.choice(['JOIN', 'LEFT JOIN'])} {other} "
            inner += f"ON {self.join_condition(inner_fields, others)}"
        some = f"({self.predicate(inner_fields, depth=1)})"
        total = self.rng.choice(["count(*)", f"count({inner_fields[-1].sql})", self.total(inner_fields),
                                 f"min({inner_fields[0].sql})"])  # fmt: skip
        having = f" HAVING {self.having(inner_fields)}" if self.rng.random() < 0.3 else ""
        groups = f"SELECT {key} AS g, {total} AS total FROM {inner} WHERE {some} GROUP BY {key}{having}"
        within = f"SELECT max(total) AS top FROM ({groups}) AS h"
        both = f"{key} = {outer} AND {some}"
        form = self.rng.choice(["value", "value", "compared", "join", "join", "left", "in", "exists", "not exists",
                                "nested", "value of none"])  # fmt: skip
        selected, joined = f"{fields[0].sql} AS id, {outer} AS key", ""
        match form:
            case "value":
                selected += f", (SELECT {total} FROM {inner} WHERE {both}) AS v"
            case "value of none":
                selected += f", (SELECT count(*) FROM {inner} WHERE {both}) AS n"
            case "compared":
                few.append(f"{fields[0].sql} < (SELECT count(*) FROM {inner} WHERE {both})")
            case "join" | "left":
                kind = "JOIN" if form == "join" else "LEFT JOIN"
                selected += ", d.g, d.total"
                joined = f" {kind} ({groups}) AS d ON d.g = {outer}"
            case "in":
                few.append(f"{outer} IN (SELECT g FROM ({groups}) AS d)")
            case "exists" | "not exists":
                few.append(f"{form.upper()} (SELECT 1 FROM {inner} WHERE {both})")
            case "nested":
                again = f"SELECT d.g, count(*) AS n, max(d.total) AS top FROM ({groups}) AS d GROUP BY d.g"
                selected += f", e.n, e.top, ({within}) AS most"
                joined = f" JOIN ({again}) AS e ON e.g = {outer}"
        rows = f"SELECT {selected} FROM {source}{joined}" + (f" WHERE {' AND '.join(few)}" if few else "")
        if self.rng.random() < 0.5:
            return f"SELECT count(*), count(DISTINCT id), min(key) FROM ({rows}) AS r", False
        return rows, False

    def outer(self) -> tuple[str, bool]:
        """Outer joins in each other, of sides with columns that no table has, and conditions on any of their sides."""
        source, fields = self.side()
        for _ in range(self.rng.choice([1, 1, 2, 3])):
            other, others = self.side()
            kind = self.rng.choice(["LEFT JOIN", "LEFT JOIN", "RIGHT JOIN", "JOIN"])
            on = self.join_condition(fields, others)
            if self.rng.random() < 0.4:
                on += f" AND {self.predicate(self.rng.choice([fields, others, fields + others]), depth=1)}"
            source = f"{source} {kind} {other} ON {on}"
            fields = fields + others
        exact = [field for field in fields if field.kind != FLOAT]
        where = f" WHERE {self.predicate(fields, depth=1)}" if self.rng.random() < 0.5 else ""
        if self.rng.random() < 0.4:
            some = self.rng.sample(fields, min(len(fields), self.rng.randint(1, 5)))
            return f"SELECT {', '.join(f'{field.sql} AS o{i}' for i, field in enumerate(some))} FROM {source}{where}", False
        if self.rng.random() < 0.3:
            keys = [field.sql for field in fields if field.sql.endswith(".id")]
            selected = ", ".join(f"{key} AS o{i}" for i, key in enumerate(keys))
            order = ", ".join(f"{i} NULLS FIRST" for i in range(1, len(keys) + 1))
            return f"SELECT {selected} FROM {source}{where} ORDER BY {order} LIMIT {self.rng.choice([1, 10, 500])}", True
        groups = [self.group_key(exact) for _ in range(self.rng.choice([0, 1, 1, 2]))]
        aggregates = [self.exact_aggregate_of(exact) for _ in range(self.rng.randint(1, 4))]
        selected = ", ".join(f"{sql} AS o{i}" for i, sql in enumerate(groups + aggregates))
        by = f" GROUP BY {', '.join(groups)}" if groups else ""
        return f"SELECT {selected} FROM {source}{where}{by}", False

    def first(self) -> tuple[str, bool]:
        """The first rows of tables and joins by some columns, and then by what tells rows apart."""
        source, fields = self.single()
        ids = [field.sql for field in fields if field.sql.endswith(".id")]
        for _ in range(self.rng.choice([0, 0, 1, 2])):
            other, others = self.single()
            kind = self.rng.choice(["JOIN", "JOIN", "LEFT JOIN"])
            source = f"{source} {kind} {other} ON {self.join_condition(fields, others)}"
            fields = fields + others
            ids += [field.sql for field in others if field.sql.endswith(".id")]
        keys = [field.sql for field in self.rng.sample(fields, self.rng.choice([0, 1, 1, 2]))]
        order = ", ".join(
            f"{key} {self.rng.choice(['ASC', 'DESC'])} NULLS {self.rng.choice(['FIRST', 'LAST'])}" for key in keys + ids
        )
        some = self.rng.sample(fields, min(len(fields), self.rng.randint(1, 6)))
        selected = ", ".join(f"{field.sql} AS o{i}" for i, field in enumerate(some))
        limit = f"LIMIT {self.rng.choice([1, 3, 10, 100, 5000])}"
        offset = f" OFFSET {self.rng.choice([1, 7, 100])}" if self.rng.random() < 0.2 else ""
        return f"SELECT {selected} FROM {source}{self.where(fields)} ORDER BY {order} {limit}{offset}", True

    def side(self) -> tuple[str, list[Field]]:
        """One side of a join: a table, or a subquery of one or two with columns that are made."""
        source, fields = self.single()
        if self.rng.random() < 0.4:
            return source, fields
        if self.rng.random() < 0.4:
            other, others = self.single()
            kind = self.rng.choice(["JOIN", "LEFT JOIN", "RIGHT JOIN"])
            source = f"{source} {kind} {other} ON {self.join_condition(fields, others)}"
            fields = fields + others
        alias = f"a{self.aliases}"
        self.aliases += 1
        made = [
            ("id", self.rng.choice([field.sql for field in fields if field.sql.endswith(".id")]), "INTEGER"),
            ("k", self.rng.choice([field.sql for field in fields if field.sql.endswith(".k")]), "INTEGER"),
            ("one", "1", "INTEGER"),
            ("made", f"CAST({self.scalar(fields, INTEGER)} AS BIGINT)", "BIGINT"),
        ]
        selected = ", ".join(f"{sql} AS {name}" for name, sql, _ in made)
        known = [Field(f"{alias}.{name}", INTEGER, sql_type) for name, _, sql_type in made]
        for number, field in enumerate(self.rng.sample(fields, min(len(fields), 2))):
            selected += f", {field.sql} AS f{number}"
            known.append(Field(f"{alias}.f{number}", field.kind, field.sql_type, field.values))
        return f"(SELECT {selected} FROM {source}{self.where(fields)}) AS {alias}", known

    def set_operation(self) -> tuple[str, bool]:
        operation = self.rng.choice(["UNION", "UNION ALL", "INTERSECT", "EXCEPT"])
        kinds = [self.rng.choice([INTEGER, BOOLEAN, TEXT, DATE]) for _ in range(self.rng.randint(1, 2))]
        sides = []
        for _ in range(2):
            source, fields = self.single()
            selected = ", ".join(f"{self.scalar(fields, kind, depth=1)} AS o{i}" for i, kind in enumerate(kinds))
            sides.append(f"SELECT {selected} FROM {source}{self.where(fields)}")
        return f" {operation} ".join(sides), False

    def derived(self) -> tuple[str, bool]:
        source, fields = self.source()
        key = self.group_key(fields)
        total, where = self.total(fields), self.where(fields)
        inner = f"SELECT {key} AS g, count(*) AS n, {total} AS total FROM {source}{where} GROUP BY {key}"
        outer = self.rng.choice(
            [
                "SELECT count(*), sum(n), max(total) FROM {d} AS d",
                "SELECT d.g, d.n FROM {d} AS d WHERE d.n >= (SELECT avg(CAST(n AS DOUBLE)) FROM {d} AS e)",
                "SELECT a.n, count(*) FROM {d} AS a JOIN {d} AS b ON a.n = b.n GROUP BY a.n",
                "SELECT d.n, d.total FROM {d} AS d WHERE d.total IS NULL OR d.total > 0",
            ]
        )
        if self.rng.random() < 0.5:
            return f"WITH cte AS ({inner}) " + outer.replace("{d}", "cte"), False
        return outer.replace("{d}", f"({inner})"), False

    def window(self) -> tuple[str, bool]:
        source, fields = self.single()
        unique = next(field.sql for field in fields if field.sql.endswith(".id"))
        partition = f"PARTITION BY {self.group_key(fields)} " if self.rng.random() < 0.7 else ""
        frame = self.rng.choice(
            ["", " ROWS BETWEEN 2 PRECEDING AND CURRENT ROW", " ROWS BETWEEN CURRENT ROW AND 3 FOLLOWING"]
        )
        over = f"OVER ({partition}ORDER BY {unique}{{frame}})"
        field = self.rng.choice(fields).sql
        call = self.rng.choice(
            [
                "row_number() " + over.format(frame=""),
                "rank() " + over.format(frame=""),
                f"lag({field}, {self.rng.randint(1, 3)}) " + over.format(frame=""),
                f"lead({field}) " + over.format(frame=""),
                f"count({field}) " + over.format(frame=frame),
                f"{self.total(fields)} " + over.format(frame=frame),
            ]
        )
        return f"SELECT {unique} AS id, {call} AS w FROM {source}{self.where(fields)}", False

    # FROM

    def single(self) -> tuple[str, list[Field]]:
        table = self.rng.choice(self.tables)
        alias = f"a{self.aliases}"
        self.aliases += 1
        some = self.rng.sample(table.rows, min(len(table.rows), 10))
        fields = [
            Field(f"{alias}.{column.name}", column.kind, column.sql_type, tuple(row[i] for row in some))
            for i, column in enumerate(table.columns)
        ]
        return f"{table.name} AS {alias}", fields

    def source(self) -> tuple[str, list[Field]]:
        """One table, or two or three joined."""
        source, fields = self.single()
        for _ in range(self.rng.choice([0, 0, 0, 1, 1, 2])):
            other, others = self.single()
            kind = self.rng.choice(["JOIN", "JOIN", "LEFT JOIN", "RIGHT JOIN", "FULL JOIN"])
            on = self.join_condition(fields, others)
            if kind == "JOIN" and self.rng.random() < 0.3:
                on += f" AND {self.predicate(fields + others, depth=1)}"
            elif kind == "LEFT JOIN" and self.rng.random() < 0.3:
                on += f" AND {self.predicate(others, depth=0)}"
            source = f"{source} {kind} {other} ON {on}"
            fields = fields + others
        return source, fields

    def join_condition(self, left: list[Field], right: list[Field]) -> str:
        """Few matches per row: by a unique column on one side at least."""
        if self.rng.random() < 0.25:
            kind = self.rng.choice([TEXT, DATE])
            pairs = [(a, b) for a in left for b in right if a.kind == b.kind == kind]
            if pairs:
                a, b = self.rng.choice(pairs)
                return f"{a.sql} = {b.sql} AND {right[0].sql} < 20"
        name = self.rng.choice([".k", ".id"])
        a = self.rng.choice([field for field in left if field.sql.endswith((".k", ".id"))])
        b = next(field for field in right if field.sql.endswith(name))
        if a.sql.endswith(".k") and name == ".k":
            return f"{a.sql} = {b.sql} AND {right[0].sql} < 40"
        return f"{a.sql} = {b.sql}"

    # WHERE

    def where(self, fields: list[Field]) -> str:
        return f" WHERE {self.predicate(fields, depth=2)}" if self.rng.random() < 0.7 else ""

    def predicate(self, fields: list[Field], depth: int) -> str:
        choice = self.rng.random()
        if depth > 0 and choice < 0.5:
            match self.rng.randint(0, 3):
                case 0:
                    return f"NOT ({self.predicate(fields, depth - 1)})"
                case 1 | 2:
                    return f"({self.predicate(fields, depth - 1)} OR {self.predicate(fields, depth - 1)})"
                case _:
                    return f"({self.predicate(fields, depth - 1)} AND {self.predicate(fields, depth - 1)})"
        if depth > 1 and choice < 0.6:
            return self.subquery_predicate(fields)
        return self.simple_predicate(fields)

    def simple_predicate(self, fields: list[Field]) -> str:
        field = self.rng.choice(fields)
        shape = self.rng.random()
        if shape < 0.1:
            return f"{field.sql} IS {self.rng.choice(['', 'NOT '])}NULL"
        if field.kind == BOOLEAN:
            return self.rng.choice([field.sql, f"NOT {field.sql}", f"{field.sql} IS TRUE", f"{field.sql} IS NOT FALSE"])
        if field.kind == DECIMAL and shape < 0.4:
            return self.rounded(field)
        if field.kind == INTEGER and shape < 0.2:
            return self.guarded(field)
        if field.kind == TEXT and shape < 0.35:
            pattern = self.rng.choice(["a%", "%a", "%b%", "_", "a_c", "a rather long%", "%", "", "%text, t%"])
            return f"{field.sql} {self.rng.choice(['', 'NOT '])}LIKE '{pattern}'"
        if shape < 0.25:
            low, high = self.literal(field), self.literal(field)
            return f"{field.sql} {self.rng.choice(['', 'NOT '])}BETWEEN {low} AND {high}"
        if shape < 0.45:
            listed = [self.literal(field) for _ in range(self.rng.randint(1, 5))]
            if self.rng.random() < 0.15:
                listed.append("NULL")
            if self.rng.random() < 0.15:
                listed.append(self.rng.choice(self.peers(fields, field)).sql)
            found = f"{field.sql} {self.rng.choice(['', 'NOT '])}IN ({', '.join(listed)})"
            if self.rng.random() < 0.3:
                others = ", ".join(self.rng.sample(listed, self.rng.randint(1, len(listed))) + [self.literal(field)])
                operator = self.rng.choice(["AND", "OR"])
                found = f"({found} {operator} {field.sql} {self.rng.choice(['', 'NOT '])}IN ({others}))"
            return found
        operator = self.rng.choice(["=", "<>", "<", "<=", ">", ">=", "IS DISTINCT FROM", "IS NOT DISTINCT FROM"])
        if shape < 0.6:
            return f"({field.sql} {operator} {self.rng.choice(self.peers(fields, field)).sql})"
        if field.kind == INTEGER and shape < 0.65:
            return f"({field.sql} {operator} {self.rng.randint(-200, 200) / 4})"
        if shape < 0.75 and field.kind in (INTEGER, FLOAT):
            return f"({self.scalar(fields, field.kind)} {operator} {self.scalar(fields, field.kind)})"
        return f"({field.sql} {operator} {self.literal(field)})"

    def digits(self, field: Field) -> str:
        """A decimal with fewer digits after the point than the field has, or as an integer."""
        precision, scale = (int(number) for number in field.sql_type[len("DECIMAL("):-1].split(","))
        places = self.rng.randint(0, scale)
        return self.rng.choice([
            f"round({field.sql}, {places})", f"floor({field.sql})", f"ceil({field.sql})",
            f"CAST({field.sql} AS DECIMAL({precision},{places}))", f"CAST({field.sql} AS BIGINT)",
        ])  # fmt: skip

    def rounded(self, field: Field) -> str:
        """What loses digits, beside constants: of values that the field has, rounded or not."""
        lossy, operator = self.digits(field), self.rng.choice(["=", "<>", "<", "<=", ">", ">="])
        value = self.rng.choice(field.values) if field.values else None
        value = value if isinstance(value, Decimal) else Decimal(self.rng.randint(-400, 400)) / 4
        constants = [f"{value:f}", f"{round(value, 1):f}", f"{round(value, 2):f}", f"{round(value, 0):f}"]
        constant = self.rng.choice(constants)
        return self.rng.choice([
            f"({lossy} {operator} {constant})",
            f"({lossy} {operator} {field.sql})",
            f"{lossy} {self.rng.choice(['', 'NOT '])}IN ({', '.join(self.rng.sample(constants, self.rng.randint(1, 4)))})",
            f"{lossy} BETWEEN {constant} AND {self.rng.choice(constants)}",
        ])  # fmt: skip

    def guarded(self, field: Field) -> str:
        """A remainder that fails where its guard does not hold. DuckDB evaluates both sides of an AND or OR."""
        fallible = f"{self.rng.randint(20, 120)} % CAST({field.sql} AS BIGINT) {self.rng.choice(['>', '=', '<'])} {self.rng.randint(0, 9)}"
        otherwise = self.rng.choice(["TRUE", "FALSE", "NULL"])
        return self.rng.choice([
            f"CASE WHEN {field.sql} = 0 THEN {otherwise} ELSE {fallible} END",
            f"CASE WHEN {field.sql} <> 0 THEN {fallible} END",
            f"coalesce(CASE WHEN {field.sql} = 0 THEN {otherwise} ELSE {fallible} END, FALSE)",
        ])  # fmt: skip

    def peers(self, fields: list[Field], field: Field) -> list[Field]:
        """The fields of the same type; itself at least."""
        return [other for other in fields if other.kind == field.kind and other.sql_type == field.sql_type]

    def subquery_predicate(self, fields: list[Field]) -> str:
        source, inner = self.single()
        outer = self.rng.choice([field for field in fields if field.sql.endswith((".k", ".id"))])
        key = next(field for field in inner if field.sql.endswith(".k"))
        some = self.predicate(inner, depth=0)
        negation = self.rng.choice(["", "NOT "])
        match self.rng.randint(0, 2):
            case 0:
                return f"{negation}EXISTS (SELECT 1 FROM {source} WHERE {key.sql} = {outer.sql} AND {some})"
            case 1:
                return f"{outer.sql} {negation}IN (SELECT {key.sql} FROM {source} WHERE {some})"
        return (
            f"{outer.sql} > (SELECT {self.rng.choice(['min', 'max', 'count'])}({key.sql}) FROM {source} WHERE {some})"
        )

    # SELECT

    def outputs(self, fields: list[Field], most: int = 5) -> str:
        outputs = [self.scalar(fields, self.kind(fields)) for _ in range(self.rng.randint(1, most))]
        return ", ".join(f"{output} AS o{i}" for i, output in enumerate(outputs))

    def kind(self, fields: list[Field]) -> str:
        return self.rng.choice(fields).kind

    def field(self, fields: list[Field], kind: str) -> Field | None:
        found = [field for field in fields if field.kind == kind]
        return self.rng.choice(found) if found else None

    def scalar(self, fields: list[Field], kind: str, depth: int = 2) -> str:
        """An expression of the kind, over a field of it if there is one."""
        field = self.field(fields, kind)
        if field is None:
            return self.constant(kind)
        if depth == 0 or kind in (EXTREME, BIGINT, TIMESTAMP) or self.rng.random() < 0.4:
            # Set operations want the same type on both sides.
            return f"CAST({field.sql} AS BIGINT)" if kind == INTEGER else field.sql
        deeper = lambda: self.scalar(fields, kind, depth - 1)  # noqa: E731
        shapes: dict[str, list[Callable[[], str]]] = {
            INTEGER: [
                lambda: f"({deeper()} + {deeper()})",
                lambda: f"({deeper()} - {deeper()})",
                lambda: f"({deeper()} * {self.rng.randint(-9, 9)})",
                lambda: f"({deeper()} % {self.rng.randint(2, 9)})",
                lambda: f"abs({deeper()})",
                lambda: f"coalesce({deeper()}, {self.constant(INTEGER)})",
                lambda: f"nullif({deeper()}, {self.constant(INTEGER)})",
                lambda: f"CASE WHEN {self.predicate(fields, 0)} THEN {deeper()} ELSE {deeper()} END",
            ],
            DECIMAL: [
                lambda: f"({field.sql} + {field.sql})",
                lambda: f"coalesce({field.sql}, CAST(0 AS {field.sql_type}))",
                lambda: f"CASE WHEN {self.predicate(fields, 0)} THEN {field.sql} END",
                lambda: f"abs({field.sql})",
                lambda: f"coalesce({field.sql}, {self.rng.randint(-200, 200) / 4})",
                lambda: f"CAST({field.sql} / {self.rng.randint(1, 40) / 4} AS DOUBLE)",
                lambda: self.digits(field),
                lambda: f"CAST({field.sql} AS DOUBLE)",
            ],
            FLOAT: [
                lambda: f"({deeper()} + {deeper()})",
                lambda: f"({deeper()} - {self.constant(FLOAT)})",
                lambda: f"({deeper()} * {self.rng.randint(1, 8) / 4})",
                lambda: f"coalesce({field.sql}, {self.rng.randint(-200, 200) / 4})",
                lambda: f"CASE WHEN {self.predicate(fields, 0)} THEN {field.sql} ELSE 0.0 END",
                lambda: f"CASE WHEN {self.predicate(fields, 0)} THEN {field.sql} END",
                lambda: f"CAST({field.sql} AS DOUBLE)",
            ],
            BOOLEAN: [
                lambda: f"({self.predicate(fields, 1)})",
                lambda: f"coalesce({field.sql}, {self.rng.choice(['TRUE', 'FALSE'])})",
            ],
            DATE: [
                lambda: f"CAST({field.sql} + INTERVAL '{self.rng.randint(1, 40)} days' AS DATE)",
                lambda: f"coalesce({field.sql}, {self.constant(DATE)})",
                lambda: f"CAST(date_trunc('month', {field.sql}) AS DATE)",
            ],
            TEXT: [
                lambda: f"upper({deeper()})",
                lambda: f"substring({deeper()}, 1, {self.rng.randint(1, 20)})",
                lambda: f"({deeper()} || '-' || {deeper()})",
                lambda: f"coalesce({deeper()}, 'none')",
                lambda: f"replace({field.sql}, 'a', 'xy')",
                lambda: f"CASE WHEN {self.predicate(fields, 0)} THEN {field.sql} ELSE 'other' END",
            ],
        }
        return self.rng.choice(shapes[kind])()

    def constant(self, kind: str) -> str:
        match kind:
            case "integer" | "bigint" | "extreme":
                return f"CAST({self.rng.randint(-50, 50)} AS BIGINT)"
            case "decimal":
                return f"CAST({self.rng.randint(-50, 50)} AS DECIMAL(9,2))"
            case "float":
                return f"CAST({self.rng.randint(-200, 200) / 4} AS DOUBLE)"
            case "boolean":
                return self.rng.choice(["TRUE", "FALSE"])
            case "date":
                return f"DATE '{dt.date(2020, 1, 1) + dt.timedelta(days=self.rng.randint(0, 400))}'"
            case "timestamp":
                return f"TIMESTAMP '{dt.datetime(2020, 1, 1) + dt.timedelta(hours=self.rng.randint(0, 9600))}'"
        return "'" + self.rng.choice(WORDS) + "'"

    def literal(self, field: Field) -> str:
        """A value of the field's type; mostly one that the field has somewhere."""
        value = self.rng.choice(field.values) if field.values and self.rng.random() < 0.7 else None
        if value is None:
            value = _value(self.rng, Column("", field.sql_type, field.kind))
        match field.kind:
            case "decimal":
                plain = f"{value:f}" if isinstance(value, Decimal) else str(value)
                return self.rng.choice([plain, f"CAST('{value}' AS {field.sql_type})"])
            case "float":
                return self.rng.choice([str(value), f"CAST({value} AS {field.sql_type})"])
            case "date":
                return f"DATE '{value}'"
            case "timestamp":
                return f"TIMESTAMP '{value}'"
            case "text":
                return f"'{value}'"
        return str(value)

    # GROUP BY

    def group_key(self, fields: list[Field]) -> str:
        field = self.rng.choice(fields)
        if field.kind == INTEGER and self.rng.random() < 0.3:
            return f"(CAST({field.sql} AS BIGINT) % {self.rng.randint(2, 9)})"
        if field.kind == TEXT and self.rng.random() < 0.3:
            return f"substring({field.sql}, 1, 1)"
        if field.kind == DATE and self.rng.random() < 0.3:
            return f"extract(MONTH FROM {field.sql})"
        return field.sql

    def total(self, fields: list[Field]) -> str:
        """A sum, of whatever can be summed exactly."""
        field = self.rng.choice([field for field in fields if field.kind in (INTEGER, BIGINT, DECIMAL, FLOAT)])
        return f"sum(CAST({field.sql} AS BIGINT))" if field.kind == INTEGER else f"sum({field.sql})"

    def aggregate_of(self, fields: list[Field]) -> str:
        field = self.rng.choice(fields)
        ordered = field.sql if field.kind != BOOLEAN else next(f.sql for f in fields if f.sql.endswith(".id"))
        shapes = [
            "count(*)",
            f"count({field.sql})",
            f"count(DISTINCT {field.sql})",
            self.total(fields),
            self.total(fields),
            f"min({ordered})",
            f"max({ordered})",
            f"count(*) FILTER (WHERE {self.predicate(fields, 1)})",
            f"{self.total(fields)} FILTER (WHERE {self.predicate(fields, 0)})",
        ]
        if field.kind in (INTEGER, DECIMAL, FLOAT):
            shapes.append(f"avg(CAST({field.sql} AS DOUBLE))")
        if field.kind == BOOLEAN:
            shapes.append(f"{self.rng.choice(['bool_and', 'bool_or'])}({field.sql})")
        return self.rng.choice(shapes)

    def exact_aggregate_of(self, fields: list[Field]) -> str:
        field = self.rng.choice(fields)
        ordered = field.sql if field.kind != BOOLEAN else next(f.sql for f in fields if f.sql.endswith(".id"))
        shapes = ["count(*)", f"count({field.sql})", self.total(fields), f"min({ordered})", f"max({ordered})"]
        if field.kind == INTEGER:
            shapes.append(f"avg({field.sql})")
        return self.rng.choice(shapes)

    def having(self, fields: list[Field]) -> str:
        return self.rng.choice(
            [
                f"count(*) > {self.rng.choice([0, 1, 3, 10])}",
                f"{self.total(fields)} > 0",
                f"count({self.rng.choice(fields).sql}) = count(*)",
                f"min({next(f.sql for f in fields if f.sql.endswith('.id'))}) < 5",
            ]
        )
