"""The command that comes with the package."""

from __future__ import annotations

import signal
import subprocess
import sys
import time

import onehop


def command(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-m", "onehop", *words], capture_output=True, text=True, timeout=60)


def test_the_command_runs_sql() -> None:
    ran = command("-c", "SELECT 6 * 7 AS answer", "--format", "csv")
    assert (ran.returncode, ran.stdout) == (0, "answer\n42\n")


def test_exit_codes() -> None:
    assert command("-c", "SELECT nothing").returncode == 1
    assert command("--no-such-flag").returncode == 2
    assert onehop.__version__ in command("--version").stdout


def test_ctrl_c_is_the_commands() -> None:
    query = "SELECT sum(sqrt(value)) FROM generate_series(1, 100000000000)"
    program = subprocess.Popen([sys.executable, "-m", "onehop", "-c", query], stderr=subprocess.PIPE, text=True)
    time.sleep(2)
    program.send_signal(signal.SIGINT)
    _, err = program.communicate(timeout=20)
    assert program.returncode == 130 and "Traceback" not in err
