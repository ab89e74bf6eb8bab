"""Logistic regression beside scikit-learn: the same rows, the same likelihood, in turns.

    bench/peers/setup.sh tests/learn
    tests/learn/.venv/bin/python bench/peers/logreg.py [--rows 10000000] [--onehop target/release/onehop] [--runs 5]
        [--threads 2] [--statsmodels]

The rows are those of `onehop bench logreg` with noisy labels (`crates/lab/src/bench/logreg/data.rs`), made with NumPy and
written to a Parquet file, of which Onehop makes a table. Timed are, in turns,

- Onehop: the statement `logregr_train` from its text to its last row, over the table, with reading it;
- scikit-learn: `LogisticRegression(solver="lbfgs", C=inf).fit` over arrays of doubles in memory; `newton-cholesky` as well;
- statsmodels, if asked for: `Logit.fit`, which needs several copies of the rows.

All have to come to one log-likelihood, to 1e-7 relative, or no ratio is printed.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

REPOSITORY = Path(__file__).parents[2]
FEATURES = 4
MODEL = (1.0, 2.0, -3.0, 1.0, 0.5)
SAME = 1e-7


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Time logistic regression on Onehop and on scikit-learn.")
    parser.add_argument("--rows", type=int, default=10_000_000)
    parser.add_argument("--onehop", type=Path, default=REPOSITORY / "target" / "release" / "onehop")
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--statsmodels", action="store_true")
    return parser.parse_args()


OPTIONS = arguments()
# Before NumPy is loaded: its libraries look once.
for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ[name] = str(OPTIONS.threads)

import numpy as np  # noqa: E402
import pyarrow as pa  # noqa: E402
import pyarrow.parquet as pq  # noqa: E402
import sklearn  # noqa: E402
from sklearn.linear_model import LogisticRegression  # noqa: E402


def uniform(first: int, count: int) -> np.ndarray:
    """Numbers of SplitMix64 from the first-th on, between 0 and 1."""
    with np.errstate(over="ignore"):
        z = (np.arange(first, first + count, dtype=np.uint64) + np.uint64(1)) * np.uint64(0x9E3779B97F4A7C15)
        z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        return ((z ^ (z >> np.uint64(31))) >> np.uint64(11)).astype(np.float64) / 2.0**53


def rows(count: int) -> tuple[np.ndarray, np.ndarray]:
    x, y = np.empty((count, FEATURES)), np.empty(count)
    step = 1_000_000
    for first in range(0, count, step):
        more = min(step, count - first)
        u = uniform(first * (FEATURES + 1), more * (FEATURES + 1)).reshape(more, FEATURES + 1)
        part = 2 * u[:, :FEATURES] - 1
        x[first : first + more] = part
        y[first : first + more] = u[:, FEATURES] < 1 / (1 + np.exp(-(MODEL[0] + part @ np.array(MODEL[1:]))))
    return x, y


def log_likelihood(x: np.ndarray, y: np.ndarray, coefficients: list[float]) -> float:
    eta = coefficients[0] + x @ np.array(coefficients[1:])
    return float(np.sum(y * eta - np.logaddexp(0, eta)))


class Onehop:
    def __init__(self, path: Path) -> None:
        settings = ["--set", f"threads={OPTIONS.threads}", "--set", "memory_limit=80%"]
        self.process = subprocess.Popen(
            [str(OPTIONS.onehop), "pipe", *settings], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        self.sql(f"CREATE TABLE noisy AS SELECT * FROM '{path}'")

    def sql(self, sql: str) -> dict[str, object]:
        assert self.process.stdin and self.process.stdout
        self.process.stdin.write(json.dumps({"sql": sql, "rows": True}) + "\n")
        self.process.stdin.flush()
        response = json.loads(self.process.stdout.readline())
        if not response["ok"]:
            sys.exit(f"onehop: {response['error']['message']}")
        return dict(response)

    def fit(self) -> list[float]:
        response = self.sql("SELECT coef FROM logregr_train('noisy', 'm', label => 'y', features => 'x1, x2, x3, x4')")
        return [float(str(row[0])) for row in response["rows"]]  # type: ignore[attr-defined]


def main() -> None:
    x, y = rows(OPTIONS.rows)
    print(f"rows: {OPTIONS.rows} of {FEATURES} features; {OPTIONS.threads} threads each; scikit-learn {sklearn.__version__}")
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "noisy.parquet"
        columns = {f"x{n + 1}": x[:, n] for n in range(FEATURES)} | {"y": y > 0.5}
        pq.write_table(pa.table(columns), path, compression="none", use_dictionary=False)
        onehop = Onehop(path)

    def sklearn_by(solver: str) -> Callable[[], list[float]]:
        def fit() -> list[float]:
            # Its defaults; no penalty, as ours.
            model = LogisticRegression(C=np.inf, solver=solver, max_iter=200).fit(x, y)
            return [float(model.intercept_[0]), *map(float, model.coef_[0])]

        return fit

    fits: dict[str, Callable[[], list[float]]] = {
        "onehop": onehop.fit,
        "scikit-learn lbfgs": sklearn_by("lbfgs"),
        "scikit-learn newton-cholesky": sklearn_by("newton-cholesky"),
    }
    if OPTIONS.statsmodels:
        import statsmodels.api as sm

        fits["statsmodels"] = lambda: list(map(float, sm.Logit(y, sm.add_constant(x)).fit(disp=0).params))
    seconds: dict[str, list[float]] = {name: [] for name in fits}
    found: dict[str, float] = {}
    for run in range(OPTIONS.runs + 1):
        for name, fit in fits.items():
            began = time.perf_counter()
            coefficients = fit()
            if run > 0:
                seconds[name].append(time.perf_counter() - began)
            found[name] = log_likelihood(x, y, coefficients)
    medians = {name: statistics.median(times) for name, times in seconds.items()}
    best = max(found.values())
    for name, median in medians.items():
        print(f"{name:<30} {median:8.3f} s   log-likelihood {found[name]:.6f}   ({best - found[name]:.2e} below the best)")
    if any(best - value > SAME * abs(best) for value in found.values()):
        sys.exit("the likelihoods differ: no ratio")
    for name in list(medians)[1:]:
        print(f"{name} / onehop: {medians[name] / medians['onehop']:.2f}")


main()
