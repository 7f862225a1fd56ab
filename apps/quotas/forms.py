"""Forms of plans."""

from django import forms
from django.utils.translation import gettext_lazy as _
from unfold.widgets import UnfoldAdminCheckboxSelectMultipleWidget

from apps.quotas.enums import Priority
from apps.quotas.models import Plan


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
