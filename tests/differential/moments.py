"""Random expressions over dates, times, timestamps and intervals, in ten session time zones with summer time, against PostgreSQL.

    bench/peers/.venv/bin/python tests/differential/moments.py [--onehop target/release/onehop] [--only I] [--every 1] [--canary] [--fill]

Expressions are over literals, columns, lists and the clock: casts, AT TIME ZONE, date_trunc, date_bin, extract, series, sums and differences, with
moments around the changes of clocks. They follow from a fixed seed; `moments.txt` keeps PostgreSQL's answers, one a line (`!` is an error).
`--fill` asks PostgreSQL again, which must be installed for it.

Avoided, because the engine differs by design: DATE + INTERVAL stays a DATE where the interval is of whole days, so it is cast; date_trunc of
a DATE is a TIMESTAMP; `extract` gives numbers of other types, which are cast.
"""

import random
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2] / "bench" / "peers"))

import command_line  # noqa: E402
from engine import EngineError, Onehop  # noqa: E402

SEED = 11
QUERIES = 3000
ANSWERS = Path(__file__).with_suffix(".txt")
SESSIONS = ["UTC", "Europe/Berlin", "America/New_York", "America/Los_Angeles", "America/St_Johns", "Australia/Lord_Howe",
            "Asia/Kathmandu", "Pacific/Auckland", "America/Sao_Paulo", "Africa/Casablanca"]
ZONES = [*SESSIONS[:8], "Asia/Tokyo", "Asia/Kolkata", "UTC-02:00", "EST"]
# Days around which clocks change somewhere, and others.
DAYS = ["2024-03-10", "2024-03-30", "2024-03-31", "2024-10-26", "2024-10-27", "2024-11-03", "2024-04-06", "2024-04-07", "2024-09-29",
        "2018-02-18", "2018-11-04", "2024-02-29", "2023-12-31", "2000-01-01", "1995-06-15", "1970-01-01", "2037-07-01", "2045-07-01"]
TIMES = ["00:00:00", "00:30:00", "01:30:00", "02:00:00", "02:30:00", "03:00:00", "12:00:00", "23:59:59.999999", "10:11:12.5"]
INTERVALS = ["1 day", "24 hours", "1 month", "-1 month", "1 year", "36 hours", "90 minutes", "-1 day 02:00", "1 mon 3 days 04:05:06.789",
             "0.5 days", "-30 days", "15 minutes", "1 week", "00:00:00.000001"]
UNITS = ["hour", "day", "week", "month", "quarter", "year", "minute", "second", "decade", "century"]
PARTS = ["year", "month", "day", "hour", "minute", "second", "epoch", "dow", "doy", "week", "quarter", "isodow", "isoyear", "century",
         "decade"]
ROWS = [(1, "2024-03-31", "2024-03-31 02:30:00", "2024-03-31 00:59:59+00"), (2, "2024-10-27", "2024-10-27 02:30:00.5", "2024-10-27 01:00:00+00"),
        (3, "2024-02-29", "2024-11-03 01:30:00", "2024-11-03 06:30:00+00"), (4, "1999-12-31", "1969-12-31 23:59:59.999999", "1969-12-31 23:59:59.5+00"),
        (5, "2018-11-04", "2018-11-04 00:30:00", "2018-11-04 03:00:00+00")]


