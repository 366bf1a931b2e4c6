"""The ways to ask for the same windows of listed keys: error of one COUNT, what 30 days cost, when rows appear, and what to write."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from dpsql.parsed_query import ContributionPeriod, CounterName, ParsedQuery
from dpsql.parts.left_out import FIGURES_OF_ROWS, share_of
from dpsql.privacy.cost import gamma, touched_in_days
from dpsql.privacy.curve import epsilon_of, total_mu
from dpsql.sql.time_rules import MOST_PANES, SUMS
from dpsql.times import duration, show_duration
from dpsql.udfs.noise.counters import column_norm, counter, path_sd
from dpsql.udfs.noise.discrete_laplace import LARGEST, SMALLEST, discrete_laplace
from dpsql.udfs.noise.window_sqrt import coefficients, response

COMPARED_DELTA = 1e-9
"""Delta of the ways that need one, where the query has none."""

MONTH = 30


@dataclass(frozen=True, kw_only=True)
class Ways:
    """Panes without a delta, panes with one, and a window of its own, in which a record is copied into every window that it is in.

    Args:
        query: what is asked, by either mechanism.
        rows: of the protected unit in one contribution period.
        per_key: c, of these with one key.
        query_way: PANES, WINDOW_SQRT, or the counter of a window of its own.
    """

    query: ParsedQuery[Any]
    rows: float
    per_key: float
    query_way: CounterName

    @property
    def event(self) -> bool:
        """Whether one row is protected, and no unit: it has no period."""
        return not self.query.privacy_unit

    @property
    def renews(self) -> bool:
        """Whether a unit's limits are for each window anew."""
        return not self.event and self.query.contribution_period is ContributionPeriod.WINDOW

    @property
    def panes(self) -> int:
        """Slides of a window."""
        return self.query.windows.size_us // self.query.windows.slide_us

    @property
    def delta(self) -> float:
        """The query's, or one to compare with."""
        return self.query.delta or COMPARED_DELTA

    @property
    def exist(self) -> bool:
        """Whether panes could take the query, with this epsilon."""
        are_whole_panes = (
            self.query.windows.size_us % self.query.windows.slide_us == 0
            and self.panes <= MOST_PANES
        )
        return (
            are_whole_panes
            and SMALLEST <= self.query.epsilon / self.rows <= LARGEST
            and all(a.function in SUMS for a in self.query.aggregates)
        )

    @cached_property
    def errors(self) -> dict[str, float]:
        """Standard error of a COUNT alone, by way."""
        panes = self.panes
        c = coefficients(self.panes)
        mu = total_mu(self.query.epsilon, self.delta)
        rows = math.sqrt(self.per_key * self.rows)
        of_window = math.sqrt(math.fsum(v * v for v in c)) * float(
            np.linalg.norm(response(panes, c).window)
        )
        # A window of its own is released again and again, by a counter; this is its last release.
        counts = counter(
            CounterName.BLT,
            -(
                -(self.query.windows.size_us + self.query.allowed_lateness_us)
                // self.query.trigger_interval_us
            ),
        )
        # Windows of their own that do not slide say what their limits leave out
        figures = FIGURES_OF_ROWS if panes == 1 and self.renews else 0
        mu_of_copies = mu * math.sqrt(1 - share_of(figures))
        return {
            "panes": math.sqrt(panes * discrete_laplace(self.query.epsilon / self.rows).variance),
            "window_sqrt": rows * of_window / mu,
            "copies": rows
            * math.sqrt(panes)
            * column_norm(counts)
            * path_sd(counts)[-1]
            / mu_of_copies,
        }

    def month(self) -> dict[str, float]:
        """Return the epsilon of one unit in 30 days, by way; infinite where nothing is promised,
        empty where one period has them all."""
        window = self.query.windows
        n = touched_in_days(MONTH, window.size_us, window.offset_us)
        if not self.renews or n < 2:
            return {}
        mu2 = total_mu(self.query.epsilon, self.delta) ** 2
        meet = 2.0 if self.panes > 1 else 1.0
        times = {"window_sqrt": gamma(coefficients(self.panes), self.panes), "copies": meet}
        delta = n * self.delta
        return {"panes": n * self.query.epsilon} | {
            way: epsilon_of(math.sqrt(n * many * mu2), delta) if delta < 1 else math.inf
            for way, many in times.items()
        }

    def describe(self) -> tuple[str, ...]:
        """Return a line for each way that takes the query; none where there is one alone."""
        if not self.exist:
            return ()
        query = self.query
        slides = self.panes > 1
        costs = self.month()
        errors = {
            way: f"{error:.4g}" + (f", epsilon {costs[way]:.4g} in {MONTH} days" if costs else "")
            for way, error in self.errors.items()
        }
        lateness = (
            -(-query.allowed_lateness_us // query.windows.slide_us) * query.windows.slide_us
        )  # panes are late as a whole
        late = f" and {duration(lateness)}" if lateness else ""
        end = f"once, at the window's end{late}"
        interval = show_duration(query.trigger_interval_us)
        level = ", privacy_level = EVENT" if self.event else ""
        copies_text = (
            f", a copy of every record in each of its {self.panes} windows" if slides else ""
        )
        ways = {
            CounterName.PANES: f"delta = 0{level}, no trigger_interval: {errors['panes']}; {end}"
        }
        if slides or self.event:
            ways[CounterName.WINDOW_SQRT] = (
                f"delta = {self.delta:g}{level}, no trigger_interval: {errors['window_sqrt']}; {end}"
            )
        ways[CounterName.BLT] = (
            f"delta = {self.delta:g}{level}, trigger_interval = '{interval}'{copies_text}: {errors['copies']}; at every trigger"
        )
        return (
            "Other ways to ask: the standard error of one COUNT, what it costs, when rows are released.",
            *(
                f"{way}.{' This query.' if name is self.query_way else ''}"
                for name, way in ways.items()
            ),
        )
