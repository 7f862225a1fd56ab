"""`manage.py delete_tenant SLUG`: deletes a tenant that was switched off, with what is kept for it."""

from argparse import ArgumentParser
from typing import Any

from django.core.exceptions import ValidationError
from django.core.management.base import BaseCommand, CommandError

from apps.tenants.selectors import tenant_get
from apps.tenants.services import tenant_delete


class Command(BaseCommand):
    """Deletes a tenant for good."""

    help = (
        "Deletes a tenant that is switched off: members, keys, conversations, policies, prompt caches and kept answers."
        " Usage and the audit trail stay, without it."
    )

    def add_arguments(self, parser: ArgumentParser) -> None:
        """Takes the tenant's slug."""
        parser.add_argument("slug")

    def handle(self, *_: Any, slug: str, **_options: Any) -> None:  # noqa: ANN401
        """Deletes it and says so."""
        tenant = tenant_get(slug=slug)
        if tenant is None:
            raise CommandError(f"There is no tenant {slug!r}.")
        try:
            tenant_delete(tenant=tenant)
        except ValidationError as error:
            raise CommandError(" ".join(error.messages)) from error
        self.stdout.write(f"{slug} is deleted.")
