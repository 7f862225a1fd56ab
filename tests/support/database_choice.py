"""Points an already configured Django at another database before its tests make theirs."""

from django.conf import settings
from django.db import DEFAULT_DB_ALIAS, connections

from headrace.settings.urls import database_from_url


def use_database(url: str) -> None:
    """Replaces the default database; no connection may have been used yet."""
    connections[DEFAULT_DB_ALIAS].close()
    del connections[DEFAULT_DB_ALIAS]
    entry = settings.DATABASES[DEFAULT_DB_ALIAS]
    entry.clear()
    entry.update(database_from_url(url))
    connections.configure_settings(settings.DATABASES)
