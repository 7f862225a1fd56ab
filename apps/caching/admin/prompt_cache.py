"""Admin of prompt caches: what they say, where they are warm, and what they are good for."""

import time
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

from django.contrib import admin, messages
from django.db.models import QuerySet
from django.http import HttpRequest
from django.template.loader import render_to_string
from django.utils.safestring import SafeString
from django.utils.translation import gettext_lazy as _
from django.utils.translation import ngettext
from redis.exceptions import RedisError
from unfold.contrib.filters.admin import RelatedDropdownFilter
from unfold.decorators import display

from apps.caching import prompt_services
from apps.caching.models import PromptCache
from apps.caching.prompt_forms import PromptCacheForm
from apps.caching.prompt_selectors import PromptCacheUse, Warmth, prompt_cache_uses, prompt_cache_warmth
from apps.caching.prompt_warming import prompt_caches_warm
from apps.tenants.service_admin import ServiceAdmin, actor_of
from apps.tenants.services import Actor
from headrace_wire.fleet import WorkerState

MINUTE_SECONDS = 60
_KINDS = {_("pinned"): "success", _("opportunistic"): "info", _("off"): "danger"}


@admin.register(PromptCache)
class PromptCacheAdmin(ServiceAdmin):
    """Beginnings of prompts that are computed once."""

    form = PromptCacheForm
    list_display = ("name", "tenant", "deployment", "kind", "length", "hit_rate", "saved", "updated_at")
    list_filter = [("tenant", RelatedDropdownFilter), ("deployment", RelatedDropdownFilter), "is_pinned", "is_active"]
    list_filter_submit = True
    list_select_related = ("tenant", "deployment")
    search_fields = ("name", "tenant__name", "tenant__slug", "deployment__name")
    autocomplete_fields = ("tenant", "deployment")
    readonly_fields = ("version", "length", "use_told", "warmth_told", "id", "created_at", "updated_at")
    actions = ("warm_now", "purge")
    fieldsets = [
        (None, {"fields": [("tenant", "deployment"), "name", ("is_pinned", "is_active")]}),
        (
            _("What prompts begin with"),
            {
                "fields": ["system_prompt", "tools_text", "examples"],
                "description": _(
                    "Callers name it, or send the same messages: either way these are computed once for all their"
                    " requests. Whatever changes from request to request belongs behind them."
                ),
            },
        ),
        (_("Now"), {"fields": [("version", "length"), "use_told", "warmth_told"]}),
        (_("Record"), {"fields": [("id", "created_at", "updated_at")], "classes": ["collapse"]}),
    ]

    def get_changelist_instance(self, request: HttpRequest) -> Any:  # noqa: ANN401  Django's ChangeList
        """Reads what all rows of the page are good for in one round trip."""
        page = super().get_changelist_instance(request)
        rows = list(page.result_list)
        uses = _uses(rows)
        for row in rows:
            row.use = uses.get(row.pk.hex)
        page.result_list = rows
        return page

    def get_fieldsets(self, request: HttpRequest, obj: PromptCache | None = None) -> Any:  # noqa: ANN401  as Django's
        """Leaves out what a new one cannot have yet."""
        fieldsets = super().get_fieldsets(request, obj)
        return fieldsets if obj is not None else fieldsets[:2]

    def get_readonly_fields(
        self,
        request: HttpRequest,  # noqa: ARG002
        obj: PromptCache | None = None,
    ) -> tuple[str, ...]:
        """Fixes whose it is once that is given."""
        return (*self.readonly_fields, "tenant") if obj is not None else self.readonly_fields

    @display(description=_("Kind"), ordering="is_pinned", label=_KINDS)  # type: ignore[untyped-decorator]
    def kind(self, cache: PromptCache) -> object:
        """Returns a coloured word."""
        if not cache.is_active:
            return _("off")
        return _("pinned") if cache.is_pinned else _("opportunistic")

    @admin.display(description=_("Tokens"), ordering="token_count")
    def length(self, cache: PromptCache) -> str:
        """Returns its length, as far as it does not depend on what the user says."""
        if cache.token_count is None:
            return str(_("not known yet"))
        return f"{cache.token_count:,}"

    @admin.display(description=_("Hits"))
    def hit_rate(self, cache: Any) -> str:  # noqa: ANN401  # given its use by get_changelist_instance
        """Returns the share of requests that found it computed."""
        rate = cache.use.hit_rate if cache.use is not None else None
        return "-" if rate is None else f"{rate:.0%} / {cache.use.requests:,}"

    @admin.display(description=_("Saved"))
    def saved(self, cache: Any) -> str:  # noqa: ANN401  # given its use by get_changelist_instance
        """Returns what need not be computed."""
        use: PromptCacheUse | None = cache.use
        return f"{use.tokens:,} tokens, {use.seconds:,.1f} s" if use is not None and use.tokens else "-"

    @admin.display(description=_("Use"))
    def use_told(self, cache: PromptCache) -> str:
        """Returns what it was good for since it was made, or purged."""
        use = _uses([cache]).get(cache.pk.hex)
        if use is None:
            return str(_("Unknown: the stream store does not answer."))
        if not use.requests:
            return str(_("No request has begun with it yet."))
        if not use.hits:
            return str(_("None of %s requests found it computed.") % f"{use.requests:,}")
        return str(
            _("%(hits)s of %(requests)s requests found it computed: %(tokens)s tokens, %(seconds)s s saved.")
            % {
                "hits": f"{use.hits:,}",
                "requests": f"{use.requests:,}",
                "tokens": f"{use.tokens:,}",
                "seconds": f"{use.seconds:,.1f}",
            }
        )

    @admin.display(description=_("Workers"))
    def warmth_told(self, cache: PromptCache) -> SafeString | str:
        """Returns where it is warm."""
        try:
            rows = prompt_cache_warmth(cache=cache)
        except RedisError:
            return str(_("Unknown: the stream store does not answer."))
        if not rows:
            return str(_("No worker of this deployment is up."))
        titles = [_("Worker"), _("Last looked"), _("Found there"), _("Computed in")]
        context = {"titles": titles, "rows": [_told(row) for row in rows]}
        return render_to_string("caching/admin/prompt_cache_warmth.html", context)

    @admin.action(description=_("Warm chosen prompt caches now"), permissions=["change"])
    def warm_now(self, request: HttpRequest, queryset: "QuerySet[PromptCache]") -> None:
        """Has every ready worker compute them."""
        try:
            asked = prompt_caches_warm(caches=list(queryset.filter(is_active=True).select_related("deployment")))
        except RedisError:
            messages.error(request, _("The stream store does not answer; try again."))
            return
        messages.info(request, ngettext("%d worker was asked.", "%d workers were asked.", asked) % asked)

    @admin.action(description=_("Purge: let workers forget chosen prompt caches"), permissions=["change"])
    def purge(self, request: HttpRequest, queryset: "QuerySet[PromptCache]") -> None:
        """Unpins them, and begins their counts anew."""
        caches = list(queryset)
        for cache in caches:
            prompt_services.prompt_cache_purge(cache=cache, actor=actor_of(request))
        count = len(caches)
        messages.info(request, ngettext("%d prompt cache was purged.", "%d prompt caches were purged.", count) % count)

    def service_create(self, row: PromptCache, values: Mapping[str, Any], actor: Actor) -> None:  # noqa: ARG002
        """Creates the prompt cache."""
        prompt_services.prompt_cache_create(cache=row, actor=actor)

    def service_update(self, row: PromptCache, values: Mapping[str, Any], actor: Actor) -> None:  # noqa: ARG002
        """Changes the prompt cache."""
        prompt_services.prompt_cache_update(cache=row, actor=actor)

    def service_delete(self, row: PromptCache, actor: Actor) -> None:
        """Deletes the prompt cache."""
        prompt_services.prompt_cache_delete(cache=row, actor=actor)


def _uses(caches: list[PromptCache]) -> dict[str, PromptCacheUse]:
    try:
        return prompt_cache_uses(caches=caches)
    except RedisError:
        return {}


def _told(warmth: Warmth) -> dict[str, object]:
    worker, report = warmth.worker, warmth.report
    told: dict[str, object] = {
        "worker": f"{worker.host} ({worker.pid})",
        "is_ready": worker.state is WorkerState.READY,
        "state": worker.state.value,
    }
    if report is not None:
        told |= {
            "at": datetime.fromtimestamp(report.at, UTC),
            "is_fresh": time.time() - report.at < MINUTE_SECONDS,
            "found": _("%(cached)s of %(tokens)s")
            % {"cached": f"{report.cached_tokens:,}", "tokens": f"{report.tokens:,}"},
            "seconds": f"{report.seconds:.2f} s",
        }
    return told
