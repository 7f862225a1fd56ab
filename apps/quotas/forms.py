"""Forms of plans."""

from typing import Any

from django import forms
from django.utils.translation import gettext_lazy as _
from unfold.widgets import (
    UnfoldAdminCheckboxSelectMultipleWidget,
    UnfoldAdminIntegerFieldWidget,
    UnfoldAdminSelectWidget,
)

from apps.accounts.models import ApiKey
from apps.deployments.models import ModelDeployment
from apps.quotas.enums import Priority
from apps.quotas.models import Plan
from apps.tenants.models import Tenant

_MOST_TOKENS = 2**31 - 1
"""As the API takes them."""


class PlanForm(forms.ModelForm):  # type: ignore[type-arg]  # not generic at run time
    """A plan; priorities are boxes to tick."""

    request_priorities = forms.TypedMultipleChoiceField(
        label=_("Priorities that a request may ask for"),
        choices=Priority.choices,
        coerce=int,
        required=False,
        widget=UnfoldAdminCheckboxSelectMultipleWidget,
        help_text=_("Besides the one above, which a request has that asks for none."),
    )

    class Meta:
        model = Plan
        fields = ["name", "weight", "priority", "request_priorities"]


class SimulationForm(forms.Form):
    """A request that is only thought of."""

    tenant = forms.ModelChoiceField(Tenant.objects.none(), label=_("Tenant"), widget=UnfoldAdminSelectWidget)
    api_key = forms.ModelChoiceField(
        ApiKey.all_tenants.none(),
        label=_("API key"),
        required=False,
        widget=UnfoldAdminSelectWidget,
        help_text=_("Empty: the chat."),
    )
    deployment = forms.ModelChoiceField(
        ModelDeployment.objects.none(), label=_("Deployment"), widget=UnfoldAdminSelectWidget
    )
    prompt_tokens = forms.IntegerField(
        label=_("Prompt tokens"),
        min_value=0,
        max_value=_MOST_TOKENS,
        initial=500,
        widget=UnfoldAdminIntegerFieldWidget,
    )
    max_tokens = forms.IntegerField(
        label=_("Tokens of the answer, at most (max_tokens)"),
        min_value=1,
        max_value=_MOST_TOKENS,
        initial=500,
        widget=UnfoldAdminIntegerFieldWidget,
    )

    def __init__(self, *args: Any, **kwargs: Any) -> None:  # noqa: ANN401
        """Offers what is active."""
        super().__init__(*args, **kwargs)
        self.fields["tenant"].queryset = Tenant.objects.filter(is_active=True)  # type: ignore[attr-defined]
        keys = ApiKey.all_tenants.filter(revoked_at__isnull=True).select_related("tenant")
        self.fields["api_key"].queryset = keys  # type: ignore[attr-defined]
        self.fields["deployment"].queryset = ModelDeployment.objects.filter(is_active=True)  # type: ignore[attr-defined]

    def clean(self) -> dict[str, Any]:
        """Checks that the key is the tenant's.

        Raises:
            ValidationError: it is another's.
        """
        values: dict[str, Any] = super().clean() or {}
        key, tenant = values.get("api_key"), values.get("tenant")
        if key is not None and tenant is not None and key.tenant_id != tenant.pk:
            self.add_error("api_key", _("Belongs to another tenant."))
        return values
