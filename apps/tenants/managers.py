"""The manager that makes tenant isolation a habit: a query that names no tenant is refused."""

from typing import TYPE_CHECKING, NoReturn, TypeVar

from django.db import models

if TYPE_CHECKING:
    from apps.tenants.models import Tenant

_M = TypeVar("_M", bound=models.Model)


class UnscopedQueryError(Exception):
    """Somebody asked for tenant data without saying whose. A bug in our code, never a caller's mistake."""

    def __init__(self, model: type[models.Model]) -> None:
        super().__init__(f"{model.__name__}.objects needs for_tenant(tenant); operators' code says all_tenants.")


class TenantManager(models.Manager[_M]):
    """`for_tenant(tenant)` is the only way in.

    Models that use it declare `all_tenants = models.Manager()` first: Django's own machinery (forms, admin, relations)
    works through that one, and its name shows in a review what a query can see.
    """

    def for_tenant(self, tenant: "Tenant") -> models.QuerySet[_M]:
        """Returns the rows of one tenant."""
        return super().get_queryset().filter(tenant=tenant)

    def get_queryset(self) -> NoReturn:
        """Refuses.

        Raises:
            UnscopedQueryError: Always.
        """
        raise UnscopedQueryError(self.model)

    def create(self, **_: object) -> NoReturn:
        """Refuses: rows are made by services, which lock, check and audit.

        Raises:
            UnscopedQueryError: Always.
        """
        raise UnscopedQueryError(self.model)
