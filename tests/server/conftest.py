"""Servers for tests: `onehop serve` as a process, its address read from what it says."""

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parent / "handshakes"))

import record  # noqa: E402

ONEHOP = os.environ["ONEHOP"]


class Server:
    """A server on 127.0.0.1, on a port of its own."""

    def __init__(self, *arguments, temporary, path=":memory:", cwd=None):
        command = [ONEHOP, "serve", path, "--listen", "127.0.0.1:0", *map(str, arguments)]
        environment = {**os.environ, "TMPDIR": str(temporary)}
        self.process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=environment, cwd=cwd)
        # What it says before is where its page is.
        said, found = "", None
        while not found:
            line = self.process.stderr.readline()
            assert line, said
            said += line
            found = re.search(r" at 127\.0\.0\.1:(\d+)$", line)
        self.port = int(found.group(1))
        page = re.search(r" at (https?://127\.0\.0\.1:\d+/)$", said, re.MULTILINE)
        self.page = page and page.group(1)

    def conninfo(self, **more):
        facts = {"host": "127.0.0.1", "port": self.port, "user": "ada", "dbname": "test", **more}
        return " ".join(f"{name}='{value}'" for name, value in facts.items())

    def psql(self, *commands, check=True, env=None, **more):
        """What psql prints for commands, without alignment."""
        words = ["psql", self.conninfo(**more), "-X", "-q", "-A", "-v", "ON_ERROR_STOP=1"]
        for command in commands:
            words += ["-c", command]
        done = subprocess.run(words, capture_output=True, text=True, env={**os.environ, **(env or {})})
        assert not check or done.returncode == 0, done.stderr
        return done.stdout if check else done

    def run_psql(self, *words):
        """What comes of psql with these words, whatever that is."""
        command = ["psql", self.conninfo(), "-X", "-q", "-A", *words]
        return subprocess.run(command, capture_output=True, text=True)

    def stop(self, how=signal.SIGTERM):
        if self.process.poll() is None:
            self.process.send_signal(how)
        code = self.process.wait()
        self.process.stderr.close()
        return code


@pytest.fixture
def make_server(tmp_path):
    servers = []

    def make(*arguments, **more):
        # What one leaves that is killed goes with the test's.
        servers.append(Server(*arguments, temporary=tmp_path, **more))
        return servers[-1]

    yield make
    for server in servers:
        server.stop(signal.SIGKILL)


@pytest.fixture
def server(make_server):
    return make_server()


@pytest.fixture(scope="module")
def postgres():
    """A PostgreSQL that lets ada in, to a database with the tables of handshakes/tables.sql."""
    server = record.Server()
    yield server
    server.stop()
