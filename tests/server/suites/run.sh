#!/bin/sh
# What `make test-suites` runs: test suites of PostgreSQL's drivers against `onehop serve`, see suites.py.
#
#   tests/server/suites/run.sh PATH/TO/onehop [SUITE ...]
#   WRITE=1 tests/server/suites/run.sh PATH/TO/onehop [SUITE ...]     writes the lists of what is expected
#
# Suites come from their packages, once. Debian's packages libpq-dev (by which psycopg2's source says what it is), openjdk-17-jdk-headless
# and maven are installed, as root, if they are missing.
# The last line has the counts: tests that pass, and deviations from the lists.
set -eu
here=$(cd "$(dirname "$0")" && pwd)
onehop=$(realpath "$1")
shift
"$here/../../../bench/peers/setup.sh" "$here"
missing=
command -v pg_config > /dev/null || missing="libpq-dev"
command -v javac > /dev/null || missing="$missing openjdk-17-jdk-headless"
command -v mvn > /dev/null || missing="$missing maven"
# shellcheck disable=SC2086 # They are several words.
[ -z "$missing" ] || "$here/../../packages.sh" $missing
exec "$here/.venv/bin/python" "$here/suites.py" ${WRITE:+--write} "$onehop" "$@"
