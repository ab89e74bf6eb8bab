"""Statements that take memory and time, from a seed: sizes from little to far more than there is.

Each gives one row, and means the same to DuckDB, whose answer is the right one.
"""

import random


def size(rng, most):
    """As often small as large."""
    return int(10 ** rng.uniform(1, most))


def text(rng, column, depth=0):
    """A text made of a number, and about how long it is."""
    n = size(rng, rng.choice([2, 3, 5, 7]))
    kinds = ["repeat", "lpad", "rpad", "replace", "regexp", "concat", "upper", "reverse", "list", "translate"]
    kind = rng.choice(kinds if depth < 3 else kinds[:3])
    inner = (lambda: text(rng, column, depth + 1)) if rng.random() < 0.6 else (lambda: f"CAST({column} AS VARCHAR)")
    match kind:
        case "repeat":
            return f"repeat({inner()}, {n})"
        case "lpad" | "rpad":
            return f"{kind}({inner()}, {n}, 'ab')"
        case "replace":
            return f"replace({inner()}, '{rng.randrange(10)}', repeat('z', {min(n, 100000)}))"
        case "regexp":
            return f"regexp_replace({inner()}, '[0-4]', repeat('y', {min(n, 10000)}), 'g')"
        case "concat":
            return f"({inner()} || {inner()} || {inner()})"
        case "upper" | "reverse":
            return f"{kind}({inner()})"
        case "translate":
            return f"translate({inner()}, '0123', 'abcd')"
        case "list":
            return f"array_to_string(range({min(n, 10**6)}), repeat('-', {rng.randrange(1, 50)}))"
    raise AssertionError(kind)


def numbers(rng):
    """A list of whole numbers."""
    n = size(rng, rng.choice([3, 6, 9]))
    return rng.choice([f"range({n})", f"range({rng.randrange(100)}, {n})", f"range(0, {n}, {rng.randrange(1, 5)})"])


def of_functions(rng):
    rows = size(rng, 5)
    return f"SELECT sum(length({text(rng, 'x')})) FROM generate_series(1, {rows}) AS t(x)"


def of_lists(rng):
    rows = size(rng, 4)
    kind = rng.randrange(6)
    match kind:
        case 0:
            return f"SELECT len({numbers(rng)})"
        case 1:
            return f"SELECT sum(v) FROM (SELECT unnest({numbers(rng)}) AS v) AS s"
        case 2:
            return f"SELECT count(*), sum(v) FROM (SELECT x, unnest(range(x % 1000)) AS v FROM generate_series(1, {rows}) AS t(x)) AS s"
        case 3:
            return f"SELECT len(array_agg({text(rng, 'x')})) FROM generate_series(1, {rows}) AS t(x)"
        case 4:
            many = size(rng, 7)
            return f"SELECT sum(len(a)) FROM (SELECT x % {size(rng, 5)} AS k, array_agg(x) AS a FROM generate_series(1, {many}) AS t(x) GROUP BY k) AS s"
        case _:
            many = size(rng, 7)
            return f"SELECT length(string_agg(CAST(x AS VARCHAR), ',')) FROM generate_series(1, {many}) AS t(x)"


def of_operators(rng):
    rows = size(rng, rng.choice([5, 6.7]))
    wide = f"(SELECT x, repeat(CAST(x AS VARCHAR), {rng.randrange(1, 40)}) AS z FROM generate_series(1, {rows}) AS t(x))"
    kind = rng.randrange(8)
    match kind:
        case 0:
            return f"SELECT max(n) FROM (SELECT row_number() OVER (ORDER BY z) AS n FROM {wide} AS a) AS s"
        case 1:
            return f"SELECT count(*) FROM (SELECT z, count(*) AS c FROM {wide} AS a GROUP BY z) AS s"
        case 2:
            return f"SELECT count(*), sum(length(b.z)) FROM {wide} AS a JOIN {wide} AS b ON a.z = b.z"
        case 3:
            offset = rng.randrange(rows)
            return f"SELECT min(z), max(z) FROM (SELECT z FROM {wide} AS a ORDER BY z, x LIMIT 3 OFFSET {offset}) AS s"
        case 4:
            return f"SELECT sum(c) FROM (SELECT count(*) OVER (PARTITION BY x % {size(rng, 5)}) AS c FROM {wide} AS a) AS s"
        case 5:
            return f"SELECT count(DISTINCT z) FROM {wide} AS a"
        case 6:
            few = size(rng, 3.5)
            return f"SELECT count(*), sum(a.x + b.x) FROM generate_series(1, {few}) AS a(x) CROSS JOIN generate_series(1, {few}) AS b(x) WHERE a.x <> b.x"
        case _:
            return f"SELECT sum(length(l)) FROM (SELECT lag(z) OVER (ORDER BY x) AS l FROM {wide} AS a) AS s"


