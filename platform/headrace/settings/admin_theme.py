"""How the admin looks (django-unfold): titles, colours, the side bar."""

from typing import Any

from django.http import HttpRequest
from django.templatetags.static import static
from django.urls import reverse_lazy


def _link(title: str, icon: str, view: str, page: str = "changelist") -> dict[str, Any]:
    return {"title": title, "icon": icon, "link": reverse_lazy(f"admin:{view}_{page}")}


def _is_list_of_streams(request: HttpRequest) -> bool:
    """The page of sums lies below it and has an entry of its own."""
    return "/usage/usagerecord/" in request.path and "/usage/usagerecord/overview" not in request.path


def _is_list_of_found(request: HttpRequest) -> bool:
    """The page of counts lies below it and has an entry of its own."""
    return "/guardrails/intervention/" in request.path and "/guardrails/intervention/counts" not in request.path


def _is_list_of_objectives(request: HttpRequest) -> bool:
    """The diagnosis lies below it and has an entry of its own."""
    return "/ops/serviceobjective/" in request.path and "/ops/serviceobjective/diagnosis" not in request.path


def _icon(_request: HttpRequest) -> str:
    return static("chat/icon.svg")


def _styles(_request: HttpRequest) -> str:
    return static("headrace/admin.css")


def _labels(_request: HttpRequest) -> str:
    return static("headrace/labels.js")


UNFOLD: dict[str, Any] = {
    "SITE_TITLE": "Headrace",
    "SITE_HEADER": "Headrace",
    "SITE_SUBHEADER": "Tokens from your own GPUs",
    "SITE_SYMBOL": "water",
    "SITE_FAVICONS": [{"rel": "icon", "type": "image/svg+xml", "href": _icon}],
    "SITE_URL": "/",
    "STYLES": [_styles],
    "SCRIPTS": [_labels],
    "SHOW_HISTORY": True,
    "SHOW_VIEW_ON_SITE": False,
    "COLORS": {
        "primary": {
            "50": "oklch(97% .02 215)",
            "100": "oklch(94% .04 215)",
            "200": "oklch(88% .07 215)",
            "300": "oklch(80% .1 215)",
            "400": "oklch(72% .12 218)",
            "500": "oklch(62% .13 222)",
            "600": "oklch(54% .12 226)",
            "700": "oklch(46% .1 228)",
            "800": "oklch(38% .08 230)",
            "900": "oklch(32% .06 232)",
            "950": "oklch(23% .05 235)",
        },
    },
    "SIDEBAR": {
        "show_search": True,
        "show_all_applications": False,
        "navigation": [
            {
                "title": "Tenants",
                "items": [
                    _link("Tenants", "domain", "tenants_tenant"),
                    _link("Members", "groups", "tenants_membership"),
                    _link("API keys", "key", "accounts_apikey"),
                    _link("Plans", "balance", "quotas_plan"),
                    _link("Quotas", "speed", "quotas_quota"),
                    _link("Conversations", "chat", "chat_conversation"),
                ],
            },
            {
                "title": "Usage",
                "items": [
                    _link("Sums and charts", "bar_chart", "usage_usagerecord", "overview"),
                    {**_link("Ended streams", "receipt_long", "usage_usagerecord"), "active": _is_list_of_streams},
                    _link("Notices", "notifications", "usage_softlimitnotice"),
                ],
            },
            {
                "title": "Guardrails",
                "items": [
                    _link("Policies", "shield", "guardrails_guardrailpolicy"),
                    {**_link("Interventions", "gpp_maybe", "guardrails_intervention"), "active": _is_list_of_found},
                    _link("Counts by tenant", "leaderboard", "guardrails_intervention", "counts"),
                ],
            },
            {
                "title": "Models",
                "items": [
                    _link("Deployments", "deployed_code", "deployments_modeldeployment"),
                    _link("Workers", "memory", "deployments_worker"),
                    _link("LoRA adapters", "layers", "deployments_loraadapter"),
                    _link("Restarts", "restart_alt", "deployments_rollingrestart"),
                    _link("Prompt caches", "bolt", "caching_promptcache"),
                    _link("Response caches", "cached", "caching_responsecachepolicy"),
                ],
            },
            {
                "title": "Operations",
                "items": [
                    _link("Autoscale", "auto_graph", "deployments_autoscalepolicy"),
                    _link("Scaling decisions", "swap_vert", "deployments_scalingdecision"),
                    _link("Live streams", "stream", "ops_livestream"),
                    _link("Latency", "timeline", "ops_latencyhour"),
                    _link("Diagnosis", "troubleshoot", "ops", "diagnosis"),
                    _link("Costs", "savings", "ops_fleetcost"),
                    {**_link("Objectives", "target", "ops_serviceobjective"), "active": _is_list_of_objectives},
                    _link("Alerts", "notifications_active", "ops_alert"),
                    _link("Alert rules", "rule", "ops_alertrule"),
                    _link("Receivers of alerts", "contact_mail", "ops_alertreceiver"),
                    _link("Silences", "notifications_off", "ops_alertsilence"),
                ],
            },
            {
                "title": "System",
                "items": [
                    _link("Users", "person", "accounts_user"),
                    _link("Audit trail", "history", "tenants_auditevent"),
                    _link("Periodic tasks", "schedule", "django_celery_beat_periodictask"),
                ],
            },
        ],
    },
}
