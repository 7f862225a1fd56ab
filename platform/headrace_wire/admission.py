"""What admission decides by: the terms of one request, and the answer. The decision itself is `lua/admit.lua`."""

from enum import StrEnum

from msgspec import Struct

NO_LIMIT = -1


class QuotaTerms(Struct, frozen=True, array_like=True):
    """One quota that covers a request, as the Redis functions take it; -1 is "no such limit"."""

    id: str
    rpm_limit: int = NO_LIMIT
    tpm_limit: int = NO_LIMIT
    max_parallel_requests: int = NO_LIMIT
    token_budget: int = NO_LIMIT
    max_budget_micros: int = NO_LIMIT
    soft_budget_micros: int = NO_LIMIT
    period: str = ""
    """Name of the budget's period in which the gateway's clock is."""
    period_end_ms: int = 0
    """Unix milliseconds. Redis' clock decides: from here on the next period counts."""
    next_period: str = ""
    next_end_ms: int = 0


class Prices(Struct, frozen=True, array_like=True):
    """Millionths of the currency unit per million tokens."""

    prompt: int = 0
    cached: int = 0
    completion: int = 0


class Payer(Struct, frozen=True, array_like=True):
    """Whom the usage is booked to; ids, empty where there is none."""

    api_key_id: str = ""
    user_id: str = ""
    deployment_id: str = ""
    adapter: str = ""
    """Name of the LoRA adapter, for the ledger."""


class AdmissionTerms(Struct, frozen=True, array_like=True):
    """What one request may use at most, what that costs, and the quotas that it must pass, all of them."""

    prompt_tokens: int
    """As the deployment's tokenizer counts, or an upper bound where the worker renders."""
    max_tokens: int
    prices: Prices = Prices()
    payer: Payer = Payer()
    quotas: tuple[QuotaTerms, ...] = ()
    band: int = 1
    """Priority in the fair queue, 0 (first) to 3."""
    weight: float = 1.0
    """The tenant's share in its band, beside other tenants' weights."""


class RefusalKind(StrEnum):
    """Which limit a request does not fit in."""

    RPM = "rpm"
    TPM = "tpm"
    TOKENS = "tokens"
    """The period's token budget."""
    MONEY = "money"
    TOO_LARGE = "too_large"
    """More tokens than `tpm_limit` gives in a whole minute: it never fits."""


class Refusal(Struct, frozen=True):
    """Why a request was not admitted; nothing was counted."""

    kind: RefusalKind
    quota_id: str
    retry_after_seconds: float
    """When it would fit if nobody else came; the period's end for budgets; -1 for never."""


class RateLimit(Struct, frozen=True):
    """The tightest limit of a kind, as the `x-ratelimit` headers tell it."""

    limit: int
    remaining: int
    reset_seconds: float
    """Until all of it is there again."""


class Rates(Struct, frozen=True):
    """After the decision; None where no quota limits it."""

    requests: RateLimit | None = None
    tokens: RateLimit | None = None
