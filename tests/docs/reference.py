"""What the reference says of options, commands, keys of sources, and of which functions run where: made from the code. `python -m tests.docs.reference`
writes it."""

from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path

import click

from dpsql.jobs.cli import main
from dpsql.local import expressions
from dpsql.mechanisms.registry import MECHANISMS
from dpsql.sources.keys import OF_ALL, OF_CHANGE_FEEDS
from dpsql.sources.reader_options import KEPT, PREFIXES, REFUSED, WITHOUT_SPARK
from dpsql.sql.allowed import FUNCTIONS
from dpsql.sql.parse import options_of
from tests.docs import inputs, kinds

REFERENCE = Path(__file__).resolve().parents[2] / "docs" / "reference.md"


def arities(name: str) -> frozenset[int] | None:
    """Return with how many arguments the local engine calls a function; None: as many as Spark."""
    name = expressions.SYNONYMS.get(name, name)
    if name in expressions._SPECIAL or name in expressions._CALLED_CASTS:
        return None
    forms = expressions.FUNCTIONS.get(name, {})
    return frozenset(len(form.partition(" -> ")[0].split()) for form in forms)


def functions() -> str:
    """Where each runs."""
    local = []
    spark = []
    for name, signature in sorted(FUNCTIONS.items()):
        taken = arities(name)
        if taken is None or taken >= set(
            range(signature.min_arguments, (signature.max_arguments or signature.min_arguments) + 1)
        ):
            local.append(f"`{name}`")
        elif taken:
            local += [f"`{name}({', '.join('xyz'[:count])})`" for count in sorted(taken)]
            spark.append(f"other forms of `{name}`")
        else:
            spark.append(f"`{name}`")
    return f"| where | functions |\n|---|---|\n| `run`, `try`, `verify` | {', '.join(local)} |\n| `run` | {', '.join(spark)} |\n"


def options() -> str:
    """Each with an example, its default, what is checked, and the kinds of query that take it."""
    rows = [
        "| option | what it says | default | refused unless | kinds of query |",
        "|---|---|---|---|---|",
    ]
    for option in options_of(MECHANISMS):
        takers = [
            mechanism.name
            for mechanism in MECHANISMS
            if option.name in {own.name for own in mechanism.options}
        ]
        kinds = "all" if len(takers) == len(MECHANISMS) else ", ".join(takers)
        checks = "; ".join(check.message.removeprefix(f"{option.name} ") for check in option.checks)
        rows.append(
            f"| `{option.example}` | {option.description} | {option.usually} | {checks} | {kinds} |"
        )
    return "\n".join(rows) + "\n"


def commands() -> str:
    """Each command with its arguments, what it does, and its flags."""
    rows = ["| command | what it does | flags |", "|---|---|---|"]
    context = click.Context(main)
    for name in main.list_commands(context):
        command = main.get_command(context, name)
        assert command is not None
        flags = [each.opts[-1] for each in command.params if isinstance(each, click.Option)]
        arguments = [
            each.human_readable_name for each in command.params if isinstance(each, click.Argument)
        ]
        call = " ".join([name, *arguments]).replace("|", "\\|")
        shown = ", ".join(f"`{flag}`" for flag in flags if flag != "--help")
        rows.append(f"| `{call}` | {command.get_short_help_str(200)} | {shown} |")
    return "\n".join(rows) + "\n"


def reader_options() -> str:
    """Which options of Spark's readers a source may have, and which of them `try`, `tune` and `verify` read."""
    rows = ["| source | options | on Spark only |", "|---|---|---|"]
    for form in ("parquet", "csv", "json", "delta", "kafka"):
        kept = KEPT[form].split()
        here = kept if form == "parquet" else WITHOUT_SPARK.get(form, "").split()
        prefixes = [f"`{prefix}*`" for prefix in PREFIXES[form]]
        on_spark = [f"`{name}`" for name in kept if name not in here]
        rows.append(
            f"| {form} | {', '.join(f'`{name}`' for name in here)} | {', '.join([*prefixes, *on_spark])} |"
        )
    return "\n".join(rows) + "\n"


def refused_options() -> str:
    """Which options are rejected, with the reason that the message has."""
    cuts = REFUSED["witheventtimeorder"][1]
    names_of = {cuts: ["`maxBytesPerTrigger`, `maxOffsetsPerTrigger` and similar ones"]}
    for name, (_, reason) in REFUSED.items():
        names_of.setdefault(reason, []).append(f"`{name}`")
    rows = [f"| {', '.join(names)} | {reason} |" for reason, names in names_of.items()]
    return "\n".join(["| rejected, in any case | because |", "|---|---|", *rows]) + "\n"


def keys(head: str, meanings: Mapping[str, str]) -> str:
    """Each key of a source with what it says."""
    rows = [f"| `{key}` | {meaning} |" for key, meaning in meanings.items()]
    return "\n".join([f"| {head} | |", "|---|---|", *rows]) + "\n"


TABLES: Mapping[str, Callable[[], str]] = {
    "functions": functions,
    "options": options,
    "kinds": kinds.table,
    "commands": commands,
    "keys": partial(keys, "key of `sources.yaml`", OF_ALL),
    "readers": reader_options,
    "rejected": refused_options,
    "inputs": inputs.table,
    "feeds": partial(keys, "key of a source with `change_feed`", OF_CHANGE_FEEDS),
}


def written(page: str) -> str:
    """The page with the tables of this code."""
    for name, table in TABLES.items():
        begin = f"<!-- {name}: python -m tests.docs.reference -->\n"
        end = f"<!-- end of {name} -->\n"
        before, rest = page.split(begin)
        page = before + begin + "\n" + table() + "\n" + end + rest.split(end)[1]
    return page


if __name__ == "__main__":
    REFERENCE.write_text(written(REFERENCE.read_text(encoding="utf-8")), encoding="utf-8")
