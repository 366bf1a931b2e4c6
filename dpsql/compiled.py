"""A compiled query, with the plan that the accountant has passed."""

from __future__ import annotations

import html
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from typing import Any

from dpsql.description import Published
from dpsql.errors import AccountingError, ConfigError
from dpsql.explanation import Explanation
from dpsql.mechanisms import registry
from dpsql.mechanisms.describe import described
from dpsql.mechanisms.protocol import Mechanism, RunFacts, Shape
from dpsql.parsed_query import AS_RELEASED, ONE_WINDOW, ParsedQuery, PrivacyLevel, Reading
from dpsql.privacy.ledger_line import Line
from dpsql.privacy.origin import Origin
from dpsql.sources.config import Source, load_sources
from dpsql.sources.reader_options import batch_limits, passed_over, refused_format, refused_option
from dpsql.sources.time_units import time_reading
from dpsql.udfs.grid import NO_CLOCK
from dpsql.udfs.keys import PublicGroups

UNTIL = "--until TIME (with --until-caught-up)"
"""How a start of a run is told until when."""


PER_WINDOW = "By {} each window has an allowance of its own, and the promise is per window."
"""Said of a one-time release by a key that cuts the event time."""

AT_ONCE = "{} of the source does not hold: all records are read as one micro-batch."
"""Said of a one-time release from a source with limits for live runs."""


@dataclass(frozen=True)
class Query:
    """One accepted query with its checked plan; frozen."""

    text: str
    sources: Mapping[str, Source]
    parsed: ParsedQuery[Any]
    plan: Any
    reading: Reading = AS_RELEASED

    def __repr__(self) -> str:
        plan = self.plan
        return f"<Query on {self.parsed.stream}: epsilon {plan.epsilon:g}, delta {plan.delta:g}; print(query.explain())>"

    def _repr_html_(self) -> str:
        """Return what a notebook shows."""
        return f"<pre style='font-family: monospace'>{html.escape(self.explain())}</pre>"

    @property
    def mechanism(self) -> Mechanism[Any, Any]:
        """Whose query it is."""
        return registry.mechanism_named(self.parsed.mechanism)

    @property
    def shape(self) -> Shape:
        """The facts that engines and the lake need of the plan."""
        return self.mechanism.shape(self.plan)

    @property
    def published(self) -> Published:
        """The description of its public table."""
        return described(self.plan, self.shape, self.reading)

    @property
    def protects(self) -> PrivacyLevel:
        """Who or what is protected."""
        return self.mechanism.account(self.plan, self.source).protects

    @property
    def source(self) -> Source:
        """The stream that the query reads."""
        return self.sources[self.parsed.stream]

    def facts(self, public: PublicGroups | None) -> RunFacts:
        """Return what a first run of it knows; `public`: its listed groups."""
        shape = self.shape
        start = self.source.start_us
        return RunFacts(
            public, shape.schedule.window_of(start) if shape.carries and start is not None else None
        )

    def until_us(self, asked_us: int | None, option: str = "until") -> int | None:
        """Return up to when triggers are released: what was asked for, or the only trigger of a one-time release.

        Args:
            asked_us: by the user; None: nothing was.
            option: how she says it.

        Raises:
            ConfigError: a one-time release was asked for a part of its records.
        """
        if not self.parsed.once:
            return asked_us
        due_us = ONE_WINDOW.offset_us + ONE_WINDOW.size_us
        if asked_us not in (None, due_us):
            time = self.source.event_time or "ts"
            raise ConfigError(
                f"a one-time release covers all records: omit {option}, or write WHERE {time} < TIMESTAMP '2026-02-01'"
            )
        return due_us

    def check_ends(self, until_caught_up: bool) -> None:
        """Refuse a live run of a one-time release; asked before anything is spent.

        Raises:
            ConfigError: it is one.
        """
        if self.parsed.once and not until_caught_up:
            time = self.source.event_time or "ts"
            raise ConfigError(
                "this query makes a one-time release: add --until-caught-up; to keep releasing, "
                f"GROUP BY window({time}, '1 day') or set trigger_interval = '1 day'"
            )

    def long_wait(self, option: str, until_us: int, closed_us: int = NO_CLOCK) -> str:
        """Say before a release that it is long, where nobody has said until when.

        Args:
            option: says until when, as in `--until TIME`.
            until_us: up to when triggers are to be closed.
            closed_us: up to when they are closed already.

        Returns:
            A sentence; empty where few windows and triggers are due, or only those with records.
        """
        shape = self.shape
        start_us = self.source.start_us
        has_many = shape.listed or shape.schedule.replayed
        if start_us is None or self.parsed.once or not has_many:
            return ""
        many = shape.schedule.many(until_us, start_us, closed_us)
        return (
            many
            and f"releasing {many}, with or without records; where stored records end earlier, give {option}"
        )

    def document(self) -> dict[str, Any]:
        """Return the plan as JSON values, for people to read, and how its rows are shown."""
        said = {"reading": asdict(self.reading)} if self.reading != AS_RELEASED else {}
        return dict(self.mechanism.document(self.plan)) | said

    def line(self, run_id: str, kind: str, origin: Origin) -> Line:
        """Return the ledger line of a new run, dated now.

        Args:
            run_id: of the run.
            kind: `run`, `try`, `compare` or `local`.
            origin: whose data, under which cap.
        """
        plan = self.plan
        grid = self.shape.schedule.grid
        size_us, offset_us = plan.period or (grid.window_us, grid.offset_us)
        return Line(
            ledger=self.source.ledger,
            source=self.source.name,
            unit=self.source.privacy_unit,
            cost=self.mechanism.account(plan, self.source),
            period=self.parsed.contribution_period.value,
            size_us=size_us,
            offset_us=offset_us,
            declared_epsilon=plan.epsilon,
            declared_delta=plan.delta,
            query_identity=plan.identity,
            run_id=run_id,
            kind=kind,
            created=datetime.now(UTC).isoformat(timespec="seconds"),
            origin=origin,
        )

    @property
    def defaults(self) -> Mapping[str, Any]:
        """Values of the options that the text does not have and that decide about noise or limits; None: it has them."""
        from dpsql.sql.defaults import defaults_of  # slow to import

        return defaults_of(self.text, self.sources, registry.MECHANISMS)

    @property
    def explanation(self) -> Explanation:
        """The guarantee, the noise of each column and the units that a key needs."""
        from dpsql.sql.parse import time_cuts_of  # slow to import

        explanation = self.mechanism.explanation(self.plan, self.source)
        notes = explanation.notes
        cuts = map(PER_WINDOW.format, time_cuts_of(self.text, self.sources))
        limits = batch_limits(self.source) if self.parsed.once else ()
        read_at_once = map(AT_ONCE.format, limits)
        sentences = (*notes.limits, *time_reading(self.source), *passed_over(self.source))
        return replace(
            explanation,
            limits=replace(explanation.limits, defaults=self.defaults),
            notes=replace(
                notes,
                protects=(*notes.protects, *cuts),
                when=(*notes.when, *read_at_once),
                limits=sentences,
            ),
        )

    def explain(self) -> str:
        """Return the explanation in plain sentences."""
        return self.explanation.text()

    def explain_json(self) -> dict[str, Any]:
        """Return the explanation under stable names, the same for every kind of query."""
        return self.explanation.json()

    def why_missing(self) -> str:
        """Return why a key may be missing: what the query alone tells."""
        return self.mechanism.missing(self.plan)[0]

    def missing_json(self) -> dict[str, Any]:
        """Return why a key may be missing, under stable names."""
        return self.mechanism.missing(self.plan)[1]


