"""The diagnosis as a page of its own, and as JSON for the panel beside the latency charts."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from django.contrib.admin.sites import AdminSite
from django.core.exceptions import ValidationError
from django.db import DatabaseError
from django.http import HttpRequest, HttpResponse, JsonResponse
from django.template.loader import render_to_string
from django.template.response import TemplateResponse
from django.urls import URLPattern, path
from django.utils import timezone
from django.utils.translation import gettext_lazy as _
from redis.exceptions import RedisError

from apps.deployments.models import ModelDeployment
from apps.ops.diagnosis.causes import Finding
from apps.ops.diagnosis.reading import Diagnosis, diagnosis_of
from apps.ops.latency.answers import asked_of_numbers, asked_of_page, problem
from apps.ops.latency.asked import BEFORE, COMPARED, OTHER, OTHER_LABEL, RANGES, Asked
from apps.ops.models import ServiceObjective

MOST_DEPLOYMENTS = 20
"""Compared at once where no deployment is chosen."""
_FINDINGS, _SUMMARY = "ops/admin/diagnosis_findings.html", "ops/admin/diagnosis_summary.html"
_MAY_NOT = _("You may not see latencies.")


def diagnosis_urls(site: AdminSite) -> list[URLPattern]:
    """Returns the addresses of the page and of its JSON."""

    def page(request: HttpRequest) -> HttpResponse:
        if not _may_see(request):
            return problem(str(_MAY_NOT), status=403)
        return _page(request, site)

    def findings(request: HttpRequest) -> HttpResponse:
        return _findings(request) if _may_see(request) else problem(str(_MAY_NOT), status=403)

    return [
        path("diagnosis/", site.admin_view(page), name="ops_diagnosis"),
        path("diagnosis/findings/", site.admin_view(findings), name="ops_diagnosis_findings"),
    ]


def _may_see(request: HttpRequest) -> bool:
    return request.user.has_perm("ops.view_latencyhour")


def _page(request: HttpRequest, site: AdminSite) -> HttpResponse:
    asked = asked_of_page(request)
    context: dict[str, Any] = {
        **site.each_context(request),
        "opts": ServiceObjective._meta,
        "title": _("Diagnosis"),
        "asked": asked,
        "deployments": ModelDeployment.objects.order_by("name").values_list("name", flat=True),
        "ranges": [(name, label) for name, (_length, label) in RANGES.items()],
        "compared": [
            *((name, label) for name, (_shift, label) in COMPARED.items()),
            *([(OTHER, OTHER_LABEL)] if asked.other is not None else []),  # the charts' page asks which one
        ],
    }
    try:
        context["diagnoses"] = _diagnoses(asked)
    except (RedisError, DatabaseError):
        context["is_away"] = True
    response = TemplateResponse(request, "ops/admin/diagnosis.html", context)
    response["Cache-Control"] = "no-store"
    return response


def _findings(request: HttpRequest) -> HttpResponse:
    try:
        diagnoses = _diagnoses(asked_of_numbers(request))
    except ValidationError as error:
        return problem(" ".join(error.messages), status=400)
    except (RedisError, DatabaseError):
        return problem(str(_("The numbers cannot be read at the moment.")), status=503)
    told = {
        "diagnoses": [_told(diagnosis) for diagnosis in diagnoses],
        "html": render_to_string(_FINDINGS, {"diagnoses": diagnoses}),
        "summary": render_to_string(_SUMMARY, {"diagnoses": diagnoses}),
    }
    response = JsonResponse(told)
    response["Cache-Control"] = "no-store"
    return response


def _diagnoses(asked: Asked) -> Sequence[Diagnosis]:
    """Compares the time that is shown with the one beside it, or with the one before where none is chosen."""
    compared = replace(asked, compare=asked.compare or BEFORE)
    shown, before, _shift = compared.time_ranges(timezone.now())
    assert before is not None  # noqa: S101  # it was asked for
    chosen = asked.scope.deployment
    active = ModelDeployment.objects.filter(is_active=True).order_by("name").values_list("name", flat=True)
    names = [chosen] if chosen is not None else active[:MOST_DEPLOYMENTS]
    return [diagnosis_of(name, shown, before) for name in names]


def _told(diagnosis: Diagnosis) -> dict[str, Any]:
    return {
        "deployment": diagnosis.deployment,
        "requests": diagnosis.requests,
        "requests_before": diagnosis.requests_before,
        "goals": [
            {
                "measure": state.goal.measure,
                "quantile": state.goal.quantile,
                "goal_seconds": state.goal.seconds,
                "seconds": state.seconds,
                "is_met": state.is_met,
            }
            for state in diagnosis.goals
        ],
        "moved": [
            {"measure": one.measure, "p95_before": one.p95_before, "p95": one.p95, "share": one.share}
            for one in diagnosis.moved
        ],
        "findings": [_finding(finding) for finding in diagnosis.findings],
    }


def _finding(finding: Finding) -> dict[str, Any]:
    return {
        "cause": finding.cause,
        "evidence": list(finding.evidence),
        "action": finding.action,
        "share": finding.share,
    }
