"""Plain words: docstrings of functions begin with a verb, names are nouns, sentences of the docs are
short. What is left is counted by folder in `english.toml`; each count only shrinks."""

from __future__ import annotations

import ast
import itertools
import re
import tomllib
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from dpsql.jobs.cli import main
from tests.unit.density import FUNCTIONS, PRODUCT, Module, modules_of
from tests.unit.structure import CHECKOUT, plant

VERBS = """accept add admit advance aggregate allow answer append apply ask assign bind bound bring build
    call cast charge check choose clamp clean clear close collect combine commit compare compile
    compute concatenate convert copy count create cut decide decode delete derive describe digest
    divide drain draw drop encode end ensure enter estimate evict evaluate execute expand explain
    express fail fetch fill filter find finish fit follow forget format generate give go group hand
    hash hold insert iterate join keep leave let limit list load lock look make map mark match
    measure merge mix move name note number open order pack parse pass pick place plan point prepare
    print propose prove publish put raise rank read recompute record recreate reduce refuse register
    reject release remember remove rename render repair replace replay report rescale reserve reset
    resolve restore return review rewrite round run sample save say scale scan score search select
    send serve set share shift show shut sign skip sort split start stop store stream sum sweep take
    tell test tick train translate trim try turn undo unpack update use validate verify wait walk
    warn watch weigh wrap write yield"""
PARTICIPLES = """found given told kept shown said asked made seen done wanted left named known begun
taken drawn cut spent lost gone written read added held counted opened moved needed reached carried
meant handed copied filled noted brought"""
FUNCTION_WORDS = """each which what who whose one other own rest mine both every some others ours none
this that now before after there again here together inside below above apart alone beside beyond at
of by off to over out on up down without most least whole fresh plain exact whom"""
KNOWN_VERBS = set(VERBS.split())
SAYS_NOTHING = set(PARTICIPLES.split()) | set(FUNCTION_WORDS.split())
SHORT = 8
"""Lines of a function in which a local may have any name."""
BAD_START = re.compile(r"(Of|Those|From|Likewise|As|The same|What)\b")
LEAST_WORDS = 5
"""Shorter texts are names and labels."""
SCOPES = (*FUNCTIONS, ast.Lambda, ast.ClassDef)
COMPREHENSIONS = (ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)
LEFT = tomllib.loads((Path(__file__).parent / "english.toml").read_text())
VERB_SHARE = LEFT["verb_share"]


def docstrings(modules: list[Module]) -> Iterator[tuple[Module, ast.AST, str]]:
    """Yield every docstring of a function, method, property or class."""
    for module in modules:
        for node in ast.walk(module.tree):
            if isinstance(node, (*FUNCTIONS, ast.ClassDef)) and (text := ast.get_docstring(node)):
                yield module, node, text


def constants(module: Module) -> Iterator[str]:
    """Yield the texts that stand below the constants of a module."""
    body = module.tree.body
    for before, node in itertools.pairwise(body):
        if not isinstance(before, ast.Assign | ast.AnnAssign) or not isinstance(node, ast.Expr):
            continue
        if isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            yield node.value.value


def says_what_it_does(docstring: str) -> bool:
    """Tell whether a docstring begins with a verb; "Count of ..." and the like is none."""
    first = re.match(r"([A-Za-z]+)\b(?! of\b)", docstring)
    return first is not None and first[1].lower() in KNOWN_VERBS


def is_called(node: ast.AST) -> bool:
    """Tell whether a docstring is of a function, and not of a property or a class."""
    if not isinstance(node, FUNCTIONS):
        return False
    return not any("property" in ast.unparse(each) for each in node.decorator_list)


def names_that_say_nothing(module: Module) -> Iterator[tuple[str, str, str]]:
    """Yield kind, scope and name of every field, function, parameter and local of such a name."""
    for scope in ast.walk(module.tree):
        if isinstance(scope, ast.ClassDef):
            yield from (("field", scope.name, name) for name in _bound_in(scope) & SAYS_NOTHING)
        if not isinstance(scope, FUNCTIONS):
            continue
        if scope.name.strip("_") in SAYS_NOTHING:
            yield "function", scope.name, scope.name
        arguments = scope.args
        every = (*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs)
        parameters = {argument.arg for argument in every}
        yield from (("parameter", scope.name, name) for name in parameters & SAYS_NOTHING)
        if (scope.end_lineno or 0) - scope.lineno + 1 > SHORT:
            bound = (_bound_in(scope) & SAYS_NOTHING) - parameters
            yield from (("local", scope.name, name) for name in bound)


def _bound_in(scope: ast.AST) -> set[str]:
    nodes = _own_nodes(scope)
    return {n.id for n in nodes if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)}


def _own_nodes(scope: ast.AST) -> Iterator[ast.AST]:
    """Yield the nodes of a scope, without those of scopes and comprehensions inside it."""
    for child in ast.iter_child_nodes(scope):
        if not isinstance(child, (*SCOPES, *COMPREHENSIONS)):
            yield child
            yield from _own_nodes(child)


