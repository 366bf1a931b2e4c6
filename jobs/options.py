"""The flags that commands share. Flag > environment (`DPSQL_LAKE`, `DPSQL_SOURCES`, `DPSQL_SECRET_FILE`) > default."""

from __future__ import annotations

import io
import os
import signal
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from dpsql.errors import ConfigError, DpsqlError
from dpsql.files import reporting_os_errors
from dpsql.jobs.terminal import note
from dpsql.times import microseconds, parse_duration

if TYPE_CHECKING:
    from dpsql import Query
    from dpsql.privacy.ledger import Ledger
    from dpsql.privacy.secret import Secret

STOPPED = "stopped; the same command continues from here"
Command = Callable[..., Any]

ELSEWHERE = {
    "list": "status",
    "synthesize": "ask NAME --synthetic",
    "budget --record": "restore NAME --ledger",
}
"""What was written otherwise."""

query_argument = click.argument(
    "query_file", metavar="QUERY.sql", type=click.Path(exists=True, dir_okay=False, path_type=Path)
)
name_argument = click.argument("name", metavar="NAME")
DECLARED = Path("conf/sources.yaml")
SOURCES: dict[str, Any] = {
    "metavar": "FILE",
    "type": click.Path(path_type=Path),
    "envvar": "DPSQL_SOURCES",
}
sources_option = click.option(
    "--sources",
    "sources_file",
    **SOURCES,
    default=DECLARED,
    show_default=True,
    help="What may be queried (sources.yaml).",
)
CAPS = f"What declares the caps (sources.yaml).  [default: {DECLARED}, if it exists]"
caps_option = click.option("--sources", "sources_file", **SOURCES, help=CAPS)
LAKE: dict[str, Any] = {"metavar": "DIR", "envvar": "DPSQL_LAKE", "help": "The lake's folder."}
lake_option = click.option("--lake", "lake_folder", required=True, **LAKE)
optional_lake = click.option("--lake", "lake_folder", **LAKE)
secret_option = click.option(
    "--secret-file",
    metavar="FILE",
    type=click.Path(path_type=Path),
    envvar="DPSQL_SECRET_FILE",
    help="The secret; the ledger is next to it.  [default: ~/.config/dpsql/secret, made on first use]",
)
FILE = click.Path(dir_okay=False, path_type=Path)
json_option = click.option("--json", "as_json", is_flag=True, help="Print one JSON document.")


class Microseconds(click.ParamType):
    """A length or a point of time, as it is written. Becomes microseconds.

    Args:
        name: what it is, in one word.
        parse: makes microseconds of it.
        description: what it is, and how it is written.
    """

    def __init__(self, name: str, parse: Callable[[str], int], description: str) -> None:
        self.name = name
        self._parse = parse
        self._written = description

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        try:
            return value if isinstance(value, int) else self._parse(value)
        except ValueError:
            self.fail(f"{value!r} is not {self._written}", param, ctx)


DURATION = Microseconds(
    "duration",
    parse_duration,
    "a length of time; write it like '30 seconds', '10 minutes' or '7 days'",
)
UTC_TIME = Microseconds(
    "time", microseconds, "a time; write it like 2026-01-31 or 2026-01-31T12:00 (UTC)"
)
SPAN: dict[str, Any] = {"metavar": "TIME", "type": DURATION}
INSTANT: dict[str, Any] = {"metavar": "TIME", "type": UTC_TIME}
"""UTC unless it says otherwise."""


class Commands(click.Group):
    """A group whose commands end in a message and an exit code, never in a traceback."""

    def resolve_command(self, ctx: click.Context, args: list[str]) -> Any:
        """Refuse by name what is written otherwise now."""
        for old, instead in ELSEWHERE.items():
            command, *option = old.split()
            if args[:1] == [command] and set(option) <= set(args):
                raise click.UsageError(f"there is no `dpsql {old}`: write `dpsql {instead}`", ctx)
        return super().resolve_command(ctx, args)

    def list_commands(self, ctx: click.Context) -> list[str]:
        """List the commands in the order in which one meets them."""
        return list(self.commands)

    def invoke(self, ctx: click.Context) -> Any:
        for stream in (sys.stdout, sys.stderr):
            if isinstance(stream, io.TextIOWrapper):
                stream.reconfigure(errors="backslashreplace")
        with one_line_errors(debug=bool(ctx.params.get("debug"))):
            return super().invoke(ctx)


@contextmanager
def one_line_errors(debug: bool) -> Iterator[None]:
    """Turn every error into text on stderr and an exit code: 2 what the user can mend, 1 anything else."""
    try:
        yield
    except DpsqlError as problem:
        if debug:
            raise
        note(str(problem))
        raise SystemExit(problem.exit_code) from None
    except click.exceptions.NoArgsIsHelpError:
        raise
    except click.UsageError as problem:
        if debug:
            raise
        command = f"{problem.ctx.command_path} --help" if problem.ctx else "--help"
        note(f"{problem.format_message().rstrip('.')} (see: {command})")
        raise SystemExit(problem.exit_code) from None
    except (click.ClickException, click.exceptions.Exit, click.Abort, BrokenPipeError):
        raise
    except KeyboardInterrupt:
        note("interrupted")
        raise SystemExit(1) from None
    except Exception as problem:
        if debug:
            raise
        # only the type: the text of a foreign exception may quote a record
        note(
            f"internal error ({type(problem).__name__}); `dpsql --debug ...` shows where. Please report it"
        )
        raise SystemExit(1) from None


