"""A plug-in for pytest: writes what comes of each test to the file that OUTCOMES names, a line of JSON for each: its name, `passed`,
`failed` or `skipped`, and why. One whose set-up or tear-down fails has failed, whatever came of it."""

import json
import os
import re

ORDER = ("passed", "skipped", "failed")


class Outcomes:
    def __init__(self):
        self.found = {}

    def pytest_collectreport(self, report):
        if report.failed:
            self.found[report.nodeid] = ("failed", last_line(report))

    def pytest_runtest_logreport(self, report):
        # What fails as it is expected to by the suite itself has passed; what does not is as the report says.
        outcome = "passed" if hasattr(report, "wasxfail") else report.outcome
        before = self.found.get(report.nodeid, ("passed", ""))
        if ORDER.index(outcome) >= ORDER.index(before[0]):
            self.found[report.nodeid] = (outcome, last_line(report) if outcome != "passed" else "")

    def pytest_unconfigure(self):
        with open(os.environ["OUTCOMES"], "w") as file:
            for name, (outcome, why) in self.found.items():
                file.write(json.dumps([name, outcome, why]) + "\n")


def last_line(report):
    if isinstance(report.longrepr, tuple):
        return report.longrepr[2].split(" : ")[-1].removeprefix("Skipped: ")
    crash = getattr(report.longrepr, "reprcrash", None)
    text = (crash.message if crash else str(report.longrepr)).strip()
    # pg8000's errors are dictionaries.
    if found := re.search(r"'C': '(\w+)', 'M': (['\"])(.*?)\2[,}]", text):
        text = f"{found[1]} {found[3]}"
    return text.splitlines()[0][:300] if text else ""


def pytest_configure(config):
    config.pluginmanager.register(Outcomes())
