"""What the usage page can be asked for."""

from django import forms
from django.utils.translation import gettext_lazy as _
from unfold.widgets import UnfoldAdminSelectWidget

from apps.accounts.once_form import OnceForm
from apps.tenants.models import Tenant
from apps.usage.enums import Group

DAYS = ((7, _("7 days")), (30, _("30 days")), (90, _("90 days")))
GROUPS = (Group.DEPLOYMENT, Group.API_KEY, Group.USER, Group.TENANT)


class ReportForm(forms.Form):
    """Whose usage, of how many days, split by what."""

    tenant = forms.ModelChoiceField(
        Tenant.objects.order_by("name"),
        required=False,
        empty_label=_("All tenants"),
        label=_("Tenant"),
        widget=UnfoldAdminSelectWidget,
    )
    days = forms.TypedChoiceField(
        choices=DAYS, coerce=int, required=False, label=_("Time"), widget=UnfoldAdminSelectWidget
    )
    by = forms.TypedChoiceField(
        choices=[(group.value, group.label) for group in GROUPS],
        coerce=Group,
        required=False,
        label=_("Split by"),
        widget=UnfoldAdminSelectWidget,
    )


class OwnKeyForm(OnceForm):
    """A key that a member makes for himself."""

    name = forms.CharField(
        label=_("Name"),
        max_length=100,
        strip=True,
        widget=forms.TextInput(attrs={"placeholder": _("What it is for"), "autocomplete": "off"}),
    )
