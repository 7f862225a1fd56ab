"""Django's routes. The inference API under `/v1` is served in front of Django (`headrace.asgi`)."""

from django.contrib import admin
from django.urls import URLPattern, URLResolver, include, path

urlpatterns: list[URLPattern | URLResolver] = [
    path("admin/", admin.site.urls),
    path("", include("apps.chat.urls")),
]
