"""A proxy between a suite and Onehop, that the rest of each test runs: what tables cannot have, and most tests only have by the way, is
taken out of CREATE TABLE: PRIMARY KEY of a column. Nothing else is changed, and answers are passed on as they are.
"""

import re
import socket
import struct
import sys
import threading
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "handshakes"))

import wire  # noqa: E402


def adapted(text):
    if re.match(rb"\s*create\s[^;]*?\btable\b", text, re.IGNORECASE):
        text = re.sub(rb"(?i)([\w)])\s+primary\s+key\b", rb"\1 not null", text)
        text = re.sub(rb"(?i)not null\s+not null", b"not null", text)
    return text


def adapted_message(letter, body):
    if letter == b"Q":
        return adapted(body)
    if letter == b"P":
        name, text, rest = body.split(b"\0", 2)
        return b"\0".join((name, adapted(text), rest))
    return body


class Proxy:
    def __init__(self, port):
        self.target = port
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.port = self.listener.getsockname()[1]
        threading.Thread(target=self.accept, daemon=True).start()

    def accept(self):
        while True:
            try:
                client, _ = self.listener.accept()
            except OSError:
                return
            server = socket.create_connection(("127.0.0.1", self.target))
            for connection in (client, server):
                connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            threading.Thread(target=self.pass_on, args=(self.to_server, client, server), daemon=True).start()
            threading.Thread(target=self.pass_on, args=(self.to_client, server, client), daemon=True).start()

    @staticmethod
    def pass_on(how, source, target):
        """Up to the end of either; then it is the end of both."""
        try:
            how(source, target)
        except (OSError, struct.error):
            pass  # One of them is gone, maybe within a message.
        for connection in (source, target):
            try:
                connection.shutdown(socket.SHUT_RDWR)
            except OSError:
                pass

    @staticmethod
    def to_client(server, client):
        while data := server.recv(65536):
            client.sendall(data)

    @staticmethod
    def to_server(client, server):
        read = client.makefile("rb").read
        # A start-up, a request for encryption, that is answered with no, or to cancel: none has a letter.
        while head := read(8):
            length, code = struct.unpack("!ii", head)
            server.sendall(head + read(length - 8))
            if code == wire.STARTUP:
                break
        while message := wire.take(read):
            letter, body = message
            body = adapted_message(letter, body)
            server.sendall(letter + struct.pack("!i", len(body) + 4) + body)

    def stop(self):
        self.listener.shutdown(socket.SHUT_RDWR)
        self.listener.close()
