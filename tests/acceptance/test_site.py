"""``make docs``: the documentation site."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The directory of the site, which is built in strict mode: a link without a target fails."""
    out = tmp_path_factory.mktemp("site") / "site"
    command = [sys.executable, str(ROOT / "scripts/build_site.py"), str(out)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=240, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return out


@pytest.fixture(scope="module")
def site(built: Path) -> dict[str, str]:
    """The pages of the site."""
    return {str(page.relative_to(built)): page.read_text(encoding="utf-8") for page in built.rglob("*.html")}


def test_every_page_is_on_the_site(site: dict[str, str]) -> None:
    pages = [page.relative_to(ROOT) for page in (*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"))]
    names = {re.sub(r"README\.html$", "index.html", str(page.with_suffix(".html"))) for page in pages}

    assert names | {"404.html"} == set(site)


def test_pages_load_nothing_from_other_sites(site: dict[str, str]) -> None:
    loaded = r"<(?:script|link|img|iframe|source)\b[^>]*\b(?:src|href)=\"?((?:https?:)?//[^\" >]+)"

    assert {name: found for name, page in site.items() if (found := re.findall(loaded, page))} == {}


def test_blocks_inside_of_lists_are_rendered(site: dict[str, str]) -> None:
    paragraphs = {name: re.findall(r"<p>(.*?)</p>", page, re.DOTALL) for name, page in site.items()}
    raw = re.compile(r"```|^(?:-|\d+\.) ", re.MULTILINE)

    assert len(paragraphs["docs/howto/chat-platforms.html"]) > 10
    assert [(name, text) for name, texts in paragraphs.items() for text in texts if raw.search(text)] == []


def test_linked_files_are_on_the_site(built: Path, site: dict[str, str]) -> None:
    links = {
        built.joinpath(name).parent / link
        for name, page in site.items()
        for link in re.findall(r'href="?([\w./-]*deploy/[\w./-]+)', page)
    }
    assert len(links) > 5
    assert [link for link in links if not link.resolve().is_file()] == []
