"""What a deployment's admin page has of its circuit breaker."""

from django.contrib import admin
from django.utils.formats import date_format
from django.utils.timezone import localtime
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy
from unfold.decorators import display

from apps.deployments.enums import BreakerState
from apps.deployments.models import BreakerStanding, ModelDeployment

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


def _standing(deployment: ModelDeployment) -> BreakerStanding | None:
    return getattr(deployment, "breaker_standing", None)
