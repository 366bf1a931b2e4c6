"""The structure of the product: few rooms, arrows that go down, no circle; each rule finds what is planted against it."""

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.unit.structure import (
    BEGIN,
    CHECKOUT,
    END,
    FLOORS,
    MOST_ROOMS,
    arrows,
    between_rooms,
    circles,
    dotted,
    listing,
    modules,
    plant,
    room,
)

FLOOR = {name: number for number, floor in enumerate(FLOORS) for name in floor}
Violations = list[str]


def arrows_go_down(checkout: Path) -> Violations:
    """From a room to rooms of lower floors; a room that no floor has is not known."""
    known = modules(checkout)
    unknown = sorted(
        {f"{name} has no floor" for name in between_rooms(checkout) if name not in FLOOR}
    )
    return unknown + [
        f"{name} imports {other}"
        for name, others in arrows(checkout).items()
        for other in sorted(others)
        if (one := room(known[name])) != (two := room(known[other]))
        and FLOOR.get(one, -1) >= FLOOR.get(two, -1)
    ]


def nothing_goes_in_a_circle(checkout: Path) -> Violations:
    """Neither modules nor rooms, be it inside functions or for types alone."""
    return circles(arrows(checkout)) + circles(between_rooms(checkout))


def rooms_are_few(checkout: Path) -> Violations:
    found = sorted(between_rooms(checkout))
    return [f"{len(found)} rooms: {', '.join(found)}"] if len(found) > MOST_ROOMS else []


def the_page_shows_it(checkout: Path) -> Violations:
    """docs/architecture.md has this list, so every room is in it, and nothing else."""
    shown = (
        (checkout / "docs" / "architecture.md")
        .read_text(encoding="utf-8")
        .partition(BEGIN)[2]
        .partition(END)[0]
    )
    return (
        []
        if shown.strip() == listing(checkout)
        else ["docs/architecture.md is out of date: python -m tests.unit.structure"]
    )


RULES = (arrows_go_down, nothing_goes_in_a_circle, rooms_are_few, the_page_shows_it)
LATER = "def f():\n    {}\n"
FOR_TYPES = "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    {}\n"
# A module, its import, and the module above it that this reaches.
UPWARDS = [
    ("dpsql/lake/runs.py", "from dpsql.local import feeder", "dpsql/local/feeder.py"),
    ("dpsql/lake/runs.py", LATER.format("import dpsql.view.page"), "dpsql/view/page.py"),
    (
        "dpsql/privacy/cost.py",
        FOR_TYPES.format("from dpsql.lake.runs import Lake"),
        "dpsql/lake/runs.py",
    ),
    (
        "dpsql/privacy/ledger.py",
        "from dpsql.mechanisms import registry",
        "dpsql/mechanisms/registry.py",
    ),
    (
        "dpsql/streaming/workers.py",
        LATER.format("from dpsql.jobs import options"),
        "jobs/options.py",
    ),
    (
        "dpsql/local/spark_types.py",
        "from dpsql.streaming.workers import TICK",
        "dpsql/streaming/workers.py",
    ),
    ("udfs/keys.py", "from dpsql.errors import DpsqlError", "dpsql/errors.py"),
    (
        "udfs/keys.py",
        FOR_TYPES.format("from dpsql.parsed_query import ParsedQuery"),
        "dpsql/parsed_query.py",
    ),
    ("udfs/stage.py", "from dpsql.udfs.sketch import step", "udfs/sketch/step.py"),
    ("dpsql/files.py", LATER.format("import dpsql.sql.parse"), "dpsql/sql/parse.py"),
    ("dpsql/errors.py", "import dpsql", "dpsql/__init__.py"),
    ("dpsql/streaming/job.py", "import dpsql.local.feeder", "dpsql/local/feeder.py"),
]
THREE = {
    "jobs/a.py": "import dpsql.jobs.b",
    "jobs/b.py": "import dpsql.jobs.c",
    "jobs/c.py": FOR_TYPES.format("from dpsql.jobs.a import X"),
}
ROOMS = {
    "dpsql/view/a.py": "import dpsql.lake.a",
    "dpsql/lake/a.py": "",
    "dpsql/lake/b.py": "import dpsql.view.b",
    "dpsql/view/b.py": "",
}
TWO = {
    "dpsql/sql/a.py": "from dpsql.sql.b import x",
    "dpsql/sql/b.py": LATER.format("from dpsql.sql import a"),
}
PACKAGE = {
    "dpsql/sql/__init__.py": "from dpsql.sql.a import x",
    "dpsql/sql/a.py": "from dpsql.sql import y",
}
# Rule, files that break it, what it says.
PLANTED: list[tuple[Callable[[Path], Violations], dict[str, str], str]] = [
    *(
        (arrows_go_down, {path: text, other: ""}, f"{dotted(path)} imports {dotted(other)}")
        for path, text, other in UPWARDS
    ),
    (arrows_go_down, {"dpsql/helpers/text.py": ""}, "dpsql/helpers has no floor"),
    (nothing_goes_in_a_circle, TWO, "dpsql.sql.a"),
    (nothing_goes_in_a_circle, THREE, "jobs.c"),
    (nothing_goes_in_a_circle, PACKAGE, "dpsql.sql"),
    (nothing_goes_in_a_circle, ROOMS, "dpsql/lake"),
    (
        rooms_are_few,
        {f"dpsql/room_{number}/a.py": "" for number in range(MOST_ROOMS + 1)},
        f"{MOST_ROOMS + 1} rooms: dpsql/room_0",
    ),
    (
        the_page_shows_it,
        {"dpsql/lake/__init__.py": '"""Another purpose."""'},
        "docs/architecture.md is out of date",
    ),
]


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.__name__)
def test_the_product_keeps_its_structure(rule: Callable[[Path], Violations]) -> None:
    assert rule(CHECKOUT) == []


