"""HTML as Markdown."""

from __future__ import annotations

from typing import Any

import bs4
from markdownify import MarkdownConverter

from infinipot.text.document_limits import HTML_DEPTH, check_markup, too_deep

ENDS = {
    "p": {"p"},
    "li": {"li"},
    "dt": {"dt", "dd"},
    "dd": {"dt", "dd"},
    "td": {"td", "th"},
    "th": {"td", "th"},
    "tr": {"td", "th", "tr"},
    "option": {"option"},
}
"""Elements that end where another one begins, as HTML lets their end tags out."""


class Soup(bs4.BeautifulSoup):
    """A page. Raises ValueError for elements that lie too deep within each other."""

    def handle_starttag(self, name: str, *args: Any, **options: Any) -> Any:
        ended = ENDS.get(name, set())
        while self.currentTag is not None and self.currentTag.name in ended:
            last = self.currentTag.name
            self.handle_endtag(last)
            if last == name:
                break
        if len(self.tagStack) > HTML_DEPTH:
            raise too_deep("the page", "elements", HTML_DEPTH)
        return super().handle_starttag(name, *args, **options)


def markdown(html: bytes | str) -> str:
    """HTML as Markdown, without scripts and styles. Of an image its description stays."""
    check_markup(len(html), "the page")
    soup: Any = Soup(html, "html.parser")
    for tag in soup(["script", "style", "template"]):
        tag.decompose()
    for image in soup("img"):
        image.replace_with(image.get("alt") or "")
    text = MarkdownConverter(heading_style="ATX").convert_soup(soup)
    return str(text).strip() + "\n"
