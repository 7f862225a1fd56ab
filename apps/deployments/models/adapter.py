"""LoRA adapters: weights of one tenant over a deployment's model."""

import uuid

from django.core.exceptions import ValidationError
from django.core.validators import RegexValidator
from django.db import models
from django.utils.translation import gettext_lazy as _
from django_prometheus.models import ExportModelOperationsMixin

from apps.deployments.adapters.enums import AdapterState
from apps.tenants.managers import TenantManager
from apps.tenants.models import Tenant
from headrace_wire.adapters import PLACE, SEPARATOR


class LoraAdapter(ExportModelOperationsMixin("lora_adapter"), models.Model):  # type: ignore[misc]
    """An adapter that its tenant asks for as model `<deployment>:<name>`. Nobody else can tell that it is there."""

    id = models.UUIDField(primary_key=True, default=uuid.uuid4, editable=False)
    tenant = models.ForeignKey(
        Tenant, on_delete=models.CASCADE, related_name="adapters", help_text=_("Nobody else may use it, or sees it.")
    )
    deployment = models.ForeignKey(
        "deployments.ModelDeployment",
        on_delete=models.CASCADE,
        related_name="adapters",
        help_text=_("Whose model it goes over. Its engine must be started with LoRA adapters."),
    )
    name = models.CharField(
        max_length=64,
        validators=[RegexValidator(r"^[A-Za-z0-9][A-Za-z0-9._-]*\Z", _("Letters, digits and . _ - only."))],
        help_text=_("Callers put “<deployment>:<name>” into “model”."),
    )
    place = models.CharField(
        max_length=500,
        help_text=_(
            "Folder below the one for adapters (HEADRACE_ADAPTER_DIR), like “acme/tides” or a Hugging Face id that was"
            " downloaded there. It holds adapter_config.json and adapter_model.safetensors, and no other weights."
        ),
    )
    is_active = models.BooleanField(_("active"), default=True, help_text=_("Off: the name is unknown to callers."))
    state = models.CharField(max_length=16, choices=AdapterState, default=AdapterState.UNCHECKED, editable=False)
    revision = models.CharField(
        max_length=64, blank=True, editable=False, help_text=_("Digest of the files at the last check that passed.")
    )
    rank = models.PositiveIntegerField(null=True, blank=True, editable=False)
    base_model = models.CharField(_("made for"), max_length=500, blank=True, editable=False)
    last_error = models.TextField(_("problems"), blank=True, editable=False)
    checked_at = models.DateTimeField(null=True, blank=True, editable=False)
    created_at = models.DateTimeField(auto_now_add=True)
    updated_at = models.DateTimeField(auto_now=True)

    all_tenants = models.Manager["LoraAdapter"]()
    objects = TenantManager["LoraAdapter"]()

    class Meta:
        ordering = ["tenant", "deployment", "name"]
        default_manager_name = "all_tenants"
        verbose_name = _("LoRA adapter")
        constraints = [
            models.UniqueConstraint(
                fields=["tenant", "deployment", "name"],
                name="lora_adapter_name_once",
                violation_error_message=_("The tenant has an adapter of this name for the deployment already."),
            ),
            models.CheckConstraint(
                condition=models.Q(state__in=AdapterState.values)
                & (~models.Q(state=AdapterState.CHECKED) | ~models.Q(revision="")),
                name="lora_adapter_checked_has_a_revision",
            ),
        ]

    def __str__(self) -> str:
        return f"{self.deployment}{SEPARATOR}{self.name}"

    def clean(self) -> None:
        """Checks the place.

        Raises:
            ValidationError: It does not stay below the folder for adapters, whatever that is.
        """
        if not PLACE.fullmatch(self.place):
            problem = _("Write one to five names with / between them; none begins with a dot, and none is empty.")
            raise ValidationError({"place": problem}, code="place")
