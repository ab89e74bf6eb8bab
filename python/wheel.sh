#!/usr/bin/env bash
# The package as people install it: `wheel.sh build FOLDER` makes the wheel, `wheel.sh test FOLDER` tries it.
#
# - It is built by a pinned maturin, in an environment of its own, from the versions in Cargo.lock. One wheel serves every
#   Python from 3.10 on (abi3), on systems with the C library of this one or a later one.
# - It is tried in an empty environment, outside of the source tree: the code of the guide, and the command. PYTHON is the
#   Python to try it with.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
action=$1
mkdir -p "$2"
wheels=$(realpath "$2")
python="${PYTHON:-python3}"

scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
"$python" -m venv "$scratch/venv"
pip() { "$scratch/venv/bin/python" -m pip install --quiet --disable-pip-version-check "$@"; }

case $action in
build)
    pip maturin==1.16.0
    rm -f "$wheels"/onehop-*.whl
    "$scratch/venv/bin/maturin" build --release --locked --manifest-path "$here/Cargo.toml" --out "$wheels"
    ls -l "$wheels"/onehop-*.whl
    ;;
test)
    pip "$wheels"/onehop-*-abi3-*.whl
    cd "$scratch"
    # Without any other package.
    "$scratch/venv/bin/python" -c 'import onehop; assert onehop.sql("SELECT 6 * 7").fetchall() == [(42,)]'
    test "$("$scratch/venv/bin/onehop" -c 'SELECT 6 * 7 AS answer' --format csv | tail -n 1)" = 42
    libraries=$(grep -E '^(duckdb|numpy|pandas|polars|pyarrow)==' "$here/tests/requirements.txt")
    # Python 3.10 has the last versions that were made for it.
    "$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))' || libraries=$(sed 's/==.*//' <<< "$libraries")
    pip pytest==9.2.0 $libraries
    "$scratch/venv/bin/python" -m pytest -q -p no:cacheprovider "$here/tests/test_guide.py"
    ;;
*)
    echo "wheel.sh: build or test, not $action" >&2
    exit 2
    ;;
esac
