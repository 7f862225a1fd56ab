"""A form whose answer is shown without a redirect: what reloading the page sends again is told from a second wish."""

import secrets

from django import forms
from django.core.cache import cache
from django.core.exceptions import ValidationError
from django.utils.translation import gettext_lazy as _

_REMEMBERED_SECONDS = 24 * 3600


def _new_form_id() -> str:
    return secrets.token_urlsafe(12)


class OnceForm(forms.Form):
    """Has a hidden id, which counts once."""

    form_id = forms.CharField(required=False, max_length=64, widget=forms.HiddenInput, initial=_new_form_id)

    def claim(self) -> None:
        """Note that this form is being acted on.

        Raises:
            ValidationError: it was before.
        """
        form_id = self.cleaned_data.get("form_id")
        if form_id and not cache.add(f"once-form:{form_id}", 1, timeout=_REMEMBERED_SECONDS):
            raise ValidationError(
                _("This form was sent before and has made its key, which is in the list. A key is shown once only.")
            )
