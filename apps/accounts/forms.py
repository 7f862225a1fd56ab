"""Forms of users, API keys and sign-in."""

from typing import Any

from django import forms
from django.contrib.auth.forms import AuthenticationForm
from django.core.exceptions import ValidationError
from django.utils.translation import gettext_lazy as _
from unfold.forms import UserChangeForm as UnfoldUserChangeForm
from unfold.forms import UserCreationForm as UnfoldUserCreationForm
from unfold.widgets import UnfoldAdminCheckboxSelectMultipleWidget, UnfoldAdminIntegerFieldWidget

from apps.accounts import sign_in_throttle
from apps.accounts.enums import ApiKeyScope
from apps.accounts.models import ApiKey, User
from apps.accounts.once_form import OnceForm
from apps.accounts.services import DEFAULT_SCOPES, ROTATION_GRACE

_MAX_GRACE_HOURS = 30 * 24


class UserAddForm(UnfoldUserCreationForm):  # type: ignore[misc]  # unfold ships no types
    """A new user with a first password, or without one."""

    class Meta:
        model = User
        fields = ("email", "full_name", "is_staff", "is_superuser")


class UserChangeForm(UnfoldUserChangeForm):  # type: ignore[misc]  # unfold ships no types
    """A user's data; the password has its own page."""

    class Meta:
        model = User
        fields = "__all__"  # the admin's fieldsets choose


class ApiKeyForm(OnceForm, forms.ModelForm):  # type: ignore[type-arg]  # not generic at run time
    """A key's name, owner and rights."""

    scopes = forms.MultipleChoiceField(
        choices=ApiKeyScope.choices,
        initial=[scope.value for scope in DEFAULT_SCOPES],
        widget=UnfoldAdminCheckboxSelectMultipleWidget,
        help_text=_("What the key may be used for."),
    )

    class Meta:
        model = ApiKey
        fields = [
            "name",
            "tenant",
            "user",
            "expires_at",
            "scopes",
            "is_restricted",
            "allowed_deployments",
        ]


class RotateForm(forms.Form):
    """How long the old key goes on working."""

    grace_hours = forms.IntegerField(
        label=_("Hours that the old key goes on working"),
        min_value=0,
        max_value=_MAX_GRACE_HOURS,
        initial=int(ROTATION_GRACE.total_seconds()) // 3600,
        widget=UnfoldAdminIntegerFieldWidget,
        help_text=_("0 ends it at once."),
    )


class SignInForm(AuthenticationForm):
    """Email and password, with a pause after many failures."""

    error_messages = {
        **AuthenticationForm.error_messages,
        "invalid_login": _("Email and password do not match."),
        "paused": _("Too many attempts. Try again in some minutes."),
    }

    def __init__(self, *args: Any, **kwargs: Any) -> None:  # noqa: ANN401
        """Prepares the fields for browsers' password managers."""
        super().__init__(*args, **kwargs)
        self.fields["username"].widget = forms.EmailInput(
            attrs={"autofocus": True, "autocomplete": "username", "maxlength": 254}
        )
        self.fields["username"].label = _("Email")

    def clean(self) -> dict[str, Any]:
        """Authenticates.

        Raises:
            ValidationError: They do not match, or the pause is on.
        """
        email = self.cleaned_data.get("username") or ""
        address = self.request.META.get("REMOTE_ADDR", "") if self.request is not None else ""
        if sign_in_throttle.is_paused(email=email, address=address):
            raise ValidationError(self.error_messages["paused"], code="paused")
        try:
            values = super().clean()
        except ValidationError:
            sign_in_throttle.failure_count(email=email, address=address)
            raise
        sign_in_throttle.failures_forget(email=email, address=address)
        return values
