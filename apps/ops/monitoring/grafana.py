"""Grafana's dashboard: the latency page's charts, for whoever has Grafana already."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

WIDTH, HEIGHT = 8, 8
COLUMNS = 24 // WIDTH
SCHEMA_VERSION = 39
_SOURCE = {"type": "prometheus", "uid": "${datasource}"}
_OF_DEPLOYMENT = '{deployment=~"$deployment"}'


@dataclass(frozen=True, slots=True)
class Panel:
    """A chart: its lines as legend and expression, and the unit by Grafana's names."""

    title: str
    unit: str
    lines: Sequence[tuple[str, str]]
    goals: Sequence[float] = ()


def _percentiles(name: str, selector: str = "", legend: str = "") -> list[tuple[str, str]]:
    return [(f"{legend}p{percent}", f"headrace:{name}_seconds:p{percent}_5m{selector}") for percent in (50, 90, 95, 99)]


PANELS = (
    Panel("Time to first token", "s", _percentiles("ttft", _OF_DEPLOYMENT, "{{deployment}} "), (0.2, 0.5, 2.0)),
    Panel(
        "Phases, p95",
        "s",
        [(name, f"headrace:{name}_seconds:p95_5m") for name in ("queue", "prefill", "guard")],
    ),
    Panel("Time per token", "s", _percentiles("tpot")),
    Panel("Whole request", "s", _percentiles("total", _OF_DEPLOYMENT, "{{deployment}} ")),
    Panel("Requests per second", "reqps", [("{{deployment}}", f"headrace:requests:rate_5m{_OF_DEPLOYMENT}")]),
    Panel("Tokens per second", "short", [("{{deployment}}", f"headrace:tokens:rate_5m{_OF_DEPLOYMENT}")]),
    Panel("Streams that fail", "percentunit", [("{{deployment}}", f"headrace:errors:share_5m{_OF_DEPLOYMENT}")]),
    Panel(
        "Streams",
        "short",
        [
            ("read", "sum(headrace_streams_open)"),
            ("waiting", "sum(headrace_streams_waiting)"),
            ("on workers", "sum(headrace_worker_streams)"),
            ("held", "sum(headrace_worker_streams_held)"),
            ("spilled", "sum(headrace_worker_streams_spilled)"),
        ],
    ),
    Panel(
        "How streams ended",
        "reqps",
        [("{{outcome}}", f"sum by (outcome) (rate(headrace_streams_ended_total{_OF_DEPLOYMENT}[5m]))")],
    ),
    Panel(
        "Requests that circuit breakers turn away",
        "reqps",
        [
            (
                "{{deployment}} to {{fallback}}",
                f"sum by (deployment, fallback) (rate(headrace_requests_diverted_total{_OF_DEPLOYMENT}[5m]))",
            ),
            (
                "{{deployment}} refused",
                f"sum by (deployment) (rate(headrace_requests_broken_off_total{_OF_DEPLOYMENT}[5m]))",
            ),
        ],
    ),
    Panel(
        "KV cache and memory",
        "percentunit",
        [
            ("KV {{instance}}", "max by (instance) (vllm:kv_cache_usage_perc)"),
            ("memory {{instance}}", "max by (instance) (headrace_worker_memory_usage)"),
        ],
    ),
    Panel("Prompt tokens from the prefix cache", "percentunit", [("share", "headrace:prefix_hits:share_5m")]),
    Panel(
        "Engine",
        "short",
        [
            ("running {{instance}}", "sum by (instance) (vllm:num_requests_running)"),
            ("waiting {{instance}}", "sum by (instance) (vllm:num_requests_waiting)"),
        ],
    ),
    Panel(
        "Preemptions per second",
        "short",
        [("{{instance}}", "sum by (instance) (rate(headrace_worker_preemptions_total[5m]))")],
    ),
    Panel(
        "Slow clients",
        "short",
        [
            ("stalls/s", "sum(rate(headrace_credit_stalls_total[5m]))"),
            ("closed/s", "sum(rate(headrace_clients_stalled_total[5m]))"),
            ("bytes they do not take", "sum(headrace_transport_buffered_bytes)"),
        ],
    ),
    Panel(
        "Guardrails",
        "short",
        [
            (
                "{{rule_kind}} {{outcome}}",
                "sum by (rule_kind, outcome) (rate(headrace_worker_guard_interventions_total[5m]))",
            ),
            ("judges that failed", "sum(rate(headrace_worker_guard_judge_failures_total[5m]))"),
        ],
    ),
    Panel("Cold starts", "s", [("{{instance}}", "max by (instance) (headrace_worker_cold_start_seconds)")]),
    Panel(
        "What waits for the database",
        "short",
        [("usage", "max(headrace_usage_backlog)"), ("interventions", "max(headrace_interventions_backlog)")],
    ),
    Panel(
        "Alerts",
        "short",
        [
            ("firing", "max(headrace_alerts_firing)"),
            ("{{rule}} {{event}}", "sum by (rule, event) (increase(headrace_alerts_changed_total[5m]))"),
        ],
    ),
    Panel(
        "Notices",
        "short",
        [
            ("sent by {{channel}}", "sum by (channel) (increase(headrace_notices_sent_total[5m]))"),
            ("failed by {{channel}}", "sum by (channel) (increase(headrace_notices_failed_total[5m]))"),
        ],
    ),
)


