"""PostgreSQL's protocol 3.0 as far as recordings need it: messages of clients as lists that a person can read, and back to the very
bytes; of a server's messages what is compared.

A client's message is a list of its name and fields. A value that is no text is {"hex": ...}. A number by which the server of the
recording knew a table is {"oid": TABLE} as a binary value, and ${TABLE} within a text: another server has its own.
"""

import re
import struct

STARTUP, SSL, GSS, CANCEL = 196608, 80877103, 80877104, 80877102
NAMES = {
    b"Q": "Query", b"P": "Parse", b"B": "Bind", b"D": "Describe", b"E": "Execute", b"C": "Close", b"S": "Sync", b"H": "Flush",
    b"X": "Terminate", b"d": "CopyData", b"c": "CopyDone", b"f": "CopyFail",
}  # fmt: skip
LETTERS = {name: letter for letter, name in NAMES.items()}
#: After these a client waits for what the server says.
TURNS = {"Startup", "Query", "Sync", "Flush", "CopyDone", "CopyFail"}
#: What a server says whenever it likes.
ASIDE = {b"N", b"A"}


class Reader:
    def __init__(self, body):
        self.body, self.at = body, 0

    def text(self):
        end = self.body.index(b"\0", self.at)
        found, self.at = self.body[self.at : end].decode(), end + 1
        return found

    def number(self, form="i"):
        (found,) = struct.unpack_from("!" + form, self.body, self.at)
        self.at += struct.calcsize("!" + form)
        return found

    def numbers(self, form):
        return [self.number(form) for _ in range(self.number("h"))]

    def bytes(self, count):
        self.at += count
        return self.body[self.at - count : self.at]


def readable(value):
    """A text if it is one that says all of itself, otherwise its bytes."""
    try:
        text = value.decode()
    except UnicodeDecodeError:
        return {"hex": value.hex()}
    return text if all(sign.isprintable() or sign in "\n\t" for sign in text) else {"hex": value.hex()}


def fields_of_startup(body):
    reader, found = Reader(body), {}
    while name := reader.text():
        found[name] = reader.text()
    return found


def of_client(letter, body):
    """A client's message as a list; a start-up without a letter is none of these."""
    reader, name = Reader(body), NAMES[letter]
    match name:
        case "Query" | "CopyFail":
            return [name, reader.text()]
        case "Parse":
            return [name, reader.text(), reader.text(), reader.numbers("I")]
        case "Bind":
            portal, statement, formats, values = reader.text(), reader.text(), reader.numbers("h"), []
            for _ in range(reader.number("h")):
                length = reader.number()
                values.append(None if length < 0 else readable(reader.bytes(length)))
            return [name, portal, statement, formats, values, reader.numbers("h")]
        case "Describe" | "Close":
            return [name, reader.bytes(1).decode(), reader.text()]
        case "Execute":
            return [name, reader.text(), reader.number()]
        case "CopyData":
            return [name, readable(body)]
    return [name]


def terminated(text):
    return text.encode() + b"\0"


def counted(numbers, form):
    return struct.pack(f"!h{len(numbers)}{form}", len(numbers), *numbers)


def to_server(message, oids):
    """The bytes of a client's message; tables' numbers are those of `oids`."""

    def own(text):
        return re.sub(r"\$\{(\w+)\}", lambda found: str(oids[found[1]]), text)

    def value(found):
        match found:
            case {"hex": digits}:
                return bytes.fromhex(digits)
            case {"oid": table}:
                return struct.pack("!I", oids[table])
        return own(found).encode()

    name, *fields = message
    match name:
        case "SSLRequest" | "GSSENCRequest":
            return struct.pack("!ii", 8, SSL if name == "SSLRequest" else GSS)
        case "Startup":
            body = b"".join(terminated(word) for pair in fields[0].items() for word in pair) + b"\0"
            return struct.pack("!ii", len(body) + 8, STARTUP) + body
        case "Query" | "CopyFail":
            body = terminated(own(fields[0]))
        case "Parse":
            body = terminated(fields[0]) + terminated(own(fields[1])) + counted(fields[2], "I")
        case "Bind":
            portal, statement, formats, values, results = fields
            body = terminated(portal) + terminated(statement) + counted(formats, "h") + struct.pack("!h", len(values))
            for found in values:
                bytes_ = None if found is None else value(found)
                body += struct.pack("!i", -1) if bytes_ is None else struct.pack("!i", len(bytes_)) + bytes_
            body += counted(results, "h")
        case "Describe" | "Close":
            body = fields[0].encode() + terminated(fields[1])
        case "Execute":
            body = terminated(fields[0]) + struct.pack("!i", fields[1])
        case "CopyData":
            body = value(fields[0])
        case _:
            body = b""
    return LETTERS[name] + struct.pack("!i", len(body) + 4) + body


def message_of_error(body):
    return re.search(rb"\0M([^\0]*)", body)[1].decode()


def of_server(letter, body):
    """What is compared of a server's message: its kind, columns' names and types, a tag's word, an error's SQLSTATE."""
    reader, kind = Reader(body), letter.decode()
    match kind:
        case "T":
            columns = []
            for _ in range(reader.number("h")):
                column = reader.text()
                reader.bytes(6)
                columns.append([column, reader.number("I")])
                reader.bytes(8)
            return [kind, columns]
        case "t":
            return [kind, reader.numbers("I")]
        case "C":
            return [kind, re.sub(r"[ \d]+$", "", reader.text())]
        case "E":
            found = re.search(rb"(?:^|\0)C([^\0]*)", body)
            return [kind, found[1].decode()]
        case "Z":
            return [kind, body.decode()]
        case "S":
            return [kind, reader.text()]
        case "R":
            return [kind, reader.number()]
    return [kind]


def together(answers):
    """Rows by their number, and parameters by their names in order: how many of each, not which came first."""
    found, parameters = [], set()
    for answer in answers:
        if answer[0] == "S":
            parameters.add(answer[1])
        elif answer[0] in "Dd" and found and found[-1][0] == answer[0]:
            found[-1][1] += 1
        else:
            found.append([answer[0], 1] if answer[0] in "Dd" else answer)
    return found + [["S", name] for name in sorted(parameters)]


def take(read):
    """The next message by `read`, a function of a number of bytes: its letter and body; None at the end."""
    head = read(5)
    if not head:
        return None
    return head[:1], read(struct.unpack("!i", head[1:])[0] - 4)
