"""The cluster that is measured: its own benchmark, what it is, and how it is emptied."""

import json
import os
import platform
import subprocess
import time


class Cluster:
    def __init__(self, conf):
        self.conf = conf

    def run(self, *words):
        return subprocess.run([words[0], "-c", self.conf, *words[1:]], check=True, capture_output=True, text=True).stdout

    def write_rate(self, object_bytes, in_flight, seconds):
        """MiB/s of `rados bench`, which removes what it has written."""
        said = self.run("rados", "-p", "data", "bench", str(seconds), "write", "-b", str(object_bytes), "-t", str(in_flight))
        return float(next(line for line in said.splitlines() if line.startswith("Bandwidth (MB/sec):")).split()[-1])

    def empty(self):
        """Removes all objects: what was deleted would lie there for an hour otherwise."""
        for pool in ("data", "meta"):
            self.run("rados", "purge", pool, "--yes-i-really-really-mean-it")

    def environment(self):
        with open("/proc/meminfo", encoding="utf-8") as meminfo:
            memory = int(meminfo.readline().split()[1]) >> 20
        return {
            "date": time.strftime("%Y-%m-%d %H:%M %Z"),
            "cpus": os.cpu_count(), "spark_cpus": sorted(os.sched_getaffinity(0)), "machine": platform.machine(), "memory_gib": memory, "kernel": platform.release(),
            "load": os.getloadavg()[0],
            "ceph": self.run("ceph", "--version").split()[2],
            "osds": json.loads(self.run("ceph", "osd", "stat", "-f", "json"))["num_osds"],
            "replicas": json.loads(self.run("ceph", "osd", "pool", "get", "data", "size", "-f", "json"))["size"],
        }
