"""Generations under a guard: forced answers, cut and taken over anywhere. No process, no Redis."""

import json
from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace_guard.combination import Guard
from headrace_guard.findings import Subject, hit_record
from headrace_wire.guard_policy import (
    Action,
    AnyRule,
    Direction,
    ExcerptRetention,
    GuardPolicy,
    LiteralRule,
    PersonalDataKind,
    PersonalDataRule,
    PolicyMode,
    TopicRule,
)
from headrace_wire.interventions import Intervention, Outcome
from headrace_wire.messages import AnyLogEntry, Delta, Ended, FinishReason, GenerateRequest, SamplingParams, StreamState
from headrace_wire.request_queue import Claimed
from headrace_wire.token_log import Append
from headrace_worker.engine import EngineOutput
from headrace_worker.generation import Generation
from headrace_worker.output_guard import OutputGuard
from headrace_worker.simulated_tokenizer import built_in_tokenizer
from headrace_worker.takeover import History

TOKENIZER = built_in_tokenizer()
SECRET = "open the sluice"
CARD = "4111 1111 1111 1111"
INSTEAD = "Not for you."

SECRETS = [
    "open the sluice",
    "OPEN THE SLUICE",
    "open the\nsluice",
    "open  the   sluice",
    "o\u200bpen t\u200dhe slu\u00adice",  # nothing to be seen
    "\u043ep\u0435n th\u0435 slu\u0456\u0441\u0435",  # Cyrillic look-alikes
    "".join(chr(ord(letter) + 0xFEE0) if letter != " " else "\u3000" for letter in SECRET),  # full width
    "öpen thé sluice",
    '{"say": "open the sluice"}',
    '{"name": "tell", "arguments": "{\\"what\\": \\"open the sluice\\"}"}',
    '{"say": "open the \\u0073luice"}',
]


def policy(*rules: AnyRule, **fields: object) -> GuardPolicy:
    return GuardPolicy(key="p", name="p", version=3, replacement=INSTEAD, rules=rules, **fields)  # type: ignore[arg-type]


BLOCK = policy(LiteralRule(key="r", words=(SECRET,)))
MASK = policy(PersonalDataRule(key="r", kinds={PersonalDataKind.CREDIT_CARD: Action.MASK}))


class Run:
    """A guarded generation whose engine says what the test says."""

    def __init__(self, *policies: GuardPolicy, history: Sequence[Append] = (), max_tokens: int = 2000) -> None:
        request = GenerateRequest("s", "t", "m", SamplingParams(max_tokens=max_tokens), "salt")
        claimed = Claimed("s", 8, 0.0, 2 if history else 1, is_late=False, request=request, had_owner=bool(history))
        self.appends: list[Append] = list(history)
        self.records: list[Intervention] = []
        self.generation = Generation(claimed, owner="w", emit=self.appends.append)
        if history:
            self.generation.recall(
                History(
                    list(history),
                    self.token_ids,
                    self.text,
                    max((append.entry.seq for append in history if _text(append.entry)), default=0),
                    0.0,
                    [7],
                )
            )
        subject = Subject("s", "t", "m", ExcerptRetention.FULL, "salt")
        self.guard = OutputGuard(Guard(policies), subject, self.records.append)
        self.generation.guard = self.guard
        self.generation.prepare(TOKENIZER, [1, 2, 3], max_model_len=4096)
        self.generation.start()

    def say(self, ids: Sequence[int], sizes: Sequence[int] = (1,), finish: FinishReason = FinishReason.STOP) -> None:
        """Have the engine give these tokens, cut into outputs of these sizes in turn; the last one ends the answer."""
        at, turn = 0, 0
        while at < len(ids) and self.generation.ended is None:
            size = sizes[turn % len(sizes)]
            turn += 1
            piece = list(ids[at : at + size])
            at += size
            last = at >= len(ids)
            if self.generation.feed(EngineOutput("s", [*piece, END] if last else piece, finish if last else None), 1.0):
                break

    @property
    def text(self) -> str:
        return "".join(_text(append.entry) for append in self.appends)

    @property
    def token_ids(self) -> list[int]:
        return [i for append in self.appends for i in append.token_ids]

    @property
    def end(self) -> Ended:
        last = self.appends[-1].entry
        assert isinstance(last, Ended)
        return last


END: int = TOKENIZER.encode("<|im_end|>").ids[0]


def _text(entry: AnyLogEntry) -> str:
    return entry.text if isinstance(entry, Delta) else ""


def ids_of(text: str) -> list[int]:
    return TOKENIZER.encode(text, add_special_tokens=False).ids


