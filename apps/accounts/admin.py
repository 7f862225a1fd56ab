"""Admin of users and API keys."""

from collections.abc import Mapping
from datetime import timedelta
from typing import Any

from django.contrib import admin, messages
from django.contrib.auth.admin import UserAdmin as DjangoUserAdmin
from django.contrib.auth.models import Group
from django.core.exceptions import ValidationError
from django.db.models import Q, QuerySet
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.template.response import TemplateResponse
from django.urls import reverse
from django.utils import timezone
from django.utils.translation import gettext_lazy as _
from django.utils.translation import ngettext
from unfold.contrib.filters.admin import RelatedDropdownFilter
from unfold.decorators import action, display
from unfold.enums import ActionVariant
from unfold.forms import AdminPasswordChangeForm

from apps.accounts import services
from apps.accounts.enums import ApiKeyScope
from apps.accounts.forms import ApiKeyForm, RotateForm, UserAddForm, UserChangeForm
from apps.accounts.models import ApiKey, User
from apps.tenants.enums import AuditAction
from apps.tenants.service_admin import ServiceAdmin, actor_of
from apps.tenants.services import Actor, audit_record
from headrace_wire.api_key import PREFIX, ApiKeyToken

admin.site.unregister(Group)

_STATE_COLOURS = {
    _("active"): "success",
    _("rotated"): "warning",
    _("expired"): "danger",
    _("revoked"): "danger",
}


@admin.register(User)
class UserAdmin(ServiceAdmin, DjangoUserAdmin):  # type: ignore[type-arg]
    """People; they are switched off, not deleted."""

    form = UserChangeForm
    add_form = UserAddForm
    change_password_form = AdminPasswordChangeForm
    ordering = ("email",)
    list_display = ("email", "full_name", "is_active", "is_staff", "is_superuser", "last_login")
    list_filter = ("is_active", "is_staff", "is_superuser")
    search_fields = ("email", "full_name")
    filter_horizontal = ("user_permissions",)
    readonly_fields = ("last_login", "date_joined")
    fieldsets = [
        (None, {"fields": ["email", "full_name", "password"]}),
        (_("Access"), {"fields": ["is_active", "is_staff", "is_superuser", "user_permissions"]}),
        (_("Record"), {"fields": [("last_login", "date_joined")], "classes": ["collapse"]}),
    ]
    add_fieldsets = [
        (None, {"fields": ["email", "full_name", "usable_password", "password1", "password2"]}),
        (_("Access"), {"fields": ["is_staff", "is_superuser"]}),
    ]

    def has_delete_permission(self, request: HttpRequest, obj: User | None = None) -> bool:  # noqa: ARG002
        """Refuses: audit rows and chats name them."""
        return False

    def service_create(self, row: User, values: Mapping[str, Any], actor: Actor) -> None:  # noqa: ARG002
        """Creates the user with the password that the form set."""
        services.user_create(user=row, actor=actor)

    def service_update(self, row: User, values: Mapping[str, Any], actor: Actor) -> None:  # noqa: ARG002
        """Changes the user."""
        services.user_update(user=row, actor=actor)

    def user_change_password(self, request: HttpRequest, id: str, form_url: str = "") -> HttpResponse:  # noqa: A002
        """Sets a password, and notes in the audit trail that it was done."""
        response: HttpResponse = super().user_change_password(request, id, form_url)
        if request.method == "POST" and response.status_code == 302:
            user = User.objects.get(pk=id)
            details = {"password": ["(hidden)", "(hidden)"]}
            audit_record(
                tenant=None, actor=actor_of(request), action=AuditAction.USER_CHANGED, target=user, details=details
            )
        return response


class ApiKeyStateFilter(admin.SimpleListFilter):
    """Keys that work, and keys that ended."""

    title = _("state")
    parameter_name = "state"

    def lookups(self, request: HttpRequest, model_admin: Any) -> list[tuple[str, Any]]:  # noqa: ANN401, ARG002
        """Returns the choices."""
        return [("active", _("Active")), ("expired", _("Expired")), ("revoked", _("Revoked"))]

    def queryset(self, request: HttpRequest, queryset: "QuerySet[ApiKey]") -> "QuerySet[ApiKey]":  # noqa: ARG002
        """Narrows the list."""
        now = timezone.now()
        narrowed = {
            "active": Q(revoked_at__isnull=True) & (Q(expires_at__isnull=True) | Q(expires_at__gt=now)),
            "expired": Q(revoked_at__isnull=True, expires_at__lte=now),
            "revoked": Q(revoked_at__isnull=False),
        }
        return queryset.filter(narrowed.get(self.value() or "", Q()))


