"""Interventions as a file."""

from django.db.models import QuerySet
from django.http import StreamingHttpResponse

from apps.guardrails.models import Intervention
from apps.usage.csv_export import CsvPages, attachment, named_columns

COLUMNS = named_columns(
    *("occurred_at", "stream_id", "tenant_ref", "tenant_label", "deployment_label", "policy_ref", "policy_label"),
    *("policy_number", "rule_ref", "rule_label", "rule_kind", "finding", "direction", "action", "outcome"),
    *("is_shadow", "start", "end", "held_ms", "excerpt", "is_false_positive", "marked_by_label", "marked_at"),
)


def interventions_csv(interventions: "QuerySet[Intervention]") -> StreamingHttpResponse:
    """Returns the answer that has these interventions as a file."""
    return attachment(CsvPages(interventions, COLUMNS), "interventions.csv")
