#!/usr/bin/env python3
"""Fails when a file includes something its folder may not depend on.

Dependencies between folders point one way (docs/ARCHITECTURE.md); this reads the #includes and holds
the tree to it. It also holds the rules of single folders: only server/{rpc,metrics,config} and
main.cc see gRPC, Protobuf, prometheus-cpp and httplib; per-ISA kernel files include nothing but
intrinsics, <cstdint>, <cstddef>, our *-inl.h files and *_kernels.h files (PODs); CUDA sources include no absl, no spdlog, no
<string> and no <vector>.

  check_includes.py [ROOT]
"""

import re
import subprocess
import sys
from pathlib import Path

ALLOWED = {
    "base": set(),
    "layout": {"base"},
    "kernels": {"layout", "base"},
    "cache": {"layout", "base"},
    "tiering": {"cache", "kernels", "layout", "base"},
    "model": {"kernels", "layout", "base"},
    "proto": set(),
    "engine": {"tiering", "model", "cache", "kernels", "layout", "base"},
    "server": {"engine", "proto", "tiering", "model", "cache", "kernels", "layout", "base"},
}
ANYTHING = {"bench", "tests", "tools"}
INCLUDE = re.compile(r'^\s*#\s*include\s+([<"])([^">]+)[">]', re.M)
NETWORK = re.compile(r"^(grpc|grpcpp|google/protobuf|prometheus|httplib)\b|\.pb\.h$")
ISA_FILE = re.compile(r"^kernels/cpu/.*(_(scalar|avx2|avx512)\.cc|-inl\.h|_kernels\.h)$")
ISA_INCLUDE = re.compile(r"^kernels/cpu/.*(-inl|_kernels)\.h$")
ISA_HEADERS = {"immintrin.h", "cstdint", "cstddef"}
CUDA_BANNED = re.compile(r"^(absl/|spdlog/|string$|vector$)")


def folder_of(path: str) -> str:
    if path.startswith("cache/layout/"):
        return "layout"
    if path.startswith("server/engine/"):
        return "engine"
    return path.split("/")[0]


def target_of(include: str) -> str | None:
    """The folder an include belongs to, or None for a library's."""
    if include.startswith("strata/v1/") or include.startswith("google/rpc/"):
        return "proto"
    top = folder_of(include)
    return top if top in ALLOWED or top in ANYTHING else None


def problems_of(path: str, text: str):
    folder = folder_of(path)
    for bracket, include in INCLUDE.findall(text):
        target = target_of(include)
        if bracket == '"' and "/" not in include and include != "httplib.h":
            yield f'includes "{include}", which is not root-relative'
        if folder in ALLOWED and target is not None and target != folder:
            if target not in ALLOWED[folder]:
                yield f"includes {include}: {folder} may not depend on {target}"
        if NETWORK.search(include) and folder not in ANYTHING | {"server"}:
            yield f"includes {include}: only server/ sees the network libraries"
        if ISA_FILE.match(path):
            if not ISA_INCLUDE.match(include) and include not in ISA_HEADERS:
                yield f"includes {include}: per-ISA files must not share inline functions"
        if path.endswith(".cu") and CUDA_BANNED.match(include):
            yield f"includes {include}: not in a .cu file"


def main():
    root = Path(sys.argv[1] if len(sys.argv) > 1 else ".").resolve()
    listed = subprocess.run(
        ["git", "ls-files", "-co", "--exclude-standard"],
        cwd=root,
        check=False,
        capture_output=True,
        text=True,
    )
    names = (
        listed.stdout.split()
        if listed.returncode == 0
        else [str(p.relative_to(root)) for p in root.rglob("*") if p.is_file()]
    )
    checked, bad = 0, 0
    for name in sorted(names):
        if not re.search(r"\.(h|cc|cu|cuh)$", name) or not (root / name).exists():
            continue
        checked += 1
        for problem in problems_of(name, (root / name).read_text(encoding="utf-8")):
            print(f"{name}: {problem}")
            bad += 1
    print(f"{checked} files checked, {bad} problems")
    sys.exit(1 if bad or checked == 0 else 0)


if __name__ == "__main__":
    main()
