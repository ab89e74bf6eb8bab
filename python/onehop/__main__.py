"""``python -m onehop`` is the `onehop` command."""

import sys

from onehop.command import main

sys.exit(main())
