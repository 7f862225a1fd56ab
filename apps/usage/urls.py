"""Routes of a member's own page."""

from django.urls import path

from apps.usage import views

app_name = "usage"

urlpatterns = [
    path("", views.OwnPage.as_view(), name="own"),
    path("keys/<uuid:key_id>/revoke", views.own_key_revoke, name="own_key_revoke"),
]