class Expressions:
    """Expressions of each type, to a depth."""

    def __init__(self, rng: random.Random) -> None:
        self.rng = rng

    def pick(self, *makers):
        return self.rng.choice(makers)()

    def date(self, deep: int) -> str:
        simple = [lambda: f"DATE '{self.rng.choice(DAYS)}'", lambda: "d"]
        if deep == 0:
            return self.pick(*simple)
        return self.pick(
            *simple,
            lambda: f"CAST({self.timestamp(deep - 1)} AS DATE)",
            lambda: f"CAST({self.moment(deep - 1)} AS DATE)",
            lambda: f"({self.date(deep - 1)} + {self.rng.randint(-40, 40)})",
        )

    def time(self, deep: int) -> str:
        if deep == 0:
            return f"TIME '{self.rng.choice(TIMES)}'"
        return self.pick(
            lambda: f"TIME '{self.rng.choice(TIMES)}'",
            lambda: f"CAST({self.timestamp(deep - 1)} AS TIME)",
            lambda: f"CAST({self.moment(deep - 1)} AS TIME)",
        )

    def interval(self, deep: int) -> str:
        if deep == 0:
            return f"INTERVAL '{self.rng.choice(INTERVALS)}'"
        return self.pick(
            lambda: f"INTERVAL '{self.rng.choice(INTERVALS)}'",
            lambda: f"({self.timestamp(deep - 1)} - {self.timestamp(deep - 1)})",
            lambda: f"({self.moment(deep - 1)} - {self.moment(deep - 1)})",
            lambda: f"({self.interval(deep - 1)} * {self.rng.choice(['2', '-1', '0.5'])})",
            lambda: f"(- {self.interval(deep - 1)})",
        )

    def timestamp(self, deep: int) -> str:
        simple = [lambda: f"TIMESTAMP '{self.rng.choice(DAYS)} {self.rng.choice(TIMES)}'", lambda: "ts"]
        if deep == 0:
            return self.pick(*simple)
        return self.pick(
            *simple,
            lambda: f"({self.moment(deep - 1)} AT TIME ZONE '{self.rng.choice(ZONES)}')",
            lambda: f"CAST({self.moment(deep - 1)} AS TIMESTAMP)",
            lambda: f"CAST({self.date(deep - 1)} AS TIMESTAMP)",
            lambda: f"({self.timestamp(deep - 1)} {self.rng.choice('+-')} {self.interval(0)})",
            lambda: f"CAST({self.date(deep - 1)} + {self.interval(0)} AS TIMESTAMP)",
            lambda: f"date_trunc('{self.rng.choice(UNITS)}', {self.timestamp(deep - 1)})",
            lambda: f"date_bin(INTERVAL '{self.rng.choice(['15 minutes', '7 days', '90 minutes'])}', {self.timestamp(deep - 1)}, {self.timestamp(0)})",
            lambda: f"CAST({self.timestamp(deep - 1)} AS TIMESTAMP({self.rng.choice('03')}))",
            lambda: f"coalesce({self.timestamp(deep - 1)}, '2030-01-01')",
        )

    def moment(self, deep: int) -> str:
        offset = self.rng.choice(["", "", "+00", "+02", "-0530", " Europe/Berlin", " America/New_York"])
        simple = [lambda: f"TIMESTAMPTZ '{self.rng.choice(DAYS)} {self.rng.choice(TIMES)}{offset}'", lambda: "tz"]
        if deep == 0:
            return self.pick(*simple)
        return self.pick(
            *simple,
            lambda: f"({self.timestamp(deep - 1)} AT TIME ZONE '{self.rng.choice(ZONES)}')",
            lambda: f"CAST({self.timestamp(deep - 1)} AS TIMESTAMPTZ)",
            lambda: f"CAST({self.date(deep - 1)} AS TIMESTAMPTZ)",
            lambda: f"({self.moment(deep - 1)} {self.rng.choice('+-')} {self.interval(0)})",
            lambda: f"date_trunc('{self.rng.choice(UNITS)}', {self.moment(deep - 1)})",
            lambda: f"date_trunc('{self.rng.choice(UNITS)}', {self.moment(deep - 1)}, '{self.rng.choice(ZONES[:10])}')",
            lambda: f"to_timestamp({self.rng.randint(-10**9, 2 * 10**9)})",
            lambda: f"CAST(CAST({self.moment(deep - 1)} AS VARCHAR) AS TIMESTAMPTZ)",
        )

    def condition(self, deep: int) -> str:
        comparison = self.rng.choice(["<", ">=", "=", "<>"])
        return self.pick(
            lambda: f"{self.timestamp(deep)} {comparison} {self.moment(deep)}",
            lambda: f"{self.moment(deep)} {comparison} {self.date(deep)}",
            lambda: f"{self.timestamp(deep)} {comparison} {self.date(deep)}",
            lambda: f"{self.interval(deep)} {comparison} {self.interval(deep)}",
            lambda: f"{self.moment(deep)} BETWEEN {self.moment(deep)} AND {self.moment(deep)}",
            lambda: f"CAST(now() AS DATE) = current_date AND localtimestamp {comparison} {self.timestamp(deep)}",
        )

    def series(self) -> str:
        start = self.moment(0) if self.rng.random() < 0.7 else self.timestamp(0)
        while start in ("tz", "ts"):
            start = self.moment(0)
        kind = "TIMESTAMPTZ" if start.startswith("TIMESTAMPTZ") else "TIMESTAMP"
        step = self.rng.choice(["1 day", "1 month", "12 hours", "1 hour", "1 week"])
        steps = self.rng.choice(["3 days", "2 months"]) if step != "1 hour" else "1 day"
        series = f"generate_series({start}, {start} + INTERVAL '{steps}', INTERVAL '{step}') AS g(g)"
        return f"(SELECT CAST(count(*) AS VARCHAR) || ' ' || CAST(max(g) AS VARCHAR) || ' ' || CAST(min(CAST(g AS {kind})) AS VARCHAR) FROM {series})"

    def item(self) -> str:
        """An item of a list that is cast as a whole."""
        cast = self.pick(
            lambda: f"CAST(ARRAY[{self.timestamp(1)}, ts] AS TIMESTAMPTZ[])",
            lambda: f"CAST(ARRAY[{self.moment(1)}, tz] AS TIMESTAMP[])",
            lambda: f"CAST(ARRAY[{self.moment(1)}, tz] AS DATE[])",
            lambda: f"CAST(ARRAY[{self.date(1)}, d] AS TIMESTAMPTZ[])",
            lambda: f"CAST(ARRAY[{self.interval(1)}] AS VARCHAR[])",
            lambda: f"CAST(CAST(ARRAY[{self.moment(1)}, tz] AS VARCHAR[]) AS TIMESTAMPTZ[])",
        )
        return f"CAST(({cast})[{self.rng.choice('12')}] AS VARCHAR)"

    def any(self) -> str:
        deep = self.rng.choice([1, 2, 2, 3])
        return self.pick(
            lambda: f"CAST({self.date(deep)} AS VARCHAR)",
            lambda: f"CAST({self.time(deep)} AS VARCHAR)",
            lambda: f"CAST({self.timestamp(deep)} AS VARCHAR)",
            lambda: f"CAST({self.timestamp(deep)} AS VARCHAR)",
            lambda: f"CAST({self.moment(deep)} AS VARCHAR)",
            lambda: f"CAST({self.moment(deep)} AS VARCHAR)",
            lambda: f"CAST({self.interval(deep)} AS VARCHAR)",
            lambda: f"CAST(CAST(extract({self.rng.choice(PARTS)} FROM {self.timestamp(deep)}) AS DOUBLE PRECISION) AS VARCHAR)",
            lambda: f"CAST(CAST(extract({self.rng.choice([*PARTS, 'timezone'])} FROM {self.moment(deep)}) AS DOUBLE PRECISION) AS VARCHAR)",
            lambda: f"CAST(CAST(extract({self.rng.choice(PARTS[:7])} FROM {self.interval(deep)}) AS DOUBLE PRECISION) AS VARCHAR)",
            lambda: f"CAST({self.condition(1)} AS VARCHAR)",
            self.item,
            self.series,
        )


