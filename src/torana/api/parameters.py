"""Parameters that many paths take."""

from __future__ import annotations

from typing import Annotated

from fastapi import Path, Query

from torana.paging import LARGEST_PAGE

Id = Annotated[str, Path(max_length=100)]
After = Annotated[str, Query(description="The `next` of the page before.", max_length=200)]
Limit = Annotated[
    str,
    Query(
        description=f"How many at most: 1 to {LARGEST_PAGE}, else the nearest.",
        max_length=20,
        json_schema_extra={"pattern": "^[0-9]+$"},
    ),
]
