"""The form of a prompt cache. What it accepts, the service accepts as well."""

from typing import Any

from django import forms
from django.core.exceptions import ValidationError
from unfold.widgets import UnfoldAdminTextareaWidget

from apps.caching.models import PromptCache
from apps.caching.prompt_measuring import prompt_cache_measure


class PromptCacheForm(forms.ModelForm):  # type: ignore[type-arg]  # not generic at run time
    """Says while the page is still there whether workers can hold it."""

    class Meta:
        model = PromptCache
        fields = [
            "tenant",
            "deployment",
            "name",
            "system_prompt",
            "tools_text",
            "examples",
            "is_pinned",
            "is_active",
        ]
        widgets = {
            "system_prompt": UnfoldAdminTextareaWidget(attrs={"rows": 10}),
            "tools_text": UnfoldAdminTextareaWidget(attrs={"rows": 4}),
            "examples": UnfoldAdminTextareaWidget(attrs={"rows": 6}),
        }

    def _post_clean(self) -> None:
        """Measures what the fields make together, once each of them is in order."""
        super()._post_clean()  # type: ignore[misc]  # private to Django's forms; there is no public place after clean()
        if self.errors:
            return
        try:
            prompt_cache_measure(self.instance)
        except ValidationError as error:
            self.add_error(None, error)

    def clean_examples(self) -> Any:  # noqa: ANN401  JSON
        """An empty field means none."""
        return self.cleaned_data["examples"] or []
