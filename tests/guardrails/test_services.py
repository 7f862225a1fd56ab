from typing import Any

import pytest
from django.core.exceptions import ValidationError
from django.db import IntegrityError, transaction
from django.db.models import ProtectedError

from apps.accounts.models import ApiKey
from apps.accounts.services import api_key_create
from apps.deployments.models import ModelDeployment
from apps.deployments.services import deployment_create
from apps.guardrails.enums import Action, PolicyMode, RuleKind
from apps.guardrails.languages import LANGUAGES
from apps.guardrails.models import GuardrailAttachment, GuardrailPolicy, GuardrailRule, PolicyVersion
from apps.guardrails.selectors import guard_attachments, policy_newest_version, version_content
from apps.guardrails.services import (
    policy_attach,
    policy_delete,
    policy_detach,
    policy_publish,
    policy_rollback,
    policy_save,
)
from apps.tenants.enums import AuditAction
from apps.tenants.models import AuditEvent, Membership, Tenant
from headrace_guard.judges.language import LanguageJudge, UnknownLanguageError
from headrace_wire import guard_policy as wire
from headrace_wire.api_key import ApiKeyToken

from .policies import card_rule, saved_policy, word_rule

pytestmark = pytest.mark.django_db


def rules_of(policy: GuardrailPolicy) -> list[GuardrailRule]:
    return list(policy.rules.select_related("judge_deployment"))


def said(policy: GuardrailPolicy) -> wire.GuardPolicy:
    newest = policy_newest_version(policy=policy)
    assert newest is not None
    return version_content(newest)


def actions(policy: GuardrailPolicy) -> list[str]:
    events = AuditEvent.all_tenants.filter(object_type="guardrails.guardrailpolicy", object_id=str(policy.pk))
    return list(events.order_by("pk").values_list("action", flat=True))


def test_a_body_says_what_the_rows_say(tenant: Tenant, deployment: ModelDeployment) -> None:
    rules = [
        word_rule("  Blue Moon", "blue moon", "", whole_words=False, name="Code name", replacement="No."),
        GuardrailRule(kind=RuleKind.REGEX, patterns=["X-[0-9]+"], case_sensitive=True, action=Action.MASK, mask="***"),
        card_rule(phone_regions=["ch"], applies_to="both", severity="high"),
        GuardrailRule(kind=RuleKind.LENGTH, max_characters=5000, applies_to="input", action=Action.FLAG),
        GuardrailRule(kind=RuleKind.TOPIC, examples=["Buy shares of Acme."], threshold=0.7),
        GuardrailRule(kind=RuleKind.ABUSE),
        GuardrailRule(kind=RuleKind.LANGUAGE, languages=["EN", "de", "en"]),
        GuardrailRule(kind=RuleKind.JUDGE, judge_deployment=deployment, question="Is it advice?"),
    ]
    policy = saved_policy(tenant, *rules, stream_first=True, chunk_size=24, failure_mode="open")
    body = said(policy)
    assert (body.key, body.version, body.mode) == (policy.pk.hex, 1, wire.PolicyMode.ENFORCED)
    assert (body.chunk_size, body.stream_first, body.failure_mode) == (24, True, wire.FailureMode.OPEN)
    words, regex, cards, length, topic, abuse, language, judge = body.rules
    assert words == wire.LiteralRule(
        key=rules[0].pk.hex, name="Code name", words=("Blue Moon",), whole_words=False, replacement="No."
    )
    assert regex == wire.RegexRule(
        key=rules[1].pk.hex,
        name="Regular expressions",
        patterns=("X-[0-9]+",),
        case_sensitive=True,
        action=wire.Action.MASK,
        mask="***",
    )
    assert isinstance(cards, wire.PersonalDataRule)
    assert cards.kinds == {wire.PersonalDataKind.CREDIT_CARD: wire.Action.MASK}
    assert (cards.phone_regions, cards.applies_to) == (("CH",), wire.Direction.BOTH)
    assert isinstance(length, wire.LengthRule)
    assert length.max_characters == 5000
    assert isinstance(topic, wire.TopicRule)
    assert (topic.examples, topic.threshold) == (("Buy shares of Acme.",), 0.7)
    assert isinstance(abuse, wire.AbuseRule)
    assert abuse.threshold == wire.AbuseRule(key="").threshold
    assert isinstance(language, wire.LanguageRule)
    assert language.allowed == ("en", "de")
    assert isinstance(judge, wire.JudgeRule)
    assert (judge.deployment, judge.question) == ("tiny", "Is it advice?")


