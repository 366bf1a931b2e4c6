"""Rooms: what lies below knows nothing of what lies above, a checker nothing of the checked, and a mechanism is one name in four places."""

import ast
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

from dpsql.mechanisms.registry import MECHANISMS
from tests.unit.structure import plant
from tests.unit.test_project import CHECKOUT, Violations, imported, is_below, modules

GROUND = "allowance description errors explained_times explanation files parsed_query record schedule sources text times typed_values"
GROUND = {f"dpsql.{name}" for name in GROUND.split()}
"""What every room may import."""

MAY = {
    "dpsql/lake": {"dpsql.lake", "dpsql.privacy", "dpsql.compiled", "dpsql.scratch"},
    "dpsql/mechanisms": {"dpsql.mechanisms", "dpsql.parts", "dpsql.privacy", "dpsql.sql"},
    "dpsql/parts": {"dpsql.parts", "dpsql.privacy"},
    "dpsql/privacy": {"dpsql.privacy"},
    "dpsql/sql": {"dpsql.sql"},
}
"""What the lower rooms of dpsql may import besides: no arrow goes upwards."""

ABOVE_THE_LAKE = {"pyspark", "delta", "py4j", "duckdb", "sqlglot", "click", "jobs"}
ABOVE_THE_LAKE |= {"dpsql.streaming", "dpsql.local", "dpsql.sql", "dpsql.mechanisms"}
PLANS = {"planner", "calibration", "curve", "key_selection", "increments", "hash_charge"}
"""Modules that make a plan's numbers."""


NAMES = tuple(mechanism.name for mechanism in MECHANISMS)
SKETCHES = "estimates.estimate estimates.interval estimates.joint hashing.DIGEST_BYTES hashing.SCHEME hashing.CellShape hashing.digest hashing.digests"
CUBES = "estimates.Estimate estimates.LeastSquares estimates.Product estimates.estimate"
CUBES += " cells.closes synthetic.Fitted synthetic.fit synthetic.marginal synthetic.draw"
FOREIGN = {
    # readers estimate from published cells what the release has measured
    "dpsql/published/rows.py": "udfs.sketch.reading.unpack",
    "dpsql/published/sketches.py": " ".join(f"udfs.sketch.{name}" for name in SKETCHES.split()),
    "dpsql/published/cubes.py": " ".join(f"udfs.marginals.{name}" for name in CUBES.split()),
    "dpsql/published/paid.py": "dpsql.mechanisms.marginals.planner.PLAN_VERSION udfs.marginals.cells.MeasuredTables "
    "udfs.marginals.estimates.Product udfs.marginals.exact.EXACT udfs.marginals.exact.ExactCounts",
    # `tune` compares many plans of the histogram
    "dpsql/tuning/workbench.py": "dpsql.mechanisms.histogram.plan.ReleaseRule dpsql.mechanisms.histogram.plan.PrivacyPlan "
    "dpsql.mechanisms.histogram.planner.unnamed_plan dpsql.mechanisms.histogram.stages.stages",
}
"""Names that others take from a mechanism's folders, and why. No mechanism is here: what two need stands in `udfs`' rooms or `dpsql/parts`."""

TABLES_ARE_CALLED = {
    *(
        "dpsql/lake/preflight.py",
        "dpsql/lake/restore_points.py",
        "dpsql/lake/runs.py",
        "jobs/run_query.py",
    ),  # the public table of a run
    *(
        "dpsql/description.py",
        "dpsql/__init__.py",
        "dpsql/sql/options.py",
    ),  # the table of cells; a function; another product's argument
}


def upward_imports(checkout: Path) -> Violations:
    return [
        f"{path} imports {name}"
        for room, may in MAY.items()
        for path, tree in modules(checkout, room)
        for name in imported(path, tree)
        if is_below(name, ("dpsql",)) and name != "dpsql" and not is_below(name, may | GROUND)
    ]


def engines_of_the_lake(checkout: Path) -> Violations:
    """Whatever is imported below `dpsql/lake`, also by others on its behalf: no engine, and nothing from above."""
    names = [
        path.removesuffix(".py").replace("/", ".") for path, _ in modules(checkout, "dpsql/lake")
    ]
    imports = "".join(f"import {name.removesuffix('.__init__')}\n" for name in names)
    child = [sys.executable, "-c", f"import sys\n{imports}print(*sys.modules)"]
    done = subprocess.run(
        child,
        cwd=checkout,
        env={"PYTHONPATH": str(checkout)},
        capture_output=True,
        text=True,
        check=True,
    )
    return [f"dpsql/lake brings {name}" for name in sorted(ABOVE_THE_LAKE & {*done.stdout.split()})]


