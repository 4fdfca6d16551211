"""Cross-checks of a rendered deployment: that both sides of everything said twice agree."""

import re

from workload import port_of, quantity, seconds

EXIT_TIME_S = 10  # for what a drained server has left to do
METRIC = re.compile(r"\bstrata_[a-z0-9_]+|\bgrpc_server_[a-z0-9_]+")


def check_flags(work, facts):
    config, complaint = facts.programs.config(work.args)
    if complaint:
        yield f"strata-server refuses the flags: {complaint}"
    repeated = {a for a in work.args if a.startswith("--") and work.args.count(a) > 1}
    if repeated:
        yield f"flags given twice: {sorted(repeated)}"


def check_ports(work, facts):
    config, complaint = facts.programs.config(work.args)
    if complaint:
        return
    for name, option in [("grpc", "listen"), ("health", "health-listen"),
                         ("metrics", "metrics-listen")]:
        if config[option] == "none" or work.ports.get(name) != port_of(config[option]):
            yield f"container port {name} is {work.ports.get(name)}, --{option}={config[option]}"
    if sorted(work.ports.values()) != facts.exposed:
        yield f"container ports {sorted(work.ports.values())}, the image exposes {facts.exposed}"
    for service in work.all("Service"):
        for port in service["spec"]["ports"]:
            target = port["targetPort"]
            if target not in work.ports:
                yield f"Service {service['metadata']['name']}: no container port '{target}'"
            elif port["port"] != work.ports[target]:
                yield f"Service {service['metadata']['name']}: port {port['port']} for '{target}'"
    for policy in work.all("NetworkPolicy"):
        for rule in policy["spec"]["ingress"]:
            for port in rule["ports"]:
                if port["port"] not in work.ports:
                    yield f"NetworkPolicy: no container port '{port['port']}'"
    for monitor in work.all("PodMonitor"):
        for endpoint in monitor["spec"]["podMetricsEndpoints"]:
            if endpoint["port"] != "metrics" or endpoint["port"] not in work.ports:
                yield f"PodMonitor: port '{endpoint['port']}' is not where metrics are"


def check_probes(work, facts):
    for name in ("startupProbe", "livenessProbe", "readinessProbe"):
        probe = work.container.get(name, {}).get("grpc")
        if probe is None:
            yield f"{name}: no gRPC probe"
            continue
        if probe["port"] != work.ports.get("health"):
            yield f"{name}: port {probe['port']}, health is served on {work.ports.get('health')}"
        if probe["service"] not in facts.health_services:
            yield f"{name}: the server's health knows no service '{probe['service']}'"
    services = [work.container[name]["grpc"]["service"]
                for name in ("livenessProbe", "readinessProbe")
                if "grpc" in work.container.get(name, {})]
    if services != ["liveness", "strata.v1.InferenceService"]:
        yield f"liveness and readiness ask for {services}"


def check_shutdown(work, facts):
    config, complaint = facts.programs.config(work.args)
    if complaint:
        return
    grace = work.pod.get("terminationGracePeriodSeconds", 30)
    wait = work.container.get("lifecycle", {}).get("preStop", {}).get("sleep", {}).get("seconds", 0)
    drain = seconds(config["drain-timeout"])
    if wait < 1:
        yield "preStop does not wait for endpoints to be withdrawn"
    if grace < wait + drain + EXIT_TIME_S:
        yield (f"terminationGracePeriodSeconds {grace} < preStop {wait} + drain-timeout {drain:g} "
               f"+ {EXIT_TIME_S}")


def check_memory(work, facts):
    plan, complaint = facts.programs.plan(work.args)
    if complaint:
        yield f"strata plan refuses the flags: {complaint}"
        return
    resources = work.container["resources"]
    limit = quantity(resources["limits"]["memory"])
    if quantity(resources["requests"]["memory"]) != limit:
        yield "memory request and limit differ: the tiers are allocated whole, from the start"
    if limit < plan["memory"]["limit_bytes"]:
        yield (f"memory limit {limit / 2**20:.0f} MiB < {plan['memory']['limit_bytes'] / 2**20:.0f}"
               " MiB, which strata plan wants for tiers, weights, steps and messages")


def check_storage(work, facts):
    config, complaint = facts.programs.config(work.args)
    if complaint or not config["cold-path"]:
        return
    if "cold" not in work.volumes:
        yield f"--cold-path={config['cold-path']}, and no volume 'cold'"
        return
    volume = work.volumes["cold"]
    if "emptyDir" in volume:
        room = quantity(volume["emptyDir"]["sizeLimit"])
        pod_room = work.container["resources"]["limits"].get("ephemeral-storage", 0)
        if quantity(pod_room) < room:
            yield "the pod's limit of ephemeral storage is below the cold volume's"
    else:
        claim = volume["ephemeral"]["volumeClaimTemplate"]["spec"]
        room = quantity(claim["resources"]["requests"]["storage"])
    if room < quantity(config["cold-bytes"]) * 1.02:
        yield f"the cold volume has {room / 2**30:.1f} GiB for --cold-bytes={config['cold-bytes']}"


