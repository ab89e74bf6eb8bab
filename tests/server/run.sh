#!/bin/sh
# What `make test-server` runs: PostgreSQL's own client and drivers against `onehop serve`. Each test has servers of its own, on
# ports that the system chooses, on 127.0.0.1.
#
#   tests/server/run.sh PATH/TO/onehop [pytest's arguments]
#
# psql is Debian's package postgresql-client; without it the tests fail: they do not pass by not running.
set -eu
here=$(cd "$(dirname "$0")" && pwd)
onehop=$(realpath "$1")
shift
"$here/../../bench/peers/setup.sh" "$here"
ONEHOP="$onehop" exec "$here/.venv/bin/python" -m pytest -q -p no:cacheprovider "$here" "$@"
