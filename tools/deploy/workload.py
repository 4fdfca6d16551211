"""What a rendered deployment says, and what the real programs make of it."""

import json
import re
import subprocess

import yaml

UNITS = {"": 1, "Ki": 2**10, "Mi": 2**20, "Gi": 2**30, "Ti": 2**40, "k": 10**3, "M": 10**6,
         "G": 10**9}
SECONDS = {"ms": 0.001, "s": 1, "m": 60, "h": 3600}


def quantity(text):
    """Bytes of a Kubernetes quantity or of a server's size."""
    number, unit = re.fullmatch(r"([0-9.]+)([A-Za-z]*)", str(text)).groups()
    return float(number) * UNITS[unit.removesuffix("B") if unit != "B" else ""]


def seconds(text):
    number, unit = re.fullmatch(r"([0-9.]+)([a-z]*)", str(text)).groups()
    return float(number) * SECONDS[unit or "s"]


def port_of(address):
    return int(address.rsplit(":", 1)[1])


class Programs:
    """The programs that the manifests start."""

    def __init__(self, server, client, model):
        self.server, self.client, self.model = server, client, model
        help_page = subprocess.run([server, "--device=cuda", "--model=m", "--print-config"],
                                   capture_output=True, text=True)
        self.has_cuda = help_page.returncode == 0
        self._answers = {}  # of the programs, by what they were asked
        self._parsed = {}

    def _ask(self, *command):
        if command not in self._answers:
            self._answers[command] = subprocess.run(command, capture_output=True, text=True, env={})
        return self._answers[command]

    def _fitting(self, args):
        # A build without CUDA refuses the flag's value, and cannot check it.
        return [a for a in args if self.has_cuda or not a.startswith("--device=cuda")]

    def config(self, args):
        """The effective configuration of these flags, or the program's complaint."""
        done = self._ask(self.server, *self._fitting(args), "--print-config")
        if done.returncode != 0:
            return None, done.stderr.splitlines()[0]
        if done.stdout not in self._parsed:
            self._parsed[done.stdout] = yaml.safe_load(done.stdout)
        return self._parsed[done.stdout], None

    def plan(self, args):
        """What `strata plan` says of the flags with the model that the manifests are sized for."""
        rest = [a for a in self._fitting(args) if not a.startswith("--model=")]
        done = self._ask(self.client, "plan", "--json", f"--model={self.model}", *rest)
        if done.returncode != 0:
            return None, done.stderr.splitlines()[0]
        return json.loads(done.stdout), None


class Workload:
    """The objects of one rendering."""

    def __init__(self, documents):
        self.documents = documents
        (self.deployment,) = self.all("Deployment")
        self.pod = self.deployment["spec"]["template"]["spec"]
        self.labels = self.deployment["spec"]["template"]["metadata"]["labels"]
        (self.container,) = self.pod["containers"]
        self.args = self.container["args"]
        self.ports = {p["name"]: p["containerPort"] for p in self.container["ports"]}
        self.mounts = {m["name"]: m for m in self.container["volumeMounts"]}
        self.volumes = {v["name"]: v for v in self.pod["volumes"]}

    def all(self, kind):
        return [d for d in self.documents if d["kind"] == kind]
