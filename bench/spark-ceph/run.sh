#!/usr/bin/env bash
# Spark's writes to a Ceph cluster that is made for it, beside `rados bench` and the local disk: `run.sh PROGRAM [OPTION...]`.
#
#   run.sh rates  [--sizes 16MiB,128MiB] [--formats ...] [--committers v1,v2,onehop] [--tasks 2] [--rounds 3] [--json F] [--svg F]
#   run.sh commits [--files 10000] [--directories 100] [--tasks 100] [--committers v1,v2,onehop] [--json F]
#
#   JAR=FILE ONEHOP=FILE      the jar of `make jar`, the release build of the command; target/jvm/..., target/release/onehop
#   OSDS=1 REPLICAS=1         of the cluster; the paper's second experiment is OSDS=3 REPLICAS=3 beside OSDS=3 REPLICAS=1
#   CLUSTER_CPUS=1 SPARK_CPUS=0   which processors each may use (taskset's lists): as if the cluster were on a host of its own
#   OSD_GIB=20 DIR=PATH       how large each may get, and where it is made; the local disk that is compared with is there, too
#   ONEHOP_CEPH_CONF=FILE     a cluster that is there instead, whose pools meta and data have nothing else in them: they are emptied
set -euo pipefail
[ $# -ge 1 ] || { sed -n '4,5s/^# *//p' "$0" >&2; exit 2; }
program=$1
shift
cd "$(dirname "$0")/../.."
target=$(realpath -m "${CARGO_TARGET_DIR:-target}")
jar=$(realpath "${JAR:-$target/jvm/onehop-hadoop-0.1.0.jar}")
onehop=$(realpath "${ONEHOP:-$target/release/onehop}")
venv=$(tests/spark/venv.sh)

scratch=$(mktemp -d "${DIR:-${TMPDIR:-/tmp}}/onehop-bench-spark.XXXXXX")
finish() {
    [ ! -d "$scratch/cluster" ] || tests/ceph/cluster.sh wipe "$scratch/cluster" || true
    rm -rf "$scratch"
}
trap finish EXIT
on() { # CPUS COMMAND...
    if [ -n "$1" ]; then taskset -c "$@"; else "${@:2}"; fi
}
if [ -z "${ONEHOP_CEPH_CONF:-}" ]; then
    ONEHOP_CEPH_CONF=$(OSD_GIB=${OSD_GIB:-20} on "${CLUSTER_CPUS:-}" tests/ceph/cluster.sh up "$scratch/cluster")
fi
export PYTHONDONTWRITEBYTECODE=1 SPARK_LOCAL_IP=127.0.0.1 PYTHONPATH=$PWD/tests/spark
unset SPARK_HOME PYSPARK_PYTHON PYSPARK_DRIVER_PYTHON
# Where Spark spills, and the figures go where the caller is.
on "${SPARK_CPUS:-}" "$venv/bin/python" "bench/spark-ceph/$program.py" --jar "$jar" --conf "$ONEHOP_CEPH_CONF" --scratch "$scratch" --onehop "$onehop" "$@"
