"""psycopg 3: queries with parameters as text and binary, what is prepared by the fifth time, COPY, a pipeline, transactions, cursors."""

import datetime
import decimal

import psycopg
from psycopg.rows import dict_row
from psycopg.types import TypeInfo
from psycopg.types.composite import CompositeInfo
from psycopg.types.enum import EnumInfo

with psycopg.connect() as connection:
    connection.execute("SELECT 1")
    connection.execute("SELECT name FROM people WHERE id = %s AND height < %s", (1, decimal.Decimal("2"))).fetchall()
    connection.cursor(binary=True, row_factory=dict_row).execute("SELECT * FROM people WHERE born = %b", (datetime.date(1815, 12, 10),)).fetchall()
    for number in range(7):
        connection.execute("SELECT name FROM people WHERE id = %s", (number,)).fetchall()
    connection.execute("SELECT id FROM people WHERE id = ANY(%s)", ([1, 2, 3],)).fetchall()
    TypeInfo.fetch(connection, "hstore")
    TypeInfo.fetch(connection, "int8")
    EnumInfo.fetch(connection, "mood")
    CompositeInfo.fetch(connection, "address")
    connection.commit()
    with connection.transaction():
        with connection.transaction():
            connection.execute("INSERT INTO people (id, name) VALUES (%s, %s)", (3, "Eve"))
    connection.cursor().executemany("UPDATE people SET name = %s WHERE id = %s", [("Eva", 3), ("Eve", 3)])
    with connection.cursor().copy("COPY people (id, name) FROM STDIN") as copy:
        copy.write_row((4, "Dan"))
    with connection.cursor().copy("COPY people TO STDOUT (FORMAT BINARY)") as copy:
        for _ in copy:
            pass
    connection.rollback()
    with connection.pipeline():
        connection.execute("SELECT 1")
        connection.execute("SELECT 2")
    list(connection.cursor().stream("SELECT id FROM people ORDER BY id"))
    connection.rollback()
    with connection.cursor(name="mine") as cursor:
        cursor.execute("SELECT id FROM people ORDER BY id")
        cursor.fetchmany(1)
        cursor.fetchall()
    connection.rollback()
    connection.read_only = True
    connection.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
    connection.execute("SELECT 1")
print("psycopg", psycopg.__version__)
