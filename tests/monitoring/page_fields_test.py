#!/usr/bin/env python3
"""The page reads only what the server says: every name_with_underscores in page.js is a field of the
messages that /stats.json is made of, and every id it looks for is in page.html."""
import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "server" / "metrics" / "page"
MESSAGES = ("CacheStats", "TierStats", "LinkUse", "Distribution")


def main():
    proto = (ROOT / "proto" / "strata" / "v1" / "inference.proto").read_text()
    fields = set()
    for message in MESSAGES:
        body = re.search(rf"^message {message} {{\n(.*?)^}}", proto, re.M | re.S).group(1)
        fields |= set(re.findall(r"(\w+) = \d+;", body))
    script = (PAGE / "page.js").read_text()
    html = (PAGE / "page.html").read_text()
    used = set(re.findall(r"\.([a-z0-9]+(?:_[a-z0-9]+)+)\b", script))
    ids = set(re.findall(r'getElementById\("(\w+)"\)', script)) | set(re.findall(r'fill\("(\w+)"', script))
    assert len(used) > 20 and len(ids) > 5, "the patterns find nothing any more"
    problems = [f"page.js reads {name}, which is no field" for name in sorted(used - fields)]
    problems += [f"page.js looks for #{name}" for name in sorted(ids) if f'id="{name}"' not in html]
    if problems:
        sys.exit("\n".join(problems))


if __name__ == "__main__":
    main()
