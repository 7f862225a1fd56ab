"""A member's own page: the API keys he made for himself, and what he used."""

from datetime import timedelta
from typing import Any
from uuid import UUID

from django.contrib import messages
from django.contrib.auth.decorators import login_required
from django.contrib.auth.mixins import LoginRequiredMixin
from django.core.exceptions import ValidationError
from django.http import Http404, HttpRequest, HttpResponse
from django.shortcuts import redirect, render
from django.utils import timezone
from django.utils.translation import gettext as _
from django.views import View
from django.views.decorators.http import require_POST

from apps.accounts import services
from apps.accounts.models import User
from apps.accounts.selectors import api_key_own_list
from apps.tenants.models import Membership
from apps.tenants.selectors import membership_choose
from apps.usage.enums import Bucket, Group
from apps.usage.forms import OwnKeyForm
from apps.usage.selectors import usage_sums

SHOWN_DAYS = 30


class OwnPage(LoginRequiredMixin, View):
    """Lists keys and usage; a POST makes a key and shows it in its answer, once."""

    http_method_names = ["get", "head", "post"]

    def get(self, request: HttpRequest) -> HttpResponse:
        """Shows the page."""
        return self._page(request, _membership(request), OwnKeyForm())

    def post(self, request: HttpRequest) -> HttpResponse:
        """Makes a key of the member's own, with the rights that members have."""
        membership = _membership(request)
        form = OwnKeyForm(request.POST)
        if membership is None or not form.is_valid():
            return self._page(request, membership, form)
        try:
            form.claim()
            name = form.cleaned_data["name"]
            _stored, token = services.api_key_own_create(membership=membership, name=name, actor=_user(request))
        except ValidationError as error:
            form.add_error(None, error)
            return self._page(request, membership, form)
        return self._page(request, membership, OwnKeyForm(), token=token.reveal())

    def _page(
        self, request: HttpRequest, membership: Membership | None, form: OwnKeyForm, token: str | None = None
    ) -> HttpResponse:
        context: dict[str, Any] = {"form": form, "token": token, "tenant": membership and membership.tenant}
        if membership is not None:
            context |= {
                "keys": api_key_own_list(membership=membership),
                "days": _days(membership),
                "shown_days": SHOWN_DAYS,
            }
        response = render(request, "usage/own_page.html", context)
        response["Cache-Control"] = "no-store"
        return response


@login_required
@require_POST
def own_key_revoke(request: HttpRequest, key_id: UUID) -> HttpResponse:
    """Ends one of the member's own keys.

    Raises:
        Http404: it is not his.
    """
    membership = _membership(request)
    api_key = membership and api_key_own_list(membership=membership).filter(pk=key_id).first()
    if not api_key:
        raise Http404
    services.api_key_revoke(api_key=api_key, actor=_user(request))
    messages.success(request, _("The key is revoked; gateways refuse it within a second."))
    return redirect("usage:own")


def _membership(request: HttpRequest) -> Membership | None:
    return membership_choose(user=_user(request), tenant_id=request.session.get("tenant_id"))


def _user(request: HttpRequest) -> User:
    assert isinstance(request.user, User)  # noqa: S101  # signed in, by the decorators
    return request.user


def _days(membership: Membership) -> list[dict[str, object]]:
    """Returns what the member used on each day, newest first, by deployment."""
    now = timezone.now()
    sums = usage_sums(
        tenant=membership.tenant,
        bucket=Bucket.DAY,
        start=now - timedelta(days=SHOWN_DAYS),
        end=now + timedelta(days=1),
        groups=[Group.DEPLOYMENT],
        member_id=membership.user_id.hex,
    )
    return [
        {
            "start_at": one.start_at,
            "deployment": str(one.whose[Group.DEPLOYMENT]),
            "requests": one.requests,
            "tokens": one.tokens,
            "cost": one.cost,
        }
        for one in reversed(sums)
    ]
