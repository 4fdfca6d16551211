"""Wraps the rules of deploy/monitoring for the Prometheus operator.

usage: make_rules.py [--check]

Writes deploy/kustomize/components/monitoring/rules.yaml, a PrometheusRule with the groups of all
*-rules.yml; --check compares instead, and says what to do.
"""

import pathlib
import sys

import yaml

ROOT = pathlib.Path(__file__).resolve().parents[2]
TARGET = ROOT / "deploy/kustomize/components/monitoring/rules.yaml"
HEAD = "# Made by tools/deploy/make_rules.py from deploy/monitoring; change it there.\n"


def wrapped():
    groups = []
    for path in sorted((ROOT / "deploy/monitoring").glob("*-rules.yml")):
        groups += yaml.safe_load(path.read_text())["groups"]
    rule = {"apiVersion": "monitoring.coreos.com/v1", "kind": "PrometheusRule",
            "metadata": {"name": "strata"}, "spec": {"groups": groups}}
    return HEAD + yaml.safe_dump(rule, sort_keys=False, width=100, allow_unicode=True)


def complaint():
    """What is wrong with the file, or None."""
    if not TARGET.exists() or TARGET.read_text() == wrapped():
        return None
    return f"{TARGET.relative_to(ROOT)} is not what deploy/monitoring says: run make_rules.py"


if __name__ == "__main__":
    if "--check" in sys.argv[1:]:
        sys.exit(complaint())
    TARGET.write_text(wrapped())
