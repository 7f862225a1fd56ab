"""Choices of this app's models. What gateways see as well comes from the wire."""

from django.db import models

from headrace_wire import guard_policy, snapshot
from headrace_wire.messages import Inexact


class DetachedPolicy(models.TextChoices):
    """What happens to a stream that nobody reads any more."""

    FINISH = snapshot.DetachedPolicy.FINISH, "Finish the answer"
    CONTINUE = snapshot.DetachedPolicy.CONTINUE, "Continue for some tokens, then suspend"
    ABORT = snapshot.DetachedPolicy.ABORT, "Abort after a grace time"


class InexactPolicy(models.TextChoices):
    """What happens to an answer that another engine can go on with, though not exactly as it would have gone on."""

    CONTINUE = "continue", "Continue, not bit-equal"
    FAIL = "fail", "Fail explicitly"


INEXACT_FIELDS = {
    Inexact.PENALTIES: "inexact_penalties",
    Inexact.PRECISION: "inexact_precision",
    Inexact.SAMPLING: "inexact_sampling",
}
"""The field of `Tenant` that holds the policy for each reason."""


class ExcerptRetention(models.TextChoices):
    """What the record of a guardrail's intervention keeps of the text."""

    NONE = guard_policy.ExcerptRetention.NONE, "Nothing"
    HASH = guard_policy.ExcerptRetention.HASH, "A hash, to recognise the same text"
    REDACTED = guard_policy.ExcerptRetention.REDACTED, "First and last character, and the length"
    FULL = guard_policy.ExcerptRetention.FULL, "The text that was found"


class MemberRole(models.TextChoices):
    """What a member may do in a tenant."""

    OWNER = "owner", "Owner"
    ADMIN = "admin", "Admin"
    MEMBER = "member", "Member"


class AuditAction(models.TextChoices):
    """What was done. Values are stable: others search for them."""

    TENANT_CREATED = "tenant.created", "Tenant created"
    TENANT_CHANGED = "tenant.changed", "Tenant changed"
    TENANT_DELETED = "tenant.deleted", "Tenant deleted"
    TENANT_WEBHOOK_SECRET_RENEWED = "tenant.webhook_secret_renewed", "Tenant's webhook secret renewed"
    MEMBER_ADDED = "member.added", "Member added"
    MEMBER_CHANGED = "member.changed", "Member's role changed"
    MEMBER_REMOVED = "member.removed", "Member removed"
    USER_CREATED = "user.created", "User created"
    USER_CHANGED = "user.changed", "User changed"
    API_KEY_CREATED = "api_key.created", "API key created"
    API_KEY_CHANGED = "api_key.changed", "API key changed"
    API_KEY_ROTATED = "api_key.rotated", "API key rotated"
    API_KEY_REVOKED = "api_key.revoked", "API key revoked"
    DEPLOYMENT_CREATED = "deployment.created", "Deployment created"
    DEPLOYMENT_CHANGED = "deployment.changed", "Deployment changed"
    DEPLOYMENT_DELETED = "deployment.deleted", "Deployment deleted"
    DEPLOYMENT_BREAKER_MOVED = "deployment.breaker_moved", "Deployment's circuit breaker opened, or closed"
    AUTOSCALE_CREATED = "autoscale.created", "Autoscale policy created"
    AUTOSCALE_CHANGED = "autoscale.changed", "Autoscale policy changed"
    AUTOSCALE_DELETED = "autoscale.deleted", "Autoscale policy deleted"
    QUOTA_CREATED = "quota.created", "Quota created"
    QUOTA_CHANGED = "quota.changed", "Quota changed"
    QUOTA_DELETED = "quota.deleted", "Quota deleted"
    PLAN_CREATED = "plan.created", "Plan created"
    PLAN_CHANGED = "plan.changed", "Plan changed"
    PLAN_DELETED = "plan.deleted", "Plan deleted"
    GUARDRAIL_CREATED = "guardrail.created", "Guardrail policy created"
    GUARDRAIL_CHANGED = "guardrail.changed", "Guardrail policy changed"
    GUARDRAIL_PUBLISHED = "guardrail.published", "Guardrail policy's mode changed"
    GUARDRAIL_ROLLED_BACK = "guardrail.rolled_back", "Guardrail policy rolled back"
    GUARDRAIL_ATTACHED = "guardrail.attached", "Guardrail policy attached"
    GUARDRAIL_DETACHED = "guardrail.detached", "Guardrail policy detached"
    GUARDRAIL_DELETED = "guardrail.deleted", "Guardrail policy deleted"
    RESPONSE_CACHE_CREATED = "response_cache.created", "Response cache policy created"
    RESPONSE_CACHE_CHANGED = "response_cache.changed", "Response cache policy changed"
    RESPONSE_CACHE_DELETED = "response_cache.deleted", "Response cache policy deleted"
    RESPONSE_CACHE_PURGED = "response_cache.purged", "Kept answers forgotten"
    PROMPT_CACHE_CREATED = "prompt_cache.created", "Prompt cache created"
    PROMPT_CACHE_CHANGED = "prompt_cache.changed", "Prompt cache changed"
    PROMPT_CACHE_PURGED = "prompt_cache.purged", "Prompt cache purged"
    PROMPT_CACHE_DELETED = "prompt_cache.deleted", "Prompt cache deleted"
    ADAPTER_CREATED = "adapter.created", "LoRA adapter created"
    ADAPTER_CHANGED = "adapter.changed", "LoRA adapter changed"
    ADAPTER_CHECKED = "adapter.checked", "LoRA adapter checked"
    ADAPTER_DELETED = "adapter.deleted", "LoRA adapter deleted"
    RESTART_BEGUN = "restart.begun", "Restart of workers begun"
    RESTART_STOPPED = "restart.stopped", "Restart of workers stopped"
    STREAM_KILLED = "stream.killed", "Stream ended by an operator"
    STREAM_MIGRATED = "stream.migrated", "Stream moved to another worker"
    WORKER_DRAINED = "worker.drained", "Worker drained"
    WORKER_RESUMED = "worker.resumed", "Worker resumed"
    GATEWAY_DRAINED = "gateway.drained", "Gateway drained"
    INTERVENTION_MARKED = "intervention.marked", "Intervention marked"
    OBJECTIVE_CREATED = "objective.created", "Objective created"
    OBJECTIVE_CHANGED = "objective.changed", "Objective changed"
    OBJECTIVE_DELETED = "objective.deleted", "Objective deleted"
    ALERT_RULE_CREATED = "alert_rule.created", "Alert rule created"
    ALERT_RULE_CHANGED = "alert_rule.changed", "Alert rule changed"
    ALERT_RULE_DELETED = "alert_rule.deleted", "Alert rule deleted"
    ALERT_RECEIVER_CREATED = "alert_receiver.created", "Receiver of alerts created"
    ALERT_RECEIVER_CHANGED = "alert_receiver.changed", "Receiver of alerts changed"
    ALERT_RECEIVER_DELETED = "alert_receiver.deleted", "Receiver of alerts deleted"
    ALERT_RECEIVER_SECRET_RENEWED = "alert_receiver.secret_renewed", "Secret of a receiver of alerts renewed"
    SILENCE_CREATED = "silence.created", "Silence created"
    SILENCE_CHANGED = "silence.changed", "Silence changed"
    SILENCE_DELETED = "silence.deleted", "Silence deleted"
