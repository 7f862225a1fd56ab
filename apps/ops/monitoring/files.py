"""The files below `deploy/` that are generated, and their texts."""

from collections.abc import Mapping
from pathlib import PurePosixPath

from apps.ops.monitoring.grafana import dashboard_text
from apps.ops.monitoring.prometheus import rules_text


def monitoring_files() -> Mapping[PurePosixPath, str]:
    """Returns path, from the repository's root, and text of each."""
    return {
        PurePosixPath("deploy/prometheus/headrace-rules.yml"): rules_text(),
        PurePosixPath("deploy/grafana/headrace.json"): dashboard_text(),
    }
