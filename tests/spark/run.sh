#!/usr/bin/env bash
# What `make test-spark` runs: Spark on rados://, with the committers that it comes with and no settings, on a Ceph cluster that
# is made for it: `run.sh JAR`. The cluster is stopped and removed whatever happens.
#
#   ONEHOP_CEPH_CONF=FILE     a cluster that is there, with the pools meta and data, instead of a new one
#   ONEHOP_SPARK_VENV=DIR     where PySpark is, or is put: half a GB (~/.cache/onehop/spark)
#   DIR=PATH                  where the cluster is made
set -euo pipefail
jar=$(realpath "$1")
here=$(cd "$(dirname "$0")" && pwd)
cd "$here/../.."

venv=${ONEHOP_SPARK_VENV:-$HOME/.cache/onehop/spark}
wanted=$(sed -n 's/^pyspark==//p' "$here/requirements.txt")
installed=$("$venv/bin/python" -c 'import pyspark; print(pyspark.__version__)' 2> /dev/null || true)
if [ "$installed" != "$wanted" ]; then
    python3 -m venv --clear "$venv"
    "$venv/bin/python" -m pip install --quiet --disable-pip-version-check -r "$here/requirements.txt"
fi

scratch=$(mktemp -d "${DIR:-${TMPDIR:-/tmp}}/onehop-test-spark.XXXXXX")
finish() {
    [ ! -d "$scratch/cluster" ] || tests/ceph/cluster.sh wipe "$scratch/cluster" || true
    rm -rf "$scratch"
}
trap finish EXIT
if [ -z "${ONEHOP_CEPH_CONF:-}" ]; then
    ONEHOP_CEPH_CONF=$(tests/ceph/cluster.sh up "$scratch/cluster")
fi
cd "$scratch"
PYTHONDONTWRITEBYTECODE=1 "$venv/bin/python" "$here/smoke.py" --jar "$jar" --conf "$ONEHOP_CEPH_CONF" --scratch "$scratch"
