"""Admin of guardrail policies."""

from typing import Any

from django.contrib import admin, messages
from django.core.exceptions import ValidationError
from django.db.models import Count, Model, QuerySet
from django.forms import ModelForm
from django.http import Http404, HttpRequest, HttpResponse, HttpResponseRedirect
from django.template.response import TemplateResponse
from django.urls import reverse
from django.utils.html import format_html
from django.utils.safestring import SafeString
from django.utils.translation import gettext_lazy as _
from django.utils.translation import ngettext
from unfold.admin import StackedInline, TabularInline
from unfold.contrib.filters.admin import ChoicesDropdownFilter, RelatedDropdownFilter
from unfold.decorators import action, display

from apps.guardrails import services
from apps.guardrails.bench_views import bench_urls
from apps.guardrails.enums import PolicyMode
from apps.guardrails.forms import AttachmentForm, AttachmentFormSet, PolicyForm, RuleForm, RuleFormSet
from apps.guardrails.models import GuardrailAttachment, GuardrailPolicy, GuardrailRule
from apps.guardrails.presentation import hold_back_told, versions_told
from apps.guardrails.validation import policy_warnings
from apps.tenants.service_admin import ServiceAdmin, actor_of
from apps.tenants.services import Actor

_MODE_COLOURS = {
    PolicyMode.DRAFT.label: "info",
    PolicyMode.SHADOW.label: "warning",
    PolicyMode.ENFORCED.label: "success",
}


class RuleInline(StackedInline):  # type: ignore[misc]  # unfold ships no types
    """Rules on the policy's page; the page shows the fields of the chosen kind."""

    model = GuardrailRule
    form = RuleForm
    formset = RuleFormSet
    ordering_field = "position"
    hide_ordering_field = True
    autocomplete_fields = ("judge_deployment",)
    verbose_name_plural = _("Rules")
    fieldsets = [
        (
            None,
            {
                "fields": [
                    ("kind", "name"),
                    ("applies_to", "action", "severity"),
                    "words",
                    "words_file",
                    "whole_words",
                    "patterns",
                    "case_sensitive",
                    "personal_data",
                    "phone_regions",
                    "max_characters",
                    "examples",
                    "threshold",
                    "languages",
                    "judge_deployment",
                    "question",
                    ("mask", "replacement"),
                    "position",
                ]
            },
        )
    ]

    def get_extra(self, request: HttpRequest, obj: GuardrailPolicy | None = None, **_kwargs: Any) -> int:  # noqa: ANN401, ARG002
        """A new policy begins with one empty rule."""
        return 1 if obj is None else 0

    def get_queryset(self, request: HttpRequest) -> "QuerySet[GuardrailRule]":
        """Brings the judges along."""
        rows: QuerySet[GuardrailRule] = super().get_queryset(request)
        return rows.select_related("judge_deployment")


class AttachmentInline(TabularInline):  # type: ignore[misc]  # unfold ships no types
    """Where the policy applies."""

    model = GuardrailAttachment
    form = AttachmentForm
    formset = AttachmentFormSet
    extra = 0
    autocomplete_fields = ("tenant", "deployment", "api_key")
    verbose_name_plural = _("Attached to")

    def get_queryset(self, request: HttpRequest) -> "QuerySet[GuardrailAttachment]":
        """Brings the targets along."""
        rows: QuerySet[GuardrailAttachment] = super().get_queryset(request)
        return rows.select_related("tenant", "deployment", "api_key")


