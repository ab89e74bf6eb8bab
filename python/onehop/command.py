"""The `onehop` command."""

from __future__ import annotations

import os
import signal
import sys
from typing import NoReturn

from onehop import _onehop


def main() -> NoReturn:
    """Does what was typed, and ends the process with the exit code."""
    # The command hears of Ctrl-C by itself.
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    sys.stdout.flush()
    code = _onehop.run_command(["onehop", *sys.argv[1:]])
    # Without exit handlers: a GPU's driver may be in the middle of something, which a short query does not wait for.
    os._exit(code)


if __name__ == "__main__":
    main()
