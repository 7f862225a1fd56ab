"""Prompt caches: beginnings of prompts that a tenant's requests share."""

import uuid
from typing import Any

from django.core.exceptions import ValidationError
from django.core.validators import MaxLengthValidator, RegexValidator
from django.db import models
from django.utils.translation import gettext_lazy as _
from django_prometheus.models import ExportModelOperationsMixin

from apps.deployments.models import ModelDeployment
from apps.tenants.managers import TenantManager
from apps.tenants.models import Tenant
from headrace_wire.messages import ChatTurn

MAX_CHARACTERS = 1_000_000
MAX_EXAMPLES = 256
EXAMPLE_ROLES = ("user", "assistant")


class PromptCache(ExportModelOperationsMixin("prompt_cache"), models.Model):  # type: ignore[misc]
    """A named beginning of prompts: what stands in it is computed once and found by the tenant's requests."""

    id = models.UUIDField(primary_key=True, default=uuid.uuid4, editable=False)
    tenant = models.ForeignKey(
        Tenant,
        on_delete=models.CASCADE,
        related_name="prompt_caches",
        help_text=_("Nobody else's requests find it."),
    )
    deployment = models.ForeignKey(ModelDeployment, on_delete=models.CASCADE, related_name="prompt_caches")
    name = models.CharField(
        max_length=100,
        validators=[RegexValidator(r"^[A-Za-z0-9][A-Za-z0-9._:-]*\Z", _("Letters, digits and . _ : - only."))],
        help_text=_("What callers put into “prompt_cache”: its messages then go before theirs."),
    )
    version = models.PositiveIntegerField(
        default=1, editable=False, help_text=_("One more with each change of what it says.")
    )
    system_prompt = models.TextField(blank=True, validators=[MaxLengthValidator(MAX_CHARACTERS)])
    tools_text = models.TextField(
        _("tools"),
        blank=True,
        validators=[MaxLengthValidator(MAX_CHARACTERS)],
        help_text=_("How the model is to use tools, as text; it follows the system prompt."),
    )
    examples = models.JSONField(
        default=list,
        blank=True,
        help_text=_('Messages that show how it is done: [{"role": "user", "content": "…"}, {"role": "assistant", …}]'),
    )
    is_pinned = models.BooleanField(
        _("pinned"),
        default=False,
        help_text=_(
            "Every worker computes it before its first request, and it is kept warm. Off: the first request computes"
            " it, and it stays until others need the memory."
        ),
    )
    is_active = models.BooleanField(
        _("active"), default=True, help_text=_("Off: its name is unknown to callers, and it is not kept warm.")
    )
    token_count = models.PositiveIntegerField(
        _("tokens"), null=True, blank=True, editable=False, help_text=_("As the deployment's model tokenises it.")
    )
    created_at = models.DateTimeField(auto_now_add=True)
    updated_at = models.DateTimeField(auto_now=True)

    all_tenants = models.Manager["PromptCache"]()
    objects = TenantManager["PromptCache"]()

    class Meta:
        ordering = ["tenant", "deployment", "name"]
        default_manager_name = "all_tenants"
        verbose_name = _("prompt cache")
        constraints = [
            models.UniqueConstraint(
                fields=["tenant", "deployment", "name"],
                name="prompt_cache_name_once",
                violation_error_message=_("The tenant has a prompt cache of this name for the deployment already."),
            ),
            models.CheckConstraint(condition=models.Q(version__gte=1), name="prompt_cache_version_positive"),
        ]

    def __str__(self) -> str:
        return self.name

    def clean(self) -> None:
        """Checks the examples, and that there is something to compute.

        Raises:
            ValidationError: An example is no message, or there is no text.
        """
        self.examples = _examples_checked(self.examples)
        if not self.messages:
            raise ValidationError({"system_prompt": _("Write a system prompt, tools or examples.")}, code="empty")

    @property
    def messages(self) -> tuple[ChatTurn, ...]:
        """What a prompt begins with."""
        system = "\n\n".join(text for text in (self.system_prompt, self.tools_text) if text)
        turns = [ChatTurn("system", system)] if system else []
        return (*turns, *(ChatTurn(one["role"], one["content"]) for one in self.examples))


def _examples_checked(value: Any) -> list[dict[str, str]]:  # noqa: ANN401  JSON
    if not isinstance(value, list) or len(value) > MAX_EXAMPLES:
        raise ValidationError({"examples": _("Write a list of at most %d messages.") % MAX_EXAMPLES}, code="examples")
    for number, one in enumerate(value, start=1):
        if not (
            isinstance(one, dict)
            and one.keys() == {"role", "content"}
            and one["role"] in EXAMPLE_ROLES
            and isinstance(one["content"], str)
            and 0 < len(one["content"]) <= MAX_CHARACTERS
        ):
            problem = _("Message %d needs a role (user or assistant) and its content as text, nothing else.") % number
            raise ValidationError({"examples": problem}, code="examples")
    return value
