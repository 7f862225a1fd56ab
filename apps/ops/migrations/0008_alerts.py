"""Objectives, alert rules, alerts and who is told of them."""

import uuid

import django.core.validators
import django.db.models.deletion
from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [
        ("deployments", "0005_warm_up"),
        ("ops", "0007_latency"),
    ]

    operations = [
        migrations.CreateModel(
            name="AlertReceiver",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                ("name", models.CharField(max_length=120, unique=True)),
                (
                    "channel",
                    models.CharField(
                        choices=[("email", "Email"), ("webhook", "Webhook")], default="email", max_length=16
                    ),
                ),
                (
                    "address",
                    models.CharField(
                        blank=True,
                        help_text="Email addresses, separated by commas; empty: all operators. Or the webhook's URL.",
                        max_length=500,
                    ),
                ),
                (
                    "is_default",
                    models.BooleanField(
                        default=False, help_text="Is told of alerts whose rule names nobody.", verbose_name="default"
                    ),
                ),
                ("is_active", models.BooleanField(default=True, verbose_name="active")),
                ("webhook_secret", models.CharField(blank=True, editable=False, max_length=300)),
                ("created_at", models.DateTimeField(auto_now_add=True)),
            ],
            options={
                "verbose_name": "receiver of alerts",
                "verbose_name_plural": "receivers of alerts",
                "ordering": ["name"],
                "constraints": [
                    models.CheckConstraint(
                        condition=models.Q(("channel__in", ["email", "webhook"])), name="alert_receiver_channel_known"
                    ),
                    models.CheckConstraint(
                        condition=models.Q(
                            ("channel", "email"), models.Q(("address", ""), _negated=True), _connector="OR"
                        ),
                        name="alert_receiver_webhook_has_address",
                    ),
                ],
            },
        ),
        migrations.CreateModel(
            name="AlertRule",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                (
                    "key",
                    models.SlugField(
                        help_text="Its name for programs, webhooks and Prometheus.", max_length=63, unique=True
                    ),
                ),
                ("name", models.CharField(max_length=120)),
                ("advice", models.TextField(blank=True, help_text="What to do; receivers read it.")),
                (
                    "signal",
                    models.CharField(
                        choices=[
                            ("percentile", "Percentile of a duration (s)"),
                            ("share", "Share of requests (0 to 1)"),
                            ("fleet", "Figure of the fleet"),
                            ("burn_rate", "Burn rate of objectives"),
                        ],
                        max_length=16,
                    ),
                ),
                (
                    "duration",
                    models.CharField(
                        blank=True,
                        choices=[
                            ("ttft", "Time to first token"),
                            ("admission", "Admission"),
                            ("queue", "Queue"),
                            ("retrieval", "Retrieval"),
                            ("prefill", "Prefill"),
                            ("guard", "Guardrails"),
                            ("flush", "Flush"),
                            ("tpot", "Time per token"),
                            ("gap", "Gap between tokens"),
                            ("total", "Total"),
                        ],
                        help_text="Only for a percentile.",
                        max_length=16,
                    ),
                ),
                (
                    "percentile",
                    models.FloatField(
                        blank=True,
                        null=True,
                        validators=[
                            django.core.validators.MinValueValidator(1.0),
                            django.core.validators.MaxValueValidator(99.99),
                        ],
                    ),
                ),
                (
                    "happening",
                    models.CharField(
                        blank=True,
                        choices=[("errors", "Errors"), ("stalls", "Stalls of clients"), ("timeouts", "Timeouts")],
                        help_text="Only for a share.",
                        max_length=16,
                    ),
                ),
                (
                    "figure",
                    models.CharField(
                        blank=True,
                        choices=[
                            ("waiting", "Streams in the queue"),
                            ("workers_ready", "Workers that are ready"),
                            ("workers_broken", "Workers that cannot work"),
                            ("kv_cache_usage", "KV cache in use, fullest worker (0 to 1)"),
                            ("memory_usage", "Memory in use, fullest worker's machine or GPU (0 to 1)"),
                        ],
                        help_text="Only for the fleet.",
                        max_length=24,
                    ),
                ),
                (
                    "direction",
                    models.CharField(
                        choices=[("above", "above"), ("below", "below")],
                        default="above",
                        help_text="… the threshold.",
                        max_length=8,
                        verbose_name="bad is",
                    ),
                ),
                ("threshold", models.FloatField()),
                (
                    "clear_threshold",
                    models.FloatField(
                        help_text="It has to come back so far before the alert is over, so that it does not flutter.",
                        verbose_name="over at",
                    ),
                ),
                (
                    "for_seconds",
                    models.PositiveIntegerField(
                        default=60, help_text="It must be bad for so long without a break.", verbose_name="for (s)"
                    ),
                ),
                (
                    "window_seconds",
                    models.PositiveIntegerField(
                        default=300,
                        help_text="Requests of this time count; for a burn rate, the long one of the two times.",
                        validators=[
                            django.core.validators.MinValueValidator(10),
                            django.core.validators.MaxValueValidator(604800),
                        ],
                        verbose_name="over the last (s)",
                    ),
                ),
                (
                    "short_window_seconds",
                    models.PositiveIntegerField(
                        blank=True,
                        help_text="Only for a burn rate: the short time.",
                        null=True,
                        verbose_name="and over the last (s)",
                    ),
                ),
                (
                    "severity",
                    models.CharField(
                        choices=[("info", "Information"), ("warning", "Warning"), ("critical", "Critical")],
                        default="warning",
                        max_length=16,
                    ),
                ),
                ("is_active", models.BooleanField(default=True, verbose_name="active")),
                ("is_built_in", models.BooleanField(default=False, editable=False, verbose_name="built in")),
                (
                    "read_at",
                    models.DateTimeField(blank=True, editable=False, help_text="Of the last look at it.", null=True),
                ),
                ("created_at", models.DateTimeField(auto_now_add=True)),
                ("updated_at", models.DateTimeField(auto_now=True)),
                (
                    "deployment",
                    models.ForeignKey(
                        blank=True,
                        help_text="Empty: each active deployment by itself.",
                        null=True,
                        on_delete=django.db.models.deletion.CASCADE,
                        related_name="+",
                        to="deployments.modeldeployment",
                    ),
                ),
                (
                    "receivers",
                    models.ManyToManyField(
                        blank=True,
                        help_text="Nobody: those that are told by default.",
                        related_name="rules",
                        to="ops.alertreceiver",
                    ),
                ),
            ],
            options={
                "ordering": ["name"],
            },
        ),
        migrations.CreateModel(
            name="Alert",
            fields=[
                ("id", models.UUIDField(default=uuid.uuid4, editable=False, primary_key=True, serialize=False)),
                ("rule_key", models.CharField(max_length=63)),
                ("rule_name", models.CharField(max_length=120)),
                (
                    "severity",
                    models.CharField(
                        choices=[("info", "Information"), ("warning", "Warning"), ("critical", "Critical")],
                        max_length=16,
                    ),
                ),
                ("subject", models.CharField(help_text="What broke it: a deployment, an objective.", max_length=300)),
                ("deployment_name", models.CharField(blank=True, max_length=128)),
                (
                    "state",
                    models.CharField(
                        choices=[("pending", "Pending"), ("firing", "Firing"), ("resolved", "Resolved")],
                        default="pending",
                        max_length=16,
                    ),
                ),
                ("value", models.FloatField(help_text="When it was last looked at, or when it was over.", null=True)),
                ("worst_value", models.FloatField(null=True)),
                ("threshold", models.FloatField()),
                ("since", models.DateTimeField(help_text="When it was first seen to be bad.")),
                ("fired_at", models.DateTimeField(blank=True, null=True)),
                (
                    "told_at",
                    models.DateTimeField(blank=True, help_text="Empty: nobody was told, it was silenced.", null=True),
                ),
                ("resolved_at", models.DateTimeField(blank=True, null=True)),
                (
                    "rule",
                    models.ForeignKey(
                        null=True,
                        on_delete=django.db.models.deletion.SET_NULL,
                        related_name="alerts",
                        to="ops.alertrule",
                    ),
                ),
            ],
            options={
                "ordering": [models.OrderBy(models.F("resolved_at"), descending=True, nulls_first=True), "-since"],
            },
        ),
        migrations.CreateModel(
            name="AlertSilence",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                ("starts_at", models.DateTimeField()),
                ("ends_at", models.DateTimeField()),
                ("reason", models.CharField(max_length=300)),
                ("created_at", models.DateTimeField(auto_now_add=True)),
                (
                    "deployment",
                    models.ForeignKey(
                        blank=True,
                        help_text="Empty: all.",
                        null=True,
                        on_delete=django.db.models.deletion.CASCADE,
                        related_name="+",
                        to="deployments.modeldeployment",
                    ),
                ),
                (
                    "rule",
                    models.ForeignKey(
                        blank=True,
                        help_text="Empty: all.",
                        null=True,
                        on_delete=django.db.models.deletion.CASCADE,
                        related_name="silences",
                        to="ops.alertrule",
                    ),
                ),
            ],
            options={
                "verbose_name": "silence",
                "ordering": ["-ends_at"],
            },
        ),
        migrations.CreateModel(
            name="ServiceObjective",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                (
                    "indicator",
                    models.CharField(
                        choices=[
                            ("ttft", "Time to first token"),
                            ("queue", "Queue"),
                            ("prefill", "Prefill"),
                            ("tpot", "Time per token"),
                            ("gap", "Gap between tokens"),
                            ("total", "Total"),
                            ("errors", "Streams without an error"),
                        ],
                        default="ttft",
                        max_length=16,
                    ),
                ),
                (
                    "goal_seconds",
                    models.FloatField(
                        blank=True,
                        help_text="A request is good when it took no longer. Empty for errors.",
                        null=True,
                        validators=[
                            django.core.validators.MinValueValidator(0.0001),
                            django.core.validators.MaxValueValidator(3600.0),
                        ],
                        verbose_name="goal (s)",
                    ),
                ),
                (
                    "target_percent",
                    models.FloatField(
                        default=95.0,
                        help_text="So many are to be good; the percentile that meets the goal. The rest is the error budget.",
                        validators=[
                            django.core.validators.MinValueValidator(1.0),
                            django.core.validators.MaxValueValidator(99.999),
                        ],
                        verbose_name="good requests (%)",
                    ),
                ),
                (
                    "window_days",
                    models.PositiveSmallIntegerField(
                        default=30,
                        help_text="The error budget is for so many days up to now.",
                        validators=[
                            django.core.validators.MinValueValidator(1),
                            django.core.validators.MaxValueValidator(90),
                        ],
                        verbose_name="over (days)",
                    ),
                ),
                ("created_at", models.DateTimeField(auto_now_add=True)),
                ("updated_at", models.DateTimeField(auto_now=True)),
                (
                    "deployment",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.CASCADE,
                        related_name="objectives",
                        to="deployments.modeldeployment",
                    ),
                ),
            ],
            options={
                "verbose_name": "objective",
                "ordering": ["deployment__name", "indicator", "target_percent"],
            },
        ),
        migrations.CreateModel(
            name="AlertDelivery",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                ("channel", models.CharField(choices=[("email", "Email"), ("webhook", "Webhook")], max_length=16)),
                ("attempts", models.PositiveSmallIntegerField(default=0)),
                (
                    "next_attempt_at",
                    models.DateTimeField(
                        blank=True, help_text="Empty: delivered, or given up after the last try.", null=True
                    ),
                ),
                ("delivered_at", models.DateTimeField(blank=True, null=True)),
                ("last_error", models.CharField(blank=True, max_length=500)),
                ("event", models.CharField(choices=[("fired", "Fired"), ("resolved", "Resolved")], max_length=16)),
                (
                    "alert",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.CASCADE, related_name="deliveries", to="ops.alert"
                    ),
                ),
                (
                    "receiver",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.CASCADE, related_name="deliveries", to="ops.alertreceiver"
                    ),
                ),
            ],
            options={
                "verbose_name_plural": "deliveries",
                "ordering": ["alert", "event", "receiver"],
                "indexes": [models.Index(fields=["next_attempt_at"], name="alert_delivery_due")],
                "constraints": [
                    models.UniqueConstraint(fields=("alert", "event", "receiver"), name="alert_delivery_once"),
                    models.CheckConstraint(
                        condition=models.Q(
                            ("delivered_at__isnull", True), ("next_attempt_at__isnull", True), _connector="OR"
                        ),
                        name="alert_delivery_ends_with_success",
                    ),
                ],
            },
        ),
        migrations.AddConstraint(
            model_name="alertrule",
            constraint=models.CheckConstraint(
                condition=models.Q(("signal__in", ["percentile", "share", "fleet", "burn_rate"])),
                name="alert_rule_signal_known",
            ),
        ),
        migrations.AddConstraint(
            model_name="alertrule",
            constraint=models.CheckConstraint(
                condition=models.Q(("severity__in", ["info", "warning", "critical"])), name="alert_rule_severity_known"
            ),
        ),
        migrations.AddConstraint(
            model_name="alertrule",
            constraint=models.CheckConstraint(
                condition=models.Q(
                    models.Q(
                        ("signal", "percentile"),
                        models.Q(("duration", ""), _negated=True),
                        ("percentile__isnull", False),
                    ),
                    models.Q(("signal", "share"), models.Q(("happening", ""), _negated=True)),
                    models.Q(("signal", "fleet"), models.Q(("figure", ""), _negated=True)),
                    models.Q(("short_window_seconds__isnull", False), ("signal", "burn_rate")),
                    _connector="OR",
                ),
                name="alert_rule_names_its_signal",
                violation_error_message="A percentile needs a duration and a percentage, a share what is counted, the fleet a figure, a burn rate its short time.",
            ),
        ),
        migrations.AddConstraint(
            model_name="alertrule",
            constraint=models.CheckConstraint(
                condition=models.Q(
                    models.Q(("clear_threshold__lte", models.F("threshold")), ("direction", "above")),
                    models.Q(("clear_threshold__gte", models.F("threshold")), ("direction", "below")),
                    _connector="OR",
                ),
                name="alert_rule_clears_on_the_good_side",
                violation_error_message="It is over on the good side of the threshold, or at it.",
            ),
        ),
        migrations.AddIndex(
            model_name="alert",
            index=models.Index(fields=["resolved_at"], name="alert_by_end"),
        ),
        migrations.AddConstraint(
            model_name="alert",
            constraint=models.UniqueConstraint(
                condition=models.Q(("resolved_at__isnull", True)),
                fields=("rule_key", "subject"),
                name="alert_open_once",
            ),
        ),
        migrations.AddConstraint(
            model_name="alert",
            constraint=models.CheckConstraint(
                condition=models.Q(
                    models.Q(("fired_at__isnull", True), ("resolved_at__isnull", True), ("state", "pending")),
                    models.Q(("fired_at__isnull", False), ("resolved_at__isnull", True), ("state", "firing")),
                    models.Q(("fired_at__isnull", False), ("resolved_at__isnull", False), ("state", "resolved")),
                    _connector="OR",
                ),
                name="alert_state_fits_its_times",
            ),
        ),
        migrations.AddConstraint(
            model_name="alertsilence",
            constraint=models.CheckConstraint(
                condition=models.Q(("ends_at__gt", models.F("starts_at"))),
                name="alert_silence_ends_after_it_starts",
                violation_error_message="It ends before it begins.",
            ),
        ),
        migrations.AddConstraint(
            model_name="serviceobjective",
            constraint=models.UniqueConstraint(
                fields=("deployment", "indicator", "target_percent"),
                name="objective_once",
                violation_error_message="There is one for this percentile.",
            ),
        ),
        migrations.AddConstraint(
            model_name="serviceobjective",
            constraint=models.CheckConstraint(
                condition=models.Q(("indicator__in", ["ttft", "queue", "prefill", "tpot", "gap", "total", "errors"])),
                name="objective_indicator_known",
            ),
        ),
        migrations.AddConstraint(
            model_name="serviceobjective",
            constraint=models.CheckConstraint(
                condition=models.Q(("target_percent__gte", 1.0), ("target_percent__lt", 100.0)),
                name="objective_leaves_a_budget",
            ),
        ),
        migrations.AddConstraint(
            model_name="serviceobjective",
            constraint=models.CheckConstraint(
                condition=models.Q(("window_days__range", (1, 90))), name="objective_window_is_kept"
            ),
        ),
        migrations.AddConstraint(
            model_name="serviceobjective",
            constraint=models.CheckConstraint(
                condition=models.Q(
                    models.Q(("goal_seconds__isnull", True), ("indicator", "errors")),
                    models.Q(models.Q(("indicator", "errors"), _negated=True), ("goal_seconds__gt", 0)),
                    _connector="OR",
                ),
                name="objective_durations_have_goals",
                violation_error_message="A duration needs a goal in seconds; errors have none.",
            ),
        ),
    ]
