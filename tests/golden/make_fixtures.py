"""Writes tests/golden/fixtures/: the tables that the golden queries run over. Deterministic: same seed, same files.

Each table aims at something an engine gets wrong: types at their limits, NULLs everywhere, block edges (1,024, 1,025,
65,536 and 70,003 rows), strings that share long prefixes, columns that are all NULL or constant. A file's stem is its
table's name. Timestamps stay within 1700-2200 outside of `calendar`, and -0.0, NaN and infinity within `floats`, so
that only queries that mean to meet them do.

    bench/peers/setup.sh && bench/peers/.venv/bin/python tests/golden/make_fixtures.py
"""

import csv
import datetime as dt
import random
import tempfile
from collections.abc import Callable, Iterable
from decimal import Decimal
from pathlib import Path

import duckdb

SEED = 20250307
FIXTURES = Path(__file__).parent / "fixtures"
NULL = "\\N"
NULL_SHARE = 0.15

ALL_TYPES = {
    "b": "BOOLEAN",
    "i8": "TINYINT",
    "i16": "SMALLINT",
    "i32": "INTEGER",
    "i64": "BIGINT",
    "u8": "UTINYINT",
    "u16": "USMALLINT",
    "u32": "UINTEGER",
    "u64": "UBIGINT",
    "f32": "REAL",
    "f64": "DOUBLE",
    "d9": "DECIMAL(9,2)",
    "d18": "DECIMAL(18,4)",
    "d38": "DECIMAL(38,10)",
    "dt": "DATE",
    "ts": "TIMESTAMP",
    "s": "VARCHAR",
}

STRINGS = [
    "", " ", "a", "A", "b", "abc", "ABC", "aBc", "abcdefghijkl", "abcdefghijklm", "abcdefghijklmnopqrstuvwxyz",
    "0", "10", "9", "100%", "50_50", "back\\slash", "it's", "\"quoted\"", "comma, inside", "tab\there",
    "né", "né", "Ä", "ß", "ςσ", "日本語", "日本語のとても長い文字列です", "🙂", "🙂🙃", "a🙂b", "Ελλάδα",
    "trailing ", " leading", "  both  ", "x" * 300, "NULL", "null", "(empty)", "true",
]  # fmt: skip
LONG_PREFIX = "https://example.org/a/long/common/prefix/that/no/inlined/head/can/tell/apart/"


def integer_limits(bits: int, signed: bool) -> list[int]:
    low, high = (-(2 ** (bits - 1)), 2 ** (bits - 1) - 1) if signed else (0, 2**bits - 1)
    return [low, high, low + 1, high - 1, 0, 1, -1 if signed else 2]


LIMITS: dict[str, list] = {
    "b": [True, False],
    "i8": integer_limits(8, True),
    "i16": integer_limits(16, True),
    "i32": integer_limits(32, True),
    "i64": integer_limits(64, True),
    "u8": integer_limits(8, False),
    "u16": integer_limits(16, False),
    "u32": integer_limits(32, False),
    "u64": integer_limits(64, False),
    "f32": [3.4028234663852886e38, -3.4028234663852886e38, 1.1754943508222875e-38, 0.0, 1.5, -0.25, 16777216.0],
    "f64": [1.7976931348623157e308, -1.7976931348623157e308, 2.2250738585072014e-308, 0.0, 0.1, -1e-9, 2.0**53],
    "d9": [Decimal("9999999.99"), Decimal("-9999999.99"), Decimal("0.00"), Decimal("0.01"), Decimal("-0.01")],
    "d18": [Decimal("99999999999999.9999"), Decimal("-99999999999999.9999"), Decimal("0.0000"), Decimal("0.0001")],
    "d38": [Decimal("9" * 28 + "." + "9" * 10), Decimal("-" + "9" * 28 + "." + "9" * 10), Decimal(0), Decimal("1E-10")],
    "dt": [dt.date(1, 1, 1), dt.date(9999, 12, 31), dt.date(1970, 1, 1), dt.date(1969, 12, 31), dt.date(2024, 2, 29)],
    "ts": [
        dt.datetime(1700, 1, 1),
        dt.datetime(2199, 12, 31, 23, 59, 59, 999999),
        dt.datetime(1970, 1, 1),
        dt.datetime(1969, 12, 31, 23, 59, 59, 999999),
        dt.datetime(2024, 2, 29, 12, 34, 56, 789000),
    ],
    "s": STRINGS,
}  # fmt: skip

