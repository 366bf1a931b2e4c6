"""Plan the figures of what the contribution limits leave out: which a query has, what one unit adds to each, and its noise.

A figure is a sum over units that is released once per window, at its last trigger (docs/privacy/histogram.md, theorem 31). A unit's left-out keys
and records are counted up to twice as many as may count of it: what a few very active units did beyond that stays out of sight, and the noise small.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from dpsql.parsed_query import (
    AggregateFunction,
    ContributionPeriod,
    CounterName,
    ParsedQuery,
    PerGroup,
)
from dpsql.privacy.curve import round_down, round_up
from dpsql.udfs.intake.left_out import FigureLimits

SHARE = 0.01
MOST_SHARES = 0.05
"""Shares of the budget: of one figure, and of all together at most."""
FIGURES_OF_ROWS = 4
"""Figures of a query that counts records: units, units over a limit, records, and those left out."""
LEAST_UNITS = 40
"""Deviations of a count of units: where a source has fewer units, no figure would say anything."""
OF_ONE_ROW = "one row is protected, and none is refused"
BEYOND = 2
"""A unit's left-out keys or records are counted up to so many times those that may count."""


@dataclass(frozen=True, kw_only=True)
class FigurePlan:
    """One figure.

    Args:
        name: among `dpsql.udfs.intake.left_out.FIGURES`.
        bound: what one unit adds in one period, at most.
        noise_stream: its number in the noise function.
        sigma: standard deviation of its noise.
    """

    name: str
    bound: int
    noise_stream: int
    sigma: float

    @property
    def stderr(self) -> float:
        """Standard deviation of the noise, the rounding to whole numbers included."""
        return math.sqrt(self.sigma**2 + 1 / 12)


@dataclass(frozen=True, kw_only=True)
class FigurePlans:
    """The figures of a plan; where there are none, `reason` says why."""

    figures: tuple[FigurePlan, ...] = ()
    reason: str = ""

    @property
    def share(self) -> float:
        """Share of mu^2 of all together."""
        return share_of(len(self.figures))

    @property
    def limits(self) -> FigureLimits | None:
        """The most that the intake counts of one unit; None: it counts nothing."""
        if not self.figures:
            return None
        bounds = {figure.name: figure.bound for figure in self.figures}
        return FigureLimits(
            bounds.get("pairs_left_out", 0),
            bounds.get("rows_left_out", 0),
            "values_clamped" in bounds,
        )


def reason_for_none(query: ParsedQuery[Any]) -> str:
    """Return why a query can have no figures; empty where it can."""
    choices = query.asked
    if not query.privacy_unit:
        return OF_ONE_ROW
    if query.window and query.windows.slide_us < query.windows.size_us:
        return "windows slide"
    if not query.once and query.contribution_period is ContributionPeriod.STREAM:
        return "a unit's limits are for the whole stream"
    if choices.counter is CounterName.HONAKER or choices.release == "RESELECT":
        return "rounds have none"
    if choices.carry_windows > 1:
        return "windows prove keys together, and have rows without records"
    return ""


def bounds_of(query: ParsedQuery[Any]) -> dict[str, int]:
    """Return what one unit adds to each figure of a query, at most; nothing where no record is refused or changed."""
    choices = query.asked
    keys = int(min(choices.max_rows_contributed, choices.max_groups_contributed))
    rows = min(
        choices.max_rows_contributed, choices.max_groups_contributed * choices.max_rows_per_group
    )
    functions = [aggregate.function for aggregate in query.aggregates]
    bounds = dict[str, int]()
    is_people = AggregateFunction.COUNT_DISTINCT_UNIT in functions or rows == math.inf
    are_per_group = {isinstance(each, PerGroup) for each in query.aggregates if each.bounds}
    if query.keys and (is_people or True in are_per_group):
        bounds |= {"pairs": keys, "pairs_left_out": BEYOND * keys}
    if rows < math.inf:
        bounds |= {"rows": int(rows), "rows_left_out": BEYOND * int(rows)}
    if are_per_group:
        clamped_rows = int(rows) if False in are_per_group else 0
        bounds["values_clamped"] = clamped_rows + keys * (True in are_per_group)
    return {"units": 1, "units_over": 1} | bounds if bounds else {}


def plan_figures(query: ParsedQuery[Any], max_users: int, mu: float, first: int) -> FigurePlans:
    """Plan the figures of a query.

    Args:
        query: what is choices.
        max_users: of the source.
        mu: of the whole plan.
        first: number of their noise, above those of all aggregates.
    """
    reason = reason_for_none(query)
    bounds = {} if reason else bounds_of(query)
    if not bounds:
        return FigurePlans(reason=reason or "they leave nothing out")
    share = share_of(len(bounds)) / len(bounds)
    if max_users < LEAST_UNITS / (mu * math.sqrt(share)):
        return FigurePlans(reason=f"{max_users:,} units are too few")
    figures = tuple(
        FigurePlan(
            name=name,
            bound=bound,
            noise_stream=first + number,
            sigma=round_up(bound / (mu * math.sqrt(share)) * (1 + 1e-12)),
        )
        for number, (name, bound) in enumerate(bounds.items())
    )
    return FigurePlans(figures=figures)


def mu_beside(plans: FigurePlans, mu: float) -> float:
    """Return what the figures leave of mu."""
    return round_down(mu * math.sqrt(1 - plans.share)) if plans.figures else mu


def share_of(figures: int) -> float:
    """Return the share of mu^2 that so many figures take together."""
    return min(figures * SHARE, MOST_SHARES)
