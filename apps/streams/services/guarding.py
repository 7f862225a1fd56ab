"""The guard at the way in: which policies apply, and what light rules do to a conversation before anybody reads it."""

import asyncio
from collections.abc import Sequence

import msgspec
import structlog
from msgspec import Struct
from redis.exceptions import RedisError

from apps.streams.config_view import Caller
from apps.streams.gateway import Gateway
from headrace_guard.combination import Guard
from headrace_guard.findings import Subject, hit_record
from headrace_guard.policy_store import PolicyMissingError
from headrace_guard.scanner import Hit, Scanner
from headrace_wire.errors import ContentFilterError, GuardrailUnavailableError
from headrace_wire.guard_policy import Direction, GuardTerms
from headrace_wire.messages import ChatTurn
from headrace_wire.snapshot import DeploymentConfig

log = structlog.get_logger(__name__)

SCAN_AT_ONCE_CHARACTERS = 4_000
"""Conversations up to this length are judged on the event loop: a millisecond at most."""

REMOVED = "[removed by a guardrail]"
"""In the place of an earlier message that would be blocked today."""

BLOCKED = "Your request was blocked by a guardrail of this service. Change it and send it again."


class GuardedInput(Struct, frozen=True):
    """A conversation that may go on, and what its request carries."""

    conversation: tuple[ChatTurn, ...]
    terms: GuardTerms = GuardTerms()
    names: tuple[str, ...] = ()
    """Of the policies that apply, for the header."""
    awaits_verdict: bool = False
    """Whether the worker judges the input too: until it has, the answer may still become a refusal."""
    may_pass_unchecked: bool = False
    """A judge that fails or is late lets the text go on."""


async def input_guard(
    *,
    gateway: Gateway,
    caller: Caller,
    deployment: DeploymentConfig,
    stream_id: str,
    salt: str,
    conversation: Sequence[ChatTurn],
) -> GuardedInput:
    """Judge a conversation by the light rules that apply, and mask it where they say so.

    What came since the last answer is judged as a request. An earlier message that would be blocked today is left out.

    Raises:
        ContentFilterError: it is blocked.
        GuardrailUnavailableError: a policy that applies cannot be had.
    """
    attachments = gateway.config.guardrails(caller, deployment)
    if not attachments:
        return GuardedInput(tuple(conversation))
    digests = tuple(attachment.digest for attachment in attachments)
    guard = gateway.policies.known(digests) or await _compiled(gateway, digests)
    subject = Subject(stream_id, caller.tenant.id, deployment.name, caller.tenant.intervention_excerpts, salt)
    judged = await _scanned(guard, conversation)
    for hit in judged.hits:
        gateway.interventions.put(hit_record(guard, subject, hit, Direction.INPUT))
    turns, block = judged.turns, judged.block
    answer: str | None = None
    if block is not None:
        if guard.refuses_input(block.bound.policy):
            raise ContentFilterError(BLOCKED, param="messages")
        answer = guard.replacement(block.bound.policy, block.bound.rule)
    texts = _texts(turns) if guard.input_rules else ()
    terms = GuardTerms(digests, texts, caller.tenant.intervention_excerpts, answer=answer)
    return GuardedInput(
        turns,
        terms,
        tuple(guard.names),
        awaits_verdict=bool(guard.input_rules),
        may_pass_unchecked=any(not guard.is_closed(rule) for rule in (*guard.input_rules, *guard.output_rules)),
    )


async def draft_guard(
    *, gateway: Gateway, caller: Caller, deployment: DeploymentConfig, conversation: Sequence[ChatTurn]
) -> tuple[ChatTurn, ...] | None:
    """Return a conversation whose last message is unfinished, as the model will read it however that goes on.

    What the light rules may still change or block is left off the last message. None: it is blocked already. Nothing is
    recorded: nobody has asked for anything yet.

    Raises:
        GuardrailUnavailableError: a policy that applies cannot be had.
    """
    attachments = gateway.config.guardrails(caller, deployment)
    if not attachments:
        return tuple(conversation)
    digests = tuple(attachment.digest for attachment in attachments)
    guard = gateway.policies.known(digests) or await _compiled(gateway, digests)
    judged = await _scanned(guard, conversation, is_open=True)
    return judged.turns if judged.block is None else None


async def _scanned(guard: Guard, conversation: Sequence[ChatTurn], *, is_open: bool = False) -> "_Judged":
    scanner = guard.input_scanner
    if scanner is None:
        return _Judged(tuple(conversation), [])
    if sum(len(turn.content) for turn in conversation) <= SCAN_AT_ONCE_CHARACTERS:
        return _judge(scanner, conversation, is_open=is_open)
    return await asyncio.to_thread(_judge, scanner, conversation, is_open=is_open)


async def _compiled(gateway: Gateway, digests: tuple[str, ...]) -> Guard:
    try:
        return await gateway.policies.get(digests)
    except (PolicyMissingError, RedisError) as error:
        log.warning("guardrail_unavailable", problem=str(error))
        raise GuardrailUnavailableError(
            "A guardrail that applies to this request cannot be read, and nothing passes without it; try again.",
            retry_after_seconds=2.0,
        ) from error


class _Judged(Struct, frozen=True):
    turns: tuple[ChatTurn, ...]
    hits: list[Hit]
    block: Hit | None = None


def _judge(scanner: Scanner, conversation: Sequence[ChatTurn], *, is_open: bool = False) -> _Judged:
    """Return the turns as they may be read, what was found in the new ones, and what blocks the request.

    `is_open`: the last one is not over, and only what stays of it whatever comes may be read.
    """
    fresh_from = _fresh_from(conversation)
    turns: list[ChatTurn] = []
    found: list[Hit] = []
    for index, turn in enumerate(conversation):
        scan = scanner.open()
        content = scan.push(turn.content)
        if scan.block is None and not (is_open and index == len(conversation) - 1):
            content += scan.flush()
        if index >= fresh_from:
            found += scan.hits
            if scan.block is not None:
                return _Judged(tuple(conversation), found, scan.block)
        turns.append(msgspec.structs.replace(turn, content=content if scan.block is None else REMOVED))
    return _Judged(tuple(turns), found)


def _texts(turns: Sequence[ChatTurn]) -> tuple[str, ...]:
    """Return what windows are cut from: all that the model reads, also what a client says was said before."""
    fresh_from = _fresh_from(turns)
    earlier = [turn.content for turn in turns[:fresh_from] if turn.content]
    return (*earlier, "\n\n".join(turn.content for turn in turns[fresh_from:]))


def _fresh_from(conversation: Sequence[ChatTurn]) -> int:
    """Return the index of the first message after the last answer; one that nothing follows is part of the request."""
    end = len(conversation)
    while end and conversation[end - 1].role == "assistant":
        end -= 1
    answers = [index for index, turn in enumerate(conversation[:end]) if turn.role == "assistant"]
    return answers[-1] + 1 if answers else 0
