#!/bin/sh
# What `make test-server` runs: PostgreSQL's own client and drivers against `onehop serve`. Each test has servers of its own, on
# ports that the system chooses, on 127.0.0.1.
#
#   tests/server/run.sh PATH/TO/onehop [pytest's arguments]
#
# psql is Debian's package postgresql-client, which is installed, as root, if it is missing: the tests do not pass by not running.
# The last line has the counts.
set -eu
here=$(cd "$(dirname "$0")" && pwd)
onehop=$(realpath "$1")
shift
"$here/../../bench/peers/setup.sh" "$here"
if ! command -v psql > /dev/null; then
    if [ "$(id -u)" != 0 ] || ! command -v apt-get > /dev/null; then
        echo "run.sh: psql is needed (Debian: postgresql-client)" >&2
        exit 1
    fi
    { apt-get update && apt-get install -y --no-install-recommends postgresql-client; } >&2
fi

log=$(mktemp)
trap 'rm -f "$log"' EXIT
status=0
ONEHOP="$onehop" "$here/.venv/bin/python" -m pytest -q -p no:cacheprovider "$here" "$@" > "$log" 2>&1 || status=$?
cat "$log"
count() { sed -n "\$s/.*\b\([0-9][0-9]*\) $1.*/\1/p" "$log"; }
passed=$(count passed) failed=$(count failed) errors=$(count error)
echo "server: ${passed:-0} passed, $((${failed:-0} + ${errors:-0})) failed"
[ "$status" -eq 0 ] && [ "${passed:-0}" -gt 0 ]
