#!/usr/bin/env python3
"""Holds tools/gpu_check to what it promises, on a machine without a GPU.

  gpu_check_test.py --emulated-test CUDA_TEST --emulated-bench CUDA_BENCH_EMULATED [--gpu-test CUDA_GPU_TEST]
"""

import argparse
import json
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tools/lib"))

import gpu_stages  # noqa: E402

OPTIONS = None


def check(*commands: str, stages: str = "", budget: float = 200) -> tuple[int, dict]:
    with tempfile.TemporaryDirectory() as empty:
        arguments = [sys.executable, str(ROOT / "tools/gpu_check"), "run", "--directory", empty]
        arguments += ["--budget", str(budget), "--stages", stages]
        for command in commands:
            arguments += ["--command", command]
        result = subprocess.run(arguments, check=False, capture_output=True, text=True)
        return result.returncode, json.loads(result.stdout)


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

    def test_without_a_gpu_nothing_has_passed(self):
        if OPTIONS.gpu_test is None:
            self.skipTest("no nvcc, so no binary for GPUs")
        code, report = check(f"cuda_gpu_test={OPTIONS.gpu_test}", stages="ptx,kernels")
        if code == 0:
            self.skipTest("this machine has a GPU")
        self.assertEqual(code, 77)
        self.assertEqual(set(status(report).values()), {"not run"})
        self.assertIn("no GPU", report["stages"][0]["reason"])

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
    parser = argparse.ArgumentParser()
    parser.add_argument("--emulated-test", required=True)
    parser.add_argument("--emulated-bench", required=True)
    parser.add_argument("--gpu-test")
    OPTIONS, rest = parser.parse_known_args()
    unittest.main(argv=[sys.argv[0], *rest])
