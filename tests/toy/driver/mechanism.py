"""All of it as one value of `dpsql.mechanisms.protocol.Mechanism`."""

from collections.abc import Iterator, Sequence
from typing import Any

from dpsql.description import NoiseKind, Role
from dpsql.errors import Problem
from dpsql.explanation import BudgetShares, Explanation, Limits, gaussian
from dpsql.mechanisms.explanations import column, listed_keys, protects, times
from dpsql.mechanisms.protocol import Mechanism, PublicColumn, RunFacts, Shape, TableFacts
from dpsql.schedule import by_window
from dpsql.sources.config import Source
from dpsql.sql import clause_rules, options
from dpsql.sql.draft import Draft
from dpsql.udfs.stage import Clock, Stage, Tick
from tests.toy.driver import accounting, plan
from tests.toy.driver.plan import ToyPlan
from tests.toy.worker.stages import CONTRIBUTIONS, DROPS, ToyIntake, ToyRelease

OWN = options.whole_option("toy = 1", "nothing", "required", 1)
"""Who writes it asks for the toy."""


def required(draft: Draft) -> Iterator[Problem]:
    """Options without a default."""
    yield from clause_rules.missing_options(
        draft, (options.EPSILON, options.DELTA, options.PRIVACY_UNIT_COLUMN)
    )


def claims(draft: Draft) -> bool:
    return any(given.name == OWN.name for given in draft.entries)


def read(draft: Draft) -> None:
    return None


def explanation(plan: ToyPlan, source: Source) -> Explanation:
    query = plan.query
    columns = [column(each, [gaussian(1, "value", plan.sigma)]) for each in query.aggregates]
    return Explanation(
        protects=protects(plan, accounting.account(plan, source)),
        when=times(query, by_window(plan.grid), 1),
        limits=Limits(1, 1, 1, source.max_users),
        keys=listed_keys(query),
        columns=tuple(columns),
        budget=BudgetShares(mu=plan.mu, noisy_numbers=1, delta_noise=plan.delta),
        identity=plan.identity,
    )


def missing(plan: ToyPlan) -> tuple[str, dict[str, Any]]:
    return "Every window is shown.", {}


def shape(plan: ToyPlan) -> Shape:
    alias = plan.query.aggregates[0].alias
    return Shape(
        schedule=by_window(plan.grid),
        arguments=(),
        listed=True,
        contributions=CONTRIBUTIONS,
        state={stage.operator: stage.tables for stage in (ToyIntake, ToyRelease)},
        columns=(PublicColumn(alias, alias, "BIGINT", "c0", Role.VALUE),),
        facts=TableFacts(noise=NoiseKind("NONE", None), bounds=(1, 1, 1), sums=1),
        drops=DROPS,
        forgets_us=0,
    )


def make_stages(plan: ToyPlan, run: RunFacts) -> tuple[Stage[Clock], Stage[Sequence[Tick]]]:
    if run.public is None:
        raise ValueError("the one group is listed")
    return ToyIntake(plan.grid, run.public), ToyRelease(plan.grid, run.public, plan.sigma)


TOY = Mechanism[None, ToyPlan](
    name=ToyPlan.mechanism,
    takes="queries with toy = 1",
    options=(
        options.EPSILON,
        options.DELTA,
        options.PRIVACY_UNIT_COLUMN,
        options.CONTRIBUTION_PERIOD,
        options.TRIGGER_INTERVAL,
        options.ALLOWED_LATENESS,
        OWN,
    ),
    rules=(required,),
    claims=claims,
    read=read,
    plan=plan.make_plan,
    account=accounting.account,
    document=plan.document,
    explanation=explanation,
    missing=missing,
    shape=shape,
    stages=make_stages,
)
"""`SELECT WITH DIFFERENTIAL_PRIVACY OPTIONS (toy = 1, ...) COUNT(DISTINCT unit) AS n FROM ... GROUP BY window(...)`."""
