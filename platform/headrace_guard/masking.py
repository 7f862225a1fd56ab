"""What stands in the place of what was found, so that the text around it stays Markdown or JSON."""

import json
import re

_PLAIN_NAME = re.compile(r"[^0-9A-Za-z]+")
_IN_STRING = re.compile(r'["\\]')
_NUMBER = re.compile(r"[0-9]+")
_KEYWORDS = {"true", "false", "null"}
_STRUCTURE = frozenset('{}[],:"+-. \t\r\n')
"""What may stand in JSON outside of strings beside numbers and keywords."""


def placeholder(name: str) -> str:
    """Return a mask that names what was found and means nothing in Markdown, HTML or JSON."""
    return f"⟦{_PLAIN_NAME.sub('_', name).strip('_').upper() or 'REDACTED'}⟧"


class Masking:
    """Writes one text's masks; follows the text to know where in a JSON document it is.

    A text is JSON when its first visible character is `{` or `[`. There, a mask inside of a string is the placeholder,
    escaped; outside of strings digits become 1000... (a number must not begin with 0), `true` and `false` become null,
    and whatever gives the document its structure stays. Anything else that is to be masked there shows that the text
    was no JSON after all (`[Note] me@example.com`): from there on it is plain text.
    """

    def __init__(self) -> None:
        """Be at the beginning of a text."""
        self._is_json: bool | None = None
        self._in_string = False
        self._is_escaped = False
        self._after_digit = False
        self._due = ""
        """The mask under way, as long as it has not been written."""

    @property
    def is_plain(self) -> bool:
        """Whether the text is known to be no JSON, so that nothing of it has to be followed."""
        return self._is_json is False

    def keep(self, text: str) -> str:
        """Take text that goes out as it is."""
        if self._is_json is None:
            self._decide(text)
        if self._is_json and text:
            self._follow(text)
            self._after_digit = text[-1].isdigit()
        return text

    def mask(self, text: str, mask: str) -> str:
        """Take text that goes out masked; an empty mask goes on with the one before."""
        if self._is_json is None:
            self._decide(text)
        if not self._is_json:
            return mask
        self._due = mask or self._due
        out: list[str] = []
        for part in re.findall(r"[0-9]+|[A-Za-z]+|.", text, re.DOTALL):
            was_in_string = self._in_string
            self._follow(part)
            if was_in_string and self._in_string:
                out.append(json.dumps(self._take_due(), ensure_ascii=False)[1:-1])
            elif was_in_string or self._in_string:
                out.append(part)
            elif (kept := self._outside(part)) is not None:
                out.append(kept)
                self._after_digit = part[-1].isdigit()
            else:
                self._is_json = False
                out.append(self._take_due())
                break
        return "".join(out)

    def _take_due(self) -> str:
        due, self._due = self._due, ""
        return due

    def _outside(self, part: str) -> str | None:
        """Return what stands for a part outside of strings; None where it cannot be JSON."""
        if _NUMBER.fullmatch(part):
            return "0" * len(part) if self._after_digit else "1" + "0" * (len(part) - 1)
        if part in _KEYWORDS:
            return "null"
        return part if part in _STRUCTURE or (part in {"e", "E"} and self._after_digit) else None

    def _decide(self, text: str) -> None:
        visible = text.lstrip("\ufeff \t\r\n")
        if visible:
            self._is_json = visible[0] in "{["

    def _follow(self, text: str) -> None:
        at = 0
        while at < len(text):
            if self._is_escaped:
                self._is_escaped = False
                at += 1
            elif not self._in_string:
                at = text.find('"', at) + 1
                if not at:
                    return
                self._in_string = True
            else:
                found = _IN_STRING.search(text, at)
                if found is None:
                    return
                at = found.end()
                if found[0] == "\\":
                    self._is_escaped = True
                else:
                    self._in_string = False