Row = list


def written(value: object) -> object:
    """A value as DuckDB's CSV reader takes it."""
    match value:
        case None:
            return NULL
        case bool():
            return "true" if value else "false"
        case float():
            return repr(value)
        case Decimal():
            return f"{value:f}"
        case _:
            return value


def save(name: str, columns: dict[str, str], rows: Iterable[Row]) -> None:
    path = FIXTURES / f"{name}.parquet"
    with tempfile.TemporaryDirectory() as folder:
        text = Path(folder) / "rows.csv"
        with text.open("w", newline="", encoding="utf-8") as file:
            csv.writer(file, quoting=csv.QUOTE_ALL).writerows([written(value) for value in row] for row in rows)
        with duckdb.connect() as con:
            con.execute("SET threads = 1")
            con.execute(f"CREATE TABLE t ({', '.join(f'{column} {kind}' for column, kind in columns.items())})")
            con.execute(
                f"INSERT INTO t SELECT * FROM read_csv('{text}', header = false, auto_detect = false, delim = ',', "
                f"quote = '\"', escape = '\"', nullstr = '{NULL}', allow_quoted_nulls = true, "
                f"columns = {columns})"
            )
            con.execute(f"COPY t TO '{path}' (FORMAT parquet, COMPRESSION zstd, COMPRESSION_LEVEL 19)")


def maybe(rng: random.Random, value: object, share: float = NULL_SHARE) -> object:
    return None if rng.random() < share else value


def any_value(rng: random.Random, column: str) -> object:
    """Half of the values are at or near a limit, half are ordinary."""
    if rng.random() < 0.5:
        return rng.choice(LIMITS[column])
    match column:
        case "b":
            return rng.random() < 0.5
        case "f32" | "f64":
            return rng.randint(-4000, 4000) / 4
        case "d9":
            return Decimal(rng.randint(-99999, 99999)).scaleb(-2)
        case "d18":
            return Decimal(rng.randint(-(10**9), 10**9)).scaleb(-4)
        case "d38":
            return Decimal(rng.randint(-(10**20), 10**20)).scaleb(-10)
        case "dt":
            return dt.date(1990, 1, 1) + dt.timedelta(days=rng.randint(0, 12000))
        case "ts":
            return dt.datetime(1990, 1, 1) + dt.timedelta(microseconds=rng.randint(0, 10**15))
        case "s":
            return f"{LONG_PREFIX}{rng.randint(0, 40):04}"
        case unsigned if unsigned.startswith("u"):
            return rng.randint(0, 100)
        case _:
            return rng.randint(-100, 100)


def types(rng: random.Random) -> None:
    columns = {"id": "INTEGER"} | ALL_TYPES
    deepest = max(len(values) for values in LIMITS.values())
    rows = [[i] + [LIMITS[c][i] if i < len(LIMITS[c]) else None for c in ALL_TYPES] for i in range(deepest)]
    rows += [[i] + [maybe(rng, any_value(rng, c)) for c in ALL_TYPES] for i in range(deepest, 240)]
    rng.shuffle(rows)
    save("types", columns, rows)
    save("empty_table", columns, [])
    save("one_row", columns, [[7, True, 1, 2, 3, 4, 5, 6, 7, 8, 1.5, 2.25, "1.10", "2.2000", "3.3", "2021-03-04",
                               "2021-03-04 05:06:07.089", "one"]])  # fmt: skip
    save("all_null", columns, [[i] + [None] * len(ALL_TYPES) for i in range(100)])


