from typing import Any

import pytest
from django.test import Client
from django.urls import reverse

from apps.accounts.models import User
from apps.chat.enums import MessageRole
from apps.chat.models import Conversation, Message
from apps.deployments.models import ModelDeployment
from apps.guardrails.enums import PolicyMode
from apps.guardrails.models import GuardrailPolicy, GuardrailRule
from apps.tenants.enums import ExcerptRetention
from apps.tenants.models import Membership, Tenant

from .policies import card_rule, saved_policy, word_rule
from .policy_form import policy_form, rule_fields

POLICIES = reverse("admin:guardrails_guardrailpolicy_changelist")
BENCH = reverse("admin:guardrails_guardrailpolicy_bench")
CARD = "4111 1111 1111 1111"


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
