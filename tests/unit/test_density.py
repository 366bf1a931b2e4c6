"""Lines are plain: what no formatter mends is found here. Each rule has a list of what is left in
`density.toml`, which only shrinks: an entry that is mended has to go."""

from __future__ import annotations

import ast
import tomllib
from collections import defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.unit.density import COMPREHENSIONS, FUNCTIONS, PRODUCT, Module, modules_of
from tests.unit.structure import CHECKOUT, plant

LONG, LONGEST = 300, 500
"""Tokens of a function's body: above the first it is listed, above the second with a reason."""
FEW_WORDS = 4
Rule = Callable[[list[Module]], Iterator[str]]


def several_assignments(modules: list[Module]) -> Iterator[str]:
    """`a, b = x, y` is two statements, unless y reads a: a swap."""
    for module in modules:
        for node in ast.walk(module.tree):
            if not isinstance(node, ast.Assign) or not isinstance(node.value, ast.Tuple):
                continue
            target = node.targets[0]
            if isinstance(target, ast.Tuple) and not _reads_itself(target, node.value):
                yield f"{module.path}: {ast.unparse(target).strip('()')}"


def nested_comprehensions(modules: list[Module]) -> Iterator[str]:
    """What a comprehension makes is made by no other one: a step with a name makes it."""
    for module in modules:
        for node in ast.walk(module.tree):
            if not isinstance(node, COMPREHENSIONS):
                continue
            made = node.value if isinstance(node, ast.DictComp) else node.elt
            if any(isinstance(inner, COMPREHENSIONS) for inner in ast.walk(made)):
                yield f"{module.path}: {_around(module, node)}"


def long_functions(modules: list[Module]) -> Iterator[str]:
    """A function fits a screen."""
    for module in modules:
        yield from (f"{module.path}: {name}" for name, size in module.functions() if size > LONG)


def docstrings_that_say_little(modules: list[Module]) -> Iterator[str]:
    """A docstring begins with a sentence of four words or more, or there is none."""
    for module in modules:
        for node in ast.walk(module.tree):
            if not isinstance(node, FUNCTIONS) or node.name.startswith("__"):
                continue
            docstring = ast.get_docstring(node)
            if docstring and len(docstring.split(".")[0].split()) < FEW_WORDS:
                yield f"{module.path}: {node.name}"


def classes_of_one_name(modules: list[Module]) -> Iterator[str]:
    """A class has its name for itself in the whole product."""
    places = defaultdict(list)
    for module in modules:
        for node in ast.walk(module.tree):
            if isinstance(node, ast.ClassDef):
                places[node.name].append(module.path)
    yield from (name for name, paths in places.items() if len(paths) > 1)


RULES: tuple[Rule, ...] = (
    several_assignments,
    nested_comprehensions,
    long_functions,
    docstrings_that_say_little,
    classes_of_one_name,
)
ALLOWED = tomllib.loads((Path(__file__).parent / "density.toml").read_text())


def _reads_itself(target: ast.Tuple, value: ast.Tuple) -> bool:
    """Tell whether an assignment has to be made at once, because a value reads a target."""
    targets = {ast.unparse(each) for each in target.elts}
    return any(
        ast.unparse(each) in targets for each in ast.walk(value) if isinstance(each, ast.expr)
    )


def _around(module: Module, node: ast.AST) -> str:
    """Return the name of the innermost function around a node, or the module's."""
    around = [
        function
        for function in ast.walk(module.tree)
        if isinstance(function, FUNCTIONS) and function.lineno <= node.lineno <= function.end_lineno
    ]
    return max(around, key=lambda function: function.lineno).name if around else "module"


def violations(rule: Rule, checkout: Path) -> list[str]:
    return sorted(rule(modules_of(checkout, *PRODUCT)))


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.__name__)
def test_the_list_of_what_is_left_only_shrinks(rule: Rule) -> None:
    """Fails where something new is dense, and where an entry is mended and still listed."""
    assert violations(rule, CHECKOUT) == sorted(ALLOWED[rule.__name__])


def test_a_function_that_fills_two_screens_has_a_reason() -> None:
    sizes = {
        f"{module.path}: {name}": size
        for module in modules_of(CHECKOUT, *PRODUCT)
        for name, size in module.functions()
    }
    longest = {name for name, size in sizes.items() if size > LONGEST}
    assert longest == set(ALLOWED["reasons"])
    assert all(len(reason.split()) >= FEW_WORDS for reason in ALLOWED["reasons"].values())


LONG_BODY = "def f():\n" + "".join(f"    x{number} = {number}\n" for number in range(LONG // 3 + 1))
PLANTED: list[tuple[Rule, dict[str, str], str]] = [
    (several_assignments, {"udfs/a.py": "a, b = 1, 2\n"}, "udfs/a.py: a, b"),
    (
        nested_comprehensions,
        {"udfs/a.py": "def f():\n    return [[x for x in y] for y in z]\n"},
        "udfs/a.py: f",
    ),
    (
        nested_comprehensions,
        {"udfs/a.py": "m = {x: {y for y in x} for x in z}\n"},
        "udfs/a.py: module",
    ),
    (long_functions, {"jobs/a.py": LONG_BODY}, "jobs/a.py: f"),
    (
        docstrings_that_say_little,
        {"dpsql/a.py": 'def f():\n    """The query\'s. And more words."""\n'},
        "dpsql/a.py: f",
    ),
    (
        classes_of_one_name,
        {"dpsql/a.py": "class A:\n    pass\n", "udfs/a.py": "class A:\n    pass\n"},
        "A",
    ),
]


@pytest.mark.parametrize(("rule", "texts", "says"), PLANTED)
def test_a_planted_violation_is_found(
    tmp_path: Path, rule: Rule, texts: dict[str, str], says: str
) -> None:
    plant(tmp_path, texts)
    assert violations(rule, tmp_path) == [says]


def test_what_is_plain_is_not_found(tmp_path: Path) -> None:
    texts = {
        "dpsql/a.py": "a, b = b, a\nc, d = f(x)\nrows = [x for x in y if x]\n",
        "jobs/a.py": 'def f():\n    """Return the rows of a table."""\n    return 1\n',
    }
    plant(tmp_path, texts)
    for rule in RULES:
        assert violations(rule, tmp_path) == []
