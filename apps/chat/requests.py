"""The edge of the chat's JSON views: who asks, what the body says, and how errors leave."""

import asyncio
from collections.abc import Callable, Coroutine
from functools import wraps
from typing import Any, TypeVar

import msgspec
import structlog
from asgiref.sync import sync_to_async
from django.contrib.auth.models import AnonymousUser
from django.http import HttpRequest, HttpResponse, JsonResponse
from django.views.decorators.http import require_http_methods
from redis.exceptions import RedisError

from apps.accounts.models import User
from apps.api.error_rendering import error_object
from apps.chat.errors import NoTenantError, SignedOutError
from apps.tenants.models import Membership
from apps.tenants.selectors import membership_choose
from headrace_wire.errors import DependencyUnavailableError, HeadraceError, InvalidRequestError, PayloadTooLargeError

logger = structlog.get_logger(__name__)

TENANT_SESSION_KEY = "tenant_id"
BODY_LIMIT = 256 * 1024

_T = TypeVar("_T")
_carried_out: set[asyncio.Task[Any]] = set()

MemberView = Callable[..., Coroutine[Any, Any, HttpResponse]]


async def signed_in_user(request: HttpRequest) -> User | None:
    """Returns who is signed in, or None."""
    user: User | AnonymousUser = await request.auser()
    return user if isinstance(user, User) and user.is_active else None


async def membership_of(request: HttpRequest, user: User) -> Membership | None:
    """Returns the place that the user works in: the one that the session remembers, else the first."""
    tenant_id = await request.session.aget(TENANT_SESSION_KEY)
    return await sync_to_async(membership_choose)(user=user, tenant_id=tenant_id)


def member_view(*methods: str) -> Callable[[MemberView], MemberView]:
    """Gives a JSON view its member, and turns errors into responses."""

    def decorate(view: MemberView) -> MemberView:
        @require_http_methods(list(methods))
        @wraps(view)
        async def guarded(request: HttpRequest, **arguments: Any) -> HttpResponse:  # noqa: ANN401
            try:
                response = await view(request, await _member(request), **arguments)
            except HeadraceError as error:
                response = error_response(error)
            except RedisError as error:
                logger.warning("chat_without_redis", error=str(error))
                response = error_response(DependencyUnavailableError("The stream store does not answer; try again."))
            response.setdefault("Cache-Control", "no-store")
            return response

        return guarded

    return decorate


async def _member(request: HttpRequest) -> Membership:
    user = await signed_in_user(request)
    if user is None:
        raise SignedOutError("You are signed out. Sign in again; your text stays here.")
    membership = await membership_of(request, user)
    if membership is None:
        raise NoTenantError("You do not belong to a workspace. Ask an administrator to add you to one.")
    return membership


async def carry_out(work: Coroutine[Any, Any, _T]) -> _T:
    """Runs a write to its end, also when the browser leaves meanwhile: Django cancels the view then.

    Half a write would be a stored question whose stream nobody has asked for.
    """
    task = asyncio.create_task(work)
    _carried_out.add(task)
    task.add_done_callback(_carried_out.discard)
    return await asyncio.shield(task)


def body_of(request: HttpRequest, kind: type[_T]) -> _T:
    """Returns the JSON body as a `kind`.

    Raises:
        PayloadTooLargeError: It is over `BODY_LIMIT`.
        InvalidRequestError: It is not JSON, or a field is missing or of the wrong type.
    """
    if int(request.META.get("CONTENT_LENGTH") or 0) > BODY_LIMIT:
        raise PayloadTooLargeError("The message is too long.")
    try:
        return msgspec.json.decode(request.body, type=kind)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise InvalidRequestError(f"The request is not understood: {error}") from error


def error_response(error: HeadraceError, **more: Any) -> JsonResponse:  # noqa: ANN401 - JSON
    """Returns the error in the form of every interface, with `more` beside it."""
    return JsonResponse({"error": error_object(error), **more}, status=error.http_status)