def imports_of_accountings(checkout: Path) -> Violations:
    """An accountant imports neither what planned nor another mechanism."""
    return [
        f"{path} imports {name}"
        for path, tree in modules(checkout, "dpsql/mechanisms")
        if path.endswith("/accounting.py")
        for name in imported(path, tree)
        if is_below(name, ("dpsql",))
        and (
            PLANS & {*name.split(".")}
            or (name.startswith("dpsql.mechanisms.") and name.split(".")[2] != path.split("/")[2])
        )
    ]


def mechanisms_without_a_place(
    checkout: Path, names: tuple[str, ...] = tuple(mechanism.name for mechanism in MECHANISMS)
) -> Violations:
    """A mechanism NAME of the registry has its folder on the driver, on the workers, in the tests, and its proof."""
    places = (
        "dpsql/mechanisms/{}/mechanism.py",
        "dpsql/mechanisms/{}/accounting.py",
        "udfs/{}/__init__.py",
    )
    places += ("tests/mechanisms/{}/contract_cases.py", "docs/privacy/{}.md")
    return [
        f"{name} has no {place.format(name)}"
        for name in names
        for place in places
        if not (checkout / place.format(name)).exists()
    ]


def engines_that_know_a_mechanism(checkout: Path) -> Violations:
    """Engines, the lake and commands know mechanisms by the registry, the protocol and the groups that a run lists."""
    known = (
        "dpsql.mechanisms.registry",
        "dpsql.mechanisms.protocol",
        "dpsql.mechanisms.public_groups",
    )
    return [
        f"{path} imports {name}"
        for room in ("dpsql/streaming", "dpsql/local", "dpsql/lake", "jobs")
        for path, tree in modules(checkout, room)
        for name in imported(path, tree)
        if is_below(name, ("dpsql.mechanisms",))
        and name != "dpsql.mechanisms"
        and not is_below(name, known)
    ]


def foreign_names(checkout: Path, allowed: Mapping[str, str] = FOREIGN) -> Violations:
    """What is imported from a mechanism's folders outside them; an entry of the list that nothing needs goes, so the list only shrinks."""
    found: dict[str, set[str]] = {}
    for path, tree in modules(checkout, "dpsql", "jobs", "udfs"):
        names = {
            name
            for name in imported(path, tree)
            if (of := _mechanism(name.split("."))) and of != _mechanism(path.split("/"))
        }
        found[path] = {
            name for name in names if not any(other.startswith(f"{name}.") for other in names)
        }
    found["dpsql/mechanisms/registry.py"] = set()
    known = {path: {*names.split()} for path, names in allowed.items()}
    new = [
        f"{path} imports {name}"
        for path, names in found.items()
        for name in sorted(names - known.get(path, set()))
    ]
    gone = [
        f"{path} needs no {name}"
        for path, names in known.items()
        if path in found
        for name in sorted(names - found[path])
    ]
    return new + gone


def names_as_constants(checkout: Path) -> Violations:
    """A mechanism is asked, never compared by its name; the registry orders values, and two tables of a lake are called `histogram`, `sketch`."""
    return [
        f"{path} says {node.value!r}"
        for path, tree in modules(checkout, "dpsql", "jobs", "udfs")
        for node in ast.walk(tree)
        if isinstance(node, ast.Constant)
        and node.value in NAMES
        and path not in TABLES_ARE_CALLED
        and _mechanism(path.split("/")) != node.value
    ]


def _mechanism(parts: list[str]) -> str:
    """Whose folder it is in; of nobody, nothing."""
    own = (
        parts[1:2]
        if parts[0] == "udfs"
        else parts[2:3]
        if parts[:2] == ["dpsql", "mechanisms"]
        else []
    )
    return own[0] if own and own[0] in NAMES else ""