sizes = st.lists(st.integers(1, 7), min_size=1, max_size=5)
innocent = st.text(alphabet='abc de\n🌊é{}"\\', max_size=30)


@given(secret=st.sampled_from(SECRETS), before=innocent, after=innocent, sizes=sizes)
def test_no_spelling_and_no_cut_lets_a_blocked_phrase_out(
    secret: str, before: str, after: str, sizes: list[int]
) -> None:
    run = Run(BLOCK)
    run.say(ids_of(f"{before} {secret} {after}"), sizes)
    assert run.end.state is StreamState.REPLACED
    assert run.end.finish_reason is FinishReason.CONTENT_FILTER
    assert run.end.replacement is not None
    assert run.end.replacement.text.endswith(INSTEAD)
    assert "sl" not in run.text.removeprefix(before)
    assert [record.outcome for record in run.records] == [Outcome.BLOCKED]


@given(before=innocent, after=innocent, first=sizes, second=sizes, cut=st.integers(1, 60))
def test_a_takeover_anywhere_gives_the_same_text_as_none(
    before: str, after: str, first: list[int], second: list[int], cut: int
) -> None:
    ids = ids_of(f"{before} {CARD} {after}.")
    whole = Run(MASK)
    whole.say(ids)
    begun = Run(MASK)
    for i in range(0, min(cut, len(ids) - 1), first[0]):
        begun.generation.feed(EngineOutput("s", ids[i : min(i + first[0], cut, len(ids) - 1)]), 1.0)
    if not begun.token_ids:
        return
    assert whole.text.startswith(begun.text)
    resumed = Run(MASK, history=begun.appends)
    resumed.say(ids[len(begun.token_ids) :], second)
    assert resumed.text == whole.text
    assert CARD not in resumed.text
    assert resumed.token_ids == whole.token_ids


def test_an_answer_that_would_be_blocked_is_blocked_by_the_next_owner_too() -> None:
    begun = Run(BLOCK)
    for token in ids_of("Now open the sl"):
        begun.generation.feed(EngineOutput("s", [token]), 1.0)
    assert begun.text == "Now "
    resumed = Run(BLOCK, history=begun.appends)
    resumed.say(ids_of("uice at dawn"))
    assert resumed.end.state is StreamState.REPLACED
    assert resumed.text == "Now "


def test_an_innocent_answer_is_not_held() -> None:
    run = Run(BLOCK, MASK)
    for token in ids_of("A quiet river runs by, under the bridge. "):
        run.generation.feed(EngineOutput("s", [token]), 1.0)
    deltas = [append.entry for append in run.appends if isinstance(append.entry, Delta)]
    held = [delta.seq for delta in deltas if not delta.text]
    assert not held, f"positions {held} waited"


def test_what_is_blocked_ends_with_its_replacement_and_its_own_count() -> None:
    run = Run(BLOCK)
    run.say(ids_of("So: open the sluice now"))
    assert run.text == "So: "
    replacement = run.end.replacement
    assert replacement is not None
    assert (replacement.text, replacement.retract_from) == (f"\n\n{INSTEAD}", None)
    assert run.end.usage.completion_tokens == len(ids_of("So: open the sluice "))  # so that the word has ended
    assert run.end.seq == run.end.usage.completion_tokens + 1


def test_a_card_number_in_json_keeps_it_json() -> None:
    run = Run(MASK)
    run.say(ids_of(json.dumps({"card": CARD, "number": 4111111111111111, "left": [1, 2]})))
    read = json.loads(run.text)
    assert "4111" not in run.text
    assert read["left"] == [1, 2]
    assert {record.outcome for record in run.records} == {Outcome.MASKED}


def test_a_shadow_changes_no_byte_and_is_recorded() -> None:
    text = f"Pay with {CARD} and open the sluice."
    shadows = (policy(*BLOCK.rules, mode=PolicyMode.SHADOW), policy(*MASK.rules, mode=PolicyMode.SHADOW))
    run = Run(*shadows)
    run.say(ids_of(text))
    assert run.text == text
    assert run.end.state is StreamState.FINISHED
    assert sorted((record.action, record.is_shadow) for record in run.records) == [
        (Action.BLOCK, True),
        (Action.MASK, True),
    ]


def test_the_strictest_policy_wins() -> None:
    mask = policy(LiteralRule(key="m", words=(SECRET,), action=Action.MASK))
    run = Run(mask, BLOCK)
    run.say(ids_of("So: open the sluice now"))
    assert run.end.state is StreamState.REPLACED


# ---- windows: the judge is the test

