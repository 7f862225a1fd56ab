"""All judges of one process, each loaded when its first rule comes."""

import logging
from collections.abc import Callable, Sequence
from typing import Generic, TypeVar

from headrace_guard.judges.abuse import AbuseJudge
from headrace_guard.judges.frames import Answer, AnyJob, Comparison, Job, Judged, Likeness, LocalRule, Prepare, Trouble
from headrace_guard.judges.language import LanguageJudge
from headrace_guard.judges.likeness import LikenessJudge
from headrace_guard.judges.sentence_encoder import SentenceEncoder
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
        encoder = _Loaded(SentenceEncoder)
        self._topics = _Loaded(lambda: TopicJudge(encoder()))
        self._likeness = _Loaded(lambda: LikenessJudge(encoder()))
        self._abuse = _Loaded(AbuseJudge)
        self._language = _Loaded(LanguageJudge)

    def prepare(self, request: Prepare) -> list[Answer]:
        """Load what is needed; return what went wrong."""
        troubles: list[Answer] = []
        for rule in request.rules:
            try:
                self._load(rule)
            except Exception as error:  # noqa: BLE001  # told to the owner
                troubles.append(_trouble(rule, error))
        if request.compares:
            try:
                self._likeness()
            except Exception as error:  # noqa: BLE001  # told to the owner
                troubles.append(_trouble(None, error))
        return troubles

    def judge(self, jobs: Sequence[AnyJob]) -> list[Answer]:
        """Return one answer for each job, in order."""
        answers: list[Answer | None] = [None] * len(jobs)
        topics = [
            (index, (job.rule, job.text))
            for index, job in enumerate(jobs)
            if isinstance(job, Job) and isinstance(job.rule, TopicRule)
        ]
        self._judge_topics(topics, answers)
        return [answer or self._judge_alone(job) for answer, job in zip(answers, jobs, strict=True)]

    def _judge_topics(self, topics: list[tuple[int, tuple[TopicRule, str]]], answers: list[Answer | None]) -> None:
        """Judge the topics of all jobs at once; where that fails, each is judged by itself."""
        asked = [question for _, question in topics]
        if len(asked) < 2:
            return
        try:
            verdicts = self._topics().judge(asked)
        except Exception:
            log.exception("topics could not be judged together")
            return
        for (index, _), verdict in zip(topics, verdicts, strict=True):
            answers[index] = _judged(verdict)

    def _judge_alone(self, job: AnyJob) -> Answer:
        try:
            if isinstance(job, Comparison):
                return self._compare(job)
            return _judged(self._verdict(job.rule, job.text))
        except Exception as error:  # noqa: BLE001  # told to the owner
            return _trouble(job.rule if isinstance(job, Job) else None, error)

    def _compare(self, job: Comparison) -> Likeness:
        judge = self._likeness()
        packed = judge.pack(job.text)
        nearest = judge.nearest(packed, job.known, least=job.least, same_words=job.same_words, most=job.most)
        return Likeness(packed, tuple(nearest))

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


def _trouble(rule: LocalRule | None, error: Exception) -> Trouble:
    if isinstance(error, CannotJudgeError):  # logged when it happened
        return Trouble(str(error))
    log.error("cannot judge by a rule of kind %s", rule.__struct_config__.tag if rule else "likeness", exc_info=error)
    return Trouble(f"{type(error).__name__}: {error}")
