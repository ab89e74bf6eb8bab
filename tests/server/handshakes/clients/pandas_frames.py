"""pandas by SQLAlchemy: read_sql, read_sql_table, to_sql."""

import pandas
import sqlalchemy as sa

engine = sa.create_engine("postgresql+psycopg://")
pandas.read_sql("SELECT * FROM people", engine)
pandas.read_sql_table("people", engine)
pandas.read_sql_query(sa.text("SELECT id FROM people WHERE id = :id"), engine, params={"id": 1})
frame = pandas.DataFrame({"a": [1, 2], "b": ["x", None], "c": [0.5, None], "d": pandas.to_datetime(["2024-02-29", None]), "e": [True, False]})
frame.to_sql("written", engine, index=False)
frame.to_sql("written", engine, index=False, if_exists="append", method="multi")
frame.to_sql("written", engine, index=False, if_exists="replace", chunksize=1)
pandas.read_sql_table("written", engine, columns=["a", "d"])
with engine.begin() as connection:
    connection.execute(sa.text("DROP TABLE written"))
print("pandas", pandas.__version__)