def compile_query(sql: str, sources: Mapping[str, Source], name: str = "query") -> Query:
    """Parse, plan and account for one query; no data and no Spark.

    Args:
        sql: the text of one statement.
        sources: from `load_sources`, or what it takes.
        name: what error messages call the text, such as the file's name.

    Returns:
        A Query whose plan spends at most what the SQL promises.

    Raises:
        QueryError: the SQL is refused; all its problems with line and column.
        ConfigError: the source's declaration does not allow the query.
    """
    sources = _declared(sources)
    parsed = parse_query(sql, sources, name)
    source = sources[parsed.stream]
    # Sources that were made in code; sources.yaml is refused with the line.
    if problem := refused_format(source) or refused_option(source):
        raise ConfigError(f"source {source.name!r}: {problem}")
    mechanism = registry.mechanism_named(parsed.mechanism)
    plan = mechanism.plan(parsed, source)
    cost = mechanism.account(plan, source)
    if not cost.delta(parsed.epsilon) <= parsed.delta:  # so that NaN is refused too
        raise AccountingError(
            f"the plan costs delta {cost.delta(parsed.epsilon):.6g} at epsilon {parsed.epsilon:g}, more than the {parsed.delta:g} it promises"
        )
    return Query(sql, sources, parsed, plan, _reading(sql, sources))


def _reading(sql: str, sources: Mapping[str, Source]) -> Reading:
    from dpsql.sql.parse import reading_of

    return reading_of(sql, sources)


def _declared(sources: Mapping[str, Any]) -> Mapping[str, Source]:
    """Return the declared sources by name.

    Raises:
        ConfigError: they are something else.
    """
    if not isinstance(sources, Mapping):
        raise ConfigError(
            "sources are given by name: dpsql.load_sources('sources.yaml'), or {'visits': {'format': 'parquet', ...}}"
        )
    if all(isinstance(source, Source) for source in sources.values()):
        return sources
    for name, source in sources.items():
        if not isinstance(source, Mapping):
            raise ConfigError(
                f"source {name!r} is no declaration; to ask about records that are at hand: dpsql.query(sql, records, ...)"
            )
    return load_sources(sources)


def parse_query(sql: str, sources: Mapping[str, Source], name: str = "query") -> ParsedQuery[Any]:
    """Return what one text asks, of whichever mechanism; nothing is planned.

    Raises:
        QueryError: as `compile_query`.
    """
    from dpsql.sql.parse import (
        parse_query as parse,  # here, because a run's plan is made once and sqlglot is slow to import
    )

    return parse(sql, sources, registry.MECHANISMS, name)