def test_each_change_makes_a_version_and_nothing_else_does(tenant: Tenant, membership: Membership) -> None:
    policy = saved_policy(tenant, word_rule("red"), mode=PolicyMode.DRAFT)
    first = policy_save(policy=policy, rules=rules_of(policy))
    assert first.number == 1
    rules = rules_of(policy)
    rules[0].words = ["red", "blue"]
    second = policy_save(policy=policy, rules=rules, actor=membership.user)
    assert (second.number, second.created_by_label) == (2, membership.user.email)
    assert policy_publish(policy=policy, mode=PolicyMode.SHADOW).number == 3
    assert policy_publish(policy=policy, mode=PolicyMode.ENFORCED).number == 4
    assert [version.mode for version in policy.versions.order_by("number")] == ["draft", "draft", "shadow", "enforced"]
    assert {rule.key for rule in said(policy).rules} == {rules[0].pk.hex}, "a rule keeps its name across versions"
    assert actions(policy) == [
        AuditAction.GUARDRAIL_CREATED,
        AuditAction.GUARDRAIL_CHANGED,
        AuditAction.GUARDRAIL_PUBLISHED,
        AuditAction.GUARDRAIL_PUBLISHED,
    ]
    changed = AuditEvent.objects.for_tenant(tenant).get(action=AuditAction.GUARDRAIL_CHANGED)
    assert changed.details["rule “Words and phrases”: words"] == [["red"], ["red", "blue"]]


def test_a_stale_form_cannot_reuse_a_version_number(tenant: Tenant) -> None:
    policy = saved_policy(tenant, word_rule("red"))
    stale = GuardrailPolicy.objects.for_tenant(tenant).get()
    policy_save(policy=policy, rules=[word_rule("blue")])
    assert policy_save(policy=stale, rules=[word_rule("green")]).number == 3


def test_rolled_back_to_what_it_said(tenant: Tenant, deployment: ModelDeployment) -> None:
    judge = GuardrailRule(kind=RuleKind.JUDGE, judge_deployment=deployment, question="Is it advice?", name="Advice")
    policy = saved_policy(tenant, word_rule("red"), card_rule(), judge, mode=PolicyMode.SHADOW, replacement="No.")
    first = said(policy)
    policy.replacement, policy.mode = "Never.", PolicyMode.ENFORCED
    policy_save(policy=policy, rules=[word_rule("blue")])
    policy_rollback(version=PolicyVersion.objects.get(policy=policy, number=1))
    policy.refresh_from_db()
    again = said(policy)
    assert (again.version, again.mode) == (3, wire.PolicyMode.ENFORCED), "rolling back switches nothing on or off"
    assert (again.replacement, again.rules) == (first.replacement, first.rules)
    assert [str(rule) for rule in rules_of(policy)] == ["Words and phrases", "Personal data", "Advice"]
    assert actions(policy)[-1] == AuditAction.GUARDRAIL_ROLLED_BACK


def test_rolling_back_to_a_judge_that_is_gone_is_refused(tenant: Tenant, deployment: ModelDeployment) -> None:
    judge = GuardrailRule(kind=RuleKind.JUDGE, judge_deployment=deployment, question="Is it advice?")
    policy = saved_policy(tenant, judge)
    with pytest.raises(ProtectedError):
        deployment.delete()
    policy_save(policy=policy, rules=[word_rule("red")])
    deployment.delete()
    with pytest.raises(ValidationError, match="deployment that answers"):
        policy_rollback(version=PolicyVersion.objects.get(policy=policy, number=1))
    assert said(policy).version == 2


