"""Guardrail policies with their rules, versions and attachments, and what they did."""

import uuid

import django.core.validators
import django.db.models.deletion
import django.db.models.manager
import django_prometheus.models
from django.conf import settings
from django.db import migrations, models


class Migration(migrations.Migration):
    initial = True

    dependencies = [
        ("accounts", "0002_api_keys"),
        ("deployments", "0003_prices"),
        ("tenants", "0005_intervention_excerpts"),
        migrations.swappable_dependency(settings.AUTH_USER_MODEL),
    ]

    operations = [
        migrations.CreateModel(
            name="GuardrailPolicy",
            fields=[
                ("id", models.UUIDField(default=uuid.uuid4, editable=False, primary_key=True, serialize=False)),
                (
                    "name",
                    models.CharField(help_text="Callers see it in x-headrace-applied-guardrails.", max_length=100),
                ),
                (
                    "mode",
                    models.CharField(
                        choices=[
                            ("draft", "Draft: does nothing"),
                            ("shadow", "Shadow: records, changes nothing"),
                            ("enforced", "Enforced"),
                        ],
                        default="draft",
                        help_text="What is saved acts on new answers within a second; running ones keep the version they began with.",
                        max_length=16,
                    ),
                ),
                (
                    "failure_mode",
                    models.CharField(
                        choices=[
                            ("closed", "Closed: the answer ends with an error"),
                            ("open", "Open: the answer goes on, recorded as unchecked"),
                        ],
                        default="closed",
                        help_text="Concerns rules of the kinds topic, insults, language and question.",
                        max_length=16,
                        verbose_name="when a judge fails",
                    ),
                ),
                (
                    "on_input_trip",
                    models.CharField(
                        choices=[
                            ("refuse", "An error (400 content_filter)"),
                            ("replace", "The replacement text as the answer"),
                        ],
                        default="refuse",
                        max_length=16,
                        verbose_name="when a request is blocked",
                    ),
                ),
                (
                    "replacement",
                    models.CharField(
                        default="I cannot help with that.",
                        help_text="Stands in the place of what is blocked, where the rule has no text of its own.",
                        max_length=2000,
                        verbose_name="replacement text",
                    ),
                ),
                (
                    "chunk_size",
                    models.PositiveIntegerField(
                        default=16,
                        help_text="Tokens between two looks of the rules that judge windows.",
                        validators=[
                            django.core.validators.MinValueValidator(1),
                            django.core.validators.MaxValueValidator(512),
                        ],
                    ),
                ),
                (
                    "context_size",
                    models.PositiveIntegerField(
                        default=8,
                        help_text="Tokens that two windows share. What is longer can hide on the edge between them.",
                        validators=[django.core.validators.MaxValueValidator(512)],
                    ),
                ),
                (
                    "judge_deadline_seconds",
                    models.FloatField(
                        default=5.0,
                        help_text="A judge that takes longer for a window has failed.",
                        validators=[
                            django.core.validators.MinValueValidator(0.05),
                            django.core.validators.MaxValueValidator(60.0),
                        ],
                        verbose_name="judge's deadline (s)",
                    ),
                ),
                (
                    "stream_first",
                    models.BooleanField(
                        default=False,
                        help_text="Readers see text at once and may have read it before it is taken back. Off: text waits for its window.",
                        verbose_name="UNSAFE: show text before it is judged (stream_first)",
                    ),
                ),
                (
                    "is_restricted",
                    models.BooleanField(
                        default=False,
                        help_text="Off: for everything of its tenant, or of everybody where it has none.",
                        verbose_name="only where it is attached",
                    ),
                ),
                (
                    "version",
                    models.PositiveIntegerField(
                        default=0, editable=False, help_text="Number of its newest version, which is the one that acts."
                    ),
                ),
                ("created_at", models.DateTimeField(auto_now_add=True)),
                ("updated_at", models.DateTimeField(auto_now=True)),
                (
                    "tenant",
                    models.ForeignKey(
                        blank=True,
                        help_text="Whose requests and answers it judges. Empty: those of all tenants.",
                        null=True,
                        on_delete=django.db.models.deletion.CASCADE,
                        related_name="guardrail_policies",
                        to="tenants.tenant",
                    ),
                ),
            ],
            options={
                "verbose_name": "guardrail policy",
                "verbose_name_plural": "guardrail policies",
                "ordering": ["name", "id"],
                "default_manager_name": "all_tenants",
            },
            bases=(django_prometheus.models.ExportModelOperationsMixin("guardrail_policy"), models.Model),
            managers=[
                ("all_tenants", django.db.models.manager.Manager()),
            ],
        ),
        migrations.CreateModel(
            name="GuardrailAttachment",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                ("created_at", models.DateTimeField(auto_now_add=True)),
                (
                    "api_key",
                    models.ForeignKey(
                        blank=True,
                        null=True,
                        on_delete=django.db.models.deletion.CASCADE,
                        related_name="+",
                        to="accounts.apikey",
                        verbose_name="API key",
                    ),
                ),
                (
                    "deployment",
                    models.ForeignKey(
                        blank=True,
                        null=True,
                        on_delete=django.db.models.deletion.CASCADE,
                        related_name="+",
                        to="deployments.modeldeployment",
                    ),
                ),
                (
                    "tenant",
                    models.ForeignKey(
                        blank=True,
                        help_text="Only for a policy of no tenant.",
                        null=True,
                        on_delete=django.db.models.deletion.CASCADE,
                        related_name="+",
                        to="tenants.tenant",
                    ),
                ),
                (
                    "policy",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.CASCADE,
                        related_name="attachments",
                        to="guardrails.guardrailpolicy",
                    ),
                ),
            ],
            options={
                "verbose_name": "attachment",
                "ordering": ["policy", "created_at", "id"],
            },
        ),
        migrations.CreateModel(
            name="GuardrailRule",
            fields=[
                ("id", models.UUIDField(default=uuid.uuid4, editable=False, primary_key=True, serialize=False)),
                ("position", models.PositiveIntegerField(default=0)),
                (
                    "kind",
                    models.CharField(
                        choices=[
                            ("literals", "Words and phrases"),
                            ("regex", "Regular expressions"),
                            ("personal_data", "Personal data"),
                            ("length", "Length"),
                            ("topic", "Topic, by examples"),
                            ("abuse", "Insults and profanity"),
                            ("language", "Language"),
                            ("judge", "Question to another model"),
                        ],
                        default="personal_data",
                        max_length=16,
                        verbose_name="looks for",
                    ),
                ),
                (
                    "name",
                    models.CharField(
                        blank=True, help_text="Stands in the interventions. Empty: its kind.", max_length=100
                    ),
                ),
                (
                    "applies_to",
                    models.CharField(
                        choices=[("output", "Answers"), ("input", "Requests"), ("both", "Both")],
                        default="output",
                        max_length=16,
                    ),
                ),
                (
                    "action",
                    models.CharField(
                        choices=[
                            ("block", "Block"),
                            ("mask", "Mask"),
                            ("flag", "Flag"),
                        ],
                        default="block",
                        help_text="Block ends the text, mask hides what was found, flag only records it.",
                        max_length=16,
                    ),
                ),
                (
                    "severity",
                    models.CharField(
                        choices=[("low", "Low"), ("medium", "Medium"), ("high", "High")],
                        default="medium",
                        max_length=16,
                    ),
                ),
                (
                    "mask",
                    models.CharField(
                        blank=True,
                        help_text="Stands in the place of what is masked. Empty: the name of what was found, e.g. ⟦CREDIT_CARD⟧.",
                        max_length=50,
                        validators=[
                            django.core.validators.RegexValidator(
                                "^[^\\\"'\\\\\\x00-\\x1f\\x7f]*\\Z",
                                "No quotes, backslashes or line breaks: they would break JSON around it.",
                            )
                        ],
                    ),
                ),
                (
                    "replacement",
                    models.CharField(
                        blank=True,
                        help_text="When it blocks. Empty: the policy's.",
                        max_length=2000,
                        verbose_name="replacement text",
                    ),
                ),
                ("words", models.JSONField(blank=True, default=list, verbose_name="words and phrases")),
                ("whole_words", models.BooleanField(default=True, help_text="Not inside of longer words.")),
                ("patterns", models.JSONField(blank=True, default=list)),
                ("case_sensitive", models.BooleanField(default=False)),
                (
                    "personal_data",
                    models.JSONField(
                        blank=True,
                        default=dict,
                        help_text="Each kind with what happens to it.",
                        verbose_name="kinds of personal data",
                    ),
                ),
                (
                    "phone_regions",
                    models.JSONField(
                        blank=True,
                        default=list,
                        help_text="Countries (CH, DE, US, ...) whose national phone numbers are known besides international ones.",
                    ),
                ),
                (
                    "max_characters",
                    models.PositiveIntegerField(
                        blank=True,
                        null=True,
                        validators=[django.core.validators.MinValueValidator(1)],
                        verbose_name="most characters",
                    ),
                ),
                ("examples", models.JSONField(blank=True, default=list, verbose_name="example sentences")),
                (
                    "threshold",
                    models.FloatField(
                        blank=True,
                        help_text="0 to 1: how sure it must be. Lower finds more, and more that is innocent. Empty: as measured.",
                        null=True,
                        validators=[
                            django.core.validators.MinValueValidator(0.0),
                            django.core.validators.MaxValueValidator(1.0),
                        ],
                    ),
                ),
                (
                    "languages",
                    models.JSONField(
                        blank=True,
                        default=list,
                        help_text="Codes like en, de, fr. Others are found.",
                        verbose_name="allowed languages",
                    ),
                ),
                (
                    "question",
                    models.CharField(
                        blank=True,
                        help_text="To be answered with yes or no; yes means that it found something.",
                        max_length=2000,
                    ),
                ),
                (
                    "judge_deployment",
                    models.ForeignKey(
                        blank=True,
                        null=True,
                        on_delete=django.db.models.deletion.PROTECT,
                        related_name="judges",
                        to="deployments.modeldeployment",
                        verbose_name="deployment that answers",
                    ),
                ),
                (
                    "policy",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.CASCADE,
                        related_name="rules",
                        to="guardrails.guardrailpolicy",
                    ),
                ),
            ],
            options={
                "verbose_name": "rule",
                "ordering": ["policy", "position", "id"],
            },
        ),
        migrations.CreateModel(
            name="PolicyVersion",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                ("number", models.PositiveIntegerField()),
                (
                    "mode",
                    models.CharField(
                        choices=[
                            ("draft", "Draft: does nothing"),
                            ("shadow", "Shadow: records, changes nothing"),
                            ("enforced", "Enforced"),
                        ],
                        max_length=16,
                    ),
                ),
                ("body", models.BinaryField()),
                (
                    "digest",
                    models.CharField(
                        help_text="The name under which gateways and workers know it.", max_length=64, unique=True
                    ),
                ),
                ("created_by_label", models.CharField(max_length=254, verbose_name="made by")),
                ("created_at", models.DateTimeField(auto_now_add=True)),
                (
                    "created_by",
                    models.ForeignKey(
                        blank=True,
                        null=True,
                        on_delete=django.db.models.deletion.SET_NULL,
                        related_name="+",
                        to=settings.AUTH_USER_MODEL,
                    ),
                ),
                (
                    "policy",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.CASCADE,
                        related_name="versions",
                        to="guardrails.guardrailpolicy",
                    ),
                ),
            ],
            options={
                "ordering": ["policy", "-number"],
            },
        ),
        migrations.CreateModel(
            name="Intervention",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                (
                    "ref",
                    models.CharField(
                        editable=False, help_text="The same finding has the same.", max_length=300, unique=True
                    ),
                ),
                ("stream_id", models.CharField(db_index=True, max_length=64)),
                ("tenant_ref", models.CharField(max_length=64, verbose_name="tenant's id")),
                ("tenant_label", models.CharField(max_length=200, verbose_name="tenant's name")),
                ("deployment_label", models.CharField(max_length=200, verbose_name="deployment")),
                ("policy_ref", models.CharField(max_length=64, verbose_name="policy's id")),
                ("policy_label", models.CharField(max_length=200, verbose_name="policy")),
                ("policy_number", models.PositiveIntegerField(verbose_name="policy's version")),
                ("rule_ref", models.CharField(blank=True, max_length=64, verbose_name="rule's id")),
                ("rule_label", models.CharField(blank=True, max_length=200, verbose_name="rule")),
                (
                    "rule_kind",
                    models.CharField(
                        blank=True,
                        choices=[
                            ("literals", "Words and phrases"),
                            ("regex", "Regular expressions"),
                            ("personal_data", "Personal data"),
                            ("length", "Length"),
                            ("topic", "Topic, by examples"),
                            ("abuse", "Insults and profanity"),
                            ("language", "Language"),
                            ("judge", "Question to another model"),
                        ],
                        max_length=16,
                    ),
                ),
                ("finding", models.CharField(blank=True, max_length=200)),
                (
                    "direction",
                    models.CharField(
                        choices=[("output", "Answers"), ("input", "Requests"), ("both", "Both")], max_length=16
                    ),
                ),
                (
                    "action",
                    models.CharField(
                        choices=[
                            ("block", "Block"),
                            ("mask", "Mask"),
                            ("flag", "Flag"),
                        ],
                        max_length=16,
                    ),
                ),
                (
                    "outcome",
                    models.CharField(
                        choices=[
                            ("blocked", "Blocked"),
                            ("masked", "Masked"),
                            ("flagged", "Flagged"),
                            ("unchecked", "Unchecked: a judge failed"),
                            ("failed", "Ended: a judge failed"),
                        ],
                        max_length=16,
                    ),
                ),
                ("is_shadow", models.BooleanField(default=False, verbose_name="shadow")),
                (
                    "start",
                    models.PositiveIntegerField(
                        help_text="Offset of the first character found, in the text as generated."
                    ),
                ),
                ("end", models.PositiveIntegerField()),
                (
                    "excerpt",
                    models.TextField(blank=True, help_text="What the tenant's retention of excerpts lets be kept."),
                ),
                (
                    "held_ms",
                    models.FloatField(
                        default=0.0, help_text="How long text waited for the judgement.", verbose_name="held (ms)"
                    ),
                ),
                ("occurred_at", models.DateTimeField(db_index=True)),
                ("recorded_at", models.DateTimeField(auto_now_add=True)),
                ("is_false_positive", models.BooleanField(default=False, verbose_name="false positive")),
                ("marked_by_label", models.CharField(blank=True, max_length=254, verbose_name="marked by")),
                ("marked_at", models.DateTimeField(blank=True, null=True)),
                (
                    "marked_by",
                    models.ForeignKey(
                        blank=True,
                        null=True,
                        on_delete=django.db.models.deletion.SET_NULL,
                        related_name="+",
                        to=settings.AUTH_USER_MODEL,
                    ),
                ),
                (
                    "tenant",
                    models.ForeignKey(
                        blank=True,
                        db_index=False,
                        null=True,
                        on_delete=django.db.models.deletion.SET_NULL,
                        related_name="+",
                        to="tenants.tenant",
                    ),
                ),
                (
                    "policy_version",
                    models.ForeignKey(
                        blank=True,
                        db_index=False,
                        null=True,
                        on_delete=django.db.models.deletion.SET_NULL,
                        related_name="+",
                        to="guardrails.policyversion",
                    ),
                ),
            ],
            options={
                "ordering": ["-occurred_at", "-id"],
                "default_manager_name": "all_tenants",
            },
            managers=[
                ("all_tenants", django.db.models.manager.Manager()),
            ],
        ),
        migrations.AddConstraint(
            model_name="guardrailpolicy",
            constraint=models.UniqueConstraint(
                condition=models.Q(("tenant__isnull", False)),
                fields=("tenant", "name"),
                name="guardrail_policy_name_once_per_tenant",
                violation_error_message="The tenant has a policy of this name already.",
            ),
        ),
        migrations.AddConstraint(
            model_name="guardrailpolicy",
            constraint=models.UniqueConstraint(
                condition=models.Q(("tenant__isnull", True)),
                fields=("name",),
                name="guardrail_policy_name_once_for_everybody",
                violation_error_message="There is a policy of this name for everybody already.",
            ),
        ),
        migrations.AddConstraint(
            model_name="guardrailpolicy",
            constraint=models.CheckConstraint(
                condition=models.Q(("mode__in", ["draft", "shadow", "enforced"])), name="guardrail_policy_mode_known"
            ),
        ),
        migrations.AddConstraint(
            model_name="guardrailpolicy",
            constraint=models.CheckConstraint(
                condition=models.Q(
                    ("failure_mode__in", ["closed", "open"]), ("on_input_trip__in", ["refuse", "replace"])
                ),
                name="guardrail_policy_choices_known",
            ),
        ),
        migrations.AddConstraint(
            model_name="guardrailpolicy",
            constraint=models.CheckConstraint(
                condition=models.Q(("chunk_size__gte", 1), ("chunk_size__lte", 512), ("context_size__lte", 512)),
                name="guardrail_policy_window_in_range",
            ),
        ),
        migrations.AddConstraint(
            model_name="guardrailpolicy",
            constraint=models.CheckConstraint(
                condition=models.Q(("judge_deadline_seconds__gt", 0), ("judge_deadline_seconds__lte", 60.0)),
                name="guardrail_policy_deadline_in_range",
            ),
        ),
        migrations.AddConstraint(
            model_name="guardrailpolicy",
            constraint=models.CheckConstraint(
                condition=models.Q(("replacement", ""), _negated=True), name="guardrail_policy_has_a_replacement"
            ),
        ),
        migrations.AddConstraint(
            model_name="guardrailattachment",
            constraint=models.CheckConstraint(
                condition=models.Q(
                    ("tenant__isnull", False),
                    ("deployment__isnull", False),
                    ("api_key__isnull", False),
                    _connector="OR",
                ),
                name="guardrail_attachment_names_something",
                violation_error_message="Choose a tenant, a deployment or a key, or remove the line.",
            ),
        ),
        migrations.AddConstraint(
            model_name="guardrailattachment",
            constraint=models.CheckConstraint(
                condition=models.Q(("tenant__isnull", True), ("api_key__isnull", True), _connector="OR"),
                name="guardrail_attachment_key_says_the_tenant",
                violation_error_message="A key belongs to its tenant; leave the tenant empty.",
            ),
        ),
        migrations.AddConstraint(
            model_name="guardrailattachment",
            constraint=models.UniqueConstraint(
                condition=models.Q(("api_key__isnull", True), ("deployment__isnull", True), ("tenant__isnull", False)),
                fields=("policy", "tenant"),
                name="guardrail_attachment_once_per_tenant",
                violation_error_message="It is attached there already.",
            ),
        ),
        migrations.AddConstraint(
            model_name="guardrailattachment",
            constraint=models.UniqueConstraint(
                condition=models.Q(("api_key__isnull", True), ("deployment__isnull", False), ("tenant__isnull", True)),
                fields=("policy", "deployment"),
                name="guardrail_attachment_once_per_deployment",
                violation_error_message="It is attached there already.",
            ),
        ),
        migrations.AddConstraint(
            model_name="guardrailattachment",
            constraint=models.UniqueConstraint(
                condition=models.Q(("api_key__isnull", True), ("deployment__isnull", False), ("tenant__isnull", False)),
                fields=("policy", "tenant", "deployment"),
                name="guardrail_attachment_once_per_tenant_and_deployment",
                violation_error_message="It is attached there already.",
            ),
        ),
        migrations.AddConstraint(
            model_name="guardrailattachment",
            constraint=models.UniqueConstraint(
                condition=models.Q(("api_key__isnull", False), ("deployment__isnull", True), ("tenant__isnull", True)),
                fields=("policy", "api_key"),
                name="guardrail_attachment_once_per_api_key",
                violation_error_message="It is attached there already.",
            ),
        ),
        migrations.AddConstraint(
            model_name="guardrailattachment",
            constraint=models.UniqueConstraint(
                condition=models.Q(("api_key__isnull", False), ("deployment__isnull", False), ("tenant__isnull", True)),
                fields=("policy", "deployment", "api_key"),
                name="guardrail_attachment_once_per_deployment_and_api_key",
                violation_error_message="It is attached there already.",
            ),
        ),
        migrations.AddConstraint(
            model_name="guardrailrule",
            constraint=models.CheckConstraint(
                condition=models.Q(
                    ("action__in", ["block", "mask", "flag"]),
                    ("applies_to__in", ["output", "input", "both"]),
                    (
                        "kind__in",
                        ["literals", "regex", "personal_data", "length", "topic", "abuse", "language", "judge"],
                    ),
                    ("severity__in", ["low", "medium", "high"]),
                ),
                name="guardrail_rule_choices_known",
            ),
        ),
        migrations.AddConstraint(
            model_name="guardrailrule",
            constraint=models.CheckConstraint(
                condition=models.Q(
                    ("threshold__isnull", True), models.Q(("threshold__gte", 0), ("threshold__lte", 1)), _connector="OR"
                ),
                name="guardrail_rule_threshold_in_range",
            ),
        ),
        migrations.AddConstraint(
            model_name="guardrailrule",
            constraint=models.CheckConstraint(
                condition=models.Q(
                    models.Q(("kind", "length"), _negated=True), ("max_characters__gte", 1), _connector="OR"
                ),
                name="guardrail_rule_length_has_a_limit",
                violation_error_message="Give the most characters that a text may have.",
            ),
        ),
        migrations.AddConstraint(
            model_name="guardrailrule",
            constraint=models.CheckConstraint(
                condition=models.Q(
                    models.Q(("kind", "judge"), _negated=True),
                    models.Q(("judge_deployment__isnull", False), models.Q(("question", ""), _negated=True)),
                    _connector="OR",
                ),
                name="guardrail_rule_judge_has_a_question",
                violation_error_message="A question needs a deployment that answers it, and its text.",
            ),
        ),
        migrations.AddConstraint(
            model_name="guardrailrule",
            constraint=models.CheckConstraint(
                condition=models.Q(
                    models.Q(("action", "mask"), _negated=True),
                    ("kind__in", ["length", "literals", "personal_data", "regex"]),
                    _connector="OR",
                ),
                name="guardrail_rule_masks_what_has_a_place",
                violation_error_message="Only words, patterns, personal data and length can be masked; block or flag it.",
            ),
        ),
        migrations.AddConstraint(
            model_name="policyversion",
            constraint=models.UniqueConstraint(fields=("policy", "number"), name="policy_version_number_once"),
        ),
        migrations.AddConstraint(
            model_name="policyversion",
            constraint=models.CheckConstraint(
                condition=models.Q(("mode__in", ["draft", "shadow", "enforced"])), name="policy_version_mode_known"
            ),
        ),
        migrations.AddIndex(
            model_name="intervention",
            index=models.Index(fields=["tenant", "-occurred_at"], name="intervention_by_tenant"),
        ),
        migrations.AddIndex(
            model_name="intervention",
            index=models.Index(fields=["policy_ref", "-occurred_at"], name="intervention_by_policy"),
        ),
        migrations.AddConstraint(
            model_name="intervention",
            constraint=models.CheckConstraint(
                condition=models.Q(
                    ("action__in", ["block", "mask", "flag"]),
                    ("direction__in", ["output", "input", "both"]),
                    ("outcome__in", ["blocked", "masked", "flagged", "unchecked", "failed"]),
                ),
                name="intervention_choices_known",
            ),
        ),
        migrations.AddConstraint(
            model_name="intervention",
            constraint=models.CheckConstraint(
                condition=models.Q(("is_false_positive", False), ("marked_at__isnull", False), _connector="OR"),
                name="intervention_mark_has_a_time",
            ),
        ),
    ]
