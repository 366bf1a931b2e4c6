"""ToyPlan: every number, and how it is found."""

import hashlib
import json
from dataclasses import asdict, dataclass, replace
from typing import Any, ClassVar

from dpsql.mechanisms.protocol import Plan
from dpsql.parsed_query import ParsedQuery
from dpsql.privacy.curve import round_up, total_mu
from dpsql.sources.config import Source
from dpsql.udfs.grid import Grid


@dataclass(frozen=True, kw_only=True)
class ToyPlan(Plan):
    """One noisy number per window."""

    mechanism: ClassVar[str] = "toy"

    sigma: float

    @property
    def grid(self) -> Grid:
        """A window is released once, at its end."""
        window = self.query.windows
        return Grid(window.size_us, window.size_us, window.offset_us, window.size_us, 1)


def make_plan(query: ParsedQuery[None], source: Source) -> ToyPlan:
    """The least noise that keeps the promise."""
    mu = total_mu(query.epsilon, query.delta * (1 - 1e-9))
    plan = ToyPlan(
        query=query,
        epsilon=query.epsilon,
        delta=query.delta,
        mu=mu,
        arguments=(),
        sigma=round_up(1 / mu),
        identity="",
    )
    return replace(
        plan,
        identity=hashlib.sha256(json.dumps(document(plan), sort_keys=True).encode()).hexdigest(),
    )


def document(plan: ToyPlan) -> dict[str, Any]:
    """As JSON values."""
    return {"mechanism": plan.mechanism} | asdict(plan)
