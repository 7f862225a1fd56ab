"""Django's routes. The inference API under `/v1` is served in front of Django (`headrace.asgi`)."""

from django.contrib import admin
from django.contrib.auth.decorators import login_required
from django.urls import URLPattern, URLResolver, include, path

# One page to sign in, with one pause after failed attempts, for the admin too.
admin.site.login = login_required(admin.site.login)  # type: ignore[method-assign]

urlpatterns: list[URLPattern | URLResolver] = [
    path("admin/", admin.site.urls),
    path("accounts/", include("apps.accounts.urls")),
    path("account/latency/", include("apps.ops.urls")),
    path("account/", include("apps.usage.urls")),
    path("", include("apps.chat.urls")),
]
