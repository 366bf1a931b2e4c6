"""The structure of the product, drawn from its imports: `python -m tests.unit.structure` writes it into docs/architecture.md. A room is a
folder. Of the modules at the root of `dpsql`, `compiled` is a room of its own, and `dpsql` itself with `frame_query` (`dpsql.query`)
another, because they stand on other rooms; all others are one, the ground. A room of `FLOORS` may import those of lower floors and no
other, so arrows go one way."""

import ast
import re
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path

CHECKOUT = Path(__file__).resolve().parents[2]
GROUND = "dpsql (ground)"
MECHANISM = "udfs/NAME"
FLOORS = (
    ("jobs",),
    ("dpsql",),
    ("dpsql/tuning", "dpsql/view"),
    ("dpsql/local", "dpsql/streaming"),
    ("dpsql/published",),
    ("dpsql/lake",),
    ("dpsql/compiled",),
    ("dpsql/mechanisms",),
    ("dpsql/parts",),
    ("dpsql/sql",),
    ("dpsql/privacy",),
    ("dpsql/sources",),
    (GROUND,),
    (MECHANISM,),
    ("udfs/table",),
    ("udfs/intake", "udfs/measure"),
    ("udfs/noise",),
    ("udfs",),
)
SHARED = ([], ["table"], ["intake"], ["measure"], ["noise"])
"""Folders of `udfs` for what several mechanisms need; the others are a mechanism each."""
MOST_ROOMS = 21
BEGIN = "<!-- rooms: begin -->"
END = "<!-- rooms: end -->"


def by_folder(name: str) -> str:
    """An import name as the name of its module: `dpsql.udfs.keys` is `udfs/keys.py`."""
    return re.sub(r"^dpsql\.(?=(?:jobs|udfs)\b)", "", name)


def room(path: str) -> str:
    """Of a module, given as its path below the checkout. The folders of a mechanism `NAME` are one room in `dpsql` and one in `udfs`."""
    folders = path.split("/")[:-1]
    if folders == ["dpsql"]:
        name = path.removesuffix(".py")
        return {
            "dpsql/__init__": "dpsql",
            "dpsql/frame_query": "dpsql",
            "dpsql/frame_session": "dpsql",
            "dpsql/compiled": "dpsql/compiled",
        }.get(name, GROUND)
    return (
        MECHANISM if folders[0] == "udfs" and folders[1:] not in SHARED else "/".join(folders[:2])
    )


def dotted(path: str) -> str:
    return path.removesuffix(".py").removesuffix("/__init__").replace("/", ".")


def plant(folder: Path, texts: Mapping[str, str]) -> None:
    """Files by their paths below a folder."""
    for path, text in texts.items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_text(text)


def modules(checkout: Path) -> dict[str, str]:
    paths = [
        path.relative_to(checkout).as_posix()
        for top in ("jobs", "dpsql", "udfs")
        for path in sorted((checkout / top).rglob("*.py"))
    ]
    return {dotted(path): path for path in paths}


def arrows(checkout: Path) -> dict[str, set[str]]:
    """Which modules each module imports, wherever the import stands and whatever it is for."""
    known = modules(checkout)
    return {
        name: {*_imported(_imports((checkout / path).read_text()), known)} - {name}
        for name, path in known.items()
    }


@cache
def _imports(text: str) -> list[ast.AST]:
    """The statements; texts are read again by every rule."""
    return [
        node for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Import | ast.ImportFrom)
    ]


def _imported(imports: Sequence[ast.AST], known: Mapping[str, str]) -> Iterator[str]:
    """Of `from package import name`: the module of that name, or else the package."""
    for node in imports:
        names: list[str] = []
        if isinstance(node, ast.Import):
            names = [by_folder(alias.name) for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            package = by_folder(f"{node.module}")
            names = [
                name if (name := by_folder(f"{node.module}.{alias.name}")) in known else package
                for alias in node.names
            ]
        yield from (name for name in names if name in known)


def between_rooms(checkout: Path) -> dict[str, set[str]]:
    """Which rooms each room imports."""
    known = modules(checkout)
    found = {room(path): set[str]() for path in modules(checkout).values()}
    for name, others in arrows(checkout).items():
        found[room(known[name])] |= {room(known[other]) for other in others} - {room(known[name])}
    return found


def circles(drawn: Mapping[str, set[str]]) -> list[str]:
    """What is in a circle, or between two: what is left when again and again all is taken away that imports nothing, or that nothing imports."""
    left = {name: set(others) for name, others in drawn.items()}
    while left:
        wanted = set().union(*left.values())
        inner = {
            name: others & left.keys()
            for name, others in left.items()
            if others & left.keys() and name in wanted
        }
        if inner == left:
            break
        left = inner
    return sorted(left)


def listing(checkout: Path) -> str:
    """Return a line for each room, from top to bottom, for docs/architecture.md."""
    known = modules(checkout)
    drawn = {room(path) for path in known.values()}
    rooms = [name for floor in FLOORS for name in floor if name in drawn]
    return "\n".join(f"* `{name}`: {_purpose(checkout, known, name)}" for name in rooms)


def _purpose(checkout: Path, known: Mapping[str, str], name: str) -> str:
    """Return the first sentence of a room's package, or what stands for many packages."""
    if name == GROUND:
        return "What all others stand on."
    if name == MECHANISM:
        return "The steps of one mechanism."
    package = f"{name}.py" if f"{name}.py" in known.values() else f"{name}/__init__.py"
    docstring = ast.get_docstring(ast.parse((checkout / package).read_text())) or ""
    return re.split(r"(?<=\.)\s", docstring)[0]


def main() -> None:
    page = CHECKOUT / "docs" / "architecture.md"
    before, rest = page.read_text(encoding="utf-8").split(BEGIN)
    page.write_text(
        f"{before}{BEGIN}\n{listing(CHECKOUT)}\n{END}{rest.split(END)[1]}", encoding="utf-8"
    )


if __name__ == "__main__":
    main()
