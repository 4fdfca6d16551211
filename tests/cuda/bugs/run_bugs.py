#!/usr/bin/env python3
"""Runs every seeded bug in every mode of the executor and prints who notices it.

  run_bugs.py --plain BINARY --asan BINARY --tsan BINARY

'-' nothing noticed, 'R' wrong result, 'E' a check of the executor's, 'S' a sanitizer's report. Fails when a
bug is noticed by no mode, or a good case by any.
"""

import argparse
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

RANDOM = [f"random:{seed}" for seed in range(1, 11)]
LAZY = [f"lazy:{seed}" for seed in range(1, 5)]
# Column: binary, then (schedule, streams) of each run.
MODES = {
    "fwd": ("plain", [("forward", "eager")]),
    "rev": ("plain", [("reverse", "eager")]),
    "random x10": ("plain", [(schedule, "eager") for schedule in RANDOM]),
    "lazy": ("plain", [("forward", streams) for streams in LAZY]),
    "asan": ("asan", [("forward", "eager")]),
    "tsan": ("tsan", [("forward", "eager")]),
}
ENVIRONMENT = {
    "ASAN_OPTIONS": "detect_leaks=0",
    "UBSAN_OPTIONS": "halt_on_error=1:print_stacktrace=0",
    "TSAN_OPTIONS": "halt_on_error=1",
}


def verdict(binary: str, case: str, schedule: str, streams: str) -> str:
    result = subprocess.run(
        [binary, case, schedule, streams],
        check=False,
        capture_output=True,
        text=True,
        errors="replace",
        env=os.environ | ENVIRONMENT,
        timeout=60,
    )
    if "executor: ERROR" in result.stderr:
        return "E"
    if "Sanitizer" in result.stderr or "runtime error" in result.stderr:
        return "S"
    known = {0: "-", 1: "R"}
    if result.returncode not in known:
        raise RuntimeError(
            f"{binary} {case} {schedule} {streams}: exit code {result.returncode}\n{result.stderr}"
        )
    return known[result.returncode]


def row_of(binaries: dict[str, str], case: str) -> list[str]:
    row = []
    for kind, runs in MODES.values():
        row.append("".join(verdict(binaries[kind], case, *run) for run in runs))
    return row


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    for kind in ("plain", "asan", "tsan"):
        parser.add_argument(f"--{kind}", required=True)
    binaries = vars(parser.parse_args())
    listed = subprocess.run([binaries["plain"], "--list"], check=True, capture_output=True, text=True)
    cases = listed.stdout.split()
    print(f"{'case':36}" + "".join(f"{mode:12}" for mode in MODES))
    failures = 0
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        rows = pool.map(lambda case: row_of(binaries, case), cases)
        for case, row in zip(cases, rows):
            noticed = any(mark != "-" for cell in row for mark in cell)
            wrong = noticed == case.startswith("good_")
            failures += wrong
            print(f"{case:36}" + "".join(f"{cell:12}" for cell in row) + ("WRONG" if wrong else ""))
    bugs = sum(not case.startswith("good_") for case in cases)
    print(f"{bugs} seeded bugs, {len(cases) - bugs} good cases, {failures} failures")
    sys.exit(1 if failures or bugs == 0 else 0)


if __name__ == "__main__":
    main()
