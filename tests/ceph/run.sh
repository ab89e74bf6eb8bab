#!/usr/bin/env bash
# What `make test-ceph` runs: a cluster of its own in a temporary folder, and the tests that need one. It is stopped and
# removed whatever happens.
#
#   DIR=path      where the folder is made; the cluster's data is there (some GiB)
#   OSDS=1        how many OSDs; with 3 there is an erasure-coded pool as well
set -euo pipefail
cd "$(dirname "$0")/../.."

scratch=$(mktemp -d "${DIR:-${TMPDIR:-/tmp}}/onehop-test-ceph.XXXXXX")
cluster=tests/ceph/cluster.sh
finish() {
    "$cluster" wipe "$scratch/cluster" || true
    rm -rf "$scratch"
}
trap finish EXIT

# What cannot be had with so many OSDs is not run, rather than said to have passed.
if [ "${OSDS:-1}" -ge 3 ]; then
    export EC_POOL=${EC_POOL:-ec} ONEHOP_CEPH_EC_POOL=${EC_POOL:-ec}
    # With others in its place, the death of one is no error.
    not_here=(--skip an_osd_that_dies --skip a_client_that_is_killed)
else
    not_here=(--skip erasure_coded --skip a_client_that_is_killed)
fi
ONEHOP_CEPH_CONF=$("$cluster" up "$scratch/cluster")
export ONEHOP_CEPH_CONF
export ONEHOP_CEPH_SCRIPT=$PWD/$cluster
cargo test --locked --workspace --test rados --test rados_transactions --test store --test on_ceph --test on_ceph_segments -- --ignored --test-threads 2 \
    "${not_here[@]}" 2>&1 | tee "$scratch/log"
cargo test --locked --workspace --test rados_faults -- --ignored --test-threads 1 "${not_here[@]}" 2>&1 |
    tee -a "$scratch/log"
# Tests that did not run have not passed.
awk '/^test result: ok\./ {passed += $4; failed += $6}
     END {print "ceph: " passed + 0 " passed, " failed + 0 " failed"; exit passed == 0}' "$scratch/log"
