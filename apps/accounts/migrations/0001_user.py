import uuid

import django.utils.timezone
import django_prometheus.models
from django.db import migrations, models
from django.db.models.functions import Lower


class Migration(migrations.Migration):
    initial = True

    dependencies = [("auth", "0012_alter_user_first_name_max_length")]

    operations = [
        migrations.CreateModel(
            name="User",
            fields=[
                ("password", models.CharField(max_length=128, verbose_name="password")),
                ("last_login", models.DateTimeField(blank=True, null=True, verbose_name="last login")),
                (
                    "is_superuser",
                    models.BooleanField(
                        default=False,
                        help_text="Designates that this user has all permissions without explicitly assigning them.",
                        verbose_name="superuser status",
                    ),
                ),
                ("id", models.UUIDField(default=uuid.uuid4, editable=False, primary_key=True, serialize=False)),
                (
                    "email",
                    models.EmailField(
                        error_messages={"unique": "There is a user with this email."},
                        help_text="Signs in with it.",
                        max_length=254,
                        unique=True,
                    ),
                ),
                ("full_name", models.CharField(blank=True, max_length=200)),
                (
                    "is_staff",
                    models.BooleanField(default=False, help_text="May enter this admin.", verbose_name="staff"),
                ),
                (
                    "is_active",
                    models.BooleanField(
                        default=True, help_text="Off instead of deleting somebody.", verbose_name="active"
                    ),
                ),
                ("date_joined", models.DateTimeField(default=django.utils.timezone.now, editable=False)),
                (
                    "groups",
                    models.ManyToManyField(
                        blank=True,
                        help_text="The groups this user belongs to. A user will get all permissions granted to each of"
                        " their groups.",
                        related_name="user_set",
                        related_query_name="user",
                        to="auth.group",
                        verbose_name="groups",
                    ),
                ),
                (
                    "user_permissions",
                    models.ManyToManyField(
                        blank=True,
                        help_text="Specific permissions for this user.",
                        related_name="user_set",
                        related_query_name="user",
                        to="auth.permission",
                        verbose_name="user permissions",
                    ),
                ),
            ],
            options={
                "ordering": ["email"],
                "constraints": [
                    models.CheckConstraint(condition=models.Q(email=Lower("email")), name="user_email_lower_case")
                ],
            },
            bases=(django_prometheus.models.ExportModelOperationsMixin("user"), models.Model),
        ),
    ]
