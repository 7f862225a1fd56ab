"""Personal data: what is found is one, whatever it is written like, and what merely looks like one passes."""
# ruff: noqa: RUF001

import pytest

from headrace_guard.patterns import PatternError
from headrace_guard.personal_data import shapes_of
from headrace_guard.scanner import Scanner
from headrace_wire.guard_policy import Action, PersonalDataKind, PersonalDataRule
from tests.guard.rules import personal_data

K = PersonalDataKind
REGIONS = ("DE", "US", "GB")


def found(kind: PersonalDataKind, text: str) -> list[str]:
    scanner = Scanner([personal_data(kind, phone_regions=REGIONS if kind is K.PHONE_NUMBER else ())])
    whole = scanner.scan(text)
    guard = scanner.open()
    assert "".join(map(guard.push, text)) + guard.flush() == whole.text
    assert [hit.finding for hit in whole.hits] == [kind] * len(whole.hits)
    return [hit.text for hit in whole.hits]


@pytest.mark.parametrize(
    ("kind", "text"),
    [
        (K.CREDIT_CARD, "4111111111111111"),
        (K.CREDIT_CARD, "4111 1111 1111 1111"),
        (K.CREDIT_CARD, "4111-1111-1111-1111"),
        (K.CREDIT_CARD, "4111–1111–1111–1111"),
        (K.CREDIT_CARD, "4111\u00a01111\u20091111\u202f1111"),
        (K.CREDIT_CARD, "4 1 1 1 1 1 1 1 1 1 1 1 1 1 1 1"),
        (K.CREDIT_CARD, "٤١١١١١١١١١١١١١١١"),
        (K.CREDIT_CARD, "4\u200b111111111111111"),
        (K.CREDIT_CARD, r"411111111111111\u0031"),
        (K.CREDIT_CARD, "378282246310005"),
        (K.CREDIT_CARD, "3782 822463 10005"),
        (K.CREDIT_CARD, "5555555555554444"),
        (K.CREDIT_CARD, "2221000000000009"),
        (K.CREDIT_CARD, "6011111111111117"),
        (K.CREDIT_CARD, "30569309025904"),
        (K.CREDIT_CARD, "3530111333300000"),
        (K.CREDIT_CARD, "4222222222222"),
        (K.IBAN_CODE, "DE89370400440532013000"),
        (K.IBAN_CODE, "DE89 3704 0044 0532 0130 00"),
        (K.IBAN_CODE, "GB82 WEST 1234 5698 7654 32"),
        (K.IBAN_CODE, "NO93 8601 1117 947"),
        (K.IBAN_CODE, "MT84 MALT 0110 0001 2345 MTLC AST0 01S"),
        (K.EMAIL_ADDRESS, "me@example.com"),
        (K.EMAIL_ADDRESS, "First.Last+tag@mail.example-site.co.uk"),
        (K.EMAIL_ADDRESS, "x_y%z@a.museum"),
        (K.EMAIL_ADDRESS, "m\u200be＠example．com"),
        (K.PHONE_NUMBER, "+49 30 901820"),
        (K.PHONE_NUMBER, "+49 (0)30 901820"),
        (K.PHONE_NUMBER, "0049 30 901820"),
        (K.PHONE_NUMBER, "+1-212-555-2368"),
        (K.PHONE_NUMBER, "+44 20 7946 0958"),
        (K.PHONE_NUMBER, "030 901820"),
        (K.PHONE_NUMBER, "(212) 555-2368"),
        (K.PHONE_NUMBER, "212.555.2368"),
        (K.PHONE_NUMBER, "020-7946 0958"),
        (K.IP_ADDRESS, "192.168.0.1"),
        (K.IP_ADDRESS, "2001:db8::8a2e:370:7334"),
        (K.IP_ADDRESS, "2001:0DB8:85A3:0000:0000:8A2E:0370:7334"),
        (K.IP_ADDRESS, "fe80::1"),
        (K.IP_ADDRESS, "::1"),
        (K.IP_ADDRESS, "::ffff:192.0.2.128"),
        (K.MAC_ADDRESS, "00:1B:44:11:3A:B7"),
        (K.MAC_ADDRESS, "de-ad-be-ef-00-01"),
        (K.MAC_ADDRESS, "001b.4411.3ab7"),
        (K.URL, "https://example.com/a?b=c#d"),
        (K.URL, "HTTP://user@host:80/"),
        (K.URL, "www.example.com/x"),
        (K.URL, "ftp://x.y/z"),
        (K.US_SSN, "536-90-4399"),
        (K.US_SSN, "536 90 4399"),
        (K.CRYPTO, "1BvBMSEYstWetqTFn5Au4m4GFg7xJaNVN2"),
        (K.CRYPTO, "3J98t1WpEZ73CNmQviecrnyiWrnqRhWNLy"),
        (K.CRYPTO, "bc1qar0srrr7xfkvy5l643lydnw9re59gtzzwf5mdq"),
        (K.CRYPTO, "0x52908400098527886E0F7030069857D2E4169EE7"),
    ],
)
@pytest.mark.parametrize("around", [("", ""), ("My ", " is"), ("(", ")."), ('{"a":"', '"}'), ("_", "_,"), ("是", "。")])
def test_found(kind: PersonalDataKind, text: str, around: tuple[str, str]) -> None:
    if around[0] == "_" and kind not in {K.CREDIT_CARD, K.IBAN_CODE}:
        return  # part of what may be one, or of a word
    assert found(kind, text.join(around)) == [text]


