"""psycopg2: what it sets when it connects, its helpers for types and many rows, COPY, a named cursor."""

import io

import psycopg2
import psycopg2.extras

connection = psycopg2.connect("", application_name="look")
connection.set_client_encoding("UTF8")
cursor = connection.cursor(cursor_factory=psycopg2.extras.RealDictCursor)
cursor.execute("SELECT * FROM people WHERE id = %s", (1,))
cursor.fetchall()
psycopg2.extras.execute_values(cursor, "INSERT INTO people (id, name) VALUES %s", [(3, "Eve"), (4, None)])
psycopg2.extras.execute_batch(cursor, "UPDATE people SET name = %s WHERE id = %s", [("Eva", 3), ("Dan", 4)])
cursor.execute("DELETE FROM people WHERE id > 2 RETURNING id")
cursor.copy_expert("COPY people TO STDOUT WITH CSV HEADER", io.StringIO())
cursor.copy_from(io.StringIO("5\tFay\n"), "people", columns=("id", "name"))
connection.rollback()
connection.set_session(isolation_level="REPEATABLE READ", readonly=True)
cursor.execute("SELECT count(*) FROM people")
connection.rollback()
connection.set_session(autocommit=True, readonly=False, isolation_level="DEFAULT")
cursor.execute("SELECT 1")
psycopg2.extras.register_uuid()
connection.get_transaction_status()
connection.autocommit = False
with connection:
    with connection.cursor() as cursor:
        cursor.execute("SAVEPOINT one; SELECT 1; RELEASE SAVEPOINT one")
with connection.cursor("mine") as cursor:
    cursor.execute("SELECT id FROM people ORDER BY id")
    cursor.fetchall()
connection.reset()
connection.close()
print("psycopg2", psycopg2.__version__.split()[0])
