"""Strings as values of every type, against the answers of PostgreSQL and DuckDB: thousands of texts, cast one by one and as columns.

    bench/peers/.venv/bin/python tests/differential/conversions.py [--onehop target/release/onehop] [--canary] [--fill]

The texts follow from a fixed seed. `conversions.tsv` keeps the answers: type, text, PostgreSQL's answer, and DuckDB's where it
is another (`!` is an error). `--fill` asks both again; PostgreSQL must be installed for it. The engine gives PostgreSQL's answer.
REFUSED and READ name where it does not, as `docs/guide/sql.md` says; anything else that differs fails.
"""

import random
import re
import struct
import sys
from collections.abc import Callable
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2] / "bench" / "peers"))

import command_line  # noqa: E402
from engine import EngineError, Onehop  # noqa: E402

SEED = 7
TEXTS = 340
ANSWERS = Path(__file__).with_suffix(".tsv")
BATCH = 100

DATES = ["2024-02-29", "2024-2-3", "2024/02/03", "20240203", "0001-01-01", "9999-12-31", "1582-10-15", "2024.02.03", "1999-12-31"]
TIMES = ["10:11:12", "1:2", "23:59:59.999999", "00:00:00", "24:00:00", "10:11:12.5", "101112", "10:11:60", "12:00 AM", "11:30 PM"]
FRACTIONS = ["", ".1", ".123456", ".1234565", ".9999999", ".0000005", ".0000015", "."]
ZONES = ["", "+02", "-0530", " +05:45", "Z", " UTC", " America/New_York", " EST", " asia/tokyo", "+14", "-12:30", " CET", "+16", " Mars/X"]
NUMBERS = ["0", "1", "12", "-7", "+5", "127", "128", "32767", "32768", "2147483647", "2147483648", "-2147483649", "9223372036854775807",
           "9223372036854775808", "00012", "1.5", "-1.005", "1.004999999999999999999", "0.1", ".5", "5.", "1e3", "1E-3", "2.5e+2", "1e400",
           "1e-400", "3.14159265358979323846", "99999999.994", "99999999.995", "123456789012345678901234567890", "inf", "NaN", "-Infinity"]
BOOLEANS = ["t", "f", "true", "FALSE", "yes", "no", "on", "off", "1", "0", "y", "n", "tr", "fals", "of", "o", "2", "maybe", "truee"]
INTERVALS = ["1 day", "2 hours", "1 year 2 mons", "-3 days", "04:05:06.789", "1.5 days", "0.3 months", "P1DT2H", "1-2", "42", "1.5",
             "1 day ago", "@ 3 weeks", "1 century", "1h30m", "3 4:05", "1.23456789 s", "100:00", "1 week 2 days", "0.5 year", "-1-2",
             "5 bananas", "1 dya", "1:70", "1 month -1 day", "P1Y2M3W", "1.7 ms"]
JUNK = ["", "x", " ", "-", "+", ".", "1 2", "1,5", "0x10", "1_000", "'", "2024", "2024-13-01", "2024-02-30", "25:00", "2024-02-03x", "null"]


def mutated(rng: random.Random, text: str) -> str:
    """The text, or one that a slip of the hand makes of it."""
    kind = rng.random()
    at = rng.randrange(len(text) + 1)
    if kind < 0.6:
        return text
    if kind < 0.7:
        return rng.choice([" ", "\t", "  "]) + text
    if kind < 0.8:
        return text + rng.choice([" ", "\n", "  "])
    if kind < 0.88:
        return text[:at] + text[at + 1 :]
    if kind < 0.95:
        return text[:at] + rng.choice("0123456789.:-/ +eTx") + text[at:]
    return text.upper() if rng.random() < 0.5 else text.lower()


