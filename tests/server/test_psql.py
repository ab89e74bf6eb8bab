"""psql 15: everyday commands. What is expected is what it prints about PostgreSQL 15 for the same tables."""

TABLES = """
    CREATE TABLE people (id INTEGER NOT NULL, name VARCHAR, born DATE, height DECIMAL(5,2), seen TIMESTAMP);
    CREATE TABLE visits (person INTEGER, at TIMESTAMP WITH TIME ZONE, length DOUBLE PRECISION);
    CREATE VIEW tall AS SELECT name FROM people WHERE height > 1.8;
    INSERT INTO people VALUES (1, 'Ada', DATE '1815-12-10', 1.65, NULL), (2, 'Bob', NULL, 1.90, TIMESTAMP '2024-02-29 12:00:00');
"""


def test_queries_and_tags(server):
    server.psql(TABLES)
    assert server.psql("SELECT id, name, born, height, seen FROM people ORDER BY id") == (
        "id|name|born|height|seen\n1|Ada|1815-12-10|1.65|\n2|Bob||1.90|2024-02-29 12:00:00\n(2 rows)\n"
    )
    assert server.psql("SELECT * FROM tall", "-- nothing") == "name\nBob\n(1 row)\n"


def test_relations_are_listed(server):
    server.psql(TABLES)
    assert server.psql(r"\d") == (
        "List of relations\nSchema|Name|Type|Owner\npublic|people|table|ada\npublic|tall|view|ada\n"
        "public|visits|table|ada\n(3 rows)\n"
    )
    assert server.psql(r"\dt") == (
        "List of relations\nSchema|Name|Type|Owner\npublic|people|table|ada\npublic|visits|table|ada\n(2 rows)\n"
    )
    assert server.psql(r"\dv") == "List of relations\nSchema|Name|Type|Owner\npublic|tall|view|ada\n(1 row)\n"
    assert server.psql(r"\dt pe*") == (
        "List of relations\nSchema|Name|Type|Owner\npublic|people|table|ada\n(1 row)\n"
    )


def test_a_table_is_described(server):
    server.psql(TABLES)
    assert server.psql(r"\d people") == (
        'Table "public.people"\nColumn|Type|Collation|Nullable|Default\nid|integer||not null|\nname|text|||\n'
        "born|date|||\nheight|numeric(5,2)|||\nseen|timestamp without time zone|||\n"
    )
    assert server.psql(r"\d visits") == (
        'Table "public.visits"\nColumn|Type|Collation|Nullable|Default\nperson|integer|||\n'
        "at|timestamp with time zone|||\nlength|double precision|||\n"
    )
    assert server.psql(r"\d tall") == (
        'View "public.tall"\nColumn|Type|Collation|Nullable|Default\nname|text|||\n'
    )


def test_other_lists(server):
    assert server.psql(r"\dn") == "List of schemas\nName|Owner\npublic|ada\n(1 row)\n"
    assert server.psql(r"\du").startswith("List of roles\nRole name|Attributes|Member of\nada|Superuser")
    assert server.psql(r"\l").startswith(
        "List of databases\nName|Owner|Encoding|Collate|Ctype|ICU Locale|Locale Provider|Access privileges\ntest|ada|UTF8|C|C||libc|\n"
    )
    assert server.psql(r"\df") == (
        "List of functions\nSchema|Name|Result data type|Argument data types|Type\n(0 rows)\n"
    )
    assert server.psql(r"\conninfo").startswith('You are connected to database "test" as user "ada"')
    assert server.psql(r"\di") == "List of relations\nSchema|Name|Type|Owner|Table\n(0 rows)\n"


def test_errors_say_what_to_do(server):
    server.psql(TABLES)
    done = server.psql("SELECT * FROM poeple", check=False)
    assert done.returncode == 1
    assert 'ERROR:  there is no table "poeple"' in done.stderr
    assert 'HINT:  did you mean "people"?' in done.stderr
    assert "ERROR:  42P01:" in server.psql(r"\set VERBOSITY verbose", "SELECT * FROM poeple", check=False).stderr


def test_errors_of_syntax_are_pointed_at(server):
    done = server.psql("SELECT 1 +\n )", check=False)
    assert done.stderr.splitlines()[1:] == ["LINE 2:  )", "         ^"]


def test_copy_of_files_of_the_client(server, tmp_path):
    server.psql(TABLES)
    path = tmp_path / "people.csv"
    server.psql(rf"\copy (SELECT * FROM people ORDER BY id) TO '{path}' WITH CSV HEADER")
    assert path.read_text() == (
        "id,name,born,height,seen\n1,Ada,1815-12-10,1.65,\n2,Bob,,1.90,2024-02-29 12:00:00\n"
    )
    path.write_text('id,name\n3,"Eve ""the"" third"\n4,\n')
    server.psql(rf"\copy people (id, name) FROM '{path}' WITH (FORMAT csv, HEADER true)")
    assert server.psql("SELECT name, id FROM people WHERE id > 2 ORDER BY id") == (
        'name|id\nEve "the" third|3\n|4\n(2 rows)\n'
    )
    path.write_text("5\tx\nsix\ty\n")
    done = server.psql(rf"\copy people (id, name) FROM '{path}'", check=False)
    assert 'invalid input syntax for type int4: "six"' in done.stderr
    assert "COPY people, line 2, column id" in done.stderr
    assert server.psql("SELECT count(*) FROM people") == "count\n4\n(1 row)\n"


def test_transactions(server):
    server.psql(TABLES)
    script = "BEGIN; DELETE FROM people; SELECT 1/0; COMMIT;"
    assert "division by zero" in server.psql(script, check=False).stderr
    assert "(2 rows)" in server.psql("SELECT id FROM people")
