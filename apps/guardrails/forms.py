"""Forms of policies and rules. What they accept, the services accept as well."""

import json
from typing import Any

from django import forms
from django.core.exceptions import ValidationError
from django.utils.translation import gettext_lazy as _
from unfold.forms import PaginationInlineFormSet
from unfold.widgets import UnfoldAdminFileFieldWidget, UnfoldAdminSelectWidget, UnfoldAdminTextareaWidget

from apps.guardrails.enums import RuleKind
from apps.guardrails.form_fields import CodesField, LinesField, PersonalDataField, WordsFileField
from apps.guardrails.models import GuardrailAttachment, GuardrailPolicy, GuardrailRule
from apps.guardrails.models.rules import KIND_FIELDS
from apps.guardrails.validation import judge_check, rule_check

_LAST = 1_000_000
_SHOWN_FOR = {kind: [*names, *(["words_file"] if "words" in names else [])] for kind, names in KIND_FIELDS.items()}


class PolicyForm(forms.ModelForm):  # type: ignore[type-arg]  # not generic at run time
    """A policy without its rules."""

    confirm_unsafe = forms.BooleanField(
        label=_("I know that people may read what this policy would have blocked"),
        required=False,
        help_text=_("Needed to turn the unsafe way on."),
    )

    class Meta:
        model = GuardrailPolicy
        fields = [
            "tenant",
            "name",
            "mode",
            "failure_mode",
            "on_input_trip",
            "replacement",
            "chunk_size",
            "context_size",
            "judge_deadline_seconds",
            "stream_first",
            "is_restricted",
        ]

    def clean(self) -> dict[str, Any]:
        """Asks twice before text goes out unjudged.

        Raises:
            ValidationError: It is turned on without the tick.
        """
        values: dict[str, Any] = super().clean() or {}
        turns_on = values.get("stream_first") and "stream_first" in self.changed_data
        if turns_on and not values.get("confirm_unsafe"):
            self.add_error("confirm_unsafe", _("Tick this as well, or leave stream_first off: it is unsafe."))
        return values


class RuleForm(forms.ModelForm):  # type: ignore[type-arg]  # not generic at run time
    """A rule; the page shows the fields of its kind."""

    words = LinesField(
        has_comments=True,
        rows=5,
        label=_("Words and phrases"),
        help_text=_(
            "One per line, at most 20,000; lines that begin with # do not count. Case, accents, look-alike letters and"
            " invisible characters make no difference."
        ),
    )
    words_file = WordsFileField(
        label=_("Add from a file"),
        required=False,
        widget=UnfoldAdminFileFieldWidget,
        help_text=_("UTF-8 text, one per line; added to those above, each once."),
    )
    patterns = LinesField(
        label=_("Patterns"),
        help_text=_(
            "One regular expression per line, as in Python's re. They are judged while the text arrives, in steady"
            " time; so there are no back-references and no look-around."
        ),
    )
    personal_data = PersonalDataField(
        label=_("Personal data"), help_text=_("Card numbers and IBANs count if their check digits are right.")
    )
    phone_regions = CodesField(
        label=_("National phone numbers"),
        help_text=_("Countries whose numbers are known without +41 and the like: CH, DE, US, ..."),
    )
    examples = LinesField(
        label=_("Example sentences"),
        help_text=_("One per line; found is what means something like one of them. Short and varied ones work best."),
    )
    languages = CodesField(
        label=_("Allowed languages"), help_text=_("Codes like en, de, fr. Other languages are found.")
    )

    class Meta:
        model = GuardrailRule
        fields = [
            "kind",
            "name",
            "applies_to",
            "action",
            "severity",
            "mask",
            "replacement",
            "words",
            "whole_words",
            "patterns",
            "case_sensitive",
            "personal_data",
            "phone_regions",
            "max_characters",
            "examples",
            "threshold",
            "languages",
            "judge_deployment",
            "question",
            "position",
        ]
        widgets = {
            "kind": UnfoldAdminSelectWidget(attrs={"data-shown-for": json.dumps(_SHOWN_FOR)}),
            "question": UnfoldAdminTextareaWidget(attrs={"rows": 2}),
        }

    def clean(self) -> dict[str, Any]:
        """Adds what the file has to the words.

        Raises:
            ValidationError: The file cannot be read.
        """
        values: dict[str, Any] = super().clean() or {}
        words, field = self.fields["words"], self.fields["words_file"]
        if isinstance(words, LinesField) and isinstance(field, WordsFileField) and values.get("words_file"):
            try:
                values["words"] = [*values.get("words", []), *field.lines(values["words_file"], words)]
            except ValidationError as error:
                self.add_error("words_file", error)
        return values

    def _post_clean(self) -> None:
        """Compiles the rule once its fields are right, so that a bad pattern is told beside it."""
        super()._post_clean()  # type: ignore[misc]  # Django's own, untyped
        if self.errors:
            return
        try:
            rule_check(self.instance)
        except ValidationError as error:
            self.add_error(None, error)


class _PolicyFormSet(PaginationInlineFormSet):  # type: ignore[misc]  # unfold ships no types
    """Forms of one policy, which may not be stored yet."""

    def _construct_form(self, i: int, **kwargs: Any) -> Any:  # noqa: ANN401
        form = super()._construct_form(i, **kwargs)
        form.instance.policy = self.instance
        return form

    def rows(self) -> list[Any]:
        """Returns what is to be stored, unsaved, in the order of the page."""
        gone = self.deleted_forms
        there = [form for form in self.forms if form not in gone and (form in self.initial_forms or form.has_changed())]
        stored = self.initial_forms
        return [form.instance for form in sorted(there, key=lambda form: self._place(form, is_stored=form in stored))]

    def _place(self, form: Any, *, is_stored: bool) -> int:  # noqa: ANN401
        """Returns where the form stands; those that were added stand at the end, in their order."""
        place = form.cleaned_data.get("position")
        return int(place) if is_stored and place is not None else _LAST


class RuleFormSet(_PolicyFormSet):
    """The rules of a policy."""

    def clean(self) -> None:
        """Checks what concerns several forms.

        Raises:
            ValidationError: There is no rule, or a judge that cannot judge this policy.
        """
        super().clean()
        if any(self.errors):
            return
        if not self.rows():
            raise ValidationError(
                _("A policy without rules judges nothing. Add at least one rule."), code="empty_policy"
            )
        for rule in self.rows():
            if rule.kind == RuleKind.JUDGE and rule.judge_deployment is not None:
                judge_check(rule.judge_deployment, self.instance.tenant)


class AttachmentFormSet(_PolicyFormSet):
    """Where a policy applies."""


class AttachmentForm(forms.ModelForm):  # type: ignore[type-arg]  # not generic at run time
    """One place."""

    class Meta:
        model = GuardrailAttachment
        fields = ["tenant", "deployment", "api_key"]
