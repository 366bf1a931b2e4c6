"""The histogram as a mechanism."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from dpsql.config import Source
from dpsql.description import Noise
from dpsql.mechanisms.histogram import accounting, options, plan, rules
from dpsql.mechanisms.histogram.asked import Asked
from dpsql.mechanisms.histogram.plan import PrivacyPlan
from dpsql.mechanisms.protocol import Argument, RunFacts, Shape, Told, value_and_error
from dpsql.parsed_query import ContributionPeriod, ParsedQuery, PrivacyLevel
from dpsql.privacy.cost import Cost
from dpsql.schedule import by_window
from dpsql.sql.window_rules import made_of_panes

if TYPE_CHECKING:
    from dpsql.sql.draft import Draft, Option
    from dpsql.sql.rules import Rule
    from dpsql.udfs.stage import Clock, Stage, Tick


class Histogram:
    """`GROUP BY window(...)` with keys or none (docs/privacy/histogram.md)."""

    name: str = PrivacyPlan.mechanism
    takes: str = "queries that protect users, with a window"
    options: tuple[Option, ...] = options.OPTIONS
    rules: tuple[Rule, ...] = rules.RULES

    def claims(self, draft: Draft) -> bool:
        """A query with a window that protects users with a delta, unless panes make its windows, or it writes an option of another mechanism alone."""
        elsewhere = draft.sketches or draft.value("privacy_level") is PrivacyLevel.EVENT or draft.value("delta") == 0
        others = {option.name for option in draft.options} - {option.name for option in self.options}
        return bool(draft.window_calls) and not elsewhere and not made_of_panes(draft) and not any(map(draft.given, others))

    def read(self, draft: Draft) -> Asked:
        """Bounds, key selection and release."""
        return options.read(draft)

    def plan(self, query: ParsedQuery[Asked], source: Source) -> PrivacyPlan:
        """Every number."""
        from dpsql.mechanisms.histogram.planner import make_plan

        return make_plan(query, source)

    def account(self, plan: PrivacyPlan, source: Source) -> Cost:
        """From the bounds and the counter's measured response."""
        return accounting.account(plan, source)

    def document(self, plan: PrivacyPlan) -> Mapping[str, Any]:
        """As run.json has it."""
        return plan_document(plan)

    def explain(self, plan: PrivacyPlan, source: Source) -> str:
        """All of it in sentences."""
        from dpsql.mechanisms.histogram.explain import explain

        return explain(plan, source)

    def facts(self, plan: PrivacyPlan, source: Source) -> dict[str, Any]:
        """The public numbers."""
        from dpsql.mechanisms.histogram.explain import facts

        return facts(plan, source)

    def missing(self, plan: PrivacyPlan) -> tuple[str, dict[str, Any]]:
        """How many units a key needs."""
        from dpsql.mechanisms.histogram.missing_keys import facts, why_missing

        return why_missing(plan), facts(plan)

    def shape(self, plan: PrivacyPlan) -> Shape:
        """Windows with their triggers; each aggregate and its error bar."""
        from dpsql.mechanisms.histogram.stages import admission_stage, grid
        from dpsql.udfs.histogram.stages import ReleaseStage, release_tables
        from dpsql.udfs.intake.contribution_bounding import DROP_REASONS
        from dpsql.udfs.intake.stages import AdmissionStage

        query = plan.query
        return Shape(
            schedule=by_window(grid(plan)),
            arguments=tuple(map(Argument, plan.arguments, plan.presence_only)),
            listed=plan.selection is None,
            contributions=admission_stage(plan).gives,
            state={AdmissionStage.operator: AdmissionStage.tables, ReleaseStage.operator: release_tables(plan.carries)},
            columns=tuple(made for i, column in enumerate(plan.columns) for made in value_and_error(column.aggregate, i)),
            told=Told(
                noise=Noise(query.asked.counter, plan.horizon),
                bounds=(query.asked.max_rows_contributed, query.asked.max_rows_per_group, query.asked.max_groups_contributed),
                sums=len(plan.perturbations),
                units_needed=None if plan.selection is None else plan.selection.users_needed(plan.horizon),
                grids={c.aggregate.alias: c.perturbations[0].grid for c in plan.columns if len(c.perturbations) == 1},
            ),
            drops=DROP_REASONS,
            # An allowance is for one period, which is one window long.
            forgets_us=query.windows.size_us if query.contribution_period is ContributionPeriod.WINDOW else None,
            carries=plan.carries,
        )

    def stages(self, plan: PrivacyPlan, run: RunFacts) -> tuple[Stage[Clock], Stage[Sequence[Tick]]]:
        """Contribution bounding; key selection and perturbation."""
        from dpsql.mechanisms.histogram.stages import stages

        return stages(plan, run.public, run.first_window_us)


plan_document = plan.document
HISTOGRAM = Histogram()
