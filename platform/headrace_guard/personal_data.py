"""Personal data by kind: shapes that our automaton finds, and what decides whether something of that shape is one.

Kinds and names are those of Presidio, whose recognisers are not used: they need the whole text, and expressions
that look ahead and behind. Numbers are judged by `python-stdnum` and `phonenumbers`, addresses by `ipaddress`.
"""

import ipaddress
import re
from collections.abc import Callable, Sequence
from functools import partial

import phonenumbers
from msgspec import Struct
from stdnum import bitcoin, iban, luhn
from stdnum.us import ssn

from headrace_guard.errors import PatternError
from headrace_wire.guard_policy import PersonalDataKind


class Shape(Struct, frozen=True):
    """What it looks like, in folded characters."""

    pattern: str
    not_after: str = ""
    """Class of characters, one of which before it makes it something else."""
    not_before: str = ""
    is_valid: Callable[[str], bool] | None = None
    case_sensitive: bool = False


_NOT_DIGITS = re.compile(r"\D")
_DATE = re.compile(r"(?:\d{1,2}[./-]\d{1,2}[./-](?:\d{4}|\d{2})|(?:19|20)\d\d[./-]\d{1,2}(?:[./-]\d{1,2})?)(?![\d./-])")
_ALPHANUMERIC = "[0-9A-Za-z]"

# Countries by the length of their IBAN (SWIFT's registry, release 99).
_IBAN_COUNTRIES = {
    15: "NO",
    16: "BE",
    18: "DK FI FK FO GL NL SD",
    19: "MK SI",
    20: "AT BA EE KZ LT LU MN XK",
    21: "CH HR LI LV",
    22: "BG BH CR DE GB GE IE ME RS VA",
    23: "AE GI IL IQ OM SO TL",
    24: "AD CZ DZ ES MD PK RO SA SE SK TN VG",
    25: "AO CV GW LY MZ PT ST",
    26: "IR IS TR",
    27: "BF BI BJ CF CG CI CM DJ FR GA GR IT KM MC MG ML MR SM SN TD TG",
    28: "AL AZ BY CY DO GT HN HU LB MA NE NI PL SV UA",
    29: "BR EG PS QA",
    30: "JO KW MU YE",
    31: "MT SC",
    32: "LC",
    33: "RU",
}


def _iban_pattern() -> str:
    tails = {length: f"(?:[ -]?[0-9A-Z]){{{length - 4}}}" for length in _IBAN_COUNTRIES}
    return "|".join(
        f"(?:{countries.replace(' ', '|')})[ -]?[0-9][ -]?[0-9]{tails[length]}"
        for length, countries in _IBAN_COUNTRIES.items()
    )


# Lengths of card numbers by how they begin (ISO/IEC 7812 and the networks' own rules).
_CARD = re.compile(
    r"4(?:\d{12}|\d{15}|\d{18})"  # Visa
    r"|5[1-5]\d{14}|2(?:22[1-9]|2[3-9]\d|[3-6]\d\d|7[01]\d|720)\d{12}"  # Mastercard
    r"|3[47]\d{13}"  # American Express
    r"|3(?:0[0-5]|[689]\d)\d{11,16}"  # Diners
    r"|35\d{14,17}"  # JCB
    r"|6\d{15,18}"  # Discover, UnionPay, RuPay, Maestro
    r"|5[06-8]\d{11,17}"  # Maestro
)


def _is_card(found: str) -> bool:
    digits = _NOT_DIGITS.sub("", found)
    return _CARD.fullmatch(digits) is not None and luhn.is_valid(digits)


def _is_international_phone(found: str) -> bool:
    digits = _NOT_DIGITS.sub("", found)
    try:
        number = phonenumbers.parse("+" + digits.removeprefix("00"))
    except phonenumbers.NumberParseException:
        return False
    return phonenumbers.is_possible_number(number)


def _is_national_phone(regions: Sequence[str], found: str) -> bool:
    if _DATE.match(found):
        return False
    for region in regions:
        try:
            if phonenumbers.is_valid_number(phonenumbers.parse(found, region)):
                return True
        except phonenumbers.NumberParseException:
            continue
    return False


def _is_address(found: str) -> bool:
    if found == "::":
        return False
    try:
        ipaddress.ip_address(found)
    except ValueError:
        return False
    return True


def _is_ssn(found: str) -> bool:
    return bool(ssn.is_valid(found.replace(" ", "-")))


def _is_bech32(found: str) -> bool:
    return bool(bitcoin.is_valid(found.lower()))


