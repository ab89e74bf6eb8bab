"""The `onehop` command."""

from __future__ import annotations

import signal
import sys

from onehop import _onehop


def main() -> int:
    """Does what was typed; the exit code."""
    # The command hears of Ctrl-C by itself.
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    sys.stdout.flush()
    return _onehop.run_command(["onehop", *sys.argv[1:]])


if __name__ == "__main__":
    sys.exit(main())
