"""Records what clients send when they connect and look around, and what a PostgreSQL answers: `record.py FOLDER [CLIENT ...]`.

1. A PostgreSQL is started that lets everybody in, with the tables of tables.sql; before it a proxy that reads along.
2. Each client of clients/ is run against the proxy: NAME.py, NAME.sh, NAME.js, NAME.go, NAME.java. FOLDER has their packages, and is
   filled by setup.sh.
3. What went by is written to NAME.json, one for each client: sessions, each of steps; a step is what the client sent up to where it
   waited, and what the server answered up to where it was the client's turn.

It is no part of `make test`, which replays the recordings (test_handshakes.py).
"""

import json
import os
import re
import socket
import struct
import subprocess
import sys
import tempfile
import threading
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent))

import pg  # noqa: E402
import wire  # noqa: E402


class Session:
    """One connection through the proxy. Both threads append to `said`, each message when it is passed on."""

    def __init__(self, client, port):
        self.client, self.server = client, socket.create_connection(("127.0.0.1", port))
        self.said, self.lock = [], threading.Lock()
        self.threads = [threading.Thread(target=run, daemon=True) for run in (self.from_client, self.from_server)]
        self.is_cancel = False
        for thread in self.threads:
            thread.start()

    @staticmethod
    def reader(connection):
        file = connection.makefile("rb")
        return file.read

    @staticmethod
    def shut(connection, how):
        try:
            connection.shutdown(how)
        except OSError:
            pass  # The other side was first.

    def note(self, who, message, onward, raw):
        with self.lock:
            self.said.append((who, message))
        onward.sendall(raw)

    def from_client(self):
        read = self.reader(self.client)
        try:
            while True:
                head = read(8)
                if not head:
                    return
                length, code = struct.unpack("!ii", head)
                body = read(length - 8)
                if code in (wire.SSL, wire.GSS):
                    self.note("client", ["SSLRequest" if code == wire.SSL else "GSSENCRequest"], self.client, b"N")
                    continue
                if code == wire.CANCEL:
                    self.is_cancel = True
                    self.server.sendall(head + body)
                    return
                self.note("client", ["Startup", wire.fields_of_startup(body)], self.server, head + body)
                break
            while message := wire.take(read):
                letter, body = message
                raw = letter + struct.pack("!i", len(body) + 4) + body
                self.note("client", wire.of_client(letter, body), self.server, raw)
        except ConnectionError:
            pass
        finally:
            self.shut(self.server, socket.SHUT_WR)

    def from_server(self):
        read = self.reader(self.server)
        try:
            while message := wire.take(read):
                letter, body = message
                raw = letter + struct.pack("!i", len(body) + 4) + body
                if letter in wire.ASIDE:
                    self.client.sendall(raw)
                else:
                    self.note("server", wire.of_server(letter, body), self.client, raw)
        except ConnectionError:
            pass
        finally:
            # Not closed alone: the other thread reads from it.
            self.shut(self.client, socket.SHUT_RDWR)

    def steps(self):
        """What was said by turns."""
        for thread in self.threads:
            thread.join()
        self.client.close()
        self.server.close()
        steps, answers_of_last = [], True
        for who, message in self.said:
            if who == "client":
                if answers_of_last and (not steps or ends_turn(steps[-1]["send"]) or steps[-1]["answer"]):
                    steps.append({"send": [], "answer": []})
                steps[-1]["send"].append(message)
                answers_of_last = ends_turn(steps[-1]["send"])
            else:
                steps[-1]["answer"].append(message)
        for step in steps:
            step["answer"] = wire.together(step["answer"])
        return steps


def ends_turn(sent):
    return sent[-1][0] in wire.TURNS


class Proxy:
    def __init__(self, port):
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.port, self.sessions = self.listener.getsockname()[1], []
        self.thread = threading.Thread(target=self.accept, args=(port,), daemon=True)
        self.thread.start()

    def accept(self, port):
        while True:
            try:
                connection, _ = self.listener.accept()
            except OSError:
                return
            self.sessions.append(Session(connection, port))

    def stop(self):
        self.listener.shutdown(socket.SHUT_RDWR)
        self.listener.close()
        self.thread.join()
        return [steps for session in self.sessions if not session.is_cancel and (steps := session.steps())]


