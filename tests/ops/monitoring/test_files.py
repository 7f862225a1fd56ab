"""The files for Prometheus and Grafana: as generated, loaded by Prometheus itself, and of metrics that exist."""

import json
import re
import subprocess
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from prometheus_client import REGISTRY, CollectorRegistry
from prometheus_client.metrics_core import Metric

from apps.guardrails import metrics as guardrails_metrics
from apps.ops.alerts import metrics as alert_metrics
from apps.ops.alerts.built_in import BUILT_IN_RULES
from apps.ops.monitoring.files import monitoring_files
from apps.ops.monitoring.grafana import PANELS
from apps.ops.monitoring.prometheus import RECORDINGS, alert_name
from apps.streams import metrics as streams_metrics
from apps.streams import response_metrics
from apps.usage import metrics as usage_metrics
from headrace_worker.metrics import WorkerMetrics
from tests.support.environment import REPOSITORY_ROOT

RULES = REPOSITORY_ROOT / "deploy/prometheus/headrace-rules.yml"
SCRAPES = REPOSITORY_ROOT / "deploy/prometheus/prometheus.yml"
DASHBOARD = REPOSITORY_ROOT / "deploy/grafana/headrace.json"
PROCESS_METRICS = (streams_metrics, response_metrics, usage_metrics, guardrails_metrics, alert_metrics)
"""Their import registers what gateways and Celery count."""
_NAME = re.compile(r"\b(?:headrace_\w+|vllm:\w+)")
_SUFFIXES = re.compile(r"_(?:bucket|count|sum|total)\Z")


def names_of(registry: CollectorRegistry) -> Iterator[str]:
    families: list[Metric] = list(registry.collect())
    for family in families:
        yield family.name


def known_names() -> set[str]:
    assert PROCESS_METRICS
    worker = CollectorRegistry()
    WorkerMetrics(worker)
    return {*names_of(REGISTRY), *names_of(worker), *vllm_names()}


def vllm_names() -> set[str]:
    """What vLLM calls its metrics, read and not imported: an engine is loaded only where one runs."""
    spec = find_spec("vllm")
    assert spec is not None, "make setup installs vLLM"
    assert spec.origin is not None
    sources = (Path(spec.origin).parent / "v1" / "metrics").glob("*.py")
    return {name for path in sources for name in re.findall(r'"(vllm:\w+)"', path.read_text("utf-8"))}


def expressions() -> Iterator[str]:
    yield from (recording.expression for recording in RECORDINGS)
    yield from (rule.prometheus for rule in BUILT_IN_RULES)
    yield from (expression for panel in PANELS for _, expression in panel.lines)


def test_what_is_checked_in_is_what_is_generated() -> None:
    for place, text in monitoring_files().items():
        assert (REPOSITORY_ROOT / place).read_text("utf-8") == text, f"{place}: run manage.py monitoring_files"


def test_every_metric_that_is_named_exists() -> None:
    known = known_names()
    named = {name for expression in expressions() for name in _NAME.findall(expression)}
    assert len(named) > 20
    unknown = {name for name in named if name not in known and _SUFFIXES.sub("", name) not in known}
    assert unknown == set()


def test_every_recorded_series_that_is_drawn_is_recorded() -> None:
    recorded = {recording.name for recording in RECORDINGS}
    drawn = {name for expression in expressions() for name in re.findall(r"headrace:[\w:]+", expression)}
    assert drawn
    assert drawn <= recorded


def test_labels_that_are_named_exist() -> None:
    collectors = REGISTRY._collector_to_names
    labels = {
        name: set(getattr(collector, "_labelnames", ())) for collector, names in collectors.items() for name in names
    }
    for expression in expressions():
        for metric, inner in re.findall(r"(headrace_\w+)\{([^}]*)\}", expression):
            known = labels.get(metric) or labels.get(_SUFFIXES.sub("", metric))
            if known is not None:
                asked = {part.split("=")[0].rstrip("!~") for part in inner.split(",")}
                assert asked <= known | {"le"}, expression