def test_a_version_is_never_there_twice(tenant: Tenant) -> None:
    policy = saved_policy(tenant)
    version = PolicyVersion.objects.get()
    with pytest.raises(IntegrityError), transaction.atomic():
        PolicyVersion.objects.create(policy=policy, number=1, mode="draft", body=b"", digest="x")
    with pytest.raises(IntegrityError), transaction.atomic():
        PolicyVersion.objects.create(policy=policy, number=2, mode="draft", body=b"", digest=version.digest)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"kind": RuleKind.LITERALS}, "at least one word"),
        ({"kind": RuleKind.LITERALS, "words": [" ", ""]}, "at least one word"),
        ({"kind": RuleKind.LITERALS, "words": ["x" * 501]}, "longer than 500"),
        ({"kind": RuleKind.LITERALS, "words": [str(number) for number in range(20_001)]}, "20,001 lines"),
        ({"kind": RuleKind.REGEX}, "at least one pattern"),
        ({"kind": RuleKind.REGEX, "patterns": ["a", "(b"]}, "Pattern 2"),
        ({"kind": RuleKind.REGEX, "patterns": [r"(a)\1"]}, "Pattern 1"),
        ({"kind": RuleKind.PERSONAL_DATA}, "at least one kind"),
        ({"kind": RuleKind.PERSONAL_DATA, "personal_data": {"SHOE_SIZE": "mask"}}, "known kinds"),
        ({"kind": RuleKind.PERSONAL_DATA, "personal_data": {"URL": "mask"}, "phone_regions": ["Switzerland"]}, "code"),
        ({"kind": RuleKind.LENGTH}, "most characters"),
        ({"kind": RuleKind.TOPIC}, "example sentence"),
        ({"kind": RuleKind.TOPIC, "examples": ["a"], "threshold": 1.5}, "less than or equal to 1"),
        ({"kind": RuleKind.ABUSE, "threshold": -0.1}, "greater than or equal to 0"),
        ({"kind": RuleKind.ABUSE, "action": Action.MASK}, "can be masked"),
        ({"kind": RuleKind.LANGUAGE}, "at least one language"),
        ({"kind": RuleKind.LANGUAGE, "languages": ["en", "xx"]}, "“xx” is a language that cannot be told"),
        ({"kind": RuleKind.JUDGE, "question": "Is it?"}, "deployment that answers"),
        ({"kind": RuleKind.LITERALS, "words": ["a"], "mask": 'a"b'}, "No quotes"),
        ({"kind": RuleKind.LITERALS, "words": ["a"], "mask": "a\\"}, "No quotes"),
        ({"kind": RuleKind.LITERALS, "words": ["a"], "mask": "a\nb"}, "No quotes"),
        ({"kind": "unheard of"}, "not a valid choice"),
    ],
)
def test_what_makes_no_sense_is_refused(tenant: Tenant, values: dict[str, Any], message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        saved_policy(tenant, GuardrailRule(**values))
    assert not GuardrailPolicy.all_tenants.exists()


def test_an_empty_policy_is_refused(tenant: Tenant) -> None:
    with pytest.raises(ValidationError, match="Add at least one rule"):
        policy_save(policy=GuardrailPolicy(tenant=tenant, name="Empty"), rules=[])


def test_a_rule_forgets_what_its_kind_does_not_have(tenant: Tenant) -> None:
    policy = saved_policy(tenant, word_rule("red", patterns=["(broken"], threshold=0.3, max_characters=3))
    (rule,) = rules_of(policy)
    assert (rule.patterns, rule.threshold, rule.max_characters) == ([], None, None)


def test_a_judge_must_be_there_for_whom_it_judges(
    tenant: Tenant, other_tenant: Tenant, deployment: ModelDeployment
) -> None:
    hidden = ModelDeployment(name="hidden", model="models/tiny", is_restricted=True)
    deployment_create(deployment=hidden, visible_tenants=[other_tenant])
    off = deployment_create(deployment=ModelDeployment(name="off", model="models/tiny", is_active=False))

    def judged_by(judge: ModelDeployment, owner: Tenant | None, name: str) -> GuardrailPolicy:
        rule = GuardrailRule(kind=RuleKind.JUDGE, judge_deployment=judge, question="Is it?")
        return saved_policy(owner, rule, name=name)

    with pytest.raises(ValidationError, match="does not see"):
        judged_by(hidden, tenant, "a")
    with pytest.raises(ValidationError, match="this policy is for all"):
        judged_by(hidden, None, "b")
    with pytest.raises(ValidationError, match="is off"):
        judged_by(off, tenant, "c")
    judged_by(hidden, other_tenant, "d")
    judged_by(deployment, None, "e")


def test_nobody_judges_itself_also_not_by_way_of_others(tenant: Tenant, deployment: ModelDeployment) -> None:
    other = deployment_create(deployment=ModelDeployment(name="other", model="models/tiny"))

    def judge(row: ModelDeployment) -> GuardrailRule:
        return GuardrailRule(kind=RuleKind.JUDGE, judge_deployment=row, question="Is it?")

    itself = GuardrailPolicy(tenant=tenant, name="itself")
    with pytest.raises(ValidationError, match="judge itself"):
        policy_save(policy=itself, rules=[judge(other)], attachments=[GuardrailAttachment(deployment=other)])
    first = GuardrailPolicy(tenant=tenant, name="first", mode=PolicyMode.ENFORCED)
    policy_save(policy=first, rules=[judge(other)], attachments=[GuardrailAttachment(deployment=deployment)])
    second = GuardrailPolicy(tenant=None, name="second")
    with pytest.raises(ValidationError, match="judge itself"):
        policy_save(policy=second, rules=[judge(deployment)], attachments=[GuardrailAttachment(deployment=other)])
    policy_save(policy=second, rules=[judge(deployment)])
    with pytest.raises(ValidationError, match="judge itself"):
        policy_attach(attachment=GuardrailAttachment(policy=second, deployment=other))
    policy_publish(policy=first, mode=PolicyMode.DRAFT)
    policy_attach(attachment=GuardrailAttachment(policy=second, deployment=other))


def test_attached_where_it_is_told_and_published_so(
    tenant: Tenant, other_tenant: Tenant, deployment: ModelDeployment, issued: tuple[ApiKey, ApiKeyToken]
) -> None:
    key, _ = issued
    policy, everybody = saved_policy(tenant), saved_policy(None, name="For all")
    saved_policy(tenant, name="Draft", mode=PolicyMode.DRAFT)
    digests = {row.name: row.digest for row in guard_attachments()}
    assert digests.keys() == {"Cards", "For all"}, "a draft is not published"
    assert guard_attachments() == [
        wire.GuardAttachment(digest=digests["Cards"], name="Cards", tenant_id=tenant.id.hex),
        wire.GuardAttachment(digest=digests["For all"], name="For all"),
    ]
    by_key = policy_attach(attachment=GuardrailAttachment(policy=policy, api_key=key, deployment=deployment))
    policy_save(
        policy=everybody,
        rules=rules_of(everybody),
        attachments=[GuardrailAttachment(tenant=other_tenant), GuardrailAttachment(api_key=key)],
    )
    assert guard_attachments() == [
        wire.GuardAttachment(
            digest=digests["Cards"],
            name="Cards",
            tenant_id=tenant.id.hex,
            deployment_id=deployment.id.hex,
            api_key_id=key.id.hex,
        ),
        wire.GuardAttachment(digest=digests["For all"], name="For all", tenant_id=other_tenant.id.hex),
        wire.GuardAttachment(digest=digests["For all"], name="For all", tenant_id=tenant.id.hex, api_key_id=key.id.hex),
    ]
    assert said(policy).version == 1, "where it applies is no part of what it says"
    policy_detach(attachment=by_key)
    assert [row.name for row in guard_attachments()] == ["For all", "For all"], "the last one gone, it applies nowhere"
    assert actions(policy)[-2:] == [AuditAction.GUARDRAIL_ATTACHED, AuditAction.GUARDRAIL_DETACHED]


def test_a_target_that_is_deleted_does_not_widen_the_policy(tenant: Tenant, deployment: ModelDeployment) -> None:
    policy = saved_policy(tenant)
    policy_attach(attachment=GuardrailAttachment(policy=policy, deployment=deployment))
    deployment.delete()
    assert guard_attachments() == []


def test_nothing_is_attached_to_what_is_anothers(tenant: Tenant, other_tenant: Tenant) -> None:
    foreign, _ = api_key_create(api_key=ApiKey(tenant=other_tenant, name="theirs"))
    hidden = ModelDeployment(name="hidden", model="models/tiny", is_restricted=True)
    deployment_create(deployment=hidden, visible_tenants=[other_tenant])
    policy = saved_policy(tenant)
    for attachment, message in (
        (GuardrailAttachment(api_key=foreign), "another tenant"),
        (GuardrailAttachment(tenant=other_tenant), "has a tenant"),
        (GuardrailAttachment(deployment=hidden), "does not see"),
        (GuardrailAttachment(), "Choose a tenant"),
    ):
        with pytest.raises(ValidationError, match=message):
            policy_save(policy=policy, rules=rules_of(policy), attachments=[attachment])
        policy.refresh_from_db()
        assert not policy.is_restricted
    policy.tenant = other_tenant
    with pytest.raises(ValidationError, match="make another policy"):
        policy_save(policy=policy, rules=rules_of(policy))


def test_attached_once(tenant: Tenant, deployment: ModelDeployment) -> None:
    policy = saved_policy(tenant)
    policy_attach(attachment=GuardrailAttachment(policy=policy, deployment=deployment))
    with pytest.raises(ValidationError, match="already"):
        policy_attach(attachment=GuardrailAttachment(policy=policy, deployment=deployment))
    with pytest.raises(IntegrityError), transaction.atomic():
        GuardrailAttachment.objects.create(policy=policy, deployment=deployment)


def test_only_a_draft_is_deleted(tenant: Tenant) -> None:
    policy = saved_policy(tenant)
    with pytest.raises(ValidationError, match="a draft first"):
        policy_delete(policy=policy)
    policy_publish(policy=policy, mode=PolicyMode.DRAFT)
    policy_delete(policy=policy)
    assert not PolicyVersion.objects.exists()
    assert AuditEvent.objects.for_tenant(tenant).filter(action=AuditAction.GUARDRAIL_DELETED).exists()


@pytest.mark.parametrize(
    "values",
    [{"chunk_size": 0}, {"mode": "off"}, {"replacement": ""}, {"judge_deadline_seconds": 0.0}, {"context_size": 9999}],
)
def test_the_database_refuses_what_no_worker_could_use(tenant: Tenant, values: dict[str, Any]) -> None:
    saved_policy(tenant)
    with pytest.raises(IntegrityError), transaction.atomic():
        GuardrailPolicy.all_tenants.update(**values)


def test_the_languages_are_those_that_the_judge_knows() -> None:
    judge = LanguageJudge()
    text = "Whatever it says, a rule with a language that the judge does not know is an error."
    judge.judge(wire.LanguageRule(key="", allowed=tuple(sorted(LANGUAGES))), text)
    for code in ("xx", "qq", "zz"):
        assert code not in LANGUAGES
        with pytest.raises(UnknownLanguageError):
            judge.judge(wire.LanguageRule(key="", allowed=(code,)), text)
