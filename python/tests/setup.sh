#!/bin/sh
# Makes the virtual environment of these tests, beside this file, or mends it, as bench/peers/setup.sh does its own.
exec "$(dirname "$0")/../../bench/peers/setup.sh" "$(cd "$(dirname "$0")" && pwd)"
