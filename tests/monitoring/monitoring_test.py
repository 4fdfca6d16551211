#!/usr/bin/env python3
"""Holds dashboard and rules to what the server really says.

A real Prometheus scrapes a real server under load and loads the rules of deploy/monitoring. Every
expression of the dashboard, every recording rule and every alert's condition must give data; a metric
that does not exist fails the test. Then things go wrong, one after the other (more requests than fit,
a slow disk, a full disk, damaged records, a server that is gone), and the alert for each must fire.

The rules are a variant with short times (test_variant): the same expressions and thresholds, but
rates over seconds instead of minutes and alerts that wait one second. That the real times are kept is
what rules_test.yml checks.

  monitoring_test.py --server BINARY --client BINARY --model GGUF --shim LIBRARY
"""
import argparse
import importlib.util
import json
import os
import re
import shutil
import socket
import subprocess
import sys
import urllib.parse
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
from harness import Disk, Load, Server, folder, get, skip, wait_for  # noqa: E402

MONITORING = Path(__file__).resolve().parents[2] / "deploy" / "monitoring"
SCRAPE = "500ms"
# A busy test machine may give them cause.
SPEED_ALERTS = {"StrataDiskSlow", "StrataWaitingForDisk", "StrataSlowTokens", "StrataSlowFirstToken"}
# A server without TLS has no certificate to tell of; rules_test.yml tests what is made of it.
ABSENT_HERE = {"strata_tls_certificate_expiry_timestamp_seconds"}
METRIC = re.compile(r"\b(?:(?:strata|process|grpc_server)_[a-z0-9_]+|strata:[a-z0-9_:]+)\b")


def test_variant(text):
    """Rules with the same expressions, over seconds and without patience."""
    text = re.sub(r"\[\d+m\]", "[5s]", text)
    text = re.sub(r"\[\d+h\]", "[20s]", text)
    text = re.sub(r"\bfor: \d+m", "for: 1s", text)
    return re.sub(r"\binterval: 15s", "interval: 1s", text)


