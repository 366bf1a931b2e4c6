"""The examples of every `--help` are commands that can be typed after `dpsql init`: same queries, same names, same files."""

import shlex
from pathlib import Path

import pytest
from click.testing import CliRunner

from dpsql.jobs.cli import main

EXAMPLES = [
    (name, line.strip())
    for name, command in [("", main), *main.commands.items()]
    for line in (command.help or "").splitlines()
    if line.strip().startswith("dpsql ")
]


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder after `dpsql init`."""
    folder = tmp_path_factory.mktemp("init")
    assert CliRunner().invoke(main, ["init", str(folder)]).exit_code == 0
    return folder


def test_every_command_has_some() -> None:
    assert {line.split()[1] for _, line in EXAMPLES} >= set(main.commands)


@pytest.mark.parametrize(("of", "line"), EXAMPLES)
def test_an_example_names_what_is_there(made: Path, monkeypatch: pytest.MonkeyPatch, of: str, line: str) -> None:
    """Parsed as click would: options exist, values have their types. Files and names are those that init makes and its queries get."""
    monkeypatch.chdir(made)
    _, name, *arguments = shlex.split(line)
    given = main.commands[name].make_context(name, arguments).params
    queries = {path.stem for path in (made / "conf" / "queries").glob("*.sql")}
    assert of in ("", name)
    if given.get("lake_folder") and given.get("name") and name != "run":
        assert given["name"] in queries
    for value in (value for argument in arguments for value in [argument.partition("=")[2] or argument]):
        if value.startswith("conf/"):
            assert Path(value).exists(), value


def test_the_queries_of_init_are_all_accepted(made: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(made)
    for path in sorted((made / "conf" / "queries").glob("*.sql")):
        done = CliRunner().invoke(main, ["explain", f"conf/queries/{path.name}", "--json"])
        assert done.exit_code == 0, done.output
