"""A program that uses the package, for `mypy --strict`: it is checked, and runs as a test."""

from __future__ import annotations

import datetime
import decimal
from typing import Any

import numpy
import pandas
import polars
import pyarrow

import onehop
from onehop import dbapi


def main() -> None:
    with onehop.connect(config={"threads": 2}) as con:
        result: onehop.Result = con.sql("SELECT $1 AS n, $2 AS t", params=[1, "a"])
        row: tuple[object, ...] | None = result.fetchone()
        assert row == (1, "a")
        day: list[tuple[object, ...]] = con.sql("SELECT $day", {"day": datetime.date(2024, 2, 29)}).fetchall()
        assert day == [(datetime.date(2024, 2, 29),)]
        table: pyarrow.Table = con.sql("SELECT 1 AS n").arrow()
        frame: pandas.DataFrame = con.sql("SELECT n FROM rows", tables={"rows": table}).df()
        con.register("frame", frame)
        other: polars.DataFrame = con.sql("SELECT n FROM frame").pl()
        arrays = con.sql("SELECT n FROM other", tables={"other": other}).numpy()
        column: numpy.ndarray[Any, Any] = arrays["n"]
        assert column.tolist() == [1]
        batches: list[pyarrow.RecordBatch] = list(con.sql("SELECT 1.5 AS price"))
        assert batches[0].column(0)[0].as_py() == decimal.Decimal("1.5")
        samples: onehop.Table = con.table("frame")
        taken: dict[str, Any] = samples.cupy("n")
        matrix: Any = con.sql("SELECT n, n + 1 AS m FROM frame").cupy(matrix=True)
        dense: onehop.Array = samples.arrays("n", device="cpu")["n"]
        address: int = dense.ptr
        assert taken["n"].tolist() == [1] and matrix.shape == (1, 2) and address > 0 and dense.dtype == "int64"
        con.sql("CREATE TABLE kept AS SELECT n FROM frame")
        handle: object = con.sql("SELECT onehop_export('kept')").fetchall()[0][0]
        imported: onehop.Arrays = onehop.ipc_import(str(handle), ["n"])
        assert imported.numpy()["n"].tolist() == [1]
        plan: str = con.explain("SELECT 1", analyze=True)
        moved = con.ledger()["storage_to_host_bytes"]
        assert plan and moved == 0
        try:
            con.sql("SELECT nothing")
        except onehop.NotFoundError as error:
            hint: str | None = error.hint
            kind: str = error.kind
            assert (hint is None or hint) and kind == "not_found"
    with dbapi.connect() as connection, connection.cursor() as cursor:
        cursor.execute("SELECT ?", (1,))
        assert cursor.description is not None and cursor.description[0][1] == dbapi.NUMBER


if __name__ == "__main__":
    main()
