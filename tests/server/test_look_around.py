"""How programs such as DBeaver, Metabase and Grafana look around: these are no recordings.

The applications are not in any registry of packages, so their connections could not be recorded as those of handshakes/ were. The
statements are ours, over catalogs, columns and functions that programs of their kind read; what these three really send is not known here. (What DBeaver and Metabase ask by
DatabaseMetaData is in the recording of pgjdbc, and Grafana's driver in that of pgx.) Each runs against a PostgreSQL, too: Onehop has to
answer what that answers, with the same columns, and with rows if it has some.
"""

from pathlib import Path

import psycopg
import pytest

HANDSHAKES = Path(__file__).resolve().parent / "handshakes"
STATEMENTS = {
    "grafana: version": "SELECT current_setting('server_version_num')::INTEGER / 100 AS version",
    "grafana: TimescaleDB": "SELECT extversion FROM pg_extension WHERE extname = 'timescaledb'",
    "grafana: tables": """
        SELECT quote_ident(table_name) AS name FROM information_schema.tables
        WHERE quote_ident(table_schema) NOT IN ('information_schema', 'pg_catalog') ORDER BY 1""",
    "grafana: search path": """
        SELECT trim(path) AS path FROM (SELECT unnest(string_to_array(current_setting('search_path'), ',')) AS path) p""",
    "grafana: columns": """
        SELECT quote_ident(column_name) AS name, data_type AS type FROM information_schema.columns
        WHERE quote_ident(table_name) = 'people' ORDER BY ordinal_position""",
    "grafana: groups of time": """
        SELECT floor(extract(epoch FROM seen) / 3600) * 3600 AS "time", count(*) AS value FROM people
        WHERE seen BETWEEN '2024-02-29T00:00:00Z' AND '2024-03-01T00:00:00Z' GROUP BY 1 ORDER BY 1""",
    "metabase: schemas": "SELECT nspname FROM pg_namespace WHERE has_schema_privilege(nspname, 'USAGE') AND nspname = 'public'",
    "metabase: tables": """
        SELECT n.nspname AS schema, c.relname AS name, c.relkind AS kind, obj_description(c.oid, 'pg_class') AS description,
            c.reltuples AS estimate
        FROM pg_catalog.pg_class c JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
        WHERE c.relkind IN ('r', 'p', 'v', 'f', 'm') AND n.nspname !~ '^pg_' AND n.nspname <> 'information_schema'
        ORDER BY 1, 2""",
    "metabase: privileges": """
        SELECT c.relname AS name, has_table_privilege(c.oid, 'SELECT') AS reads, has_any_column_privilege(c.oid, 'SELECT') AS reads_some,
            has_table_privilege(c.oid, 'UPDATE') AS updates
        FROM pg_class c WHERE c.relname = 'people'""",
    "metabase: columns": """
        SELECT c.column_name AS name, c.udt_name AS type, c.ordinal_position - 1 AS position, c.is_nullable AS nullable,
            col_description(CAST(CAST(format('%I.%I', c.table_schema, c.table_name) AS regclass) AS oid), c.ordinal_position) AS remarks
        FROM information_schema.columns c WHERE c.table_name = 'people' ORDER BY 3""",
    "metabase: enumerations": "SELECT t.typname, e.enumlabel FROM pg_type t JOIN pg_enum e ON t.oid = e.enumtypid",
    "metabase: months": "SELECT date_trunc('month', seen) AS month, count(*) AS n FROM people WHERE seen IS NOT NULL GROUP BY 1 ORDER BY 1",
    "metabase: days of the week": "SELECT extract(dow FROM seen) AS day FROM people WHERE seen IS NOT NULL",
    "dbeaver: database": "SELECT db.oid, db.datname, pg_encoding_to_char(db.encoding) AS encoding, db.datallowconn FROM pg_catalog.pg_database db WHERE datname = current_database()",
    "dbeaver: schemas": """
        SELECT n.oid, n.nspname, n.nspowner, d.description FROM pg_catalog.pg_namespace n
        LEFT OUTER JOIN pg_catalog.pg_description d ON d.objoid = n.oid AND d.objsubid = 0 AND d.classoid = 'pg_namespace'::regclass
        ORDER BY nspname""",
    "dbeaver: words": "SELECT word, catcode FROM pg_catalog.pg_get_keywords() ORDER BY 1",
    "dbeaver: tables": """
        SELECT c.oid, c.relname, c.relkind, c.relhasindex, c.relispartition, d.description, pg_total_relation_size(c.oid) >= 0 AS has_size
        FROM pg_catalog.pg_class c
        LEFT OUTER JOIN pg_catalog.pg_description d ON d.objoid = c.oid AND d.objsubid = 0 AND d.classoid = 'pg_class'::regclass
        WHERE c.relnamespace = (SELECT oid FROM pg_namespace WHERE nspname = 'public') AND c.relkind NOT IN ('i', 'I', 'c')
        ORDER BY relname""",
    "dbeaver: columns": """
        SELECT c.relname, a.attname, a.attnum, format_type(a.atttypid, a.atttypmod) AS type, a.attnotnull, a.attidentity,
            pg_get_expr(ad.adbin, ad.adrelid, true) AS default_value, dsc.description
        FROM pg_catalog.pg_attribute a JOIN pg_catalog.pg_class c ON a.attrelid = c.oid
        LEFT OUTER JOIN pg_catalog.pg_attrdef ad ON a.attrelid = ad.adrelid AND a.attnum = ad.adnum
        LEFT OUTER JOIN pg_catalog.pg_description dsc ON c.oid = dsc.objoid AND a.attnum = dsc.objsubid
        WHERE NOT a.attisdropped AND a.attnum > 0 AND c.relname = 'people' ORDER BY a.attnum""",
    "dbeaver: types": """
        SELECT t.oid, t.typname, t.typtype, t.typcategory, t.typelem, format_type(nullif(t.typbasetype, 0), t.typtypmod) AS base
        FROM pg_catalog.pg_type t LEFT OUTER JOIN pg_catalog.pg_class c ON c.oid = t.typrelid
        WHERE t.typname IS NOT NULL AND (c.relkind IS NULL OR c.relkind = 'c') ORDER BY t.oid""",
    "dbeaver: constraints": """
        SELECT c.oid, c.conname, c.contype, c.conkey, c.confkey, t.relname, pg_get_constraintdef(c.oid, true) AS definition
        FROM pg_catalog.pg_constraint c JOIN pg_catalog.pg_class t ON t.oid = c.conrelid WHERE t.relname = 'people'""",
    "dbeaver: a setting": "SELECT setting FROM pg_catalog.pg_settings WHERE name = 'standard_conforming_strings'",
    "dbeaver: session": "SELECT current_schema() AS schema, session_user AS who, version() LIKE 'PostgreSQL 15%' AS is_15",
    "dbeaver: sessions": "SELECT pid, usename, datname, state, application_name, client_addr, query FROM pg_stat_activity WHERE pid = pg_backend_pid()",
    "dbeaver: roles": "SELECT rolname, rolsuper, rolcanlogin FROM pg_catalog.pg_roles WHERE rolname = current_user",
    "dbeaver: functions": "SELECT p.oid, p.proname, pg_get_function_identity_arguments(p.oid) AS arguments FROM pg_catalog.pg_proc p WHERE p.proname = 'lower'",
    "dbeaver: a view's text": "SELECT pg_get_viewdef('public.tall'::regclass, true) AS text",
}

KNOWN = {
    "metabase: columns": "information_schema.columns has no udt_name.",
    "dbeaver: words": "There is no pg_get_keywords.",
    "dbeaver: functions": "No functions are listed: pg_proc is empty.",
}


@pytest.mark.parametrize("name", STATEMENTS)
def test_answers_as_postgresql(name, postgres, server, request):
    if name in KNOWN:
        request.applymarker(pytest.mark.xfail(reason=KNOWN[name], strict=False))
    server.psql((HANDSHAKES / "tables.sql").read_text())
    answers = []
    for port in (postgres.port, server.port):
        with psycopg.connect(f"host=127.0.0.1 port={port} user=ada dbname=test", autocommit=True) as connection:
            cursor = connection.execute(STATEMENTS[name])
            answers.append(([column.name for column in cursor.description], bool(cursor.fetchall())))
    assert answers[1] == answers[0]
