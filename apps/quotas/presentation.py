"""What quotas hold and what a request would get, in words."""

from collections.abc import Mapping
from typing import Any

from django.utils.translation import gettext as _

from apps.deployments.prices import from_micros, money_text
from apps.quotas.enums import Priority
from apps.quotas.live import Appraisal, QuotaState, lanes_waiting, request_appraise
from apps.quotas.models import Quota
from headrace_wire.admission import RefusalKind
from headrace_wire.snapshot import ConfigSnapshot


def uses_told(state: QuotaState) -> list[str]:
    """Returns a text for each limit: how much of it is used."""
    quota, told = state.quota, []
    if quota.rpm_limit is not None:
        told.append(_("%d requests left this minute") % state.requests_left)
    if quota.tpm_limit is not None:
        told.append(_("%s tokens left this minute") % f"{int(state.tokens_left):,}")
    if quota.max_parallel_requests is not None:
        values = {"running": state.running, "limit": quota.max_parallel_requests, "waiting": state.waiting_for_slot}
        told.append(_("%(running)d of %(limit)d running, %(waiting)d waiting for one to end") % values)
    if quota.token_budget is not None:
        told.append(_("%(used)s of %(limit)s tokens used") % _numbers(state.tokens_used, quota.token_budget))
    if quota.max_budget_micros is not None:
        told.append(_("%(used)s of %(limit)s spent") % _money(state.micros_used, quota.max_budget_micros))
    elif quota.soft_budget_micros is not None:
        told.append(_("%(used)s of %(limit)s spent") % _money(state.micros_used, quota.soft_budget_micros))
    return told


def appraise(config: ConfigSnapshot, values: Mapping[str, Any]) -> dict[str, object]:
    """Returns what the simulation form's request would get, for its page."""
    deployment = next((d for d in config.deployments if d.id == values["deployment"].pk.hex), None)
    key = values.get("api_key")
    api_key = next((one for one in config.api_keys if key is not None and one.id == key.pk.hex), None)
    found = deployment and request_appraise(
        config=config,
        tenant_id=values["tenant"].pk.hex,
        api_key=api_key,
        deployment=deployment,
        prompt_tokens=values["prompt_tokens"],
        max_tokens=values["max_tokens"],
    )
    if not found:
        return {"verdict": _("The gateways do not know of this tenant or deployment yet; try again in a second.")}
    labels = {quota.pk.hex: str(quota) for quota in Quota.all_tenants.select_related("tenant", "deployment", "api_key")}
    quotas = [(labels.get(state.quota.id, state.quota.id), uses_told(state)) for state in found.states]
    return {"is_refused": found.refusal is not None, "verdict": _verdict(found, labels), "quotas": quotas}


def waiting_told(config: ConfigSnapshot) -> list[dict[str, object]]:
    """Returns a row for each tenant that waits at a deployment."""
    tenants = {tenant.id: tenant.name or tenant.slug for tenant in config.tenants}
    return [
        {
            "deployment": lane.deployment,
            "tenant": tenants.get(lane.tenant_id, _("unknown")) if lane.tenant_id else _("served before, goes first"),
            "priority": Priority(lane.priority).label if lane.tenant_id else "",
            "waiting": lane.waiting,
        }
        for lane in lanes_waiting(deployments=[deployment.name for deployment in config.deployments])
    ]


def _verdict(found: Appraisal, labels: Mapping[str, str]) -> str:
    refusal = found.refusal
    if refusal is None:
        if found.waiting == 0:
            return _("Admitted; nobody waits, it would be served as soon as a worker has room.")
        return _("Admitted; number %(position)d of %(waiting)d that wait.") % {
            "position": found.position,
            "waiting": found.waiting + 1,
        }
    whose = labels.get(refusal.quota_id, refusal.quota_id)
    if refusal.kind is RefusalKind.TOO_LARGE:
        return _("Refused by “%s”: it may take more tokens than its limit gives in a whole minute.") % whose
    words = {
        RefusalKind.RPM: _("requests per minute"),
        RefusalKind.TPM: _("tokens per minute"),
        RefusalKind.TOKENS: _("the period's tokens"),
        RefusalKind.MONEY: _("the period's budget"),
    }
    values = {"whose": whose, "what": words[refusal.kind], "seconds": round(refusal.retry_after_seconds)}
    return _("Refused by “%(whose)s” (%(what)s); it would fit in %(seconds)d s.") % values


def _numbers(used: int, limit: int) -> dict[str, str]:
    return {"used": f"{used:,}", "limit": f"{limit:,}"}


def _money(used: int, limit: int) -> dict[str, str]:
    return {"used": money_text(from_micros(used)), "limit": money_text(from_micros(limit))}
