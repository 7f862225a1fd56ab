"""Policies of the response cache."""

import uuid

from django.core.exceptions import ValidationError
from django.core.validators import MaxValueValidator, MinValueValidator
from django.db import models
from django.utils.translation import gettext_lazy as _

from apps.caching.response_enums import StaticRule
from apps.deployments.models import ModelDeployment
from apps.tenants.managers import TenantManager
from apps.tenants.models import Tenant
from headrace_wire.response_cache_terms import DEFAULT_SEMANTIC_THRESHOLD

MIN_TTL_MINUTES, MAX_TTL_MINUTES = 15, 60
MIN_SIMILARITY, MIN_SIMILARITY_OF_OTHER_WORDS = 0.9, 0.97
MAX_TURNS = 10


class ResponseCachePolicy(models.Model):
    """Whether a tenant's static answers are kept, and for how long."""

    id = models.UUIDField(primary_key=True, default=uuid.uuid4, editable=False)
    tenant = models.ForeignKey(Tenant, on_delete=models.CASCADE, related_name="response_cache_policies")
    deployment = models.ForeignKey(
        ModelDeployment,
        on_delete=models.CASCADE,
        null=True,
        blank=True,
        related_name="response_cache_policies",
        help_text=_("Empty: all of them that have no policy of their own."),
    )
    enabled = models.BooleanField(
        default=True, help_text=_("Off: nothing is kept or given, also where a policy for all deployments says so.")
    )
    ttl_minutes = models.PositiveSmallIntegerField(
        _("minutes"),
        default=30,
        validators=[MinValueValidator(MIN_TTL_MINUTES), MaxValueValidator(MAX_TTL_MINUTES)],
        help_text=_("How long an answer is given again, 15 to 60; never longer than the tenant's streams are kept."),
    )
    static_rule = models.CharField(
        _("static are"),
        max_length=24,
        choices=StaticRule,
        default=StaticRule.TEMPERATURE_ZERO,
        help_text=_("Only static requests have answers that are kept. Never those with personal data or an end user."),
    )
    count_requests = models.BooleanField(
        _("answers from the cache count as requests"), default=True, help_text=_("In limits of requests per minute.")
    )
    count_tokens = models.BooleanField(
        _("their tokens count and are charged"),
        default=False,
        help_text=_("In limits and budgets; prompt tokens at the price of cached ones."),
    )
    include_chat = models.BooleanField(
        _("the web chat's too"),
        default=False,
        help_text=_(
            "Answers in the chat are kept and given again to everybody of the tenant who asks the same in the same"
            " conversation; “try again” has a new one written. Off: the chat neither keeps answers nor is given any."
        ),
    )
    max_mebibytes = models.PositiveIntegerField(
        _("room (MiB)"),
        default=64,
        validators=[MinValueValidator(1), MaxValueValidator(4096)],
        help_text=_("Of all answers kept for the tenant. Those used longest ago go first; at 90 % the log says so."),
    )
    semantic = models.BooleanField(
        _("answers to other questions, too"),
        default=False,
        help_text=_(
            "A question is also given the kept answer to another one of the tenant that asks for the same in other"
            " words; all before it must be the same. That is a guess: some will be given an answer to what they have"
            " not asked. For English only, and never in the web chat. Off: only the same request is given it."
        ),
    )
    semantic_threshold = models.FloatField(
        _("least similarity"),
        default=DEFAULT_SEMANTIC_THRESHOLD,
        validators=[MinValueValidator(MIN_SIMILARITY), MaxValueValidator(1.0)],
        help_text=_(
            "0.9 to 1. Lower: more is answered from the cache, and more of it wrongly. “Before surgery” and “after"
            " surgery” have 0.96 in the same question."
        ),
    )
    semantic_same_words = models.BooleanField(
        _("only with the same words"),
        default=True,
        help_text=_(
            "All words must be the same, in the same order, but for “the”, “please”, “can” and the like. Off: other"
            " words may stand there, so that the similarity, which hardly sees one word in a long text, decides by"
            " itself, and must be 0.97 at least."
        ),
    )
    semantic_max_turns = models.PositiveSmallIntegerField(
        _("in conversations up to"),
        default=1,
        validators=[MinValueValidator(1), MaxValueValidator(MAX_TURNS)],
        help_text=_("Messages of the user, 1 to 10. What a later question means hangs on what was said before."),
    )
    generation = models.PositiveBigIntegerField(default=0, editable=False)
    purged_at = models.DateTimeField(null=True, blank=True, editable=False)
    created_at = models.DateTimeField(auto_now_add=True)
    updated_at = models.DateTimeField(auto_now=True)

    all_tenants = models.Manager["ResponseCachePolicy"]()
    objects = TenantManager["ResponseCachePolicy"]()

    class Meta:
        ordering = ["tenant", "deployment"]
        default_manager_name = "all_tenants"
        verbose_name = _("response cache policy")
        verbose_name_plural = _("response cache policies")
        constraints = [
            models.UniqueConstraint(
                fields=["tenant", "deployment"],
                name="response_cache_once_per_deployment",
                violation_error_message=_("There is a policy for this tenant and deployment already."),
            ),
            models.UniqueConstraint(
                fields=["tenant"],
                condition=models.Q(deployment__isnull=True),
                name="response_cache_once_for_all_deployments",
                violation_error_message=_("There is a policy for all deployments of this tenant already."),
            ),
            models.CheckConstraint(
                condition=models.Q(ttl_minutes__gte=MIN_TTL_MINUTES, ttl_minutes__lte=MAX_TTL_MINUTES),
                name="response_cache_ttl_in_range",
            ),
            models.CheckConstraint(
                condition=models.Q(semantic_threshold__gte=MIN_SIMILARITY, semantic_threshold__lte=1.0),
                name="response_cache_similarity_in_range",
            ),
            models.CheckConstraint(
                condition=models.Q(semantic_max_turns__gte=1, semantic_max_turns__lte=MAX_TURNS),
                name="response_cache_turns_in_range",
            ),
            models.CheckConstraint(
                condition=models.Q(static_rule__in=StaticRule.values), name="response_cache_static_rule_known"
            ),
        ]

    def __str__(self) -> str:
        return f"{self.tenant} → {self.deployment}" if self.deployment else str(self.tenant)

    def clean(self) -> None:
        """Refuses a similarity that would let questions with other words pass that ask for something else."""
        too_low = self.semantic_threshold < MIN_SIMILARITY_OF_OTHER_WORDS
        if self.semantic and not self.semantic_same_words and too_low:
            raise ValidationError(
                {"semantic_threshold": _("At least 0.97 where other words may stand in a question, or the same words.")}
            )
