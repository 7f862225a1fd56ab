import uuid

import django.core.validators
import django.db.models.deletion
import django_prometheus.models
from django.db import migrations, models


class Migration(migrations.Migration):
    initial = True

    dependencies = [
        ("tenants", "0001_tenants_members_audit"),
    ]

    operations = [
        migrations.CreateModel(
            name="ModelDeployment",
            fields=[
                ("id", models.UUIDField(default=uuid.uuid4, editable=False, primary_key=True, serialize=False)),
                (
                    "name",
                    models.CharField(
                        help_text="What callers put into “model”. Workers are started with it, so it stays as it is.",
                        max_length=128,
                        unique=True,
                        validators=[
                            django.core.validators.RegexValidator(
                                "^[A-Za-z0-9][A-Za-z0-9._/:-]*\\Z", "Letters, digits and . _ / : - only."
                            )
                        ],
                    ),
                ),
                (
                    "model",
                    models.CharField(
                        help_text="Hugging Face id, or the path of a folder on the workers.", max_length=500
                    ),
                ),
                (
                    "is_active",
                    models.BooleanField(
                        default=True,
                        help_text="Off: not listed and not admitted; running answers end normally.",
                        verbose_name="active",
                    ),
                ),
                (
                    "engine",
                    models.CharField(
                        choices=[("vllm", "vLLM"), ("simulated", "Simulated")],
                        default="vllm",
                        help_text="The simulated engine makes up its text; it is for load and fault tests.",
                        max_length=16,
                    ),
                ),
                (
                    "engine_args",
                    models.JSONField(
                        blank=True,
                        default=dict,
                        help_text="JSON object of engine arguments. Those that could run code are not accepted.",
                        verbose_name="engine arguments",
                    ),
                ),
                (
                    "max_model_len",
                    models.PositiveIntegerField(
                        blank=True,
                        help_text="Tokens of prompt and answer together. Empty: as long as the model allows.",
                        null=True,
                        validators=[django.core.validators.MinValueValidator(16)],
                        verbose_name="context length (max_model_len)",
                    ),
                ),
                (
                    "max_num_seqs",
                    models.PositiveIntegerField(
                        default=32,
                        help_text="Requests that one worker can run at the same time.",
                        validators=[
                            django.core.validators.MinValueValidator(1),
                            django.core.validators.MaxValueValidator(4096),
                        ],
                        verbose_name="parallel requests (max_num_seqs)",
                    ),
                ),
                (
                    "dtype",
                    models.CharField(
                        choices=[
                            ("auto", "Automatic"),
                            ("float32", "float32 (use it on CPUs)"),
                            ("float16", "float16"),
                            ("bfloat16", "bfloat16"),
                        ],
                        default="auto",
                        max_length=16,
                    ),
                ),
                (
                    "quantization",
                    models.CharField(
                        blank=True,
                        help_text="Empty: as the model's own configuration says.",
                        max_length=32,
                        validators=[
                            django.core.validators.RegexValidator(
                                "^[a-z0-9_-]+\\Z", "Lower-case letters, digits, - and _ only."
                            )
                        ],
                    ),
                ),
                (
                    "batch_min",
                    models.PositiveIntegerField(
                        default=1,
                        help_text="Dynamic batching stays above.",
                        validators=[django.core.validators.MinValueValidator(1)],
                        verbose_name="smallest batch",
                    ),
                ),
                (
                    "batch_max",
                    models.PositiveIntegerField(
                        blank=True,
                        help_text="Requests that a worker takes at most. Empty: as many as it can run.",
                        null=True,
                        validators=[django.core.validators.MinValueValidator(1)],
                        verbose_name="largest batch",
                    ),
                ),
                (
                    "batch_dynamic",
                    models.BooleanField(
                        default=True,
                        help_text="The worker moves between the two bounds by the measured time per token. Off: always the largest.",
                        verbose_name="dynamic batching",
                    ),
                ),
                (
                    "default_max_tokens",
                    models.PositiveIntegerField(
                        default=512,
                        help_text="Length of an answer where the caller names none.",
                        validators=[django.core.validators.MinValueValidator(1)],
                        verbose_name="default answer length (max_tokens)",
                    ),
                ),
                (
                    "is_restricted",
                    models.BooleanField(
                        default=False,
                        help_text="Off: every tenant sees it.",
                        verbose_name="only for the tenants chosen here",
                    ),
                ),
                (
                    "queue_limit",
                    models.PositiveIntegerField(
                        default=1024,
                        help_text="Requests that may wait; one more is refused as overloaded.",
                        verbose_name="longest queue",
                    ),
                ),
                (
                    "queue_timeout_seconds",
                    models.FloatField(
                        default=120.0,
                        help_text="Longest wait until a worker takes a request.",
                        validators=[
                            django.core.validators.MinValueValidator(1.0),
                            django.core.validators.MaxValueValidator(3600.0),
                        ],
                        verbose_name="queue deadline (s)",
                    ),
                ),
                (
                    "ttft_timeout_seconds",
                    models.FloatField(
                        default=120.0,
                        help_text="Longest time from there to the first token.",
                        validators=[
                            django.core.validators.MinValueValidator(1.0),
                            django.core.validators.MaxValueValidator(3600.0),
                        ],
                        verbose_name="first-token deadline (s)",
                    ),
                ),
                (
                    "inter_token_timeout_seconds",
                    models.FloatField(
                        default=60.0,
                        help_text="Longest silence between two tokens.",
                        validators=[
                            django.core.validators.MinValueValidator(1.0),
                            django.core.validators.MaxValueValidator(3600.0),
                        ],
                        verbose_name="inter-token deadline (s)",
                    ),
                ),
                (
                    "last_error",
                    models.TextField(
                        blank=True,
                        editable=False,
                        help_text="What a worker's engine said last when it could not start or broke.",
                    ),
                ),
                ("last_error_at", models.DateTimeField(blank=True, editable=False, null=True)),
                ("created_at", models.DateTimeField(auto_now_add=True)),
                ("updated_at", models.DateTimeField(auto_now=True)),
                (
                    "visible_tenants",
                    models.ManyToManyField(
                        blank=True,
                        help_text="Counts only for a restricted deployment.",
                        related_name="visible_deployments",
                        to="tenants.tenant",
                    ),
                ),
            ],
            options={
                "verbose_name": "deployment",
                "ordering": ["name"],
            },
            bases=(django_prometheus.models.ExportModelOperationsMixin("model_deployment"), models.Model),
        ),
        migrations.CreateModel(
            name="Worker",
            fields=[
                ("incarnation", models.CharField(max_length=64, primary_key=True, serialize=False)),
                ("deployment_name", models.CharField(help_text="What it was started for.", max_length=128)),
                ("engine", models.CharField(choices=[("vllm", "vLLM"), ("simulated", "Simulated")], max_length=16)),
                (
                    "state",
                    models.CharField(
                        choices=[
                            ("loading", "Loading"),
                            ("ready", "Ready"),
                            ("draining", "Draining"),
                            ("broken", "Broken"),
                            ("lost", "Lost"),
                        ],
                        max_length=16,
                    ),
                ),
                ("host", models.CharField(max_length=255)),
                ("pid", models.PositiveIntegerField(verbose_name="process id")),
                ("model", models.CharField(blank=True, max_length=500)),
                ("fingerprint", models.CharField(blank=True, max_length=128)),
                ("max_model_len", models.PositiveIntegerField(default=0)),
                ("max_num_seqs", models.PositiveIntegerField(default=0)),
                ("num_requests_running", models.PositiveIntegerField(default=0, verbose_name="running")),
                ("num_requests_waiting", models.PositiveIntegerField(default=0, verbose_name="waiting")),
                (
                    "kv_cache_usage",
                    models.FloatField(default=0.0, help_text="Share in use, 0 to 1.", verbose_name="KV cache"),
                ),
                ("tokens_generated", models.PositiveBigIntegerField(default=0)),
                ("cold_start_seconds", models.FloatField(default=0.0)),
                ("last_error", models.TextField(blank=True)),
                ("started_at", models.DateTimeField()),
                ("last_seen_at", models.DateTimeField()),
                (
                    "ended_at",
                    models.DateTimeField(blank=True, help_text="When its lease was found expired.", null=True),
                ),
                (
                    "deployment",
                    models.ForeignKey(
                        blank=True,
                        null=True,
                        on_delete=django.db.models.deletion.SET_NULL,
                        related_name="workers",
                        to="deployments.modeldeployment",
                    ),
                ),
            ],
            options={
                "ordering": [
                    models.OrderBy(models.F("ended_at"), descending=True, nulls_first=True),
                    "deployment_name",
                    "-started_at",
                ],
            },
        ),
        migrations.AddConstraint(
            model_name="modeldeployment",
            constraint=models.CheckConstraint(
                condition=models.Q(("engine__in", ["vllm", "simulated"])), name="deployment_engine_known"
            ),
        ),
        migrations.AddConstraint(
            model_name="modeldeployment",
            constraint=models.CheckConstraint(
                condition=models.Q(("max_num_seqs__gte", 1)), name="deployment_max_num_seqs_positive"
            ),
        ),
        migrations.AddConstraint(
            model_name="modeldeployment",
            constraint=models.CheckConstraint(
                condition=models.Q(
                    ("batch_min__gte", 1),
                    models.Q(("batch_max__isnull", True), ("batch_max__gte", models.F("batch_min")), _connector="OR"),
                ),
                name="deployment_batch_bounds_in_order",
                violation_error_message="The largest batch is smaller than the smallest.",
            ),
        ),
        migrations.AddConstraint(
            model_name="modeldeployment",
            constraint=models.CheckConstraint(
                condition=models.Q(
                    ("batch_min__lte", models.F("max_num_seqs")),
                    models.Q(
                        ("batch_max__isnull", True), ("batch_max__lte", models.F("max_num_seqs")), _connector="OR"
                    ),
                ),
                name="deployment_batch_fits_max_num_seqs",
                violation_error_message="A batch cannot be larger than the requests that a worker can run.",
            ),
        ),
        migrations.AddConstraint(
            model_name="modeldeployment",
            constraint=models.CheckConstraint(
                condition=models.Q(
                    ("max_model_len__isnull", True),
                    ("default_max_tokens__lt", models.F("max_model_len")),
                    _connector="OR",
                ),
                name="deployment_default_answer_fits",
                violation_error_message="The default length of an answer must be below the model's length.",
            ),
        ),
        migrations.AddIndex(
            model_name="worker",
            index=models.Index(fields=["state", "deployment_name"], name="worker_by_state"),
        ),
        migrations.AddConstraint(
            model_name="worker",
            constraint=models.CheckConstraint(
                condition=models.Q(("state__in", ["loading", "ready", "draining", "broken", "lost"])),
                name="worker_state_known",
            ),
        ),
        migrations.AddConstraint(
            model_name="worker",
            constraint=models.CheckConstraint(
                condition=models.Q(
                    models.Q(("ended_at__isnull", True), ("state__in", ["loading", "ready", "draining", "broken"])),
                    models.Q(("ended_at__isnull", False), ("state", "lost")),
                    _connector="OR",
                ),
                name="worker_lost_has_an_end",
            ),
        ),
    ]
