#!/usr/bin/env bash
# Makes or mends the environment that Spark's tests and benchmarks run in, and prints where it is: half a GB, from PyPI.
#
#   ONEHOP_SPARK_VENV=DIR     where (~/.cache/onehop/spark)
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
venv=${ONEHOP_SPARK_VENV:-$HOME/.cache/onehop/spark}
wanted=$(sed -n 's/^pyspark==//p' "$here/requirements.txt")
installed=$("$venv/bin/python" -c 'import pyspark; print(pyspark.__version__)' 2> /dev/null || true)
if [ "$installed" != "$wanted" ]; then
    python3 -m venv --clear "$venv" >&2
    "$venv/bin/python" -m pip install --quiet --disable-pip-version-check -r "$here/requirements.txt" >&2
fi
echo "$venv"