def folder(path: str) -> str:
    return path.rpartition("/")[0]


MOST_WINDING = 0.10
"""Share of sentences that may have three or more of `, ; :`."""
MOST_LONG = 0.05
"""Share of sentences that may have over 30 words."""


def sentences(page: str) -> list[str]:
    """Cut a page into its sentences, without code, tables, headings, links and lists' marks. A blank line ends one."""
    text = re.sub(r"(?ms)^ *```.*?^ *```", "\n\n", page)
    text = re.sub(r"(?m)^(\||#|    |<).*$", "", text)
    text = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", text)
    text = re.sub(r"(?m)^\s*([*-]|\d+\.)\s+(\[ \] )?|\n\s*\n", ". ", text)
    parts = re.split(r"(?<=[.!?])\s+(?=[A-Z*`(])", re.sub(r"\s+", " ", text))
    return [part for part in parts if len(part.split()) > 2]


def share_hard_to_read(*pages: str) -> tuple[float, float]:
    """Return the shares of sentences with three or more `, ; :` and with over 30 words."""
    found = [one for page in pages for one in sentences(page)]
    if not found:
        return 0.0, 0.0
    winding = sum(len(re.findall(r"[,;:]", one)) >= 3 for one in found)
    long = sum(len(one.split()) > 30 for one in found)
    return winding / len(found), long / len(found)


def pages(checkout: Path) -> dict[str, str]:
    paths = [
        checkout / "README.md",
        *sorted((checkout / "docs").glob("*.md")),
        *sorted((checkout / "docs" / "howto").glob("*.md")),
    ]
    return {path.relative_to(checkout).as_posix(): path.read_text("utf-8") for path in paths}


AVOIDED = re.compile(
    r"(?<!\.)\b(anew|besides?|likewise|for ever|at work|goes? on|so many|of which|nobody|surely|is there)\b",
    re.IGNORECASE,
)
"""Words that standard English has better ones for; `Ledger.beside` is a name."""
SQL = re.compile(
    r"CASE WHEN|CREATE TABLE|SELECT |\bAS\b|::|FILTER \(|CAST\(|\w x+\??[;*]|\b[A-Z_]{3,}, "
)
"""What tells queries and lists of words from texts that a person reads."""


def spoken(module: Module) -> Iterator[str]:
    """Yield the texts of a module that a person may read: explain, messages, help. X stands for what is filled in."""
    silent = {id(node) for node in ast.walk(module.tree) if isinstance(node, ast.Expr)}
    for parent in ast.walk(module.tree):
        inner = [] if id(parent) in silent else [*ast.iter_child_nodes(parent)]
        for node in () if isinstance(parent, ast.JoinedStr) else inner:
            if isinstance(node, ast.JoinedStr):
                parts = [
                    part.value if isinstance(part, ast.Constant) else "X" for part in node.values
                ]
                text = "".join(map(str, parts))
            elif isinstance(node, ast.Constant) and isinstance(node.value, str):
                text = re.sub(r"\{[^{}]*\}", "X", node.value)
            else:
                continue
            if len(text.split()) >= LEAST_WORDS and not SQL.search(text):
                yield re.sub(r"^(?:[\w ]+: |X: )", "", text)


def test_docstrings_of_functions_begin_with_a_verb() -> None:
    called = [
        text for _, node, text in docstrings(modules_of(CHECKOUT, *PRODUCT)) if is_called(node)
    ]
    share = sum(map(says_what_it_does, called)) / len(called)
    assert share >= VERB_SHARE, f"{share:.1%}"


def test_docstrings_that_begin_badly_only_shrink() -> None:
    modules = modules_of(CHECKOUT, *PRODUCT)
    found = Counter(folder(m.path) for m, _, text in docstrings(modules) if BAD_START.match(text))
    assert dict(found) == LEFT["docstrings"]


def test_texts_of_constants_that_begin_badly_only_shrink() -> None:
    texts = [text for module in modules_of(CHECKOUT, *PRODUCT) for text in constants(module)]
    assert sum(map(bool, map(BAD_START.match, texts))) == LEFT["constants"]


def test_names_that_say_nothing_only_shrink() -> None:
    found = Counter(
        folder(module.path)
        for module in modules_of(CHECKOUT, *PRODUCT)
        for _ in names_that_say_nothing(module)
    )
    assert dict(found) == LEFT["names"]


def test_sentences_of_the_docs_are_easy_to_read() -> None:
    winding, long = share_hard_to_read(*pages(CHECKOUT).values())
    assert winding <= MOST_WINDING
    assert long <= MOST_LONG


def helps() -> Iterator[str]:
    """Yield what commands say of themselves: the docstrings of their functions, without examples."""
    for command in main.commands.values():
        yield (command.help or "").split("\b")[0]


