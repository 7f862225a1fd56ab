"""What operators act on that has no table: it lives in Redis. Permissions and the audit trail need its name."""

from django.db import models
from django.utils.translation import gettext_lazy as _


class LiveStream(models.Model):
    """A stream that has not ended."""

    stream_id = models.CharField(primary_key=True, max_length=64)

    class Meta:
        managed = False
        default_permissions = ("view",)
        permissions = [
            ("kill_livestream", "Can end live streams"),
            ("migrate_livestream", "Can move live streams to other workers"),
        ]
        verbose_name = _("live stream")

    def __str__(self) -> str:
        return self.stream_id


class FleetProcess(models.Model):
    """A worker or a gateway, by its incarnation."""

    incarnation = models.CharField(primary_key=True, max_length=64)

    class Meta:
        managed = False
        default_permissions = ()
        permissions = [("drain_fleetprocess", "Can drain and resume workers and gateways")]
        verbose_name = _("fleet process")

    def __str__(self) -> str:
        return self.incarnation
