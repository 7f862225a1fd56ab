"""Policies of the autoscaler, its samples and its decisions."""

import uuid

import django.core.serializers.json
import django.core.validators
import django.db.models.deletion
import django_prometheus.models
from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [
        ("deployments", "0005_warm_up"),
    ]

    operations = [
        migrations.CreateModel(
            name="AutoscalePolicy",
            fields=[
                ("id", models.UUIDField(default=uuid.uuid4, editable=False, primary_key=True, serialize=False)),
                (
                    "mode",
                    models.CharField(
                        choices=[
                            ("off", "Off: only measured"),
                            ("shadow", "Shadow: decided and recorded, not done"),
                            ("on", "On: decided and done"),
                        ],
                        default="shadow",
                        help_text="Begin with shadow: decisions are recorded with their reasons, and nothing is done.",
                        max_length=16,
                    ),
                ),
                (
                    "min_workers",
                    models.PositiveIntegerField(
                        default=1,
                        help_text="0: none runs while nobody asks; the first request starts one and waits for it.",
                        validators=[django.core.validators.MaxValueValidator(1000)],
                        verbose_name="fewest workers",
                    ),
                ),
                (
                    "max_workers",
                    models.PositiveIntegerField(
                        default=4,
                        help_text="Never more than these.",
                        validators=[
                            django.core.validators.MinValueValidator(1),
                            django.core.validators.MaxValueValidator(1000),
                        ],
                        verbose_name="most workers",
                    ),
                ),
                (
                    "scale_out_percent",
                    models.PositiveIntegerField(
                        default=80,
                        help_text="The highest share counts: requests of what workers serve, waits and first tokens of their goals, KV.",
                        validators=[
                            django.core.validators.MinValueValidator(1),
                            django.core.validators.MaxValueValidator(100),
                        ],
                        verbose_name="out above (%)",
                    ),
                ),
                (
                    "scale_out_seconds",
                    models.FloatField(
                        default=300.0,
                        validators=[
                            django.core.validators.MinValueValidator(1.0),
                            django.core.validators.MaxValueValidator(86400.0),
                        ],
                        verbose_name="for (s)",
                    ),
                ),
                (
                    "scale_out_step",
                    models.PositiveIntegerField(
                        default=2,
                        validators=[
                            django.core.validators.MinValueValidator(1),
                            django.core.validators.MaxValueValidator(100),
                        ],
                        verbose_name="by",
                    ),
                ),
                (
                    "scale_in_percent",
                    models.PositiveIntegerField(
                        default=30,
                        help_text="And only where the load would stay below the upper threshold with fewer workers.",
                        validators=[
                            django.core.validators.MinValueValidator(1),
                            django.core.validators.MaxValueValidator(100),
                        ],
                        verbose_name="in below (%)",
                    ),
                ),
                (
                    "scale_in_seconds",
                    models.FloatField(
                        default=1800.0,
                        validators=[
                            django.core.validators.MinValueValidator(1.0),
                            django.core.validators.MaxValueValidator(86400.0),
                        ],
                        verbose_name="for (s)",
                    ),
                ),
                (
                    "scale_in_step",
                    models.PositiveIntegerField(
                        default=1,
                        validators=[
                            django.core.validators.MinValueValidator(1),
                            django.core.validators.MaxValueValidator(100),
                        ],
                        verbose_name="by",
                    ),
                ),
                (
                    "cooldown_seconds",
                    models.FloatField(
                        default=300.0,
                        help_text="After each change by load.",
                        validators=[
                            django.core.validators.MinValueValidator(0.0),
                            django.core.validators.MaxValueValidator(86400.0),
                        ],
                        verbose_name="cooldown (s)",
                    ),
                ),
                (
                    "start_seconds",
                    models.FloatField(
                        default=600.0,
                        help_text="While workers that were asked for are not ready yet, and no longer than this, no more are.",
                        validators=[
                            django.core.validators.MinValueValidator(1.0),
                            django.core.validators.MaxValueValidator(86400.0),
                        ],
                        verbose_name="longest start (s)",
                    ),
                ),
                (
                    "idle_seconds",
                    models.FloatField(
                        default=900.0,
                        help_text="Only where the fewest is 0: so long without a request until the last worker ends.",
                        validators=[
                            django.core.validators.MinValueValidator(1.0),
                            django.core.validators.MaxValueValidator(86400.0),
                        ],
                        verbose_name="to none after (s)",
                    ),
                ),
                (
                    "drain_seconds",
                    models.FloatField(
                        default=120.0,
                        help_text="Answers of a worker that is to end may go on so long; what is left then moves to other workers.",
                        validators=[
                            django.core.validators.MinValueValidator(1.0),
                            django.core.validators.MaxValueValidator(86400.0),
                        ],
                        verbose_name="drain (s)",
                    ),
                ),
                (
                    "queue_goal_seconds",
                    models.FloatField(
                        default=2.0,
                        help_text="A wait in the queue that counts as full load. 0: does not count.",
                        validators=[
                            django.core.validators.MinValueValidator(0.0),
                            django.core.validators.MaxValueValidator(86400.0),
                        ],
                        verbose_name="longest wait, p95 (s)",
                    ),
                ),
                (
                    "ttft_goal_seconds",
                    models.FloatField(
                        default=0.0,
                        help_text="A time to the first token that counts as full load. It never keeps workers. 0: does not count.",
                        validators=[
                            django.core.validators.MinValueValidator(0.0),
                            django.core.validators.MaxValueValidator(86400.0),
                        ],
                        verbose_name="first token, p95 (s)",
                    ),
                ),
                (
                    "worker_requests_per_second",
                    models.FloatField(
                        default=0.0,
                        help_text="0: as measured while requests waited. Places that are taken count beside it.",
                        validators=[
                            django.core.validators.MinValueValidator(0.0),
                            django.core.validators.MaxValueValidator(1000000.0),
                        ],
                        verbose_name="requests/s of one worker",
                    ),
                ),
                (
                    "time_zone",
                    models.CharField(
                        default="UTC", help_text="Clock of the schedule, e.g. Europe/Zurich.", max_length=64
                    ),
                ),
                (
                    "schedule",
                    models.TextField(
                        blank=True,
                        help_text="One window a line; the first that holds counts. “reserve 20 mon-fri 08:00-18:00” keeps 20 % more; “release 50 daily 22:00-06:00” takes half of the fewest and of the most away.",
                    ),
                ),
                (
                    "executor",
                    models.CharField(
                        choices=[
                            ("supervisor", "The supervisor of make up, on this machine"),
                            ("kubernetes", "Kubernetes: a Deployment or StatefulSet"),
                            ("systemd", "systemd: a template unit on this machine"),
                            ("recommend", "Nobody: decisions are recommendations"),
                        ],
                        default="supervisor",
                        help_text="Who starts and ends the workers.",
                        max_length=16,
                    ),
                ),
                (
                    "workload",
                    models.CharField(
                        blank=True,
                        help_text="Kubernetes: name of the workload. systemd: name of the template, “headrace-worker” for headrace-worker@.service.",
                        max_length=253,
                        validators=[
                            django.core.validators.RegexValidator(
                                "^[A-Za-z0-9]([A-Za-z0-9_.-]*[A-Za-z0-9])?\\Z", "Letters, digits and . _ - only."
                            )
                        ],
                    ),
                ),
                (
                    "workload_kind",
                    models.CharField(
                        choices=[("deployment", "Deployment"), ("stateful_set", "StatefulSet")],
                        default="deployment",
                        help_text="Kubernetes only.",
                        max_length=16,
                    ),
                ),
                (
                    "namespace",
                    models.CharField(
                        blank=True,
                        default="default",
                        help_text="Kubernetes only.",
                        max_length=63,
                        validators=[
                            django.core.validators.RegexValidator(
                                "^[A-Za-z0-9]([A-Za-z0-9_.-]*[A-Za-z0-9])?\\Z", "Letters, digits and . _ - only."
                            )
                        ],
                    ),
                ),
                ("last_error", models.TextField(blank=True, editable=False)),
                ("last_error_at", models.DateTimeField(blank=True, editable=False, null=True)),
                ("created_at", models.DateTimeField(auto_now_add=True)),
                ("updated_at", models.DateTimeField(auto_now=True)),
                (
                    "deployment",
                    models.OneToOneField(
                        on_delete=django.db.models.deletion.CASCADE,
                        related_name="autoscale_policy",
                        to="deployments.modeldeployment",
                    ),
                ),
            ],
            options={
                "verbose_name": "autoscale policy",
                "verbose_name_plural": "autoscale policies",
                "ordering": ["deployment__name"],
                "constraints": [
                    models.CheckConstraint(
                        condition=models.Q(("mode__in", ["off", "shadow", "on"])), name="autoscale_mode_known"
                    ),
                    models.CheckConstraint(
                        condition=models.Q(("executor__in", ["supervisor", "kubernetes", "systemd", "recommend"])),
                        name="autoscale_executor_known",
                    ),
                    models.CheckConstraint(
                        condition=models.Q(("max_workers__gte", 1), ("max_workers__gte", models.F("min_workers"))),
                        name="autoscale_bounds_in_order",
                        violation_error_message="The most workers are fewer than the fewest.",
                    ),
                    models.CheckConstraint(
                        condition=models.Q(("scale_in_percent__lt", models.F("scale_out_percent"))),
                        name="autoscale_thresholds_in_order",
                        violation_error_message="The threshold for fewer workers must be below the one for more.",
                    ),
                ],
            },
            bases=(django_prometheus.models.ExportModelOperationsMixin("autoscale_policy"), models.Model),
        ),
        migrations.CreateModel(
            name="ScalingDecision",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                ("at", models.DateTimeField(help_text="Beginning of its tick.", verbose_name="decided at")),
                (
                    "mode",
                    models.CharField(
                        choices=[
                            ("off", "Off: only measured"),
                            ("shadow", "Shadow: decided and recorded, not done"),
                            ("on", "On: decided and done"),
                        ],
                        max_length=16,
                    ),
                ),
                (
                    "executor",
                    models.CharField(
                        choices=[
                            ("supervisor", "The supervisor of make up, on this machine"),
                            ("kubernetes", "Kubernetes: a Deployment or StatefulSet"),
                            ("systemd", "systemd: a template unit on this machine"),
                            ("recommend", "Nobody: decisions are recommendations"),
                        ],
                        max_length=16,
                    ),
                ),
                ("before", models.PositiveIntegerField(help_text="Workers until then.")),
                ("target", models.PositiveIntegerField(help_text="Workers wanted.")),
                (
                    "rule",
                    models.CharField(
                        choices=[
                            ("minimum", "below the fewest"),
                            ("maximum", "above the most"),
                            ("schedule", "schedule"),
                            ("wake_up", "wake-up"),
                            ("scale_out", "scale out"),
                            ("scale_in", "scale in"),
                            ("idle", "idle"),
                            ("cooldown", "cooldown"),
                            ("starting", "workers are starting"),
                            ("keep", "keep"),
                        ],
                        max_length=16,
                    ),
                ),
                ("reason", models.CharField(max_length=300)),
                ("inputs", models.JSONField(default=dict, encoder=django.core.serializers.json.DjangoJSONEncoder)),
                (
                    "result",
                    models.CharField(
                        choices=[
                            ("decided", "Under way"),
                            ("done", "Done"),
                            ("failed", "Failed"),
                            ("expired", "Expired"),
                            ("withdrawn", "Withdrawn"),
                            ("shadow", "Shadow"),
                            ("recommended", "Recommended"),
                        ],
                        default="decided",
                        max_length=16,
                    ),
                ),
                ("result_text", models.TextField(blank=True, help_text="What the executor said.")),
                ("victims", models.JSONField(default=list, help_text="Workers that drain, and end then.")),
                ("drain_until", models.DateTimeField(null=True)),
                ("lease_until", models.DateTimeField(help_text="Until then one process carries it out.", null=True)),
                ("ended_at", models.DateTimeField(null=True)),
                (
                    "deployment",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.CASCADE,
                        related_name="scaling_decisions",
                        to="deployments.modeldeployment",
                    ),
                ),
            ],
            options={
                "verbose_name": "scaling decision",
                "ordering": ["-at", "-pk"],
                "constraints": [
                    models.UniqueConstraint(fields=("deployment", "at"), name="one_scaling_decision_a_tick"),
                    models.UniqueConstraint(
                        condition=models.Q(("result", "decided")),
                        fields=("deployment",),
                        name="one_scaling_decision_under_way",
                    ),
                    models.CheckConstraint(
                        condition=models.Q(
                            (
                                "result__in",
                                ["decided", "done", "failed", "expired", "withdrawn", "shadow", "recommended"],
                            )
                        ),
                        name="scaling_result_known",
                    ),
                ],
            },
        ),
        migrations.CreateModel(
            name="ScalingSample",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                ("at", models.DateTimeField(help_text="Beginning of the tick.")),
                ("workers", models.PositiveIntegerField(default=0)),
                ("ready", models.PositiveIntegerField(default=0)),
                ("running", models.PositiveIntegerField(default=0)),
                ("waiting", models.PositiveIntegerField(default=0)),
                ("places", models.PositiveIntegerField(default=0)),
                (
                    "claims",
                    models.BigIntegerField(help_text="Claims ever counted; their growth is the pace.", null=True),
                ),
                ("requests_per_second", models.FloatField(null=True)),
                ("worker_capacity", models.FloatField(null=True)),
                ("queue_p95", models.FloatField(null=True)),
                ("ttft_p95", models.FloatField(null=True)),
                ("kv_usage", models.FloatField(null=True)),
                ("target", models.PositiveIntegerField(null=True)),
                (
                    "rule",
                    models.CharField(
                        blank=True,
                        choices=[
                            ("minimum", "below the fewest"),
                            ("maximum", "above the most"),
                            ("schedule", "schedule"),
                            ("wake_up", "wake-up"),
                            ("scale_out", "scale out"),
                            ("scale_in", "scale in"),
                            ("idle", "idle"),
                            ("cooldown", "cooldown"),
                            ("starting", "workers are starting"),
                            ("keep", "keep"),
                        ],
                        max_length=16,
                    ),
                ),
                ("reason", models.CharField(blank=True, max_length=300)),
                (
                    "deployment",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.CASCADE,
                        related_name="scaling_samples",
                        to="deployments.modeldeployment",
                    ),
                ),
            ],
            options={
                "ordering": ["-at"],
                "constraints": [models.UniqueConstraint(fields=("deployment", "at"), name="one_scaling_sample_a_tick")],
            },
        ),
    ]
