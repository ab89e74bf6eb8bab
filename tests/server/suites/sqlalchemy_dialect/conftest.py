"""SQLAlchemy's own suite for dialects, over postgresql+psycopg, by the ways that it has for dialects of others.

What is adapted, that the rest of each test runs, and nothing of which is there for anybody else:

1. Constraints, indexes and comments are left away where tables are made: Onehop has none. Columns that PostgreSQL numbers by a sequence are
   INTEGER or BIGINT: a test that counts on the numbers fails.
2. Nothing is done about extensions, prepared transactions and enumerations before and after tests: Onehop has none.
3. What requirements.py closes is skipped, with the reason there.
"""

import pytest

# Its hooks are there first, that those below are the last.
import sqlalchemy.dialects.postgresql.provision  # noqa: F401
from sqlalchemy import schema
from sqlalchemy.ext.compiler import compiles
from sqlalchemy.testing import provision

pytest.register_assert_rewrite("sqlalchemy.testing.assertions")

from sqlalchemy.testing.plugin.pytestplugin import *  # noqa: E402, F403


@compiles(schema.PrimaryKeyConstraint, "postgresql")
@compiles(schema.ForeignKeyConstraint, "postgresql")
@compiles(schema.UniqueConstraint, "postgresql")
@compiles(schema.CheckConstraint, "postgresql")
def no_constraint(constraint, compiler, **_):
    return None


# Statements cannot be left away: these do nothing.
@compiles(schema.CreateIndex, "postgresql")
@compiles(schema.DropIndex, "postgresql")
@compiles(schema.AddConstraint, "postgresql")
@compiles(schema.DropConstraint, "postgresql")
@compiles(schema.SetConstraintComment, "postgresql")
@compiles(schema.SetTableComment, "postgresql")
@compiles(schema.SetColumnComment, "postgresql")
def no_statement(element, compiler, **_):
    return "SELECT 1"


@compiles(schema.CreateColumn, "postgresql")
def without_sequence(element, compiler, **more):
    words = compiler.visit_create_column(element, **more)
    for serial, integer in (("BIGSERIAL", "BIGINT"), ("SMALLSERIAL", "SMALLINT"), ("SERIAL", "INTEGER")):
        words = words.replace(f" {serial}", f" {integer}")
    return words


for hook in (
    provision.post_configure_engine,
    provision.drop_all_schema_objects_pre_tables,
    provision.drop_all_schema_objects_post_tables,
    provision.prepare_for_drop_tables,
):
    hook.for_db("postgresql")(lambda *_: None)

