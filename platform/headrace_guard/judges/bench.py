"""All judges of one process, each loaded when its first rule comes."""

import logging
from collections.abc import Callable, Iterable, Sequence
from typing import Generic, TypeVar

from headrace_guard.judges.abuse import AbuseJudge
from headrace_guard.judges.frames import Answer, Job, Judged, LocalRule, Trouble
from headrace_guard.judges.language import LanguageJudge
from headrace_guard.judges.topics import TopicJudge
from headrace_guard.judges.verdicts import Verdict
from headrace_wire.guard_policy import AbuseRule, LanguageRule, TopicRule

AnyJudge = TypeVar("AnyJudge")

log = logging.getLogger(__name__)


class CannotJudgeError(Exception):
    """A judge could not be loaded."""


class _Loaded(Generic[AnyJudge]):
    """A judge that is loaded when it is wanted first; where that failed, it is not tried again."""

    def __init__(self, load: Callable[[], AnyJudge]) -> None:
        self._load = load
        self._judge: AnyJudge | None = None
        self._trouble = ""

    def __call__(self) -> AnyJudge:
        if self._judge is None and not self._trouble:
            try:
                self._judge = self._load()
            except Exception as error:
                log.exception("a judge cannot be loaded")
                self._trouble = f"{type(error).__name__}: {error}"
        if self._judge is None:
            raise CannotJudgeError(self._trouble)
        return self._judge


class Bench:
    """Judges jobs of all kinds. A judge that cannot be loaded, or fails, answers so; it takes no other down."""

    def __init__(self) -> None:
        self._topics = _Loaded(TopicJudge)
        self._abuse = _Loaded(AbuseJudge)
        self._language = _Loaded(LanguageJudge)

    def prepare(self, rules: Iterable[LocalRule]) -> list[Answer]:
        """Load what the rules need; return what went wrong."""
        troubles: list[Answer] = []
        for rule in rules:
            try:
                self._load(rule)
            except Exception as error:  # noqa: BLE001  # told to the owner
                troubles.append(_trouble(rule, error))
        return troubles

    def judge(self, jobs: Sequence[Job]) -> list[Answer]:
        """Return one answer for each job, in order."""
        answers: list[Answer | None] = [None] * len(jobs)
        topics = [index for index, job in enumerate(jobs) if isinstance(job.rule, TopicRule)]
        self._judge_topics(jobs, topics, answers)
        return [answer or self._judge_alone(job) for answer, job in zip(answers, jobs, strict=True)]

    def _judge_topics(self, jobs: Sequence[Job], topics: list[int], answers: list[Answer | None]) -> None:
        """Judge the topics of all jobs at once; where that fails, each is judged by itself."""
        asked = [(job.rule, job.text) for job in (jobs[index] for index in topics) if isinstance(job.rule, TopicRule)]
        if len(asked) < 2:
            return
        try:
            verdicts = self._topics().judge(asked)
        except Exception:
            log.exception("topics could not be judged together")
            return
        for index, verdict in zip(topics, verdicts, strict=True):
            answers[index] = _judged(verdict)

    def _judge_alone(self, job: Job) -> Answer:
        try:
            return _judged(self._verdict(job.rule, job.text))
        except Exception as error:  # noqa: BLE001  # told to the owner
            return _trouble(job.rule, error)

    def _verdict(self, rule: LocalRule, text: str) -> Verdict:
        match rule:
            case TopicRule():
                return self._topics().judge([(rule, text)])[0]
            case AbuseRule():
                return self._abuse().judge(rule, text)
            case LanguageRule():
                return self._language().judge(rule, text)

    def _load(self, rule: LocalRule) -> None:
        match rule:
            case TopicRule():
                self._topics().prepare(rule)
            case AbuseRule():
                self._abuse()
            case LanguageRule():
                self._language()


def _judged(verdict: Verdict) -> Judged:
    return Judged(verdict.found, verdict.score, verdict.finding)


def _trouble(rule: LocalRule, error: Exception) -> Trouble:
    if isinstance(error, CannotJudgeError):  # logged when it happened
        return Trouble(str(error))
    log.error("cannot judge by a rule of kind %s", rule.__struct_config__.tag, exc_info=error)
    return Trouble(f"{type(error).__name__}: {error}")
