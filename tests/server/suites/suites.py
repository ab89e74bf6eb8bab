"""Test suites of PostgreSQL's drivers against `onehop serve`: `suites.py [--write] ONEHOP [SUITE ...]`. See run.sh.

1. A suite comes from its package, once, into .build/ (or $BUILD): nothing of it is in this repository.
2. It runs against a server of its own, in memory, on 127.0.0.1.
3. What comes of each test is compared with expected/SUITE.txt. A deviation is a test that passed and no longer does, one that is not
   in the list, and one that is and did not run. One that passes now is told, and is no deviation: the list is to be written anew.

With --write the lists are written: a test that does not pass stands under the first reason of reasons.txt whose pattern its message
has, or else under its message, for a person to say why.
"""

import json
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import time
from pathlib import Path
from xml.etree import ElementTree

HERE = Path(__file__).resolve().parent
BUILD = Path(os.environ.get("BUILD", HERE / ".build")).resolve()
PYTHON = HERE / ".venv/bin/python"
sys.path.insert(0, str(HERE.parent))


class Expected:
    """A list: headings `## passes`, `## skipped: WHY`, `## fails: WHY`, `## either: WHY` and `## not run: WHY`, and below each what it is
    so for. A person writes the last two: what now passes, now fails, and what is not to run."""

    def __init__(self, name):
        self.path = HERE / "expected" / f"{name}.txt"
        self.outcomes, self.not_run = {}, {}
        heading = None
        for line in self.path.read_text().splitlines() if self.path.exists() else ():
            if line.startswith("## "):
                heading = line[3:]
            elif line and not line.startswith("# "):
                kind, _, why = heading.partition(": ")
                (self.not_run if kind == "not run" else self.outcomes)[line] = (kind, why)

    def write(self, facts, outcomes):
        reasons = [line.split("\t") for line in (HERE / "reasons.txt").read_text().splitlines() if line and not line.startswith("#")]
        kinds = {"passed": "passes", "failed": "fails", "skipped": "skipped"}
        sections = {}
        for name, (outcome, message) in outcomes.items():
            if self.outcomes.get(name, ("",))[0] == "either":
                sections.setdefault(self.outcomes[name], []).append(name)
                continue
            said = next((reason for pattern, reason in reasons if re.search(pattern, message)), message or "no reason is given")
            sections.setdefault((kinds[outcome], said if outcome != "passed" else ""), []).append(name)
        for pattern, heading in self.not_run.items():
            sections.setdefault(heading, []).append(pattern)
        text = f"# What comes of the tests of {facts}, by reasons. Written by `suites.py --write`.\n"
        for (kind, why), names in sorted(sections.items(), key=lambda section: (section[0][0] != "passes", section[0])):
            text += f"\n## {kind}{': ' * bool(why)}{why}\n" + "".join(f"{name}\n" for name in sorted(names))
        self.path.write_text(text)

    def deviations(self, outcomes):
        """What is worse than the list, and what is better."""
        worse, better = [], []
        for name, (outcome, message) in outcomes.items():
            kind, _ = self.outcomes.get(name, (None, None))
            if kind is None:
                worse.append(f"{name}: {outcome}, and is not in the list: {message}")
            elif kind == "either":
                continue
            elif outcome == "passed" and kind != "passes":
                better.append(name)
            elif outcome != "passed" and kind == "passes" or outcome == "failed" and kind == "skipped":
                worse.append(f"{name}: {outcome}: {message}")
        worse += [f"{name}: did not run" for name in self.outcomes.keys() - outcomes.keys()]
        return sorted(worse), sorted(better)


class Suite:
    """One that pytest runs, in `folder()`."""

    name = version = None
    words = ()
    #: Whether adapt.py is between it and the server.
    is_adapted = False

    def obtain(self):
        """What it needs beside .venv."""

    def folder(self):
        return HERE / self.name

    def environment(self, port):
        return {"PGHOST": "127.0.0.1", "PGPORT": str(port), "PGUSER": "ada", "PGDATABASE": "test"}

    def arguments(self, port):
        return self.words

    def run(self, port, not_run):
        # What a suite leaves of its own is left in a copy.
        with tempfile.TemporaryDirectory() as scratch:
            folder = Path(scratch, "suite")
            shutil.copytree(self.folder(), folder)
            outcomes = Path(scratch, "outcomes")
            words = [PYTHON, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "outcomes", "--tb=native", *self.arguments(port)]
            for pattern in not_run:
                words += ["--deselect" if "::" in pattern else "--ignore", pattern]
            more = {"OUTCOMES": str(outcomes), "PYTHONPATH": str(HERE), **self.environment(port)}
            with open(BUILD / f"{self.name}.log", "w") as log:
                subprocess.run([str(word) for word in words], cwd=folder, stdout=log, stderr=log, env={**os.environ, **more})
            lines = outcomes.read_text().splitlines() if outcomes.exists() else []
        return {name: (outcome, why) for name, outcome, why in map(json.loads, lines)}


