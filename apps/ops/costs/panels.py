"""What the page of costs draws: figures of the whole time, and charts (`presentation` computes their series)."""

from django.utils.translation import gettext_lazy as _

from apps.ops.latency.panels import Line, Panel, Tile, Unit

TILES = (
    Tile("hours.all", _("Worker-hours"), Unit.COUNT),
    Tile("share.idle", _("Idle, at least"), Unit.SHARE),
    Tile("use.capacity", _("Of the busiest hour"), Unit.SHARE),
    Tile("tokens.per_hour", _("Tokens per worker-hour"), Unit.COUNT),
    Tile("tokens.per_kwh", _("Tokens per kWh"), Unit.COUNT),
    Tile("cost.running", _("Cost"), Unit.MONEY),
    Tile("cost.idle", _("Cost of idle hours"), Unit.MONEY),
    Tile("cost.charged", _("Charged to tenants"), Unit.MONEY),
)
PANELS = (
    Panel(
        name="use",
        title=_("Workers in use"),
        about=_("Places that were taken, and tokens beside the busiest hour that a worker of the deployment had."),
        unit=Unit.SHARE,
        lines=[Line("use.places", _("Places"), "one"), Line("use.capacity", _("Of the busiest hour"), "two")],
        top=1.0,
    ),
    Panel(
        name="hours",
        title=_("Worker-hours"),
        about=_("Idle is time in which nothing ran at all: at least so much, as hourly means can tell."),
        unit=Unit.COUNT,
        lines=[Line("hours.busy", _("In use"), "one"), Line("hours.idle", _("Idle"), "six")],
        is_stacked=True,
        total=Line("hours.all", _("All"), "text"),
    ),
    Panel(
        name="tokens-per-hour",
        title=_("Tokens per hour"),
        about=_("Generated per hour of a worker, and per hour of a GPU where workers report them."),
        unit=Unit.COUNT,
        lines=[
            Line("tokens.per_hour", _("Worker-hour"), "one"),
            Line("tokens.per_gpu_hour", _("GPU-hour"), "three"),
        ],
    ),
    Panel(
        name="tokens-per-kwh",
        title=_("Tokens per kWh"),
        about=_("Of the hours in which GPUs told their power; what the rest of a machine takes is not in it."),
        unit=Unit.COUNT,
        lines=[Line("tokens.per_kwh", _("Tokens"), "four")],
        is_optional=True,
    ),
    Panel(
        name="cost",
        title=_("Cost"),
        about=_("What deployments with a cost of a worker-hour or of a kWh cost, and what tenants were charged."),
        unit=Unit.MONEY,
        lines=[
            Line("cost.running", _("Cost"), "two"),
            Line("cost.idle", _("Of it idle"), "six"),
            Line("cost.charged", _("Charged"), "one"),
        ],
    ),
)
