"""Extract the text of an HTML page, in a worker process.

It imports nothing of the gateway, so that it starts fast, and its process holds no data of the gateway.
"""

from __future__ import annotations

from typing import Any
from urllib.parse import urljoin

#: The numbers of elements, of their ancestors, and of the ancestors of all characters, above which the main
#: part of a page is not searched, and all its text is used. The search visits the links and the text below each
#: element again.
_ELEMENTS, _ANCESTORS, _TEXT_ANCESTORS = 20_000, 200_000, 10_000_000
#: The main part of a page must have at least this share of its text.
_SHARE = 0.1
#: The maximum length of the result: absolute links can make it longer than the page.
_WRITTEN = 200_000
#: Elements that a browser does not show: by their attributes, and by their names.
_STYLE = "translate(@style, 'ABCDEFGHIJKLMNOPQRSTUVWXYZ \t\r\n', 'abcdefghijklmnopqrstuvwxyz')"
_HIDDEN = (
    "//*[@hidden or @aria-hidden='true'"
    f" or contains({_STYLE}, 'display:none')"
    f" or contains({_STYLE}, 'visibility:hidden')"
    f" or contains({_STYLE}, 'font-size:0') and not(contains({_STYLE}, 'font-size:0.'))]"
)
_HIDDEN_NAMES = ("template", "noscript", "script", "style")
#: The maximum characters of a link: the address of the page could make many short links long.
_LINK = 2_000
#: The maximum number of attributes of an element. The parser compares each new attribute with all before it.
_ATTRIBUTES = 1_000
#: The number of bytes that are measured at once.
_FED = 16_384
#: The maximum number of open elements. The parser searches them at each end tag.
_DEPTH = 1_000
#: The name of elements that are removed, which no page should use.
_REMOVED = "torana-removed"


def read_bounded(html: str, url: str) -> dict[str, str]:
    """Return the title and text of a page, each truncated."""
    title, text = read(html.encode("utf-8", "replace").decode(), url)
    return {"title": title[:_WRITTEN], "text": text[:_WRITTEN]}


def read(html: str, url: str) -> tuple[str, str]:
    """Return the title, and the text in Markdown with absolute links.

    Raises ``ValueError`` if an element has too many attributes or ancestors.
    """
    from trafilatura import extract, html2txt
    from trafilatura.settings import use_config

    page = html.encode()
    structure = _measure(page)
    tree = _parse_html(page)
    if tree is None:
        return "", ""
    title = tree.findtext(".//title") or ""
    _tidy(tree, url)
    everything = html2txt(tree)
    if structure.is_large:
        return title, everything
    config = use_config()
    config.read_dict({"DEFAULT": {"MIN_EXTRACTED_SIZE": "1"}})
    wanted: Any = {"output_format": "markdown", "include_links": True, "favor_recall": True}
    main_part = extract(tree, url=url, config=config, **wanted) or ""
    return title, main_part if len(main_part) > _SHARE * len(everything) else everything


def _measure(page: bytes) -> _Structure:
    """Return the size of a page's structure, without building it, in linear time."""
    from lxml import html as library

    structure = _Structure()
    parser: Any = library  # it has no types
    parser = parser.HTMLParser(encoding="utf-8", target=structure)
    # Errors end the parsing only after the text that was fed.
    for begin in range(0, len(page), _FED):
        parser.feed(page[begin : begin + _FED])
    return structure


def _parse_html(page: bytes) -> Any:
    from lxml import html as library

    parser: Any = library  # it has no types
    try:
        return parser.document_fromstring(page, parser=parser.HTMLParser(encoding="utf-8"))
    except parser.etree.ParserError:
        return None


class _Structure:
    """A parser target that counts elements and their ancestors, and refuses those that cost too much."""

    def __init__(self) -> None:
        self.elements = 0
        self.ancestors = 0
        self.text_ancestors = 0
        self._depth = 0

    @property
    def is_large(self) -> bool:
        return self.elements > _ELEMENTS or self.ancestors > _ANCESTORS or self.text_ancestors > _TEXT_ANCESTORS

    def start(self, name: str, attributes: dict[str, str]) -> None:
        self.elements += 1
        self.ancestors += self._depth
        self._depth += 1
        if len(attributes) > _ATTRIBUTES:
            raise ValueError(f"the element {name} has more than {_ATTRIBUTES} attributes")
        if self._depth > _DEPTH:
            raise ValueError(f"an element is inside more than {_DEPTH} others")

    def end(self, _name: str) -> None:
        self._depth -= 1

    def data(self, text: str) -> None:
        self.text_ancestors += self._depth * len(text)

    def close(self) -> None:
        pass


def _tidy(tree: Any, url: str) -> None:
    """Remove hidden elements, make links absolute, and remove links that are not HTTP or too long."""
    from lxml import html

    library: Any = html  # it has no types
    etree = library.etree
    # lxml removes all elements of a name in linear time. One by one, each removal copies the text before it.
    for element in tree.xpath(_HIDDEN):
        if element is not tree:
            element.tag = _REMOVED
    etree.strip_elements(tree, _REMOVED, *_HIDDEN_NAMES, etree.Comment, with_tail=False)
    for link in tree.xpath("//a[@href]"):
        address = _absolute(link.get("href"), url)
        if address is None:
            link.tag = _REMOVED
        else:
            link.set("href", address)
    etree.strip_tags(tree, _REMOVED)


def _absolute(link: str, url: str) -> str | None:
    """Return a link of the page as an address of the web; None for another or a long one."""
    try:
        address = urljoin(url, link.strip())
    except ValueError:
        return None
    return address if address.startswith(("http://", "https://")) and len(address) <= _LINK else None
