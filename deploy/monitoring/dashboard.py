#!/usr/bin/env python3
"""Writes Grafana's dashboard from the short description below.

  dashboard.py            writes strata-dashboard.json beside this file
  dashboard.py --check    fails when that file is not what this would write

A row is a title and panels; a panel is a title, a sentence, a unit, and targets: (expression, legend).
Expressions use $job, $instance and $__rate_interval; what several places need is a recording rule
(recording-rules.yml). Heights and widths are in Grafana's 24 columns.
"""
import json
import sys
from pathlib import Path

OUTPUT = Path(__file__).with_name("strata-dashboard.json")
SOURCE = {"type": "prometheus", "uid": "${source}"}
COLORS = {"hot": "#e8590c", "warm": "#e0a100", "cold": "#1c7ed6"}
PICK = '{job=~"$job", instance=~"$instance"}'


def pick(extra=""):
    return PICK if not extra else PICK[:-1] + ", " + extra + "}"


def rate(metric, extra=""):
    return f"rate({metric}{pick(extra)}[$__rate_interval])"


def quantile(q, metric, by=""):
    return f"histogram_quantile({q}, sum by (le{by}) ({rate(metric + '_bucket')}))"


def panel(title, what, unit, targets, width=8, height=7, kind="timeseries", **options):
    return {"title": title, "what": what, "unit": unit, "targets": targets, "width": width,
            "height": height, "kind": kind, **options}