def dashboard_module():
    spec = importlib.util.spec_from_file_location("dashboard", MONITORING / "dashboard.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


class Prometheus:
    def __init__(self, directory, target):
        directory = Path(directory)
        for name in ("recording-rules.yml", "alert-rules.yml"):
            (directory / name).write_text(test_variant((MONITORING / name).read_text()))
        (directory / "prometheus.yml").write_text(f"""
global: {{scrape_interval: {SCRAPE}, evaluation_interval: 1s}}
rule_files: [recording-rules.yml, alert-rules.yml]
scrape_configs: [{{job_name: strata, static_configs: [{{targets: ["{target}"]}}]}}]
""")
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
        self.url = f"http://127.0.0.1:{port}"
        self.log = open(directory / "prometheus.log", "wb")
        self.process = subprocess.Popen(
            ["prometheus", f"--config.file={directory}/prometheus.yml",
             f"--storage.tsdb.path={directory}/data", f"--web.listen-address=127.0.0.1:{port}"],
            stdout=self.log, stderr=self.log)
        wait_for("Prometheus", lambda: get(self.url + "/-/ready"))

    def query(self, expression):
        """The samples of an instant query: [(labels, value)]."""
        query = urllib.parse.urlencode({"query": expression})
        body = get(f"{self.url}/api/v1/query?{query}")
        if body is None:
            raise AssertionError(f"Prometheus refuses: {expression}")
        return [(sample["metric"], float(sample["value"][1]))
                for sample in json.loads(body)["data"]["result"]]

    def rules(self):
        return [rule for group in json.loads(get(self.url + "/api/v1/rules"))["data"]["groups"]
                for rule in group["rules"]]

    def firing(self):
        return {labels["alertname"] for labels, _ in self.query('ALERTS{alertstate="firing"}')}

    def stop(self):
        self.process.kill()
        self.process.wait()
        self.log.close()


def condition_as_data(expression):
    """An alert's condition as an expression that gives data whether or not it holds: comparisons
    give 0 or 1 instead of dropping what fails."""
    return re.sub(r"(?<![=!<>~])(==|!=|>=|<=|>|<)(?!=)(?!~)(?= |\n)", r"\1 bool", expression)


def without_bool_inside_ratios(expression):
    """Denominators that drop zeros, "(x > 0)", stay as they are."""
    return re.sub(r"> bool 0\)", "> 0)", expression)


def all_expressions(prometheus):
    """(where, expression) of dashboard, recording rules and alerts."""
    found = []
    for title, expression in dashboard_module().expressions():
        for name, value in (("$job", ".*"), ("$instance", ".*"), ("$__rate_interval", "5s")):
            expression = expression.replace(name, value)
        found.append((f"panel {title}", expression))
    for rule in prometheus.rules():
        if rule["type"] == "recording":
            found.append((f"rule {rule['name']}", rule["query"]))
        else:
            found.append((f"alert {rule['name']}",
                          without_bool_inside_ratios(condition_as_data(rule["query"]))))
    return found


def lacking(prometheus, expressions):
    """What gives no data, and metrics that are not there."""
    problems = []
    for where, expression in expressions:
        if any(metric in expression for metric in ABSENT_HERE):
            continue
        if not prometheus.query(expression):
            problems.append(f"{where}: no data: {expression}")
        for metric in set(METRIC.findall(expression)):
            if not prometheus.query(f"count({metric})"):
                problems.append(f"{where}: no such metric: {metric}")
    return problems


def check_expressions(prometheus):
    expressions = all_expressions(prometheus)
    latest = []

    def complete():
        latest[:] = lacking(prometheus, expressions)
        return not latest

    try:
        wait_for("data of every expression", complete)
    except AssertionError:
        raise AssertionError("\n".join(latest)) from None
    # The check itself: a name that is off by a letter is seen, wherever it hides.
    assert len(lacking(prometheus, [("x", "sum(strata_kv_tier_used_byte)")])) == 2
    assert lacking(prometheus, [("x", "vector(1) or strata_kv_tier_used_byte")])
    print(f"{len(expressions)} expressions give data", flush=True)


def check_documentation(server):
    """Every metric and alert has its words in docs/MONITORING.md."""
    text = (MONITORING.parents[1] / "docs" / "MONITORING.md").read_text()
    metrics = re.findall(r"^# TYPE (strata_\w+)", get(f"http://{server.http}/metrics").decode(), re.M)
    alerts = re.findall(r"- alert: (\w+)", (MONITORING / "alert-rules.yml").read_text())
    assert len(metrics) > 40 and len(alerts) > 10
    silent = [name for name in metrics if f"`{name}" not in text]
    silent += [name for name in alerts if f"\n### {name}\n" not in text]
    assert not silent, f"not in docs/MONITORING.md: {silent}"


def damage(path):
    """Writes over all records of a cold store, but not over its first megabyte of descriptors."""
    size = path.stat().st_size
    with open(path, "r+b") as file:
        for offset in range(1 << 20, size, 1 << 16):
            os.pwrite(file.fileno(), os.urandom(16), offset + 1024)
        os.fsync(file.fileno())


def expect(prometheus, alerts, meanwhile=lambda: None):
    def fired():
        meanwhile()
        return alerts <= prometheus.firing()

    wait_for(f"{', '.join(sorted(alerts))} to fire", fired)
    print("fired:", ", ".join(sorted(alerts)), flush=True)


def run(arguments, directory):
    disk = Disk(directory, arguments.shim)
    server = Server(arguments.server, arguments.model, directory, disk.environment)
    prometheus = load = more = None
    try:
        check_documentation(server)
        prometheus = Prometheus(directory, server.http)
        load = Load(arguments.client, server, clients=2)
        check_expressions(prometheus)
        unfounded = prometheus.firing() - SPEED_ALERTS
        assert not unfounded, f"these fire although nothing is wrong: {unfounded}"

        disk.set(read_delay_ms=100)
        expect(prometheus, {"StrataDiskSlow", "StrataWaitingForDisk"})
        disk.set(write_errno=28)  # ENOSPC
        expect(prometheus, {"StrataColdTierDegraded", "StrataDiskErrors"})
        disk.set()
        wait_for("the disk to be trusted again",
                 lambda: not prometheus.query("strata_kv_cold_degraded == 1"))
        expect(prometheus, {"StrataColdRecordsDamaged"}, lambda: damage(server.cold_path))
        more = Load(arguments.client, server, clients=6)
        expect(prometheus, {"StrataTierFull"})
        more.stop()
        load.stop()
        server.stop()
        expect(prometheus, {"StrataDown"})
    except BaseException:
        print(server.log_text()[-4000:], file=sys.stderr)
        raise
    finally:
        for part in (load, more, prometheus, server):
            if part is not None:
                part.stop()


def main():
    parser = argparse.ArgumentParser()
    for name in ("server", "client", "model", "shim"):
        parser.add_argument("--" + name, default="")
    arguments = parser.parse_args()
    for tool in ("prometheus", "promtool"):
        if shutil.which(tool) is None:
            skip(f"no {tool}; install Debian's package prometheus")
    with folder() as directory:
        run(arguments, directory)


if __name__ == "__main__":
    main()