def check_volumes(work, facts):
    config, complaint = facts.programs.config(work.args)
    if complaint:
        return
    for name, mount in work.mounts.items():
        if name not in work.volumes:
            yield f"mount '{name}': no such volume"
    written = {"basis-cache": config["basis-cache"], "cold-path": config["cold-path"]}
    read = {key: config[key] for key in ("model", "tls-cert", "tls-key", "tls-client-ca",
                                         "token-file", "cache-token-file")}
    for option, path in {**written, **read}.items():
        if not path:
            continue
        inside = [m for m in work.mounts.values() if path.startswith(m["mountPath"])]
        if not inside:
            yield f"--{option}={path} is in no mounted volume, and the root is read-only"
        elif inside[0].get("readOnly", False) != (option in read):
            yield f"--{option}={path}: the volume should be {'read-only' if option in read else 'writable'}"


def check_security(work, facts):
    pod, container = work.pod.get("securityContext", {}), work.container.get("securityContext", {})
    wanted = [
        ("runAsNonRoot", pod.get("runAsNonRoot") is True),
        (f"runAsUser {facts.user}, as the image", pod.get("runAsUser") == facts.user),
        ("seccompProfile", pod.get("seccompProfile", {}).get("type") == "RuntimeDefault"),
        ("readOnlyRootFilesystem", container.get("readOnlyRootFilesystem") is True),
        ("no privilege escalation", container.get("allowPrivilegeEscalation") is False),
        ("no capabilities", container.get("capabilities", {}).get("drop") == ["ALL"]),
        ("enableServiceLinks: false", work.pod.get("enableServiceLinks") is False),
        ("no service account token", work.pod.get("automountServiceAccountToken") is False),
    ]
    for what, holds in wanted:
        if not holds:
            yield f"security: {what} is missing"


def check_selectors(work, facts):
    def fits(selector):
        labels = selector.get("matchLabels", selector)
        return labels and all(work.labels.get(k) == v for k, v in labels.items())

    selectors = [("Deployment", work.deployment["spec"]["selector"])]
    selectors += [("Service", s["spec"]["selector"]) for s in work.all("Service")]
    selectors += [(d["kind"], d["spec"]["selector"])
                  for kind in ("PodDisruptionBudget", "PodMonitor") for d in work.all(kind)]
    selectors += [("NetworkPolicy", d["spec"]["podSelector"]) for d in work.all("NetworkPolicy")]
    for kind, selector in selectors:
        if not fits(selector):
            yield f"{kind}: its selector {selector} does not select the pods"
    for kind in ("PodDisruptionBudget", "NetworkPolicy"):
        if not work.all(kind):
            yield f"no {kind}"
    for scaled in work.all("ScaledObject"):
        if scaled["spec"]["scaleTargetRef"]["name"] != work.deployment["metadata"]["name"]:
            yield "ScaledObject: its target is not the deployment"
        if "replicas" in work.deployment["spec"]:
            yield "the deployment's replicas and the ScaledObject would undo each other"


def check_metrics(work, facts):
    for scaled in work.all("ScaledObject"):
        for trigger in scaled["spec"]["triggers"]:
            query = trigger["metadata"]["query"]
            unknown = [m for m in METRIC.findall(query) if m not in facts.metrics]
            if unknown:
                yield f"ScaledObject: the server has no metric {', '.join(unknown)}"


def check_guide(text, facts):
    """Of docs/OPERATIONS.md: flags and metrics that it names exist."""
    config, _ = facts.programs.config(["--model=m"])
    known = set(config) | {"config", "print-config", "help", "version"}
    # Of other programs, and of `strata`.
    foreign = {"memory", "disk", "json", "namespace", "values", "tls-ca", "tls-name"}
    for flag in sorted(set(re.findall(r"`--([a-z-]+)|^ *.*\B--([a-z-]+)=", text)), key=str):
        name = flag[0] or flag[1]
        if name not in known | foreign:
            yield f"docs/OPERATIONS.md: strata-server has no --{name}"
    # Without TLS there is no certificate.
    absent = {"strata_tls_certificate_expiry_timestamp_seconds"}
    for metric in sorted(set(METRIC.findall(text)) - facts.metrics - absent):
        if not metric.endswith("_"):
            yield f"docs/OPERATIONS.md: the server has no metric {metric}"


CHECKS = [check_flags, check_ports, check_probes, check_shutdown, check_memory, check_storage,
          check_volumes, check_security, check_selectors, check_metrics]


def run(work, facts):
    """Every complaint, by the check that has it."""
    return [f"{check.__name__}: {complaint}" for check in CHECKS for complaint in check(work, facts)]
