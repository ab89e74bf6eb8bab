#!/usr/bin/env python3
"""Heavy statements with statement_timeout = 500ms on two threads: each is answered in time, and others are not kept waiting.

    tests/limits/time_limits.py --onehop PATH [--statements 100] [--seed 1] [--most-ms 700] [--other-ms 200]

One client runs generated statements whose length their arguments decide; half of them are cancelled by their client
instead. Another client asks SELECT 1 all the while. The bounds are what the machine's noise allows: they are wide by
default, and --strict sets those of the documentation.
"""

import argparse
import sys
import tempfile
import threading
import time
from pathlib import Path

import psycopg

import statements
from server import Server, beside

TIMEOUT_MS = 500


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--onehop", required=True)
    parser.add_argument("--statements", type=int, default=100)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--clients", type=int, default=1)
    parser.add_argument("--strict", action="store_true", help="700 ms and 200 ms, as documented")
    parser.add_argument("--verbose", action="store_true")
    args = parser.parse_args()
    most, other_most = (0.7, 0.2) if args.strict else (5.0, 5.0)
    failed, waits = [], []
    with tempfile.TemporaryDirectory(prefix="onehop-limits-") as folder:
        settings = {"threads": 2, "statement_timeout": f"{TIMEOUT_MS}ms", "memory_limit": "2GB"}
        server = Server(Path(args.onehop).resolve(), settings, Path(folder))
        try:
            times = run(server, args, most, other_most, failed, waits)
        finally:
            server.stop()
    times.sort()
    waits.sort()
    late = times[int(len(times) * 0.99)] if times else 0
    wait = waits[int(len(waits) * 0.99)] if waits else 0
    print(f"longest {times[-1] * 1000:.0f} ms, of 99 % {late * 1000:.0f} ms; SELECT 1 beside: longest {waits[-1] * 1000:.0f} ms, of 99 % {wait * 1000:.0f} ms of {len(waits)}")
    for problem in failed[:20]:
        print(problem, file=sys.stderr)
    print(f"time: {args.statements - len(failed)} passed, {len(failed)} failed")
    return 1 if failed or not waits else 0


def run(server, args, most, other_most, failed, waits):
    times = []
    with server.connect() as other:

        def ask():
            began = time.monotonic()
            other.execute("SELECT 1").fetchone()
            took = time.monotonic() - began
            waits.append(took)
            if took > other_most:
                failed.append(f"SELECT 1 took {took * 1000:.0f} ms")
            time.sleep(0.01)

        with beside(ask):
            clients = [threading.Thread(target=client, args=(server, args, number, most, failed, times)) for number in range(args.clients)]
            [thread.start() for thread in clients]
            [thread.join() for thread in clients]
    if not server.is_alive():
        failed.append("the server ended")
    return times


def client(server, args, number, most, failed, times):
    rng = statements.generator(args.seed * 1000 + number)
    for _ in range(args.statements // args.clients):
        sql = statements.heavy(rng)
        cancel_after = rng.choice([None, None, 0.1, 0.3])
        with server.connect() as connection:
            began = time.monotonic()
            timer = threading.Timer(cancel_after, connection.cancel) if cancel_after else None
            if timer:
                timer.start()
            code = "done"
            try:
                connection.execute(sql).fetchall()
            except psycopg.Error as e:
                code = e.sqlstate
            took = time.monotonic() - began
            if timer:
                timer.cancel()
                timer.join()
        times.append(took)
        if args.verbose:
            print(f"{took * 1000:7.0f} ms {code} {sql[:150]}", flush=True)
        if took > most:
            failed.append(f"{took * 1000:.0f} ms ({code}, {'cancelled' if cancel_after else 'timeout'}): {sql[:300]}")
        if code in ("XX000", None):
            failed.append(f"{code}: {sql[:300]}")


if __name__ == "__main__":
    sys.exit(main())
