"""Which static requests may be given the answer to another question, and what must be the same in both."""

import hmac

import msgspec

from apps.streams.config_view import Caller
from apps.streams.gateway import Gateway
from apps.streams.likenesses import Question
from apps.streams.services.guarding import GuardedInput
from apps.streams.services.static_requests import CacheControls, deployment_revision, what_shapes
from headrace_guard.exact_words import exact_words
from headrace_guard.judges.frames import QUESTION_FORM
from headrace_wire.messages import SamplingParams
from headrace_wire.response_cache_terms import ResponseCacheTerms
from headrace_wire.snapshot import DeploymentConfig

MOST_CHARACTERS = 2_000
"""The encoder reads 256 tokens; what is certainly longer is not put to it."""

_encoder = msgspec.msgpack.Encoder(order="deterministic")


def question_of(
    gateway: Gateway,
    caller: Caller,
    deployment: DeploymentConfig,
    policy: ResponseCacheTerms,
    guarded: GuardedInput,
    sampling: SamplingParams,
    controls: CacheControls,
    *,
    is_named: bool,
) -> Question | None:
    """Return what of a static request may be compared; None where nothing may.

    The web chat (`is_named`) cannot show that an answer was another question's. Where a worker judges the input too,
    nobody has judged this one yet.
    """
    if not policy.semantic or not controls.semantic or is_named or guarded.awaits_verdict:
        return None
    last = guarded.conversation[-1] if guarded.conversation else None
    if last is None or last.role != "user" or not last.content.strip() or len(last.content) > MOST_CHARACTERS:
        return None
    if sum(turn.role == "user" for turn in guarded.conversation) > policy.semantic_max_turns:
        return None
    parts = (
        *("semantic-cache 1", QUESTION_FORM),
        caller.tenant.id,
        policy.generation,
        deployment_revision(gateway, deployment),
        guarded.terms.policies,
        [(turn.role, turn.content) for turn in guarded.conversation[:-1]],
        exact_words(last.content),
        what_shapes(sampling),
    )
    return Question(last.content, hmac.digest(gateway.secret, _encoder.encode(parts), "sha256").hex()[:40])