_DIGITS = r"(?:\([0-9]{1,5}\)|[0-9])(?:[ ().\-/]{0,2}[0-9])"
_NO_URL = r"\s<>\"'`\\)\]}|。、「」『』【】《》"
_HEX = "[0-9A-Fa-f]"
_SHAPES: dict[PersonalDataKind, tuple[Shape, ...]] = {
    PersonalDataKind.CREDIT_CARD: (
        Shape(r"[2-6](?:[ -]?[0-9]){12,18}", "[0-9]", "[0-9]", _is_card),
    ),
    PersonalDataKind.IBAN_CODE: (
        # In capitals: otherwise every word that begins like a country's code would wait.
        Shape(_iban_pattern(), _ALPHANUMERIC, "", iban.is_valid, case_sensitive=True),
    ),
    PersonalDataKind.EMAIL_ADDRESS: (
        Shape(
            r"[A-Za-z0-9_][A-Za-z0-9_.%+-]{0,63}@(?:[A-Za-z0-9](?:[A-Za-z0-9-]{0,62})\.)+[A-Za-z]{2,24}",
            "[A-Za-z0-9_]",
        ),
    ),
    PersonalDataKind.PHONE_NUMBER: (
        Shape(rf"(?:\+|00) ?{_DIGITS}{{4,14}}", "[0-9A-Za-z+]", "[0-9]", _is_international_phone),
    ),
    PersonalDataKind.IP_ADDRESS: (
        Shape(r"[0-9]{1,3}(?:\.[0-9]{1,3}){3}", "[0-9.]", "[0-9]", _is_address),
        # Begins as addresses that are in use do (RFC 4291 and IANA's registry), not as every short word of a to f.
        Shape(
            rf"(?:[0-9]{_HEX}{{0,3}}|f[c-f]{_HEX}{{2}}|:)(?::{_HEX}{{0,4}}){{1,7}}(?:[0-9]{{0,3}}(?:\.[0-9]{{1,3}}){{3}})?",
            "[0-9A-Za-z:.]",
            "[0-9A-Za-z:]",
            _is_address,
        ),
    ),
    PersonalDataKind.MAC_ADDRESS: (
        Shape(rf"{_HEX}{{2}}(?:[:-]{_HEX}{{2}}){{5}}", "[0-9A-Za-z:-]", "[0-9A-Za-z:-]"),
        Shape(rf"{_HEX}{{4}}(?:\.{_HEX}{{4}}){{2}}", "[0-9A-Za-z.]", "[0-9A-Za-z]"),
    ),
    PersonalDataKind.URL: (
Shape(rf"(?:(?:https?|ftp)://|www\.)[^{_NO_URL}]*[^{_NO_URL}.,;:!?*_]", _ALPHANUMERIC),
    ),
    PersonalDataKind.US_SSN: (
        Shape(r"[0-9]{3}[ -][0-9]{2}[ -][0-9]{4}", "[0-9-]", "[0-9-]", _is_ssn),
    ),
    PersonalDataKind.CRYPTO: (
        Shape(
            r"[13][1-9A-HJ-NP-Za-km-z]{25,34}",
            _ALPHANUMERIC,
            _ALPHANUMERIC,
            bitcoin.is_valid,
            case_sensitive=True,
        ),
        Shape(
            r"bc1[02-9ac-hj-np-z]{11,71}",
            _ALPHANUMERIC,
            _ALPHANUMERIC,
            _is_bech32,
        ),
        Shape(r"0x[0-9a-fA-F]{40}", _ALPHANUMERIC, _ALPHANUMERIC),
    ),
}  # fmt: skip


def shapes_of(kind: PersonalDataKind, phone_regions: Sequence[str] = ()) -> tuple[Shape, ...]:
    """Return the shapes of a kind; `phone_regions` add national phone numbers.

    Raises:
        PatternError: a region that is none.
    """
    shapes = _SHAPES[kind]
    if kind is PersonalDataKind.PHONE_NUMBER and phone_regions:
        regions = tuple(region.upper() for region in phone_regions)
        for region in regions:
            if region not in phonenumbers.SUPPORTED_REGIONS:
                raise PatternError(f"{region!r} is not a region; write ISO 3166 codes, like DE or US.")
        national = Shape(rf"{_DIGITS}{{4,14}}", "[0-9A-Za-z+]", "[0-9]", partial(_is_national_phone, regions))
        shapes = (*shapes, national)
    return shapes
