"""What runs of random queries are told, and which queries that means: the same number is the same query in every run."""

import argparse
from pathlib import Path

QUERIES_PER_DATABASE = 100
REPOSITORY = Path(__file__).parents[2]


def parser(description: str, queries: int) -> argparse.ArgumentParser:
    """Of so many queries, unless it is told otherwise."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--queries", type=int, default=queries)
    parser.add_argument("--onehop", type=Path, default=REPOSITORY / "target" / "release" / "onehop")
    parser.add_argument("--only", type=int, help="only the query of this number")
    parser.add_argument("--start", type=int, default=0, help="the number of the first query")
    parser.add_argument("--stop", action="store_true", help="end with the first failure")
    parser.add_argument("--canary", action="store_true", help="spoil one answer; the run must fail")
    return parser


def batches(options: argparse.Namespace) -> list[tuple[int, range]]:
    """The first query that each database is for, and the numbers of those that are wanted."""
    if options.only is not None:
        start = options.only // QUERIES_PER_DATABASE * QUERIES_PER_DATABASE
        return [(start, range(options.only, options.only + 1))]
    first = options.start // QUERIES_PER_DATABASE * QUERIES_PER_DATABASE
    starts = range(first, options.queries, QUERIES_PER_DATABASE)
    ends = [min(start + QUERIES_PER_DATABASE, options.queries) for start in starts]
    return [(start, range(max(start, options.start), end)) for start, end in zip(starts, ends)]
