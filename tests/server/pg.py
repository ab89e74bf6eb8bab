"""A real PostgreSQL for tests: a data folder and a port of its own on 127.0.0.1, ended with the test.

Debian's package postgresql. As root it runs as the user postgres, for it refuses to as root.
"""

import os
import shutil
import socket
import subprocess
import tempfile
import time
import urllib.parse
from pathlib import Path

PASSWORD = "it's a secret"


def binaries():
    """The folder of the newest there is."""
    found = sorted(Path("/usr/lib/postgresql").glob("*/bin"), key=lambda path: int(path.parent.name))
    return found[-1]


class Postgres:
    def __init__(self, auth="scram-sha-256"):
        # Where another user gets to, which a test's own folder is not.
        self.outer = Path(tempfile.mkdtemp(prefix="onehop-pg-", dir="/tmp"))
        self.outer.chmod(0o755)
        self.folder = self.outer / "server"
        self.bin = binaries()
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port = probe.getsockname()[1]
        self.folder.mkdir(parents=True)
        secret = self.folder / "password"
        secret.write_text(PASSWORD)
        data = self.folder / "data"
        if os.getuid() == 0:
            shutil.chown(self.folder, "postgres")
            shutil.chown(secret, "postgres")
        initdb = ["initdb", "-D", data, "-U", "postgres", "-E", "UTF8", "--locale=C.UTF-8", "--no-sync"]
        self.run(*initdb, f"--auth={auth}", f"--pwfile={secret}")
        settings = {
            "port": self.port,
            "listen_addresses": "127.0.0.1",
            "unix_socket_directories": "",
            "fsync": "off",
            "max_connections": 60,
        }
        words = [self.bin / "postgres", "-D", data, *(f"-c{name}={value}" for name, value in settings.items())]
        with open(self.folder / "log", "w") as log:
            self.process = subprocess.Popen(self.as_user(words), stdout=log, stderr=log)
        # A port that is open may still be that of a server that starts, and sends everybody away.
        ready = [self.bin / "pg_isready", "-q", "-h", "127.0.0.1", "-p", str(self.port)]
        for _ in range(600):
            if subprocess.run(ready, check=False).returncode == 0:
                break
            assert self.process.poll() is None, (self.folder / "log").read_text()
            time.sleep(0.05)

    @staticmethod
    def as_user(words):
        words = [str(word) for word in words]
        return words if os.getuid() else ["setpriv", "--reuid=postgres", "--regid=postgres", "--clear-groups", *words]

    def run(self, program, *words):
        done = subprocess.run(self.as_user([self.bin / program, *words]), capture_output=True, text=True, cwd="/")
        assert done.returncode == 0, done.stdout + done.stderr

    def url(self, user="postgres", password=PASSWORD, database="postgres"):
        secret = urllib.parse.quote(password, safe="")
        return f"postgresql://{user}:{secret}@127.0.0.1:{self.port}/{database}"

    def conninfo(self):
        escaped = PASSWORD.replace("'", "\\'")
        return f"host=127.0.0.1 port={self.port} user=postgres dbname=postgres password='{escaped}'"

    def stop(self):
        self.process.terminate()
        self.process.wait()
        shutil.rmtree(self.outer)