@admin.register(GuardrailPolicy)
class GuardrailPolicyAdmin(ServiceAdmin):
    """Policies: rules, where they apply, their versions, and a bench to try them on."""

    form = PolicyForm
    inlines = (RuleInline, AttachmentInline)
    list_display = ("name", "owner", "how", "reach", "rule_count", "version", "updated_at")
    list_filter = [("mode", ChoicesDropdownFilter), ("tenant", RelatedDropdownFilter)]
    list_filter_submit = True
    list_select_related = ("tenant",)
    search_fields = ("name", "tenant__name", "tenant__slug")
    autocomplete_fields = ("tenant",)
    readonly_fields = ("hold_back",)
    actions_detail = ("bench", "versions")
    change_form_after_template = "guardrails/admin/try_unsaved.html"
    fieldsets = [
        (None, {"fields": [("name", "mode"), ("tenant", "is_restricted")]}),
        (_("When something is blocked"), {"fields": ["replacement", "on_input_trip"]}),
        (
            _("For rules that judge windows: topic, insults, language, question"),
            {
                "fields": [
                    ("chunk_size", "context_size"),
                    "hold_back",
                    ("judge_deadline_seconds", "failure_mode"),
                    ("stream_first", "confirm_unsafe"),
                ],
                "description": _(
                    "These wait until there is enough text to judge. Words, patterns, personal data and length go along"
                    " with each token and hold back only what can still become a match."
                ),
                "classes": ["collapse"],
            },
        ),
    ]

    class Media:
        js = ("guardrails/policy_form.js",)
        css = {"all": ("guardrails/admin.css",)}

    def get_queryset(self, request: HttpRequest) -> "QuerySet[GuardrailPolicy]":
        """Counts rules and attachments in the same query."""
        rows: QuerySet[GuardrailPolicy] = super().get_queryset(request)
        return rows.annotate(
            rules_total=Count("rules", distinct=True), attachments_total=Count("attachments", distinct=True)
        )

    def get_urls(self) -> list[Any]:
        """Adds the bench."""
        return [*bench_urls(self), *super().get_urls()]

    def get_readonly_fields(self, request: HttpRequest, obj: GuardrailPolicy | None = None) -> tuple[str, ...]:  # noqa: ARG002
        """Fixes the tenant once it is given."""
        return (*self.readonly_fields, "tenant") if obj is not None else self.readonly_fields

    def has_delete_permission(self, request: HttpRequest, obj: GuardrailPolicy | None = None) -> bool:
        """Only drafts go: what acts must not vanish by a slip."""
        return super().has_delete_permission(request, obj) and (obj is None or not obj.is_active)

    def get_actions(self, request: HttpRequest) -> dict[str, Any]:
        """Leaves out deleting many at once."""
        return {name: entry for name, entry in super().get_actions(request).items() if name != "delete_selected"}

    @admin.display(description=_("Tenant"), ordering="tenant__name")
    def owner(self, policy: GuardrailPolicy) -> object:
        """Returns whose it is."""
        return policy.tenant or _("everybody")

    @display(description=_("Mode"), ordering="mode", label=_MODE_COLOURS)  # type: ignore[untyped-decorator]
    def how(self, policy: GuardrailPolicy) -> str:
        """Returns a coloured word."""
        return policy.get_mode_display()

    @admin.display(description=_("Applies to"))
    def reach(self, policy: Any) -> object:  # noqa: ANN401  # annotated by get_queryset
        """Returns how far it reaches."""
        count = policy.attachments_total
        if not policy.is_restricted:
            return _("everything")
        return ngettext("%d place", "%d places", count) % count if count else _("nothing")

    @display(description=_("Rules"), ordering="rules_total")  # type: ignore[untyped-decorator]
    def rule_count(self, policy: Any) -> int:  # noqa: ANN401  # annotated by get_queryset
        """Returns the number of rules."""
        count: int = policy.rules_total
        return count

    @admin.display(description=_("What waiting costs"))
    def hold_back(self, policy: GuardrailPolicy | None) -> SafeString:
        """Returns it in words; the page's script keeps it true while one types."""
        values = policy if policy is not None and policy.chunk_size else GuardrailPolicy()
        told = hold_back_told(chunk_size=values.chunk_size, context_size=values.context_size or 0)
        return format_html('<span id="hold-back">{}</span>', told)

    def save_model(self, request: HttpRequest, obj: Model, form: "ModelForm[Any]", change: bool) -> None:
        """Waits for the rules: a policy is stored as a whole."""

    def save_related(self, request: HttpRequest, form: Any, formsets: Any, change: bool) -> None:  # noqa: ANN401, ARG002
        """Hands policy, rules and attachments to the service."""
        rows = {}
        for formset in formsets:
            formset.save(commit=False)  # notes what changed, for the history
            rows[formset.model] = formset.rows()
        policy: GuardrailPolicy = form.instance
        services.policy_save(
            policy=policy,
            rules=rows[GuardrailRule],
            attachments=rows[GuardrailAttachment],
            actor=actor_of(request),
        )
        for text in policy_warnings(policy, rows[GuardrailRule]):
            messages.warning(request, text)

    def service_delete(self, row: GuardrailPolicy, actor: Actor) -> None:
        """Deletes a draft."""
        services.policy_delete(policy=row, actor=actor)

    @action(description=_("Test bench"), url_path="bench", permissions=["view"], icon="science")  # type: ignore[untyped-decorator]
    def bench(self, request: HttpRequest, object_id: str) -> HttpResponse:  # noqa: ARG002
        """Goes to the bench with what is stored."""
        return HttpResponseRedirect(f"{reverse('admin:guardrails_guardrailpolicy_bench')}?policy={object_id}")

    @action(description=_("Versions"), url_path="versions", permissions=["view"], icon="history")  # type: ignore[untyped-decorator]
    def versions(self, request: HttpRequest, object_id: str) -> HttpResponse:
        """Shows what the policy said when; goes back to a version."""
        policy: GuardrailPolicy | None = self.get_object(request, object_id)
        if policy is None:
            raise Http404
        if request.method == "POST" and self.has_change_permission(request, policy):
            return self._roll_back(request, policy)
        context = {
            **self.admin_site.each_context(request),
            "opts": self.opts,
            "original": policy,
            "title": _("Versions of %s") % policy,
            "versions": versions_told(policy),
            "may_change": self.has_change_permission(request, policy),
        }
        return TemplateResponse(request, "guardrails/admin/versions.html", context)

    def _roll_back(self, request: HttpRequest, policy: GuardrailPolicy) -> HttpResponse:
        number = request.POST.get("number", "")
        version = policy.versions.filter(number=int(number)).first() if number.isdecimal() else None
        if version is None:
            raise Http404
        try:
            made = services.policy_rollback(version=version, actor=actor_of(request))
        except ValidationError as error:
            messages.error(request, " ".join(error.messages))
        else:
            numbers = {"made": made.number, "old": version.number}
            messages.success(request, _("Version %(made)d says what version %(old)d said.") % numbers)
        return HttpResponseRedirect(request.get_full_path())
