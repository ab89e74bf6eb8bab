#!/usr/bin/env bash
# Builds and tests rados:// for Hadoop.
#
#   build.sh check            compile, all warnings being errors
#   build.sh test [LIBRARY]   the suites, in memory; ONEHOP_CEPH_CONF=FILE: on that cluster. LIBRARY: a native library that
#                             is built already. In memory without the manifest committer's, most of which is waiting: with ALL=1
#   build.sh jar [LIBRARY]    the jar, with the native library for this platform in it; prints its path
#
# From the environment: CARGO_TARGET_DIR, for what is built (./target); BUILD, where Maven puts things (its folder jvm);
# PROFILE=dev|release for a native library that is built here (test: dev, jar: release); MVN, the Maven to use.
#
# What Maven needs is downloaded once, versions are fixed in pom.xml, and a build that has it all asks nobody.
set -euo pipefail
cd "$(dirname "$0")/.."

target=$(realpath -m "${CARGO_TARGET_DIR:-target}")
build=$(realpath -m "${BUILD:-$target/jvm}")
mvn=${MVN:-mvn}

install_tools() {
    command -v "$mvn" > /dev/null && command -v javac > /dev/null && return
    tests/packages.sh openjdk-17-jdk-headless maven || {
        echo "build.sh: any JDK of Java 17 or newer and Maven will do" >&2
        exit 1
    }
}

# Without the network if it can be, with it if something is missing.
maven() {
    local log=$build/maven.log args=(-B -f jvm/pom.xml "-Donehop.build=$build" "$@")
    mkdir -p "$build"
    if "$mvn" -o "${args[@]}" > "$log" 2>&1; then return; fi
    if grep -qE 'in offline mode|has not been downloaded from it before' "$log"; then
        "$mvn" "${args[@]}" > "$log" 2>&1 && return
    fi
    grep -E '^\[(ERROR|WARNING)\]' "$log" >&2 || tail -n 40 "$log" >&2
    return 1
}

native() { # PROFILE
    cargo build --locked -p onehop-jni --profile "$1" --target-dir "$target"
    case $1 in dev) echo "$target/debug/libonehop_jni.so" ;; *) echo "$target/$1/libonehop_jni.so" ;; esac
}

# "N passed, N failed, N skipped" of the reports.
count() {
    python3 - "$build/surefire-reports" << 'PYTHON'
import pathlib, sys
from xml.etree import ElementTree
totals = dict.fromkeys(("tests", "failures", "errors", "skipped"), 0)
for report in pathlib.Path(sys.argv[1]).glob("TEST-*.xml"):
    suite = ElementTree.parse(report).getroot()
    for name in totals:
        totals[name] += int(suite.get(name))
failed = totals["failures"] + totals["errors"]
passed = totals["tests"] - failed - totals["skipped"]
print(f"jvm: {passed} passed, {failed} failed, {totals['skipped']} skipped")
sys.exit(not passed or bool(failed))
PYTHON
}

install_tools
case ${1:-} in
    check)
        maven test-compile
        ;;
    test)
        library=${2:-$(native "${PROFILE:-dev}" | tail -n 1)}
        rm -rf "$build/surefire-reports"
        failed=0
        # Not where it is run with every change.
        some=()
        [ -n "${ALL:-}${ONEHOP_CEPH_CONF:-}" ] || some=('-Donehop.excluded=**/ManifestCommitterTest.java')
        maven test "${some[@]}" "-Donehop.library=$(realpath "$library")" "-Donehop.conf=${ONEHOP_CEPH_CONF:-}" || failed=1
        count || failed=1
        exit "$failed"
        ;;
    jar)
        library=${2:-$(native "${PROFILE:-release}" | tail -n 1)}
        platform=$(uname -s | tr '[:upper:]' '[:lower:]')-$(uname -m)
        mkdir -p "$build/natives/$platform"
        strip --strip-debug -o "$build/natives/$platform/libonehop_jni.so" "$library"
        maven package -DskipTests
        ls "$build"/onehop-hadoop-*.jar
        ;;
    *)
        sed -n '4,7s/^# *//p' "$0" >&2
        exit 2
        ;;
esac
