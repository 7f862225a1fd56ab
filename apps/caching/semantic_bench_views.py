"""The semantic cache's test bench: an asynchronous page of the admin, as its child process takes seconds to start."""

from typing import Any

from asgiref.sync import sync_to_async
from django import forms
from django.contrib.auth.views import redirect_to_login
from django.http import Http404, HttpRequest, HttpResponse
from django.template.response import TemplateResponse
from django.urls import URLPattern, path
from django.utils.translation import gettext_lazy as _
from unfold.widgets import UnfoldAdminTextareaWidget

from apps.caching.models import ResponseCachePolicy
from apps.caching.semantic_bench import MAX_CHARACTERS, questions_try
from headrace_guard.judges.verdicts import JudgeFailure


class QuestionsForm(forms.Form):
    """Two questions."""

    first = forms.CharField(
        label=_("Was answered"), max_length=MAX_CHARACTERS, widget=UnfoldAdminTextareaWidget(attrs={"rows": 2})
    )
    second = forms.CharField(
        label=_("Is asked then"), max_length=MAX_CHARACTERS, widget=UnfoldAdminTextareaWidget(attrs={"rows": 2})
    )


def semantic_bench_urls(model_admin: Any) -> list[URLPattern]:  # noqa: ANN401
    """Returns the bench's address."""

    async def view(request: HttpRequest, object_id: str) -> HttpResponse:
        if not await sync_to_async(_may_look)(model_admin, request):
            return redirect_to_login(request.get_full_path(), "admin:login")
        return await _bench(model_admin, request, object_id)

    return [path("<str:object_id>/questions/", view, name="caching_responsecachepolicy_compare")]


def _may_look(model_admin: Any, request: HttpRequest) -> bool:  # noqa: ANN401
    return bool(model_admin.admin_site.has_permission(request) and model_admin.has_view_permission(request))


async def _bench(model_admin: Any, request: HttpRequest, object_id: str) -> HttpResponse:  # noqa: ANN401
    policy: ResponseCachePolicy | None = await sync_to_async(model_admin.get_object)(request, object_id)
    if policy is None:
        raise Http404
    form = QuestionsForm(request.POST or None)
    context: dict[str, object] = {"form": form, "policy": policy}
    if form.is_bound and form.is_valid():
        try:
            context["tried"] = await questions_try(policy=policy, **form.cleaned_data)
        except JudgeFailure as failure:
            context["failure"] = str(failure)
    return await sync_to_async(_render)(model_admin, request, context)


def _render(model_admin: Any, request: HttpRequest, context: dict[str, object]) -> HttpResponse:  # noqa: ANN401
    page = {
        **model_admin.admin_site.each_context(request),
        "opts": model_admin.opts,
        "title": _("Test bench: %s") % context["policy"],
        **context,
    }
    return TemplateResponse(request, "caching/admin/questions.html", page).render()
