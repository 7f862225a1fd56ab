"""Users who sign in, and API keys that tenants' programs use."""

import uuid
from datetime import datetime
from typing import ClassVar

from django.contrib.auth.base_user import AbstractBaseUser, BaseUserManager
from django.contrib.auth.models import PermissionsMixin
from django.core.exceptions import ValidationError
from django.db import models
from django.db.models.functions import Lower
from django.utils import timezone
from django.utils.translation import gettext_lazy as _
from django_prometheus.models import ExportModelOperationsMixin

from apps.accounts.enums import ApiKeyScope
from apps.tenants.managers import TenantManager
from apps.tenants.models import Membership, Tenant
from headrace_wire.api_key import PREFIX, PUBLIC_ID_LENGTH


class UserManager(BaseUserManager["User"]):
    """Makes users and finds them; emails are kept in lower case."""

    def create_user(self, email: str, password: str | None = None, **fields: object) -> "User":
        """Returns a new saved user; without a password it cannot sign in."""
        user: User = self.model(email=email.strip().lower(), **fields)
        user.set_password(password)
        user.full_clean(exclude=["password"])
        user.save(using=self._db)
        return user

    def create_superuser(self, email: str, password: str | None = None, **fields: object) -> "User":
        """Returns a new user with every permission (`manage.py createsuperuser`)."""
        return self.create_user(email, password, **{**fields, "is_staff": True, "is_superuser": True})

    def get_by_natural_key(self, username: str | None) -> "User":
        """Finds the user who types `username` at sign-in."""
        return self.get(email=(username or "").strip().lower())


class User(ExportModelOperationsMixin("user"), AbstractBaseUser, PermissionsMixin):  # type: ignore[misc]
    """A person. Belongs to tenants by `Membership`; staff reach the admin."""

    id = models.UUIDField(primary_key=True, default=uuid.uuid4, editable=False)
    email = models.EmailField(
        max_length=254,
        unique=True,
        help_text=_("Signs in with it."),
        error_messages={"unique": _("There is a user with this email.")},
    )
    full_name = models.CharField(max_length=200, blank=True)
    is_staff = models.BooleanField(_("staff"), default=False, help_text=_("May enter this admin."))
    is_active = models.BooleanField(_("active"), default=True, help_text=_("Off instead of deleting somebody."))
    date_joined = models.DateTimeField(default=timezone.now, editable=False)

    objects: ClassVar[UserManager] = UserManager()

    USERNAME_FIELD = "email"
    EMAIL_FIELD = "email"
    REQUIRED_FIELDS: ClassVar[list[str]] = []

    class Meta:
        ordering = ["email"]
        constraints = [
            models.CheckConstraint(condition=models.Q(email=Lower("email")), name="user_email_lower_case"),
        ]

    def __str__(self) -> str:
        return self.email

    def clean(self) -> None:
        """Brings the email into its stored form."""
        self.email = self.email.strip().lower()

    def get_short_name(self) -> str:
        """Returns what to call the person."""
        return self.full_name or self.email.partition("@")[0]


class ApiKey(ExportModelOperationsMixin("api_key"), models.Model):  # type: ignore[misc]
    """A tenant's key. Only the digest of its secret is kept; the secret is shown once, when the key is made."""

    id = models.UUIDField(primary_key=True, default=uuid.uuid4, editable=False)
    tenant = models.ForeignKey(Tenant, on_delete=models.CASCADE, related_name="api_keys")
    user = models.ForeignKey(
        User,
        on_delete=models.CASCADE,
        null=True,
        blank=True,
        related_name="api_keys",
        verbose_name=_("member"),
        help_text=_("The member it belongs to; empty for a key of the tenant itself."),
    )
    name = models.CharField(max_length=100, help_text=_("What uses it, e.g. “billing service”."))
    public_id = models.CharField(max_length=PUBLIC_ID_LENGTH, unique=True, editable=False)
    secret_sha256 = models.BinaryField(max_length=32, editable=False)
    scopes = models.JSONField(default=list)
    is_restricted = models.BooleanField(
        _("only the deployments chosen here"),
        default=False,
        help_text=_("Off: it may use every deployment that its tenant sees."),
    )
    allowed_deployments = models.ManyToManyField(
        "deployments.ModelDeployment",
        blank=True,
        related_name="+",
        help_text=_("Counts only for a restricted key."),
    )
    expires_at = models.DateTimeField(null=True, blank=True, help_text=_("Empty: does not expire."))
    last_used_at = models.DateTimeField(null=True, blank=True, editable=False)
    revoked_at = models.DateTimeField(null=True, blank=True, editable=False)
    rotated_from = models.OneToOneField(
        "self", on_delete=models.SET_NULL, null=True, blank=True, editable=False, related_name="successor"
    )
    created_by = models.ForeignKey(
        User, on_delete=models.SET_NULL, null=True, blank=True, editable=False, related_name="+"
    )
    created_at = models.DateTimeField(auto_now_add=True)

    all_tenants = models.Manager["ApiKey"]()
    objects = TenantManager["ApiKey"]()

    class Meta:
        ordering = ["-created_at"]
        default_manager_name = "all_tenants"
        verbose_name = _("API key")
        indexes = [models.Index(fields=["tenant", "-created_at"], name="api_key_by_tenant")]

    def __str__(self) -> str:
        return f"{self.name} ({self.display_id})"

    def clean(self) -> None:
        """Checks what a column cannot.

        Raises:
            ValidationError: The scopes are not a non-empty list of known ones, or the user is no member of the tenant.
        """
        if not isinstance(self.scopes, list) or not self.scopes or not set(self.scopes) <= set(ApiKeyScope.values):
            raise ValidationError({"scopes": _("Choose at least one of the known scopes.")}, code="unknown_scope")
        if self.user_id is None or self.tenant_id is None:
            return
        if not Membership.objects.for_tenant(self.tenant).filter(user=self.user_id).exists():
            raise ValidationError({"user": _("Is not a member of the tenant.")}, code="not_a_member")

    @property
    def display_id(self) -> str:
        """The part of the key that may be shown anywhere."""
        return f"{PREFIX}-{self.public_id}"

    def is_usable(self, *, at: datetime) -> bool:
        """Whether the key itself would be accepted at that time (its tenant is another question)."""
        return self.revoked_at is None and (self.expires_at is None or self.expires_at > at)