def test_explain_messages_and_help_are_easy_to_read() -> None:
    texts = [text for module in modules_of(CHECKOUT, *PRODUCT) for text in spoken(module)]
    texts += helps()
    written = [
        re.sub("`[^`]*`", "", one) for page in pages(CHECKOUT).values() for one in sentences(page)
    ]
    assert len(texts) > 1_000
    winding, long = share_hard_to_read(*texts)
    assert winding <= MOST_WINDING
    assert long <= MOST_LONG
    assert [text for text in (*texts, *written) if AVOIDED.search(text)] == []


AUXILIARIES = """is are was were be been has have had does do did can could may might must will would shall
should isn't doesn't"""
OTHER_VERBS = """agree appear begin belong bring change come contain correlate cost cover cross depend differ
exceed exist expect go grow happen identify include know lack last lead lie look lose mean meet need obey occur
overlap own pay precede protect raise refuse remain repeat restate say see sell show speak spend stand stay
substitute take think touch use vary win drop end fall keep make name need say began chose cost fell gives
left let lost met paid put said saw sent set shut stood took went written"""
WITHOUT_VERB = re.compile(r"(Unknown|Unexpected|Duplicate) |Windows of |In a day ")
"""How sentences begin that may stand without a verb: words of GoogleSQL, and lines of a list."""
GOLDEN = CHECKOUT / "tests" / "golden"


def forms(verb: str) -> Iterator[str]:
    yield from (verb, f"{verb}s", f"{verb}es", f"{verb}d", f"{verb}ed", f"{verb}ing")
    yield from (f"{verb}{verb[-1]}ed", f"{verb}{verb[-1]}ing", f"{verb[:-1]}ing")
    yield from (f"{verb[:-1]}ies", f"{verb[:-1]}ied")


VERB_FORMS = {
    *AUXILIARIES.split(),
    *(form for verb in (*KNOWN_VERBS, *OTHER_VERBS.split()) for form in forms(verb)),
    *PARTICIPLES.split(),
}


def has_verb(sentence: str) -> bool:
    return any(word in VERB_FORMS for word in re.findall(r"[a-z']+", sentence.lower()))


def explained() -> Iterator[str]:
    """Yield the sentences of all explanations that are kept; lines that begin with a label are none."""
    for path in (GOLDEN / "accepted").glob("*.txt"):
        for explanation in path.read_text("utf-8").split("\n---\n")[1:]:
            blocks = re.split(r"\n\s*\n", explanation.split("\n===")[0])
            for block in blocks:
                head, *lines = block.splitlines() or [""]
                text = " ".join(line.strip() for line in lines)
                parts = re.split(r"(?<=[.!?])\s+(?=[A-Z`(0-9])", text)
                if head != "In short":
                    yield from (
                        part for part in parts if part.endswith(".") and len(part.split()) > 2
                    )


def refusals() -> Iterator[str]:
    """Yield the first line of all refusals that are kept."""
    for path in (GOLDEN / "refused").glob("*.txt"):
        yield from re.findall(r"(?m)^\S+\.sql:\d+:\d+: (.*)$", path.read_text("utf-8"))


def test_sentences_of_explain_and_messages_have_a_verb() -> None:
    texts = {*explained(), *refusals()}
    assert len(texts) > 900
    labelled = re.compile(r"[A-Z][\w ]*:")
    told = {text for text in texts if not labelled.match(text) and not WITHOUT_VERB.match(text)}
    assert sorted(text for text in told if not has_verb(text)) == []


PLANTED = '''
LIMIT = 1
"""Of the rows."""


class A:
    given = 1

    def each(self, of):
        """Of the rows."""
        found = of
        x = 1
        x = 2
        x = 3
        x = 4
        x = 5
        return [kept for kept in found]
'''


def test_what_is_planted_is_found(tmp_path: Path) -> None:
    plant(tmp_path, {"udfs/a.py": PLANTED})
    (module,) = modules_of(tmp_path, "udfs")
    assert sorted(names_that_say_nothing(module)) == [
        ("field", "A", "given"),
        ("function", "each", "each"),
        ("local", "each", "found"),
        ("parameter", "each", "of"),
    ]
    assert [*constants(module)] == ["Of the rows."]
    ((_, node, text),) = docstrings([module])
    assert has_verb("Records are dropped.") and not has_verb("Too few units in the table.")
    assert AVOIDED.search("The file is there already.") and not AVOIDED.search("Ledger.beside(x)")
    assert is_called(node) and BAD_START.match(text) and not says_what_it_does(text)


@pytest.mark.parametrize(
    ("page", "shares"),
    [
        ("A short sentence stands here. It has a point.", (0.0, 0.0)),
        ("One, two; three: four. It has a point.", (0.5, 0.0)),
        (f"{'word ' * 31}ends. It has a point.\n```\na, b, c, d\n```\n", (0.0, 0.5)),
    ],
)
def test_hard_sentences_are_counted(page: str, shares: tuple[float, float]) -> None:
    assert share_hard_to_read(page) == shares
