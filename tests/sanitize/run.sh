#!/usr/bin/env bash
# What `make test-sanitize` runs: the tests of the two crates that hand memory to the system and to devices, under
# AddressSanitizer. The standard library is the usual one: what it allocates is seen, what it does inside is not.
#
# Buffers are of a slab, which tells the sanitizer by itself what nobody has (`--cfg asan`).
#
# The switch is the compiler's own, and unstable; RUSTC_BOOTSTRAP lets the stable compiler have it. A target is named so
# that build scripts and macros are built without it, and what is built is kept apart from all else.
set -euo pipefail
cd "$(dirname "$0")/../.."

target="$(rustc -vV | sed -n 's/^host: //p')"
# From the root: tests run in the folders of their crates.
built=$(realpath -m "${CARGO_TARGET_DIR:-target}")
export CARGO_TARGET_DIR="$built/sanitize"
# Kernels for the emulated device are compiled without it: what the tests before this compiled is as good.
export ONEHOP_EMULATED_KERNELS="${ONEHOP_EMULATED_KERNELS:-$built/debug/deps/emulated-kernels}"
export RUSTC_BOOTSTRAP=1 RUSTFLAGS="-Zsanitizer=address --cfg asan"
export ASAN_OPTIONS=detect_leaks=1

log=$(mktemp)
trap 'rm -f "$log"' EXIT
# Its lines are not to be taken for those of the tests without it.
cargo test --locked --target "$target" -p onehop-io -p onehop-cuda --lib --tests 2>&1 | tee "$log" | sed 's/^test result/sanitized &/'
awk '/^test result: ok\./ {passed += $4; failed += $6}
     END {print "sanitize: " passed + 0 " passed, " failed + 0 " failed"; exit passed == 0}' "$log"
