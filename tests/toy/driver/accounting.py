"""What a plan costs, from its numbers and the definition: nothing of the planner."""

from dpsql.errors import AccountingError
from dpsql.parsed_query import PrivacyLevel
from dpsql.privacy.cost import Cost, Overlap
from dpsql.sources.config import Source
from tests.toy.driver.plan import ToyPlan


def account(plan: ToyPlan, source: Source) -> Cost:
    """A unit changes one number by 1 (tests/toy/toy.md)."""
    mu2 = plan.sigma**-2
    cost = Cost(PrivacyLevel.USER, mu2, 0.0, 0.0, Overlap.NONE, mu2, 0.0)
    if not cost.delta(plan.epsilon) <= plan.delta:
        raise AccountingError("the noise is too small")
    return cost
