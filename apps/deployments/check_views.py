"""The form's “Check” button: an asynchronous page, so that a dry run of half a minute keeps nobody else waiting."""

from dataclasses import dataclass
from typing import Any

from asgiref.sync import sync_to_async
from django.http import HttpRequest, HttpResponse, HttpResponseNotAllowed, JsonResponse
from django.urls import URLPattern, path
from django.utils.translation import gettext as _

from apps.deployments.models import ModelDeployment
from apps.deployments.option_check import CheckUnavailableError, deployment_check
from apps.deployments.option_notes import notes_of
from apps.deployments.selectors import deployment_config
from headrace_wire.snapshot import DeploymentConfig


@dataclass(frozen=True, slots=True)
class _Form:
    """A form as it was sent, valid or not."""

    config: DeploymentConfig | None
    problems: list[str]
    notes: list[str]


def check_urls(model_admin: Any) -> list[URLPattern]:  # noqa: ANN401
    """Returns the address that judges a form which is not saved; `?deployment=<id>` says whose it is."""

    async def view(request: HttpRequest) -> HttpResponse:
        if request.method != "POST":
            return HttpResponseNotAllowed(["POST"])
        if not await sync_to_async(_may_change)(model_admin, request):
            return JsonResponse({"problem": _("You may not change deployments.")}, status=403)
        return JsonResponse(await _check(await sync_to_async(_form)(model_admin, request)))

    return [path("check/", view, name="deployments_modeldeployment_check")]


async def _check(form: _Form) -> dict[str, Any]:
    told: dict[str, Any] = {"verdict": "refused", "problems": form.problems, "notes": form.notes}
    if form.config is None:
        return told
    try:
        report = await deployment_check(form.config)
    except CheckUnavailableError as error:
        return {**told, "verdict": "unknown", "problems": [str(error)]}
    return {
        "verdict": "accepted" if report.is_accepted else "refused",
        "judge": report.engine,
        "problems": [text for text in (report.problem, report.advice) if text],
        "notes": [*form.notes, *report.notes],
        "settings": report.settings,
    }


def _may_change(model_admin: Any, request: HttpRequest) -> bool:  # noqa: ANN401
    may = model_admin.has_change_permission(request) or model_admin.has_add_permission(request)
    return bool(model_admin.admin_site.has_permission(request) and may)


def _form(model_admin: Any, request: HttpRequest) -> _Form:  # noqa: ANN401
    stored = model_admin.get_object(request, request.GET.get("deployment", ""))
    form = model_admin.get_form(request, stored, change=stored is not None)(request.POST, instance=stored)
    row: ModelDeployment = form.instance
    if not form.is_valid():
        labels = {name: field.label for name, field in form.fields.items()}
        problems = [
            f"{labels.get(name) or _('Form')}: {error}" for name, errors in form.errors.items() for error in errors
        ]
        return _Form(None, problems, [])
    return _Form(deployment_config(row), [], notes_of(row))