def numbers(rng: random.Random) -> None:
    """Ordinary values: sums and products stay in range, floats are quarters, so that their sums are exact."""
    columns = {
        "id": "INTEGER", "g": "INTEGER", "h": "VARCHAR", "k": "BIGINT", "a": "INTEGER", "b": "SMALLINT", "q": "BIGINT",
        "x": "DOUBLE", "r": "REAL", "p": "DECIMAL(9,2)", "w": "DECIMAL(18,4)", "z": "DECIMAL(38,10)", "flag": "BOOLEAN",
        "day": "DATE", "moment": "TIMESTAMP", "seq": "INTEGER",
    }  # fmt: skip
    rows = []
    for i in range(500):
        rows.append(
            [
                i,
                maybe(rng, rng.randint(0, 6), 0.1),
                maybe(rng, rng.choice("abcd"), 0.1),
                rng.randint(0, 40),
                maybe(rng, rng.randint(-1000, 1000)),
                maybe(rng, rng.randint(-50, 50)),
                maybe(rng, rng.randint(-(10**12), 10**12)),
                maybe(rng, rng.randint(-4000, 4000) / 4),
                maybe(rng, rng.randint(-400, 400) / 4),
                maybe(rng, Decimal(rng.randint(-(10**6), 10**6)).scaleb(-2)),
                maybe(rng, Decimal(rng.randint(-(10**10), 10**10)).scaleb(-4)),
                maybe(rng, Decimal(rng.randint(-(10**18), 10**18)).scaleb(-10)),
                maybe(rng, rng.random() < 0.5),
                maybe(rng, dt.date(2020, 1, 1) + dt.timedelta(days=rng.randint(0, 1460))),
                maybe(rng, dt.datetime(2020, 1, 1) + dt.timedelta(milliseconds=rng.randint(0, 10**11))),
                i // 10,
            ]
        )
    rng.shuffle(rows)
    save("numbers", columns, rows)


def floats() -> None:
    nan, inf = float("nan"), float("inf")
    xs = [0.0, -0.0, nan, inf, -inf, 5e-324, -5e-324, 1.0, -1.0, 1e308, -1e308, None, nan, 0.5]
    rs = [0.0, -0.0, nan, inf, -inf, 1e-45, -1e-45, 1.0, -1.0, 3e38, -3e38, None, 2.5, nan]
    save("floats", {"id": "INTEGER", "x": "DOUBLE", "r": "REAL"}, [[i, x, r] for i, (x, r) in enumerate(zip(xs, rs))])


def calendar() -> None:
    """Dates and timestamps to the ends of what fits, leap days, ends of months and of years."""
    days = ["0001-01-01", "1582-10-15", "1600-02-29", "1900-02-28", "1969-12-31", "1970-01-01", "2000-02-29",
            "2020-12-31", "2021-01-01", "2021-01-03", "2021-01-04", "2023-02-28", "2024-02-29", "2024-12-30",
            "2038-01-19", "9999-12-31", None]  # fmt: skip
    rows = []
    for i, day in enumerate(days):
        rows.append(
            [i, day, None if day is None else f"{day} {(i * 7) % 24:02}:{(i * 13) % 60:02}:{i:02}.{i * 1001:06}"]
        )
    save("calendar", {"id": "INTEGER", "day": "DATE", "moment": "TIMESTAMP"}, rows)


def strings(rng: random.Random) -> None:
    rows = [[i, text, maybe(rng, rng.choice("xyz"))] for i, text in enumerate(STRINGS)]
    for n in range(60):
        rows.append([len(rows), f"{LONG_PREFIX}{n:04}", maybe(rng, rng.choice("xyz"))])
    for n in range(20):
        rows.append([len(rows), f"item-{n % 7:03}", maybe(rng, rng.choice("xyz"))])
    rows += [[len(rows) + i, None, "z"] for i in range(8)]
    rng.shuffle(rows)
    save("strings", {"id": "INTEGER", "s": "VARCHAR", "t": "VARCHAR"}, rows)


def constants() -> None:
    columns = {"id": "INTEGER", "c_int": "INTEGER", "c_big": "BIGINT", "c_str": "VARCHAR", "c_date": "DATE",
               "c_dec": "DECIMAL(9,2)", "c_bool": "BOOLEAN", "c_some": "INTEGER", "c_text": "VARCHAR"}  # fmt: skip
    rows = (
        [i, 42, -(2**62), "the same string, longer than inline", "2022-05-06", "3.14", True]
        + ([None, None] if i % 3 == 0 else [7, "q"])
        for i in range(2000)
    )
    save("constants", columns, rows)


