#!/bin/sh
# Makes (or refreshes) the virtual environment of bench/peers/ and tests/, beside this file. Nothing of it ships.
set -eu
here=$(cd "$(dirname "$0")" && pwd)
venv="$here/.venv"
stamp="$venv/requirements.txt"
if ! cmp -s "$here/requirements.txt" "$stamp"; then
    "${PYTHON:-python3}" -m venv "$venv"
    "$venv/bin/python" -m pip install --quiet --disable-pip-version-check -r "$here/requirements.txt"
    cp "$here/requirements.txt" "$stamp"
fi
