#!/usr/bin/env bash
# What `make test-crash-images` runs: the store's tests of crashes, with so many random workloads that at least
# ONEHOP_CRASH_IMAGES (a million) different images of what a crash can leave are recovered from and judged. Each test prints
# how many it looked at, and how many of them differed; an image that is wrong is a test that fails.
set -euo pipefail
cd "$(dirname "$0")/../.."

wanted="${ONEHOP_CRASH_IMAGES:-1000000}"
export ONEHOP_CRASH_WORKLOADS="${ONEHOP_CRASH_WORKLOADS:-20}"

log=$(mktemp)
trap 'rm -f "$log"' EXIT
# Its lines are not to be taken for those of the tests with few workloads.
cargo test --locked -p onehop-store --lib -- crash --nocapture 2>&1 | tee "$log" | sed 's/^test result/crashes &/'
judged=$(grep -oE '[0-9]+ distinct crash images' "$log" | awk '{sum += $1} END {print sum + 0}')
echo "crash images: $judged judged; seeds and workloads are above"
if [ "$judged" -lt "$wanted" ]; then
    echo "fewer than $wanted: set ONEHOP_CRASH_WORKLOADS to more than $ONEHOP_CRASH_WORKLOADS" >&2
    exit 1
fi
# One line of a form that all lanes have; a violation has ended the run above.
echo "images: $judged passed, 0 failed"
