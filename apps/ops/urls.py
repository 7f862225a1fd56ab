"""Routes of a member's latency page."""

from django.urls import path

from apps.ops.latency import own_page

app_name = "ops"

urlpatterns = [
    path("", own_page.own_latency, name="own_latency"),
    path("numbers", own_page.own_latency_numbers, name="own_latency_numbers"),
]
