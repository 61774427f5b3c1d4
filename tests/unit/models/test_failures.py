"""The errors of failed requests."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable

import pytest
from pydantic_ai.exceptions import FallbackExceptionGroup, ModelAPIError

from torana.models.failures import release


class Long:
    """A long response."""


def single(error: ModelAPIError) -> Exception:
    return error


def group(error: ModelAPIError) -> Exception:
    return FallbackExceptionGroup("all failed", [error])


@pytest.mark.parametrize("failure", [single, group])
def test_released_error_holds_neither_frames_nor_causes(failure: Callable[[ModelAPIError], Exception]) -> None:
    freed: list[weakref.ref[Long]] = []

    def parse() -> None:
        response = Long()
        freed.append(weakref.ref(response))
        error = ValueError("bad")
        error.add_note("an error in its own frame is a cycle")
        raise error

    def request() -> None:
        try:
            parse()
        except ValueError as error:
            raise ModelAPIError("m", "failed") from error

    gc.disable()
    try:
        with pytest.raises(ModelAPIError) as caught:
            request()
        kept = failure(caught.value)
        assert freed[0]() is not None
        release(kept)
        assert freed[0]() is None
    finally:
        gc.enable()
