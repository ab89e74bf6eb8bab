#!/bin/sh
# Installs Debian packages, as root: `packages.sh PACKAGE ...`. Whoever needs them looks first whether they are missing. Lanes of
# tests run beside each other, and two installations at once do not: they take turns.
set -eu
if [ "$(id -u)" != 0 ] || ! command -v apt-get > /dev/null; then
    echo "these packages of Debian are needed: $*; install them, or run this as root" >&2
    exit 1
fi
echo "installing $*" >&2
exec flock "${TMPDIR:-/tmp}/onehop-packages.lock" \
    sh -c 'apt-get update && DEBIAN_FRONTEND=noninteractive apt-get install -y --no-install-recommends "$@"' sh "$@" >&2
