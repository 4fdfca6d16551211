"""Checks the files in deploy/ against each other and against the real programs.

usage: check.py --server PROGRAM --client PROGRAM --model FILE --tools FOLDER

Renders every overlay and every set of chart values, validates all objects against Kubernetes'
schemas, cross-checks them with what the programs say, and proves that the cross-checks can fail.
"""

import argparse
import pathlib
import re
import subprocess
import sys
import types

import yaml

import checks
import live
import make_rules
import mutations
from schema import Schemas
from workload import Programs, Workload

ROOT = pathlib.Path(__file__).resolve().parents[2]
DEPLOY = ROOT / "deploy"


def run(*command):
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode != 0:
        sys.exit(f"{' '.join(map(str, command))}:\n{done.stdout}{done.stderr}")
    return done.stdout


def renderings(tools):
    """Name and documents of everything that can be deployed."""
    for overlay in sorted((DEPLOY / "kustomize/overlays").iterdir()):
        yield f"kustomize {overlay.name}", run(tools / "kubectl", "kustomize", overlay)
    chart = DEPLOY / "helm/strata"
    if chart.exists():
        run(tools / "helm", "lint", "--strict", chart)
        for values in sorted((chart / "ci").glob("*.yaml")):
            yield f"helm {values.stem}", run(tools / "helm", "template", "strata", chart,
                                             "--namespace", "strata", "--values", values)


def check_dockerfiles(tools):
    for dockerfile in sorted((DEPLOY / "docker").glob("*.Dockerfile")):
        run(tools / "hadolint", dockerfile)
        yield dockerfile.read_text()


def image_facts(dockerfiles):
    """Ports and user of the images, which must agree."""
    exposed = {tuple(sorted(map(int, re.search(r"^EXPOSE (.+)$", t, re.M)[1].split())))
               for t in dockerfiles}
    users = {int(re.search(r"^USER (\d+)", t, re.M)[1]) for t in dockerfiles}
    if len(exposed) != 1 or len(users) != 1:
        sys.exit(f"the Dockerfiles differ: ports {exposed}, users {users}")
    return list(exposed.pop()), users.pop()


def live_facts(options, tools, args):
    """What a server started as in the manifests serves."""
    grpcurl = live.Grpcurl(tools / "grpcurl")
    with live.serving(options.server, args, options.model) as addresses:
        complaints = list(live.try_services(grpcurl, addresses["listen"]))
        names = ["liveness", "strata.v1.InferenceService"]
        healthy = {n for n in names if grpcurl.healthy(addresses["health-listen"], n)}
        return healthy, live.metric_names(addresses["metrics-listen"]), complaints


def main():
    parser = argparse.ArgumentParser()
    for name in ("server", "client", "model", "tools"):
        parser.add_argument(f"--{name}", required=True)
    options = parser.parse_args()
    tools = pathlib.Path(options.tools)

    facts = types.SimpleNamespace(programs=Programs(options.server, options.client, options.model))
    facts.exposed, facts.user = image_facts(list(check_dockerfiles(tools)))
    schemas = Schemas(tools / "schemas")
    all_documents = {name: [d for d in yaml.safe_load_all(text) if d]
                     for name, text in renderings(tools)}
    base = Workload(all_documents["kustomize cpu"])
    facts.health_services, facts.metrics, complaints = live_facts(options, tools, base.args)

    guide = (ROOT / "docs/OPERATIONS.md").read_text()
    complaints += checks.check_guide(guide, facts)
    complaints += filter(None, [make_rules.complaint()])

    failed = 0
    for name, documents in [("the running server and the guide", [])] + list(all_documents.items()):
        tried = 0
        if documents:
            complaints = [c for d in documents for c in schemas.check(d)]
            complaints += checks.run(Workload(documents), facts)
            unnoticed, tried = mutations.survivors(documents, facts, checks.run)
            complaints += [f"no check notices a change of {what}" for what in unnoticed]
        failed += bool(complaints)
        print(f"{'FAILED' if complaints else 'ok':6} {name}: {len(documents)} objects, "
              f"{tried} one-sided changes noticed")
        for complaint in complaints:
            print(f"       {complaint}")
    if not facts.programs.has_cuda:
        print("note: this build has no CUDA; --device=cuda was left out of what the program checked")
    print(f"{len(all_documents) + 1 - failed} passed, {failed} failed")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
