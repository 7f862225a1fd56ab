"""Writes of policies. Each save that changes what a policy says makes a version; the newest one acts.

The order is that of all our writes: lock, check, change, audit row, publication of the snapshot after commit.
"""

from collections.abc import Sequence

from django.core.exceptions import ValidationError
from django.db import transaction
from django.utils.translation import gettext_lazy as _

from apps.guardrails.bodies import content_restore, policy_body
from apps.guardrails.enums import PolicyMode
from apps.guardrails.models import GuardrailAttachment, GuardrailPolicy, GuardrailRule, PolicyVersion
from apps.guardrails.selectors import policy_newest_version, version_content
from apps.guardrails.validation import policy_check, rule_check
from apps.guardrails.version_diff import policy_changes
from apps.tenants.changes import row_lock
from apps.tenants.enums import AuditAction
from apps.tenants.services import SYSTEM, Actor, audit_record
from apps.tenants.snapshots import snapshot_publish_on_commit
from headrace_wire.guard_policy import GuardPolicy, encode_policy, policy_digest


@transaction.atomic
def policy_save(
    *,
    policy: GuardrailPolicy,
    rules: Sequence[GuardrailRule],
    attachments: Sequence[GuardrailAttachment] | None = None,
    actor: Actor = None,
    reason: AuditAction = AuditAction.GUARDRAIL_CHANGED,
) -> PolicyVersion:
    """Stores a policy, new or changed, with its rules in this order; returns the version that holds now.

    `attachments` replaces those that there are and restricts the policy to them; None leaves them alone.

    Raises:
        ValidationError: A field, a rule or the whole is not acceptable; nothing is stored.
    """
    before = _lock(policy)
    if attachments:
        policy.is_restricted = True
    policy.full_clean()
    for rule in rules:
        rule.policy = policy
        rule.clean_fields(exclude=["policy"])
        rule.clean()
        rule.validate_constraints(exclude=["policy"])
        rule_check(rule)
    kept = list(policy.attachments.all()) if attachments is None else attachments
    policy_check(policy, rules, kept)
    was_restricted = before.is_restricted if before is not None else False
    policy.save(force_insert=before is None, force_update=before is not None)
    version = _version_ensure(policy, rules, before, actor, reason)
    if attachments is not None:
        _attachments_replace(policy, attachments, actor)
    if policy.is_restricted != was_restricted:
        _audit(policy, AuditAction.GUARDRAIL_CHANGED, {"is_restricted": [was_restricted, policy.is_restricted]}, actor)
    snapshot_publish_on_commit()
    return version


def policy_publish(*, policy: GuardrailPolicy, mode: PolicyMode, actor: Actor = None) -> PolicyVersion:
    """Lets the policy act, act as a shadow, or (as a draft) not at all; nothing else of it changes.

    Raises:
        ValidationError: What it says is not acceptable any more, e.g. a judge that is off.
    """
    policy.mode = mode
    return policy_save(policy=policy, rules=list(policy.rules.select_related("judge_deployment")), actor=actor)


@transaction.atomic
def policy_rollback(*, version: PolicyVersion, actor: Actor = None) -> PolicyVersion:
    """Makes a new version that says what an old one said; the mode stays as it is now.

    Raises:
        ValidationError: What it said is not acceptable any more, e.g. a judge that is gone.
    """
    policy = GuardrailPolicy.all_tenants.select_for_update().get(pk=version.policy_id)
    rules = content_restore(policy, version_content(version))
    return policy_save(policy=policy, rules=rules, actor=actor, reason=AuditAction.GUARDRAIL_ROLLED_BACK)


@transaction.atomic
def policy_attach(*, attachment: GuardrailAttachment, actor: Actor = None) -> GuardrailAttachment:
    """Lets the policy apply there; it applies only where it is attached from then on.

    Raises:
        ValidationError: The target is another tenant's, or it is attached there already.
    """
    policy = attachment.policy
    _lock(policy)
    policy.is_restricted = True
    policy_check(policy, list(policy.rules.select_related("judge_deployment")), [*policy.attachments.all(), attachment])
    _attachment_add(attachment, actor)
    policy.save(update_fields=["is_restricted", "updated_at"])
    snapshot_publish_on_commit()
    return attachment


@transaction.atomic
def policy_detach(*, attachment: GuardrailAttachment, actor: Actor = None) -> None:
    """Ends that the policy applies there. Without the last one it applies nowhere, until it is told otherwise."""
    _lock(attachment.policy)
    _attachment_remove(attachment, actor)
    snapshot_publish_on_commit()


