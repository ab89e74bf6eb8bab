"""Writes the answers that `onehop bench` checks its own against: DuckDB's, over the Parquet files of `onehop gen`.

    bench/peers/.venv/bin/python bench/peers/answers.py ssb --sf 1 [--data data] [--onehop target/release/onehop]

The generators are deterministic, so an answer holds for everybody's data of that scale factor. One file a query:
crates/lab/answers/{ssb,tpch}/sf{N}/{query}.csv, for example

    d_year:integer,p_brand1:text,revenue:integer
    1992,"MFGR#1201",567526
    1992,NULL,12

- The first line has `name:kind` for each column; kinds are boolean, integer, decimal, float, date, timestamp, text.
- Then the rows, in the order of the query. Rows that its ORDER BY leaves equal may come in any order.
- Texts are always in double quotes, with quotes inside doubled; nothing else ever is. NULL is that word.
- Decimals have all their digits, floats the shortest text that reads back the same, dates are ISO.

A value is the same as a kept one if it is equal; a kept float (DuckDB divides decimals into doubles) if it differs by
no more than 1e-9 of the larger one, or, for an engine that answers with a decimal, by one in its last digit.
`answer.py` is that rule in code.
"""

import argparse
from pathlib import Path

from answer import from_csv, to_csv
from data import REPOSITORY, SUITES, Data
from engine import DuckDb


def main() -> None:
    parser = argparse.ArgumentParser(description="Write the answers that `onehop bench` checks against.")
    parser.add_argument("suite", choices=SUITES)
    parser.add_argument("--sf", default="1", help="scale factor (1)")
    parser.add_argument("--data", type=Path, default=REPOSITORY / "data", help="where data is kept (data)")
    parser.add_argument("--onehop", type=Path, default=REPOSITORY / "target" / "release" / "onehop")
    parser.add_argument("--check", action="store_true", help="write nothing; fail if an answer would change")
    options = parser.parse_args()
    data = Data(options.data.resolve(), options.suite, options.sf)
    data.generate(options.onehop)
    folder = REPOSITORY / "crates" / "lab" / "answers" / data.suite / f"sf{data.scale}"
    changed = 0
    with DuckDb() as duckdb:
        for table in data.tables():
            duckdb.sql(f"CREATE VIEW \"{table}\" AS SELECT * FROM '{data.parquet / table}.parquet'")
        for name, sql in data.queries().items():
            answer = duckdb.sql(sql).answer
            text = to_csv(answer)
            assert from_csv(text) == answer, f"{name} does not read back as it was written"
            path = folder / f"{name}.csv"
            if path.is_file() and path.read_text() == text:
                continue
            changed += 1
            if not options.check:
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_text(text)
    print(f"answers: {data.suite} sf{data.scale}: {len(data.queries())} queries, {changed} changed, in {folder}")
    if options.check and changed:
        raise SystemExit(1)


if __name__ == "__main__":
    main()
