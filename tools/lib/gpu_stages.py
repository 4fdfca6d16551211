"""The stages of tools/gpu_check. Each takes a Context and returns a Result; none raises for what a machine lacks."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import tempfile
import time
import urllib.error
import urllib.request
from dataclasses import dataclass, field
from pathlib import Path

PASSED, FAILED, NOT_RUN = "passed", "failed", "not run"
NO_GPU = 77  # exit code of cuda_gpu_test and cuda_bench where there is nothing to run on


@dataclass
class Result:
    status: str
    reason: str = ""
    details: dict = field(default_factory=dict)


class Context:
    """Where the binaries are, and how much time is left."""

    def __init__(
        self,
        directory: Path,
        deadline: float,
        overrides: dict[str, list[str]],
        long_prompt_sentences: int = 150,
    ):
        self.directory = directory
        self.long_prompt_sentences = long_prompt_sentences
        self.deadline = deadline
        self.overrides = overrides
        self.stage_end = deadline
        libraries = directory / "lib"
        self.environment = {"LD_LIBRARY_PATH": str(libraries)} if libraries.is_dir() else {}

    def begin(self, seconds: float):
        self.stage_end = min(self.deadline, time.monotonic() + seconds)

    def left(self) -> float:
        return self.stage_end - time.monotonic()

    def command(self, name: str) -> list[str] | None:
        """How to run a binary, or None where it is not here."""
        if name in self.overrides:
            return self.overrides[name]
        path = self.directory / name
        return [str(path)] if path.exists() else None

    def run(self, command: list[str], **options) -> subprocess.CompletedProcess:
        """Output as text. Raises TimeoutExpired when the stage's time is over."""
        return subprocess.run(
            command,
            check=False,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=max(1.0, self.left()),
            env=self.process_environment(),
            **options,
        )

    def process_environment(self) -> dict[str, str]:
        return os.environ | self.environment


def tail(text: str, characters: int = 2000) -> str:
    return text[-characters:]


def device(context: Context) -> Result:
    """What the driver says is here."""
    if shutil.which("nvidia-smi") is None:
        return Result(NOT_RUN, "nvidia-smi is not on this machine")
    query = "name,driver_version,memory.total,compute_cap,clocks.max.sm,clocks.max.mem"
    result = context.run(["nvidia-smi", f"--query-gpu={query}", "--format=csv,noheader"])
    if result.returncode != 0:
        return Result(FAILED, tail(result.stdout + result.stderr))
    names = query.split(",")
    gpus = [dict(zip(names, re.split(r",\s*", line))) for line in result.stdout.splitlines()]
    return Result(PASSED, details={"gpus": gpus})


def run_tests(context: Context, gtest_filter: str, wrapper: list[str] | None = None) -> Result:
    """Runs kernel tests by name; what GoogleTest counted goes into the details."""
    binary = context.command("cuda_gpu_test")
    if binary is None:
        return Result(NOT_RUN, "cuda_gpu_test is not here")
    with tempfile.TemporaryDirectory() as work:
        report = Path(work) / "report.json"
        flags = [f"--gtest_filter={gtest_filter}", f"--gtest_output=json:{report}"]
        result = context.run([*(wrapper or []), *binary, *flags])
        output = tail(result.stdout + result.stderr)
        if result.returncode == NO_GPU:
            return Result(NOT_RUN, output.strip())
        if not report.exists():
            return Result(FAILED, f"exit code {result.returncode}: {output}")
        counts = json.loads(report.read_text(encoding="utf-8"))
    failed = [
        f"{suite['name']}.{test['name']}"
        for suite in counts["testsuites"]
        for test in suite["testsuite"]
        if test.get("failures")
    ]
    skipped = [
        f"{suite['name']}.{test['name']}"
        for suite in counts["testsuites"]
        for test in suite["testsuite"]
        if test.get("result") == "SKIPPED"
    ]
    details = {"tests": counts["tests"], "failed": failed, "skipped": skipped}
    if counts["tests"] == 0:
        return Result(FAILED, f"no test matches {gtest_filter}", details)
    if result.returncode != 0 or failed:
        return Result(FAILED, f"exit code {result.returncode}: {output}", details)
    return Result(PASSED, details=details)


def ptx(context: Context) -> Result:
    """Each PTX wrapper against a scalar formula, which is what the executor emulates."""
    return run_tests(context, "Ptx.*")