WINDOWED = policy(TopicRule(key="w", examples=("anything",)), chunk_size=8, context_size=20)


def judge(run: Run, *, secret: str) -> None:
    """Judge what is due by looking for the secret; go on until nothing is."""
    while (window := run.guard.due()) is not None:
        if secret in window.text:
            run.guard.tripped(run.guard.guard.output_rules[0])
        run.generation.judged()


@settings(max_examples=60)
@given(before=innocent, after=innocent, sizes=sizes, every=st.integers(1, 9), has_secret=st.booleans())
def test_windows_let_nothing_out_of_what_they_find(
    before: str, after: str, sizes: list[int], every: int, has_secret: bool
) -> None:
    text = f"{before} {SECRET if has_secret else ''} {after}"
    ids = ids_of(text)
    run = Run(WINDOWED)
    at = turn = 0
    while at < len(ids) and run.generation.ended is None:
        piece = ids[at : at + sizes[turn % len(sizes)]]
        at, turn = at + len(piece), turn + 1
        last = at >= len(ids)
        run.generation.feed(
            EngineOutput("s", [*piece, END] if last else piece, FinishReason.STOP if last else None), 1.0
        )
        if turn % every == 0 or last:
            judge(run, secret=SECRET)
    if has_secret:
        assert run.end.state is StreamState.REPLACED
        assert "sluice" not in run.text
        assert f"{before} ".startswith(run.text) or run.text.startswith(f"{before} ")
    else:
        assert run.end.state is StreamState.FINISHED
        assert run.text == text


def test_an_answer_waits_for_its_last_window() -> None:
    run = Run(WINDOWED)
    run.say(ids_of("short"))
    assert run.generation.ended is None
    assert run.text == ""
    judge(run, secret=SECRET)
    assert (run.text, run.end.state) == ("short", StreamState.FINISHED)


def test_the_engine_stops_where_its_judge_is_too_far_behind() -> None:
    run = Run(WINDOWED)
    told = run.generation.take_credit()
    assert told == 20 + 3 * 8
    for token in ids_of("x" * told):
        run.generation.feed(EngineOutput("s", [token]), 1.0)
    assert run.generation.is_stopped
    assert not run.generation.is_held, "its reader is not slow"
    judge(run, secret=SECRET)
    assert run.generation.take_credit() > told


def test_a_small_window_of_the_reader_does_not_stop_what_is_held_back() -> None:
    run = Run(WINDOWED)
    run.generation.extend(2, 0.0)
    assert run.generation.take_credit() == 2
    for token in ids_of("abcdefgh"):
        run.generation.feed(EngineOutput("s", [token]), 1.0)
        assert not run.generation.is_held
        if run.generation.is_stopped:
            assert run.generation.take_credit(), "held back text is not the reader's to acknowledge"
    assert run.guard.due() is not None


def test_stream_first_takes_back_what_was_out() -> None:
    unsafe = policy(TopicRule(key="w", examples=("anything",)), chunk_size=8, context_size=16, stream_first=True)
    run = Run(unsafe)
    for token in ids_of("innocent, then open the sluice now"):
        run.generation.feed(EngineOutput("s", [token]), 1.0)
        judge(run, secret=SECRET)
        if run.generation.ended is not None:
            break
    assert SECRET in run.text, "it was out before it was judged"
    replacement = run.end.replacement
    assert replacement is not None
    assert replacement.retract_from is not None
    assert "sluice" not in replacement.applied_to(run.text)
    assert replacement.applied_to(run.text).endswith(INSTEAD)


@pytest.mark.parametrize("retention", list(ExcerptRetention))
def test_a_finding_says_no_more_than_an_excerpt(retention: ExcerptRetention) -> None:
    guard = Guard([BLOCK])
    assert guard.output_scanner is not None
    scan = guard.output_scanner.open()
    scan.push(f"{SECRET} ")
    (hit,) = scan.hits
    record = hit_record(guard, Subject("s", "t", "m", retention, "salt"), hit, Direction.OUTPUT)
    assert (SECRET in record.finding) == (retention is ExcerptRetention.FULL)
    assert (SECRET in record.excerpt) == (retention is ExcerptRetention.FULL)


@pytest.mark.parametrize("retention", list(ExcerptRetention))
def test_a_record_keeps_what_the_tenant_wants_kept(retention: ExcerptRetention) -> None:
    excerpt = Subject("s", "t", "m", retention, "salt").excerpt(CARD)
    assert (excerpt == CARD) == (retention is ExcerptRetention.FULL)
    assert ("1111" in excerpt) == (retention is ExcerptRetention.FULL)
