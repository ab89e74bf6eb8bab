#!/bin/sh
# What `make test-server` runs: PostgreSQL's own client and drivers against `onehop serve`. Each test has servers of its own, on
# ports that the system chooses, on 127.0.0.1.
#
#   tests/server/run.sh PATH/TO/onehop [pytest's arguments]
#
# Debian's packages postgresql-client (psql), postgresql (the server that is attached), chromium and chromium-driver (the browser
# that looks at the server's page) are installed, as root, if they are missing: the tests do not pass by not running. Pictures of
# the page are in screenshots/ afterwards.
# Suites of drivers have a command of their own: suites/run.sh. The last line has the counts.
set -eu
here=$(cd "$(dirname "$0")" && pwd)
onehop=$(realpath "$1")
shift
"$here/../../bench/peers/setup.sh" "$here"
missing=
command -v psql > /dev/null || missing="postgresql-client"
ls /usr/lib/postgresql/*/bin/postgres > /dev/null 2>&1 || missing="$missing postgresql"
command -v chromium > /dev/null && command -v chromedriver > /dev/null || missing="$missing chromium chromium-driver"
if [ -n "$missing" ]; then
    # The server is for tests to start: none is made, or started, by its package.
    if [ "$(id -u)" = 0 ] && [ ! -e /etc/postgresql-common/createcluster.conf ]; then
        mkdir -p /etc/postgresql-common
        echo "create_main_cluster = false" > /etc/postgresql-common/createcluster.conf
    fi
    # shellcheck disable=SC2086 # They are several words.
    "$here/../packages.sh" $missing
fi

log=$(mktemp)
trap 'rm -f "$log"' EXIT
status=0
ONEHOP="$onehop" "$here/.venv/bin/python" -m pytest -q -p no:cacheprovider --ignore "$here/suites" "$here" "$@" > "$log" 2>&1 || status=$?
cat "$log"
count() { sed -n "\$s/.*\b\([0-9][0-9]*\) $1.*/\1/p" "$log"; }
passed=$(count passed) failed=$(count failed) errors=$(count error)
echo "server: ${passed:-0} passed, $((${failed:-0} + ${errors:-0})) failed"
[ "$status" -eq 0 ] && [ "${passed:-0}" -gt 0 ]
