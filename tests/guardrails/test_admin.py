from collections.abc import AsyncIterator
from datetime import UTC, datetime
from typing import Any

import pytest
from asgiref.sync import async_to_sync
from django.core.files.uploadedfile import SimpleUploadedFile
from django.test import Client
from django.urls import reverse
from pytest_django import DjangoAssertNumQueries

from apps.accounts.models import User
from apps.chat.enums import MessageRole
from apps.chat.models import Conversation, Message
from apps.deployments.models import ModelDeployment
from apps.guardrails.enums import PersonalDataKind, PolicyMode
from apps.guardrails.intervention_records import interventions_record
from apps.guardrails.models import GuardrailPolicy, GuardrailRule, Intervention
from apps.guardrails.services import policy_save
from apps.tenants.enums import AuditAction, ExcerptRetention
from apps.tenants.models import AuditEvent, Membership, Tenant

from .found import found
from .policies import card_rule, saved_policy, word_rule

ADD = reverse("admin:guardrails_guardrailpolicy_add")
POLICIES = reverse("admin:guardrails_guardrailpolicy_changelist")
BENCH = reverse("admin:guardrails_guardrailpolicy_bench")
INTERVENTIONS = reverse("admin:guardrails_intervention_changelist")
CARD = "4111 1111 1111 1111"


def rule_fields(number: int = 0, **values: Any) -> dict[str, Any]:
    """The fields of a rule's form that masks card numbers, as a browser sends them."""
    kinds = {f"personal_data_{kind.value}": "" for kind in PersonalDataKind}
    fields = {
        "kind": "personal_data",
        "applies_to": "output",
        "action": "block",
        "severity": "medium",
        "position": "0",
        "whole_words": "on",
        **kinds,
        "personal_data_CREDIT_CARD": "mask",
        **values,
    }
    return {f"rules-{number}-{name}": value for name, value in fields.items()}


def policy_form(*rules: dict[str, Any], initial: int = 0, **values: Any) -> dict[str, Any]:
    form = {
        "name": "Card numbers",
        "mode": "enforced",
        "failure_mode": "closed",
        "on_input_trip": "refuse",
        "replacement": "I cannot help with that.",
        "chunk_size": "16",
        "context_size": "8",
        "judge_deadline_seconds": "5",
        "rules-TOTAL_FORMS": str(len(rules)),
        "rules-INITIAL_FORMS": str(initial),
        "attachments-TOTAL_FORMS": "0",
        "attachments-INITIAL_FORMS": "0",
        **values,
    }
    for rule in rules:
        form.update(rule)
    return form


def errors_of(answer: Any) -> str:
    context = answer.context
    inlines = [formset.formset.errors for formset in context["inline_admin_formsets"]]
    return f"{context['adminform'].form.errors} {inlines} {context['errors']}"


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


def test_interventions_are_looked_at_marked_and_exported_but_never_deleted(
    admin_client: Client, admin_user: User, tenant: Tenant
) -> None:
    interventions_record(interventions=[found("strm-1", tenant_id=tenant.id.hex), found("strm-2", is_shadow=True)])
    row = Intervention.objects.for_tenant(tenant).get()
    page = admin_client.get(reverse("admin:guardrails_intervention_change", args=[row.pk]))
    assert "4…1 (16 characters)" in page.content.decode()
    delete = reverse("admin:guardrails_intervention_delete", args=[row.pk])
    assert admin_client.post(delete, {"post": "yes"}).status_code == 403
    chosen = {"_selected_action": [str(row.pk)]}
    admin_client.post(INTERVENTIONS, {**chosen, "action": "delete_selected", "post": "yes"})
    admin_client.post(INTERVENTIONS, {**chosen, "action": "mark_false_positive"})
    row.refresh_from_db()
    assert (row.is_false_positive, row.marked_by) == (True, admin_user)
    admin_client.post(INTERVENTIONS, {**chosen, "action": "unmark_false_positive"})
    row.refresh_from_db()
    assert not row.is_false_positive
    shadow = admin_client.get(INTERVENTIONS, {"is_shadow__exact": "1"}).context["cl"].result_list
    assert [one.stream_id for one in shadow] == ["strm-2"]


