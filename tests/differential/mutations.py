"""Puts old faults back, one at a time, and asks whether random queries find them.

    bench/peers/setup.sh
    bench/peers/.venv/bin/python tests/differential/mutations.py [--onehop target/debug/onehop] [--queries 2000] [NAME ..]

A debug build leaves out the corrections that ONEHOP_WITHOUT names (crates/engine/src/planner/without.rs). For each NAME the
generators of MUTATIONS run, in their order and each from its first query, until one finds a difference that is not there with
the correction. All of them together ask at most `--queries`. A mutation that stays unfound fails the run: a generator must be
extended, or a correction is needed no longer.
"""

import argparse
import os
import re
import subprocess
import sys
import time
from pathlib import Path

HERE = Path(__file__).parent
VARIABLE = "ONEHOP_WITHOUT"
# What one generator asks before the next one has its turn.
TURN = 600

# The generators that are about a correction, the fitting one first.
MUTATIONS: dict[str, list[str]] = {
    "array_literals": ["expressions"],
    "checked_arithmetic": ["expressions", "run"],
    "checked_sum": ["expressions"],
    "coalesce": ["expressions", "moments"],
    "correlated_names": ["clauses", "subqueries"],
    "correlated_subqueries": ["expressions", "clauses", "subqueries"],
    "date_arithmetic": ["moments", "expressions"],
    "decimal_division": ["expressions", "run"],
    "equal_values": ["expressions", "run"],
    "exact_comparisons": ["expressions", "run"],
    "finite_casts": ["expressions", "conversions"],
    "float_extremes": ["expressions"],
    "floats_beside_decimals": ["expressions", "run"],
    "grouping": ["expressions", "run"],
    "grouping_set_keys": ["expressions", "run"],
    "grouping_sets": ["run", "expressions"],
    "guarded_cases": ["expressions", "run"],
    "in_lists": ["expressions", "run"],
    "interval_arithmetic": ["moments", "expressions"],
    "like_escapes": ["expressions"],
    "list_concatenation": ["expressions"],
    "nested_order": ["expressions"],
    "literals": ["expressions"],
    "lossy_casts": ["expressions", "run"],
    "moments_of_one_type": ["expressions", "moments"],
    "named_windows": ["expressions", "run"],
    "nearest_names": ["names"],
    "null_in_subqueries": ["subqueries", "clauses", "expressions"],
    "null_safe_joins": ["expressions"],
    "one_nan": ["expressions"],
    "one_row_aggregates": ["expressions"],
    "order_names": ["expressions"],
    "ordered_aggregates": ["expressions"],
    "outer_aggregates": ["expressions"],
    "outer_constants": ["expressions", "run"],
    "quantified": ["clauses", "expressions"],
    "refused": ["expressions"],
    "refused_casts": ["expressions"],
    "regexp_replacement": ["expressions"],
    "regressions": ["expressions"],
    "regular_expressions": ["expressions"],
    "rounded_averages": ["expressions"],
    "rounding_casts": ["expressions", "conversions"],
    "row_values": ["expressions", "clauses"],
    "same_names": ["expressions", "run"],
    "scalar_subqueries": ["expressions"],
    "set_operations": ["expressions"],
    "settled_rounding": ["expressions", "run"],
    "similar_to": ["expressions"],
    "single_distinct": ["expressions", "run"],
    "single_precision": ["expressions"],
    "sliding_aggregates": ["expressions", "run"],
    "string_casts": ["conversions"],
    "subqueries_as_values": ["clauses", "expressions"],
    "subquery_lists": ["clauses"],
    "subquery_places": ["clauses", "expressions"],
    "table_names": ["expressions"],
    "temporal": ["moments", "expressions"],
    "temporal_types": ["moments", "expressions"],
    "unbounded_windows": ["expressions", "run"],
    "unproved_keys": ["expressions"],
    "using_hints": ["expressions"],
    "values_without_from": ["expressions"],
    "volatile_filters": ["expressions"],
    "volatile_values": ["expressions"],
    "window_frames": ["expressions"],
    "window_keys": ["expressions", "clauses"],
    "window_limits": ["expressions"],
    "with_names": ["expressions", "clauses"],
    "year_ranges": ["expressions"],
    "zoned_moments": ["moments"],
}
# Generators whose queries have no number to ask again by: they pass without a mutation, or fail in their own run.
WHOLE = ["conversions"]
# How a generator says that too many queries are refused.
REFUSALS = "more than"


def generated(generator: str, options: argparse.Namespace, without: str, *more: str) -> str | None:
    """What the generator says of its first failure; None if there is none."""
    command = [sys.executable, str(HERE / f"{generator}.py"), "--onehop", str(options.onehop), *more]
    run = subprocess.run(command, env={**os.environ, VARIABLE: without}, capture_output=True, text=True, check=False)
    return None if run.returncode == 0 else run.stdout + run.stderr


def asked_of(generator: str, start: int, limit: int) -> list[str]:
    if generator in WHOLE:
        return []
    every = ["--every", "1"] if generator == "moments" else []
    return ["--start", str(start), "--queries", str(limit), *every]


def first_difference(name: str, generator: str, options: argparse.Namespace, limit: int) -> tuple[int | None, int]:
    """The number of the first query that the mutation answers otherwise, and how many were asked."""
    start = 0
    while start < limit:
        said = generated(generator, options, name, *asked_of(generator, start, limit), "--stop")
        if said is None:
            return None, limit
        number = re.search(r"query (\d+)", said)
        if number is None and REFUSALS in said:
            return limit - 1, limit
        if number is None:
            sys.exit(f"{generator} fails without a query:\n{said[-2000:]}")
        found = int(number[1])
        if generator in WHOLE or generated(generator, options, "", "--only", str(found)) is None:
            return found, found + 1
        # A fault of its own, which the generator finds without a mutation, too.
        start = found + 1
    return None, limit


def found_by(name: str, options: argparse.Namespace) -> tuple[str, int] | None:
    """Which generator finds a mutation, and after how many queries of all."""
    left, asked = options.queries, 0
    generators = MUTATIONS[name]
    for at, generator in enumerate(generators):
        limit = left if at + 1 == len(generators) else min(left, TURN)
        found, count = first_difference(name, generator, options, limit)
        asked += count
        left -= count
        if found is not None:
            return generator, asked
    return None


def main() -> int:
    parser = argparse.ArgumentParser(description="Old faults, put back one at a time, must be found.")
    parser.add_argument("names", nargs="*", help="corrections to leave out (all)")
    parser.add_argument("--onehop", type=Path, default=HERE.parents[1] / "target" / "debug" / "onehop")
    parser.add_argument("--queries", type=int, default=2000)
    options = parser.parse_args()
    unknown = [name for name in options.names if name not in MUTATIONS]
    if unknown:
        sys.exit(f"no mutation is called {unknown[0]}; there are {', '.join(MUTATIONS)}")
    names, failed = options.names or list(MUTATIONS), 0
    print(f"{'left out':24} {'found by':12} {'queries':>7} {'seconds':>7}")
    for name in names:
        started = time.monotonic()
        found = found_by(name, options)
        failed += found is None
        generator, count = found or ("-", options.queries)
        print(f"{name:24} {generator:12} {count:7} {time.monotonic() - started:7.0f}{'' if found else '  NOT FOUND'}", flush=True)
    print(f"mutations: {len(names) - failed} passed, {failed} failed")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
