"""Rules of policies. Which fields count is a matter of the kind."""

import re
import uuid
from typing import Any

from django.core.exceptions import ValidationError
from django.core.validators import MaxValueValidator, MinValueValidator, RegexValidator
from django.db import models
from django.db.models import Q
from django.utils.translation import gettext_lazy as _

from apps.deployments.models import ModelDeployment
from apps.guardrails.enums import (
    MASKING_KINDS,
    Action,
    Direction,
    PersonalDataKind,
    RuleKind,
    Severity,
)
from apps.guardrails.languages import LANGUAGES
from apps.guardrails.models.policies import GuardrailPolicy

MAX_WORDS = 20_000
MAX_PATTERNS = 200
MAX_EXAMPLES = 200
MAX_TEXT = 500
"""Characters of a word or an example."""
MAX_PATTERN = 10_000

KIND_FIELDS: dict[str, tuple[str, ...]] = {
    RuleKind.LITERALS: ("words", "whole_words"),
    RuleKind.REGEX: ("patterns", "case_sensitive"),
    RuleKind.PERSONAL_DATA: ("personal_data", "phone_regions"),
    RuleKind.LENGTH: ("max_characters",),
    RuleKind.TOPIC: ("examples", "threshold"),
    RuleKind.ABUSE: ("threshold",),
    RuleKind.LANGUAGE: ("languages",),
    RuleKind.JUDGE: ("judge_deployment", "question"),
}
"""The fields that a rule of each kind has besides the common ones."""

_LISTS = {"words": MAX_WORDS, "patterns": MAX_PATTERNS, "examples": MAX_EXAMPLES}
_EMPTY = {
    RuleKind.LITERALS: _("Give at least one word or phrase."),
    RuleKind.REGEX: _("Give at least one pattern."),
    RuleKind.PERSONAL_DATA: _("Choose at least one kind of personal data."),
    RuleKind.LENGTH: _("Give the most characters that a text may have."),
    RuleKind.TOPIC: _("Give at least one example sentence."),
    RuleKind.LANGUAGE: _("Give at least one language that is allowed."),
    RuleKind.JUDGE: _("Choose the deployment that answers."),
}


class GuardrailRule(models.Model):
    """One thing that a policy looks for."""

    id = models.UUIDField(primary_key=True, default=uuid.uuid4, editable=False)
    policy = models.ForeignKey(GuardrailPolicy, on_delete=models.CASCADE, related_name="rules")
    position = models.PositiveIntegerField(default=0)
    kind = models.CharField(_("looks for"), max_length=16, choices=RuleKind, default=RuleKind.PERSONAL_DATA)
    name = models.CharField(max_length=100, blank=True, help_text=_("Stands in the interventions. Empty: its kind."))
    applies_to = models.CharField(max_length=16, choices=Direction, default=Direction.OUTPUT)
    action = models.CharField(
        max_length=16,
        choices=Action,
        default=Action.BLOCK,
        help_text=_("Block ends the text, mask hides what was found, flag only records it."),
    )
    severity = models.CharField(max_length=16, choices=Severity, default=Severity.MEDIUM)
    mask = models.CharField(
        max_length=50,
        blank=True,
        validators=[
            RegexValidator(
                r"^[^\"'\\\x00-\x1f\x7f]*\Z",
                _("No quotes, backslashes or line breaks: they would break JSON around it."),
            )
        ],
        help_text=_("Stands in the place of what is masked. Empty: the name of what was found, e.g. ⟦CREDIT_CARD⟧."),
    )
    replacement = models.CharField(
        _("replacement text"), max_length=2000, blank=True, help_text=_("When it blocks. Empty: the policy's.")
    )
    words = models.JSONField(_("words and phrases"), default=list, blank=True)
    whole_words = models.BooleanField(default=True, help_text=_("Not inside of longer words."))
    patterns = models.JSONField(default=list, blank=True)
    case_sensitive = models.BooleanField(default=False)
    personal_data = models.JSONField(
        _("kinds of personal data"), default=dict, blank=True, help_text=_("Each kind with what happens to it.")
    )
    phone_regions = models.JSONField(
        default=list,
        blank=True,
        help_text=_("Countries (CH, DE, US, ...) whose national phone numbers are known besides international ones."),
    )
    max_characters = models.PositiveIntegerField(
        _("most characters"), null=True, blank=True, validators=[MinValueValidator(1)]
    )
    examples = models.JSONField(_("example sentences"), default=list, blank=True)
    threshold = models.FloatField(
        null=True,
        blank=True,
        validators=[MinValueValidator(0.0), MaxValueValidator(1.0)],
        help_text=_("0 to 1: how sure it must be. Lower finds more, and more that is innocent. Empty: as measured."),
    )
    languages = models.JSONField(
        _("allowed languages"), default=list, blank=True, help_text=_("Codes like en, de, fr. Others are found.")
    )
    judge_deployment = models.ForeignKey(
        ModelDeployment,
        on_delete=models.PROTECT,
        null=True,
        blank=True,
        related_name="judges",
        verbose_name=_("deployment that answers"),
    )
    question = models.CharField(
        max_length=2000, blank=True, help_text=_("To be answered with yes or no; yes means that it found something.")
    )

    class Meta:
        ordering = ["policy", "position", "id"]
        verbose_name = _("rule")
        constraints = [
            models.CheckConstraint(
                condition=Q(
                    kind__in=RuleKind.values,
                    applies_to__in=Direction.values,
                    action__in=Action.values,
                    severity__in=Severity.values,
                ),
                name="guardrail_rule_choices_known",
            ),
            models.CheckConstraint(
                condition=Q(threshold__isnull=True) | Q(threshold__gte=0, threshold__lte=1),
                name="guardrail_rule_threshold_in_range",
            ),
            models.CheckConstraint(
                condition=~Q(kind=RuleKind.LENGTH) | Q(max_characters__gte=1),
                name="guardrail_rule_length_has_a_limit",
                violation_error_message=_EMPTY[RuleKind.LENGTH],
            ),
            models.CheckConstraint(
                condition=~Q(kind=RuleKind.JUDGE) | (Q(judge_deployment__isnull=False) & ~Q(question="")),
                name="guardrail_rule_judge_has_a_question",
                violation_error_message=_("A question needs a deployment that answers it, and its text."),
            ),
            models.CheckConstraint(
                condition=~Q(action=Action.MASK) | Q(kind__in=[str(kind) for kind in sorted(MASKING_KINDS)]),
                name="guardrail_rule_masks_what_has_a_place",
                violation_error_message=_(
                    "Only words, patterns, personal data and length can be masked; block or flag it."
                ),
            ),
        ]

    def __str__(self) -> str:
        return self.name or self.get_kind_display()

    def clean(self) -> None:
        """Checks what a column cannot, brings lists into their stored form, and empties what the kind does not have.

        Raises:
            ValidationError: Something that the kind needs is missing or makes no sense; the message says what to do.
        """
        if self.kind not in RuleKind.values:
            return  # the field's own error says so
        self._forget_other_kinds()
        for name, most in _LISTS.items():
            setattr(self, name, _clean_list(name, getattr(self, name), most))
        self.phone_regions = _clean_codes("phone_regions", self.phone_regions, upper=True)
        self.languages = _clean_codes("languages", self.languages, upper=False)
        unknown = [code for code in self.languages if code not in LANGUAGES]
        if unknown:
            raise ValidationError(
                {"languages": _("“%s” is a language that cannot be told; leave it out.") % unknown[0]},
                code="unknown_language",
            )
        self.personal_data = _clean_kinds(self.personal_data)
        first, *_others = KIND_FIELDS[self.kind]
        if first != "threshold" and not getattr(self, first):
            raise ValidationError({first: _EMPTY[RuleKind(self.kind)]}, code="empty_rule")
        if self.kind == RuleKind.JUDGE and not self.question.strip():
            raise ValidationError({"question": _("Give the question.")}, code="empty_rule")

    def _forget_other_kinds(self) -> None:
        mine = KIND_FIELDS[self.kind]
        for name in {name for names in KIND_FIELDS.values() for name in names}.difference(mine):
            field: Any = self._meta.get_field(name)
            setattr(self, name, field.get_default())


