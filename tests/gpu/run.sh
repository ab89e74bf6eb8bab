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
# Whoever still runs when this ends is ended.
trap 'kill ${pids[@]+"${pids[@]}"} 2> /dev/null; rm -rf "$scratch"' EXIT
passed=0
pids=()

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

# Generated kernels are compiled by processors, one after the other: parts that are asked for next to each other run side by side.
names=()
pids=()
begin() { # NAME WORDS...
    local name=$1
    shift
    mkdir "$scratch/$name"
    names+=("$name")
    "$@" > "$scratch/$name/said" 2>&1 &
    pids+=($!)
}
# Each part says last how much of it passed, if all of it did.
finish() {
    local at name count
    for at in "${!names[@]}"; do
        name=${names[at]}
        echo "-- $name"
        wait "${pids[at]}" || {
            cat "$scratch/$name/said"
            fail "$name: a wrong answer, or a way that is missing"
        }
        tail -n 3 "$scratch/$name/said"
        count=$(sed -n 's/^\(fused\|device\) checks: \([0-9]*\) passed, 0 failed$/\2/p' "$scratch/$name/said")
        [ "${count:-0}" -gt 0 ] || fail "$name has checked nothing"
        passed=$((passed + count))
    done
    names=()
    pids=()
}

begin "generated kernels" "$FUSED_CHECKS" --programs 150
begin "more generated kernels" "$FUSED_CHECKS" --programs 150 --seed 2
begin "generated kernels, columns streamed" "$FUSED_CHECKS" --programs 100 --seed 3 --stream 4
mkdir "$scratch/files"
begin "generated kernels, columns read by cuFile" "$FUSED_CHECKS" --programs 100 --seed 7 --stream 4 --files "$scratch/files"
finish

sanitizer=$(command -v compute-sanitizer || ls /usr/local/cuda/bin/compute-sanitizer 2>/dev/null || true)
if [ -n "$sanitizer" ]; then
    # cuFile asks the driver what it may not know, and takes the answer: that is not ours to see.
    mkdir "$scratch/queues" "$scratch/sanitized"
    begin "the queues' checks under memcheck" "$sanitizer" --tool memcheck --report-api-errors no --error-exitcode 9 \
        "$DEVICE_CHECKS" "$scratch/queues"
    for checks in "memcheck --programs 40 --seed 2" "memcheck --programs 20 --seed 4 --stream 4" \
        "initcheck --programs 12 --seed 5" "synccheck --programs 12 --seed 6"; do
        # shellcheck disable=SC2086 # a tool and its program's words
        begin "generated kernels under $checks" "$sanitizer" --error-exitcode 9 --tool ${checks%% *} "$FUSED_CHECKS" ${checks#* }
    done
    begin "generated kernels, columns read by cuFile, under memcheck" "$sanitizer" --tool memcheck --report-api-errors no \
        --error-exitcode 9 "$FUSED_CHECKS" --programs 20 --seed 8 --stream 4 --files "$scratch/sanitized"
    finish
else
    echo "compute-sanitizer is not installed: nothing was run under it"
fi
echo "gpu: $passed passed, 0 failed"
