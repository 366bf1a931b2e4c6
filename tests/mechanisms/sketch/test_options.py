"""No option of a query of sketches is accepted and ignored: each changes what the steps do."""

import dataclasses
from typing import Any

import pytest

from dpsql.compiled import compile_query
from dpsql.errors import QueryError
from dpsql.mechanisms.sketch.query import OPTIONS
from dpsql.mechanisms.sketch.stages import intake, reading, release
from dpsql.sources.config import load_sources
from tests.sql.golden import FOLDER

BASE = {
    "epsilon": "2",
    "delta": "1e-6",
    "privacy_level": "USER",
    "privacy_unit_column": "user_id",
    "max_rows_contributed": "16",
}
BASE |= {
    "max_rows_per_group": "2",
    "max_groups_contributed": "8",
    "contribution_period": "WINDOW",
    "trigger_interval": "'1 hour'",
}
BASE |= {"allowed_lateness": "'0 seconds'", "sketch_width": "8192"}
OF_UNITS = (
    "privacy_unit_column",
    "max_rows_contributed",
    "max_rows_per_group",
    "max_groups_contributed",
    "contribution_period",
)
LISTED = {"public_groups": "(SELECT page FROM pages)"}
OTHERWISE: dict[str, dict[str, Any]] = {
    "epsilon": {"epsilon": "3"},
    "delta": {"delta": "1e-7"},
    "privacy_level": {"privacy_level": "EVENT", **dict.fromkeys(OF_UNITS)},
    "max_rows_contributed": {"max_rows_contributed": "15"},
    "max_rows_per_group": {"max_rows_per_group": "1"},
    "max_groups_contributed": {"max_groups_contributed": "7"},
    "contribution_period": {"contribution_period": "STREAM"},
    "trigger_interval": {"trigger_interval": "'2 hours'"},
    "allowed_lateness": {"allowed_lateness": "'1 hour'"},
    "public_groups": LISTED,
    "sketch_width": {"sketch_width": "4096"},
    "mechanism": {"mechanism": "PAPER", **LISTED},
}


def behaviour(options: dict[str, str | None]) -> tuple[Any, ...]:
    """All numbers of the steps, and what engines read: how far ahead a record may be, and the list."""
    written = ", ".join(f"{name} = {value}" for name, value in options.items() if value is not None)
    text = f"SELECT WITH DIFFERENTIAL_PRIVACY OPTIONS ({written}) APPROX_TOP_COUNT(url, 5) AS top FROM visits GROUP BY window(ts, '1 day')"
    plan = compile_query(text, load_sources(FOLDER / "sources.yaml")).plan
    steps = (intake(plan, 0), release(plan, 0), reading(plan))
    return (*map(dataclasses.asdict, steps), plan.query.max_ahead_us, plan.query.public_groups)


def test_every_option_is_tried() -> None:
    # The unit is the source's; another one is refused.
    assert {*OTHERWISE, "privacy_unit_column"} == {option.name for option in OPTIONS}
    with pytest.raises(QueryError, match="The privacy unit of the source visits is user_id"):
        behaviour(BASE | {"privacy_unit_column": "status"})


@pytest.mark.parametrize("name", OTHERWISE)
def test_an_option_changes_what_is_done(name: str) -> None:
    assert behaviour(BASE | OTHERWISE[name]) != behaviour(BASE)


def test_options_of_other_mechanisms_are_refused_by_name() -> None:
    for foreign in (
        "min_privacy_units_per_group = 3",
        "selection_weight_decay = 0.5",
        "group_selection_share = 0.3",
        "release = RESELECT",
    ):
        name, _, value = foreign.partition(" = ")
        with pytest.raises(QueryError, match=name):
            behaviour(BASE | {name: value})
