"""The latency page of operators. It stands where the list of the hourly rows would: nobody reads packed histograms."""

from typing import Any
from urllib.parse import urlencode

from django.contrib import admin
from django.core.exceptions import PermissionDenied, ValidationError
from django.http import HttpRequest, HttpResponse
from django.template.response import TemplateResponse
from django.urls import URLPattern, path, reverse
from django.utils.translation import gettext_lazy as _

from apps.ops.latency.answers import Links, asked_of_numbers, asked_of_page, numbers_answer, page_context, problem
from apps.ops.latency.offered import operator_choices
from apps.ops.latency.scopes import LatencyScope
from apps.ops.models import LatencyHour
from apps.tenants.service_admin import ReadOnlyAdmin

LIVE_SECONDS = 120
"""How long ago a point may be for its streams to be looked for among the live ones first."""


@admin.register(LatencyHour)
class LatencyAdmin(ReadOnlyAdmin):
    """One page and its numbers; who may view hourly latencies may see both."""

    def get_urls(self) -> list[URLPattern]:
        """Adds the numbers' address."""
        numbers = path("numbers/", self.admin_site.admin_view(self.numbers_view), name="ops_latencyhour_numbers")
        return [numbers, *super().get_urls()]

    def changelist_view(self, request: HttpRequest, extra_context: dict[str, Any] | None = None) -> HttpResponse:
        """Shows the page; its script asks for the numbers."""
        if not self.has_view_permission(request):
            raise PermissionDenied
        asked = asked_of_page(request)
        context = {
            **self.admin_site.each_context(request),
            "title": _("Latency"),
            **page_context(asked, operator_choices(asked.scope), has_fleet=True),
            **(extra_context or {}),
        }
        return TemplateResponse(request, "ops/admin/latency.html", context)

    def numbers_view(self, request: HttpRequest) -> HttpResponse:
        """Answers with what the page draws."""
        if not self.has_view_permission(request):
            return problem(str(_("You may not see latencies.")), status=403)
        try:
            asked = asked_of_numbers(request)
        except ValidationError as error:
            return problem(" ".join(error.messages), status=400)
        choices = (lambda: operator_choices(asked.scope)) if "choices" in request.GET else None
        return numbers_answer(asked, has_fleet=True, links=_links(request, asked.scope), choices=choices)


def _links(request: HttpRequest, scope: LatencyScope) -> Links:
    """Returns where the streams behind a point are listed, for those who may see them.

    The braces are the script's to fill. Lists know no more of a scope than they have columns for.
    """
    links: Links = []
    if request.user.has_perm("ops.view_livestream"):
        live = {
            "deployment": scope.deployment,
            "tenant": scope.tenant_id and scope.tenant_id.hex,
            "worker": scope.worker,
        }
        url = _with_query(reverse("admin:ops_livestream_changelist"), live)
        links.append({"label": str(_("Live streams")), "url": url, "within": LIVE_SECONDS})
    if request.user.has_perm("usage.view_usagerecord"):
        ended = {
            "deployment_label": scope.deployment,
            "tenant__id__exact": scope.tenant_id,
            "api_key_ref": scope.key_id,
            "worker": scope.worker,
        }
        url = _with_query(
            reverse("admin:usage_usagerecord_changelist"), ended, "ended_at__gte={from}&admitted_at__lt={to}"
        )
        links.append({"label": str(_("Ended streams")), "url": url, "within": None})
    return links


def _with_query(url: str, chosen: dict[str, Any], *more: str) -> str:
    query = urlencode({name: value for name, value in chosen.items() if value is not None})
    return "?".join(filter(None, [url, "&".join(filter(None, [query, *more]))]))
