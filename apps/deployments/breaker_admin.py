"""What a deployment's admin page has of its circuit breaker."""

from django.contrib import admin, messages
from django.core.exceptions import ValidationError
from django.http import Http404, HttpRequest, HttpResponse, HttpResponseRedirect
from django.template.response import TemplateResponse
from django.urls import reverse
from django.utils.formats import date_format
from django.utils.timezone import localtime
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy
from redis.exceptions import RedisError
from unfold.decorators import action, display

from apps.deployments.breaker_services import breaker_move
from apps.deployments.enums import BreakerState
from apps.deployments.models import BreakerStanding, ModelDeployment
from apps.tenants.service_admin import actor_of

_COLOURS = {
    BreakerState.CLOSED.label: "success",
    BreakerState.OPEN.label: "danger",
    BreakerState.HALF_OPEN.label: "warning",
}


class ShowsBreaker:
    """Beside `ServiceAdmin`; the list brings the standings along (`breaker_standing`)."""

    @display(description=gettext_lazy("Breaker"), ordering="breaker_standing__state", label=_COLOURS)  # type: ignore[untyped-decorator]
    def breaker(self, deployment: ModelDeployment) -> str:
        """Returns a coloured word; nothing where it is switched off."""
        standing = _standing(deployment)
        return standing.get_state_display() if deployment.is_breaker_on and standing is not None else ""

    @admin.display(description=gettext_lazy("Now"))
    def breaker_told(self, deployment: ModelDeployment) -> str:
        """Returns where it stands, since when, and what that means for requests."""
        standing = _standing(deployment)
        if not deployment.is_breaker_on or standing is None:
            return "-"
        if standing.since is None or standing.state == BreakerState.CLOSED:
            return str(standing.get_state_display())
        where = (
            _("requests go to %(fallback)s") % {"fallback": deployment.fallback}
            if deployment.fallback is not None
            else _("requests are refused")
        )
        if standing.state == BreakerState.HALF_OPEN:
            where = _("some requests try it, of the others: %(where)s") % {"where": where}
        return _("%(state)s since %(since)s (%(reason)s): %(where)s.") % {
            "state": standing.get_state_display(),
            "since": date_format(localtime(standing.since), "DATETIME_FORMAT"),
            "reason": standing.get_reason_display(),
            "where": where,
        }

    @action(description=gettext_lazy("Open its circuit breaker"), permissions=["change"])  # type: ignore[untyped-decorator]
    def open_breaker(self, request: HttpRequest, object_id: str) -> HttpResponse:
        """Asks, then has requests go elsewhere until it is closed by hand."""
        told = gettext_lazy(
            "New requests go to its fallback, or are refused where it has none, until somebody closes the breaker."
            " Streams that run or wait stay where they are."
        )
        return self._move_breaker(request, object_id, is_open=True, told=told)

    @action(description=gettext_lazy("Close its circuit breaker"), permissions=["change"])  # type: ignore[untyped-decorator]
    def close_breaker(self, request: HttpRequest, object_id: str) -> HttpResponse:
        """Asks, then has requests admitted again."""
        told = gettext_lazy(
            "New requests are admitted again, all at once. It opens again by its own rules, and what gateways have"
            " counted until now counts no more."
        )
        return self._move_breaker(request, object_id, is_open=False, told=told)

    def _move_breaker(self, request: HttpRequest, object_id: str, *, is_open: bool, told: object) -> HttpResponse:
        deployment: ModelDeployment | None = self.get_object(request, object_id)  # type: ignore[attr-defined]
        if deployment is None:
            raise Http404
        if request.method != "POST":
            context = {
                **self.admin_site.each_context(request),  # type: ignore[attr-defined]
                "opts": ModelDeployment._meta,
                "original": deployment,
                "title": _("Open the circuit breaker") if is_open else _("Close the circuit breaker"),
                "told": told,
            }
            return TemplateResponse(request, "deployments/admin/ask.html", context)
        try:
            standing = breaker_move(deployment=deployment, is_open=is_open, actor=actor_of(request))
            messages.success(request, _("The circuit breaker: %s.") % standing.get_state_display())
        except ValidationError as error:
            messages.warning(request, " ".join(error.messages))
        except RedisError:
            messages.error(request, _("The stream store does not answer; try again."))
        return HttpResponseRedirect(reverse("admin:deployments_modeldeployment_change", args=(object_id,)))


def _standing(deployment: ModelDeployment) -> BreakerStanding | None:
    return getattr(deployment, "breaker_standing", None)