@admin.register(ApiKey)
class ApiKeyAdmin(ServiceAdmin):
    """API keys. The answer to a POST that made a key shows it, once; nothing stores it on the way there."""

    form = ApiKeyForm
    list_display = ("name", "key", "tenant", "user", "state", "last_used_at", "expires_at", "created_at")
    list_filter = [ApiKeyStateFilter, ("tenant", RelatedDropdownFilter)]
    list_filter_submit = True
    list_select_related = ("tenant", "user", "successor")
    search_fields = ("name", "public_id", "tenant__name", "tenant__slug", "user__email")
    search_help_text = _("Name, public part of the key, tenant, or the member's email.")
    autocomplete_fields = ("tenant", "user", "allowed_deployments")
    readonly_fields = ("key", "state", "last_used_at", "revoked_at", "created_by", "created_at", "rotated_from")
    actions = ("revoke_chosen",)
    actions_detail = ("rotate", "revoke")
    fieldsets = [
        (None, {"fields": ["name", ("key", "state"), ("tenant", "user"), "expires_at"]}),
        (_("Rights"), {"fields": ["scopes", "is_restricted", "allowed_deployments"]}),
        (
            _("Record"),
            {
                "fields": [("created_by", "created_at"), ("last_used_at", "revoked_at"), "rotated_from"],
                "classes": ["collapse"],
            },
        ),
    ]
    add_fieldsets = [
        (None, {"fields": ["name", ("tenant", "user"), "expires_at", "form_id"]}),
        (_("Rights"), {"fields": ["scopes", "is_restricted", "allowed_deployments"]}),
    ]

    def get_readonly_fields(self, request: HttpRequest, obj: ApiKey | None = None) -> tuple[str, ...]:  # noqa: ARG002
        """Fixes owner and tenant once they are given."""
        return (*self.readonly_fields, "tenant", "user") if obj is not None else self.readonly_fields

    def has_delete_permission(self, request: HttpRequest, obj: ApiKey | None = None) -> bool:  # noqa: ARG002
        """Refuses: a key is revoked, its record stays."""
        return False

    def get_search_results(
        self, request: HttpRequest, queryset: "QuerySet[ApiKey]", search_term: str
    ) -> tuple["QuerySet[ApiKey]", bool]:
        """Finds a key by its public part also where somebody pasted the whole of it."""
        public_id = search_term.strip().removeprefix(f"{PREFIX}-").partition("-")[0]
        term = public_id if search_term.strip().startswith(PREFIX) else search_term
        found: tuple[QuerySet[ApiKey], bool] = super().get_search_results(request, queryset, term)
        return found

    @admin.display(description=_("Key"), ordering="public_id")
    def key(self, api_key: ApiKey) -> str:
        """Returns the public part."""
        return f"{api_key.display_id}-…"

    @display(description=_("State"), label=_STATE_COLOURS)  # type: ignore[untyped-decorator]
    def state(self, api_key: ApiKey) -> object:
        """Returns a coloured word."""
        if api_key.revoked_at is not None:
            return _("revoked")
        if not api_key.is_usable(at=timezone.now()):
            return _("expired")
        return _("rotated") if hasattr(api_key, "successor") else _("active")

    def save_model(self, request: HttpRequest, obj: ApiKey, form: ApiKeyForm, change: bool) -> None:  # type: ignore[override]
        """Hands the form's values to the service; a form that made its key before is refused."""
        if not change:
            form.claim()
        super().save_model(request, obj, form, change)

    def service_create(self, row: ApiKey, values: Mapping[str, Any], actor: Actor) -> None:
        """Makes the key; `response_add` shows its token."""
        _stored, token = services.api_key_create(
            api_key=row, allowed_deployments=values["allowed_deployments"], actor=actor
        )
        row.shown_once = token  # lives as long as this request

    def service_update(self, row: ApiKey, values: Mapping[str, Any], actor: Actor) -> None:
        """Changes the key's name, rights or expiry."""
        services.api_key_update(api_key=row, allowed_deployments=values["allowed_deployments"], actor=actor)

    def response_add(self, request: HttpRequest, obj: ApiKey, post_url_continue: str | None = None) -> HttpResponse:  # noqa: ARG002
        """Shows the new key in this answer: a redirect would have to store it somewhere."""
        token: ApiKeyToken = obj.shown_once
        return self._token_page(request, obj, token, title=_("API key created"))

    @action(  # type: ignore[untyped-decorator]
        description=_("Rotate"), url_path="rotate", permissions=["change"], icon="autorenew"
    )
    def rotate(self, request: HttpRequest, object_id: str) -> HttpResponse:
        """Asks for the grace time, then makes the successor and shows it."""
        api_key = self._found(request, object_id)
        if api_key is None:
            return self._to_list()
        form = RotateForm(request.POST or None)
        if request.method == "POST" and form.is_valid():
            grace = timedelta(hours=form.cleaned_data["grace_hours"])
            try:
                new, token = services.api_key_rotate(api_key=api_key, grace=grace, actor=actor_of(request))
            except ValidationError as error:
                messages.error(request, " ".join(error.messages))
                return self._to_key(api_key)
            return self._token_page(request, new, token, title=_("API key rotated"))
        intro = _("A successor with the same rights is made and shown once. The old key goes on working for a while.")
        return self._confirmation(request, api_key, title=_("Rotate API key"), intro=intro, form=form)

    @action(  # type: ignore[untyped-decorator]
        description=_("Revoke"),
        url_path="revoke",
        permissions=["change"],
        icon="block",
        variant=ActionVariant.DANGER,
    )
    def revoke(self, request: HttpRequest, object_id: str) -> HttpResponse:
        """Asks, then ends the key."""
        api_key = self._found(request, object_id)
        if api_key is None:
            return self._to_list()
        if request.method == "POST":
            services.api_key_revoke(api_key=api_key, actor=actor_of(request))
            messages.success(request, _("The key is revoked; gateways refuse it within a second."))
            return self._to_key(api_key)
        intro = _("Requests with this key are refused within a second. This cannot be undone.")
        return self._confirmation(request, api_key, title=_("Revoke API key"), intro=intro, form=None)

    @admin.action(description=_("Revoke chosen keys"), permissions=["change"])
    def revoke_chosen(self, request: HttpRequest, queryset: "QuerySet[ApiKey]") -> None:
        """Ends the chosen keys."""
        for api_key in queryset:
            services.api_key_revoke(api_key=api_key, actor=actor_of(request))
        count = len(queryset)
        messages.success(request, ngettext("%d key revoked.", "%d keys revoked.", count) % count)

    def _found(self, request: HttpRequest, object_id: str) -> ApiKey | None:
        api_key: ApiKey | None = self.get_object(request, object_id)
        if api_key is None:
            messages.error(request, _("There is no such key."))
        return api_key

    def _to_list(self) -> HttpResponse:
        return HttpResponseRedirect(reverse("admin:accounts_apikey_changelist"))

    def _to_key(self, api_key: ApiKey) -> HttpResponse:
        return HttpResponseRedirect(reverse("admin:accounts_apikey_change", args=[api_key.pk]))

    def _confirmation(
        self, request: HttpRequest, api_key: ApiKey, *, title: object, intro: object, form: RotateForm | None
    ) -> HttpResponse:
        context = {
            **self.admin_site.each_context(request),
            "opts": self.opts,
            "original": api_key,
            "title": title,
            "intro": intro,
            "form": form,
        }
        return TemplateResponse(request, "accounts/admin/api_key_confirm.html", context)

    def _token_page(self, request: HttpRequest, api_key: ApiKey, token: ApiKeyToken, *, title: object) -> HttpResponse:
        context = {
            **self.admin_site.each_context(request),
            "opts": self.opts,
            "original": api_key,
            "title": title,
            "token": token.reveal(),
            "scopes": [ApiKeyScope(scope).label for scope in api_key.scopes],
        }
        response = TemplateResponse(request, "accounts/admin/api_key_token.html", context)
        response["Cache-Control"] = "no-store"
        return response