@contextmanager
def stop_politely() -> Iterator[None]:
    """Let SIGTERM work like Ctrl-C, and count both as a success. (While the engine works it catches both itself and ends after the micro-batch.)"""

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    old_handler = signal.signal(signal.SIGTERM, interrupt)
    try:
        yield
    except KeyboardInterrupt:
        note(STOPPED)
    finally:
        signal.signal(signal.SIGTERM, old_handler)


def compiled(query_file: Path, sources_file: Path) -> Query:
    """Compile a query file.

    Raises:
        DpsqlError: as `dpsql.compile` and `dpsql.load_sources`; ConfigError when the file is not UTF-8 text.
    """
    try:
        with reporting_os_errors(str(query_file), ConfigError):
            text = query_file.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError as problem:
        raise ConfigError(f"{query_file}: not UTF-8 (byte {problem.start + 1})") from None
    return compiled_text(text, sources_file, str(query_file))


def compiled_text(text: str, sources_file: Path, name: str) -> Query:
    """Compile the query of a run; raises as `compiled`."""
    import dpsql

    return dpsql.compile(text, dpsql.load_sources(sources_file), name=name)


def files_by_source(
    arguments: tuple[str, ...], query: Query, flag: str = "--input"
) -> dict[str, list[Path]]:
    """Sort arguments `NAME=FILE` or `FILE` (the stream) by source; what is not there is refused before anything is spent."""
    from dpsql.local.sources import source_files

    stream = query.parsed.stream
    sources = (query.parsed.stream, *query.parsed.static_sources)
    files: dict[str, list[Path]] = {}
    for text in arguments:
        head, equals, tail = text.partition("=")
        has_name = bool(equals) and head.lower() in sources
        if equals and not has_name and not Path(text).exists():
            raise ConfigError(
                f"{flag} {text}: no such file, and no such source: the query reads {', '.join(sources)}"
            )
        files.setdefault(head.lower() if has_name else stream, []).append(
            Path(tail if has_name else text)
        )
    for name in {stream, *files}:
        source_files(query.sources[name], files)
    return files


RESERVED = 1 << 16
"""Bytes that a disk must have room for."""


def writable(target: Path, flag: str) -> None:
    """Refuse a file that could not be written, while nothing is spent yet.

    Raises:
        ConfigError: its folder is not there, or may not be written to.
    """
    if not target.parent.is_dir():
        raise ConfigError(f"{flag} {target}: there is no folder {target.parent}")
    if target.is_dir() or (target.exists() and not os.access(target, os.W_OK)):
        raise ConfigError(f"{flag} {target}: this cannot be written")
    with (
        reporting_os_errors(f"{flag} {target}: cannot write", ConfigError),
        tempfile.TemporaryFile(dir=target.parent) as file,
    ):
        file.write(bytes(RESERVED))
        file.flush()


def check_wait(query: Query, until_us: int | None, remedy: str) -> bool:
    """Refuse a first release that would be behind; say, and return, whether it takes long."""
    from dpsql.times import now_us

    clock_us = now_us()
    end_us = clock_us if until_us is None else until_us
    query.shape.schedule.check_behind(end_us, query.source.start_us)
    long_wait = query.long_wait(remedy, clock_us) if until_us is None else None
    if long_wait:
        note(long_wait)
    return bool(long_wait)


def default_sources(sources_file: Path | None) -> Path | None:
    """Return the file that declares caps: the one given, else conf/sources.yaml, if it is there."""
    return sources_file or (DECLARED if DECLARED.exists() else None)


def secret_and_ledger(secret_file: Path | None, create: bool = True) -> tuple[Secret, Ledger]:
    """Return the secret, made on first use unless `create` is off, and the ledger beside it. A new one is told: nothing is known then."""
    from dpsql.privacy.ledger import Ledger
    from dpsql.privacy.secret import Secret, default_secret_path

    path = secret_file or default_secret_path(os.environ)
    is_new = create and not os.path.lexists(path)
    secret = Secret.load(path, create=create)
    ledger = Ledger.beside(path, secret)
    if is_new:
        state = (
            "the ledger next to it was another secret's"
            if ledger.folder.is_dir()
            else "new ledger: nothing is known to be spent"
        )
        note(f"new secret {path}, {state}")
    return secret, ledger


def refuse_own_input(query: Query, paths: Sequence[Path] | None, flag: str, why: str) -> None:
    """Refuse to show anything exact of the stream's own records, unless its source says that they are public.

    Args:
        query: on the stream.
        paths: what is read instead of its path; None reads its path.
        flag: that asks for it.
        why: it is refused.

    Raises:
        ConfigError: it is, holds or lies in the path of the source, under this name or another.
    """
    from dpsql.sources.places import is_own_input

    source = query.source
    own_path = (
        None if source.public else source.path if paths is None else is_own_input(source, paths)
    )
    if own_path is not None:
        raise ConfigError(
            f"{flag} {own_path}: this is the input of `{source.name}` itself. {why} Give other data, which you may look at; or, if these records "
            f"are no secret, say `public: true` at sources.{source.name}.public"
        )
