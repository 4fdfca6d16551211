"""Changes on one side only, each of which a cross-check must notice. They are run on every
rendering that they apply to: a check that cannot fail is no check."""

import copy

from workload import Workload


def _args(work, old, new):
    before = list(work.container["args"])
    work.container["args"] = [a.replace(old, new) for a in before]
    return work.container["args"] != before


def _port(work, name, port):
    for entry in work.container["ports"]:
        if entry["name"] == name:
            entry["containerPort"] = port
    return True


def _set(holder, key, value):
    holder[key] = value
    return True


def _drop(holder, key):
    return holder.pop(key, None) is not None


def _cold_size(work):
    volume = work.volumes.get("cold", {})
    if "emptyDir" in volume:
        return _set(volume["emptyDir"], "sizeLimit", "1Gi")
    if "ephemeral" in volume:
        claim = volume["ephemeral"]["volumeClaimTemplate"]["spec"]
        return _set(claim["resources"]["requests"], "storage", "1Gi")
    return False


def _query(work):
    for scaled in work.all("ScaledObject"):
        metadata = scaled["spec"]["triggers"][0]["metadata"]
        return _set(metadata, "query", metadata["query"].replace("waiting", "queued"))
    return False


def _monitor(work):
    for monitor in work.all("PodMonitor"):
        return _set(monitor["spec"]["podMetricsEndpoints"][0], "port", "grpc")
    return False


def _service_port(work):
    return _set(work.all("Service")[0]["spec"]["ports"][0], "port", 50054)


def _selector(work):
    return _set(work.all("PodDisruptionBudget")[0]["spec"]["selector"]["matchLabels"],
                "app.kubernetes.io/name", "other")


# What is changed, how, and the check that must say so.
MUTATIONS = [
    ("a flag's name", lambda w: _args(w, "--hot-bytes", "--hot-byte"), "check_flags"),
    ("a flag's value", lambda w: _args(w, "=json", "=xml"), "check_flags"),
    ("the listen flag's port", lambda w: _args(w, ":50051", ":50061"), "check_ports"),
    ("the health flag's port", lambda w: _args(w, ":50052", ":50062"), "check_ports"),
    ("the metrics flag's port", lambda w: _args(w, ":9464", ":9465"), "check_ports"),
    ("the grpc container port", lambda w: _port(w, "grpc", 50053), "check_ports"),
    ("the service's port", _service_port, "check_ports"),
    ("the monitor's port", _monitor, "check_ports"),
    ("a probe's port", lambda w: _set(w.container["livenessProbe"]["grpc"], "port", 50051),
     "check_probes"),
    ("a probe's service",
     lambda w: _set(w.container["readinessProbe"]["grpc"], "service", "strata.v1.Inference"),
     "check_probes"),
    ("the drain time", lambda w: _args(w, "--drain-timeout=60s", "--drain-timeout=70s"),
     "check_shutdown"),
    ("the grace period", lambda w: _set(w.pod, "terminationGracePeriodSeconds", 30),
     "check_shutdown"),
    ("a tier's budget", lambda w: _args(w, "--warm-bytes=512MiB", "--warm-bytes=2GiB"),
     "check_memory"),
    ("the memory limit", lambda w: _set(w.container["resources"]["limits"], "memory", "1Gi"),
     "check_memory"),
    ("the cold volume's size", _cold_size, "check_storage"),
    ("the model's path", lambda w: _args(w, "=/models/", "=/model/"), "check_volumes"),
    ("the model volume's mode", lambda w: _drop(w.mounts["model"], "readOnly"), "check_volumes"),
    ("the user", lambda w: _set(w.pod["securityContext"], "runAsUser", 0), "check_security"),
    ("service links", lambda w: _drop(w.pod, "enableServiceLinks"), "check_security"),
    ("a selector", _selector, "check_selectors"),
    ("a metric's name", _query, "check_metrics"),
]


def survivors(documents, facts, run):
    """Names of mutations that no check noticed, and how many were tried."""
    unnoticed, tried = [], 0
    for name, mutate, expected in MUTATIONS:
        work = Workload(copy.deepcopy(documents))
        if not mutate(work):
            continue
        tried += 1
        complaints = run(Workload(work.documents), facts)
        if not any(c.startswith(expected + ":") for c in complaints):
            unnoticed.append(name)
    return unnoticed, tried
