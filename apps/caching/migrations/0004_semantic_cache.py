"""Kept answers for questions that ask for the same in other words."""

import django.core.validators
from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [
        ("caching", "0003_chat_answers"),
    ]

    operations = [
        migrations.AddField(
            model_name="responsecachepolicy",
            name="semantic",
            field=models.BooleanField(
                default=False,
                help_text="A question is also given the kept answer to another one of the tenant that asks for the same in other words; all before it must be the same. That is a guess: some will be given an answer to what they have not asked. For English only, and never in the web chat. Off: only the same request is given it.",
                verbose_name="answers to other questions, too",
            ),
        ),
        migrations.AddField(
            model_name="responsecachepolicy",
            name="semantic_max_turns",
            field=models.PositiveSmallIntegerField(
                default=1,
                help_text="Messages of the user, 1 to 10. What a later question means hangs on what was said before.",
                validators=[django.core.validators.MinValueValidator(1), django.core.validators.MaxValueValidator(10)],
                verbose_name="in conversations up to",
            ),
        ),
        migrations.AddField(
            model_name="responsecachepolicy",
            name="semantic_same_words",
            field=models.BooleanField(
                default=True,
                help_text="All words must be the same, in the same order, but for “the”, “please”, “can” and the like. Off: other words may stand there, so that the similarity, which hardly sees one word in a long text, decides by itself, and must be 0.97 at least.",
                verbose_name="only with the same words",
            ),
        ),
        migrations.AddField(
            model_name="responsecachepolicy",
            name="semantic_threshold",
            field=models.FloatField(
                default=0.95,
                help_text="0.9 to 1. Lower: more is answered from the cache, and more of it wrongly. “Before surgery” and “after surgery” have 0.96 in the same question.",
                validators=[
                    django.core.validators.MinValueValidator(0.9),
                    django.core.validators.MaxValueValidator(1.0),
                ],
                verbose_name="least similarity",
            ),
        ),
        migrations.AddConstraint(
            model_name="responsecachepolicy",
            constraint=models.CheckConstraint(
                condition=models.Q(("semantic_threshold__gte", 0.9), ("semantic_threshold__lte", 1.0)),
                name="response_cache_similarity_in_range",
            ),
        ),
        migrations.AddConstraint(
            model_name="responsecachepolicy",
            constraint=models.CheckConstraint(
                condition=models.Q(("semantic_max_turns__gte", 1), ("semantic_max_turns__lte", 10)),
                name="response_cache_turns_in_range",
            ),
        ),
    ]
