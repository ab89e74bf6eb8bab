"""Machine learning in SQL over frames that are registered, and the guide's page about it."""

from __future__ import annotations

import re
from pathlib import Path

import numpy
import pandas
import pytest

import onehop

GUIDE = Path(__file__).parents[2] / "docs" / "guide" / "machine-learning.md"
BLOCK = re.compile(r"^```sql\n(.*?)^```\n(?:\n?```text\n(.*?)^```\n)?", re.MULTILINE | re.DOTALL)


def test_a_frame_is_learnt_from_and_predicted(con: onehop.Connection) -> None:
    numbers = numpy.random.default_rng(1)
    frame = pandas.DataFrame({"a": numbers.normal(size=20_000), "b": numbers.normal(size=20_000)})
    chance = 1 / (1 + numpy.exp(-(0.5 + frame["a"] - 2 * frame["b"])))
    frame["y"] = numbers.random(20_000) < chance
    con.register("frame", frame)
    fitted = con.sql("SELECT * FROM logregr_train('frame', 'm', label => 'y', features => 'a, b')").df()
    assert list(fitted["term"]) == ["intercept", "a", "b"]
    assert numpy.all(numpy.abs(fitted["coef"] - [0.5, 1, -2]) < 5 * fitted["std_err"])
    predicted = con.sql("SELECT a, b, logregr_predict_prob('m', a, b) AS p FROM frame").numpy()
    expected = 1 / (1 + numpy.exp(-(0.5 + predicted["a"] - 2 * predicted["b"])))
    assert len(expected) == 20_000 and numpy.max(numpy.abs(predicted["p"] - expected)) < 0.05
    agreed = con.sql("SELECT avg(CASE WHEN logregr_predict('m', a, b) = y THEN 1.0 ELSE 0 END) FROM frame").fetchone()
    accuracy = con.sql("SELECT accuracy FROM logregr_evaluate('m', 'frame')").fetchone()
    assert agreed is not None and accuracy is not None and abs(float(agreed[0]) - float(accuracy[0])) < 1e-6


def test_warnings_are_notices(con: onehop.Connection) -> None:
    con.register("frame", pandas.DataFrame({"x": [1.0, 2.0, 3.0, 4.0], "y": [0, 0, 1, 1]}))
    result = con.sql("SELECT * FROM logregr_train('frame', 'm', 'y', 'x')")
    rows = result.fetchall()
    assert len(rows) == 2 and all(row[2] is None for row in rows)
    assert con.sql("SELECT warnings FROM onehop_models").fetchall()[0][0].startswith("the features separate the labels")


def test_the_guide(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    blocks = BLOCK.findall(GUIDE.read_text())
    assert len(blocks) > 5
    with onehop.connect(":memory:") as con:
        for statement, printed in blocks:
            shown = repr(con.sql(statement))
            assert not printed or shown.strip() == printed.strip(), statement
