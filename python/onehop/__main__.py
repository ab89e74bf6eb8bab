"""``python -m onehop`` is the `onehop` command."""

from onehop.command import main

main()
