"""What rules that judge character by character cost an innocent answer: CPU, and tokens that wait.

No process but this one: the guard of a stream takes tokens as a worker gives them, one after another. The text is
English prose (our licence), the words of the lists are made up. How much waits depends on how many of them begin like
ordinary words, so there is a list of which half do.
"""

import random
import re
import time
import tracemalloc
from collections.abc import Callable, Sequence
from statistics import mean

from msgspec import Struct

from headrace_guard.scanner import BoundRule, Scanner
from headrace_wire.guard_policy import Action, LiteralRule, PersonalDataKind, PersonalDataRule
from tests.load.report import Row
from tests.support.environment import REPOSITORY_ROOT

Progress = Callable[[str], None]
NUMBERS = (
    PersonalDataKind.CREDIT_CARD,
    PersonalDataKind.IBAN_CODE,
    PersonalDataKind.PHONE_NUMBER,
    PersonalDataKind.IP_ADDRESS,
)
_TOKEN = re.compile(r" ?[A-Za-z]{1,7}| ?[0-9]{1,3}|\s+|.")


class GuardCase(Struct, frozen=True):
    """Rules."""

    name: str
    words: int = 1_000
    alike: float = 0.0
    """Share of words that begin with two to five letters of a word of the text."""
    kinds: tuple[PersonalDataKind, ...] = NUMBERS


class GuardLoad(Struct, frozen=True):
    """What is judged by what."""

    cases: tuple[GuardCase, ...] = (
        GuardCase("1,000 words, numbers"),
        GuardCase("half begin alike", alike=0.5),
        GuardCase("20,000 words", words=20_000, alike=0.5),
        GuardCase("e-mail too", kinds=(*NUMBERS, PersonalDataKind.EMAIL_ADDRESS)),
    )
    tokens: int = 20_000


class GuardRound(Struct, frozen=True):
    """One case, once; of `tokens` tokens."""

    name: str
    characters_per_token: float
    compile_ms: float
    first_us_per_token: float
    """Of the first 1,000 tokens that the rules see, when their states are made."""
    us_per_token: float
    accented_us_per_token: float
    """Where every e of the text has an accent, so that most tokens must be folded."""
    held_share: float
    """Of tokens after which something waits."""
    held_characters: float
    """How much waits after a token, on average."""
    memory_mib: float
    """Of the rules with all states that the text needed."""


def run_rounds(load: GuardLoad, *, rounds: int, progress: Progress) -> list[GuardRound]:
    """Measure every case so many times."""
    done = []
    for number in range(rounds):
        for case in load.cases:
            progress(f"guard: {case.name}, round {number + 1} of {rounds}")
            done.append(_measure(load, case))
    return done


def table_rows(load: GuardLoad, measured: Sequence[GuardRound]) -> list[Row]:
    """Return the table's lines; one column for each case."""
    columns = [[one for one in measured if one.name == case.name] for case in load.cases]

    def row(label: str, figure: Callable[[GuardRound], float], at_most: float | None = None) -> Row:
        return Row(label, [[figure(one) for one in column] for column in columns], at_most)

    return [
        row("CPU, us per token", lambda one: one.us_per_token, 20.0),
        row("  where most must be folded", lambda one: one.accented_us_per_token, 20.0),
        row("  of the first 1,000 tokens", lambda one: one.first_us_per_token),
        row("tokens after which something waits, share", lambda one: one.held_share),
        row("characters that wait, mean", lambda one: one.held_characters),
        row("rules compiled in, ms", lambda one: one.compile_ms, 1000.0),
        row("memory of the rules, MiB", lambda one: one.memory_mib),
    ]


def _measure(load: GuardLoad, case: GuardCase) -> GuardRound:
    tokens = _tokens(load.tokens)
    rules = _rules(case, tokens)
    began = time.process_time()
    scanner = Scanner(rules)
    compile_ms = (time.process_time() - began) * 1000
    first = _us_per_token(scanner, tokens[:1000])
    _us_per_token(scanner, tokens)
    steady = _us_per_token(scanner, tokens)
    accented = [token.replace("e", "é") for token in tokens]
    _us_per_token(scanner, accented)
    held = _held(scanner, tokens)
    return GuardRound(
        case.name,
        sum(map(len, tokens)) / len(tokens),
        compile_ms,
        first,
        steady,
        _us_per_token(scanner, accented),
        mean(count > 0 for count in held),
        mean(held),
        _memory_mib(rules, tokens),
    )


def _us_per_token(scanner: Scanner, tokens: Sequence[str]) -> float:
    guard = scanner.open()
    began = time.process_time()
    for token in tokens:
        guard.push(token)
    return (time.process_time() - began) / len(tokens) * 1e6


def _held(scanner: Scanner, tokens: Sequence[str]) -> list[int]:
    guard, held = scanner.open(), []
    for token in tokens:
        guard.push(token)
        held.append(guard.held)
    return held


def _memory_mib(rules: Sequence[BoundRule], tokens: Sequence[str]) -> float:
    tracemalloc.start()
    try:
        _us_per_token(Scanner(rules), tokens)
        return tracemalloc.get_traced_memory()[1] / 2**20
    finally:
        tracemalloc.stop()


def _rules(case: GuardCase, tokens: Sequence[str]) -> list[BoundRule]:
    literals = LiteralRule(key="words", words=word_list(case, tokens), action=Action.BLOCK)
    personal = PersonalDataRule(key="personal", kinds=dict.fromkeys(case.kinds, Action.MASK))
    return [BoundRule(literals, 0), BoundRule(personal, 0)]


def word_list(case: GuardCase, tokens: Sequence[str]) -> tuple[str, ...]:
    """Return made-up words, some of which begin like words of the text; the same every time."""
    chance = random.Random(case.words)
    vocabulary = sorted({token.strip() for token in tokens if len(token.strip()) >= 4 and token.strip().isalpha()})
    listed: set[str] = set()
    while len(listed) < case.words:
        head = chance.choice(vocabulary)[: chance.randint(2, 5)] if chance.random() < case.alike else ""
        listed.add(head + "".join(chance.choices("bcdfghjklmnpqrstvwxz", k=2) + chance.choices("aeiouxq", k=3)))
    return tuple(sorted(listed))


def _tokens(count: int) -> list[str]:
    prose = " ".join((REPOSITORY_ROOT / "LICENSE").read_text(encoding="utf-8").split())
    tokens: list[str] = []
    while len(tokens) < count:
        tokens += _TOKEN.findall(prose)
    return tokens[:count]