def test_prometheus_loads_the_rules_and_the_scrapes(promtool: Path) -> None:
    for what, path in (("rules", RULES), ("config", SCRAPES)):
        done = subprocess.run([promtool, "check", what, path], capture_output=True, text=True, check=False, timeout=60)
        assert done.returncode == 0, done.stdout + done.stderr
    assert (
        f"{len(RECORDINGS) + len(BUILT_IN_RULES)} rules found"
        in subprocess.run(
            [promtool, "check", "rules", RULES], capture_output=True, text=True, check=True, timeout=60
        ).stdout
    )


TTFT = 'headrace_time_to_first_token_seconds_bucket{deployment="m",le="%s"}'
TTFT_COUNT = 'headrace_time_to_first_token_seconds_count{deployment="m"}'
ENDED = 'headrace_streams_ended_total{deployment="m",outcome="%s"}'
LATE = {TTFT % "0.5": "0+80x%d", TTFT % "2.0": "0+100x%d", TTFT % "+Inf": "0+100x%d", TTFT_COUNT: "0+100x%d"}
VERY_LATE = {TTFT % "0.5": "0+0x%d", TTFT % "+Inf": "0+100x%d", TTFT_COUNT: "0+100x%d"}
BROKEN: dict[str, tuple[dict[str, str], int, dict[str, str]]] = {
    "ttft-p95": (LATE, 20, {"deployment": "m"}),
    "errors": ({ENDED % "failed": "0+10x%d", ENDED % "finished": "0+90x%d"}, 20, {"deployment": "m"}),
    "queue-depth": ({"headrace_streams_waiting": "101x%d"}, 20, {}),
    "no-worker": ({'up{job="headrace-worker",instance="w"}': "0x%d"}, 20, {}),
    "kv-cache": ({'vllm:kv_cache_usage_perc{instance="w"}': "0.95x%d"}, 20, {"instance": "w"}),
    "memory": ({'headrace_worker_memory_usage{instance="w"}': "0.95x%d"}, 20, {"instance": "w"}),
    "worker-broken": (
        {'headrace_worker_engine_starts_total{instance="w",outcome="failed"}': "0+1x%d"},
        20,
        {"instance": "w"},
    ),
    "worker-quarantined": ({'headrace_worker_quarantined{instance="w"}': "1x%d"}, 20, {"instance": "w"}),
    "worker-lost": (
        {'up{job="headrace-worker",instance="w"}': "0x%d"},
        20,
        {"job": "headrace-worker", "instance": "w"},
    ),
    "engine-ended": (
        {'headrace_worker_engine_ends_total{instance="w",reason="ejected"}': "0+1x%d"},
        20,
        {"instance": "w"},
    ),
    "breaker-open": ({'headrace_breaker_state{deployment="m"}': "0.5x%d"}, 20, {"deployment": "m"}),
    "burn-fast": (VERY_LATE, 20, {"deployment": "m"}),
    "burn-slow": ({**LATE, TTFT % "0.5": "0+50x%d"}, 20, {"deployment": "m"}),
    "burn-budget": ({**LATE, TTFT % "0.5": "0+90x%d"}, 20, {"deployment": "m"}),
}
"""For each rule: series minute by minute, after how many minutes it is looked at, and the alert's own labels."""
FINE = {
    TTFT % "0.5": "0+100x%d",
    TTFT % "2.0": "0+100x%d",
    TTFT % "+Inf": "0+100x%d",
    TTFT_COUNT: "0+100x%d",
    ENDED % "failed": "0+1x%d",
    ENDED % "finished": "0+99x%d",
    "headrace_streams_waiting": "5x%d",
    'up{job="headrace-worker",instance="w"}': "1x%d",
    'vllm:kv_cache_usage_perc{instance="w"}': "0.5x%d",
    'headrace_worker_memory_usage{instance="w"}': "0.5x%d",
    'headrace_worker_engine_starts_total{instance="w",outcome="ready"}': "0+1x%d",
    'headrace_worker_quarantined{instance="w"}': "0x%d",
    'headrace_worker_engine_ends_total{instance="w",reason="ejected"}': "3x%d",
    'headrace_breaker_state{deployment="m"}': "0x%d",
}


