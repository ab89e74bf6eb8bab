#!/usr/bin/env bash
# Tests of the Python package over the library of the debug build: `tests/run.sh LIBRARY [pytest's arguments]`.
#
# 1. The package is put together in a folder of its own, as a wheel would: the sources, and the library under the name that
#    Python looks for. The source tree stays as it is.
# 2. pytest runs the tests, and mypy checks the package and a client of it: types are part of what is promised.
# 3. The last line has the counts. It fails if nothing ran.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
library=$(realpath "$1")
shift
"$here/setup.sh"
python="$here/.venv/bin/python"

package=$(mktemp -d)
trap 'rm -rf "$package"' EXIT
mkdir "$package/onehop"
cp "$here"/../onehop/*.py "$here"/../onehop/*.pyi "$here"/../onehop/py.typed "$package/onehop"
ln -s "$library" "$package/onehop/_onehop.abi3.so"

cd "$here"
export PYTHONPATH="$package" PYTHONDONTWRITEBYTECODE=1
status=0
"$python" -m pytest -q -p no:cacheprovider --junitxml="$package/junit.xml" "$@" || status=$?

passed=0 failed=0
if [ -f "$package/junit.xml" ]; then
    read -r passed failed < <("$python" - "$package/junit.xml" <<'PYTHON'
import sys
from xml.etree import ElementTree

suite = ElementTree.parse(sys.argv[1]).getroot().find("testsuite")
count = {name: int(suite.get(name)) for name in ("tests", "failures", "errors", "skipped")}
failed = count["failures"] + count["errors"]
print(count["tests"] - failed - count["skipped"], failed)
PYTHON
    )
fi
if MYPYPATH="$package" "$python" -m mypy --config-file ../pyproject.toml --strict --cache-dir="$package/mypy" \
    client.py "$package/onehop"; then
    passed=$((passed + 1))
else
    failed=$((failed + 1))
fi
echo "python: $passed passed, $failed failed"
[ "$status" -eq 0 ] && [ "$failed" -eq 0 ] && [ "$passed" -gt 1 ]
