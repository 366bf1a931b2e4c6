"""What a failing step says of itself: the kind of error, and nothing of a record."""

import traceback
from collections.abc import Iterator

import pandas as pd
import pytest

from dpsql.streaming.failures import _python_kind
from dpsql.udfs.worker import StepError, without_values


def failing(key: tuple[int], frames: list[pd.DataFrame], state: object) -> Iterator[pd.DataFrame]:
    yield frames[0]
    raise ValueError(f"cannot convert {frames[0]['user'][0]!r}")


def test_an_error_of_a_step_quotes_no_record() -> None:
    rows = without_values(failing)((1,), [pd.DataFrame({"user": ["planted-user"]})], None)
    assert next(rows)["user"][0] == "planted-user"
    with pytest.raises(StepError) as told:
        next(rows)
    text = "".join(traceback.format_exception(told.value))
    assert "planted-user" not in text
    assert _python_kind(text) == "ValueError"
    with pytest.raises(ValueError, match="planted-user"):  # without it, it would
        list(failing((1,), [pd.DataFrame({"user": ["planted-user"]})], None))