def rule_case(key: str) -> Iterator[dict[str, Any]]:
    """Promtool's form of: it fires on what is broken, and is silent where all is well."""
    rule = next(rule for rule in BUILT_IN_RULES if rule.key == key)
    broken, minutes, labels = BROKEN[key]
    told = {
        "exp_labels": {"severity": rule.severity.value, "rule": key, **labels},
        "exp_annotations": {"summary": rule.name, "description": rule.advice},
    }
    for series, alerts in (({**FINE, **broken}, [told]), (FINE, [])):
        yield {
            "interval": "1m",
            "input_series": [{"series": name, "values": values % minutes} for name, values in series.items()],
            "alert_rule_test": [{"eval_time": f"{minutes}m", "alertname": alert_name(rule), "exp_alerts": alerts}],
        }


def unit_test(promtool: Path, folder: Path, cases: list[dict[str, Any]]) -> None:
    file = folder / "cases.yml"
    file.write_text(json.dumps({"rule_files": [str(RULES)], "evaluation_interval": "1m", "tests": cases}), "utf-8")
    done = subprocess.run([promtool, "test", "rules", file], capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 0, done.stdout + done.stderr


def test_every_rule_fires_in_prometheus_and_is_silent_where_all_is_well(promtool: Path, tmp_path: Path) -> None:
    assert set(BROKEN) == {rule.key for rule in BUILT_IN_RULES}
    cases = [case for key in BROKEN for case in rule_case(key)]
    unit_test(promtool, tmp_path, cases)


def test_a_burst_that_is_over_burns_no_more(promtool: Path, tmp_path: Path) -> None:
    """The long time still burns, the short one does not: that is what it is for."""
    series = {TTFT % "0.5": "0x60 0+100x10", TTFT % "+Inf": "0+100x70", TTFT_COUNT: "0+100x70"}
    rule = next(rule for rule in BUILT_IN_RULES if rule.key == "burn-fast")
    labels = {"severity": "critical", "rule": rule.key, "deployment": "m"}
    fires = [{"exp_labels": labels, "exp_annotations": {"summary": rule.name, "description": rule.advice}}]
    case = {
        "interval": "1m",
        "input_series": [{"series": name, "values": values} for name, values in series.items()],
        "alert_rule_test": [
            {"eval_time": at, "alertname": alert_name(rule), "exp_alerts": alerts}
            for at, alerts in (("58m", fires), ("70m", []))
        ],
    }
    unit_test(promtool, tmp_path, [case])


def test_grafana_finds_what_it_needs_in_the_dashboard() -> None:
    """Fields that its dashboard schema requires, and panels that do not lie on each other."""
    dashboard = json.loads(DASHBOARD.read_text("utf-8"))
    assert dashboard["schemaVersion"] >= 36
    assert {"title", "uid", "panels", "templating", "time", "refresh"} <= dashboard.keys()
    variables = {variable["name"] for variable in dashboard["templating"]["list"]}
    places, ids = set(), set()
    for panel in dashboard["panels"]:
        assert {"id", "type", "title", "gridPos", "targets", "datasource", "fieldConfig"} <= panel.keys()
        assert len({target["refId"] for target in panel["targets"]}) == len(panel["targets"]) > 0
        for target in panel["targets"]:
            assert set(re.findall(r"\$(\w+)", target["expr"])) <= variables
        place = panel["gridPos"]
        assert place["x"] + place["w"] <= 24
        places.add((place["x"], place["y"]))
        ids.add(panel["id"])
    assert len(places) == len(ids) == len(dashboard["panels"]) == len(PANELS)
