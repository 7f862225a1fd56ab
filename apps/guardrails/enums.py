"""Choices of this app's models. What gateways and workers see as well comes from the wire."""

from django.db import models

from headrace_wire import guard_policy, interventions


class PolicyMode(models.TextChoices):
    """Whether a policy acts."""

    DRAFT = "draft", "Draft: does nothing"
    SHADOW = guard_policy.PolicyMode.SHADOW, "Shadow: records, changes nothing"
    ENFORCED = guard_policy.PolicyMode.ENFORCED, "Enforced"


class FailureMode(models.TextChoices):
    """What happens where a judge fails or is late."""

    CLOSED = guard_policy.FailureMode.CLOSED, "Closed: the answer ends with an error"
    OPEN = guard_policy.FailureMode.OPEN, "Open: the answer goes on, recorded as unchecked"


class InputTrip(models.TextChoices):
    """What a caller gets whose request is blocked."""

    REFUSE = guard_policy.InputTrip.REFUSE, "An error (400 content_filter)"
    REPLACE = guard_policy.InputTrip.REPLACE, "The replacement text as the answer"


class Direction(models.TextChoices):
    """Which text a rule judges."""

    OUTPUT = guard_policy.Direction.OUTPUT, "Answers"
    INPUT = guard_policy.Direction.INPUT, "Requests"
    BOTH = guard_policy.Direction.BOTH, "Both"


class Action(models.TextChoices):
    """What a rule does to what it finds."""

    BLOCK = guard_policy.Action.BLOCK, "Block"
    MASK = guard_policy.Action.MASK, "Mask"
    FLAG = guard_policy.Action.FLAG, "Flag"


class Severity(models.TextChoices):
    """How much it matters to who reads the interventions."""

    LOW = guard_policy.Severity.LOW, "Low"
    MEDIUM = guard_policy.Severity.MEDIUM, "Medium"
    HIGH = guard_policy.Severity.HIGH, "High"


class RuleKind(models.TextChoices):
    """What a rule looks for. Values are the wire's tags."""

    LITERALS = "literals", "Words and phrases"
    REGEX = "regex", "Regular expressions"
    PERSONAL_DATA = "personal_data", "Personal data"
    LENGTH = "length", "Length"
    TOPIC = "topic", "Topic, by examples"
    ABUSE = "abuse", "Insults and profanity"
    LANGUAGE = "language", "Language"
    JUDGE = "judge", "Question to another model"


WINDOW_KINDS = frozenset({RuleKind.TOPIC, RuleKind.ABUSE, RuleKind.LANGUAGE, RuleKind.JUDGE})
"""These judge windows, so text waits for them; the others go along with each token."""
MASKING_KINDS = frozenset(RuleKind) - WINDOW_KINDS
"""These know where exactly they found something; a text that is too long is cut there."""


class PersonalDataKind(models.TextChoices):
    """Kinds of personal data, under the names that Presidio's users know."""

    CREDIT_CARD = guard_policy.PersonalDataKind.CREDIT_CARD, "Card numbers"
    IBAN_CODE = guard_policy.PersonalDataKind.IBAN_CODE, "Bank accounts (IBAN)"
    EMAIL_ADDRESS = guard_policy.PersonalDataKind.EMAIL_ADDRESS, "Email addresses"
    PHONE_NUMBER = guard_policy.PersonalDataKind.PHONE_NUMBER, "Phone numbers"
    IP_ADDRESS = guard_policy.PersonalDataKind.IP_ADDRESS, "IP addresses"
    MAC_ADDRESS = guard_policy.PersonalDataKind.MAC_ADDRESS, "MAC addresses"
    URL = guard_policy.PersonalDataKind.URL, "Web addresses"
    US_SSN = guard_policy.PersonalDataKind.US_SSN, "US social security numbers"
    CRYPTO = guard_policy.PersonalDataKind.CRYPTO, "Crypto wallets"


class Outcome(models.TextChoices):
    """What happened."""

    BLOCKED = interventions.Outcome.BLOCKED, "Blocked"
    MASKED = interventions.Outcome.MASKED, "Masked"
    FLAGGED = interventions.Outcome.FLAGGED, "Flagged"
    UNCHECKED = interventions.Outcome.UNCHECKED, "Unchecked: a judge failed"
    FAILED = interventions.Outcome.FAILED, "Ended: a judge failed"
