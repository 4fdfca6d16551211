"""Starts the real server as the base deployment does, and asks it what the manifests rely on."""

import contextlib
import json
import re
import socket
import subprocess
import tempfile
import time
import urllib.request

START_PATIENCE_S = 120


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


@contextlib.contextmanager
def serving(server, args, model):
    """The server with the manifests' flags, but for paths and ports; its addresses by option."""
    with tempfile.TemporaryDirectory() as folder:
        addresses = {option: f"127.0.0.1:{free_port()}"
                     for option in ("listen", "health-listen", "metrics-listen")}
        own = {**addresses, "model": model, "basis-cache": folder, "threads": "2"}
        flags = [a for a in args if a[2:].split("=")[0] not in own]
        flags += [f"--{name}={value}" for name, value in own.items()]
        with open(f"{folder}/log", "w", encoding="utf-8") as log:
            process = subprocess.Popen([server, *flags], stderr=log, env={})
        try:
            deadline = time.monotonic() + START_PATIENCE_S
            while True:
                try:
                    urllib.request.urlopen(f"http://{addresses['metrics-listen']}/readyz").read()
                    break
                except OSError as error:
                    with open(f"{folder}/log", encoding="utf-8") as log:
                        if process.poll() is not None or time.monotonic() > deadline:
                            raise RuntimeError(f"the server does not start: {log.read()}") from error
                    time.sleep(0.05)
            yield addresses
        finally:
            process.terminate()
            process.wait()


class Grpcurl:
    """A stranger's client: knows nothing but what the server's reflection tells."""

    def __init__(self, program):
        self.program = program

    def __call__(self, *arguments):
        done = subprocess.run([self.program, "-plaintext", *arguments], capture_output=True,
                              text=True, timeout=60)
        if done.returncode != 0:
            raise RuntimeError(f"grpcurl {' '.join(arguments)}: {done.stderr.strip()}")
        return done.stdout

    def healthy(self, address, service):
        try:
            answer = self("-d", json.dumps({"service": service}), address,
                          "grpc.health.v1.Health/Check")
        except RuntimeError:
            return False
        return json.loads(answer).get("status") == "SERVING"


def metric_names(address):
    text = urllib.request.urlopen(f"http://{address}/metrics").read().decode()
    return set(re.findall(r"^([a-z_0-9]+)(?:\{| )", text, re.M))


def try_services(grpcurl, address):
    """Lists, describes and calls the services; complaints."""
    services = set(grpcurl(address, "list").split())
    wanted = {"strata.v1.InferenceService", "strata.v1.CacheService", "grpc.health.v1.Health"}
    for missing in wanted - services:
        yield f"grpcurl list does not show {missing}"
    for service, method in [("strata.v1.InferenceService", "Generate"),
                            ("strata.v1.CacheService", "GetStats"),
                            ("grpc.health.v1.Health", "Check")]:
        if f"rpc {method} " not in grpcurl(address, "describe", service):
            yield f"grpcurl describe {service} does not show {method}"
    request = {"text": "The capital of France is", "sampling": {"temperature": 0},
               "stop": {"max_tokens": 8}}
    result = json.loads(grpcurl("-d", json.dumps(request), address,
                                "strata.v1.InferenceService/GenerateOnce"))
    if "Paris" not in result["choices"][0]["text"]:
        yield f"GenerateOnce answers {result['choices'][0]['text']!r}"
    stream = grpcurl("-d", json.dumps(request), address, "strata.v1.InferenceService/Generate")
    if not all(event in stream for event in ('"started"', '"delta"', '"finished"', '"summary"')):
        yield "Generate does not stream its events"
    tiers = json.loads(grpcurl("-d", "{}", address, "strata.v1.CacheService/GetStats"))["tiers"]
    if [int(t.get("capacity_bytes", 0)) > 0 for t in tiers[:2]] != [True, True]:
        yield f"GetStats reports the tiers {tiers}"
