"""Questions in SQL about published marginals, answered with 95% intervals from the public table alone."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from dpsql.errors import DataError
from dpsql.published.cubes import PublishedMarginals
from dpsql.sql.question import per_cell, read_question
from dpsql.text import Z95

if TYPE_CHECKING:
    import numpy as np
    import pandas as pd

MOST_ROWS = 1_000


@dataclass(frozen=True)
class QuestionAnswer:
    """The answer to a question.

    Args:
        keys: of GROUP BY, in the order in which they are written.
        column: that was added up.
        rows: one for each cell of GROUP BY: its keys, the column, `stderr`, `low`, `high`.
        with_null: keys of which `other` holds NULL, too (`dpsql.sql.question.Question`).
    """

    keys: tuple[str, ...]
    column: str
    rows: list[dict[str, Any]]
    with_null: tuple[str, ...]


class TooNoisy(DataError):
    """The published tables do not cover a question, or not as exactly as is wanted."""


def answer_frame(
    marginals: PublishedMarginals, text: str, max_error: float | str | None = None
) -> pd.DataFrame:
    """Answer a question in SQL by a frame; arguments and errors as of `answer`."""
    import pandas as pd  # slow to import

    limit = None if max_error is None else str(max_error)
    return pd.DataFrame(answer(marginals, text, limit).rows)


def answer(
    marginals: PublishedMarginals, text: str, max_error: str | None = None
) -> QuestionAnswer:
    """Answer a question in SQL.

    Args:
        marginals: what is published.
        text: of the question.
        max_error: how far an answer may be off, like `100` rows or `5%` of the total; None: any.

    Raises:
        QueryError: what is wrong with the question.
        DataError: there are too many rows.
        TooNoisy: an answer is further off.
    """
    question = asked_cells(marginals, text)
    column = question.column
    half = math.inf if max_error is None else largest_half(marginals, column, max_error)
    rows = [
        cell | _interval(marginals, column, products, half) for cell, products in question.cells
    ]
    return QuestionAnswer(question.keys, column, rows, question.with_null)


@dataclass(frozen=True, eq=False)
class AskedCells:
    """The cells that a question is about.

    Args:
        keys, column, with_null: as of its answer.
        cells: values of the keys of GROUP BY, and what is counted there as disjoint products.
    """

    keys: tuple[str, ...]
    column: str
    cells: list[tuple[dict[str, str | int], list[dict[int, np.ndarray]]]]
    with_null: tuple[str, ...]


def asked_cells(marginals: PublishedMarginals, text: str) -> AskedCells:
    """Read a question; raises as `answer`."""
    question = read_question(text, marginals.keys)
    column = marginals.column(question.column)
    key_names = list(marginals.keys)
    names = tuple(key_names[key] for key in question.group_keys)
    size = math.prod(len(marginals.keys[name]) for name in names)
    if size > MOST_ROWS:
        raise DataError(
            f"the answer would have {size:,} rows, and at most {MOST_ROWS:,} are given: name fewer keys in GROUP BY"
        )
    return AskedCells(names, column, list(per_cell(question, marginals.keys)), question.with_null)


def largest_half(marginals: PublishedMarginals, column: str, max_error: str) -> float:
    """Return what an answer about a column may be off; raises as `answer`."""
    return _largest(max_error, marginals.estimate(column, [{}]).value)


def interval_row(column: str, value: float, stderr: float) -> dict[str, float]:
    """Return an answer with its error and its 95% interval."""
    half = Z95 * stderr
    return {column: value, "stderr": stderr, "low": value - half, "high": value + half}


def _interval(
    marginals: PublishedMarginals, column: str, products: Any, largest_half: float
) -> dict[str, float]:
    """Estimate one cell of a question.

    Raises:
        DataError: its interval is wider than is wanted, or no measured table covers it.
    """
    estimate = marginals.estimate(column, products)
    half = Z95 * estimate.stderr
    if not half <= largest_half or math.isinf(half):
        problem = (
            f"is ± {half:,.6g} at the 95% level"
            if math.isfinite(half)
            else "is not covered: no measured table has all its keys"
        )
        raise TooNoisy(
            f"a free answer to this {problem}; allow that, or ask for more of it at once"
        )
    return interval_row(column, estimate.value, estimate.stderr)


def _largest(max_error: str, total: float) -> float:
    """Return what an answer may be off, in rows; a share is one of the noisy total.

    Raises:
        DataError: it is no number, or the total is not positive.
    """
    share = max_error.strip().endswith("%")
    try:
        amount = float(max_error.strip().removesuffix("%"))
    except ValueError:
        amount = math.nan
    if not 0 < amount < math.inf:
        raise DataError(
            f"the largest error is {max_error!r}: give a number of rows like 100, or a share of the total like 0.5%"
        )
    if share and not total > 0:
        raise DataError(
            "the noisy total is not positive, so a share of it means nothing: give the largest error in rows"
        )
    return amount * total / 100 if share else amount
