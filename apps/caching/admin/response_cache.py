"""Admin of response cache policies."""

from collections.abc import Mapping
from typing import Any

from django.contrib import admin, messages
from django.db.models import QuerySet
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.template.defaultfilters import filesizeformat
from django.urls import URLPattern, reverse
from django.utils.translation import gettext_lazy as _
from redis.exceptions import RedisError
from unfold.contrib.filters.admin import RelatedDropdownFilter
from unfold.decorators import action

from apps.caching import response_selectors, response_services
from apps.caching.models import ResponseCachePolicy
from apps.caching.semantic_bench_views import semantic_bench_urls
from apps.tenants.models import Tenant
from apps.tenants.service_admin import ServiceAdmin, actor_of
from apps.tenants.services import Actor


@admin.register(ResponseCachePolicy)
class ResponseCachePolicyAdmin(ServiceAdmin):
    """Whose static answers are kept."""

    empty_help = _("Without one, no answer is kept and given again.")

    list_display = (
        *(
            "tenant",
            "for_deployment",
            "enabled",
            "ttl_minutes",
            "static_rule",
            "include_chat",
            "semantic",
            "max_mebibytes",
        ),
        "updated_at",
    )
    list_filter = [("tenant", RelatedDropdownFilter), ("deployment", RelatedDropdownFilter), "enabled"]
    list_filter_submit = True
    list_select_related = ("tenant", "deployment")
    search_fields = ("tenant__name", "tenant__slug", "deployment__name")
    autocomplete_fields = ("tenant", "deployment")
    readonly_fields = ("kept_now", "purged_at")
    actions = ("purge",)
    actions_detail = ("questions",)
    fieldsets = [
        (None, {"fields": ["tenant", "deployment", "enabled"]}),
        (
            _("What is kept"),
            {
                "fields": ["static_rule", "include_chat", "ttl_minutes", "max_mebibytes"],
                "description": _(
                    "Kept are whole answers to requests that are the same in everything: messages, parameters, the"
                    " deployment's model and options, the guardrails that apply. Nobody but the tenant is given them."
                ),
            },
        ),
        (
            _("Semantic cache"),
            {
                "fields": ["semantic", "semantic_threshold", "semantic_same_words", "semantic_max_turns"],
                "description": _(
                    "Such an answer says so: x-headrace-cache: semantic, and how alike the questions are. Numbers,"
                    " signs, abbreviations and words with accents must always be the same. Two questions can be tried"
                    " on the test bench."
                ),
            },
        ),
        (_("In quotas"), {"fields": ["count_requests", "count_tokens"]}),
        (_("Now"), {"fields": ["kept_now", "purged_at"]}),
    ]

    @admin.display(description=_("Deployment"), ordering="deployment__name")
    def for_deployment(self, policy: ResponseCachePolicy) -> object:
        """Returns its name; a dash would not say that none means all."""
        return policy.deployment or _("all others")

    @admin.display(description=_("Kept for the tenant"))
    def kept_now(self, policy: ResponseCachePolicy) -> str:
        """Returns how much room is used."""
        tenant = Tenant.objects.filter(response_cache_policies=policy.pk).first()  # none on the page that adds one
        try:
            used = response_selectors.kept_bytes(tenant_id=tenant.id.hex) if tenant is not None else 0
        except RedisError:
            return str(_("Unknown: the stream store does not answer."))
        return filesizeformat(used)

    @action(description=_("Forget what is kept"))  # type: ignore[untyped-decorator]
    def purge(self, request: HttpRequest, queryset: "QuerySet[ResponseCachePolicy]") -> None:
        """Purges the chosen policies' answers."""
        for policy in queryset:
            response_services.response_cache_purge(policy=policy, actor=actor_of(request))
        messages.success(request, _("What was kept is forgotten."))

    @action(description=_("Test bench"), url_path="try", permissions=["view"], icon="science")  # type: ignore[untyped-decorator]
    def questions(self, request: HttpRequest, object_id: str) -> HttpResponse:  # noqa: ARG002
        """Goes to where two questions are compared."""
        return HttpResponseRedirect(reverse("admin:caching_responsecachepolicy_compare", args=[object_id]))

    def get_urls(self) -> list[URLPattern]:
        """Adds the bench."""
        return [*semantic_bench_urls(self), *super().get_urls()]

    def service_create(
        self,
        row: ResponseCachePolicy,
        values: Mapping[str, Any],  # noqa: ARG002
        actor: Actor,
    ) -> None:
        """Creates the policy."""
        response_services.response_cache_create(policy=row, actor=actor)

    def service_update(
        self,
        row: ResponseCachePolicy,
        values: Mapping[str, Any],  # noqa: ARG002
        actor: Actor,
    ) -> None:
        """Changes the policy."""
        response_services.response_cache_update(policy=row, actor=actor)

    def service_delete(self, row: ResponseCachePolicy, actor: Actor) -> None:
        """Deletes the policy."""
        response_services.response_cache_delete(policy=row, actor=actor)