def _clean_list(name: str, value: object, most: int) -> list[str]:
    """Returns the texts, each once; case does not tell words apart."""
    if not isinstance(value, list) or not all(isinstance(text, str) for text in value):
        raise ValidationError({name: _("One text per line.")}, code="not_a_list")
    kept: dict[str, str] = {}
    for text in value:
        tidy = text.strip() if name != "patterns" else text
        longest = MAX_PATTERN if name == "patterns" else MAX_TEXT
        if len(tidy) > longest:
            raise ValidationError(
                {
                    name: _("“%(start)s…” is longer than %(most)d characters; shorten it.")
                    % {"start": tidy[:40], "most": longest}
                },
                code="too_long",
            )
        if "\0" in tidy:
            raise ValidationError({name: _("Null characters are not allowed.")}, code="null")
        if tidy:
            kept.setdefault(tidy.casefold() if name == "words" else tidy, tidy)
    if len(kept) > most:
        sizes = {"count": f"{len(kept):,}", "most": f"{most:,}"}
        raise ValidationError(
            {name: _("%(count)s lines; at most %(most)s fit into one rule. Split them over several.") % sizes},
            code="too_many",
        )
    return list(kept.values())


def _clean_codes(name: str, value: object, *, upper: bool) -> list[str]:
    if not isinstance(value, list) or not all(isinstance(code, str) for code in value):
        raise ValidationError({name: _("A list of two-letter codes.")}, code="not_a_list")
    codes = [code.strip().upper() if upper else code.strip().lower() for code in value]
    wrong = [code for code in codes if not re.fullmatch(r"[A-Za-z]{2}", code)]
    if wrong:
        raise ValidationError({name: _("“%s” is not a two-letter code.") % wrong[0]}, code="unknown_code")
    return list(dict.fromkeys(codes))


def _clean_kinds(value: object) -> dict[str, str]:
    if not isinstance(value, dict):
        raise ValidationError({"personal_data": _("An object of kinds and actions.")}, code="not_an_object")
    chosen = {kind: action for kind, action in value.items() if action}
    if not set(chosen) <= set(PersonalDataKind.values) or not set(chosen.values()) <= set(Action.values):
        raise ValidationError({"personal_data": _("Choose from the known kinds and actions.")}, code="unknown_kind")
    return {kind: chosen[kind] for kind in PersonalDataKind.values if kind in chosen}
