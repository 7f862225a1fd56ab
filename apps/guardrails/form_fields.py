"""Form fields for what a rule holds as lists and maps: texts by line, codes, kinds of personal data."""

from typing import Any

from django import forms
from django.core.exceptions import ValidationError
from django.template.loader import render_to_string
from django.utils.safestring import SafeString
from django.utils.translation import gettext_lazy as _
from unfold.widgets import UnfoldAdminSelectWidget, UnfoldAdminTextareaWidget, UnfoldAdminTextInputWidget

from apps.guardrails.enums import Action, PersonalDataKind

MAX_FILE_BYTES = 2_000_000
_DOES = [("", _("leave alone")), (Action.MASK, _("mask")), (Action.BLOCK, _("block")), (Action.FLAG, _("flag"))]


class LinesField(forms.Field):
    """A list of texts, one per line; empty lines do not count, nor do comments where the field takes them."""

    def __init__(self, *, has_comments: bool = False, rows: int = 4, **kwargs: Any) -> None:  # noqa: ANN401
        """`has_comments`: lines that begin with `#` are left out."""
        widget = UnfoldAdminTextareaWidget(attrs={"rows": rows, "spellcheck": "false"})
        super().__init__(required=False, widget=widget, **kwargs)
        self._has_comments = has_comments

    def prepare_value(self, value: Any) -> Any:  # noqa: ANN401
        """Returns the text to edit."""
        return "\n".join(value) if isinstance(value, list) else value

    def to_python(self, value: Any) -> list[str]:  # noqa: ANN401
        """Returns the lines."""
        return self.lines_of(str(value or ""))

    def has_changed(self, initial: Any, data: Any) -> bool:  # noqa: ANN401
        """Compares lines, not line ends."""
        return list(initial or []) != self.to_python(data)

    def lines_of(self, text: str) -> list[str]:
        """Returns the lines that count."""
        lines = [line for line in text.splitlines() if line.strip()]
        return [line for line in lines if not (self._has_comments and line.lstrip().startswith("#"))]


class WordsFileField(forms.FileField):
    """A file with one text per line, for lists that nobody types."""

    def lines(self, uploaded: Any, like: LinesField) -> list[str]:  # noqa: ANN401
        """Returns the lines that count, as `like` reads them.

        Raises:
            ValidationError: It is not UTF-8 text, or too large.
        """
        if uploaded is None:
            return []
        if (uploaded.size or 0) > MAX_FILE_BYTES:
            raise ValidationError(_("The file is larger than 2 MB; split it over several rules."), code="too_large")
        try:
            return like.lines_of(uploaded.read().decode("utf-8-sig"))
        except UnicodeDecodeError as error:
            raise ValidationError(_("The file is not UTF-8 text; save it as such."), code="not_text") from error


class CodesField(forms.Field):
    """A list of codes, with commas or blanks between."""

    def __init__(self, **kwargs: Any) -> None:  # noqa: ANN401
        """Takes what `forms.Field` takes."""
        super().__init__(required=False, widget=UnfoldAdminTextInputWidget(), **kwargs)

    def prepare_value(self, value: Any) -> Any:  # noqa: ANN401
        """Returns the text to edit."""
        return ", ".join(value) if isinstance(value, list) else value

    def to_python(self, value: Any) -> list[str]:  # noqa: ANN401
        """Returns the codes."""
        return str(value or "").replace(",", " ").split()

    def has_changed(self, initial: Any, data: Any) -> bool:  # noqa: ANN401
        """Compares codes, not blanks."""
        return list(initial or []) != self.to_python(data)


class PersonalDataWidget(forms.MultiWidget):
    """A choice for each kind."""

    def __init__(self) -> None:
        """Has a select for each kind, named after it."""
        super().__init__({kind.value: UnfoldAdminSelectWidget(choices=_DOES) for kind in PersonalDataKind})

    def decompress(self, value: Any) -> list[str]:  # noqa: ANN401
        """Returns the choices in the order of the kinds."""
        return [(value or {}).get(kind, "") for kind in PersonalDataKind.values]

    def render(self, name: str, value: Any, attrs: Any = None, renderer: Any = None) -> SafeString:  # noqa: ANN401
        """Returns the selects with their labels, side by side."""
        choices = value if isinstance(value, list) else self.decompress(value)
        parts = []
        for kind, select, choice in zip(PersonalDataKind, self.widgets, choices, strict=True):
            identity = f"{(attrs or {}).get('id', name)}_{kind.value}"
            html = select.render(f"{name}_{kind.value}", choice, {"id": identity}, renderer)
            parts.append({"id": identity, "label": kind.label, "html": html})
        return SafeString(render_to_string("guardrails/admin/personal_data.html", {"parts": parts}))


class PersonalDataField(forms.MultiValueField):
    """What happens to each kind of personal data."""

    def __init__(self, **kwargs: Any) -> None:  # noqa: ANN401
        """Takes what `forms.Field` takes."""
        parts = [forms.ChoiceField(choices=_DOES, required=False) for _kind in PersonalDataKind]
        super().__init__(parts, required=False, require_all_fields=False, widget=PersonalDataWidget(), **kwargs)

    def compress(self, data_list: list[str]) -> dict[str, str]:
        """Returns the kinds that are not left alone."""
        return {kind: does for kind, does in zip(PersonalDataKind.values, data_list, strict=False) if does}