class SQLAlchemy(Suite):
    """Its suite for dialects is in its package; how it is adapted is told in its folder's conftest.py."""

    name, version = "sqlalchemy_dialect", "SQLAlchemy 2.1.9"

    def arguments(self, port):
        return ["--dburi", f"postgresql+psycopg://ada@127.0.0.1:{port}/test", "test_suite.py"]


class OfSource(Suite):
    """One whose tests are in the source that a Python package comes from, in its folder `tests`."""

    tests, is_adapted = "tests", True

    def folder(self):
        return BUILD / self.version.replace(" ", "-")

    def obtain(self):
        if self.folder().exists():
            return
        with tempfile.TemporaryDirectory(dir=BUILD) as scratch:
            package = self.version.replace(" ", "==")
            words = [PYTHON, "-m", "pip", "download", "--quiet", "--no-deps", "--no-binary", self.name, "--dest", scratch, package]
            subprocess.run([str(word) for word in words], check=True)
            (archive,) = Path(scratch).glob("*.tar.gz")
            with tarfile.open(archive) as source:
                # Without the driver itself: it is the one of .venv that is tested.
                wanted = [member for member in source if re.match(rf"[^/]+/({self.tests}|README[^/]*$)", member.name)]
                source.extractall(scratch, wanted, filter="data")
            Path(scratch, archive.name.removesuffix(".tar.gz")).rename(self.folder())


class Psycopg2(OfSource):
    name, version, words = "psycopg2", "psycopg2 2.9.13", ("tests",)

    def environment(self, port):
        return {**super().environment(port), "PSYCOPG2_TESTDB": "test"}


class Asyncpg(OfSource):
    name, version, words = "asyncpg", "asyncpg 0.32.0", ("tests",)


class Pg8000(OfSource):
    name, version, words, tests = "pg8000", "pg8000 1.31.6", ("test",), "test"

    def environment(self, port):
        return {**super().environment(port), "PGPASSWORD": "none"}


