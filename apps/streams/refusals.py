"""What a caller is told whom admission refused."""

from headrace_wire.admission import Rates, Refusal, RefusalKind
from headrace_wire.errors import ClientError, InsufficientQuotaError, RateLimitError, RequestTooLargeError
from headrace_wire.snapshot import QuotaConfig, QuotaScope

_WHOSE = {
    QuotaScope.GLOBAL: "all tenants together",
    QuotaScope.DEPLOYMENT: "this model, all tenants together",
    QuotaScope.TENANT: "your organization",
    QuotaScope.MEMBER: "your account",
    QuotaScope.API_KEY: "this API key",
}


def refusal_error(refusal: Refusal, rates: Rates, quota: QuotaConfig | None, *, tokens: int) -> ClientError:
    """Return the error; `tokens` is what the request asked for, prompt and answer. A budget's amount stays untold."""
    whose = _WHOSE[quota.scope] if quota is not None else "your organization"
    error: ClientError
    if refusal.kind in (RefusalKind.MONEY, RefusalKind.TOKENS):
        what = "budget" if refusal.kind is RefusalKind.MONEY else "token budget"
        error = InsufficientQuotaError(
            f"The {what} of {whose} does not cover this request before its period ends in "
            f"{_duration(refusal.retry_after_seconds)}. Ask for fewer tokens, or ask an administrator for more."
        )
    elif refusal.kind is RefusalKind.TOO_LARGE:
        limit = quota.tpm_limit if quota is not None else None
        error = RequestTooLargeError(
            f"The request may take {tokens} tokens, prompt and answer together; the limit of {whose} is {limit} tokens "
            "per minute. Shorten the messages or lower `max_tokens`.",
            param="max_tokens",
        )
    else:
        unit = "requests" if refusal.kind is RefusalKind.RPM else "tokens"
        limit = (quota.rpm_limit if refusal.kind is RefusalKind.RPM else quota.tpm_limit) if quota is not None else None
        error = RateLimitError(
            f"Rate limit of {whose} reached: {limit} {unit} per minute. "
            f"Try again in {_duration(refusal.retry_after_seconds)}.",
            retry_after_seconds=refusal.retry_after_seconds,
        )
    error.rates = rates
    return error


def _duration(seconds: float) -> str:
    for size, unit in ((86_400, "days"), (3600, "hours"), (60, "minutes")):
        if seconds >= 2 * size:
            return f"{seconds / size:.0f} {unit}"
    return f"{max(seconds, 0.001):.3g} seconds"
