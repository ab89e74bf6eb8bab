"""pg8000: its DB-API and its native interface."""

import os
from importlib.metadata import version

import pg8000.dbapi
import pg8000.native

address = {"host": "127.0.0.1", "port": int(os.environ["PGPORT"]), "database": "test"}
connection = pg8000.dbapi.connect("ada", **address)
cursor = connection.cursor()
cursor.execute("SELECT * FROM people WHERE id = %s", (1,))
cursor.fetchall()
cursor.executemany("INSERT INTO people (id, name) VALUES (%s, %s)", [(3, "Eve"), (4, None)])
connection.rollback()
connection.autocommit = True
cursor.execute("SELECT count(*) FROM people")
connection.close()
connection = pg8000.native.Connection("ada", **address)
connection.run("SELECT name FROM people WHERE id = :id", id=2)
statement = connection.prepare("SELECT name FROM people WHERE id = :id")
statement.run(id=1)
statement.close()
connection.run("COPY people TO STDOUT", stream=open(os.devnull, "wb"))
connection.close()
print("pg8000", version("pg8000"))