TIERS = [
    panel("Used of capacity", "What each tier holds of what it may hold.", "percentunit",
          [(f"max by (tier) (strata:kv_tier_used:ratio{PICK})", "{{tier}}")],
          width=5, kind="bargauge", max=1),
    panel("Saved now", "Memory and disk that the same pages would need more in F16.", "bytes",
          [(f"sum (strata:kv_saved_bytes:sum{PICK})", "saved"),
           (f"sum (strata_kv_tier_used_bytes{PICK})", "held")], width=4, kind="stat"),
    panel("Bytes a tier holds", "Solid: used. Dashed: promised to running requests. Dotted: the most it may hold.", "bytes",
          [(f"sum by (tier) (strata_kv_tier_used_bytes{PICK})", "{{tier}}"),
           (f"sum by (tier) (strata_kv_tier_reserved_bytes{PICK})", "{{tier}} promised"),
           (f"sum by (tier) (strata_kv_tier_capacity_bytes{PICK})", "{{tier}} capacity")], width=8),
    panel("Tokens a tier holds", "Tokens whose pages lie in each tier.", "short",
          [(f"sum by (tier) (strata_kv_tier_tokens{PICK})", "{{tier}}")], width=7, stack=True),
    panel("Bits a value", "Stored bits a K or V value, parameters included.", "short",
          [(f"8 * avg by (tier, tensor) (strata_kv_bytes_per_value{PICK})", "{{tier}} {{tensor}}")],
          width=5, kind="bargauge", max=16),
    panel("Held against F16", "Bytes in all tiers, and what the same pages would take in F16.", "bytes",
          [(f"sum (strata_kv_tier_used_bytes{PICK})", "held"),
           (f"sum (strata_kv_tier_f16_bytes{PICK})", "in F16")], width=9),
    panel("Read by attention", "Tokens of context read a second, by the precision they are read at.", "short",
          [(f"sum by (tier) ({rate('strata_kv_attended_tokens_total')})", "{{tier}}")],
          width=10, stack=True),
    panel("Traffic of links", "Bytes a second that cross each link.", "Bps",
          [(f"sum by (source, target) ({rate('strata_kv_link_bytes_total')})", "{{source}} to {{target}}")]),
    panel("The same in F16", "What F16 pages would move. The gap to the left is the saving.", "Bps",
          [(f"sum by (source, target) ({rate('strata_kv_link_f16_bytes_total')})", "{{source}} to {{target}}")]),
    panel("Traffic saved", "One less the ratio of the two.", "percentunit",
          [(f"avg by (source, target) (strata:kv_link_saved:ratio5m{PICK})", "{{source}} to {{target}}")], max=1),
    panel("Steps waiting for the disk", "Part of the time of all steps.", "percentunit",
          [(f"max by (instance) (strata:kv_fetch_wait:ratio5m{PICK})", "{{instance}}")], width=6),
    panel("Waits", "95th percentile of single waits: for cold pages, for a slot or an encoding.", "s",
          [(quantile(0.95, "strata_kv_fetch_wait_seconds", ", tier"), "{{tier}} pages"),
           (quantile(0.95, "strata_kv_move_wait_seconds"), "slot or encoding")], width=6),
    panel("Found in memory", "Pages that steps wanted and found. Cold: staged by an earlier step.", "percentunit",
          [(f"avg by (tier) (strata:kv_tier_hits:ratio5m{PICK})", "{{tier}}")], width=6, max=1),
    panel("Quantization error", "Of the page sampled last, relative to its F16 original.", "percentunit",
          [(f"avg by (tier, tensor) (strata_kv_quantization_relative_error{PICK})", "{{tier}} {{tensor}}")], width=6),
    panel("Pages moved and dropped", "Demoted to the tier below; dropped because their request let go.", "short",
          [(f"sum by (source, target) ({rate('strata_kv_demoted_pages_total')})", "{{source}} to {{target}}"),
           (f"sum by (source) ({rate('strata_kv_evicted_pages_total')})", "{{source}} dropped")]),
    panel("Faults", "Everything here should stay at 0.", "short",
          [(f"sum by (op) (increase(strata_io_errors_total{PICK}[$__rate_interval]))", "{{op}} errors"),
           (f"sum by (kind) (increase(strata_kv_integrity_failures_total{PICK}[$__rate_interval]))", "damaged: {{kind}}"),
           (f"sum (increase(strata_recomputed_tokens_total{PICK}[$__rate_interval]))", "tokens computed again"),
           (f"sum (increase(strata_kv_refused_blocks_total{PICK}[$__rate_interval]))", "blocks not finite"),
           (f"max (strata_kv_cold_degraded{PICK})", "disk degraded"),
           (f"max (strata_engine_stalled{PICK})", "engine stalled")]),
    panel("Disk", "95th percentile of a transfer, from handing it over to its answer.", "s",
          [(f"max by (op) (strata:io_latency_seconds:p95_5m{PICK})", "{{op}}")]),
]
LATENCY = [
    panel("First token", "From arrival to the first token.", "s",
          [(quantile(q, "strata_time_to_first_token_seconds"), name)
           for q, name in ((0.5, "median"), (0.95, "95 %"), (0.99, "99 %"))]),
    panel("Between tokens", "Of one request.", "s",
          [(quantile(q, "strata_inter_token_latency_seconds"), name)
           for q, name in ((0.5, "median"), (0.95, "95 %"), (0.99, "99 %"))]),
    panel("Parts of a request", "95th percentiles.", "s",
          [(quantile(0.95, f"strata_request_{part}_seconds"), part)
           for part in ("queue", "prefill", "decode", "duration")]),
    panel("Steps", "Time of one step: with a piece of a prompt in it, and without.", "s",
          [(quantile(0.5, "strata_step_seconds", ", phase"), "{{phase}} median"),
           (quantile(0.95, "strata_step_seconds", ", phase"), "{{phase}} 95 %")], width=12),
    panel("Encoding a block", "On the mover's thread.", "s",
          [(quantile(0.5, "strata_kv_quantize_seconds"), "median"),
           (quantile(0.95, "strata_kv_quantize_seconds"), "95 %")], width=12),
]
THROUGHPUT = [
    panel("Tokens a second", "Prompt tokens computed, tokens generated.", "short",
          [(f"sum ({rate('strata_prompt_tokens_total')})", "prompt"),
           (f"sum (strata:generation_tokens:rate5m{PICK})", "generated")]),
    panel("Tokens of a step", "Average; more is better use of the weights.", "short",
          [(f"sum ({rate('strata_step_batch_tokens_sum')}) / sum ({rate('strata_step_batch_tokens_count')})", "tokens")]),
    panel("Processor and memory", "Cores in use, and resident bytes.", "short",
          [(f"sum by (instance) ({rate('process_cpu_seconds_total')})", "{{instance}} cores"),
           (f"sum by (instance) (process_resident_memory_bytes{PICK}) / 2^30", "{{instance}} GiB")]),
    panel("Disk transfers", "Handed over a second.", "short",
          [(f"sum by (op) ({rate('strata_io_submitted_total')})", "{{op}}")], width=12),
    panel("Calls", "gRPC calls that ended a second, by code.", "short",
          [(f"sum by (grpc_code) ({rate('grpc_server_handled_total')}) > 0", "{{grpc_code}}")], width=12),
]
QUEUE = [
    panel("Requests", "Being computed, and waiting.", "short",
          [(f"sum (strata_requests_running{PICK})", "running"),
           (f"sum (strata_requests_waiting{PICK})", "waiting"),
           (f"sum (strata_requests_running_limit{PICK})", "may run")]),
    panel("Ended", "Requests a second, by how they ended.", "short",
          [(f"sum by (finish_reason) ({rate('strata_requests_total')})", "{{finish_reason}}")], stack=True),
    panel("Refused", "Requests a second, by why.", "short",
          [(f"sum by (reason) ({rate('strata_requests_rejected_total')})", "{{reason}}")], stack=True),
    panel("Turned away at the door", "Calls a second without a fitting token, and connections above the limit.", "short",
          [(f"sum by (reason) ({rate('strata_auth_refused_total')})", "{{reason}}"),
           (f"sum ({rate('strata_connections_refused_total')})", "connections")], stack=True, width=24),
]
ROWS = [("Memory tiers", TIERS), ("Latency", LATENCY), ("Throughput", THROUGHPUT), ("Queue", QUEUE)]


