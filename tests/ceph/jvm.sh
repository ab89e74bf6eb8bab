#!/usr/bin/env bash
# What `make test-jvm-ceph` runs: a cluster of its own in a temporary folder, and the Java suites on it: `jvm.sh LIBRARY`. It is
# stopped and removed whatever happens. DIR=path: where the folder is made.
set -euo pipefail
library=$(realpath "$1")
cd "$(dirname "$0")/../.."

scratch=$(mktemp -d "${DIR:-${TMPDIR:-/tmp}}/onehop-test-jvm.XXXXXX")
finish() {
    tests/ceph/cluster.sh wipe "$scratch/cluster" || true
    rm -rf "$scratch"
}
trap finish EXIT
ONEHOP_CEPH_CONF=$(tests/ceph/cluster.sh up "$scratch/cluster")
export ONEHOP_CEPH_CONF
jvm/build.sh test "$library"
