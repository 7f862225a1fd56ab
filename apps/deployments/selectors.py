"""Reads of deployments and workers."""

from django.db.models import Q, QuerySet

from apps.deployments.models import ModelDeployment
from apps.deployments.prices import to_micros
from apps.tenants.models import Tenant
from headrace_wire.batch import BatchControl
from headrace_wire.breakers import BreakerTerms
from headrace_wire.snapshot import DeploymentConfig, EngineKind


def deployment_get(*, name: str) -> ModelDeployment | None:
    """Returns the deployment of that public name, or None."""
    return ModelDeployment.objects.filter(name=name).first()


def deployment_list(*, tenant: Tenant) -> QuerySet[ModelDeployment]:
    """Returns the active deployments that the tenant sees, by name."""
    return (
        ModelDeployment.objects.filter(is_active=True)
        .filter(Q(is_restricted=False) | Q(visible_tenants=tenant))
        .distinct()
        .order_by("name")
    )


def deployment_names() -> set[str]:
    """Returns the names of all deployments, inactive ones too."""
    return set(ModelDeployment.objects.values_list("name", flat=True))


def deployment_configs() -> list[DeploymentConfig]:
    """Returns the snapshot's section: every deployment, inactive ones too (their workers finish what they have)."""
    visible: dict[object, set[str]] = {}
    through = ModelDeployment.visible_tenants.through
    for deployment_id, tenant_id in through.objects.values_list("modeldeployment_id", "tenant_id"):
        visible.setdefault(deployment_id, set()).add(tenant_id.hex)
    return [
        deployment_config(row, visible_tenant_ids=frozenset(visible.get(row.id, ())) if row.is_restricted else None)
        for row in ModelDeployment.objects.select_related("fallback")
        .defer("last_error", "fallback__last_error")
        .order_by("pk")
    ]


def deployment_config(
    row: ModelDeployment, *, visible_tenant_ids: frozenset[str] | None = frozenset()
) -> DeploymentConfig:
    """Returns a deployment, stored or not, as workers and gateways read it."""
    return DeploymentConfig(
        id=row.id.hex,
        name=row.name,
        model=row.model,
        active=row.is_active,
        engine=EngineKind(row.engine),
        engine_args=row.engine_args,
        max_model_len=row.max_model_len,
        max_num_seqs=row.max_num_seqs,
        dtype=row.dtype,
        quantization=row.quantization or None,
        default_max_tokens=row.default_max_tokens,
        visible_tenant_ids=visible_tenant_ids,
        prompt_price=to_micros(row.prompt_price),
        cached_price=to_micros(row.prompt_price if row.cached_price is None else row.cached_price),
        completion_price=to_micros(row.completion_price),
        queue_limit=row.queue_limit,
        queue_timeout_seconds=row.queue_timeout_seconds,
        ttft_timeout_seconds=row.ttft_timeout_seconds,
        inter_token_timeout_seconds=row.inter_token_timeout_seconds,
        batch_min=row.batch_min,
        batch_max=row.batch_max,
        batch_control=BatchControl(row.batch_control),
        batch_tpot_goal_seconds=row.batch_tpot_goal_seconds,
        batch_ttft_goal_seconds=row.batch_ttft_goal_seconds,
        prefills_drafts=row.prefills_drafts,
        sleep_after_seconds=row.sleep_after_seconds,
        preload_priority=row.preload_priority,
        breaker=_breaker_terms(row) if row.is_breaker_on else None,
        fallback=row.fallback.name if row.fallback is not None else None,
    )


def _breaker_terms(row: ModelDeployment) -> BreakerTerms:
    return BreakerTerms(
        error_share=row.breaker_error_share,
        min_ends=row.breaker_min_ends,
        window_seconds=row.breaker_window_seconds,
        absent_seconds=row.breaker_absent_seconds,
        open_seconds=row.breaker_open_seconds,
        probes=row.breaker_probes,
    )