def test_interventions_are_filtered_by_policy(admin_client: Client, tenant: Tenant) -> None:
    policy = saved_policy(tenant)
    interventions_record(interventions=[found("strm-1", policy=policy.pk.hex), found("strm-2")])
    answer = admin_client.get(INTERVENTIONS, {"policy": policy.pk.hex})
    assert [row.stream_id for row in answer.context["cl"].result_list] == ["strm-1"]
    by_rule = admin_client.get(INTERVENTIONS, {"rule_label__icontains": "no such rule"})
    assert list(by_rule.context["cl"].result_list) == []


def test_interventions_are_exported(admin_client: Client, tenant: Tenant) -> None:
    async def read(chunks: AsyncIterator[bytes]) -> str:
        return b"".join([chunk async for chunk in chunks]).decode()

    interventions_record(interventions=[found("strm-1", tenant_id=tenant.id.hex, excerpt="=1+1")])
    chosen = {"_selected_action": [str(Intervention.objects.for_tenant(tenant).get().pk)], "action": "export"}
    answer: Any = admin_client.post(INTERVENTIONS, chosen)
    text = async_to_sync(read)(answer.streaming_content)
    assert text.splitlines()[0].startswith("occurred_at,stream_id,tenant_id,tenant_name")
    assert ",'=1+1," in text


def test_counts_by_tenant(admin_client: Client, tenant: Tenant, other_tenant: Tenant) -> None:
    now = datetime.now(UTC).timestamp()
    mine, other = {"tenant_id": tenant.id.hex, "occurred_at": now}, {"tenant_id": other_tenant.id.hex}
    interventions_record(
        interventions=[found("a", **mine), found("b", **mine, is_shadow=True), found("c", **other, occurred_at=now)]
    )
    page = admin_client.get(reverse("admin:guardrails_intervention_counts"), {"days": "1"})
    rows = [(row["label"], row["total"], row["masked"], row["shadow"]) for row in page.context["rows"]]
    assert rows == [("Acme", 2, 2, 1), ("Globex", 1, 1, 0)]
    assert "Acme" in page.content.decode()


# ---- test bench


def bench(client: Client, query: str = "", **form: Any) -> Any:
    return client.post(f"{BENCH}{query}", {"direction": "output", "tpot_ms": "40", **form})


@pytest.fixture
def policy(tenant: Tenant) -> GuardrailPolicy:
    return saved_policy(tenant, card_rule(name="No cards", mask="[card]"), mode=PolicyMode.DRAFT)


def test_the_bench_shows_what_a_stored_policy_does(admin_client: Client, policy: GuardrailPolicy) -> None:
    answer = bench(admin_client, f"?policy={policy.pk}", text=f"Pay with {CARD} today.")
    report = answer.context["report"]
    assert report["result"] == "Pay with [card] today."
    assert report["verdict"] == "Passes, masked."
    (told,) = report["findings"]
    assert (told["rule"], told["finding"], told["text"], told["action"]) == ("No cards", "Card numbers", CARD, "mask")
    assert report["delay"] == "0.00", "an innocent beginning is not held"
    assert report["held"] >= len(CARD) - 1


def test_the_bench_tries_a_form_that_is_not_saved(admin_client: Client, tenant: Tenant) -> None:
    form = policy_form(rule_fields(kind="literals", words="blue moon"), tenant=str(tenant.pk), replacement="Never.")
    opened: Any = admin_client.post(BENCH, form)
    signed = opened.context["signed_body"]
    answer = bench(admin_client, body=signed, text="Once in a B\u200bLUE m\u043e\u043en it rains.")
    report = answer.context["report"]
    assert (report["result"], report["replacement"]) == ("Once in a ", "Never.")
    assert report["verdict"] == "Blocked and replaced."
    assert not GuardrailPolicy.all_tenants.exists()
    forged = bench(admin_client, body=signed[:-3] + "xyz", text="anything")
    assert "open it again" in forged.content.decode()


def test_the_bench_says_what_is_wrong_with_a_form(admin_client: Client, tenant: Tenant) -> None:
    answer: Any = admin_client.post(BENCH, policy_form(rule_fields(kind="regex", patterns="(a"), name=""))
    page = answer.content.decode()
    assert "Pattern 1" in page
    assert "name: This field is required." in page


