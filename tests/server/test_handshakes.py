"""What real clients send when they connect and look around, recorded against PostgreSQL 15 (handshakes/record.py), replayed.

Each step of a recording is sent as it was, and the answer is compared with PostgreSQL's: kinds of messages in their order, columns'
names and types, whether there are rows, tags, SQLSTATEs, the transaction's state. What is known to differ is in handshakes/known.txt
with its reason; a difference that is not there fails, and one that is no more is told in a warning.
"""

import json
import socket
import sys
import warnings
from pathlib import Path

import psycopg
import pytest

HERE = Path(__file__).resolve().parent / "handshakes"
sys.path.insert(0, str(HERE))

import wire  # noqa: E402

RECORDINGS = sorted(HERE.glob("*.json"))
#: Types that Onehop has no type of its own for, and what it has, by PostgreSQL's numbers: clients read both alike.
ALIKE = {
    (26, 20): "numbers of objects (oid) are BIGINT",
    (19, 25): "names are VARCHAR",
    (1043, 25): "which is called text",
    (18, 25): "so are the letters of catalogs (\"char\")",
    (1003, 1009): "and arrays of names",
    (23, 20): "a literal is a BIGINT",
    (114, 25): "so is JSON",
    (1034, 1009): "so are privileges",
}


class Replay:
    """A session of a recording against a server."""

    def __init__(self, port, oids):
        self.socket = socket.create_connection(("127.0.0.1", port))
        self.file, self.oids = self.socket.makefile("rb"), oids
        self.state, self.is_refused, self.error = "I", False, None

    def close(self):
        self.file.close()
        self.socket.close()

    def step(self, step):
        """The answer to a step, None for one that makes no sense any more: rows for a COPY that was refused."""
        if self.is_refused and step["send"][0][0] in ("CopyData", "CopyDone", "CopyFail"):
            return None
        for message in step["send"]:
            self.socket.sendall(wire.to_server(message, self.oids))
            if message[0] in ("SSLRequest", "GSSENCRequest"):
                assert self.socket.recv(1) == b"N"
        is_flush = step["send"][-1][0] == "Flush"
        found = wire.together(self.answers(step["answer"], is_flush))
        self.is_refused = ["G"] in step["answer"] and ["G"] not in found
        return found

    def answers(self, expected, is_flush):
        """Read up to where it was the client's turn: as often the server's readiness as then, a COPY, or the last kind of message.
        After an error the server is ready as well, but for a Flush."""
        kinds = [answer[0] for answer in expected if answer[0] != "S"]
        turns, found = kinds.count("Z"), []
        while kinds:
            message = wire.take(self.file.read)
            if message is None:
                found.append(["closed"])
                break
            if message[0] in wire.ASIDE:
                continue
            answer = wire.of_server(*message)
            found.append(answer)
            if answer[0] == "E":
                self.error = wire.message_of_error(message[1])
            if answer[0] == "Z":
                self.state, turns = answer[1], turns - 1
            is_turn = answer[0] == kinds[-1] or answer[0] == "E" and is_flush
            if turns <= 0 and (answer[0] == "Z" or "Z" not in kinds and is_turn):
                break
        return found

    def recover(self, expected):
        """A transaction that failed here alone is begun anew, that each difference is told once."""
        then = next((answer[1] for answer in reversed(expected) if answer[0] == "Z"), None)
        if self.state == "E" and then == "T":
            self.step({"send": [["Query", "ROLLBACK"]], "answer": [["Z", "I"]]})
            self.step({"send": [["Query", "BEGIN"]], "answer": [["Z", "T"]]})


def difference(expected, found):
    """What is other than PostgreSQL's answer, as a text; None if nothing is."""
    for answer in found:
        if answer[0] in ("E", "closed") and answer not in expected:
            return f"error {answer[-1]}"
    then, now = ([answer for answer in answers if answer[0] not in "SK"] for answers in (expected, found))
    if [answer[0] for answer in then if answer[0] != "D"] != [answer[0] for answer in now if answer[0] != "D"]:
        return f"messages {''.join(answer[0] for answer in now)}, not {''.join(answer[0] for answer in then)}"
    if any(answer[0] == "D" for answer in then) != any(answer[0] == "D" for answer in now):
        return "no rows" if any(answer[0] == "D" for answer in then) else "rows"
    has_rows = any(answer[0] == "D" for answer in now)
    then, now = ([answer for answer in answers if answer[0] != "D"] for answers in (then, now))
    for one, other in zip(then, now):
        if one[0] == "T" and one != other:
            return columns_difference(one[1], other[1], has_rows) or None
        if one[0] == "t" and len(one[1]) == len(other[1]) and all(same_type(*pair) for pair in zip(one[1], other[1])):
            continue
        if one != other and one[0] not in "d":
            return f"{other}, not {one}"
    missing = {answer[1] for answer in expected if answer[0] == "S"} - {answer[1] for answer in found if answer[0] == "S"}
    return f"no parameter {', '.join(sorted(missing))}" if missing else None


def same_type(one, other):
    return one == other or (one, other) in ALIKE


def columns_difference(then, now, has_rows):
    """Types alone where there are rows: those of catalogs that are always empty are nobody's."""
    if [name for name, _ in then] != [name for name, _ in now]:
        return f"columns {[name for name, _ in now]}, not {[name for name, _ in then]}"
    if not has_rows:
        return None
    others = [f"{name} is of type {other}, not {one}" for (name, one), (_, other) in zip(then, now) if not same_type(one, other)]
    return ", ".join(others)


def text_of(step):
    """The statement that a step is about, if it has one."""
    for message in step["send"]:
        if message[0] in ("Query", "Parse"):
            return " ".join(message[-1 if message[0] == "Query" else 2].split())
    return None


def differences(recording, server):
    """{"SESSION.STEP DIFFERENCE": the statement, and what Onehop says of it} of each step that has one."""
    with psycopg.connect(server.conninfo(), autocommit=True) as connection:
        connection.execute((HERE / "tables.sql").read_text())
        oids = dict(connection.execute("SELECT relname, oid FROM pg_class WHERE relname IN ('people', 'visits', 'tall')").fetchall())
    found = {}
    for session_number, session in enumerate(recording["sessions"]):
        replay, text = Replay(server.port, oids), ""
        for number, step in enumerate(session):
            text = text_of(step) or text
            answer = replay.step(step)
            if answer is None:
                continue
            if what := difference(step["answer"], answer):
                found[f"{session_number}.{number} {what}"] = f"{text} | {replay.error}" if what.startswith("error") else text
            replay.recover(step["answer"])
            if ["closed"] in answer:
                break
        replay.close()
    return found


def known():
    """{client: differences} of known.txt, where each line has one, the client first, and its statement after a |."""
    found = {}
    for line in (HERE / "known.txt").read_text().splitlines():
        if line and not line.startswith("#"):
            client, what = line.split(" | ")[0].split(" ", 1)
            found.setdefault(client, set()).add(what)
    return found


@pytest.mark.parametrize("path", RECORDINGS, ids=lambda path: path.stem)
def test_replay(path, server):
    recording = json.loads(path.read_text())
    found, expected = differences(recording, server), known().get(path.stem, set())
    if gone := expected - found.keys():
        warnings.warn(f"{path.stem}: different no more, and still in known.txt: {sorted(gone)}")
    assert not {what: text for what, text in found.items() if what not in expected}
