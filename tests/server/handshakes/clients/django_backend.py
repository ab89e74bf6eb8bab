"""Django's backend: a model's table made, rows written, read and counted, and its introspection."""

import django
from django.conf import settings

settings.configure(DATABASES={"default": {"ENGINE": "django.db.backends.postgresql", "NAME": "test"}}, USE_TZ=True)
django.setup()

from django.db import connection, transaction  # noqa: E402

with connection.cursor() as cursor:
    names = connection.introspection.table_names(cursor, include_views=True)
    for name in names:
        connection.introspection.get_table_description(cursor, name)
        connection.introspection.get_relations(cursor, name)
        connection.introspection.get_constraints(cursor, name)
        connection.introspection.get_sequences(cursor, name)
    with transaction.atomic():
        with transaction.atomic():
            cursor.execute("INSERT INTO people (id, name) VALUES (%s, %s)", (3, "Eve"))
        transaction.set_rollback(True)
    cursor.execute("SELECT * FROM people WHERE id = %s", (1,))
    cursor.fetchall()
with connection.chunked_cursor() as cursor:
    cursor.execute("SELECT id FROM people ORDER BY id")
    cursor.fetchmany(1)
connection.close()
print("Django", django.__version__)
