"""Admin of tenants, members and the audit trail."""

import json
from collections.abc import Mapping
from typing import Any

from django.contrib import admin
from django.db.models import Count, QuerySet
from django.forms import BaseInlineFormSet, ModelForm
from django.http import Http404, HttpRequest, HttpResponse
from django.template.response import TemplateResponse
from django.utils.html import format_html
from django.utils.safestring import SafeString
from django.utils.translation import gettext_lazy as _
from unfold.admin import TabularInline
from unfold.contrib.filters.admin import ChoicesDropdownFilter, RangeDateTimeFilter, RelatedDropdownFilter
from unfold.decorators import action, display

from apps.tenants import services
from apps.tenants.enums import MemberRole
from apps.tenants.models import AuditEvent, Membership, Tenant
from apps.tenants.service_admin import ReadOnlyAdmin, ServiceAdmin, actor_of
from apps.tenants.services import Actor


class MembershipInline(TabularInline):  # type: ignore[misc]  # unfold ships no types
    """Members on the tenant's page."""

    model = Membership
    fields = ("user", "role")
    autocomplete_fields = ("user",)
    extra = 0
    tab = True
    verbose_name_plural = _("Members")

    def get_queryset(self, request: HttpRequest) -> "QuerySet[Membership]":
        """Brings the users along."""
        rows: QuerySet[Membership] = super().get_queryset(request)
        return rows.select_related("user", "tenant")


@admin.register(Tenant)
class TenantAdmin(ServiceAdmin):
    """Tenants; they are switched off, not deleted."""

    list_display = ("name", "slug", "activity", "member_count", "key_count", "detached_policy", "created_at")
    list_filter = ["is_active", ("plan", RelatedDropdownFilter), ("detached_policy", ChoicesDropdownFilter)]
    list_filter_submit = True
    search_fields = ("name", "slug")
    readonly_fields = ("id", "created_at", "updated_at")
    inlines = (MembershipInline,)
    autocomplete_fields = ("plan",)
    actions_detail = ("renew_webhook_secret",)
    fieldsets = [
        (None, {"fields": [("name", "slug"), "is_active", ("time_zone", "plan")]}),
        (
            _("Streams"),
            {
                "fields": [
                    ("stream_window", "stall_timeout_seconds", "max_connections"),
                    "detached_policy",
                    ("detached_tokens", "detached_grace_seconds"),
                    "draft_tokens_per_minute",
                ],
                "description": _(
                    "How far the engine runs ahead of a client, and what happens when the client is gone."
                ),
            },
        ),
        (
            _("When an engine is lost"),
            {
                "fields": [("inexact_penalties", "inexact_precision", "inexact_sampling")],
                "description": _(
                    "Another engine goes on with an answer at the token where it was. Most answers go on exactly as"
                    " they would have; for those that cannot, choose."
                ),
            },
        ),
        (_("Retention"), {"fields": [("log_retention_seconds", "retention_days"), "intervention_excerpts"]}),
        (_("Notices"), {"fields": ["webhook_url"]}),
        (_("Record"), {"fields": [("id", "created_at", "updated_at")], "classes": ["collapse"]}),
    ]

    def get_queryset(self, request: HttpRequest) -> "QuerySet[Tenant]":
        """Counts members and keys in the same query."""
        rows: QuerySet[Tenant] = super().get_queryset(request)
        return rows.annotate(
            members_total=Count("memberships", distinct=True), keys_total=Count("api_keys", distinct=True)
        )

    def get_readonly_fields(self, request: HttpRequest, obj: Tenant | None = None) -> tuple[str, ...]:  # noqa: ARG002
        """Fixes the slug once it is given."""
        return (*self.readonly_fields, "slug") if obj is not None else self.readonly_fields

    def has_delete_permission(self, request: HttpRequest, obj: Tenant | None = None) -> bool:  # noqa: ARG002
        """Refuses: deleting would take keys, usage and audit rows along."""
        return False

    @display(description=_("Active"), ordering="is_active", label={_("active"): "success", _("off"): "danger"})  # type: ignore[untyped-decorator]
    def activity(self, tenant: Tenant) -> object:
        """Returns a coloured word."""
        return _("active") if tenant.is_active else _("off")

    @display(description=_("Members"), ordering="members_total")  # type: ignore[untyped-decorator]
    def member_count(self, tenant: Any) -> int:  # noqa: ANN401  # annotated by get_queryset
        """Returns the number of members."""
        count: int = tenant.members_total
        return count

    @display(description=_("Keys"), ordering="keys_total")  # type: ignore[untyped-decorator]
    def key_count(self, tenant: Any) -> int:  # noqa: ANN401  # annotated by get_queryset
        """Returns the number of keys, ended ones among them."""
        count: int = tenant.keys_total
        return count

    def service_create(self, row: Tenant, values: Mapping[str, Any], actor: Actor) -> None:  # noqa: ARG002
        """Creates the tenant."""
        services.tenant_create(tenant=row, actor=actor)

    def service_update(self, row: Tenant, values: Mapping[str, Any], actor: Actor) -> None:  # noqa: ARG002
        """Changes the tenant."""
        services.tenant_update(tenant=row, actor=actor)

    @action(  # type: ignore[untyped-decorator]
        description=_("New webhook secret"), url_path="webhook-secret", permissions=["change"], icon="key"
    )
    def renew_webhook_secret(self, request: HttpRequest, object_id: str) -> HttpResponse:
        """Asks, then makes a new secret and shows it, once."""
        tenant: Tenant | None = self.get_object(request, object_id)
        if tenant is None:
            raise Http404
        secret = ""
        if request.method == "POST":
            secret = services.tenant_webhook_secret_renew(tenant=tenant, actor=actor_of(request))
        context = {
            **self.admin_site.each_context(request),
            "opts": self.opts,
            "original": tenant,
            "title": _("Webhook secret"),
            "secret": secret,
        }
        return TemplateResponse(request, "tenants/admin/webhook_secret.html", context)

    def save_formset(
        self,
        request: HttpRequest,
        form: "ModelForm[Tenant]",
        formset: "BaseInlineFormSet[Membership, Tenant, Any]",
        change: bool,  # noqa: ARG002
    ) -> None:
        """Adds, changes and removes members through the services."""
        actor, tenant = actor_of(request), form.instance
        changed = formset.save(commit=False)
        for membership in formset.deleted_objects:
            services.membership_delete(membership=membership, actor=actor)
        new = {id(row) for row in formset.new_objects}
        for row in changed:
            if id(row) in new:
                services.membership_create(tenant=tenant, user=row.user, role=MemberRole(row.role), actor=actor)
            else:
                services.membership_update(membership=row, actor=actor)


