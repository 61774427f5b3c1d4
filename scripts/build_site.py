"""Build the documentation site in ``site/`` from the pages of the repository.

The pages keep their places, so links between them work in the repository and on the site. The table in the
README's section "Documentation" is the navigation; a link to the index of a folder stands for the folder.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Annotated, Any

import typer
import yaml

ROOT = Path(__file__).parent.parent
INDEX = "README.md"
#: Pages and parts of pages are requested only from the site itself: no fonts, scripts or icons of others.
CONFIG: dict[str, Any] = {
    "site_name": "Torana",
    "docs_dir": "pages",
    "site_dir": "site",
    "use_directory_urls": False,
    "theme": {
        "name": "material",
        "font": False,
        "features": ["navigation.indexes", "navigation.top", "search.highlight"],
    },
    "extra": {"generator": False},
    "extra_css": ["docs/site.css"],
}

#: A page, or a section with a title and entries.
Entry = str | dict[str, list["Entry"]]


def navigation() -> list[Entry]:
    """Return the sections of the index. Raises ``SystemExit`` if a page is in none."""
    text = (ROOT / INDEX).read_text(encoding="utf-8").partition("\n## Documentation\n")[2].partition("\n## ")[0]
    introduction, _, table = text.partition("\n|")
    head, _, *rows = [
        line.strip("| ").split(" | ") for line in f"|{table}".splitlines() if line.startswith("|")
    ]
    sections: list[Entry] = [INDEX, *_entries(introduction)]
    for title, column in zip(head, zip(*rows, strict=True), strict=True):
        sections.append({title.capitalize(): _entries("\n".join(column))})
    missing = set(pages()) - set(_flat(sections))
    if missing:
        raise SystemExit(f"not in the section Documentation of {INDEX}: {', '.join(sorted(missing))}")
    return sections


def pages() -> list[str]:
    """Return the pages of the site, relative to the repository."""
    return [str(page.relative_to(ROOT)) for page in (*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"))]


def linked_files() -> list[str]:
    """Return the other files that pages link to, such as examples of configurations."""
    files = {
        (ROOT / page).parent.joinpath(link).resolve()
        for page in pages()
        for link in re.findall(r"\]\(([\w./-]+)\)", (ROOT / page).read_text(encoding="utf-8"))
        if not link.endswith(".md")
    }
    return [str(file.relative_to(ROOT.resolve())) for file in sorted(files) if file.is_file()]


def _entries(text: str, folder: Path = Path()) -> list[Entry]:
    """Return the linked pages in order, and in place of a folder's index a section with its pages."""
    links = [str(folder / link) for link in re.findall(r"\]\(([\w./-]+\.md)\)", text)]
    return [_section(link) if link.endswith("/README.md") else link for link in links]


def _section(index: str) -> Entry:
    text = (ROOT / index).read_text(encoding="utf-8")
    inside = re.sub(r"\]\(\.\./", "](:", text)  # links to other folders do not belong to this section
    title = text.partition("\n")[0].removeprefix("# ")
    return {title: [index, *dict.fromkeys(map(str, _entries(inside, Path(index).parent)))]}


def _flat(entries: list[Entry]) -> list[str]:
    found: list[str] = []
    for entry in entries:
        found += (
            [entry] if isinstance(entry, str) else [page for part in entry.values() for page in _flat(part)]
        )
    return found


def main(out: Annotated[Path, typer.Argument()] = ROOT / "site") -> None:
    """Build the site; a link without a target is an error."""
    build = ROOT / "build" / "site"
    shutil.rmtree(build, ignore_errors=True)
    for page in (*pages(), *linked_files(), *CONFIG["extra_css"]):
        copy = build / "pages" / page
        copy.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(ROOT / page, copy)
    config = build / "mkdocs.yml"
    config.write_text(yaml.safe_dump(CONFIG | {"nav": navigation()}), encoding="utf-8")
    command = [sys.executable, "-m", "zensical", "build", "--strict", "--clean", "--config-file", str(config)]
    done = subprocess.run(command, check=False, stderr=subprocess.PIPE, text=True)
    if done.returncode:
        raise SystemExit(done.stderr.partition("Traceback")[0])
    shutil.rmtree(out, ignore_errors=True)
    shutil.move(build / "site", out)


if __name__ == "__main__":
    typer.run(main)
