"""Log-ins from outside: guesses, silent connections, keys, the page's Host header, and the audit log."""

import contextlib
import json
import signal
import socket
import subprocess
import time
import urllib.parse

import psycopg
import pytest
from conftest import ONEHOP
from test_process import add_user, certificate  # noqa: F401


def silent(port, count, stack):
    for _ in range(count):
        stack.enter_context(socket.create_connection(("127.0.0.1", port)))


def page(server, *headers):
    """The status of the page for these headers."""
    url = urllib.parse.urlparse(server.page)
    with socket.create_connection((url.hostname, url.port)) as connection:
        lines = ["GET / HTTP/1.1", "Connection: close", *headers, "", ""]
        connection.sendall("\r\n".join(lines).encode())
        return int(connection.makefile("rb").readline().split()[1])


def sqlstate(server, user, password):
    """None if the user gets in."""
    try:
        psycopg.connect(server.conninfo(user=user, password=password)).close()
    except psycopg.OperationalError as e:
        # psycopg has no SQLSTATE for what fails while it connects.
        return "28P01" if "password authentication failed" in str(e) else "28000" if "too many failed" in str(e) else str(e)
    return None


def test_guesses_between_another_users_log_ins(make_server, tmp_path):
    users = tmp_path / "users"
    add_user(users, "ada", "Ada's secret", "admin")
    add_user(users, "bob", "bob", "read")
    server = make_server("--users", users)
    began = time.monotonic()
    answers = []
    for n in range(60):
        answers.append(sqlstate(server, "ada", f"guess {n}"))
        if n % 4 == 3:
            assert sqlstate(server, "bob", "bob") is None
    most = 12 + (time.monotonic() - began) / 60
    assert 5 <= answers.count("28P01") <= most
    assert answers.count("28P01") + answers.count("28000") == 60, answers
    assert (tmp_path / "users.secret").stat().st_mode & 0o777 == 0o600


def test_silent_connections_keep_no_client_out(make_server, tmp_path):
    server = make_server("--http", "127.0.0.1:0", "--max-logins", 50)
    began = time.monotonic()
    with contextlib.ExitStack() as stack:
        silent(server.port, 200, stack)
        silent(urllib.parse.urlparse(server.page).port, 100, stack)
        assert server.psql("SELECT 1 AS one") == "one\n1\n(1 row)\n"
        assert page(server, "Host: localhost") == 200
        # Nor does the server wait for them when it ends.
        assert server.stop(signal.SIGTERM) == 0
    assert time.monotonic() - began < 20


def test_the_last_places_are_for_admins(make_server, tmp_path):
    users = tmp_path / "users"
    add_user(users, "root", "x", "admin")
    add_user(users, "ada", "x", "write")
    server = make_server("--users", users, "--max-connections", 3, "--reserved-connections", 1)
    with contextlib.ExitStack() as stack:
        for _ in range(2):
            stack.enter_context(psycopg.connect(server.conninfo(password="x")))
        with pytest.raises(psycopg.OperationalError, match="the last 1 are for admins"):
            psycopg.connect(server.conninfo(password="x"))
        stack.enter_context(psycopg.connect(server.conninfo(user="root", password="x")))


@pytest.mark.parametrize("mode, fits", [(0o600, True), (0o400, True), (0o644, False), (0o604, False), (0o660, False)])
def test_the_modes_of_a_key(mode, fits, make_server, certificate, tmp_path):  # noqa: F811
    cert, key = certificate
    key.chmod(mode)
    if fits:
        server = make_server("--tls-cert", cert, "--tls-key", key)
        server.psql("SELECT 1", sslmode="require")
        return
    command = [ONEHOP, "serve", ":memory:", "--listen", "127.0.0.1:0", "--tls-cert", cert, "--tls-key", key]
    done = subprocess.run(command, text=True, capture_output=True)
    assert done.returncode != 0 and f"mode {mode:04o}" in done.stderr and str(key) in done.stderr, done.stderr


def test_a_host_is_read_to_its_end(make_server):
    server = make_server("--http", "127.0.0.1:0")
    port = urllib.parse.urlparse(server.page).port
    for host in ["localhost", f"localhost:{port}", "127.0.0.1", f"127.0.0.1:{port}", "[::1]", f"[::1]:{port}"]:
        assert page(server, f"Host: {host}") == 200, host
    for host in ["localhost:80@evil.com", "[::1].evil.com", "[::1", "localhost@evil.com", "evil.com", "localhost.evil.com"]:
        assert page(server, f"Host: {host}") in (400, 421), host
    assert page(server, "Host: localhost:80@evil.com") == 421
    assert page(server, "Host: [::1].evil.com") == 421
    assert page(server, "Host: [::1") == 421
    assert page(server, "Host: localhost", "Host: evil.com") in (400, 421)


def test_an_audit_log(make_server, tmp_path):
    users, audit = tmp_path / "users", tmp_path / "audit"
    add_user(users, "ada", "Ada's secret", "admin")
    add_user(users, "bob", "bob's secret", "read")
    server = make_server("--users", users, "--audit", audit)
    server.psql(f"COPY (SELECT 'value') TO '{tmp_path}/x.csv'", env={"PGPASSWORD": "Ada's secret"})
    server.psql("SELECT 1", check=False, env={"PGPASSWORD": "a guess"})
    server.psql("CREATE TABLE t (a INTEGER)", check=False, user="bob", env={"PGPASSWORD": "bob's secret"})
    assert server.stop() == 0
    assert audit.stat().st_mode & 0o777 == 0o600
    text = audit.read_text()
    assert not any(secret in text for secret in ["secret", "guess\"", "'value'"]), text
    lines = [json.loads(line) for line in text.splitlines()]
    events = [(line["event"], line.get("user"), line.get("tag") or line.get("why")) for line in lines]
    assert ("statement", "ada", "COPY TO") in events and ("login failed", "ada", "wrong password") in events, events
    assert ("denied", "bob", "CREATE") in events and ("login", "bob", None) in events, events
    done = subprocess.run([ONEHOP, "serve", "--audit", tmp_path / "missing" / "audit"], text=True, capture_output=True)
    assert done.returncode != 0 and "cannot open the audit log" in done.stderr, done.stderr
