"""Other programs, run to their end."""

import shlex
import subprocess


class Failed(Exception):
    """A program that did not end well, with what it said."""


def run(words: list[str]) -> str:
    """What it printed."""
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise Failed(f"{shlex.join(words)}\n{done.stderr.strip() or done.stdout.strip()}")
    return done.stdout