def kernels(context: Context) -> Result:
    return run_tests(context, "-Ptx.*")


def sanitizer(context: Context) -> Result:
    """NVIDIA's compute-sanitizer on the small tests: out of bounds, then races on shared memory."""
    tool = shutil.which("compute-sanitizer") or shutil.which(
        "compute-sanitizer", path="/usr/local/cuda/bin"
    )
    if tool is None:
        return Result(NOT_RUN, "compute-sanitizer is not on this machine")
    details = {}
    for check in ("memcheck", "racecheck"):
        result = run_tests(context, "-*Large*", [tool, "--tool", check, "--error-exitcode", "9"])
        details[check] = {"status": result.status} | result.details
        if result.status != PASSED:
            return Result(result.status, f"{check}: {result.reason}", details)
    return Result(PASSED, details=details)


PROMPTS = (
    "The capital of France is",
    "def fibonacci(n):",
    "Once upon a time, in a village by the sea,",
    "Water boils at a temperature of",
    "The three primary colors are",
    "In 1969, the first",
    "To make a cup of tea, you",
    "SELECT name FROM",
)
# Drawn by the device, and by the host of the device's logits.
SAMPLED = (
    ("--temperature", "0.8", "--top-p", "0.95", "--top-k", "50", "--seed", "7"),
    ("--temperature", "0.8", "--typical-p", "0.95", "--seed", "7"),
)
GREEDY_TOKENS = 48
SENTENCE = "The keeper of the lighthouse wrote down the weather, the ships and the tides. "
# Two devices add in different orders. Where both choose the likeliest token and choose differently, the two tokens
# were nearly as likely; a chosen token's log probability then differs by no more than this. Between two instruction
# sets of a CPU those of SmolLM2-135M differ by 0.0014, and by 0.004 through all tiers.
TIE = 0.02


class Server:
    """A strata-server on one device, with windows so small that a long prompt uses all tiers."""

    def __init__(self, context: Context, kind: str, work: Path):
        self.context = context
        self.address_file = work / f"{kind}.address"
        self.log = work / f"{kind}.log"
        command = [
            *context.command("strata-server"),
            *("--device", kind, "--model", str(context.directory / "model.gguf")),
            *("--listen", "127.0.0.1:0", "--metrics-listen", "127.0.0.1:0"),
            *("--address-file", str(self.address_file), "--cold-path", str(work / f"{kind}.cold")),
            *("--sink-tokens", "64", "--hot-window", "256", "--warm-window", "256"),
            *("--hot-bytes", "64MiB", "--warm-bytes", "32MiB", "--cold-bytes", "64MiB"),
            *("--staging-bytes", "64MiB", "--max-sequences", "1", "--max-context", "4096"),
        ]
        with self.log.open("w", encoding="utf-8") as log:
            self.process = subprocess.Popen(
                command, stdout=log, stderr=log, env=context.process_environment()
            )

    def wait_until_ready(self):
        while self.context.left() > 0:
            code = self.process.poll()
            if code is not None:
                log = tail(self.log.read_text(errors="replace"))
                raise RuntimeError(f"strata-server ended with exit code {code}: {log}")
            lines = self.address_file.read_text().split() if self.address_file.exists() else []
            if len(lines) >= 2:
                try:
                    urllib.request.urlopen(f"http://{lines[1]}/readyz", timeout=2)
                    return
                except (urllib.error.URLError, OSError):
                    pass
            time.sleep(0.1)
        raise RuntimeError(f"strata-server was not ready in time: {tail(self.log.read_text())}")

    def generate(self, prompt: str, sampling: tuple[str, ...] = ("--temperature", "0")) -> dict:
        address = self.address_file.read_text().split()[0]
        result = self.context.run(
            [
                *self.context.command("strata"),
                *("generate", "--server", address, "--ignore-eos", "--json", "--quiet"),
                *("--token-ids", "--logprobs", "--max-tokens", str(GREEDY_TOKENS), *sampling),
                prompt,
            ]
        )
        if result.returncode != 0:
            raise RuntimeError(f"strata generate: {tail(result.stderr)}")
        return json.loads(result.stdout)

    def stop(self):
        self.process.send_signal(signal.SIGTERM)
        try:
            self.process.wait(timeout=20)
        except subprocess.TimeoutExpired:
            self.process.kill()


def token_ids(answer: dict) -> list[int]:
    return answer["choices"][0]["token_ids"]