@admin.register(Membership)
class MembershipAdmin(ServiceAdmin):
    """Who belongs where."""

    list_display = ("user", "tenant", "role", "created_at")
    list_filter = [("role", ChoicesDropdownFilter), ("tenant", RelatedDropdownFilter)]
    list_filter_submit = True
    list_select_related = ("user", "tenant")
    search_fields = ("user__email", "user__full_name", "tenant__name", "tenant__slug")
    autocomplete_fields = ("user", "tenant")
    fields = ("tenant", "user", "role")

    def get_readonly_fields(self, request: HttpRequest, obj: Membership | None = None) -> tuple[str, ...]:  # noqa: ARG002
        """Fixes tenant and user once they are given."""
        return ("tenant", "user") if obj is not None else ()

    def service_create(self, row: Membership, values: Mapping[str, Any], actor: Actor) -> None:  # noqa: ARG002
        """Takes the user in."""
        stored = services.membership_create(tenant=row.tenant, user=row.user, role=MemberRole(row.role), actor=actor)
        row.pk = stored.pk

    def service_update(self, row: Membership, values: Mapping[str, Any], actor: Actor) -> None:  # noqa: ARG002
        """Changes the role."""
        services.membership_update(membership=row, actor=actor)

    def service_delete(self, row: Membership, actor: Actor) -> None:
        """Ends the membership."""
        services.membership_delete(membership=row, actor=actor)


@admin.register(AuditEvent)
class AuditEventAdmin(ReadOnlyAdmin):
    """The audit trail."""

    list_display = ("created_at", "action", "object_label", "tenant", "actor_label")
    list_filter = [
        ("action", ChoicesDropdownFilter),
        ("tenant", RelatedDropdownFilter),
        ("created_at", RangeDateTimeFilter),
    ]
    list_filter_submit = True
    list_select_related = ("tenant",)
    search_fields = ("object_label", "object_id", "actor_label")
    fields = ("created_at", "action", "actor_label", "tenant", "object_type", "object_id", "object_label", "changes")

    @admin.display(description=_("Changes"))
    def changes(self, event: AuditEvent) -> SafeString:
        """Returns the details as indented JSON."""
        return format_html("<pre>{}</pre>", json.dumps(event.details, indent=2, ensure_ascii=False))
