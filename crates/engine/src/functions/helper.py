"""Runs functions of `LANGUAGE python` for Onehop, in a process of its own.

Requests come on standard input, one after the other, and each has one response on what was standard output:

    length (8 bytes, little-endian), JSON; length, an Arrow IPC stream, of length 0 if there is none

    {"define": id, "name": .., "arguments": [..], "source": .., "nulls": ..} and the schema of arguments and the result  -> {}
    {"call": id, "rows": ..} and a batch of arguments, if there are any                             -> {} and a batch of results
    any                                                     -> {"error": text, "line": of the function's, or null, "missing": ..}

A function's text is the body of a Python function, compiled as it stands, so that lines are its own. What it prints goes to
standard error: nothing but responses is on the way back. On its standard input there is nothing.
"""

import ast
import json
import os
import struct
import sys
import traceback

requests = os.fdopen(os.dup(0), "rb")
os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
responses = os.fdopen(os.dup(1), "wb")
os.dup2(2, 1)
functions = {}


def receive():
    header = requests.read(8)
    if len(header) < 8:
        sys.exit(0)
    request = json.loads(requests.read(struct.unpack("<Q", header)[0]))
    (length,) = struct.unpack("<Q", requests.read(8))
    return request, requests.read(length)


def respond(response, data=b""):
    text = json.dumps(response).encode()
    responses.write(struct.pack("<Q", len(text)) + text + struct.pack("<Q", len(data)))
    responses.write(data)
    responses.flush()


def file_of(name):
    return f"<function {name}>"


def define(request, data):
    import pyarrow as pa

    with pa.ipc.open_stream(data) as reader:
        wanted = reader.schema.types[-1]
    file = file_of(request["name"])
    body = ast.parse(request["source"], file).body
    if not body:
        raise SyntaxError("the function has no statement", (file, 1, 1, ""))
    module = ast.parse(f"def function({', '.join(request['arguments'])}): pass", file)
    module.body[0].body = body
    namespace = {"__name__": "onehop_function"}
    exec(compile(module, file, "exec"), namespace)
    functions[request["define"]] = (namespace["function"], wanted, request)


def argument(column, nulls):
    # With NULLs among them only Arrow's arrays say what is one.
    return column if nulls == "seen" else column.to_numpy(zero_copy_only=False)


def converted(values, wanted, pa):
    """Python's values as an array: of their own type first, since a cast of it says what would be lost, and a conversion does not."""
    try:
        return pa.array(values).cast(wanted)
    except (pa.ArrowTypeError, pa.ArrowNotImplementedError, OverflowError):
        return pa.array(values, type=wanted)


def result(value, wanted, rows, pa):
    """Whatever a function returns, as an array of the type that it says."""
    if isinstance(value, pa.ChunkedArray):
        value = value.combine_chunks()
    if isinstance(value, pa.Array):
        array = value
    elif isinstance(value, (pa.Scalar, str, bytes)) or not hasattr(value, "__len__") or getattr(value, "shape", None) == ():
        value = value.as_py() if isinstance(value, pa.Scalar) else value
        value = value.item() if hasattr(value, "item") else value
        array = converted([value], wanted, pa).take(pa.array([0] * rows, type=pa.int32()))
    elif hasattr(value, "mask") and hasattr(value, "data") and hasattr(value, "dtype"):
        array = pa.array(value.data, mask=value.mask)
    elif hasattr(value, "to_numpy") and hasattr(value, "index"):
        array = pa.Array.from_pandas(value)
    elif hasattr(value, "dtype") and value.dtype != object:
        array = pa.array(value)
    else:
        array = converted(value, wanted, pa)
    if len(array) != rows:
        raise ValueError(f"it returned {len(array)} values for {rows} rows")
    return array if array.type == wanted else array.cast(wanted)


def call(request, data):
    import pyarrow as pa

    function, wanted, definition = functions[request["call"]]
    columns = []
    if data:
        with pa.ipc.open_stream(data) as reader:
            columns = reader.read_next_batch().columns
    arguments = [argument(column, definition["nulls"]) for column in columns]
    array = result(function(*arguments), wanted, request["rows"], pa)
    out = pa.BufferOutputStream()
    schema = pa.schema([pa.field("result", wanted)])
    with pa.ipc.new_stream(out, schema) as writer:
        writer.write_batch(pa.record_batch([array], schema=schema))
    return out.getvalue()


def failure(error, name):
    """What went wrong, and in which line of the function."""
    file = file_of(name)
    if isinstance(error, SyntaxError) and error.filename == file:
        return {"error": f"{type(error).__name__}: {error.msg}", "line": error.lineno}
    lines = [frame.lineno for frame in traceback.extract_tb(error.__traceback__) if frame.filename == file]
    text = str(error)
    said = f"{type(error).__name__}: {text}" if text else type(error).__name__
    response = {"error": said, "line": lines[-1] if lines else None}
    if isinstance(error, ModuleNotFoundError):
        response["missing"] = error.name
    return response


def main():
    while True:
        request, data = receive()
        name = request.get("name", "")
        try:
            if "define" in request:
                define(request, data)
                respond({})
            else:
                name = functions[request["call"]][2]["name"]
                respond({}, call(request, data))
        except BaseException as error:
            if isinstance(error, KeyboardInterrupt):
                raise
            respond(failure(error, name))


main()
