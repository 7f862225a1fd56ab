"""A member's latency page: of his own tenants, and of nobody else's."""

from typing import Any

from django.contrib.auth.decorators import login_required
from django.core.exceptions import ValidationError
from django.http import HttpRequest, HttpResponse
from django.shortcuts import render
from django.utils.translation import gettext as _
from django.views.decorators.http import require_safe

from apps.accounts.models import User
from apps.ops.latency.answers import asked_of_numbers, asked_of_page, numbers_answer, page_context, problem
from apps.ops.latency.asked import Asked
from apps.ops.latency.offered import member_choices, member_deployments, member_keys
from apps.tenants.models import Membership
from apps.tenants.selectors import membership_list

# Nothing may run or load that is not ours.
CONTENT_SECURITY_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; font-src 'self'; "
    "connect-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
)


@login_required
@require_safe
def own_latency(request: HttpRequest) -> HttpResponse:
    """Shows the page; what he may not ask for is left out of the question."""
    memberships = _memberships(request)
    asked = asked_of_page(request)
    membership = _chosen(memberships, asked) or next(iter(memberships), None)
    context: dict[str, Any] = {"tenant": membership and membership.tenant}
    if membership is not None:
        context |= page_context(asked, member_choices(membership, memberships), has_fleet=False)
    response = render(request, "ops/latency/own_page.html", context, status=200 if membership is not None else 403)
    response["Content-Security-Policy"] = CONTENT_SECURITY_POLICY
    response["Cache-Control"] = "no-store"
    return response


@require_safe
def own_latency_numbers(request: HttpRequest) -> HttpResponse:
    """Answers with what the page draws; of anything that is not his, that there is no such thing."""
    if not request.user.is_authenticated:
        return problem(_("Sign in again."), status=401)
    memberships = _memberships(request)
    try:
        asked = asked_of_numbers(request)
    except ValidationError as error:
        return problem(" ".join(error.messages), status=400)
    membership = _chosen(memberships, asked)
    if membership is None or not _may_ask(membership, asked):
        return problem(_("There is no such tenant, model or key."), status=404)
    own = asked.of_tenant(membership.tenant_id)
    choices = (lambda: member_choices(membership, memberships)) if "choices" in request.GET else None
    return numbers_answer(own, has_fleet=False, links=[], choices=choices)


def _memberships(request: HttpRequest) -> list[Membership]:
    """Returns his places, the one that he works in first."""
    assert isinstance(request.user, User)  # noqa: S101  # signed in, as the views have seen
    worked_in = str(request.session.get("tenant_id", ""))
    return sorted(membership_list(user=request.user), key=lambda one: str(one.tenant_id) != worked_in)


def _chosen(memberships: list[Membership], asked: Asked) -> Membership | None:
    wanted = asked.scope.tenant_id
    return next((one for one in memberships if wanted is None or one.tenant_id == wanted), None)


def _may_ask(membership: Membership, asked: Asked) -> bool:
    """Whether deployment and key are the tenant's to know of; workers are none of its business."""
    scope = asked.scope
    return (
        scope.worker is None
        and (scope.deployment is None or scope.deployment in member_deployments(membership))
        and (not scope.key_id or member_keys(membership).filter(pk=scope.key_id).exists())
    )