class Pgjdbc(Suite):
    """pgjdbc's own tests, of the archive of sources that its releases have in Maven's repository, run by JUnit's console launcher.

    Those of packages that talk to a server; what a class is about that Onehop does not have is not run, by the list.
    """

    name, version, is_adapted = "pgjdbc", "pgjdbc 42.7.11", True
    packages = ("jdbc2", "jdbc3", "jdbc4", "jdbc42")
    launcher = "org.junit.platform:junit-platform-console-standalone:1.14.3"
    plugin = "org.apache.maven.plugins:maven-dependency-plugin:3.6.1"

    def folder(self):
        return BUILD / "pgjdbc-42.7.11"

    def obtain(self):
        if self.folder().exists():
            return
        with tempfile.TemporaryDirectory(dir=BUILD) as scratch:
            self.maven(scratch, f"{self.plugin}:copy", "-Dartifact=org.postgresql:postgresql:42.7.11:tar.gz:jdbc-src", f"-DoutputDirectory={scratch}")
            (archive,) = Path(scratch).glob("*.tar.gz")
            with tarfile.open(archive) as source:
                source.extractall(scratch, filter="data")
            (folder,) = (path for path in Path(scratch).iterdir() if path.is_dir())
            self.maven(folder, "test-compile")
            self.maven(folder, f"{self.plugin}:build-classpath", "-Dmdep.outputFile=target/classpath", "-Dmdep.includeScope=test")
            self.maven(folder, f"{self.plugin}:copy", f"-Dartifact={self.launcher}", "-DoutputDirectory=target", "-Dmdep.stripVersion=true")
            folder.rename(self.folder())

    @staticmethod
    def maven(folder, *words):
        done = subprocess.run(["mvn", "-q", "-B", *words], cwd=folder, capture_output=True, text=True)
        assert done.returncode == 0, done.stdout + done.stderr

    def run(self, port, not_run):
        facts = {"test.url.PGHOST": "127.0.0.1", "test.url.PGPORT": port, "test.url.PGDBNAME": "test", "user": "ada", "password": "none"}
        facts |= {"privilegedUser": "ada", "privilegedPassword": "none"}
        with tempfile.TemporaryDirectory() as scratch:
            # What tests are told is in files of the folder that they are pointed to.
            for path in ("build.properties", "ssltest.properties"):
                shutil.copy(self.folder() / path, scratch)
            Path(scratch, "build.local.properties").write_text("".join(f"{name}={value}\n" for name, value in facts.items()))
            target = self.folder() / "target"
            paths = f"{target}/classes:{target}/test-classes:{(target / 'classpath').read_text().strip()}"
            words = ["java", "-Xmx1g", f"-Dbuild.properties.relative.path={scratch}", "-Duser.timezone=UTC", "-jar", target / "junit-platform-console-standalone.jar"]
            words += ["execute", "--class-path", paths, "--include-classname", ".*Test.*", "--details=none", "--disable-banner", "--reports-dir", scratch]
            # A test that waits for what never comes ends: none takes a tenth of this.
            words += ["--config", "junit.jupiter.execution.timeout.default=60s", "--config", "junit.jupiter.extensions.autodetection.enabled=true"]
            for package in self.packages:
                words += ["--select-package", f"org.postgresql.test.{package}"]
            if not_run:
                words += ["--exclude-classname", "|".join(rf".*\.{name}" for name in not_run)]
            with open(BUILD / "pgjdbc.log", "w") as log:
                subprocess.run([str(word) for word in words], cwd=scratch, stdout=log, stderr=log)
            return self.outcomes(Path(scratch, "TEST-junit-jupiter.xml"))

    @staticmethod
    def outcomes(report):
        """By class and method. One that runs with several parameters is one test: their texts are not the same each time."""
        found = {}
        for case in ElementTree.parse(report).getroot().iter("testcase"):
            name = f"{case.get('classname').removeprefix('org.postgresql.test.')}.{case.get('name').partition('(')[0]}"
            bad = next((part for part in case if part.tag in ("failure", "error")), None)
            said = "" if bad is None else (bad.get("message") or bad.get("type") or "").strip().partition("\n")[0][:300]
            before = found.get(name, ("skipped", ""))
            if bad is not None and before[0] != "failed":
                found[name] = ("failed", said)
            elif bad is None and before[0] == "skipped" and case.find("skipped") is None:
                found[name] = ("passed", "")
            else:
                found.setdefault(name, before)
        return found


SUITES = [SQLAlchemy(), Psycopg2(), Asyncpg(), Pg8000(), Pgjdbc()]


def run(suite, is_writing):
    """How many pass, and how many deviate."""
    from adapt import Proxy
    from conftest import Server

    suite.obtain()
    expected = Expected(suite.name)
    with tempfile.TemporaryDirectory() as scratch:
        # Tests that have two change the database at once wait for it: not for long.
        server = Server("--set", "lock_timeout=3s", temporary=scratch)
        proxy = Proxy(server.port) if suite.is_adapted else None
        start = time.monotonic()
        try:
            outcomes = suite.run((proxy or server).port, expected.not_run)
        finally:
            if proxy:
                proxy.stop()
            code = server.stop()
    seconds = time.monotonic() - start
    count = lambda kind: sum(outcome == kind for outcome, _ in outcomes.values())
    print(f"{suite.name}: {suite.version}: {count('passed')} pass, {count('failed')} fail, {count('skipped')} skipped, {seconds:.0f} s")
    if is_writing:
        expected.write(suite.version, outcomes)
        return count("passed"), 0
    worse, better = expected.deviations(outcomes)
    if code:
        worse.append(f"the server ended with {code}")
    for line in worse:
        print(f"  {line}")
    for name in better:
        print(f"  passes now: {name}")
    return count("passed"), len(worse)


def main(words):
    is_writing = words[:1] == ["--write"]
    os.environ["ONEHOP"], *names = words[is_writing:]
    BUILD.mkdir(exist_ok=True)
    counts = [run(suite, is_writing) for suite in SUITES if not names or suite.name in names]
    passed, failed = (sum(column) for column in zip(*counts))
    print(f"suites: {passed} passed, {failed} failed")
    return not passed or bool(failed)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
