"""What every mechanism of the registry must keep: whose query it is, what it costs, and that its plan is its document."""

import dataclasses
import hashlib
import json
from collections.abc import Iterator
from typing import Any

import pytest

from dpsql.errors import AccountingError
from dpsql.mechanisms.registry import MECHANISMS, mechanism_named
from dpsql.parsed_query import ContributionPeriod
from dpsql.privacy import ledger_line
from dpsql.privacy.ledger_line import line_from
from dpsql.privacy.origin import UNKNOWN
from dpsql.sql import parse
from dpsql.udfs.noise.discrete_laplace import DiscreteLaplace, discrete_laplace
from tests.sql.golden import Golden, compiled, goldens, sources

ACCEPTED = goldens("accepted")
WHOLE = ("panes_", "marginals_", "sketch_", "table_", "changes_")
SHOWN = [*ACCEPTED[::8], *(golden for golden in ACCEPTED if golden.stem.startswith(WHOLE))]
"""Enough for what is slow."""
SHRINK = 0.999
FOR_EVER = 1 << 60


@pytest.mark.parametrize("golden", ACCEPTED, ids=lambda golden: golden.stem)
def test_exactly_one_mechanism_claims_a_query(golden: Golden) -> None:
    draft = parse.read_draft(golden.text, sources(), parse.options_of(MECHANISMS))
    assert [mechanism.name for mechanism in MECHANISMS if mechanism.claims(draft)] == [
        compiled(golden).parsed.mechanism
    ]


@pytest.mark.parametrize("golden", ACCEPTED, ids=lambda golden: golden.stem)
def test_the_promise_is_kept_and_not_wasted(golden: Golden) -> None:
    query = compiled(golden)
    cost = query.mechanism.account(query.plan, query.source)
    assert cost.delta(query.parsed.epsilon) <= query.parsed.delta
    if cost.mu2:
        assert cost.delta(query.parsed.epsilon) >= 0.98 * query.parsed.delta
    else:
        assert 0.98 * query.parsed.epsilon <= cost.epsilon <= query.parsed.epsilon


@pytest.mark.parametrize("golden", ACCEPTED, ids=lambda golden: golden.stem)
def test_the_document_is_the_whole_plan(golden: Golden) -> None:
    """Catches: a number that shapes noise and is not in the identity, so that two plans share their noise."""
    query = compiled(golden)
    document = json.loads(json.dumps(query.document()))
    numbers = {repr(leaf) for leaf in leaves(document)}
    missing = {repr(leaf) for leaf in leaves(query.plan)} - numbers - {repr(query.parsed.mechanism)}
    assert missing == set()
    assert (
        query.plan.identity == document["identity"]
        and len(query.plan.identity) == hashlib.sha256().digest_size * 2
    )


@pytest.mark.parametrize("golden", SHOWN, ids=lambda golden: golden.stem)
def test_less_noise_or_a_lower_threshold_is_refused(golden: Golden) -> None:
    """Catches: a number that the accountant does not look at. Each is a thousandth too small, alone."""
    query = compiled(golden)
    mechanism = mechanism_named(query.parsed.mechanism)
    changes = list(smaller(query.plan))
    assert changes
    for what, plan in changes:
        with pytest.raises(AccountingError):
            mechanism.account(plan, query.source)
            pytest.fail(f"{what} is not checked")


@pytest.mark.parametrize("golden", ACCEPTED, ids=lambda golden: golden.stem)
def test_a_ledger_line_renews_with_the_period_of_the_query(golden: Golden) -> None:
    """Catches: a period that is taken from the grid of panes or triggers: a cap would count too few of them, or too many."""
    query = compiled(golden)
    line = query.line("5a" * 16, "run", UNKNOWN)
    assert line_from(json.loads(json.dumps(ledger_line.document(line)))) == line
    if query.parsed.contribution_period is ContributionPeriod.WINDOW:
        assert (line.size_us, line.offset_us) == (
            query.parsed.windows.size_us,
            query.parsed.windows.offset_us,
        )
        assert line.charges(7 * line.size_us) in (7, 8)
    elif query.parsed.contribution_period is ContributionPeriod.DURATION:
        assert line.size_us == query.parsed.asked.period_us
        assert line.charges(7 * line.size_us) in (7, 8)
    else:
        assert line.charges(FOR_EVER) == 1


def leaves(value: Any) -> Iterator[Any]:
    """Every number and text in a nested value, as JSON has it; of a noise table its epsilon and its digest."""
    if isinstance(value, DiscreteLaplace):
        value = [value.epsilon, value.digest]
    elif dataclasses.is_dataclass(value):
        value = vars(value)
    if isinstance(value, dict):
        value = list(value.values())
    if isinstance(value, list | tuple):
        for each in value:
            yield from leaves(each)
    else:
        yield json.loads(json.dumps(value))


def smaller(value: Any, path: str = "plan") -> Iterator[tuple[str, Any]]:
    """The same value with one standard deviation, scale or row of thresholds too small, each in turn."""
    if isinstance(value, tuple):
        for i, each in enumerate(value):
            for what, changed in smaller(each, f"{path}[{i}]"):
                yield what, (*value[:i], changed, *value[i + 1 :])
    elif dataclasses.is_dataclass(value) and not isinstance(value, type):
        for field in dataclasses.fields(value):
            given = getattr(value, field.name)
            where = f"{path}.{field.name}"
            if field.name in ("sigma", "scale"):
                if given == 0:  # there is no such noise, and a table of another kind beside it
                    continue
                yield where, dataclasses.replace(value, **{field.name: given * SHRINK})
            elif field.name == "sigmas":
                yield (
                    where,
                    dataclasses.replace(value, sigmas=tuple(sigma * SHRINK for sigma in given)),
                )
            elif isinstance(given, DiscreteLaplace):
                yield (
                    where,
                    dataclasses.replace(
                        value, **{field.name: discrete_laplace(given.epsilon / SHRINK)}
                    ),
                )
            elif field.name == "thresholds":
                yield (
                    where,
                    dataclasses.replace(
                        value, thresholds=tuple(int(each * SHRINK) for each in given)
                    ),
                )
            else:
                for what, changed in smaller(given, where):
                    yield what, dataclasses.replace(value, **{field.name: changed})
