"""Opening and closing a deployment's circuit breaker by hand."""

from datetime import UTC, datetime

from django.core.exceptions import ValidationError
from django.db import transaction
from django.utils.translation import gettext as _

from apps.deployments.enums import BreakerReason, BreakerState
from apps.deployments.models import BreakerStanding, ModelDeployment
from apps.tenants.enums import AuditAction
from apps.tenants.live_state import call_function
from apps.tenants.services import Actor, audit_record
from headrace_wire.breakers import breaker_move_call, breaker_parse


@transaction.atomic
def breaker_move(*, deployment: ModelDeployment, is_open: bool, actor: Actor) -> BreakerStanding:
    """Opens the breaker until somebody closes it, or closes it whoever has opened it; gateways learn it in a second.

    One that is closed by hand opens again by its own rules, with counts that begin anew.

    Raises:
        ValidationError: It is switched off, or stands like that already; nothing was changed.
        redis.exceptions.RedisError: Redis does not answer; nothing was changed.
    """
    if not deployment.is_breaker_on:
        raise ValidationError(
            _("Its circuit breaker is switched off: gateways do not look at it. Switch it on first."), code="off"
        )
    BreakerStanding.objects.get_or_create(deployment=deployment)
    row = BreakerStanding.objects.select_for_update().get(deployment=deployment)
    before = row.state, row.reason
    wanted = (BreakerState.OPEN, BreakerReason.HAND) if is_open else (BreakerState.CLOSED, "")
    if before == wanted:
        raise ValidationError(_("It stands like that already."), code="unchanged")
    # Last before the row: should this commit fail, the mirror's next look writes what gateways do already.
    reading = breaker_parse(call_function(*breaker_move_call(deployment.pk.hex, is_open=is_open)))
    row.state, row.reason = wanted
    row.since = datetime.fromtimestamp(reading.since_ms / 1000, UTC) if reading.since_ms else None
    row.save()
    audit_record(
        tenant=None,
        actor=actor,
        action=AuditAction.DEPLOYMENT_BREAKER_MOVED,
        target=deployment,
        details={"state": [str(before[0]), str(row.state)], "reason": str(BreakerReason.HAND)},
    )
    return row
