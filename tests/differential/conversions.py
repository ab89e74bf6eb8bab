"""Strings as values of every type, against the answers of PostgreSQL and DuckDB: thousands of texts, cast one by one and as columns.

    bench/peers/.venv/bin/python tests/differential/conversions.py [--onehop target/release/onehop] [--canary] [--fill]

The texts follow from a fixed seed. `conversions.tsv` keeps the answers: type, text, PostgreSQL's answer, and DuckDB's where it
is another (`!` is an error). `--fill` asks both again; PostgreSQL must be installed for it.

The engine gives PostgreSQL's answer to a text of PROMISED, the forms of `docs/guide/sql.md`; REFUSED has the exceptions. Any other
text may be refused if DuckDB refuses it, too, or REFUSED_BY_NONE names it. Of what PostgreSQL refuses READ names what is read.
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
# Of so many texts of a column one is a literal, too.
LITERALS = 4

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

# What `docs/guide/sql.md` promises to read. Of such a text the engine's answer is PostgreSQL's.
NUMBER = r"[+-]?(\d+\.?\d*|\.\d+)(e[+-]?\d+)?"
DATE = r"(\d{3,7}(?P<mark>[-/.\\ ])\d{1,2}(?P=mark)\d{1,2}|\d{8})"
CLOCK = r"(\d{1,2}:\d{1,2}(:\d{1,2}(\.\d*)?)?|\d{4}|\d{6}(\.\d*)?)"
ZONE = r"(z|[+-]\d{1,2}(:?\d{2}){0,2}|[a-z]{2,}(/[a-z_]+)*)"
TAIL = rf"(\s*(am|pm|ad|bc|{ZONE}))*"
UNIT = r"(years?|y|mon(th)?s?|weeks?|w|days?|d|hours?|h|min(ute)?s?|m|sec(ond)?s?|s|ms|us|century|centuries|decades?)"
MOMENT = rf"{DATE}([t ]\s*{CLOCK})?{TAIL}"
PERIOD = rf"P((\d+\.?\d*[ymwd])*(t(\d+\.?\d*[hms])+)?)"
PROMISED = {
    r"REAL|DOUBLE.*": rf"{NUMBER}|[+-]?(inf|infinity|nan)",
    r"DECIMAL.*|.*INT.*(?<!VAL)": NUMBER,
    r"BOOLEAN": r"t|tr|tru|true|f|fa|fal|fals|false|y|ye|yes|n|no|on|of|off|1|0",
    r"DATE|TIMESTAMP.*": MOMENT,
    r"TIME": rf"(t|{DATE}[t ]\s*)?{CLOCK}{TAIL}",
    r"INTERVAL": rf"{PERIOD}|(@\s)?(\s*(?<![\d.:-]){NUMBER}\s*({UNIT}|\d+:\d+(:\d+(\.\d*)?)?)?|\s*[+-]?\d+(-\d+|:\d+(:\d+(\.\d*)?)?))+(\s*ago)?",
}
# What is promised and refused all the same: types, texts.
REFUSED = [
    # An offset to the west directly behind AM or PM: PostgreSQL loses the PM of '11:30 PM-05', DuckDB that of any offset.
    (r"DATE|TIME.*", r".*[ap]m-\d.*"),
]
# What is not promised, and refused although PostgreSQL and DuckDB read something.
REFUSED_BY_NONE = [
    # POSIX zones without a sign, 'Mars/8X' for eight hours to the west: DuckDB ignores what follows the time.
    (r"DATE|TIME.*", r".*\s[a-z_/]+\d+[a-z]+\s*"),
]
# What the engine reads and PostgreSQL refuses.
READ = [
    # White space around a value counts for nothing, also around what ISO 8601 writes.
    (r"INTERVAL", rf"\s+{PERIOD}\s*|{PERIOD}\s+"),
    # A timestamp as a TIME: DuckDB. PostgreSQL reads one with a blank, and without a zone.
    (r"TIME", rf"\s*{DATE}[t ]\s*{CLOCK}{TAIL}\s*"),
    # Digits alone as a time, and an offset to the west with a colon: PostgreSQL reads it without.
    (r"DATE|TIMESTAMP.*", rf"\s*{DATE}[t ]\d{{6}}-\d\d:\d\d\s*"),
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


def known() -> list[tuple[str, str, str, str]]:
    """Type, text, and the answers of PostgreSQL and DuckDB."""
    found = []
    for line in ANSWERS.read_text(encoding="utf-8").splitlines():
        name, text, expected, *other = line.split("\t")
        found.append((name, text.encode().decode("unicode_escape"), expected, other[0] if other else expected))
    return found


def fits(rules: list[tuple[str, str]], name: str, text: str) -> bool:
    return any(re.fullmatch(types, name) and re.fullmatch(texts, text, re.I | re.S) for types, texts in rules)


def documented(name: str, text: str, got: str, expected: str, duckdb: str) -> bool:
    """Whether an answer other than PostgreSQL's is what the documents say."""
    if got == "!":
        if fits(list(PROMISED.items()), name, text.strip()):
            return fits(REFUSED, name, text)
        # What neither the documents promise nor DuckDB reads.
        return duckdb == "!" or fits(REFUSED_BY_NONE, name, text)
    return expected == "!" and fits(READ, name, text)


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
    if [(name, text) for name, text, *_ in cases] != texts():
        sys.exit("conversions.py: the texts are others than those of conversions.tsv; run with --fill")
    failed = 0
    asked = 0
    with Onehop(options.onehop) as engine:
        for name in TYPES:
            own = [case for other, *case in cases if other == name]
            for start in range(0, len(own), BATCH):
                batch = own[start : start + BATCH]
                answers = column(engine, name, [text for text, *_ in batch])
                for at, ((text, expected, duckdb), got) in enumerate(zip(batch, answers)):
                    asked += 1
                    # A literal costs a query of its own.
                    alone = literal(engine, name, text) if at % LITERALS == 0 else got
                    if options.canary and start == 0:
                        got, options.canary = "spoilt", False
                    if alone != got or not (same(name, got, expected) or documented(name, text, got, expected, duckdb)):
                        failed += 1
                        print(f"query {asked}: {name} {text!r}: {got}, alone {alone}; PostgreSQL {expected}, DuckDB {duckdb}")
                        if options.stop:
                            sys.exit(1)
    print(f"conversions: {len(cases) - failed} passed, {failed} failed")
    sys.exit(failed > 0)


if __name__ == "__main__":
    main()
