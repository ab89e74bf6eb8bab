"""Runs tests one after the other, and says how many have passed: `spark: N passed, N failed` is the last line."""

import sys
import time
import traceback


def run(tests):
    """`tests`: names, and what to call. How many have failed."""
    failed = 0
    for name, test in tests:
        began = time.time()
        try:
            test()
            print(f"  {name}: {time.time() - began:.1f} s", flush=True)
        except Exception:
            failed += 1
            print(f"  {name}: FAILED", flush=True)
            traceback.print_exc(file=sys.stdout)
    print(f"spark: {len(tests) - failed} passed, {failed} failed", flush=True)
    return failed


def methods(of, *names):
    return [(name, getattr(of, name)) for name in names or dir(of) if name.startswith("test_")]
