"""A plan of sliding windows in sentences."""

from __future__ import annotations

import math

from dpsql.mechanisms.sliding.accounting import account
from dpsql.mechanisms.sliding.asked import PaneGrouping, SlidingCounter, Smoothing
from dpsql.mechanisms.sliding.plan import SlidingPlan
from dpsql.mechanisms.sliding.planner import panes_beat_window_sqrt
from dpsql.privacy.cost import Cost
from dpsql.privacy.curve import epsilon_of

COMPARED_DELTA = 1e-9
EVENTS = (10, 100)


def sentences(plan: SlidingPlan, stream: str) -> list[str]:
    """What is promised and how exact it is, a sentence each; the first ones are the promise."""
    return [*_promise(plan, stream), *_errors(plan), *_beside(plan)]


def _promise(plan: SlidingPlan, stream: str) -> list[str]:
    asked, cost = plan.asked, account(plan)
    promise = f"epsilon {asked.epsilon:g}, delta {asked.delta:g}"
    out = []
    if asked.bounds is None:
        ten, hundred = (_epsilon(cost, n, asked.delta) for n in EVENTS)
        out += [
            f"protects one event (one row of `{stream}`): {promise}, for the whole infinite output.",
            f"Not one person: a person with {EVENTS[0]} events has epsilon {ten:.4g}, with {EVENTS[1]} events epsilon {hundred:.4g}.",
            f"Changing an event instead of adding it: epsilon {_epsilon(cost, 2, asked.delta):.4g}.",
        ]
    else:
        two = _epsilon(cost, 2, 2 * asked.delta)
        out += [
            f"protects everything that one privacy unit does in one contribution period: {promise}, for the whole infinite output.",
            f"A span as long as a period can touch two of them: epsilon {two:.4g}.",
        ]
    if not asked.delta:
        out.append("delta is 0 for ideal random words; they come from a pseudo-random function (AES), as all noise does.")
    return out


def _epsilon(cost: Cost, n: int, delta: float) -> float:
    together = cost.periods(n)
    return together.epsilon if not together.mu2 else epsilon_of(math.sqrt(together.mu2), delta - together.failure)


def _errors(plan: SlidingPlan) -> list[str]:
    asked, out = plan.asked, []
    for aggregate, m in zip(asked.aggregates, plan.measurements, strict=False) if len(asked.aggregates) == len(plan.measurements) else ():
        if m.half_width is not None:
            width = f"within {m.half_width:.6g} of the truth with probability 0.95, whatever the stream"
            out.append(f"{aggregate.alias}: unbiased, standard error {m.stderr:.4g}, {width}.")
        else:
            out.append(
                f"{aggregate.alias}: panes that have not been measured are predicted; no error bar covers that without an assumption."
            )
    if asked.smoothing is Smoothing.LIMITED_TRANSLATION:
        out.append("The smoothed column is the better guess and costs no budget; the interval is that of the unsmoothed one.")
    if asked.grouping is PaneGrouping.RETROACTIVE:
        out.append("RETROACTIVE is worse than counter = PANES without grouping on every stream that was tried.")
    return out


def _beside(plan: SlidingPlan) -> list[str]:
    """The other counter's error, for one COUNT."""
    asked = plan.asked
    if asked.bounds is not None or asked.grouping is not PaneGrouping.NONE:
        return []
    delta = asked.delta or COMPARED_DELTA
    panes, correlated = panes_beat_window_sqrt(asked, delta)
    smaller = SlidingCounter.PANES if panes < correlated else SlidingCounter.WINDOW_SQRT
    return [
        f"A COUNT's standard error: PANES with delta 0 {panes:.4g}, WINDOW_SQRT with delta {delta:g} {correlated:.4g}; {smaller} is smaller here."
    ]
