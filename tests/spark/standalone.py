"""A Spark cluster on this host: a master and two workers, which are two hosts to Spark, as they have two names.

That matters to speculation, which never runs another attempt at a task on the host of the first one, and so never in
`local-cluster`. Everything listens on 127.0.0.1. The processes are this one's children, and end with it.
"""

import contextlib
import os
import socket
import subprocess
import time
from pathlib import Path

import pyspark

WAIT_S = 120
HOSTS = ("127.0.0.1", "localhost")


def free_port():
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


class Standalone:
    """A context; its value is the URL of the master."""

    def __init__(self, scratch, cores=2):
        self.scratch, self.cores = Path(scratch), cores
        self.processes = []

    def start(self, name, kind, *words):
        log = open(self.scratch / f"{name}.log", "w", encoding="utf-8")
        home = Path(pyspark.__file__).parent
        environment = {**os.environ, "SPARK_HOME": str(home), "SPARK_LOCAL_IP": "127.0.0.1", "SPARK_NO_DAEMONIZE": "1"}
        self.processes.append(subprocess.Popen(
            [str(home / "bin/spark-class"), f"org.apache.spark.deploy.{kind}", *words, "--webui-port", "0"],
            stdout=log, stderr=subprocess.STDOUT, env=environment))

    def until_said(self, name, words):
        end = time.time() + WAIT_S
        while words not in (said := (self.scratch / f"{name}.log").read_text(encoding="utf-8")):
            assert time.time() < end and all(process.poll() is None for process in self.processes), said[-4000:]
            time.sleep(0.2)

    def __enter__(self):
        try:
            port = free_port()
            url = f"spark://127.0.0.1:{port}"
            self.start("master", "master.Master", "--host", "127.0.0.1", "--port", str(port))
            self.until_said("master", "I have been elected leader")
            for host in HOSTS:
                self.start(host, "worker.Worker", url, "--host", host, "--cores", str(self.cores), "--memory", "1g",
                           "--work-dir", str(self.scratch / f"work-{host}"))
            for host in HOSTS:
                self.until_said(host, "Successfully registered with master")
            return url
        except BaseException:
            self.__exit__()
            raise

    def __exit__(self, *_):
        # Workers end their executors.
        for process in reversed(self.processes):
            process.terminate()
        for process in self.processes:
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(20)
            process.kill()
            process.wait()
