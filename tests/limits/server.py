"""A server under limits, and a look at what its process takes."""

import contextlib
import re
import subprocess
import threading
import time

import psycopg


class Server:
    """`onehop serve` over a database in memory, on a port that the system chooses."""

    def __init__(self, onehop, settings, folder, database=":memory:", options=()):
        words = [onehop, "serve", database, "--listen", "127.0.0.1:0", *options]
        for name, value in settings.items():
            words += ["--set", f"{name}={value}"]
        self.log = open(folder / "server.log", "w")
        self.process = subprocess.Popen(words, stderr=self.log, stdout=self.log, cwd=folder)
        self.port = self._port(folder / "server.log")

    def _port(self, log):
        for _ in range(2000):
            found = re.search(r"serves \S+ at 127\.0\.0\.1:(\d+)", log.read_text())
            if found:
                return int(found.group(1))
            assert self.process.poll() is None, log.read_text()
            time.sleep(0.01)
        raise AssertionError("the server does not listen")

    def connect(self, **options):
        where = f"host=127.0.0.1 port={self.port} user=ada dbname=d"
        return psycopg.connect(where, autocommit=True, **options)

    def is_alive(self):
        return self.process.poll() is None

    def stop(self):
        self.process.terminate()
        try:
            self.process.wait(30)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        self.log.close()


def resident(pid, which="VmRSS"):
    """MiB."""
    with open(f"/proc/{pid}/status") as status:
        return int(re.search(rf"{which}:\s+(\d+)", status.read()).group(1)) / 1024


def forget_peak(pid):
    """Lets VmHWM begin anew."""
    with open(f"/proc/{pid}/clear_refs", "w") as refs:
        refs.write("5")


@contextlib.contextmanager
def beside(work):
    """Calls `work` again and again on a thread, until the block ends."""
    end = threading.Event()

    def repeat():
        while not end.is_set():
            work()

    thread = threading.Thread(target=repeat)
    thread.start()
    try:
        yield
    finally:
        end.set()
        thread.join()
