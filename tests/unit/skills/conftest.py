"""Fixtures for skill folders on a real disk."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

MINIMAL = """\
---
name: tea
description: Brews tea. Use it when someone asks for tea.
---
# Tea

Boil water.
"""


@pytest.fixture
def skills_dir(tmp_path: Path) -> Path:
    directory = tmp_path / "skills"
    directory.mkdir()
    return directory


@pytest.fixture
def write_skill(skills_dir: Path) -> Callable[..., Path]:
    """``write_skill(slug, text, {"references/a.md": "…"})`` makes a folder with these files."""

    def write(slug: str = "tea", text: str | bytes = MINIMAL, files: Mapping[str, str] | None = None) -> Path:
        folder = skills_dir / slug
        folder.mkdir(exist_ok=True)
        data = text.encode() if isinstance(text, str) else text
        (folder / "SKILL.md").write_bytes(data)
        for name, content in (files or {}).items():
            path = folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(content, encoding="utf-8")
        return folder

    return write
