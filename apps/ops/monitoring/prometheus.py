"""Prometheus' rules: recorded series that the dashboard draws, and the built-in alert rules."""

import json
from dataclasses import dataclass

from apps.ops.alerts.built_in import BUILT_IN_RULES, BuiltInRule
from apps.ops.alerts.enums import Severity

GENERATED = (
    "# Made by `manage.py monitoring_files`; change apps/ops/monitoring and apps/ops/alerts/built_in.py instead.\n"
)
_SEVERITIES = {Severity.INFO: "info", Severity.WARNING: "warning", Severity.CRITICAL: "critical"}


@dataclass(frozen=True, slots=True)
class Recording:
    """A series that Prometheus computes once for all who draw it."""

    name: str
    expression: str


def _quantiles(name: str, metric: str, by: str) -> tuple[Recording, ...]:
    labels = ", ".join(part for part in (by, "le") if part)
    return tuple(
        Recording(
            f"headrace:{name}_seconds:p{percent}_5m",
            f"histogram_quantile({percent / 100:g}, sum by ({labels}) (rate({metric}_bucket[5m])))",
        )
        for percent in (50, 90, 95, 99)
    )


RECORDINGS = (
    *_quantiles("ttft", "headrace_time_to_first_token_seconds", "deployment"),
    *_quantiles("total", "headrace_request_duration_seconds", "deployment"),
    *_quantiles("queue", "headrace_worker_queue_time_seconds", ""),
    *_quantiles("prefill", "headrace_worker_prefill_time_seconds", ""),
    *_quantiles("guard", "headrace_worker_guard_hold_back_seconds", ""),
    *_quantiles("tpot", "headrace_worker_tpot_seconds", ""),
    Recording("headrace:requests:rate_5m", "sum by (deployment) (rate(headrace_streams_ended_total[5m]))"),
    Recording("headrace:tokens:rate_5m", "sum by (deployment) (rate(headrace_tokens_sent_total[5m]))"),
    Recording(
        "headrace:errors:share_5m",
        'sum by (deployment) (rate(headrace_streams_ended_total{outcome="failed"}[5m]))'
        " / sum by (deployment) (rate(headrace_streams_ended_total[5m]))",
    ),
    Recording(
        "headrace:prefix_hits:share_5m",
        "sum(rate(headrace_worker_cached_tokens_total[5m])) / sum(rate(headrace_worker_prompt_tokens_total[5m]))",
    ),
)


def alert_name(rule: BuiltInRule) -> str:
    """Returns a rule's name as Prometheus' alerts are called: `ttft-p95` is `HeadraceTtftP95`."""
    return "Headrace" + "".join(part.capitalize() for part in rule.key.split("-"))


def rules_text() -> str:
    """Returns the file of rules."""
    lines = [GENERATED + "groups:", "  - name: headrace-recordings", "    interval: 30s", "    rules:"]
    for recording in RECORDINGS:
        lines += [f"      - record: {recording.name}", f"        expr: {_quoted(recording.expression)}"]
    lines += ["  - name: headrace-alerts", "    interval: 15s", "    rules:"]
    for rule in BUILT_IN_RULES:
        lines += [
            f"      - alert: {alert_name(rule)}",
            f"        expr: {_quoted(rule.prometheus)}",
            f"        for: {rule.for_seconds}s",
            "        labels:",
            f"          severity: {_SEVERITIES[rule.severity]}",
            f"          rule: {rule.key}",
            "        annotations:",
            f"          summary: {_quoted(rule.name)}",
            f"          description: {_quoted(rule.advice)}",
        ]
    return "\n".join(lines) + "\n"


def _quoted(text: str) -> str:
    """Returns a text in YAML's double quotes, which read JSON's."""
    return json.dumps(text, ensure_ascii=False)