@pytest.mark.parametrize(
    ("rule", "texts", "says"), PLANTED, ids=[f"{one[0].__name__}-{one[2]}" for one in PLANTED]
)
def test_a_planted_violation_is_found(
    tmp_path: Path, rule: Callable[[Path], Violations], texts: dict[str, str], says: str
) -> None:
    plant(tmp_path, {"docs/architecture.md": f"{BEGIN}\n{END}\n", **texts})
    assert [found for found in rule(tmp_path) if found.startswith(says)]


def test_what_goes_down_is_not_reported(tmp_path: Path) -> None:
    texts = {"jobs/cli.py": "import dpsql\nfrom dpsql.lake.runs import Lake\n"}
    texts |= {"dpsql/__init__.py": LATER.format("from dpsql.compiled import compile_query")}
    texts |= {
        "dpsql/compiled.py": "from dpsql.sql.parse import parse_query\n",
        "dpsql/sql/__init__.py": "",
    }
    texts |= {
        "dpsql/sql/parse.py": "from dpsql.sql import rules\nfrom dpsql.errors import QueryError\n"
    }
    texts |= {"dpsql/sql/parse.py": "import sqlglot\n"}
    texts |= {
        "dpsql/lake/runs.py": "from dpsql import errors\nfrom dpsql.compiled import Query\nfrom dpsql.udfs.stage import Stage\n"
    }
    texts |= {
        "dpsql/errors.py": "",
        "dpsql/mechanisms/sketch/plan.py": "from dpsql.udfs.sketch.step import STEP\n",
    }
    texts |= {"udfs/sketch/step.py": "from dpsql.udfs.noise import counters\n"}
    texts |= {"udfs/noise/counters.py": "from dpsql.udfs.stage import Stage\n", "udfs/stage.py": ""}
    plant(tmp_path, texts)
    assert [
        *arrows_go_down(tmp_path),
        *nothing_goes_in_a_circle(tmp_path),
        *rooms_are_few(tmp_path),
    ] == []