def compare(cpu: dict, gpu: dict) -> dict:
    """Where two greedy answers part, and whether that was a tie."""
    left, right = cpu["choices"][0], gpu["choices"][0]
    chosen = [
        [entry["chosen"].get("logprob", 0.0) for entry in choice["logprobs"]]
        for choice in (left, right)
    ]
    ids = (token_ids(cpu), token_ids(gpu))
    same = 0
    while same < min(map(len, ids)) and ids[0][same] == ids[1][same]:
        same += 1
    shared = [abs(a - b) for a, b in zip(chosen[0][:same], chosen[1][:same])]
    verdict = {"tokens": len(ids[0]), "same": same, "max_logprob_difference": max(shared, default=0)}
    if ids[0] == ids[1]:
        return verdict | {"ok": True}
    if same == min(map(len, ids)):
        return verdict | {"ok": False}
    gap = abs(chosen[0][same] - chosen[1][same])
    return verdict | {"gap_where_they_part": gap, "ok": gap < TIE}


def why_no_gpu(context: Context) -> str | None:
    """What cuda_gpu_test says where there is no GPU to run on; None where there is one, or nobody can tell."""
    binary = context.command("cuda_gpu_test")
    if binary is None:
        return None
    result = context.run([*binary, "--gtest_filter=-*"])
    return result.stderr.strip() if result.returncode == NO_GPU else None


def greedy(context: Context) -> Result:
    """The server's greedy tokens on the GPU against the CPU's, tiers included; and that draws repeat."""
    for name in ("strata-server", "strata"):
        if context.command(name) is None:
            return Result(NOT_RUN, f"{name} is not here")
    if not (context.directory / "model.gguf").exists():
        return Result(NOT_RUN, "model.gguf is not here")
    reason = why_no_gpu(context)
    if reason is not None:
        return Result(NOT_RUN, reason)
    prompts = [*PROMPTS, SENTENCE * context.long_prompt_sentences]
    answers: dict[str, list[dict]] = {}
    drawn = []
    with tempfile.TemporaryDirectory() as work:
        for kind in ("cpu", "cuda"):
            server = Server(context, kind, Path(work))
            try:
                server.wait_until_ready()
                answers[kind] = [server.generate(prompt) for prompt in prompts]
                if kind == "cuda":
                    drawn = [[server.generate(PROMPTS[2], s) for _ in "12"] for s in SAMPLED]
            except RuntimeError as error:
                return Result(FAILED, f"--device={kind}: {error}")
            finally:
                server.stop()
    rows = [compare(cpu, gpu) for cpu, gpu in zip(answers["cpu"], answers["cuda"])]
    tiers = {t["tier"]: int(t.get("tokens", 0)) for t in answers["cuda"][-1]["kv"]["tiers"]}
    repeats = [token_ids(first) == token_ids(second) for first, second in drawn]
    details = {
        "prompts": rows,
        "tokens_by_tier_of_the_long_prompt": tiers,
        "draws_repeat": repeats,
    }
    bad = sum(not row["ok"] for row in rows)
    if bad:
        return Result(FAILED, f"{bad} of {len(rows)} answers part where there was no tie", details)
    if not all(tiers.values()):
        return Result(FAILED, "the long prompt did not use every tier", details)
    if not all(repeats):
        return Result(FAILED, "the same request and seed gave other tokens", details)
    return Result(PASSED, details=details)


def bench(context: Context) -> Result:
    """Rates of the kernels next to the copy bandwidth of the same run."""
    binary = context.command("cuda_bench")
    if binary is None:
        return Result(NOT_RUN, "cuda_bench is not here")
    result = context.run(binary)
    if result.returncode == NO_GPU:
        return Result(NOT_RUN, tail(result.stderr).strip())
    try:
        figures = json.loads(result.stdout)
    except json.JSONDecodeError:
        return Result(FAILED, f"exit code {result.returncode}: {tail(result.stderr)}")
    if result.returncode != 0:
        return Result(FAILED, tail(result.stderr), figures)
    return Result(PASSED, details=figures)


# Name, what runs, seconds at most. Together they fit the default budget.
STAGES = (
    ("device", device, 10),
    ("ptx", ptx, 30),
    ("kernels", kernels, 120),
    ("sanitizer", sanitizer, 100),
    ("greedy", greedy, 120),
    ("bench", bench, 80),
)
