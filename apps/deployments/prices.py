"""Money: decimals of the currency unit in the database, whole millionths of it in Redis and in the ledger.

There is one currency per installation, the one that its operators have in mind; it has no name here.
"""

from decimal import Decimal

MICROS = Decimal(1_000_000)
"""Millionths in a unit. Every amount has at most six decimals, so that nothing is rounded on the way."""


def to_micros(amount: Decimal) -> int:
    """Returns the amount in millionths."""
    return int(amount * MICROS)


def money_text(amount: Decimal) -> str:
    """Returns the amount for people: as many decimals as it has."""
    return f"{amount:f}".rstrip("0").rstrip(".") if "." in f"{amount:f}" else f"{amount:f}"


def from_micros(micros: int) -> Decimal:
    """Returns the amount in units."""
    return Decimal(micros) / MICROS