def dashboard_text() -> str:
    """Returns the dashboard as Grafana imports it."""
    return json.dumps(_dashboard(), indent=2, ensure_ascii=False) + "\n"


def _dashboard() -> dict[str, Any]:
    return {
        "title": "Headrace",
        "uid": "headrace",
        "description": "Made by `manage.py monitoring_files`; change apps/ops/monitoring instead.",
        "tags": ["headrace"],
        "schemaVersion": SCHEMA_VERSION,
        "editable": True,
        "refresh": "30s",
        "time": {"from": "now-1h", "to": "now"},
        "timezone": "browser",
        "templating": {"list": [_source_variable(), _deployment_variable()]},
        "annotations": {"list": []},
        "panels": [_panel(number, panel) for number, panel in enumerate(PANELS)],
    }


def _source_variable() -> dict[str, Any]:
    return {"name": "datasource", "label": "Prometheus", "type": "datasource", "query": "prometheus"}


def _deployment_variable() -> dict[str, Any]:
    return {
        "name": "deployment",
        "label": "Deployment",
        "type": "query",
        "datasource": _SOURCE,
        "query": "label_values(headrace_streams_ended_total, deployment)",
        "includeAll": True,
        "multi": True,
        "allValue": ".*",
        "current": {"text": "All", "value": "$__all"},
        "refresh": 2,
    }


def _panel(number: int, panel: Panel) -> dict[str, Any]:
    goals = [{"color": "transparent", "value": None}, *({"color": "orange", "value": goal} for goal in panel.goals)]
    custom = {"showPoints": "never", "thresholdsStyle": {"mode": "dashed" if panel.goals else "off"}}
    return {
        "id": number + 1,
        "type": "timeseries",
        "title": panel.title,
        "datasource": _SOURCE,
        "gridPos": {"x": number % COLUMNS * WIDTH, "y": number // COLUMNS * HEIGHT, "w": WIDTH, "h": HEIGHT},
        "targets": [
            {"refId": chr(ord("A") + place), "datasource": _SOURCE, "expr": expression, "legendFormat": legend}
            for place, (legend, expression) in enumerate(panel.lines)
        ],
        "fieldConfig": {
            "defaults": {
                "unit": panel.unit,
                "min": 0,
                "custom": custom,
                "thresholds": {"mode": "absolute", "steps": goals},
            },
            "overrides": [],
        },
        "options": {"legend": {"displayMode": "list", "placement": "bottom"}, "tooltip": {"mode": "multi"}},
    }
