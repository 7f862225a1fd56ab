"""The page of costs. It stands where the list of a model would: all of it is computed."""

from collections.abc import Callable
from typing import Any

from django.contrib import admin
from django.core.exceptions import PermissionDenied
from django.http import HttpRequest, HttpResponse
from django.template.response import TemplateResponse
from django.urls import URLPattern, path

from apps.ops.costs import views
from apps.ops.models import FleetCost
from apps.tenants.service_admin import ReadOnlyAdmin

_View = Callable[[HttpRequest], HttpResponse]


@admin.register(FleetCost)
class FleetCostAdmin(ReadOnlyAdmin):
    """One page, its numbers, its tables and their files; who may view fleet costs may see all of it."""

    def get_urls(self) -> list[URLPattern]:
        """Has no other addresses: there are no rows."""
        return [
            path("numbers/", self._guarded(views.numbers), name="ops_fleetcost_numbers"),
            path("tables/", self._guarded(views.tables), name="ops_fleetcost_tables"),
            path("export/", self._guarded(views.export), name="ops_fleetcost_export"),
            path("", self.admin_site.admin_view(self.changelist_view), name="ops_fleetcost_changelist"),
        ]

    def changelist_view(self, request: HttpRequest, extra_context: dict[str, Any] | None = None) -> HttpResponse:
        """Shows the page; its script asks for the numbers."""
        if not self.has_view_permission(request):
            raise PermissionDenied
        context = {
            **self.admin_site.each_context(request),
            "opts": self.opts,
            **views.page_context(request),
            **(extra_context or {}),
        }
        response = TemplateResponse(request, "ops/admin/costs.html", context)
        response["Cache-Control"] = "no-store"
        return response

    def _guarded(self, view: _View) -> _View:
        def guarded(request: HttpRequest) -> HttpResponse:
            if not self.has_view_permission(request):
                raise PermissionDenied
            return view(request)

        admin_view: _View = self.admin_site.admin_view(guarded)
        return admin_view