def number(rng: random.Random) -> str:
    if rng.random() < 0.5:
        return rng.choice(NUMBERS)
    digits = "".join(rng.choice("0123456789") for _ in range(rng.randint(1, 12)))
    fraction = "." + "".join(rng.choice("0123456789") for _ in range(rng.randint(1, 8))) if rng.random() < 0.6 else ""
    exponent = rng.choice(["e", "E"]) + str(rng.randint(-12, 12)) if rng.random() < 0.3 else ""
    return rng.choice(["", "-", "+"]) + digits + fraction + exponent


def date(rng: random.Random) -> str:
    if rng.random() < 0.5:
        return rng.choice(DATES)
    mark = rng.choice("-/-- ")
    return f"{rng.randint(1000, 9999):04}{mark}{rng.randint(1, 13)}{mark}{rng.randint(1, 31)}"


def time(rng: random.Random) -> str:
    if rng.random() < 0.5:
        return rng.choice(TIMES)
    return f"{rng.randint(0, 24)}:{rng.randint(0, 60):02}:{rng.randint(0, 60):02}{rng.choice(FRACTIONS)}"


def timestamp(rng: random.Random) -> str:
    if rng.random() < 0.1:
        return date(rng) + rng.choice(ZONES)
    return date(rng) + rng.choice(" TT ") + time(rng) + rng.choice(ZONES)


TYPES: dict[str, Callable[[random.Random], str]] = {
    "BOOLEAN": lambda rng: rng.choice(BOOLEANS),
    "SMALLINT": number,
    "INTEGER": number,
    "BIGINT": number,
    "REAL": number,
    "DOUBLE PRECISION": number,
    "DECIMAL(10,2)": number,
    "DECIMAL(38,10)": number,
    "DATE": lambda rng: timestamp(rng) if rng.random() < 0.4 else date(rng),
    "TIME": lambda rng: timestamp(rng) if rng.random() < 0.2 else time(rng) + rng.choice(["", "", "+02", "Z"]),
    "TIMESTAMP": timestamp,
    "TIMESTAMP(0)": timestamp,
    "TIMESTAMP(3)": timestamp,
    "TIMESTAMPTZ": timestamp,
    "INTERVAL": lambda rng: rng.choice(INTERVALS),
}

# What PostgreSQL reads and the engine refuses: types, texts.
REFUSED = [
    # Hexadecimal numbers, and NaN as a DECIMAL.
    (r"REAL|DOUBLE PRECISION|DECIMAL.*", r"\s*[+-]?(0x[0-9a-f.p+-]+|nan)\s*"),
    # A year of two digits, or one that does not come first; days of the year; names of months.
    (r"DATE|TIME.*", r"\s*(\d{1,2}[-/. ]\d.*|\d{3,}-\d{3}\b.*|\d{5,7}(\D.*)?|\d{9,}.*|.*[a-z]{3,}.*)"),
    # Parts of a date or a time that run into each other.
    (r"DATE|TIME.*", r".*(\d[-/.]\d.*){3,}.*|.*\d{9,}.*|.*[-+/.: ]{2,}.*|.*\d[-/.]\s.*|.*\s[-/.].*|\d{4}\d?[-/. ]\d{3,}.*"),
    # Intervals that begin or end with a mark, or without a number, and numbers directly behind a unit.
    (r"INTERVAL", r"\.|\s*(month|week)\b.*|P1DT2|.*/.*|:.*|1-(\.5)?|.*m\ds?"),
    (r"TIME.*|DATE", r".*[T ]\s*\d{3,}.*|\s*\d+(\.\d*)?\D?.*"),
]
# What the engine reads and PostgreSQL refuses.
READ = [
    # White space around what ISO writes.
    (r"INTERVAL", r"\s*P.*"),
    # A date before a time of day.
    (r"TIME", r"\s*\d{3,}\D.*|\s*\d{8}[ T].*"),
    # An offset to the west directly behind a date.
    (r"DATE|TIMESTAMP.*", r".*\d-\d{1,2}:?\d{2}\s*"),
]