def without_oids(value, oids):
    """A message with tables' names for their numbers."""
    if isinstance(value, list):
        return [without_oids(part, oids) for part in value]
    if isinstance(value, dict) and "hex" in value and len(value["hex"]) == 8:
        return {"oid": oids[found]} if (found := int(value["hex"], 16)) in oids else value
    if isinstance(value, str):
        return re.sub(r"\b\d{5}\b", lambda found: f"${{{oids[int(found[0])]}}}" if int(found[0]) in oids else found[0], value)
    return value


def written(recording):
    """JSON with a line for each message: a difference is read by people."""
    line = lambda value: json.dumps(value, ensure_ascii=False)
    facts = [f" {line(name)}: {line(recording[name])}" for name in ("client", "server")]
    sessions = []
    for session in recording["sessions"]:
        steps = []
        for step in session:
            sent = ",\n    ".join(line(message) for message in step["send"])
            steps.append(f'  {{"send": [\n    {sent}],\n   "answer": {line(step["answer"])}}}')
        sessions.append(" [\n" + ",\n".join(steps) + "\n ]")
    return "{\n" + ",\n".join(facts) + ',\n "sessions": [\n' + ",\n".join(sessions) + "\n]}\n"


def command(path, folder):
    name = path.name
    match path.suffix:
        case ".py":
            return [folder / "venv/bin/python", path]
        case ".sh":
            return ["bash", path]
        case ".js":
            return ["node", path]
        case ".go":
            return [folder / "go" / path.stem]
        case ".java":
            return ["java", "-cp", folder / "pgjdbc.jar", path]
    raise SystemExit(f"record.py: what is {name}?")


def record(path, folder, server):
    """Runs a client, on the standard output of which is its name and version."""
    server.query("DROP TABLE IF EXISTS written")
    proxy = Proxy(server.port)
    facts = {"PGHOST": "127.0.0.1", "PGPORT": str(proxy.port), "PGUSER": "ada", "PGDATABASE": "test", "NODE_PATH": f"{folder}/node_modules"}
    environment = {**os.environ, **facts, "LC_ALL": "C.UTF-8", "TZ": "UTC", "HOME": str(folder / "home")}
    with tempfile.TemporaryDirectory() as scratch:
        done = subprocess.run([str(word) for word in command(path, folder)], capture_output=True, text=True, env=environment, cwd=scratch)
    sessions = proxy.stop()
    if done.returncode:
        raise SystemExit(f"record.py: {path.name}: {done.stdout}{done.stderr}")
    oids = {int(oid): name for oid, name in server.query("SELECT oid, relname FROM pg_class WHERE relname IN ('people', 'visits', 'tall')")}
    return {
        "client": done.stdout.strip().splitlines()[-1],
        "server": f"PostgreSQL {server.query('SHOW server_version')[0][0].split()[0]}",
        "sessions": [[{**step, "send": without_oids(step["send"], oids)} for step in session] for session in sessions],
    }


class Server(pg.Postgres):
    """One that lets everybody in, who is ada."""

    def __init__(self):
        super().__init__(auth="trust")
        self.psql("postgres", "-c", "CREATE ROLE ada SUPERUSER LOGIN")
        self.renew()

    def renew(self):
        """The database as it is at first."""
        self.psql("postgres", "-c", "DROP DATABASE IF EXISTS test", "-c", "CREATE DATABASE test OWNER ada")
        self.psql("ada", "-d", "test", "-f", HERE / "tables.sql")

    def psql(self, user, *words):
        command = ["psql", "-h", "127.0.0.1", "-p", self.port, "-U", user, "-X", "-q", "-A", "-t", "-v", "ON_ERROR_STOP=1", *words]
        words = command if "-d" in words else [*command, "-d", "postgres"]
        return subprocess.run([str(word) for word in words], capture_output=True, text=True, check=True).stdout

    def query(self, text):
        return [line.split("|") for line in self.psql("ada", "-d", "test", "-c", text).splitlines()]


def main(folder, *names):
    folder = Path(folder).resolve()
    server = Server()
    try:
        for path in sorted((HERE / "clients").glob("*.*")):
            if path.suffix in (".py", ".sh", ".js", ".go", ".java") and (not names or path.stem in names):
                recording = record(path, folder, server)
                (HERE / f"{path.stem}.json").write_text(written(recording))
                steps = sum(len(session) for session in recording["sessions"])
                print(f"{path.stem}: {recording['client']}, {len(recording['sessions'])} sessions, {steps} steps")
    finally:
        server.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
