"""What our admin classes have in common: they write through services, never through `Model.save`."""

from collections.abc import Iterable, Mapping
from contextlib import suppress
from typing import Any

from django.contrib import messages
from django.contrib.admin.widgets import AutocompleteSelect
from django.core.exceptions import ValidationError
from django.db.models import Model, QuerySet
from django.forms import ModelForm
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from unfold.admin import ModelAdmin

from apps.tenants.services import Actor


class KnownAutocompleteSelect(AutocompleteSelect):
    """Shows what was chosen; what cannot be an id of anything is shown as nothing, and is the form's to refuse."""

    def optgroups(self, name: str, value: Any, attr: Any = None) -> Any:  # noqa: ANN401
        """Returns the chosen option; Django's own looks any text up, and fails on one that is no id."""
        to_python = self.field.remote_field.model._meta.pk.to_python
        known = []
        for text in value:
            with suppress(ValidationError):
                to_python(text or None)
                known.append(text)
        return super().optgroups(name, known, attr)


class ServiceAdmin(ModelAdmin):  # type: ignore[misc]  # unfold ships no types
    """An admin page whose writes are `service_create`, `service_update` and `service_delete`.

    What a service refuses after the form was accepted (somebody was faster) comes back as a message on the same page.
    """

    list_fullwidth = True
    list_per_page = 50
    show_full_result_count = False
    warn_unsaved_form = True
    compressed_fields = True

    def service_create(self, row: Any, values: Mapping[str, Any], actor: Actor) -> None:  # noqa: ANN401
        """Stores a new row; `values` are the form's, many-to-many fields among them."""
        raise NotImplementedError

    def service_update(self, row: Any, values: Mapping[str, Any], actor: Actor) -> None:  # noqa: ANN401
        """Stores a changed row."""
        raise NotImplementedError

    def service_delete(self, row: Any, actor: Actor) -> None:  # noqa: ANN401
        """Deletes a row; only for admins that allow it."""
        raise NotImplementedError

    def save_model(self, request: HttpRequest, obj: Model, form: "ModelForm[Any]", change: bool) -> None:
        """Hands the form's values to the service."""
        write = self.service_update if change else self.service_create
        write(obj, form.cleaned_data, actor_of(request))

    def delete_model(self, request: HttpRequest, obj: Model) -> None:
        """Hands the row to the service."""
        self.service_delete(obj, actor_of(request))

    def delete_queryset(self, request: HttpRequest, queryset: "QuerySet[Any]") -> None:
        """Hands the chosen rows to the service, one by one: each has its audit row."""
        for row in queryset:
            self.service_delete(row, actor_of(request))

    def formfield_for_foreignkey(self, db_field: Any, request: HttpRequest, **kwargs: Any) -> Any:  # noqa: ANN401
        """Offers completion that takes forged ids calmly."""
        if "widget" not in kwargs and db_field.name in self.get_autocomplete_fields(request):
            kwargs["widget"] = KnownAutocompleteSelect(db_field, self.admin_site, using=kwargs.get("using"))
        return super().formfield_for_foreignkey(db_field, request, **kwargs)

    def changeform_view(
        self,
        request: HttpRequest,
        object_id: str | None = None,
        form_url: str = "",
        extra_context: dict[str, Any] | None = None,
    ) -> HttpResponse:
        """Shows or takes the form; a refusal by the service undoes everything and is shown."""
        try:
            response: HttpResponse = super().changeform_view(request, object_id, form_url, extra_context)
        except ValidationError as error:
            messages.error(request, " ".join(error.messages))
            return HttpResponseRedirect(request.get_full_path())
        return response


class ReadOnlyAdmin(ServiceAdmin):
    """An admin page to look at."""

    actions_submit_line: Iterable[str] = ()

    def has_add_permission(self, request: HttpRequest) -> bool:  # noqa: ARG002
        """Refuses."""
        return False

    def has_change_permission(self, request: HttpRequest, obj: Model | None = None) -> bool:  # noqa: ARG002
        """Refuses."""
        return False

    def has_delete_permission(self, request: HttpRequest, obj: Model | None = None) -> bool:  # noqa: ARG002
        """Refuses."""
        return False


def actor_of(request: HttpRequest) -> Actor:
    """Returns who is signed in."""
    return request.user if request.user.is_authenticated else None