@pytest.mark.parametrize(
    ("kind", "text"),
    [
        (K.CREDIT_CARD, "4111111111111112"),
        (K.CREDIT_CARD, "41111111111111111"),
        (K.CREDIT_CARD, "94111111111111111"),
        (K.CREDIT_CARD, "1234567812345670"),
        (K.CREDIT_CARD, "4111, 1111, 1111, 1111"),
        (K.CREDIT_CARD, "2019 2020 2021 2022 2023"),
        (K.IBAN_CODE, "DE89370400440532013001"),
        (K.IBAN_CODE, "de89370400440532013000"),
        (K.IBAN_CODE, "XX89370400440532013000"),
        (K.IBAN_CODE, "ADE89370400440532013000"),
        (K.IBAN_CODE, "IT IS AN UPPER CASE TEXT"),
        (K.EMAIL_ADDRESS, "me@example"),
        (K.EMAIL_ADDRESS, "@example.com"),
        (K.EMAIL_ADDRESS, "a @ b.com"),
        (K.EMAIL_ADDRESS, "x" * 66 + "@example.com"),
        (K.PHONE_NUMBER, "1 + 22 = 23"),
        (K.PHONE_NUMBER, "2024-01-31, 31.01.2024, 1/31/24 12:30:45"),
        (K.PHONE_NUMBER, "3.14159265358979"),
        (K.IP_ADDRESS, "1.2.3"),
        (K.IP_ADDRESS, "256.1.1.1"),
        (K.IP_ADDRESS, "12:30:45 std::vector a::b ::"),
        (K.MAC_ADDRESS, "00:1B:44:11:3A"),
        (K.MAC_ADDRESS, "00:1B:44:11:3A:B7:00"),
        (K.URL, "http:// www. https"),
        (K.US_SSN, "000-12-3456"),
        (K.US_SSN, "666-12-3456"),
        (K.US_SSN, "1536-90-4399"),
        (K.CRYPTO, "1BvBMSEYstWetqTFn5Au4m4GFg7xJaNVN3"),
        (K.CRYPTO, "0x52908400098527886E0F7030069857D2E4169EE"),
    ],
)
def test_passes(kind: PersonalDataKind, text: str) -> None:
    assert found(kind, f"so {text} then") == []


def test_each_kind_has_its_own_action() -> None:
    kinds = {K.CREDIT_CARD: Action.BLOCK, K.EMAIL_ADDRESS: Action.MASK, K.IP_ADDRESS: Action.FLAG}
    bound = personal_data()
    rule = PersonalDataRule(key="personal", kinds=kinds)
    scanned = Scanner([type(bound)(rule, 0)]).scan("me@example.com 10.0.0.1 4111111111111111 more")
    assert scanned.text == "⟦EMAIL_ADDRESS⟧ 10.0.0.1 "
    assert [(hit.finding, hit.action) for hit in scanned.hits] == [
        ("EMAIL_ADDRESS", Action.MASK), ("IP_ADDRESS", Action.FLAG), ("CREDIT_CARD", Action.BLOCK),
    ]  # fmt: skip


def test_address_is_masked_without_the_sentence_around_it() -> None:
    scanner = Scanner([personal_data(K.URL, K.EMAIL_ADDRESS)])
    text = "See [it](https://example.com/a), **www.example.com** or <me@example.com>."
    assert scanner.scan(text).text == "See [it](⟦URL⟧), **⟦URL⟧** or <⟦EMAIL_ADDRESS⟧>."


@pytest.mark.parametrize(
    ("kind", "text", "released"),
    [
        (K.CREDIT_CARD, "in 2024", "in "),
        (K.CREDIT_CARD, "in 1999", "in 1999"),
        (K.IBAN_CODE, "in DE", "in "),
        (K.IBAN_CODE, "in de or AB", "in de or AB"),
        (K.EMAIL_ADDRESS, "some words", "some "),
        (K.PHONE_NUMBER, "some words 12", "some words "),
        (K.IP_ADDRESS, "bad face feed: 12", "bad face feed: "),
        (K.URL, "some htt", "some "),
    ],
)
def test_what_waits(kind: PersonalDataKind, text: str, released: str) -> None:
    guard = Scanner([personal_data(kind, phone_regions=("DE",))]).open()
    assert guard.push(text) == released


def test_region_that_is_none_is_refused() -> None:
    with pytest.raises(PatternError, match="'XX' is not a region"):
        Scanner([personal_data(K.PHONE_NUMBER, phone_regions=("de", "XX"))])


def test_every_kind_has_a_shape() -> None:
    assert all(shapes_of(kind) for kind in K)
