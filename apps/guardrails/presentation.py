"""Policies, versions and what the bench saw, in words and in what templates need."""

import math
from itertools import pairwise
from typing import Any

from django.utils.translation import gettext as _

from apps.guardrails.bench import Answer, BenchReport, Finding
from apps.guardrails.enums import PersonalDataKind
from apps.guardrails.models import GuardrailPolicy, PolicyVersion
from apps.guardrails.selectors import version_content
from apps.guardrails.version_diff import changes_told, policy_changes
from headrace_wire.guard_policy import AbuseRule, Action, AnyRule, GuardPolicy, TopicRule

TPOT_SECONDS = 0.04
GOAL_SECONDS = 0.2
"""The first token is to come within it; hold-back is shown beside it."""
_ACTIONS = {Action.BLOCK: "danger", Action.MASK: "warning", Action.FLAG: "info"}


def hold_back_tokens(*, chunk_size: int, context_size: int) -> int:
    """Returns how many tokens there must be before the first one goes out: whole chunks, more than the context."""
    return chunk_size * (context_size // chunk_size + 1)


def hold_back_told(*, chunk_size: int, context_size: int, tpot_seconds: float = TPOT_SECONDS) -> str:
    """Returns what waiting for windows costs, beside the goal."""
    tokens = hold_back_tokens(chunk_size=chunk_size, context_size=context_size)
    numbers = {
        "tokens": tokens,
        "tpot": f"{tpot_seconds * 1000:g}",
        "seconds": f"{tokens * tpot_seconds:.1f}",
        "goal": f"{GOAL_SECONDS:g}",
    }
    return (
        _(
            "%(tokens)d tokens at %(tpot)s ms are %(seconds)s s before the first token, and the judge's time;"
            " the goal without guardrails is %(goal)s s."
        )
        % numbers
    )


def versions_told(policy: GuardrailPolicy) -> list[dict[str, Any]]:
    """Returns the versions, newest first, each with what changed since the one before."""
    versions = list(policy.versions.order_by("-number"))
    contents: list[GuardPolicy | None] = [*(version_content(version) for version in versions), None]
    return [
        {
            "version": version,
            "mode": version.get_mode_display(),
            "changes": _changes(version, before, after),
            "is_newest": version.number == policy.version,
        }
        for version, (after, before) in zip(versions, pairwise(contents), strict=True)
    ]


def _changes(version: PolicyVersion, before: GuardPolicy | None, after: GuardPolicy | None) -> list[str]:
    if after is None or before is None:
        return [_("First version.")]
    changes = policy_changes(before, after)
    changes.pop("mode", None)
    return changes_told(changes) or [_("Only the mode: %s") % version.get_mode_display()]


def report_told(report: BenchReport, *, tpot_seconds: float) -> dict[str, Any]:
    """Returns what the bench's page shows."""
    delay = report.first_delay_seconds
    return {
        "verdict": _verdict(report),
        "colour": _verdict_colour(report),
        "result": report.result,
        "replacement": report.replacement if report.is_blocked and not report.is_refused else "",
        "findings": [_finding_told(found) for found in report.findings],
        "windows": [
            {
                "number": window.number,
                "context": window.context,
                "text": window.text,
                "answers": [_answer_told(answer) for answer in window.answers],
            }
            for window in report.windows
        ],
        "tokens": report.tokens,
        "held": report.held_characters,
        "delay": None if delay is None else f"{delay:.2f}",
        "is_over_goal": delay is not None and delay > GOAL_SECONDS,
        "tpot": f"{tpot_seconds * 1000:g}",
        "guard_us": f"{report.guard_seconds / max(report.tokens, 1) * 1e6:.1f}",
        "is_output": report.direction == "output",
    }


def _verdict(report: BenchReport) -> str:
    found = bool(report.findings) or any(a.verdict and a.verdict.found for w in report.windows for a in w.answers)
    if report.is_failed:
        return _("A judge failed: the answer ends with an error, for the policy is closed.")
    if report.is_blocked:
        refused = _("Blocked: the caller gets an error, 400 content_filter.")
        retracted = _("Blocked, and readers had seen it: it is taken back and replaced.")
        return refused if report.is_refused else retracted if report.is_retracted else _("Blocked and replaced.")
    if report.is_unchecked:
        return _("A judge failed: the text goes on, recorded as unchecked.")
    if any(finding.action is Action.MASK for finding in report.findings):
        return _("Passes, masked.")
    return _("Passes, and what was found is recorded.") if found else _("Passes; nothing was found.")


def _verdict_colour(report: BenchReport) -> str:
    if report.is_failed or report.is_blocked:
        return "red"
    return "orange" if report.is_unchecked or report.findings else "green"


def _finding_told(found: Finding) -> dict[str, Any]:
    labels = dict(PersonalDataKind.choices)
    return {
        "rule": found.rule.name,
        "finding": labels.get(found.finding, found.finding),
        "text": found.text,
        "start": found.start,
        "end": found.end,
        "action": found.action.value,
        "colour": _ACTIONS[found.action],
    }


def _answer_told(answer: Answer) -> dict[str, Any]:
    verdict, failure = answer.verdict, answer.failure
    return {
        "rule": answer.rule.name,
        "is_found": verdict is not None and verdict.found,
        "score": f"{verdict.score:.2f}" if verdict is not None and math.isfinite(verdict.score) else "",
        "threshold": _threshold(answer.rule),
        "finding": verdict.finding if verdict is not None else "",
        "failure": f"{failure.reason}: {failure}" if failure is not None else "",
        "action": answer.rule.action.value if answer.blocks else Action.FLAG.value,
        "ms": f"{answer.seconds * 1000:.0f}",
    }


def _threshold(rule: AnyRule) -> str:
    return f"{rule.threshold:g}" if isinstance(rule, TopicRule | AbuseRule) else ""
