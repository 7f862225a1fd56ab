"""What operators look at that has no table: it is computed. Permissions need its name."""

from django.db import models
from django.utils.translation import gettext_lazy as _


class FleetCost(models.Model):
    """What a deployment's workers cost, and what for."""

    deployment = models.CharField(primary_key=True, max_length=200)

    class Meta:
        managed = False
        default_permissions = ("view",)
        verbose_name = _("fleet cost")

    def __str__(self) -> str:
        return self.deployment
