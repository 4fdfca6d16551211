#!/usr/bin/env python3
"""Two small helpers of tools/demo.

demo.py ready ADDRESS_FILE    exit 0 once the server that wrote the file answers /readyz with 200
demo.py summary RESULT_JSON   print the demo's figures from `strata generate --json` as one JSON line
"""
import json
import sys
import urllib.error
import urllib.request
from pathlib import Path


def ready(address_file):
    path = Path(address_file)
    lines = path.read_text().split() if path.exists() else []
    if len(lines) < 2:
        return False
    try:
        return urllib.request.urlopen(f"http://{lines[1]}/readyz", timeout=2).status == 200
    except (urllib.error.URLError, OSError):
        return False


def seconds(duration):
    return float(duration.rstrip("s"))


def summary(result_file):
    result = json.loads(Path(result_file).read_text())
    tiers = {tier["tier"].removeprefix("TIER_").lower(): tier for tier in result["kv"]["tiers"]}
    timing = result["timing"]
    later_tokens = result["usage"]["completion_tokens"] - 1
    return {
        "tokens": {name: int(tier["tokens"]) for name, tier in tiers.items()},
        "bytes": {name: int(tier["bytes"]) for name, tier in tiers.items()},
        "bits_per_value": {name: tier["bits_per_value"] for name, tier in tiers.items()},
        "links": [
            {
                "from": link["from"].removeprefix("TIER_").lower(),
                "to": link["to"].removeprefix("TIER_").lower(),
                "bytes": int(link["bytes"]),
                "bytes_f16_equivalent": int(link["bytes_f16_equivalent"]),
            }
            for link in result["kv"]["links"]
        ],
        "ttft_s": seconds(timing["time_to_first_token"]),
        "decode_tokens_per_s": later_tokens / seconds(timing["decode"]),
        "text": result["choices"][0]["text"],
    }


if __name__ == "__main__":
    command, argument = sys.argv[1:]
    if command == "ready":
        sys.exit(0 if ready(argument) else 1)
    print(json.dumps(summary(argument), ensure_ascii=False))