@transaction.atomic
def policy_delete(*, policy: GuardrailPolicy, actor: Actor = None) -> None:
    """Deletes a draft with its versions. What it did stays in the interventions.

    Raises:
        ValidationError: It is active.
    """
    before = _lock(policy)
    if before is not None and before.is_active:
        raise ValidationError(_("Make “%s” a draft first: it is active.") % policy, code="active")
    _audit(policy, AuditAction.GUARDRAIL_DELETED, {"name": [policy.name, None]}, actor)
    policy.delete()
    snapshot_publish_on_commit()


def _lock(policy: GuardrailPolicy) -> GuardrailPolicy | None:
    """Returns the stored form, locked; the number of its newest version is taken from there."""
    before = row_lock(policy)
    if not isinstance(before, GuardrailPolicy):
        return None
    if before.tenant_id != policy.tenant_id:
        raise ValidationError({"tenant": _("The tenant stays as it is; make another policy.")}, code="tenant")
    policy.version = before.version
    return before


def _version_ensure(
    policy: GuardrailPolicy,
    rules: Sequence[GuardrailRule],
    before: GuardrailPolicy | None,
    actor: Actor,
    reason: AuditAction,
) -> PolicyVersion:
    newest = policy_newest_version(policy=policy) if policy.version else None
    said = version_content(newest) if newest is not None else None
    says = policy_body(policy, rules, version=policy.version + 1)
    changes = policy_changes(said, says)
    is_same_mode = before is not None and before.mode == policy.mode
    if newest is not None and not changes and is_same_mode:
        return newest
    GuardrailRule.objects.filter(policy=policy).delete()
    for position, rule in enumerate(rules):
        rule.position = position
    GuardrailRule.objects.bulk_create(rules)
    version = _version_add(policy, says, actor)
    changes.pop("mode", None)
    if before is None:
        _audit(policy, AuditAction.GUARDRAIL_CREATED, {**changes, "mode": [None, policy.mode]}, actor)
        return version
    if changes:
        _audit(policy, reason, {**changes, "version": [policy.version - 1, policy.version]}, actor)
    if not is_same_mode:
        _audit(policy, AuditAction.GUARDRAIL_PUBLISHED, {"mode": [before.mode, policy.mode]}, actor)
    return version


def _version_add(policy: GuardrailPolicy, says: GuardPolicy, actor: Actor) -> PolicyVersion:
    body = encode_policy(says)
    version = PolicyVersion.objects.create(
        policy=policy,
        number=says.version,
        mode=policy.mode,
        body=body,
        digest=policy_digest(body),
        created_by_id=actor.pk if actor is not None else None,
        created_by_label=str(actor)[:254] if actor is not None else SYSTEM,
    )
    policy.version = version.number
    policy.save(update_fields=["version"])
    return version


def _attachments_replace(policy: GuardrailPolicy, wanted: Sequence[GuardrailAttachment], actor: Actor) -> None:
    there = {_target(row): row for row in policy.attachments.select_related("tenant", "deployment", "api_key")}
    targets = {_target(row) for row in wanted}
    for target, row in there.items():
        if target not in targets:
            _attachment_remove(row, actor)
    for row in wanted:
        if _target(row) not in there:
            new = GuardrailAttachment(policy=policy, tenant=row.tenant, deployment=row.deployment, api_key=row.api_key)
            there[_target(row)] = new
            _attachment_add(new, actor)


def _attachment_add(attachment: GuardrailAttachment, actor: Actor) -> None:
    attachment.full_clean()
    attachment.save(force_insert=True)
    _audit(attachment.policy, AuditAction.GUARDRAIL_ATTACHED, {"attached to": [None, str(attachment)]}, actor)


def _attachment_remove(attachment: GuardrailAttachment, actor: Actor) -> None:
    _audit(attachment.policy, AuditAction.GUARDRAIL_DETACHED, {"attached to": [str(attachment), None]}, actor)
    attachment.delete()


def _target(row: GuardrailAttachment) -> tuple[object, ...]:
    return (row.tenant_id, row.deployment_id, row.api_key_id)


def _audit(policy: GuardrailPolicy, action: AuditAction, details: dict[str, list[object]], actor: Actor) -> None:
    audit_record(tenant=policy.tenant, actor=actor, action=action, target=policy, details=details)
