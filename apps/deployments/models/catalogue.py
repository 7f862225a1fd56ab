"""Model deployments."""

import uuid

from django.core.exceptions import ValidationError
from django.core.validators import MaxValueValidator, MinValueValidator, RegexValidator
from django.db import models
from django.db.models import F, Q
from django.utils.translation import gettext_lazy as _
from django_prometheus.models import ExportModelOperationsMixin

from apps.deployments.engine_args import EngineArgsError, engine_args_parse
from apps.deployments.enums import BatchControl, Dtype, EngineKind
from apps.tenants.models import Tenant

_SECONDS = (MinValueValidator(1.0), MaxValueValidator(3600.0))
_GOAL_SECONDS = [MinValueValidator(0.001), MaxValueValidator(600.0)]
_PRICE = (MinValueValidator(0),)


class ModelDeployment(ExportModelOperationsMixin("model_deployment"), models.Model):  # type: ignore[misc]
    """One model under a public name: what its workers load, how many requests they batch, who sees it."""

    id = models.UUIDField(primary_key=True, default=uuid.uuid4, editable=False)
    name = models.CharField(
        max_length=128,
        unique=True,
        validators=[RegexValidator(r"^[A-Za-z0-9][A-Za-z0-9._/:-]*\Z", _("Letters, digits and . _ / : - only."))],
        help_text=_("What callers put into “model”. Workers are started with it, so it stays as it is."),
    )
    model = models.CharField(max_length=500, help_text=_("Hugging Face id, or the path of a folder on the workers."))
    is_active = models.BooleanField(
        _("active"), default=True, help_text=_("Off: not listed and not admitted; running answers end normally.")
    )
    engine = models.CharField(
        max_length=16,
        choices=EngineKind,
        default=EngineKind.VLLM,
        help_text=_("The simulated engine makes up its text; it is for load and fault tests."),
    )
    engine_args = models.JSONField(
        _("engine arguments"),
        default=dict,
        blank=True,
        help_text=_("JSON object of engine arguments. Those that could run code are not accepted."),
    )
    max_model_len = models.PositiveIntegerField(
        _("context length (max_model_len)"),
        null=True,
        blank=True,
        validators=[MinValueValidator(16)],
        help_text=_("Tokens of prompt and answer together. Empty: as long as the model allows."),
    )
    max_num_seqs = models.PositiveIntegerField(
        _("parallel requests (max_num_seqs)"),
        default=32,
        validators=[MinValueValidator(1), MaxValueValidator(4096)],
        help_text=_("Requests that one worker can run at the same time."),
    )
    dtype = models.CharField(max_length=16, choices=Dtype, default=Dtype.AUTO)
    quantization = models.CharField(
        max_length=32,
        blank=True,
        validators=[RegexValidator(r"^[a-z0-9_-]+\Z", _("Lower-case letters, digits, - and _ only."))],
        help_text=_("Empty: as the model's own configuration says."),
    )
    batch_min = models.PositiveIntegerField(
        _("smallest batch"), default=1, validators=[MinValueValidator(1)], help_text=_("Dynamic batching stays above.")
    )
    batch_max = models.PositiveIntegerField(
        _("largest batch"),
        null=True,
        blank=True,
        validators=[MinValueValidator(1)],
        help_text=_("Requests that a worker takes at most. Empty: as many as it can run."),
    )
    batch_control = models.CharField(
        _("dynamic batch"),
        max_length=16,
        choices=BatchControl,
        default=BatchControl.OFF,
        help_text=_(
            "What moves each worker's batch between the two. Watch what the rules would do first (shadow): the latency"
            " page and the worker's metrics show it. Running answers are never stopped for it."
        ),
    )
    batch_tpot_goal_seconds = models.FloatField(
        _("goal for a token (s)"),
        default=0.05,
        validators=_GOAL_SECONDS,
        help_text=_("Time per output token that nine of ten streams are to have."),
    )
    batch_ttft_goal_seconds = models.FloatField(
        _("goal for the first token (s)"),
        default=0.5,
        validators=_GOAL_SECONDS,
        help_text=_("From admission; a larger batch helps where it is missed and tokens come quickly enough."),
    )
    prefills_drafts = models.BooleanField(
        _("computes drafts"),
        default=True,
        help_text=_("Idle workers compute prompts while users type them, so that the first token comes sooner."),
    )
    default_max_tokens = models.PositiveIntegerField(
        _("default answer length (max_tokens)"),
        default=512,
        validators=[MinValueValidator(1)],
        help_text=_("Length of an answer where the caller names none."),
    )
    is_restricted = models.BooleanField(
        _("only for the tenants chosen here"), default=False, help_text=_("Off: every tenant sees it.")
    )
    visible_tenants = models.ManyToManyField(
        Tenant,
        blank=True,
        related_name="visible_deployments",
        help_text=_("Counts only for a restricted deployment."),
    )
    queue_limit = models.PositiveIntegerField(
        _("longest queue"), default=1024, help_text=_("Requests that may wait; one more is refused as overloaded.")
    )
    queue_timeout_seconds = models.FloatField(
        _("queue deadline (s)"),
        default=120.0,
        validators=_SECONDS,
        help_text=_("Longest wait until a worker takes a request."),
    )
    ttft_timeout_seconds = models.FloatField(
        _("first-token deadline (s)"),
        default=120.0,
        validators=_SECONDS,
        help_text=_("Longest time from there to the first token."),
    )
    inter_token_timeout_seconds = models.FloatField(
        _("inter-token deadline (s)"),
        default=60.0,
        validators=_SECONDS,
        help_text=_("Longest silence between two tokens."),
    )
    restarts_workers = models.BooleanField(
        _("restart workers when options change"),
        default=False,
        help_text=_(
            "One after another: each ends when its streams have, and the next one only when a successor is ready. Off:"
            " workers keep the options that they run until they are restarted."
        ),
    )
    warm_up_seconds = models.PositiveIntegerField(
        _("warm up after (s)"),
        default=300,
        validators=[MaxValueValidator(86_400)],
        help_text=_(
            "A worker that has generated nothing for so long makes a plain, a JSON and a long inference, so that the"
            " next request finds it warm. 0: never."
        ),
    )
    sleep_after_seconds = models.PositiveIntegerField(
        _("sleep after (s)"),
        default=0,
        validators=[MaxValueValidator(30 * 86_400)],
        help_text=_(
            "A worker whose engine nobody has used for so long ends it, which frees its memory, and starts it again for"
            " the next request: that one waits for the start. Never while a stream runs. 0: never."
        ),
    )
    is_breaker_on = models.BooleanField(
        _("circuit breaker"),
        default=False,
        help_text=_("Takes no requests for a while when workers fail too many or none is there: the fallback does."),
    )
    fallback = models.ForeignKey(
        "self",
        on_delete=models.PROTECT,
        null=True,
        blank=True,
        related_name="stands_in_for",
        help_text=_(
            "Takes the requests while the breaker is open, under its own limits, prices and guardrails, of those who"
            " may use it. Its own fallback is not asked. Empty: they are refused (503) with a time to come again."
        ),
    )
    breaker_error_share = models.FloatField(
        _("share of failures"),
        default=0.5,
        validators=[MinValueValidator(0.01), MaxValueValidator(1.0)],
        help_text=_("0 to 1. With so many of the answers failed by workers it opens."),
    )
    breaker_min_ends = models.PositiveIntegerField(
        _("of at least (answers)"),
        default=20,
        validators=[MinValueValidator(1), MaxValueValidator(100_000)],
        help_text=_("With fewer that ended in the time beside it does not open."),
    )
    breaker_window_seconds = models.FloatField(
        _("in the last (s)"), default=60.0, validators=[MinValueValidator(6.0), MaxValueValidator(3600.0)]
    )
    breaker_absent_seconds = models.FloatField(
        _("no worker for (s)"),
        default=30.0,
        validators=[MinValueValidator(0.0), MaxValueValidator(3600.0)],
        help_text=_("Opens it too, once somebody has asked. Longer than a model takes to wake up. 0: does not."),
    )
    breaker_open_seconds = models.FloatField(
        _("open for (s)"),
        default=30.0,
        validators=_SECONDS,
        help_text=_("Then some requests try it. Twice as long after each time that they fail, up to eight times."),
    )
    breaker_probes = models.PositiveIntegerField(
        _("tried with (requests)"),
        default=3,
        validators=[MinValueValidator(1), MaxValueValidator(1000)],
        help_text=_("When so many have finished it is closed."),
    )
    preload_priority = models.PositiveSmallIntegerField(
        _("preload order"),
        default=100,
        validators=[MaxValueValidator(1000)],
        help_text=_(
            "Where workers of several deployments start or wake on one machine, the smallest number loads and warms up"
            " first, and larger ones wait for it, ten minutes at most. The same number: at the same time. 0 to 1000."
        ),
    )
    prompt_price = models.DecimalField(
        max_digits=12,
        decimal_places=6,
        default=0,
        validators=_PRICE,
        help_text=_("Money per million tokens of the prompt. A new price counts for requests admitted from then on."),
    )
    cached_price = models.DecimalField(
        _("cached prompt price"),
        max_digits=12,
        decimal_places=6,
        null=True,
        blank=True,
        validators=_PRICE,
        help_text=_("Per million prompt tokens that came from the prefix cache. Empty: the prompt price."),
    )
    completion_price = models.DecimalField(
        max_digits=12,
        decimal_places=6,
        default=0,
        validators=_PRICE,
        help_text=_("Per million tokens of the answer."),
    )
    worker_hour_cost = models.DecimalField(
        _("cost of a worker-hour"),
        max_digits=12,
        decimal_places=6,
        null=True,
        blank=True,
        validators=_PRICE,
        help_text=_(
            "What you pay for an hour of one worker, its machine and GPUs, busy or not, in the unit of the prices."
            " Without power where you give the price of a kWh. Empty: not known."
        ),
    )
    kwh_cost = models.DecimalField(
        _("cost of a kWh"),
        max_digits=12,
        decimal_places=6,
        null=True,
        blank=True,
        validators=_PRICE,
        help_text=_("Counts where the power of GPUs is measured. Empty: not known, or part of the worker-hour."),
    )
    last_error = models.TextField(
        blank=True, editable=False, help_text=_("What a worker's engine said last when it could not start or broke.")
    )
    last_error_at = models.DateTimeField(null=True, blank=True, editable=False)
    created_at = models.DateTimeField(auto_now_add=True)
    updated_at = models.DateTimeField(auto_now=True)

    class Meta:
        ordering = ["name"]
        verbose_name = _("deployment")
        constraints = [
            models.CheckConstraint(condition=Q(engine__in=EngineKind.values), name="deployment_engine_known"),
            models.CheckConstraint(
                condition=Q(batch_control__in=BatchControl.values), name="deployment_batch_control_known"
            ),
            models.CheckConstraint(condition=Q(max_num_seqs__gte=1), name="deployment_max_num_seqs_positive"),
            models.CheckConstraint(
                condition=Q(batch_min__gte=1) & (Q(batch_max__isnull=True) | Q(batch_max__gte=F("batch_min"))),
                name="deployment_batch_bounds_in_order",
                violation_error_message=_("The largest batch is smaller than the smallest."),
            ),
            models.CheckConstraint(
                condition=Q(batch_min__lte=F("max_num_seqs"))
                & (Q(batch_max__isnull=True) | Q(batch_max__lte=F("max_num_seqs"))),
                name="deployment_batch_fits_max_num_seqs",
                violation_error_message=_("A batch cannot be larger than the requests that a worker can run."),
            ),
            models.CheckConstraint(
                condition=Q(max_model_len__isnull=True) | Q(default_max_tokens__lt=F("max_model_len")),
                name="deployment_default_answer_fits",
                violation_error_message=_("The default length of an answer must be below the model's length."),
            ),
            models.CheckConstraint(
                condition=Q(prompt_price__gte=0, completion_price__gte=0)
                & (Q(cached_price__isnull=True) | Q(cached_price__gte=0)),
                name="deployment_prices_not_negative",
            ),
            models.CheckConstraint(
                condition=(Q(worker_hour_cost__isnull=True) | Q(worker_hour_cost__gte=0))
                & (Q(kwh_cost__isnull=True) | Q(kwh_cost__gte=0)),
                name="deployment_costs_not_negative",
            ),
            models.CheckConstraint(
                condition=Q(fallback__isnull=True) | ~Q(fallback=F("id")),
                name="deployment_is_not_its_own_fallback",
                violation_error_message=_("A deployment cannot stand in for itself."),
            ),
        ]

    def __str__(self) -> str:
        return self.name

    def clean(self) -> None:
        """Checks what a column cannot, and brings the engine arguments into plain types.

        Raises:
            ValidationError: An engine argument is not allowed, or fallbacks lead round in a circle.
        """
        self._check_fallback()
        try:
            self.engine_args = engine_args_parse(self.engine, self.engine_args)
        except EngineArgsError as error:
            raise ValidationError({"engine_args": str(error)}, code="engine_args") from error

    def _check_fallback(self) -> None:
        seen, at = {self.pk}, self.fallback
        while at is not None:
            if at.pk in seen:
                raise ValidationError(
                    {"fallback": _("“%(name)s” leads back to this deployment.") % {"name": self.fallback}},
                    code="cycle",
                )
            seen.add(at.pk)
            at = at.fallback