def queries() -> list[tuple[str, str]]:
    """The zone of the session, and the query."""
    found = []
    for number in range(QUERIES):
        rng = random.Random(SEED * 1_000_003 + number)
        text = Expressions(rng).any()
        found.append((SESSIONS[number * len(SESSIONS) // QUERIES], f"SELECT {text} FROM m WHERE k = {rng.randint(1, len(ROWS))}"))
    return found


def table() -> list[str]:
    rows = ", ".join(f"({k}, '{d}', '{ts}', '{tz}')" for k, d, ts, tz in ROWS)
    return ["CREATE TABLE m (k INT, d DATE, ts TIMESTAMP, tz TIMESTAMPTZ)", f"INSERT INTO m VALUES {rows}"]


def fill() -> None:
    from oracle import answer, postgresql

    with postgresql() as con:
        for statement in table():
            con.execute(statement)
        lines, here = [], None
        for zone, query in queries():
            if zone != here:
                con.execute(f"SET TIME ZONE '{zone}'")
                here = zone
            lines.append(answer(con, query))
    ANSWERS.write_text("\n".join(lines) + "\n", encoding="utf-8")


def main() -> None:
    parser = command_line.parser("Random expressions over dates and times in ten time zones, against PostgreSQL.", QUERIES)
    parser.add_argument("--fill", action="store_true", help="ask PostgreSQL again")
    parser.add_argument("--every", type=int, default=3, help="ask one of so many (1: all)")
    options = parser.parse_args()
    if options.fill:
        fill()
    expected = ANSWERS.read_text(encoding="utf-8").splitlines()
    asked = queries()
    if len(expected) != len(asked):
        sys.exit("moments.py: moments.txt has another number of answers; run with --fill")
    passed = failed = 0
    with Onehop(options.onehop) as engine:
        for statement in table():
            engine.sql(statement)
        here = None
        for number, ((zone, query), wanted) in enumerate(zip(asked, expected)):
            is_asked = options.start <= number < options.queries if options.only is None else number == options.only
            if not is_asked or (options.only is None and number % options.every):
                continue
            if zone != here:
                engine.sql(f"SET TIME ZONE '{zone}'")
                here = zone
            try:
                ((value,),) = engine.sql(query).answer.rows
                got = "NULL" if value is None else str(value)
            except EngineError as e:
                got = f"! {e}"
            if options.canary and number == 0:
                got = "spoilt"
            if got == wanted or (wanted == "!" and got.startswith("!")):
                passed += 1
            else:
                failed += 1
                print(f"query {number}: SET TIME ZONE '{zone}'; {query}\n    {got}\n    {wanted} in PostgreSQL")
                if options.stop:
                    break
    print(f"moments: {passed} passed, {failed} failed")
    sys.exit(failed > 0)


if __name__ == "__main__":
    main()
