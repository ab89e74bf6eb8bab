"""ADBC's driver for PostgreSQL: types that it asks about first, catalogs as Arrow, COPY out and in."""

from importlib.metadata import version

import adbc_driver_postgresql.dbapi as adbc
import pyarrow

with adbc.connect("postgresql://") as connection:
    connection.adbc_get_info()
    for depth in ("catalogs", "db_schemas", "tables", "all"):
        connection.adbc_get_objects(depth=depth).read_all()
    connection.adbc_get_objects(depth="all", table_name_filter="people", db_schema_filter="public").read_all()
    connection.adbc_get_table_schema("people")
    connection.adbc_get_table_types()
    with connection.cursor() as cursor:
        cursor.execute("SELECT id, name, born, seen FROM people")
        cursor.fetch_arrow_table()
        cursor.execute("SELECT name FROM people WHERE id = $1", (1,))
        cursor.fetchall()
        cursor.executemany("INSERT INTO people (id, name) VALUES ($1, $2)", [(3, "Eve"), (4, None)])
        cursor.adbc_ingest("written", pyarrow.table({"a": [1, 2], "b": ["x", None]}), mode="create")
        cursor.adbc_ingest("written", pyarrow.table({"a": [3], "b": ["y"]}), mode="append")
    connection.rollback()
print("adbc-driver-postgresql", version("adbc-driver-postgresql"))
