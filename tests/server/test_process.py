"""The server as a process: log-ins, TLS, and its end."""

import signal
import subprocess
import threading
import time

import psycopg
import pytest
from conftest import ONEHOP


def add_user(path, name, password, role):
    command = [ONEHOP, "user", "add", str(path), name, "--role", role]
    subprocess.run(command, input=password + "\n", text=True, check=True, capture_output=True)


@pytest.fixture
def certificate(tmp_path):
    """A certificate for 127.0.0.1 that vouches for itself, and its key."""
    cert, key = tmp_path / "cert.pem", tmp_path / "key.pem"
    command = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days", "2"]
    command += ["-subj", "/CN=localhost", "-addext", "subjectAltName=IP:127.0.0.1", "-keyout", str(key), "-out", str(cert)]
    subprocess.run(command, check=True, capture_output=True)
    return cert, key


def test_passwords_and_roles(make_server, tmp_path):
    users = tmp_path / "users"
    add_user(users, "ada", "Ada's secret", "admin")
    add_user(users, "bob", "bob", "read")
    listed = subprocess.run([ONEHOP, "user", "list", users], text=True, capture_output=True, check=True)
    assert listed.stdout == "ada\tadmin\nbob\tread\n"
    server = make_server("--users", users)
    server.psql("CREATE TABLE t (a INTEGER)", env={"PGPASSWORD": "Ada's secret"})
    done = server.psql("SELECT 1", check=False, env={"PGPASSWORD": "wrong"})
    assert 'password authentication failed for user "ada"' in done.stderr
    done = server.psql("INSERT INTO t VALUES (1)", check=False, user="bob", env={"PGPASSWORD": "bob"})
    assert "permission denied" in done.stderr
    assert "secret" not in users.read_text()


def test_tls(make_server, certificate, tmp_path):
    cert, key = certificate
    users = tmp_path / "users"
    add_user(users, "ada", "x", "admin")
    server = make_server("--users", users, "--tls-cert", cert, "--tls-key", key)
    how = {"sslmode": "verify-full", "sslrootcert": cert}
    assert "SSL connection (protocol: TLSv1.3" in server.psql(r"\conninfo", env={"PGPASSWORD": "x"}, **how)
    with psycopg.connect(server.conninfo(password="x", **how)) as connection:
        assert connection.pgconn.ssl_in_use
        rows = connection.execute("SELECT value FROM generate_series(1, 50000)").fetchall()
        assert sum(value for (value,) in rows) == 50000 * 50001 // 2
        connection.cancel_safe()
    # From this machine it may be without.
    server.psql("SELECT 1", env={"PGPASSWORD": "x"}, sslmode="disable")


@pytest.mark.parametrize(
    "arguments, said",
    [
        (["--listen", "0.0.0.0:0"], "needs both users who log in and TLS"),
        (["--tls-cert", "nothing.pem", "--tls-key", "nothing.pem"], "for TLS"),
        (["--users", "nothing"], "cannot open the file of users"),
    ],
)
def test_what_is_not_safe_does_not_begin(arguments, said, tmp_path):
    command = [ONEHOP, "serve", ":memory:", "--listen", "127.0.0.1:0"]
    if "--listen" in arguments:
        command = command[:3]
    done = subprocess.run(command + arguments, cwd=tmp_path, text=True, capture_output=True)
    assert done.returncode != 0 and said in done.stderr, done.stderr


def test_the_end_is_in_order(make_server, tmp_path):
    server = make_server("--grace", 1, path=str(tmp_path / "db"))
    with psycopg.connect(server.conninfo(), autocommit=True) as connection:
        connection.execute("CREATE TABLE t (a INTEGER)")
        connection.execute("INSERT INTO t VALUES (1)")
        assert server.stop(signal.SIGTERM) == 0
        with pytest.raises(psycopg.OperationalError):
            connection.execute("SELECT 1")


def test_a_second_signal_ends_what_runs(make_server):
    server, ended = make_server("--grace", 600), []

    def run():
        with psycopg.connect(server.conninfo(), autocommit=True) as connection:
            try:
                series = "generate_series(1, 1000000)"
                connection.execute(f"SELECT count(*) FROM {series} AS a(x), {series} AS b(y) WHERE x * y = -1")
            except psycopg.Error as e:
                ended.append(e)

    thread = threading.Thread(target=run)
    thread.start()
    running = "SELECT count(*) FROM onehop_queries WHERE state = 'running'"
    # With this one.
    while server.psql(running).splitlines()[1] != "2":
        time.sleep(0.01)
    server.process.send_signal(signal.SIGTERM)
    time.sleep(0.3)
    assert server.process.poll() is None and thread.is_alive()
    assert server.stop(signal.SIGTERM) == 0
    thread.join()
    assert ended


def test_what_was_acknowledged_outlives_a_kill(make_server, tmp_path):
    path = str(tmp_path / "db")
    server = make_server(path=path)
    connection = psycopg.connect(server.conninfo(), autocommit=True)
    connection.execute("CREATE TABLE t (a INTEGER)")
    for value in range(5):
        connection.execute("INSERT INTO t VALUES (%s)", (value,))
    connection.execute("BEGIN")
    connection.execute("INSERT INTO t VALUES (100)")
    server.stop(signal.SIGKILL)
    connection.close()
    server = make_server(path=path)
    assert server.psql("SELECT count(*) AS n, sum(a) AS s FROM t") == "n|s\n5|10\n(1 row)\n"
