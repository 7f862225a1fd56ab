from typing import Any

import pytest
from django.core.files.uploadedfile import SimpleUploadedFile
from django.test import Client
from django.urls import reverse
from pytest_django import DjangoAssertNumQueries

from apps.deployments.models import ModelDeployment
from apps.guardrails.enums import PolicyMode
from apps.guardrails.intervention_records import interventions_record
from apps.guardrails.models import GuardrailPolicy, GuardrailRule
from apps.guardrails.services import policy_save
from apps.tenants.enums import AuditAction
from apps.tenants.models import AuditEvent, Tenant

from .found import found
from .policies import saved_policy, word_rule
from .policy_form import errors_of, policy_form, rule_fields

ADD = reverse("admin:guardrails_guardrailpolicy_add")
POLICIES = reverse("admin:guardrails_guardrailpolicy_changelist")
INTERVENTIONS = reverse("admin:guardrails_intervention_changelist")


def test_a_policy_is_made_changed_and_rolled_back(admin_client: Client, tenant: Tenant) -> None:
    made = admin_client.post(ADD, policy_form(rule_fields(), tenant=str(tenant.pk)))
    assert made.status_code == 302, errors_of(made)
    policy = GuardrailPolicy.objects.for_tenant(tenant).get()
    rule = policy.rules.get()
    assert (policy.mode, policy.version, rule.personal_data) == ("enforced", 1, {"CREDIT_CARD": "mask"})
    change = reverse("admin:guardrails_guardrailpolicy_change", args=[policy.pk])
    page = admin_client.get(change).content.decode()
    assert "16 tokens at 40 ms are 0.6 s before the first token" in page
    ids: dict[str, Any] = {"id": str(rule.pk), "policy": str(policy.pk)}
    words = rule_fields(1, kind="literals", words="# cities\nBern\n\nbern\nZürich", position="0")
    answer = admin_client.post(change, policy_form(rule_fields(**ids), words, initial=1))
    assert answer.status_code == 302, errors_of(answer)
    assert [row.words for row in policy.rules.all()] == [[], ["Bern", "Zürich"]]
    unchanged = admin_client.post(
        change, policy_form(rule_fields(**ids), rule_fields(1, **_ids(policy, 1), **_words()), initial=2)
    )
    assert unchanged.status_code == 302, errors_of(unchanged)
    policy.refresh_from_db()
    assert policy.version == 2, "a save that changes nothing makes no version"
    versions = reverse("admin:guardrails_guardrailpolicy_versions", args=[policy.pk])
    assert "rule “Words and phrases”: nothing → Words and phrases, block" in admin_client.get(versions).content.decode()
    admin_client.post(versions, {"number": "1"})
    policy.refresh_from_db()
    assert (policy.version, policy.rules.count()) == (3, 1)
    trail = AuditEvent.objects.for_tenant(tenant).filter(object_id=str(policy.pk)).order_by("pk")
    assert [event.action for event in trail] == [
        AuditAction.GUARDRAIL_CREATED,
        AuditAction.GUARDRAIL_CHANGED,
        AuditAction.GUARDRAIL_ROLLED_BACK,
    ]


def _ids(policy: GuardrailPolicy, position: int) -> dict[str, Any]:
    return {"id": str(policy.rules.get(position=position).pk), "policy": str(policy.pk), "position": str(position)}


def _words() -> dict[str, Any]:
    return {"kind": "literals", "words": "Bern\r\nZürich", "personal_data_CREDIT_CARD": ""}


def test_rules_are_moved_and_removed(admin_client: Client, tenant: Tenant) -> None:
    policy = saved_policy(tenant, word_rule("red"), word_rule("blue"), word_rule("green"))
    rules = [
        rule_fields(
            place,
            kind="literals",
            words=rule.words[0],
            id=str(rule.pk),
            policy=str(policy.pk),
            position=str(2 - place),
            personal_data_CREDIT_CARD="",
            **({"DELETE": "on"} if rule.words == ["blue"] else {}),
        )
        for place, rule in enumerate(policy.rules.all())
    ]
    change = reverse("admin:guardrails_guardrailpolicy_change", args=[policy.pk])
    answer = admin_client.post(change, policy_form(*rules, initial=3, name="Cards"))
    assert answer.status_code == 302, errors_of(answer)
    assert [rule.words for rule in policy.rules.all()] == [["green"], ["red"]]


