"""Markdown of untrusted text (a model's) into HTML that may stand in our page.

Two walls: the parser knows no raw HTML, and the sanitizer lets through an allow-list. No images: one in an answer
would tell a foreign server what is in the prompt, without a click.
"""

from collections.abc import Sequence
from typing import Any

import nh3
from markdown_it import MarkdownIt
from markdown_it.renderer import RendererProtocol
from markdown_it.token import Token
from markdown_it.utils import OptionsDict

_TAGS = {
    *("p", "br", "hr", "h1", "h2", "h3", "h4", "h5", "h6", "blockquote", "ul", "ol", "li", "pre", "code"),
    *("strong", "em", "s", "a", "table", "thead", "tbody", "tr", "th", "td"),
}
_ATTRIBUTES = {
    "a": {"href", "title"},
    "ol": {"start"},
    "code": {"class"},
    "th": {"align"},
    "td": {"align"},
}
_LINK_SCHEMES = {"http", "https", "mailto"}
_LINK_REL = "noopener noreferrer nofollow ugc"


def _cell_open(
    _self: RendererProtocol, tokens: Sequence[Token], index: int, _options: OptionsDict, _env: dict[str, Any]
) -> str:
    """A table cell; its alignment as an attribute, since the page's policy allows no inline styles."""
    token = tokens[index]
    align = str(token.attrGet("style") or "").removeprefix("text-align:")
    return f'<{token.tag} align="{align}">' if align in {"left", "center", "right"} else f"<{token.tag}>"


def _parser() -> MarkdownIt:
    parser = MarkdownIt("commonmark", {"html": False, "breaks": True})
    parser.enable(["table", "strikethrough"]).disable(["image", "html_inline", "html_block"])
    parser.add_render_rule("th_open", _cell_open)
    parser.add_render_rule("td_open", _cell_open)
    return parser


_PARSER = _parser()


def _attribute(tag: str, name: str, value: str) -> str | None:
    if (tag, name) == ("code", "class"):
        return value if value.startswith("language-") and " " not in value else None
    return value


_CLEANER = nh3.Cleaner(
    tags=_TAGS,
    attributes=_ATTRIBUTES,
    attribute_filter=_attribute,
    url_schemes=_LINK_SCHEMES,
    link_rel=_LINK_REL,
    set_tag_attribute_values={"a": {"target": "_blank"}},
)


def markdown_to_html(text: str) -> str:
    """Returns HTML of the allowed tags only; never raises on any text."""
    return _CLEANER.clean(_PARSER.render(text))
