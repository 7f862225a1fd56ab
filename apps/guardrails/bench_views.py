"""The test bench: an asynchronous page of the admin, so that a slow judge keeps nobody else waiting."""

import base64
from dataclasses import dataclass
from typing import Any
from uuid import uuid4

import msgspec
from asgiref.sync import sync_to_async
from django import forms
from django.contrib.auth.base_user import AbstractBaseUser
from django.contrib.auth.views import redirect_to_login
from django.core import signing
from django.core.exceptions import ValidationError
from django.http import Http404, HttpRequest, HttpResponse
from django.template.response import TemplateResponse
from django.urls import URLPattern, path
from django.utils.translation import gettext_lazy as _
from unfold.widgets import UnfoldAdminDecimalFieldWidget, UnfoldAdminSelectWidget, UnfoldAdminTextareaWidget

from apps.guardrails.bench import MAX_CHARACTERS, BenchReport, bench_run
from apps.guardrails.bench_sources import StoredAnswer, stored_answers
from apps.guardrails.bodies import policy_body
from apps.guardrails.enums import Direction
from apps.guardrails.models import GuardrailPolicy, GuardrailRule
from apps.guardrails.presentation import report_told
from apps.guardrails.selectors import policy_newest_version, version_content
from apps.tenants.models import Tenant
from headrace_wire.guard_policy import Direction as WireDirection
from headrace_wire.guard_policy import GuardPolicy, decode_policy, encode_policy

_SALT = "guardrails.bench"
_RULES_PREFIX = "rules-TOTAL_FORMS"


class BenchForm(forms.Form):
    """A text and how it comes."""

    direction = forms.ChoiceField(
        label=_("As"),
        choices=[(Direction.OUTPUT, _("an answer")), (Direction.INPUT, _("a request"))],
        widget=UnfoldAdminSelectWidget,
    )
    tpot_ms = forms.FloatField(
        label=_("Pace (ms per token)"),
        initial=40,
        min_value=0,
        max_value=10_000,
        widget=UnfoldAdminDecimalFieldWidget,
    )
    text = forms.CharField(
        label=_("Text"),
        max_length=MAX_CHARACTERS,
        strip=False,
        widget=UnfoldAdminTextareaWidget(attrs={"rows": 8, "placeholder": _("Paste a text, or choose an answer.")}),
    )


class AnswerForm(forms.Form):
    """Where to take a text from: an answer that is stored; first whose, for a policy of everybody."""

    tenant = forms.ModelChoiceField(
        Tenant.objects.filter(is_active=True),
        label=_("Tenant"),
        required=False,
        empty_label=_("nobody in particular"),
        widget=UnfoldAdminSelectWidget,
    )
    answer = forms.ChoiceField(label=_("Answer"), widget=UnfoldAdminSelectWidget)

    def __init__(self, subject: "_Subject", tenant: Tenant | None, answers: list[StoredAnswer]) -> None:
        """Shows what there is to choose."""
        super().__init__(initial={"tenant": tenant})
        if subject.policy.tenant_id is not None:
            del self.fields["tenant"]
        choices = [("", "—"), *((answer.key, answer.label) for answer in answers)]
        if answers:
            self.fields["answer"].choices = choices  # type: ignore[attr-defined]
        else:
            del self.fields["answer"]


@dataclass(frozen=True, slots=True)
class _Subject:
    """What is tried, and on whose behalf."""

    policy: GuardrailPolicy
    body: GuardPolicy
    is_saved: bool


def bench_urls(model_admin: Any) -> list[URLPattern]:  # noqa: ANN401
    """Returns the bench's address; it takes `?policy=<id>`, or the unsaved form of a policy."""

    async def view(request: HttpRequest) -> HttpResponse:
        if not await sync_to_async(_may_look)(model_admin, request):
            return redirect_to_login(request.get_full_path(), "admin:login")
        return await _bench(model_admin, request)

    return [path("bench/", view, name="guardrails_guardrailpolicy_bench")]


def _may_look(model_admin: Any, request: HttpRequest) -> bool:  # noqa: ANN401
    return bool(model_admin.admin_site.has_permission(request) and model_admin.has_view_permission(request))


async def _bench(model_admin: Any, request: HttpRequest) -> HttpResponse:  # noqa: ANN401
    try:
        subject = await sync_to_async(_subject)(model_admin, request)
    except ValidationError as error:
        return await sync_to_async(_render)(model_admin, request, {"problems": error.messages})
    tenant = await sync_to_async(_tenant)(subject, request)
    answers = await sync_to_async(_answers)(tenant, request)
    form = BenchForm(request.POST if "text" in request.POST else None, initial=_chosen(request, answers))
    report, tpot_seconds = None, 0.0
    if form.is_bound and form.is_valid():
        tpot_seconds = form.cleaned_data["tpot_ms"] / 1000
        report = await _report(subject, form, tpot_seconds, tenant)
    context = {
        "form": form,
        "subject": subject,
        "signed_body": _signed(subject),
        "answers": answers,
        "tenant": tenant,
        "answer_form": AnswerForm(subject, tenant, answers),
        "report": report and report_told(report, tpot_seconds=tpot_seconds),
    }
    return await sync_to_async(_render)(model_admin, request, context)