def test_judges_of_windows_say_what_they_found(admin_client: Client, tenant: Tenant) -> None:
    """The real ones, in a process of their own."""
    advice = GuardrailRule(kind="topic", examples=["You should buy shares of this company."], name="Advice")
    insults = GuardrailRule(kind="abuse", name="Insults", action="flag")
    policy = saved_policy(tenant, advice, insults)
    innocent = "The weather was fine on the whole way from the lake up to the pass. "
    answer = bench(
        admin_client, f"?policy={policy.pk}", text=innocent * 2 + "You should invest all your money into gold now."
    )
    report = answer.context["report"]
    assert report["verdict"] == "Blocked and replaced."
    assert report["result"]
    assert innocent.startswith(report["result"][: len(innocent)])
    first, last = report["windows"][0], report["windows"][-1]
    assert [told["is_found"] for told in first["answers"]] == [False, False]
    assert last["answers"][0]["is_found"]
    assert float(last["answers"][0]["score"]) >= 0.3
    assert last["context"], "windows share what could stand across their edge"
    assert report["is_over_goal"]
    assert float(report["delay"]) >= 0.6, "16 tokens at 40 ms, less the first"


def test_a_judge_that_fails_shows_as_such(admin_client: Client, tenant: Tenant, deployment: ModelDeployment) -> None:
    rule = GuardrailRule(kind="judge", judge_deployment=deployment, question="Is it advice?")
    text = "A sentence of some length about the weather. " * 3
    closed = saved_policy(tenant, rule)
    report = bench(admin_client, f"?policy={closed.pk}", text=text).context["report"]
    assert report["windows"][0]["answers"][0]["failure"].startswith("error: No deployments can be asked here")
    assert report["verdict"].startswith("A judge failed: the answer ends with an error")
    assert (len(report["windows"]), report["result"]) == (1, "")
    again = GuardrailRule(kind="judge", judge_deployment=deployment, question="Is it advice?")
    opened = saved_policy(tenant, again, name="Open", failure_mode="open")
    report = bench(admin_client, f"?policy={opened.pk}", text=text).context["report"]
    assert report["verdict"] == "A judge failed: the text goes on, recorded as unchecked."
    assert report["result"] == text


def test_a_request_is_refused_or_answered(admin_client: Client, tenant: Tenant) -> None:
    refusing = saved_policy(tenant, word_rule("red", applies_to="input"))
    answer = bench(admin_client, f"?policy={refusing.pk}", text="see red", direction="input")
    assert answer.context["report"]["verdict"] == "Blocked: the caller gets an error, 400 content_filter."
    other = bench(admin_client, f"?policy={refusing.pk}", text="see red")
    assert other.context["report"]["verdict"] == "Passes; nothing was found."


def test_an_answer_of_ones_own_is_replayed(
    admin_client: Client, admin_user: User, membership: Membership, policy: GuardrailPolicy
) -> None:
    """What others were told is theirs, unless the tenant keeps excerpts in full."""
    texts = {}
    for user, text in ((admin_user, f"mine {CARD}"), (membership.user, "not mine")):
        owner = Conversation.all_tenants.create(tenant=membership.tenant, user=user, title="t", model="tiny")
        row = Message.all_tenants.create(
            conversation=owner, position=1, role=MessageRole.ASSISTANT, content=text, model="tiny"
        )
        texts[text] = str(row.pk)
    opened: Any = admin_client.get(f"{BENCH}?policy={policy.pk}")
    assert [answer.text for answer in opened.context["answers"]] == [f"mine {CARD}"]
    taken: Any = admin_client.post(f"{BENCH}?policy={policy.pk}", {"answer": texts[f"mine {CARD}"]})
    assert taken.context["form"].initial["text"] == f"mine {CARD}"
    Tenant.objects.update(intervention_excerpts=ExcerptRetention.FULL)
    opened = admin_client.get(f"{BENCH}?policy={policy.pk}")
    assert {answer.text for answer in opened.context["answers"]} == set(texts)


def test_the_bench_is_for_staff(client: Client, user: User, policy: GuardrailPolicy) -> None:
    client.force_login(user)
    answer: Any = client.get(f"{BENCH}?policy={policy.pk}")
    assert answer.status_code == 302
    assert answer["Location"].startswith("/admin/login/")
