"""The error for invalid arguments of a tool is short, and takes little time."""

from __future__ import annotations

import pytest
from pydantic import BaseModel, ConfigDict, ValidationError
from pydantic_ai.exceptions import ModelRetry

from torana.agent.tool_errors import bound_argument_error


class Arguments(BaseModel):
    model_config = ConfigDict(extra="forbid")


def error_of(count: int) -> ValidationError:
    with pytest.raises(ValidationError) as raised:
        Arguments.model_validate({f"n{number}": 0 for number in range(count)})
    return raised.value


def test_few_faults_are_listed() -> None:
    error = error_of(3)
    assert bound_argument_error(error) is error


def test_many_faults_are_counted() -> None:
    bounded = bound_argument_error(error_of(9_900))
    assert isinstance(bounded, ModelRetry)
    assert bounded.message.startswith("9,900 values or names are invalid")
