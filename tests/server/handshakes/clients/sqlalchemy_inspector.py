"""SQLAlchemy, and what its Inspector asks, with psycopg 3 and psycopg2; Superset and others look around by it."""

import sys

import sqlalchemy as sa

for driver in ("psycopg", "psycopg2"):
    engine = sa.create_engine(f"postgresql+{driver}://")
    with engine.begin() as connection:
        connection.execute(sa.text("SELECT name FROM people WHERE id = :id"), {"id": 1}).all()
    inspector = sa.inspect(engine)
    inspector.get_schema_names()
    inspector.get_table_names()
    inspector.get_table_names("public")
    inspector.get_view_names()
    inspector.get_materialized_view_names()
    inspector.get_temp_table_names()
    inspector.get_sequence_names()
    inspector.has_table("people"), inspector.has_table("nobody"), inspector.has_schema("public")
    inspector.has_sequence("nothing")
    for kind in ("columns", "pk_constraint", "foreign_keys", "indexes", "unique_constraints", "check_constraints", "table_comment", "table_options"):
        getattr(inspector, f"get_{kind}")("people")
        getattr(inspector, f"get_multi_{kind}")(kind=sa.engine.reflection.ObjectKind.ANY)
    inspector.get_columns("tall")
    inspector.get_view_definition("tall")
    inspector.get_enums(), inspector.get_domains()
    sa.MetaData().reflect(engine, views=True)
    metadata = sa.MetaData()
    table = sa.Table("written", metadata, sa.Column("a", sa.BigInteger), sa.Column("b", sa.String), sa.Column("c", sa.Numeric(10, 2)))
    metadata.create_all(engine)
    with engine.begin() as connection:
        connection.execute(table.insert(), [{"a": 1, "b": "x", "c": 1}, {"a": 2, "b": None, "c": None}])
        connection.execute(table.insert().returning(table.c.a), [{"a": 3}, {"a": 4}]).all()
        connection.execute(table.update().where(table.c.a == 1).values(b="y"))
        list(connection.execution_options(stream_results=True).execute(sa.select(table).order_by(table.c.a)))
    metadata.drop_all(engine)
    engine.dispose()
print("SQLAlchemy", sa.__version__)
