"""Encrypts the webhook secrets that are there, as `sealed_text` does with a key made from `SECRET_KEY`."""

import base64
import hashlib

from cryptography.fernet import Fernet
from django.apps.registry import Apps
from django.conf import settings
from django.db import migrations
from django.db.backends.base.schema import BaseDatabaseSchemaEditor

PLAIN = "whsec_"


def _key() -> Fernet:
    digest = hashlib.sha256(b"headrace.sealed_text:" + settings.SECRET_KEY.encode()).digest()
    return Fernet(base64.urlsafe_b64encode(digest))


def seal(apps: Apps, _editor: BaseDatabaseSchemaEditor) -> None:
    """Encrypts what is plain."""
    tenant = apps.get_model("tenants", "Tenant")
    for row in tenant._base_manager.filter(webhook_secret__startswith=PLAIN):
        sealed = _key().encrypt(row.webhook_secret.encode()).decode()
        tenant._base_manager.filter(pk=row.pk).update(webhook_secret=sealed)


def unseal(apps: Apps, _editor: BaseDatabaseSchemaEditor) -> None:
    """Decrypts them."""
    tenant = apps.get_model("tenants", "Tenant")
    for row in tenant._base_manager.exclude(webhook_secret="").exclude(webhook_secret__startswith=PLAIN):
        plain = _key().decrypt(row.webhook_secret.encode()).decode()
        tenant._base_manager.filter(pk=row.pk).update(webhook_secret=plain)


class Migration(migrations.Migration):
    dependencies = [("tenants", "0006_sealed_webhook_secrets")]

    operations = [migrations.RunPython(seal, unseal)]