HISTOGRAM = "dpsql/mechanisms/histogram"
TOY = "dpsql/mechanisms/toy"
OTHERS = "dpsql.mechanisms.histogram.accounting"
MARGINALS = "dpsql.mechanisms.marginals"
PLANNER = "dpsql.mechanisms.histogram.planner"
ENGINES = engines_that_know_a_mechanism
ACCOUNTANTS = imports_of_accountings
PLANTED: list[tuple[Callable[[Path], Violations], str, str, str]] = [
    (
        ENGINES,
        "dpsql/local/feeder.py",
        "from dpsql.mechanisms.histogram import plan",
        "imports dpsql.mechanisms.histogram",
    ),
    (
        foreign_names,
        "dpsql/local/feeder.py",
        "from dpsql.udfs.sketch.hashing import SCHEME",
        "imports udfs.sketch.hashing.SCHEME",
    ),
    (names_as_constants, "dpsql/view/page.py", "KINDS = {'sketch': 1}", "says 'sketch'"),
    (
        foreign_names,
        f"{HISTOGRAM}/explain.py",
        f"from {MARGINALS} import planner",
        f"imports {MARGINALS}.planner",
    ),
    (foreign_names, "dpsql/published/rows.py", "", "needs no udfs.sketch.reading.unpack"),
    (
        upward_imports,
        "dpsql/privacy/ledger.py",
        "from dpsql.mechanisms import registry",
        "imports dpsql.mechanisms",
    ),
    (
        upward_imports,
        "dpsql/privacy/cost.py",
        "def f():\n    import dpsql.lake.runs\n",
        "imports dpsql.lake.runs",
    ),
    (
        upward_imports,
        "dpsql/privacy/budget.py",
        "from dpsql.view.words import printable",
        "imports dpsql.view.words",
    ),
    (
        upward_imports,
        "dpsql/sql/parse.py",
        "from dpsql.mechanisms.registry import MECHANISMS",
        "imports dpsql.mechanisms.registry",
    ),
    (
        upward_imports,
        "dpsql/lake/restore.py",
        "from dpsql.streaming import job",
        "imports dpsql.streaming",
    ),
    (
        upward_imports,
        "dpsql/lake/new_run.py",
        "from dpsql.mechanisms.histogram.stages import grid",
        "imports dpsql.mechanisms",
    ),
    (
        upward_imports,
        f"{HISTOGRAM}/explain.py",
        "from dpsql.local.feeder import Feeder",
        "imports dpsql.local.feeder",
    ),
    (
        ACCOUNTANTS,
        f"{HISTOGRAM}/accounting.py",
        "from dpsql.mechanisms.histogram import planner",
        f"imports {PLANNER}",
    ),
    (
        ACCOUNTANTS,
        f"{TOY}/accounting.py",
        "from dpsql.privacy.curve import total_mu",
        "imports dpsql.privacy.curve",
    ),
    (
        ACCOUNTANTS,
        f"{TOY}/accounting.py",
        f"from {OTHERS} import factorisation",
        f"imports {OTHERS}",
    ),
]
ALLOWED = {
    "dpsql/privacy/ledger.py": "from dpsql.sources.config import Source\nfrom dpsql.privacy.cost import Cost\n",
    "dpsql/mechanisms/toy/accounting.py": "from dpsql.mechanisms.toy.plan import Plan\nfrom dpsql.privacy.cost import Cost\n",
    "dpsql/lake/runs.py": "from dpsql.privacy.ledger import Ledger\n",
}
RULES = (
    upward_imports,
    imports_of_accountings,
    engines_that_know_a_mechanism,
    foreign_names,
    names_as_constants,
)


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.__name__)
def test_imports_between_rooms(rule: Callable[[Path], Violations]) -> None:
    assert rule(CHECKOUT) == []


@pytest.mark.parametrize(
    ("rule", "path", "text", "said"),
    PLANTED,
    ids=[f"{rule.__name__}-{path}-{i}" for i, (rule, path, *_) in enumerate(PLANTED)],
)
def test_planted_imports_are_found(
    rule: Callable[[Path], Violations], path: str, text: str, said: str, tmp_path: Path
) -> None:
    plant(tmp_path, {path: text})
    assert any(f"{path} {said}" in each for each in rule(tmp_path))


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.__name__)
def test_allowed_imports_are_not_found(rule: Callable[[Path], Violations], tmp_path: Path) -> None:
    plant(tmp_path, ALLOWED)
    assert rule(tmp_path) == []


def test_the_lake_is_read_without_an_engine(tmp_path: Path) -> None:
    assert engines_of_the_lake(CHECKOUT) == []
    lake = {"dpsql/lake/__init__.py": "", "dpsql/lake/runs.py": "import other"}
    plant(tmp_path, lake | {"other.py": "import pyspark", "pyspark.py": ""})
    assert engines_of_the_lake(tmp_path) == ["dpsql/lake brings pyspark"]


def test_every_mechanism_has_its_places(tmp_path: Path) -> None:
    assert mechanisms_without_a_place(CHECKOUT) == []
    assert len(mechanisms_without_a_place(tmp_path, ("toy",))) == 5
