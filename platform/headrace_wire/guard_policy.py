"""Guardrail policies as they travel: made in the admin, judged in gateways (input) and workers (input and output).

A policy's body may be large (word lists), so requests and the snapshot name it by its digest; the body lies in Redis
under `redis_keys.guard_policy_key`, content-addressed: a running stream keeps the version that it was admitted with.
"""

import hashlib
from enum import StrEnum

import msgspec
from msgspec import Struct


class Direction(StrEnum):
    """Which text a rule judges."""

    INPUT = "input"
    OUTPUT = "output"
    BOTH = "both"


class Action(StrEnum):
    """What a rule does to what it finds, from the mildest to the strictest."""

    FLAG = "flag"
    """Recorded; the text stays."""
    MASK = "mask"
    """What was found is replaced by the rule's mask; the rest stays."""
    BLOCK = "block"
    """The answer ends and the policy's replacement stands in its place; a request is refused."""


class Severity(StrEnum):
    """How much it matters to who reads the interventions."""

    LOW = "low"
    MEDIUM = "medium"
    HIGH = "high"


class PolicyMode(StrEnum):
    """Drafts are not published, so they have no value here."""

    SHADOW = "shadow"
    """Judge and record; change nothing."""
    ENFORCED = "enforced"


class FailureMode(StrEnum):
    """What happens where a judge fails or is late."""

    CLOSED = "closed"
    """The stream ends with an error."""
    OPEN = "open"
    """The stream goes on and is recorded as unchecked."""


class InputTrip(StrEnum):
    """What a caller gets whose request is blocked."""

    REFUSE = "refuse"
    """HTTP 400 `content_filter`."""
    REPLACE = "replace"
    """The policy's replacement as the answer."""


class ExcerptRetention(StrEnum):
    """What an intervention keeps of the text that caused it."""

    NONE = "none"
    HASH = "hash"
    REDACTED = "redacted"
    """The first and the last character, and how much was between."""
    FULL = "full"


class PersonalDataKind(StrEnum):
    """Kinds of personal data, under the entity names that Presidio's users know."""

    CREDIT_CARD = "CREDIT_CARD"
    IBAN_CODE = "IBAN_CODE"
    EMAIL_ADDRESS = "EMAIL_ADDRESS"
    PHONE_NUMBER = "PHONE_NUMBER"
    IP_ADDRESS = "IP_ADDRESS"
    MAC_ADDRESS = "MAC_ADDRESS"
    URL = "URL"
    US_SSN = "US_SSN"
    CRYPTO = "CRYPTO"


class Rule(Struct, frozen=True, kw_only=True, omit_defaults=True, tag_field="kind"):
    """What all rules have."""

    key: str
    """Stable name of the rule across versions of its policy (UUID, 32 hex digits)."""
    name: str = ""
    applies_to: Direction = Direction.OUTPUT
    action: Action = Action.BLOCK
    severity: Severity = Severity.MEDIUM
    mask: str = ""
    """What stands in the place of a masked span; empty for the name of what was found."""
    replacement: str = ""
    """What stands in the place of a blocked answer; empty for the policy's."""


class LiteralRule(Rule, frozen=True, kw_only=True, omit_defaults=True, tag="literals"):
    """Words and phrases; case, accents, width, zero-width characters and look-alikes do not matter."""

    words: tuple[str, ...]
    whole_words: bool = True
    """Not inside of longer words."""


class RegexRule(Rule, frozen=True, kw_only=True, omit_defaults=True, tag="regex"):
    """Regular expressions in the syntax of `re`, without what needs backtracking (back-references, look-around)."""

    patterns: tuple[str, ...]
    case_sensitive: bool = False


class PersonalDataRule(Rule, frozen=True, kw_only=True, omit_defaults=True, tag="personal_data"):
    """Personal data by kind, each with its own action; `action` is that of none."""

    kinds: dict[PersonalDataKind, Action]
    phone_regions: tuple[str, ...] = ()
    """ISO 3166 codes whose national phone numbers are known too, not only international ones."""


class LengthRule(Rule, frozen=True, kw_only=True, omit_defaults=True, tag="length"):
    """No more than so many characters."""

    max_characters: int


class TopicRule(Rule, frozen=True, kw_only=True, omit_defaults=True, tag="topic"):
    """Texts that mean something like one of the examples: cosine similarity of sentence embeddings."""

    examples: tuple[str, ...]
    threshold: float = 0.5


class AbuseRule(Rule, frozen=True, kw_only=True, omit_defaults=True, tag="abuse"):
    """Insults and profanity, by the bundled classifier."""

    threshold: float = 0.95


class LanguageRule(Rule, frozen=True, kw_only=True, omit_defaults=True, tag="language"):
    """Only these languages."""

    allowed: tuple[str, ...]
    """ISO 639-1 codes."""


class JudgeRule(Rule, frozen=True, kw_only=True, omit_defaults=True, tag="judge"):
    """Asks another deployment, whose answer is held to yes or no."""

    deployment: str
    """Its public model name."""
    question: str
    """Yes means that the rule has found something."""


LightRule = LiteralRule | RegexRule | PersonalDataRule | LengthRule
"""Rules that judge character by character, in the process that has the text."""

WindowRule = TopicRule | AbuseRule | LanguageRule | JudgeRule
"""Rules that judge windows, elsewhere; these can fail and be late."""

AnyRule = LightRule | WindowRule


class GuardPolicy(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One version of one policy."""

    key: str
    """UUID, 32 hex digits."""
    name: str
    version: int
    mode: PolicyMode = PolicyMode.ENFORCED
    failure_mode: FailureMode = FailureMode.CLOSED
    on_input_trip: InputTrip = InputTrip.REFUSE
    replacement: str = "I cannot help with that."
    chunk_size: int = 16
    """Tokens between two windows."""
    context_size: int = 8
    """Tokens that two windows share; the longest thing that can be found across their edge."""
    judge_deadline_seconds: float = 5.0
    stream_first: bool = False
    """UNSAFE: text goes out before its window was judged and is retracted afterwards."""
    rules: tuple[AnyRule, ...] = ()


class GuardTerms(Struct, frozen=True, omit_defaults=True):
    """What a request carries of the policies that apply to it."""

    policies: tuple[str, ...] = ()
    """Digests (`policy_digest`)."""
    input_texts: tuple[str, ...] = ()
    """What window rules for the input are to judge, each for itself: earlier messages, then the request. Empty where no
    policy has such a rule.
    """
    excerpts: ExcerptRetention = ExcerptRetention.REDACTED
    answer: str | None = None
    """The request was blocked, and this is to stand in the place of an answer; nothing is generated."""


class GuardAttachment(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Where an active policy applies, as the snapshot says it. All that is None applies to all."""

    digest: str
    name: str
    tenant_id: str | None = None
    deployment_id: str | None = None
    api_key_id: str | None = None


_encoder = msgspec.msgpack.Encoder(order="deterministic")
_decoder = msgspec.msgpack.Decoder(GuardPolicy)


def encode_policy(policy: GuardPolicy) -> bytes:
    """Return the msgpack form; equal policies encode to equal bytes."""
    return _encoder.encode(policy)


def decode_policy(data: bytes) -> GuardPolicy:
    """Read what `encode_policy` wrote.

    Raises:
        msgspec.DecodeError: it is not a policy, or has a rule that this version does not know.
    """
    return _decoder.decode(data)


def policy_digest(data: bytes) -> str:
    """Return the name of an encoded policy."""
    return hashlib.sha256(data).hexdigest()[:32]
