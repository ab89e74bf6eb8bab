#!/usr/bin/env bash
# What `make test-gpu` runs, on a machine with a GPU: without one it fails, and says what is missing.
#
#   ONEHOP=path           the binary; built if it is not given
#   DEVICE_CHECKS=path    the queues' own checks (the example device_checks of crates/cuda); built if it is not given
#   FUSED_CHECKS=path     generated kernels against the CPU (the example fused_checks); built if it is not given
#   DIR=path              a folder on the storage to read from and write to; a temporary one without it
#
# 1. The queues' checks: every way, byte for byte, over files past the page cache and through it.
# 2. `onehop bench io --verify`: every way, reading and writing, in order and anywhere, small blocks and large ones.
# 3. Generated kernels: random programs, and star queries; over columns on the device, over columns on their way there, and over
#    columns that cuFile reads from files, and the GPU verifies.
# 4. All checks again under compute-sanitizer's memcheck, and some under initcheck and synccheck, where that is installed.
set -euo pipefail

fail() {
    echo "test-gpu: $*" >&2
    exit 1
}

[ -x "${ONEHOP:-}" ] || fail "ONEHOP names no program: ${ONEHOP:-nothing}"
[ -x "${DEVICE_CHECKS:-}" ] || fail "DEVICE_CHECKS names no program: ${DEVICE_CHECKS:-nothing}"
[ -x "${FUSED_CHECKS:-}" ] || fail "FUSED_CHECKS names no program: ${FUSED_CHECKS:-nothing}"
scratch=$(mktemp -d "${DIR:-${TMPDIR:-/tmp}}/onehop-test-gpu.XXXXXX")
trap 'rm -rf "$scratch"' EXIT
passed=0

echo "-- the queues' checks"
"$DEVICE_CHECKS" "$scratch" | tee "$scratch/checks" || fail "the queues' checks have failed, or there is nothing to run them on"
passed=$((passed + $(sed -n 's/^device checks: \([0-9]*\) passed, 0 failed$/\1/p' "$scratch/checks")))

echo "-- onehop bench io --verify"
# The largest number in flight, and blocks of no power of two.
"$ONEHOP" bench io "$scratch" --path gpu --rw read,randread,write,randwrite --bs 4KiB,68KiB,1MiB --iodepth 1,32 \
    --numjobs 2 --size 64MiB --runtime 100ms --ramp 0s --verify --csv "$scratch/points.csv" ||
    fail "bench io has found wrong bytes, or a way is missing"
# Every point has compared something: the 27th field of 32 is verified_bytes.
points=$(awk -F, 'NR > 1 && $27 > 0 {n++} END {print n + 0}' "$scratch/points.csv")
lines=$(($(wc -l < "$scratch/points.csv") - 1))
[ "$points" -gt 0 ] && [ "$points" -eq "$lines" ] || fail "$points of $lines points have compared their content"
passed=$((passed + points))

# What the programs say last, if all of them gave what they have to.
fused_passed() { sed -n 's/^fused checks: \([0-9]*\) passed, 0 failed$/\1/p' "$scratch/fused"; }

echo "-- generated kernels"
"$FUSED_CHECKS" --programs 300 | tee "$scratch/fused" || fail "a generated kernel has given a wrong answer"
passed=$((passed + $(fused_passed)))
echo "-- generated kernels, columns streamed"
"$FUSED_CHECKS" --programs 100 --seed 3 --stream 4 | tee "$scratch/fused" || fail "a generated kernel has given a wrong answer"
passed=$((passed + $(fused_passed)))
echo "-- generated kernels, columns read by cuFile"
"$FUSED_CHECKS" --programs 100 --seed 7 --stream 4 --files "$scratch" | tee "$scratch/fused" ||
    fail "a generated kernel has given a wrong answer, or cuFile has read nothing"
passed=$((passed + $(fused_passed)))

sanitizer=$(command -v compute-sanitizer || ls /usr/local/cuda/bin/compute-sanitizer 2>/dev/null || true)
if [ -n "$sanitizer" ]; then
    echo "-- the queues' checks under compute-sanitizer"
    # cuFile asks the driver what it may not know, and takes the answer: that is not ours to see.
    "$sanitizer" --tool memcheck --report-api-errors no --error-exitcode 9 "$DEVICE_CHECKS" "$scratch" | tee "$scratch/checks" ||
        fail "compute-sanitizer has found something"
    passed=$((passed + $(sed -n 's/^device checks: \([0-9]*\) passed, 0 failed$/\1/p' "$scratch/checks")))
    echo "-- generated kernels under compute-sanitizer"
    for checks in "memcheck --programs 40 --seed 2" "memcheck --programs 20 --seed 4 --stream 4" \
        "initcheck --programs 12 --seed 5" "synccheck --programs 12 --seed 6"; do
        # shellcheck disable=SC2086 # a tool and its program's words
        "$sanitizer" --error-exitcode 9 --tool ${checks%% *} "$FUSED_CHECKS" ${checks#* } | tee "$scratch/fused" ||
            fail "compute-sanitizer has found something"
        passed=$((passed + $(fused_passed)))
    done
    echo "-- generated kernels, columns read by cuFile, under compute-sanitizer"
    "$sanitizer" --tool memcheck --report-api-errors no --error-exitcode 9 "$FUSED_CHECKS" --programs 20 --seed 8 --stream 4 \
        --files "$scratch" | tee "$scratch/fused" || fail "compute-sanitizer has found something"
    passed=$((passed + $(fused_passed)))
else
    echo "compute-sanitizer is not installed: nothing was run under it"
fi
echo "gpu: $passed passed, 0 failed"