def texts() -> list[tuple[str, str]]:
    rng = random.Random(SEED)
    found = []
    for name, make in TYPES.items():
        own = {text: None for text in JUNK}
        while len(own) < TEXTS:
            text = mutated(rng, make(rng))
            own.setdefault(text)
        # DuckDB and PostgreSQL alike take no text that names the present.
        found += [(name, text) for text in own if not re.search(r"now|today|tomorrow|yesterday|allballs", text, re.I)]
    return found


def quoted(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"


def fill() -> None:
    import duckdb
    from oracle import answer, postgresql

    con = duckdb.connect()
    con.execute("SET TimeZone = 'UTC'")

    def of_duckdb(sql: str) -> str:
        try:
            row = con.execute(sql).fetchone()
        except duckdb.Error:
            return "!"
        return "NULL" if row is None or row[0] is None else str(row[0])

    with postgresql() as server, ANSWERS.open("w", encoding="utf-8") as file:
        for name, text in texts():
            sql = f"SELECT CAST(CAST({quoted(text)} AS {name}) AS VARCHAR)"
            ours, theirs = answer(server, sql), of_duckdb(sql)
            other = "" if theirs == ours else theirs
            file.write("\t".join([name, text.encode("unicode_escape").decode(), ours, other]).rstrip("\t") + "\n")


def known() -> list[tuple[str, str, str]]:
    found = []
    for line in ANSWERS.read_text(encoding="utf-8").splitlines():
        name, text, expected, *_ = line.split("\t")
        found.append((name, text.encode().decode("unicode_escape"), expected))
    return found


def documented(name: str, text: str, got: str, expected: str) -> bool:
    rules = REFUSED if got == "!" else READ if expected == "!" else []
    return any(re.fullmatch(types, name) and re.fullmatch(texts, text, re.I | re.S) for types, texts in rules)


def same(name: str, got: str, expected: str) -> bool:
    """PostgreSQL shows a REAL with more digits than it needs."""
    if name == "REAL" and "!" not in (got, expected):
        return struct.pack("f", float(got)) == struct.pack("f", float(expected))
    return got == expected


def column(engine: Onehop, name: str, batch: list[str]) -> list[str]:
    """The answers of a column of texts, by TRY_CAST."""
    rows = ", ".join(f"({at}, {quoted(text)})" for at, text in enumerate(batch))
    sql = f"SELECT k, CAST(TRY_CAST(x AS {name}) AS VARCHAR) FROM (VALUES {rows}) AS t(k, x) ORDER BY k"
    return ["!" if value is None else str(value) for _, value in engine.sql(sql).answer.rows]


def literal(engine: Onehop, name: str, text: str) -> str:
    """The answer of one literal, by CAST."""
    try:
        (value,), = engine.sql(f"SELECT CAST(CAST({quoted(text)} AS {name}) AS VARCHAR)").answer.rows
    except EngineError:
        return "!"
    return str(value)


def main() -> None:
    parser = command_line.parser("Strings as values of every type, against PostgreSQL.", 0)
    parser.add_argument("--fill", action="store_true", help="ask PostgreSQL and DuckDB again")
    options = parser.parse_args()
    if options.fill:
        fill()
    cases = known()
    if [(name, text) for name, text, _ in cases] != texts():
        sys.exit("conversions.py: the texts are others than those of conversions.tsv; run with --fill")
    failed = 0
    with Onehop(options.onehop) as engine:
        for name in TYPES:
            own = [(text, expected) for other, text, expected in cases if other == name]
            for start in range(0, len(own), BATCH):
                batch = own[start : start + BATCH]
                answers = column(engine, name, [text for text, _ in batch])
                for (text, expected), got in zip(batch, answers):
                    alone = literal(engine, name, text)
                    if options.canary and start == 0:
                        got, options.canary = "spoilt", False
                    if alone != got or not (same(name, got, expected) or documented(name, text, got, expected)):
                        failed += 1
                        print(f"{name} {text!r}: {got}, alone {alone}; PostgreSQL {expected}")
    print(f"conversions: {len(cases) - failed} passed, {failed} failed")
    sys.exit(failed > 0)


if __name__ == "__main__":
    main()