async def _report(subject: _Subject, form: BenchForm, tpot_seconds: float, tenant: Tenant | None) -> BenchReport:
    return await bench_run(
        policy=subject.body,
        text=form.cleaned_data["text"],
        direction=WireDirection(form.cleaned_data["direction"]),
        tpot_seconds=tpot_seconds,
        tenant_id=tenant.pk.hex if tenant is not None else "",
    )


def _subject(model_admin: Any, request: HttpRequest) -> _Subject:  # noqa: ANN401
    """Returns the policy: from its form, from the bench's own form, or as it is stored.

    Raises:
        ValidationError: The form is not acceptable; says all that is wrong.
        Http404: There is no such policy.
    """
    if _RULES_PREFIX in request.POST:
        return _from_policy_form(model_admin, request)
    policy = model_admin.get_object(request, request.GET.get("policy", ""))
    if signed := request.POST.get("body"):
        try:
            body = decode_policy(base64.b85decode(signing.loads(signed, salt=_SALT)))
        except (signing.BadSignature, ValueError, msgspec.DecodeError) as error:
            raise ValidationError(_("The bench's page is too old; open it again.")) from error
        return _Subject(policy or GuardrailPolicy(name=body.name), body, is_saved=False)
    newest = policy_newest_version(policy=policy) if policy is not None else None
    if policy is None or newest is None:
        raise Http404
    return _Subject(policy, version_content(newest), is_saved=True)


def _from_policy_form(model_admin: Any, request: HttpRequest) -> _Subject:  # noqa: ANN401
    stored = model_admin.get_object(request, request.GET.get("policy", ""))
    form = model_admin.get_form(request, stored, change=stored is not None)(
        request.POST, request.FILES, instance=stored
    )
    form.is_valid()
    formsets, _inlines = model_admin._create_formsets(request, form.instance, change=stored is not None)  # noqa: SLF001
    rules = next(formset for formset in formsets if formset.model is GuardrailRule)
    if not form.is_valid() or not rules.is_valid():
        raise ValidationError(_problems(form, rules))
    policy: Any = form.instance
    if policy.pk is None:  # form sets take the default of a new row away
        policy.pk = uuid4()
    return _Subject(policy, policy_body(policy, rules.rows(), version=policy.version + 1), is_saved=False)


def _problems(form: Any, rules: Any) -> list[str]:  # noqa: ANN401
    told = [f"{field}: {error}" for field, errors in form.errors.items() for error in errors]
    told += [str(error) for error in rules.non_form_errors()]
    for number, rule in enumerate(rules.forms, start=1):
        told += [f"{number}. {error}" for errors in rule.errors.values() for error in errors]
    return told


def _tenant(subject: _Subject, request: HttpRequest) -> Tenant | None:
    """Returns the policy's tenant, or the one that was chosen for a policy of everybody."""
    if subject.policy.tenant is not None:
        return subject.policy.tenant
    chosen = request.POST.get("tenant", "")
    return next((tenant for tenant in Tenant.objects.filter(is_active=True) if str(tenant.pk) == chosen), None)


def _answers(tenant: Tenant | None, request: HttpRequest) -> list[StoredAnswer]:
    if tenant is None or not isinstance(request.user, AbstractBaseUser):
        return []
    return stored_answers(tenant=tenant, user=request.user)


def _chosen(request: HttpRequest, answers: list[StoredAnswer]) -> dict[str, Any]:
    key = request.POST.get("answer", "")
    return {"text": next((answer.text for answer in answers if answer.key == key), ""), "tpot_ms": 40}


def _signed(subject: _Subject) -> str:
    """The bench's form carries what is tried: the policy may be unsaved."""
    if subject.is_saved:
        return ""
    return signing.dumps(base64.b85encode(encode_policy(subject.body)).decode(), salt=_SALT, compress=True)


def _render(model_admin: Any, request: HttpRequest, context: dict[str, Any]) -> HttpResponse:  # noqa: ANN401
    subject = context.get("subject")
    page = {
        **model_admin.admin_site.each_context(request),
        "opts": model_admin.opts,
        "title": _("Test bench: %s") % subject.policy if subject is not None else _("Test bench"),
        **context,
    }
    return TemplateResponse(request, "guardrails/admin/bench.html", page).render()