@pytest.mark.parametrize(
    ("rule", "policy", "message"),
    [
        ({"personal_data_CREDIT_CARD": ""}, {}, "Add at least one rule"),
        ({"kind": "regex", "patterns": "a+\n(b"}, {}, "Pattern 2"),
        ({"kind": "regex", "patterns": r"(?=a)b"}, {}, "Pattern 1"),
        ({"kind": "literals", "words": "# nothing but a comment"}, {}, "at least one word"),
        ({"mask": "a'b"}, {}, "No quotes"),
        ({"kind": "abuse", "threshold": "1.5"}, {}, "less than or equal to 1"),
        ({"kind": "topic"}, {}, "at least one example"),
        ({}, {"stream_first": "on"}, "it is unsafe"),
        ({}, {"replacement": ""}, "required"),
        ({}, {"chunk_size": "0"}, "greater than or equal to 1"),
    ],
)
def test_errors_stand_at_the_field_and_say_what_to_do(
    admin_client: Client, tenant: Tenant, rule: dict[str, Any], policy: dict[str, Any], message: str
) -> None:
    answer = admin_client.post(ADD, policy_form(rule_fields(**rule), **policy))
    assert answer.status_code == 200
    assert message in errors_of(answer)
    assert message in answer.content.decode()
    assert not GuardrailPolicy.all_tenants.exists()


def test_the_unsafe_way_is_confirmed_once(admin_client: Client, db: None) -> None:
    sure: dict[str, Any] = {"stream_first": "on", "confirm_unsafe": "on"}
    assert admin_client.post(ADD, policy_form(rule_fields(), **sure)).status_code == 302
    policy = GuardrailPolicy.all_tenants.get()
    assert policy.stream_first
    change = reverse("admin:guardrails_guardrailpolicy_change", args=[policy.pk])
    rule = rule_fields(**_ids(policy, 0))
    again = admin_client.post(change, policy_form(rule, initial=1, stream_first="on", replacement="No."))
    assert again.status_code == 302, errors_of(again)


def test_words_come_from_a_file(admin_client: Client, tenant: Tenant) -> None:
    listed = SimpleUploadedFile("words.txt", "\ufeff# a list\r\nrouge\r\nBLEU\r\nbleu\r\n".encode())
    form = policy_form(rule_fields(kind="literals", words="vert", words_file=listed))
    answer = admin_client.post(ADD, form)
    assert answer.status_code == 302, errors_of(answer)
    assert GuardrailRule.objects.get().words == ["vert", "rouge", "BLEU"]
    picture = SimpleUploadedFile("words.png", b"\x89PNG\xff")
    refused = admin_client.post(ADD, policy_form(rule_fields(kind="literals", words_file=picture), name="Other"))
    assert "not UTF-8 text" in errors_of(refused)


def test_attached_in_the_form(
    admin_client: Client, tenant: Tenant, other_tenant: Tenant, deployment: ModelDeployment
) -> None:
    place: dict[str, Any] = {"attachments-TOTAL_FORMS": "1", "attachments-0-deployment": str(deployment.pk)}
    answer = admin_client.post(ADD, policy_form(rule_fields(), tenant=str(tenant.pk), **place))
    assert answer.status_code == 302, errors_of(answer)
    policy = GuardrailPolicy.objects.for_tenant(tenant).get()
    assert (policy.is_restricted, policy.attachments.get().deployment) == (True, deployment)
    wrong: dict[str, Any] = {"attachments-TOTAL_FORMS": "1", "attachments-0-tenant": str(other_tenant.pk)}
    refused = admin_client.post(ADD, policy_form(rule_fields(), tenant=str(tenant.pk), name="Other", **wrong))
    assert refused.status_code == 200
    assert "leave this empty" in errors_of(refused)


def test_a_policy_that_applies_nowhere_is_told(admin_client: Client, tenant: Tenant) -> None:
    answer = admin_client.post(ADD, policy_form(rule_fields(), is_restricted="on"), follow=True)
    assert "applies nowhere" in answer.content.decode()


def test_only_drafts_are_deleted(admin_client: Client, tenant: Tenant) -> None:
    policy = saved_policy(tenant)
    delete = reverse("admin:guardrails_guardrailpolicy_delete", args=[policy.pk])
    assert admin_client.post(delete, {"post": "yes"}).status_code == 403
    policy.mode = PolicyMode.DRAFT
    policy_save(policy=policy, rules=list(policy.rules.all()))
    assert admin_client.post(delete, {"post": "yes"}).status_code == 302
    assert not GuardrailPolicy.all_tenants.exists()


def test_lists_take_a_fixed_number_of_queries(
    admin_client: Client, tenant: Tenant, django_assert_num_queries: DjangoAssertNumQueries
) -> None:
    def make(first: int, count: int) -> None:
        for number in range(first, first + count):
            saved_policy(tenant, name=f"Policy {number}")
            interventions_record(interventions=[found(f"strm-{number}", tenant_id=tenant.id.hex)])

    make(0, 1)
    for page, queries in ((POLICIES, 5), (INTERVENTIONS, 8)):
        admin_client.get(page)
        with django_assert_num_queries(queries):
            admin_client.get(page)
    make(1, 8)
    for page, queries in ((POLICIES, 5), (INTERVENTIONS, 8)):
        with django_assert_num_queries(queries):
            admin_client.get(page)


# ---- interventions