def overrides():
    """Each tier has its color in every panel; promised and capacity are lines of another kind."""
    rules = []
    for tier, color in COLORS.items():
        rules.append({"matcher": {"id": "byRegexp", "options": f"^{tier}.*"},
                      "properties": [{"id": "color", "value": {"mode": "fixed", "fixedColor": color}}]})
    for regexp, dash in ((".* promised$", [10, 6]), (".* capacity$", [2, 6])):
        rules.append({"matcher": {"id": "byRegexp", "options": regexp},
                      "properties": [{"id": "custom.lineStyle", "value": {"fill": "dash", "dash": dash}},
                                     {"id": "custom.fillOpacity", "value": 0}]})
    return rules


def panel_json(description, number, x, y):
    kind = description["kind"]
    defaults = {"unit": description["unit"], "min": 0}
    if "max" in description:
        defaults["max"] = description["max"]
    options = {}
    if kind == "timeseries":
        defaults["custom"] = {"fillOpacity": 15, "showPoints": "never",
                              "stacking": {"mode": "normal" if description.get("stack") else "none"}}
        options = {"legend": {"displayMode": "list", "placement": "bottom"},
                   "tooltip": {"mode": "multi"}}
    elif kind == "bargauge":
        options = {"orientation": "horizontal", "displayMode": "basic",
                   "reduceOptions": {"calcs": ["lastNotNull"]}}
    elif kind == "stat":
        options = {"reduceOptions": {"calcs": ["lastNotNull"]}, "graphMode": "area"}
    return {
        "id": number, "type": kind, "title": description["title"],
        "description": description["what"], "datasource": SOURCE,
        "gridPos": {"x": x, "y": y, "w": description["width"], "h": description["height"]},
        "fieldConfig": {"defaults": defaults, "overrides": overrides()},
        "options": options,
        "targets": [{"refId": chr(ord("A") + i), "datasource": SOURCE, "expr": expression,
                     "legendFormat": legend}
                    for i, (expression, legend) in enumerate(description["targets"])],
    }


def panels_json():
    panels, number, y = [], 0, 0
    for title, row in ROWS:
        number += 1
        panels.append({"id": number, "type": "row", "title": title, "collapsed": False, "panels": [],
                       "gridPos": {"x": 0, "y": y, "w": 24, "h": 1}})
        y += 1
        x = 0
        for description in row:
            if x + description["width"] > 24:
                x, y = 0, y + description["height"]
            number += 1
            panels.append(panel_json(description, number, x, y))
            x += description["width"]
        y += row[-1]["height"]
    return panels


def variable(name, label):
    query = f"label_values(strata_build_info, {name})"
    return {"name": name, "label": label, "type": "query", "datasource": SOURCE, "query": query,
            "definition": query, "includeAll": True, "multi": True, "allValue": ".*", "refresh": 2,
            "current": {"text": "All", "value": "$__all"}}


def dashboard():
    return {
        "uid": "strata", "title": "Strata", "schemaVersion": 38, "version": 1, "editable": True,
        "tags": ["strata"], "time": {"from": "now-1h", "to": "now"}, "refresh": "15s",
        "description": "Memory tiers first: which holds what, what that saves, and whether anything is wrong.",
        "templating": {"list": [
            {"name": "source", "label": "Prometheus", "type": "datasource", "query": "prometheus"},
            variable("job", "Job"), variable("instance", "Instance")]},
        "panels": panels_json(),
    }


def expressions():
    """(panel, expression) of every target."""
    return [(description["title"], expression)
            for _, row in ROWS for description in row for expression, _ in description["targets"]]


def main():
    text = json.dumps(dashboard(), indent=1) + "\n"
    if sys.argv[1:] == ["--check"]:
        if not OUTPUT.exists() or OUTPUT.read_text() != text:
            sys.exit(f"{OUTPUT} is not current: run {Path(__file__).name}")
        return
    OUTPUT.write_text(text)


if __name__ == "__main__":
    main()
