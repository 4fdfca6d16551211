#!/usr/bin/env python3
"""Holds tools/gpu_check to what it promises, on a machine without a GPU.

  gpu_check_test.py --emulated-test CUDA_TEST --emulated-bench CUDA_BENCH_EMULATED
      --emulated-server STRATA_SERVER_EMULATED --client STRATA --tiny-model WRITE_TINY_MODEL [--build DIRECTORY]

Every stage runs: binaries are those of the executor, and the two programs of NVIDIA's are stood in for by scripts that
answer what is documented of them. --build is where the binaries for a GPU are.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tools/lib"))

import gpu_stages  # noqa: E402

OPTIONS = None


# One line a GPU, as --format=csv,noheader prints it.
NVIDIA_SMI = """#!/bin/sh
[ "$2" = --format=csv,noheader ] || exit 6
echo "NVIDIA H200, 570.86.15, 143771 MiB, 9.0, 1980 MHz, 3201 MHz"
"""
# Runs the program after its own options, and exits as it does.
COMPUTE_SANITIZER = """#!/bin/sh
[ "$1 $3 $4" = "--tool --error-exitcode 9" ] || exit 6
echo "$2" >> "$SANITIZER_LOG"
shift 4
exec "$@"
"""


# Reports that the tests it was told to run have passed, without running them: which they are is what a stage decides.
LISTING_TEST = """#!/bin/sh
exec {python} {script} list {binary} "$@"
"""


def tests_of(binary: str, gtest_filter: str = "*") -> dict[str, list[str]]:
    """Names of tests by suite."""
    command = [binary, "--gtest_list_tests", f"--gtest_filter={gtest_filter}"]
    listed = subprocess.run(command, check=False, capture_output=True, text=True)
    suites: dict[str, list[str]] = {}
    for line in listed.stdout.splitlines():
        if suite := re.fullmatch(r"(\w+)\.", line):
            tests = suites.setdefault(suite[1], [])
        elif line.startswith("  "):
            tests.append(line.strip())
    return suites


def list_tests(binary: str, gtest_filter: str, output: str):
    suites = tests_of(binary, gtest_filter.removeprefix("--gtest_filter="))
    report = {
        "tests": sum(map(len, suites.values())),
        "testsuites": [
            {"name": suite, "testsuite": [{"name": test, "result": "COMPLETED"} for test in tests]}
            for suite, tests in suites.items()
        ],
    }
    path = Path(output.removeprefix("--gtest_output=json:"))
    path.write_text(json.dumps(report), encoding="utf-8")


def check(
    *commands: str, stages: str = "", budget: float = 2000, directory: Path | None = None, **options
) -> tuple[int, dict]:
    with tempfile.TemporaryDirectory() as empty:
        arguments = [sys.executable, str(ROOT / "tools/gpu_check"), "run"]
        arguments += ["--directory", str(directory or empty)]
        arguments += ["--budget", str(budget), "--stages", stages, "--patience", "10"]
        for command in commands:
            arguments += ["--command", command]
        arguments += options.pop("arguments", [])
        result = subprocess.run(arguments, check=False, capture_output=True, text=True, **options)
        return result.returncode, json.loads(result.stdout)


def write_program(path: Path, text: str):
    path.write_text(text, encoding="utf-8")
    path.chmod(0o755)


def status(report: dict) -> dict[str, str]:
    return {stage["stage"]: stage["status"] for stage in report["stages"]}


class GpuCheck(unittest.TestCase):
    def test_passes_where_the_kernels_run(self):
        code, report = check(
            f"cuda_gpu_test={OPTIONS.emulated_test} --gtest_filter=Ptx.*",
            f"cuda_bench={OPTIONS.emulated_bench} --smoke",
            stages="ptx,bench",
        )
        self.assertEqual(status(report), {"ptx": "passed", "bench": "passed"})
        self.assertEqual(code, 77, "the kernels' tests did not run")
        figures = report["stages"][1]["details"]
        self.assertGreater(figures["copy"]["device_copy_bytes_per_s"], 0)
        for suite in ("codec", "matmul", "attention"):
            self.assertTrue(figures[suite]["rows"], suite)
            for row in figures[suite]["rows"]:
                self.assertGreater(row["bytes_per_s"], 0)
        self.assertTrue(all(row["us"] > 0 for row in figures["sample"]["rows"]))

    def test_reads_what_the_driver_says(self):
        with tempfile.TemporaryDirectory() as programs:
            write_program(Path(programs) / "nvidia-smi", NVIDIA_SMI)
            path = f"{programs}:{os.environ['PATH']}"
            _, report = check(stages="device", env=os.environ | {"PATH": path})
        self.assertEqual(status(report), {"device": "passed"})
        gpu = report["stages"][0]["details"]["gpus"][0]
        self.assertEqual(gpu["name"], "NVIDIA H200")
        self.assertEqual(gpu["compute_cap"], "9.0")
        self.assertEqual(gpu["clocks.max.mem"], "3201 MHz")

    def test_stages_choose_the_tests_they_promise(self):
        names = [f"{suite}.{test}" for suite, tests in tests_of(OPTIONS.emulated_test).items() for test in tests]
        with tempfile.TemporaryDirectory() as programs:
            log = Path(programs) / "log"
            write_program(Path(programs) / "compute-sanitizer", COMPUTE_SANITIZER)
            listing = Path(programs) / "listing"
            text = LISTING_TEST.format(
                python=sys.executable, script=__file__, binary=OPTIONS.emulated_test
            )
            write_program(listing, text)
            path = f"{programs}:{os.environ['PATH']}"
            code, report = check(
                f"cuda_gpu_test={listing}",
                stages="ptx,kernels,sanitizer",
                env=os.environ | {"PATH": path, "SANITIZER_LOG": str(log)},
            )
            self.assertEqual(log.read_text().split(), ["memcheck", "racecheck"])
        self.assertEqual(set(status(report).values()), {"passed"}, report)
        self.assertEqual((code, report["ok"], report["not_run"]), (0, True, []))
        ptx, kernels, sanitizer = [stage["details"] for stage in report["stages"]]
        self.assertEqual(ptx["tests"], sum(name.startswith("Ptx.") for name in names))
        self.assertEqual(ptx["tests"] + kernels["tests"], len(names))
        small = sum("Large" not in name for name in names)
        self.assertGreater(small, 50)
        self.assertEqual(
            [sanitizer[check]["tests"] for check in ("memcheck", "racecheck")], [small, small]
        )

    # The emulated server is --device=cuda and --device=cpu; the tiny model has some 50 tokens a sentence.
    def greedy(self, server: str) -> dict:
        with tempfile.TemporaryDirectory() as work:
            subprocess.run([OPTIONS.tiny_model, f"{work}/model.gguf"], check=True)
            _, report = check(
                f"strata-server={server}",
                f"strata={OPTIONS.client}",
                stages="greedy",
                directory=Path(work),
                arguments=["--long-prompt-sentences", "18"],
            )
        return report["stages"][0]

    def test_greedy_compares_the_devices_through_all_tiers(self):
        stage = self.greedy(OPTIONS.emulated_server)
        self.assertEqual(stage["status"], "passed", stage)
        details = stage["details"]
        self.assertEqual(len(details["prompts"]), len(gpu_stages.PROMPTS) + 1)
        for row in details["prompts"]:
            self.assertGreater(row["same"], 0)
        for tier, tokens in details["tokens_by_tier_of_the_long_prompt"].items():
            self.assertGreater(tokens, 0, tier)
        self.assertEqual(len(details["tokens_by_tier_of_the_long_prompt"]), 3)
        self.assertEqual(details["draws_repeat"], [True, True])

    def test_greedy_fails_with_the_servers_last_words(self):
        with tempfile.TemporaryDirectory() as work:
            write_program(Path(work) / "server", "#!/bin/sh\necho no such luck\nexit 1\n")
            stage = self.greedy(f"{work}/server")
        self.assertEqual(stage["status"], "failed")
        self.assertIn("no such luck", stage["reason"])

    def test_a_failing_test_fails(self):
        code, report = check("cuda_gpu_test=/bin/false", stages="ptx")
        self.assertEqual((code, status(report)["ptx"]), (1, "failed"))

    def test_a_filter_that_finds_nothing_fails(self):
        context = gpu_stages.Context(
            Path("/nowhere"), float("inf"), {"cuda_gpu_test": [OPTIONS.emulated_test]}
        )
        context.stage_end = gpu_stages.time.monotonic() + 60
        self.assertEqual(gpu_stages.run_tests(context, "NoSuchTest.*").status, gpu_stages.FAILED)

    def test_without_time_nothing_has_passed(self):
        code, report = check(f"cuda_gpu_test={OPTIONS.emulated_test}", budget=0)
        self.assertEqual(code, 77)
        self.assertEqual(set(status(report).values()), {"not run"})
        self.assertFalse(report["ok"])

    def test_a_packed_directory_without_a_gpu_says_so(self):
        if OPTIONS.build is None:
            self.skipTest("no nvcc, so no binary for GPUs")
        with tempfile.TemporaryDirectory() as work:
            subprocess.run([OPTIONS.tiny_model, f"{work}/tiny.gguf"], check=True)
            packed = Path(work) / "packed"
            pack = [sys.executable, str(ROOT / "tools/gpu_check"), "pack", str(packed)]
            pack += ["--build", OPTIONS.build, "--model", f"{work}/tiny.gguf"]
            subprocess.run(pack, check=True, capture_output=True)
            run = subprocess.run(
                [str(packed / "gpu_check"), "run", "--output", f"{work}/report.json"],
                check=False,
                capture_output=True,
                text=True,
                cwd="/",
            )
            report = json.loads(run.stdout)
            self.assertEqual(json.loads(Path(f"{work}/report.json").read_text()), report)
            if run.returncode == 0:
                self.skipTest("this machine has a GPU")
            self.assertEqual(run.returncode, 77, report)
            self.assertEqual(set(status(report).values()), {"not run"}, report)
            for stage in report["stages"][1:]:
                self.assertRegex(stage["reason"], "no GPU|not on this machine", stage)
            # What was packed runs as it is.
            version = subprocess.run(
                [str(packed / "strata-server"), "--version"],
                check=True,
                capture_output=True,
                text=True,
                env={"LD_LIBRARY_PATH": str(packed / "lib")},
            )
            self.assertTrue(version.stdout.strip())

    def test_greedy_answers_may_part_at_ties_only(self):
        def answer(ids, logprobs):
            return {
                "choices": [
                    {
                        "token_ids": ids,
                        "logprobs": [{"chosen": {"logprob": value}} for value in logprobs],
                    }
                ]
            }

        base = answer([1, 2, 3], [-0.1, -0.2, -0.7])
        self.assertTrue(gpu_stages.compare(base, base)["ok"])
        tie = gpu_stages.compare(base, answer([1, 2, 9], [-0.1, -0.2, -0.71]))
        self.assertTrue(tie["ok"])
        self.assertEqual(tie["same"], 2)
        self.assertFalse(gpu_stages.compare(base, answer([1, 2, 9], [-0.1, -0.2, -0.9]))["ok"])
        self.assertFalse(gpu_stages.compare(base, answer([1, 2], [-0.1, -0.2]))["ok"])


if __name__ == "__main__":
    if sys.argv[1] == "list":
        list_tests(*sys.argv[2:])
        sys.exit(0)
    parser = argparse.ArgumentParser()
    parser.add_argument("--emulated-test", required=True)
    parser.add_argument("--emulated-bench", required=True)
    parser.add_argument("--emulated-server", required=True)
    parser.add_argument("--client", required=True)
    parser.add_argument("--tiny-model", required=True)
    parser.add_argument("--build")
    OPTIONS, rest = parser.parse_known_args()
    unittest.main(argv=[sys.argv[0], *rest])