def of_files(rng, files):
    name, columns = rng.choice(files)
    column = rng.choice(columns)
    return rng.choice([
        f"SELECT count(*), max(length({column})) FROM '{name}'",
        f"SELECT count(*) FROM (SELECT {column} FROM '{name}' GROUP BY {column}) AS s",
        f"SELECT sum(length({column} || {column})) FROM '{name}'",
        f"SELECT max({column}) FROM (SELECT {column} FROM '{name}' ORDER BY {column} LIMIT 5) AS s",
        f"SELECT count(*) FROM '{name}' AS a JOIN '{name}' AS b ON a.{column} = b.{column}",
    ])


def statement(rng, files):
    kind = rng.choices(["functions", "lists", "operators", "files"], [3, 3, 3, 2 if files else 0])[0]
    match kind:
        case "functions":
            return of_functions(rng)
        case "lists":
            return of_lists(rng)
        case "operators":
            return of_operators(rng)
        case _:
            return of_files(rng, files)


def heavy(rng):
    """A statement whose time its arguments decide: from microseconds to hours."""
    n = size(rng, rng.choice([3, 6, 7]))
    rows = size(rng, rng.choice([1, 4, 6]))
    t = f"repeat('ab{rng.randrange(10)}', {n})"
    u = f"repeat('b{rng.randrange(10)}', {n})"
    series = f"generate_series(1, {rows}) AS t(x)"
    pattern = rng.choice(["(x|1|2)*3", "(a|b|ab)*c", "([ab0-9]+)+z", "(.*)(.*)(.*)q", "[0-9]{1,50}x", "a.{0,80}9$"])
    many = ", ".join(str(i) for i in range(min(n, 20000)))
    return rng.choice([
        f"SELECT levenshtein({t}, {u})",
        f"SELECT sum(levenshtein(repeat('ab', x % 100), repeat('b', {n % 2000}))) FROM {series}",
        f"SELECT sum(length(regexp_replace({t} || x, '{pattern}', 'y'))) FROM {series}",
        f"SELECT count(*) FROM {series} WHERE ({t} || x) ~ '{pattern}'",
        f"SELECT length(to_char(TIMESTAMP '2020-01-01', repeat('YYYY', {n})))",
        f"SELECT len(range({n * 100}))",
        f"SELECT sum(v) FROM (SELECT unnest(range({n * 100})) AS v) AS s",
        f"SELECT sum(length(md5({t} || x))) FROM {series}",
        f"SELECT sum(length(lpad({t}, {n * 3}, 'xyz'))) FROM {series}",
        f"SELECT count(*) FROM generate_series(1, {n}) AS a(x), generate_series(1, {rows}) AS b(y) WHERE a.x * b.y = -1",
        f"SELECT x IN ({many}) FROM {series} LIMIT 1",
        f"SELECT max(array_position(range({n}), x)) FROM {series}",
        f"SELECT sum(len(array_distinct(range({n})))) FROM {series}",
        f"SELECT sum(length(replace({t}, 'a', {u}))) FROM generate_series(1, 10) AS t(x)",
        f"SELECT sum(len(string_to_array({t}, 'a'))) FROM {series}",
        f"SELECT count(*) FROM {series} WHERE {t} LIKE '%{'_%' * 10}q'",
        f"SELECT sum(x) FROM (SELECT sum(x) OVER (ORDER BY x ROWS BETWEEN {n} PRECEDING AND CURRENT ROW) AS x FROM {series}) AS s",
        f"SELECT max(s) FROM (SELECT string_agg(CAST(x AS VARCHAR), ',' ORDER BY x DESC) AS s FROM {series}) AS q",
        f"WITH RECURSIVE r(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM r WHERE n < {n}) SELECT max(n) FROM r",
        "SELECT " + " + ".join(["1"] * min(n, 3000)),
        f"SELECT 1 WHERE " + " OR ".join(f"{rng.random()} < {i}" for i in range(min(n, 2000))),
        f"SELECT translate({t}, 'ab', 'cd') = translate({u}, 'ab', 'cd')",
    ])


def generator(seed):
    return random.Random(seed)
