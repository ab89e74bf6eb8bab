#!/bin/sh
# Makes the virtual environment of bench/peers/ and tests/, beside this file, or mends it; given a folder, that of the
# requirements.txt there. Nothing of it ships.
#
# 1. It is whole if its Python runs and has the very versions of requirements.txt: asked of it each time, because a
#    stamp file would not know of a half-made environment, of one that was moved, or of a Python that was upgraded.
# 2. One that is not whole is removed and made anew. What an interruption leaves is removed as well, or else is not
#    whole, by 1.
set -eu
here=$(cd "${1:-$(dirname "$0")}" && pwd)
venv="$here/.venv"
python="${PYTHON:-python3}"

is_whole() {
    "$1/bin/python" - "$here/requirements.txt" 2>/dev/null <<'PYTHON'
import sys
from importlib import import_module, metadata
modules = {"scikit-learn": "sklearn"}
for line in open(sys.argv[1]):
    name, _, version = line.strip().partition("==")
    if name and (metadata.version(name) != version or not import_module(modules.get(name, name.split("-")[0]))):
        sys.exit(f"{name} is not {version}")
PYTHON
}

if is_whole "$venv"; then
    exit 0
fi
if ! "$python" -c 'import sys; sys.exit(sys.version_info < (3, 10))'; then
    echo "setup.sh: $python is not Python 3.10 or newer; set PYTHON to one that is" >&2
    exit 1
fi
if ! "$python" -c 'import venv, ensurepip' 2>/dev/null; then
    echo "setup.sh: $python cannot make virtual environments; Debian and Ubuntu have that in the package python3-venv" >&2
    exit 1
fi
rm -rf "$venv"
trap 'rm -rf "$venv"' EXIT
trap 'exit 130' INT TERM HUP
"$python" -m venv "$venv"
"$venv/bin/python" -m pip install --quiet --disable-pip-version-check -r "$here/requirements.txt"
is_whole "$venv" || {
    echo "setup.sh: the environment does not have what requirements.txt asks for" >&2
    exit 1
}
trap - EXIT
