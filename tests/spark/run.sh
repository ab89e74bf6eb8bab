#!/usr/bin/env bash
# What `make test-spark` runs: Spark on rados://, by FileOutputCommitter and by ours, on Ceph clusters that are made for it, and what
# it wrote read by Onehop: `run.sh JAR ONEHOP [PROGRAM...]`. Clusters are stopped and removed whatever happens.
#
#   PROGRAM                   which of writes, tpch, failures, drivers, outages; all
#   ONEHOP_CEPH_CONF=FILE     a cluster that is there, with the pools meta and data, instead of a new one; outages makes its own
#   ONEHOP_SPARK_VENV=DIR     where PySpark is, or is put: half a GB (~/.cache/onehop/spark)
#   DIR=PATH                  where clusters are made
set -euo pipefail
[ $# -ge 2 ] || { sed -n '3,8s/^# *//p' "$0" >&2; exit 2; }
jar=$(realpath "$1")
onehop=$(realpath "$2")
shift 2
here=$(cd "$(dirname "$0")" && pwd)
cd "$here/../.."

venv=$("$here/venv.sh")
scratch=$(mktemp -d "${DIR:-${TMPDIR:-/tmp}}/onehop-test-spark.XXXXXX")
finish() {
    [ ! -d "$scratch/cluster" ] || tests/ceph/cluster.sh wipe "$scratch/cluster" || true
    rm -rf "$scratch"
}
trap finish EXIT
if [ -z "${ONEHOP_CEPH_CONF:-}" ]; then
    ONEHOP_CEPH_CONF=$(tests/ceph/cluster.sh up "$scratch/cluster")
fi
export ONEHOP_CEPH_SCRIPT=$PWD/tests/ceph/cluster.sh PYTHONDONTWRITEBYTECODE=1 SPARK_LOCAL_IP=127.0.0.1
# Not what this shell has been told.
unset SPARK_HOME PYSPARK_PYTHON PYSPARK_DRIVER_PYTHON
[ $# -gt 0 ] || set -- writes tpch failures drivers outages
status=0
for program in "$@"; do
    echo "$program:"
    mkdir "$scratch/$program"
    (cd "$scratch/$program" && "$venv/bin/python" "$here/$program.py" --jar "$jar" --conf "$ONEHOP_CEPH_CONF" \
        --scratch "$scratch/$program" --onehop "$onehop") 2>&1 | tee "$scratch/$program.log" || status=1
    # The daemons of a cluster stay; what Spark had spilled goes.
    rm -rf "$scratch/${program:?}"
done
# A program that has died before its end has passed nothing.
awk -v programs=$# '/^spark: [0-9]+ passed, [0-9]+ failed$/ {passed += $2; failed += $4; ended++}
    END {print "spark: " passed + 0 " passed, " failed + 0 " failed"; exit !(passed && !failed && ended == programs)}' \
    "$scratch"/*.log || status=1
exit "$status"
