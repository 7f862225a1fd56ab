"""What operators choose and say about live streams."""

from typing import Any

from django import forms
from django.utils.translation import gettext_lazy as _
from unfold.widgets import (
    UnfoldAdminDecimalFieldWidget,
    UnfoldAdminSelectWidget,
    UnfoldAdminTextInputWidget,
    UnfoldBooleanSwitchWidget,
)

from apps.deployments.models import ModelDeployment
from apps.ops.live_streams.selectors import StreamFilter
from apps.ops.live_streams.services import LONGEST_DRAIN_SECONDS
from apps.tenants.models import Tenant
from headrace_wire.messages import StreamState

STATES = [(state.value, state.value) for state in StreamState if not state.is_terminal]
NOTE_LENGTH = 200


class FilterForm(forms.Form):
    """Which streams are listed. What nobody can mean (a worker that has ended meanwhile) is as if it were not there."""

    deployment = forms.ChoiceField(label=_("Deployment"), required=False, widget=UnfoldAdminSelectWidget)
    tenant = forms.ModelChoiceField(
        Tenant.objects.order_by("name"),
        label=_("Tenant"),
        required=False,
        empty_label=_("all"),
        widget=UnfoldAdminSelectWidget,
    )
    worker = forms.CharField(label=_("Worker"), required=False, max_length=64, widget=UnfoldAdminTextInputWidget)
    state = forms.ChoiceField(
        label=_("State"), required=False, choices=[("", _("all")), *STATES], widget=UnfoldAdminSelectWidget
    )

    def __init__(self, *args: Any, **kwargs: Any) -> None:  # noqa: ANN401
        """Offers the deployments that there are."""
        super().__init__(*args, **kwargs)
        self.deployments = list(ModelDeployment.objects.order_by("name").values_list("name", flat=True))
        deployment: Any = self.fields["deployment"]
        deployment.choices = [("", _("all")), *((name, name) for name in self.deployments)]

    def wanted(self) -> StreamFilter:
        """Returns what is asked for; fields that cannot be read are left out, and show their errors."""
        self.is_valid()
        chosen = self.cleaned_data
        tenant, state = chosen.get("tenant"), chosen.get("state")
        return StreamFilter(
            deployment=chosen.get("deployment", ""),
            tenant_id=tenant.pk.hex if tenant is not None else "",
            worker=chosen.get("worker", ""),
            state=StreamState(state) if state else None,
        )


class NoteForm(forms.Form):
    """Why something is done, for the audit trail."""

    note = forms.CharField(
        label=_("Why"),
        required=False,
        max_length=NOTE_LENGTH,
        help_text=_("Stands in the audit trail and in the worker's log; clients do not see it."),
        widget=UnfoldAdminTextInputWidget,
    )


class DrainForm(NoteForm):
    """How a worker is drained."""

    deadline_seconds = forms.FloatField(
        label=_("Let streams finish for (seconds)"),
        initial=60,
        min_value=0,
        max_value=LONGEST_DRAIN_SECONDS,
        help_text=_("What is left then goes on at other workers, token for token; 0 hands everything over at once."),
        widget=UnfoldAdminDecimalFieldWidget,
    )
    leave = forms.BooleanField(
        label=_("End the process when it is drained"),
        required=False,
        help_text=_("Else it stays, and takes streams again when you resume it."),
        widget=UnfoldBooleanSwitchWidget,
    )

    field_order = ("deadline_seconds", "leave", "note")
