"""The text of a page of HTML, read in a worker process.

It imports nothing of ours, so that it starts fast and has nothing of ours in it: what it is given comes from
strangers.
"""

from __future__ import annotations

from typing import Any

#: Elements of a page of which the main part is still looked for; of a larger one all text is taken.
_ELEMENTS = "40000"
#: What is taken for the main part of a page has at least this share of its text.
_SHARE = 0.1
#: Characters that are handed on: links that are made whole can be more than the page.
_WRITTEN = 200_000
#: What a reader of the page does not see.
_HIDDEN = (
    "//*[@hidden or @aria-hidden='true'"
    " or contains(translate(@style, ' ', ''), 'display:none')"
    " or contains(translate(@style, ' ', ''), 'visibility:hidden')"
    " or contains(translate(@style, ' ', ''), 'font-size:0')]"
    " | //template | //noscript | //script | //style | //comment()"
)


def read_bounded(html: str, url: str) -> dict[str, str]:
    """Read as ``read`` does; return the beginnings of the title and the text."""
    title, text = read(html.encode("utf-8", "replace").decode(), url)
    return {"title": title[:_WRITTEN], "text": text[:_WRITTEN]}


def read(html: str, url: str) -> tuple[str, str]:
    """Title and text, in Markdown, with links that are whole."""
    from trafilatura import extract, html2txt
    from trafilatura.settings import use_config

    tree = _parsed(html)
    if tree is None:
        return "", ""
    title = tree.findtext(".//title") or ""
    _tidy(tree, url)
    config = use_config()
    config.read_dict({"DEFAULT": {"MAX_TREE_SIZE": _ELEMENTS, "MIN_EXTRACTED_SIZE": "1"}})
    wanted: Any = {"output_format": "markdown", "include_links": True, "favor_recall": True}
    main_part = extract(tree, url=url, config=config, **wanted) or ""
    everything = html2txt(tree)
    return title, main_part if len(main_part) > _SHARE * len(everything) else everything


def _parsed(html: str) -> Any:
    """The tree of the page's elements; None where there are none."""
    from lxml import html as library

    parser: Any = library  # it has no types
    try:
        return parser.document_fromstring(html.encode(), parser=parser.HTMLParser(encoding="utf-8"))
    except parser.etree.ParserError:
        return None


def _tidy(tree: Any, url: str) -> None:
    """Take out what is hidden; let every link be whole, and be one of the web."""
    for element in tree.xpath(_HIDDEN):
        if element.getparent() is not None:
            element.drop_tree()
    tree.make_links_absolute(url, resolve_base_href=False, handle_failures="discard")
    for link in tree.xpath("//a[@href]"):
        if not link.get("href").startswith(("http://", "https://")):
            link.drop_tag()
