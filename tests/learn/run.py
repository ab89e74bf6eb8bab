"""Models of random data against statsmodels and scikit-learn: coefficients, standard errors, statistics, likelihoods.

    bench/peers/setup.sh tests/learn
    tests/learn/.venv/bin/python tests/learn/run.py [--seed 1] [--onehop target/debug/onehop] [--canary]

`--canary` spoils a coefficient: the run must fail. What is compared, to a relative 1e-6 of the largest figure of its kind:

- `logregr_train` with statsmodels' `Logit`: with and without an intercept, few and many features, features far from 0 and of
  very different sizes, rows with NULLs, booleans and integers; coefficients, standard errors, z, p, log-likelihood;
- with a penalty, scikit-learn's `LogisticRegression` with C = 1 / l2;
- `logregr_evaluate` with scikit-learn's metrics; `linregr_train` with statsmodels' `OLS`;
- labels that features separate: a warning, as statsmodels has one.
"""

import argparse
import json
import subprocess
import sys
import tempfile
import warnings
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd
import statsmodels.api as sm
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import accuracy_score, log_loss, roc_auc_score

REPOSITORY = Path(__file__).parents[2]
TOLERANCE = 1e-6
STATISTICS = ("coef", "std_err", "stat", "p_value")


class Onehop:
    """`onehop pipe`: a request a line, a response a line."""

    def __init__(self, binary: Path) -> None:
        self.process = subprocess.Popen(
            [str(binary), "pipe"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, encoding="utf-8"
        )

    def sql(self, sql: str) -> list[list[object]]:
        assert self.process.stdin and self.process.stdout
        self.process.stdin.write(json.dumps({"sql": sql, "rows": True}) + "\n")
        self.process.stdin.flush()
        response = json.loads(self.process.stdout.readline())
        if not response["ok"]:
            raise RuntimeError(f"{sql}: {response['error']['message']}")
        return response["rows"]

    def close(self) -> None:
        assert self.process.stdin
        self.process.stdin.close()
        self.process.wait()


@dataclass
class Case:
    name: str
    frame: pd.DataFrame
    features: list[str]
    intercept: bool = True


def number(value: object) -> float:
    return float("nan") if value is None else float(str(value))


class Checks:
    def __init__(self, canary: bool) -> None:
        self.passed = 0
        self.failed = 0
        self.canary = canary

    def near(self, what: str, got: list[float], expected: list[float], tolerance: float = TOLERANCE) -> None:
        if self.canary:
            got, self.canary = [got[0] * (1 + 1e-5), *got[1:]], False
        ours, theirs = np.array(got, dtype=float), np.array(expected, dtype=float)
        scale = np.maximum(np.abs(theirs), 1e-3 * np.max(np.abs(theirs), initial=0.0))
        if ours.shape == theirs.shape and bool(np.all(np.abs(ours - theirs) <= tolerance * scale + 1e-300)):
            self.passed += 1
        else:
            self.failed += 1
            print(f"FAILED {what}:\n  {got}\n  instead of\n  {expected}")

    def holds(self, what: str, is_so: bool) -> None:
        self.passed += is_so
        self.failed += not is_so
        if not is_so:
            print(f"FAILED {what}")


def cases(rng: np.random.Generator) -> list[Case]:
    found = []

    def case(name: str, rows: int, features: np.ndarray, slopes: np.ndarray, intercept: bool = True) -> None:
        names = [f"x{n}" for n in range(features.shape[1])]
        frame = pd.DataFrame(features, columns=names)
        centred = features - features.mean(axis=0) if intercept else features
        eta = centred / np.maximum(features.std(axis=0), 1e-300) @ slopes + (0.3 if intercept else 0.0)
        frame["y"] = rng.random(rows) < 1 / (1 + np.exp(-eta))
        found.append(Case(name, frame, names, intercept))

    for rows, count in [(500, 1), (2_000, 3), (10_000, 8), (70_000, 5), (3_000, 40)]:
        case(f"{rows} rows, {count} features", rows, rng.normal(size=(rows, count)), rng.normal(size=count) * 0.7)
    case("no intercept", 3_000, rng.normal(size=(3_000, 4)) + 0.5, rng.normal(size=4) * 0.5, intercept=False)
    sizes = np.array([1e-6, 1.0, 1e5, 1e9])
    case("sizes", 5_000, rng.normal(size=(5_000, 4)) * sizes, rng.normal(size=4) * 0.6)
    case("far from 0", 5_000, rng.normal(size=(5_000, 3)) + [2_000, -50, 1e4], rng.normal(size=3) * 0.8)
    mixed = rng.normal(size=(4_000, 3))
    mixed[:, 2] = mixed[:, 0] * 0.95 + 0.3 * mixed[:, 1]
    mixed[:, 2] += rng.normal(size=4_000) * 0.2
    case("correlated", 4_000, mixed, np.array([0.5, -0.5, 0.4]))
    return found


def standardized(frame: pd.DataFrame, features: list[str], intercept: bool) -> tuple[np.ndarray, np.ndarray]:
    """The design as statsmodels can solve it, and what turns its coefficients into those of the columns as they are."""
    x = frame[features].to_numpy(dtype=float)
    centre = x.mean(axis=0) if intercept else np.zeros(x.shape[1])
    scale = x.std(axis=0)
    design = (x - centre) / scale
    back = np.diag(1 / scale)
    if not intercept:
        return design, back
    design = np.column_stack([np.ones(len(x)), design])
    whole = np.zeros((len(features) + 1, len(features) + 1))
    whole[0, 0], whole[0, 1:], whole[1:, 1:] = 1.0, -centre / scale, back
    return design, whole


def statsmodels_figures(fit: object, back: np.ndarray, p_values: object) -> dict[str, list[float]]:
    coef = back @ fit.params
    error = np.sqrt(np.diag(back @ fit.cov_params() @ back.T))
    return {"coef": list(coef), "std_err": list(error), "stat": list(coef / error), "p_value": list(p_values(coef / error))}


def logistic(onehop: Onehop, checks: Checks, case: Case, path: Path) -> None:
    from scipy.stats import norm

    case.frame.to_parquet(path)
    call = f"'{path}', 'm', label => 'y', features => '{', '.join(case.features)}'"
    call += "" if case.intercept else ", intercept => false"
    rows = onehop.sql(f"SELECT coef, std_err, z_stat, p_value FROM logregr_train({call})")
    design, back = standardized(case.frame, case.features, case.intercept)
    fit = sm.Logit(case.frame["y"].astype(float), design).fit(disp=0, tol=1e-12, maxiter=100)
    figures = statsmodels_figures(fit, back, lambda z: 2 * norm.sf(np.abs(z)))
    for place, name in enumerate(STATISTICS):
        checks.near(f"{case.name}: {name}", [number(row[place]) for row in rows], figures[name])
    facts = onehop.sql("SELECT log_likelihood, null_log_likelihood FROM onehop_models WHERE model_name = 'm' AND converged")
    # Not `llnull`, which statsmodels fits, and not so well as this.
    share = case.frame["y"].mean() if case.intercept else 0.5
    ones = case.frame["y"].sum()
    null = ones * np.log(share) + (len(case.frame) - ones) * np.log(1 - share)
    checks.near(f"{case.name}: log-likelihood", [number(value) for value in facts[0]], [fit.llf, null], 1e-10)
    chances = 1 / (1 + np.exp(-design @ fit.params))
    arguments = ", ".join(case.features)
    ours = onehop.sql(f"SELECT {arguments}, logregr_predict_prob('m', {arguments}) FROM '{path}' LIMIT 50")
    coefficients = np.array([number(row[0]) for row in rows])
    some = np.array([[number(value) for value in row[:-1]] for row in ours])
    eta = some @ coefficients[-some.shape[1] :] + (coefficients[0] if case.intercept else 0.0)
    checks.near(f"{case.name}: probabilities", [number(row[-1]) for row in ours], list(1 / (1 + np.exp(-eta))))
    evaluated = onehop.sql(f"SELECT accuracy, log_loss, auc FROM logregr_evaluate('m', '{path}')")[0]
    labels = case.frame["y"]
    expected = [accuracy_score(labels, chances >= 0.5), log_loss(labels, chances), roc_auc_score(labels, chances)]
    checks.near(f"{case.name}: evaluation", [number(value) for value in evaluated], expected)


def penalised(onehop: Onehop, checks: Checks, case: Case, path: Path) -> None:
    case.frame.to_parquet(path)
    for l2 in (0.1, 5.0, 200.0):
        call = f"'{path}', NULL, 'y', '{', '.join(case.features)}', l2 => {l2}"
        rows = onehop.sql(f"SELECT coef, std_err FROM logregr_train({call})")
        fit = LogisticRegression(C=1 / l2, solver="newton-cholesky", tol=1e-12, max_iter=200)
        fit.fit(case.frame[case.features], case.frame["y"])
        checks.near(f"{case.name}: l2 {l2}", [number(row[0]) for row in rows], [fit.intercept_[0], *fit.coef_[0]])
        checks.holds(f"{case.name}: a penalty has no standard errors", all(row[1] is None for row in rows))


def linear(onehop: Onehop, checks: Checks, case: Case, rng: np.random.Generator, path: Path) -> None:
    from scipy.stats import t

    frame = case.frame.copy()
    x = frame[case.features].to_numpy()
    frame["y"] = x / x.std(axis=0) @ rng.normal(size=x.shape[1]) + rng.normal(size=len(frame)) + 1_000
    frame.to_parquet(path)
    call = f"'{path}', 'l', 'y', '{', '.join(case.features)}'" + ("" if case.intercept else ", intercept => false")
    rows = onehop.sql(f"SELECT coef, std_err, t_stat, p_value FROM linregr_train({call})")
    design, back = standardized(frame, case.features, case.intercept)
    fit = sm.OLS(frame["y"], design).fit()
    figures = statsmodels_figures(fit, back, lambda z: 2 * t.sf(np.abs(z), fit.df_resid))
    for place, name in enumerate(STATISTICS):
        checks.near(f"{case.name}, linear: {name}", [number(row[place]) for row in rows], figures[name])
    facts = onehop.sql("SELECT r2, residual_error FROM onehop_models WHERE model_name = 'l'")[0]
    # statsmodels looks for a constant column; without one its R² is around 0, as ours is without an intercept.
    expected = [fit.rsquared, np.sqrt(fit.scale)]
    checks.near(f"{case.name}, linear: fit", [number(value) for value in facts], expected)


def others(onehop: Onehop, checks: Checks, rng: np.random.Generator, path: Path) -> None:
    """Types, NULLs, separation."""
    frame = pd.DataFrame({
        "i": pd.array(rng.integers(-50, 50, 4_000), dtype="Int64"),
        "b": pd.array(rng.random(4_000) < 0.4, dtype="boolean"),
        "f": pd.array(rng.normal(size=4_000), dtype="Float64"),
    })
    eta = 0.02 * frame["i"].astype(float) + 0.7 * frame["b"].astype(float) - frame["f"].astype(float)
    frame["y"] = (rng.random(4_000) < 1 / (1 + np.exp(-eta.astype(float)))).astype(int)
    for column, share in (("i", 0.01), ("b", 0.02), ("f", 0.01)):
        frame.loc[rng.random(4_000) < share, column] = pd.NA
    frame.to_parquet(path)
    whole = frame.dropna().astype(float)
    rows = onehop.sql(f"SELECT coef, std_err FROM logregr_train('{path}', 'm', 'y', 'i, b, f')")
    fit = sm.Logit(whole["y"], sm.add_constant(whole[["i", "b", "f"]])).fit(disp=0, tol=1e-12)
    checks.near("types: coef", [number(row[0]) for row in rows], list(fit.params))
    checks.near("types: std_err", [number(row[1]) for row in rows], list(fit.bse))
    skipped = onehop.sql("SELECT num_missing_rows_skipped FROM onehop_models WHERE model_name = 'm'")
    checks.holds("types: NULLs are counted", int(str(skipped[0][0])) == len(frame) - len(whole))
    frame = pd.DataFrame({"x": np.linspace(-1, 1, 100), "z": rng.normal(size=100)})
    frame["y"] = frame["x"] > 0.1
    frame.to_parquet(path)
    onehop.sql(f"SELECT * FROM logregr_train('{path}', 'm', 'y', 'x, z')")
    said = onehop.sql("SELECT converged, warnings FROM onehop_models WHERE model_name = 'm'")[0]
    checks.holds("separation is said", said[0] in (False, "false") and "separate the labels perfectly" in str(said[1]))
    with warnings.catch_warnings(record=True) as raised:
        warnings.simplefilter("always")
        try:
            sm.Logit(frame["y"].astype(float), sm.add_constant(frame[["x", "z"]])).fit(disp=0)
        except np.linalg.LinAlgError:
            raised.append(warnings.WarningMessage("singular", UserWarning, "", 0))
    checks.holds("statsmodels says so as well", len(raised) > 0)


def main() -> None:
    parser = argparse.ArgumentParser(description="Compare models of random data with statsmodels and scikit-learn.")
    parser.add_argument("--seed", type=int, default=1, help="of everything random (1)")
    parser.add_argument("--onehop", type=Path, default=REPOSITORY / "target" / "debug" / "onehop")
    parser.add_argument("--canary", action="store_true", help="spoil a figure: the run must fail")
    options = parser.parse_args()
    print(f"seed: {options.seed}")
    rng, checks, onehop = np.random.default_rng(options.seed), Checks(options.canary), Onehop(options.onehop)
    with tempfile.TemporaryDirectory() as folder:
        found = cases(rng)
        for number_of, case in enumerate(found):
            # A name of its own each time: what a path means is looked up once.
            path = Path(folder) / f"{number_of}.parquet"
            logistic(onehop, checks, case, path)
            linear(onehop, checks, case, rng, path.with_name(f"{number_of}-linear.parquet"))
        for case in found[1:3]:
            penalised(onehop, checks, case, Path(folder) / f"{len(case.features)}-penalised.parquet")
        others(onehop, checks, rng, Path(folder) / "others.parquet")
    onehop.close()
    print(f"learn: {checks.passed} passed, {checks.failed} failed")
    sys.exit(checks.failed > 0 or checks.passed == 0)


main()
