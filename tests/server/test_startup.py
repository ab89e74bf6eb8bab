"""Parameters that a client gives when it connects (PGOPTIONS and the like), beside PostgreSQL."""

import psycopg
import pytest

# options, and what is asked of the session.
OPTIONS = [
    ("-c statement_timeout=77", "statement_timeout"),
    ("-cstatement_timeout=5s", "statement_timeout"),
    ("--statement-timeout=1min", "statement_timeout"),
    ("  -c lock_timeout=3000   -c statement_timeout=2000 ", "lock_timeout"),
    (r"-c application_name=two\ words", "application_name"),
    ("-c TimeZone=Europe/Berlin", "timezone"),
    ("-c statement_timeout=1 -c statement_timeout=2", "statement_timeout"),
    ("-c default_transaction_read_only=on", "default_transaction_read_only"),
]
REFUSED = ["-c", "-c statement_timeout", "-c nope=1", "--nope=1", "-c statement_timeout=soon", "statement_timeout=1", "-c client_encoding=nope"]


def conninfo(port, **more):
    return psycopg.conninfo.make_conninfo(host="127.0.0.1", port=port, user="ada", dbname="test", **more)


@pytest.fixture(name="ports")
def running(postgres, server):
    postgres.renew()
    return postgres.port, server.port


@pytest.mark.parametrize(("options", "name"), OPTIONS)
def test_options_are_parameters(ports, options, name):
    answers = []
    for port in ports:
        with psycopg.connect(conninfo(port, options=options)) as connection:
            answers.append(connection.execute(f"SHOW {name}").fetchone()[0])
    assert answers[1] == answers[0]


def test_named_parameters_overrule_options(ports):
    for port in ports:
        with psycopg.connect(conninfo(port, options="-c application_name=one", application_name="two")) as connection:
            assert connection.execute("SHOW application_name").fetchone()[0] == "two"


@pytest.mark.parametrize("options", REFUSED)
def test_options_that_make_no_sense_are_refused(ports, options):
    for port in ports:
        with pytest.raises(psycopg.OperationalError):
            psycopg.connect(conninfo(port, options=options)).close()


def test_a_limit_of_options_holds(server):
    with psycopg.connect(conninfo(server.port, options="-c statement_timeout=100"), autocommit=True) as connection:
        with pytest.raises(psycopg.errors.QueryCanceled):
            connection.execute("SELECT count(*) FROM generate_series(1, 100000000) a, generate_series(1, 100000000) b WHERE a.a = -b.b")


def test_statements_that_are_transactions_by_themselves(ports):
    for port in ports:
        with psycopg.connect(conninfo(port)) as connection, pytest.raises(psycopg.errors.ActiveSqlTransaction):
            connection.execute("VACUUM")
