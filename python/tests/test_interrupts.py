"""Ctrl-C, threads, forks, and the end of the process: nothing hangs, and nothing is left in the way."""

from __future__ import annotations

import concurrent.futures
import os
import signal
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pyarrow
import pytest

import onehop

FOR_EVER = "SELECT sum(sqrt(value)) FROM generate_series(1, 100000000000)"
MOST_SECONDS = 5.0


@pytest.fixture(autouse=True)
def _hears_ctrl_c() -> Iterator[None]:
    """What a shell runs in the background ignores SIGINT, and so do all that it starts."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


def interrupted(work: Callable[[], object], after: float = 0.3) -> float:
    """Presses Ctrl-C while `work` runs; how long it took to be heard."""
    pressed = [0.0]

    def press() -> None:
        pressed[0] = time.monotonic()
        os.kill(os.getpid(), signal.SIGINT)

    timer = threading.Timer(after, press)
    timer.start()
    try:
        with pytest.raises(KeyboardInterrupt):
            work()
            time.sleep(1)
        return time.monotonic() - pressed[0]
    finally:
        timer.cancel()
        timer.join()


@pytest.mark.parametrize(
    "read",
    [
        lambda con: con.sql(FOR_EVER).fetchall(),
        lambda con: con.sql(FOR_EVER).arrow(),
        lambda con: con.sql(FOR_EVER).numpy(),
        lambda con: con.sql("CREATE TABLE t AS " + FOR_EVER),
        lambda con: con.explain(FOR_EVER, analyze=True),
        lambda con: con.sql("SELECT 1; " + FOR_EVER + "; SELECT 2"),
        lambda con: repr(con.sql(FOR_EVER)),
    ],
)
def test_ctrl_c_ends_a_statement(con: onehop.Connection, read: Callable[[onehop.Connection], object]) -> None:
    assert interrupted(lambda: read(con)) < MOST_SECONDS
    assert con.sql("SELECT 1").fetchone() == (1,) and not con.in_transaction
    assert (
        con.sql("SELECT text FROM onehop_queries WHERE state = 'running' AND text NOT LIKE '%running%'").fetchall()
        == []
    )
    assert_nothing_computes()


def assert_nothing_computes() -> None:
    time.sleep(0.5)
    before = time.process_time()
    time.sleep(0.5)
    assert time.process_time() - before < 0.2


def test_ctrl_c_ends_a_stream(con: onehop.Connection) -> None:
    def read() -> None:
        try:
            con.sql(FOR_EVER).reader().read_all()
        except pyarrow.ArrowException:
            time.sleep(2)

    assert interrupted(read) < MOST_SECONDS
    assert con.sql("SELECT 1").fetchone() == (1,)


def test_ctrl_c_leaves_nothing_of_executemany(con: onehop.Connection) -> None:
    con.sql("CREATE TABLE t (n BIGINT)")
    rows = [(n,) for n in range(200_000)]
    assert interrupted(lambda: con.executemany("INSERT INTO t VALUES (?)", rows), after=1.0) < MOST_SECONDS
    assert con.sql("SELECT count(*) FROM t").fetchone() == (0,) and not con.in_transaction


def test_an_exception_of_a_signal_handler_is_raised(con: onehop.Connection) -> None:
    class Alarm(Exception):
        pass

    def ring(*_: object) -> None:
        raise Alarm

    before = signal.signal(signal.SIGALRM, ring)
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.3)
        with pytest.raises(Alarm):
            con.sql(FOR_EVER).fetchall()
    finally:
        signal.signal(signal.SIGALRM, before)
    assert con.sql("SELECT 1").fetchone() == (1,)


def test_others_run_while_one_waits(con: onehop.Connection) -> None:
    ticks = []

    def tick() -> None:
        while not done.is_set():
            ticks.append(time.monotonic())
            time.sleep(0.01)

    done = threading.Event()
    thread = threading.Thread(target=tick)
    thread.start()
    con.sql("SELECT count(*) FROM generate_series(1, 30000000)").fetchall()
    done.set()
    thread.join()
    assert max(b - a for a, b in zip(ticks, ticks[1:])) < 1


def test_connections_in_threads(tmp_path: Path) -> None:
    with onehop.connect(tmp_path / "db") as con:
        con.sql("CREATE TABLE t (n BIGINT)")

        def work(n: int) -> int:
            with con.cursor() as mine:
                for _ in range(20):
                    mine.sql("INSERT INTO t VALUES ($1)", [n])
                row = mine.sql("SELECT count(*) FROM t WHERE n = $1", [n]).fetchone()
                assert row == (20,)
                return n

        with concurrent.futures.ThreadPoolExecutor(8) as pool:
            assert list(pool.map(work, range(8))) == list(range(8))
        assert con.sql("SELECT count(*), sum(n) FROM t").fetchone() == (160, 560)


def test_one_connection_in_threads(con: onehop.Connection) -> None:
    def work(n: int) -> int:
        row = con.sql("SELECT sum(value) + $1 FROM generate_series(1, 10000)", [n]).fetchone()
        assert row == (50005000 + n,)
        return n

    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        assert list(pool.map(work, range(100))) == list(range(100))


def test_one_result_in_two_threads(con: onehop.Connection) -> None:
    result = con.sql(FOR_EVER)
    refused = []

    def close() -> None:
        time.sleep(0.3)
        try:
            result.fetchone()
        except onehop.InterfaceError as error:
            refused.append(str(error))
        result.close()

    thread = threading.Thread(target=close)
    thread.start()
    with pytest.raises(onehop.InterfaceError, match="closed"):
        result.fetchone()
    thread.join()
    assert "another thread" in refused[0]


def test_closing_ends_what_another_thread_waits_for() -> None:
    con = onehop.connect()
    result = con.sql(FOR_EVER)
    threading.Timer(0.3, con.close).start()
    began = time.monotonic()
    with pytest.raises(onehop.InterfaceError, match="closed"):
        result.fetchall()
    assert time.monotonic() - began < MOST_SECONDS


def run(program: str, *, seconds: float = 60, code: int = 0) -> str:
    """What a program of its own prints."""
    ended = subprocess.run(
        [sys.executable, "-X", "faulthandler", "-c", textwrap.dedent(program)],
        capture_output=True,
        text=True,
        timeout=seconds,
        env=os.environ,
    )
    assert ended.returncode == code, ended.stderr
    return ended.stdout


def test_a_forked_child_is_told_and_can_connect_anew() -> None:
    out = run(
        """
        import os, sys, onehop, pyarrow
        con = onehop.connect()
        con.sql("CREATE TABLE t AS SELECT value AS n FROM generate_series(1, 1000000)")
        half = con.sql("SELECT n FROM t")
        half.fetchone()
        onehop.sql("SELECT 1").fetchall()
        child = os.fork()
        if child == 0:
            for use in (lambda: con.sql("SELECT 1"), half.fetchone, half.arrow, lambda: con.cursor()):
                try:
                    use()
                    os._exit(3)
                except onehop.InterfaceError as error:
                    assert "process" in str(error), error
            half.close()
            con.close()
            del con, half
            with onehop.connect() as own:
                assert own.sql("SELECT sum(value) FROM generate_series(1, 100000)").fetchone() == (5000050000,)
            assert onehop.sql("SELECT 2").fetchone() == (2,)
            sys.stdout.write("child\\n")
            sys.stdout.flush()
            sys.exit(0)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        assert len(half.fetchall()) == 999999
        assert con.sql("SELECT count(*) FROM t").fetchone() == (1000000,)
        print("parent")
        """
    )
    assert out.split() == ["child", "parent"]


def test_a_forked_child_leaves_its_parents_lock_alone(tmp_path: Path) -> None:
    run(
        f"""
        import os, sys, onehop
        path = {str(tmp_path / "db")!r}
        con = onehop.connect(path)
        con.sql("CREATE TABLE t AS SELECT 1 AS n")
        if os.fork() == 0:
            sys.exit(0)
        os.wait()
        if os.fork() == 0:
            try:
                onehop.connect(path)
            except onehop.LockedError:
                os._exit(0)
            os._exit(1)
        assert os.wait()[1] == 0
        con.sql("INSERT INTO t VALUES (2)")
        assert con.sql("SELECT sum(n) FROM t").fetchone() == (3,)
        """
    )


def test_forks_while_others_compute() -> None:
    out = run(
        """
        import os, threading, onehop
        con = onehop.connect()
        stop = threading.Event()

        def compute():
            with con.cursor() as mine:
                while not stop.is_set():
                    mine.sql("SELECT sum(value) FROM generate_series(1, 100000)").fetchall()

        threads = [threading.Thread(target=compute) for _ in range(3)]
        for thread in threads:
            thread.start()
        codes = []
        for _ in range(10):
            child = os.fork()
            if child == 0:
                with onehop.connect(config={"threads": 2}) as own:
                    row = own.sql("SELECT count(*) FROM generate_series(1, 100000)").fetchone()
                os._exit(0 if row == (100000,) else 1)
            codes.append(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
        stop.set()
        for thread in threads:
            thread.join()
        print(codes)
        """
    )
    assert out.strip() == str([0] * 10)


def test_forked_workers(tmp_path: Path) -> None:
    out = run(
        """
        import multiprocessing, onehop
        onehop.sql("SELECT 1").fetchall()

        def work(n):
            with onehop.connect() as con:
                return con.sql("SELECT sum(value) FROM generate_series(1, $1)", [n]).fetchone()[0]

        with multiprocessing.get_context("fork").Pool(4) as pool:
            print(pool.map(work, range(1, 17)))
        """
    )
    assert out.strip() == str([n * (n + 1) // 2 for n in range(1, 17)])


def test_the_end_of_the_process_waits_for_nothing() -> None:
    began = time.monotonic()
    run(
        """
        import onehop
        con = onehop.connect()
        results = [con.sql("SELECT value FROM generate_series(1, 100000000000)") for _ in range(3)]
        results[0].fetchone()
        onehop.sql("SELECT 1")
        """
    )
    assert time.monotonic() - began < 20


def test_the_end_of_the_process_within_a_python_reader() -> None:
    run(
        """
        import onehop, pyarrow, time
        def slow():
            for n in range(1000):
                time.sleep(0.01)
                yield pyarrow.record_batch({"n": [n]})
        schema = pyarrow.schema({"n": pyarrow.int64()})
        con = onehop.connect()
        r = con.sql("SELECT n FROM r", tables={"r": pyarrow.RecordBatchReader.from_batches(schema, slow())})
        r.fetchone()
        """
    )


def test_ctrl_c_in_a_program() -> None:
    program = subprocess.Popen(
        [sys.executable, "-c", f"import onehop\nprint('go', flush=True)\nonehop.sql('{FOR_EVER}').fetchall()"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert program.stdout is not None and program.stdout.readline() == "go\n"
    time.sleep(1)
    program.send_signal(signal.SIGINT)
    _, err = program.communicate(timeout=20)
    assert "KeyboardInterrupt" in err and program.returncode != 0