def big(rng: random.Random) -> None:
    """More than one block of 65,536 rows. `late` is NULL in the whole first block; `tail` differs in one row."""
    columns = {"id": "INTEGER", "u": "INTEGER", "g": "TINYINT", "v": "SMALLINT", "late": "INTEGER", "tail": "SMALLINT",
               "day": "DATE", "code": "VARCHAR", "amount": "DECIMAL(9,2)", "x": "DOUBLE"}  # fmt: skip
    count, start = 70_003, dt.date(2020, 1, 1)
    order = list(range(count))
    rng.shuffle(order)
    rows = (
        [
            i,
            order[i],
            None if i % 13 == 0 else i % 10,
            rng.randint(0, 99),
            None if i < 65_536 else i - 65_536,
            8 if i == 69_000 else 7,
            start + dt.timedelta(days=i // 100),
            f"k-{i // 10 // 100:02}-{i // 10 % 100:03}",
            Decimal(i % 997 * 25 - 10_000).scaleb(-2),
            None if i % 17 == 0 else (i % 401 - 200) / 4,
        ]
        for i in range(count)
    )
    save("big", columns, rows)


def edges() -> None:
    columns = {"id": "INTEGER", "k": "INTEGER", "s": "VARCHAR", "v": "BIGINT"}
    for count in (1024, 1025, 65_536):
        rows = ([i, None if i % 11 == 0 else i % 7, f"row-{i % 100:02}", i * i % 1009] for i in range(count))
        save(f"rows_{count}", columns, rows)


def star(rng: random.Random) -> None:
    start, cities = dt.date(2023, 1, 1), ["Oslo", "Lima", "Kyoto", "Quito", "Paris", "Accra"]
    regions = {"Oslo": "north", "Lima": "south", "Kyoto": "east", "Quito": "south", "Paris": "north", "Accra": None}
    days = [start + dt.timedelta(days=i) for i in range(365)]
    key = lambda day: day.year * 10_000 + day.month * 100 + day.day  # noqa: E731
    save(
        "dates",
        {"date_key": "INTEGER", "day": "DATE", "year": "SMALLINT", "month": "TINYINT", "weekday": "VARCHAR",
         "is_holiday": "BOOLEAN"},
        ([key(d), d, d.year, d.month, d.strftime("%A"), (d.month, d.day) in {(1, 1), (5, 1), (12, 25)}] for d in days),
    )  # fmt: skip
    stores = []
    for i in range(1, 25):
        city = cities[i % len(cities)]
        opened = maybe(rng, dt.date(2000, 1, 1) + dt.timedelta(days=rng.randint(0, 8000)))
        stores.append([i, f"Store #{i:02}", city, regions[city], opened])
    save("stores", {"store_id": "INTEGER", "name": "VARCHAR", "city": "VARCHAR", "region": "VARCHAR", "opened": "DATE"},
         stores)  # fmt: skip
    items = []
    for i in range(1, 81):
        brand = f"Brand#{i % 5}{i % 3}"
        items.append(
            [i, f"Item {i:03}", brand, maybe(rng, f"category-{i % 6}", 0.1), Decimal(rng.randint(100, 9999)).scaleb(-2)]
        )
    save("items", {"item_id": "INTEGER", "name": "VARCHAR", "brand": "VARCHAR", "category": "VARCHAR",
                   "cost": "DECIMAL(9,2)"}, items)  # fmt: skip
    sales = []
    for i in range(4000):
        day = key(days[i * 365 // 4000]) if rng.random() < 0.98 else 20240101
        sales.append(
            [
                i,
                day,
                maybe(rng, rng.randint(1, 20), 0.03),
                rng.randint(1, 84),
                rng.randint(1, 50),
                Decimal(rng.randint(100, 20_000)).scaleb(-2),
                maybe(rng, rng.randint(0, 10), 0.05),
            ]
        )
    save("sales", {"sale_id": "INTEGER", "date_key": "INTEGER", "store_id": "INTEGER", "item_id": "INTEGER",
                   "quantity": "SMALLINT", "price": "DECIMAL(9,2)", "discount": "TINYINT"}, sales)  # fmt: skip


def small(rng: random.Random) -> None:
    """Keys with NULLs, duplicates and strangers on both sides; bags with repeated rows; a tree."""
    words = ["alpha", "beta", "gamma", "delta", "a rather long key, shared", "a rather long key, shared too", ""]
    for name, count, payload in (("left_side", 40, "v"), ("right_side", 30, "w")):
        low = 0 if name == "left_side" else 6
        rows = []
        for i in range(count):
            key = rng.randint(low, low + 14)
            rows.append([i, maybe(rng, key), maybe(rng, rng.choice(words)), maybe(rng, rng.randint(0, 99))])
        save(name, {"id": "INTEGER", "k": "INTEGER", "word": "VARCHAR", payload: "INTEGER"}, rows)
    for name in ("bag_a", "bag_b"):
        rows = [[maybe(rng, rng.randint(0, 3)), maybe(rng, rng.choice(["p", "q", ""]))] for _ in range(25)]
        save(name, {"n": "INTEGER", "c": "VARCHAR"}, rows)
    save("keys", {"k": "INTEGER"}, [[k] for k in (1, 3, 5, 7, 9, 11, 13)])
    save("keys_null", {"k": "INTEGER"}, [[k] for k in (1, 3, None, 7, 9)])
    tree = [[1, None, "root"]] + [[i, rng.randint(1, i - 1), f"node {i:02}"] for i in range(2, 31)]
    save("tree", {"id": "INTEGER", "parent": "INTEGER", "name": "VARCHAR"}, tree)


def text_files() -> None:
    people = [
        ["id", "name", "born", "height", "member"],
        [1, "Ada", "1815-12-10", 1.65, "true"],
        [2, "Grace, Rear Admiral", "1906-12-09", 1.68, "true"],
        [3, 'Alan "Prof" T', "1912-06-23", 1.78, "false"],
        [4, "Ørsted", "", "", "false"],
        [5, "日本 太郎", "2000-02-29", 1.7, ""],
    ]
    with (FIXTURES / "people.csv").open("w", newline="", encoding="utf-8") as file:
        csv.writer(file, lineterminator="\n").writerows(people)
    # As TPC's and SSB's reference generators write: no header, a pipe after every field.
    lines = [f"{i}|name {i:03}|{i * 25}.{i % 100:02}|1995-03-{i % 28 + 1:02}|\n" for i in range(1, 51)]
    (FIXTURES / "pipes.tbl").write_text("".join(lines))
    # Directories named by keys and values, as Spark and Hive write them.
    visits = [
        ("day=2024-02-29/room=7/city=Paris%2FNord", [(1, 2.5), (2, 3.25)]),
        ("day=2024-02-29/room=11/city=Lyon", [(3, 1.0)]),
        ("day=2024-03-01/room=7/city=__HIVE_DEFAULT_PARTITION__", [(4, 0.5), (5, 8.0)]),
        ("day=2024-03-01/room=-2/city=Aix en Provence", [(6, 4.0)]),
    ]
    for directory, rows in visits:
        (FIXTURES / "visits" / directory).mkdir(parents=True, exist_ok=True)
        with (FIXTURES / "visits" / directory / "part-0.csv").open("w", newline="", encoding="utf-8") as file:
            csv.writer(file, lineterminator="\n").writerows([("id", "hours"), *rows])


def main() -> None:
    FIXTURES.mkdir(exist_ok=True)
    makers: list[Callable[[random.Random], None]] = [types, numbers, strings, big, star, small]
    for maker in makers:
        maker(random.Random(f"{SEED} {maker.__name__}"))
    floats()
    calendar()
    constants()
    edges()
    text_files()
    files = sorted(FIXTURES.iterdir())
    print(f"{len(files)} files, {sum(file.stat().st_size for file in files)} bytes in {FIXTURES}")


if __name__ == "__main__":
    main()
