"""The budget ledger: one line per run, in the secret's folder; and what `sources.yaml` may not change behind its back."""

from __future__ import annotations

import contextlib
import json
import os
import re
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from dpsql.errors import BudgetError
from dpsql.files import create_file, replace_file, reporting_os_errors
from dpsql.parsed_query import PrivacyLevel
from dpsql.privacy.ledger_line import Line, UnknownLineVersion, cost_in_period, document, line_from
from dpsql.privacy.origin import DAY_US, cap_in_words, declared_cap
from dpsql.privacy.register import RunRegister
from dpsql.privacy.seals import FILE as SEALS
from dpsql.privacy.seals import Seals, make_seals, read_seals, seal_lines, without_original
from dpsql.privacy.secret import Secret
from dpsql.sources.config import Cap, Source
from dpsql.sources.places import overlap

# What `sources.yaml` may not change behind a ledger's back: its name, and its cap. Each refusal
# says what to write.


def check_line(earlier_lines: Sequence[Line], line: Line, of_frame: bool = False) -> None:
    """Refuse a line that reads what another ledger has paid for (two budgets that do not know of each other), or whose cap is gone.

    Raises:
        BudgetError: says what to write, and how to say that it is meant.
    """
    if not line.origin.reads:
        return
    declared_apart = {
        frozenset((declaring.ledger, name))
        for declaring in (*earlier_lines, line)
        for name in declaring.origin.apart_from
    }
    for earlier in earlier_lines:
        if (
            earlier.ledger == line.ledger
            or frozenset((earlier.ledger, line.ledger)) in declared_apart
        ):
            continue
        # Of a line that says nothing of places the source's name is all that there is.
        if overlap(line.origin.reads, earlier.origin.reads) or (
            not earlier.origin.reads and earlier.source == line.source
        ):
            raise BudgetError(
                f"source {line.source!r} would spend on ledger {line.ledger!r}, but reads what {earlier.source!r} has spent on ledger "
                f"{earlier.ledger!r}: two budgets for the same people. Write `ledger: {earlier.ledger}` at sources.{line.source}.ledger to share "
                f"it; or, if they are to be apart on purpose, `apart_from: {earlier.ledger}` at sources.{line.source}.apart_from, which the "
                "ledger keeps"
            )
    same = [earlier for earlier in earlier_lines if earlier.cost.protects is line.cost.protects]
    check_cap(same, line.ledger, line.source, line.origin.cap, of_frame)
    if line.origin.cap:
        on_ledger = [earlier for earlier in same if earlier.ledger == line.ledger]
        _check_unit(on_ledger, line, of_frame)


def _check_unit(earlier_lines: Sequence[Line], line: Line, of_frame: bool) -> None:
    """Refuse a second unit of the same records under one cap, which bounds what the first one's runs cost."""
    first = next((earlier for earlier in earlier_lines if _of_same_records(line, earlier)), None)
    conflicts = [earlier for earlier in earlier_lines if protects_other_unit(line, earlier)]
    # A run of another unit may be older than the cap; one that the cap has counted may not.
    conflict = next((run for run in conflicts if run is first or run.origin.cap), None)
    if conflict is None:
        return
    unit_text = ", ".join(line.unit)
    own_ledger = re.sub("[^A-Za-z0-9_-]", "_", f"{line.ledger}_by_{'_'.join(line.unit)}")
    if of_frame:
        raise BudgetError(
            f"these records protect {unit_text}, but the cap of {line.ledger!r} is of {', '.join(conflict.unit)}: write unit={_as_python(conflict.unit)} "
            "in dpsql.session(...); or, if these are other people, another name="
        )
    raise BudgetError(
        f"source {line.source!r} protects {unit_text}, but the cap of ledger {line.ledger!r} is of {', '.join(conflict.unit)}: one of these may have "
        f"many {unit_text}, and would pay for each. Write `privacy_unit: {_as_yaml(conflict.unit)}` at sources.{line.source}.privacy_unit; or give it a "
        f"budget of its own on purpose: `ledger: {own_ledger}` and `apart_from: {line.ledger}` at sources.{line.source}"
    )


def protects_other_unit(line: Line, other_line: Line) -> bool:
    """Tell whether two runs over the same records protect units of different columns.

    Where the records are different, sources that share a ledger say by that that their columns name the same people.
    """
    users = line.cost.protects is other_line.cost.protects is PrivacyLevel.USER
    return users and set(line.unit) != set(other_line.unit) and _of_same_records(line, other_line)


def _of_same_records(line: Line, other_line: Line) -> bool:
    return line.source == other_line.source or overlap(line.origin.reads, other_line.origin.reads)


def _as_yaml(columns: Sequence[str]) -> str:
    return columns[0] if len(columns) == 1 else f"[{', '.join(columns)}]"


def _as_python(columns: Sequence[str]) -> str:
    return repr(columns[0]) if len(columns) == 1 else repr(list(columns))


def cap_for(source: Source, level: PrivacyLevel) -> Cap | None:
    """Return the cap that a run of one level has to keep.

    Raises:
        BudgetError: the source caps the other level only, so nothing would limit this one.
    """
    cap = source.cap_of(level)
    declared = next(
        (candidate for candidate in (source.cap, source.event_cap) if candidate is not None), None
    )
    if cap is None and declared is not None:
        query_protects, cap_protects = (
            ("rows", "units") if level is PrivacyLevel.EVENT else ("units", "rows")
        )
        example = (
            "{privacy_level: EVENT, epsilon: 1, delta: 0}"
            if level is PrivacyLevel.EVENT
            else "{epsilon: 20, delta: 1e-6, period: 7 days}"
        )
        raise BudgetError(
            f"the cap of source {source.name!r} protects {cap_protects} ({declared.protects}), and this query protects {query_protects} ({level}): "
            f"add a cap of its level to the list at {declared.place}, like `{example}`"
        )
    return cap


def check_cap(
    earlier_lines: Sequence[Line],
    ledger: str,
    source: str,
    cap: tuple[float, ...] | None,
    of_frame: bool = False,
) -> None:
    """Refuse a cap that is gone without a word.

    Args:
        earlier_lines: the ledger's lines of one privacy level.
        ledger, source: names.
        cap: as declared now (`dpsql.privacy.origin.declared_cap`).
        of_frame: it is an argument.

    Raises:
        BudgetError: says how to put it back, and how to say that it is meant.
    """
    last_cap = next(
        (
            line.origin.cap
            for line in reversed(earlier_lines)
            if line.ledger == ledger and line.origin.reads
        ),
        None,
    )
    if last_cap and cap is None and of_frame:
        epsilon, delta, period_us = last_cap
        period = {"period": f"{period_us / DAY_US:g} days"} if period_us else {}
        level = {} if period_us else {"privacy_level": "EVENT"}
        cap_text = {**level, "epsilon": epsilon, "delta": delta, **period}
        raise BudgetError(
            f"the people of {ledger!r} have had a cap: write cap={cap_text} in dpsql.session(...)"
        )
    if last_cap and cap is None:
        raise BudgetError(
            f"ledger {ledger!r} has had a cap, and source {source!r} declares none any more: write "
            f"`cap: {cap_in_words(last_cap)}` at sources.{source}.cap; or `cap: none`, if it is to have none, which the ledger keeps"
        )


def remarks(lines: Sequence[Line]) -> tuple[str, ...]:
    """Return what was declared on purpose, or changed, in the lines of one ledger name."""
    sentences: list[str] = []
    cap: tuple[float, ...] | None = None
    for line in lines:
        if not line.origin.reads:
            continue
        if cap and line.origin.cap != cap:
            sentences.append(
                f"the cap was {cap_in_words(cap)} until {line.created[:10]}, then {cap_in_words(line.origin.cap)}"
            )
        cap = line.origin.cap
    ledger_names = dict.fromkeys(name for line in lines for name in line.origin.apart_from)
    sentences.extend(
        f"by declaration apart from ledger {ledger_name}, which has a budget of its own for the same records"
        for ledger_name in ledger_names
    )
    return tuple(sentences)


# The budget ledger: one line (a small JSON file) per run, in the secret's folder, never changed
# and never removed.

# A line is checked against its source's cap and appended in one optimistic step: read all lines,
# add up, create the next number; if
# somebody else created that number first, begin again. So two runs can never both take the last
# of a budget. A line is written before
# any data is read; a restarted run has its line already and spends nothing.

# Guarantee: with a cap (epsilon, delta, period), one privacy unit's taking part in one period
# (counted from 1970-01-01 UTC) is
# (epsilon, delta)-protected in all runs of the ledger together (docs/privacy/index.md, theorem
# 4). A ledger with a cap protects one unit of the same
# records. What a line says is in `dpsql.privacy.ledger_line`.

#     ledger/000001.json, ...     the lines
#     ledger/seals                the ledger's own id, and what shows that a line was edited or lost (`dpsql.privacy.seals`)
#     ledger/home                 where the ledger is: a copy beside it is noticed
#     ledger/runs                 the register of run ids (`dpsql.privacy.register`)

__all__ = ["Ledger", "Line", "cost_in_period"]

MAX_LINES = 999_999
REGISTER = "runs"
ASKS = "asks"
"""Folder of the paid answers of runs (`dpsql.published.paid`)."""
HOME = "home"
PUT_BACK = "nothing can be spent before it is known what was spent"


@dataclass(frozen=True)
class Ledger:
    """The lines below one folder (`ledger/000001.json`, ...).

    Args:
        folder: where they are.
        secret: seals lines and checks seals; without it, lines are only read and counted.
    """

    folder: Path
    secret: Secret | None = field(default=None, compare=False, repr=False)

    @classmethod
    def beside_secret(cls, secret: Secret) -> Ledger:
        """Return the ledger beside the file of a secret.

        Raises:
            BudgetError: the secret has no file.
        """
        if secret.path is None:
            raise BudgetError(
                "this secret has no file, so it has no ledger: use Secret.load(path), or name one with ledger=Ledger(folder)"
            )
        return cls.beside(secret.path)

    @classmethod
    def beside(cls, secret_path: str | Path, secret: Secret | None = None) -> Ledger:
        """Return the ledger that belongs to a secret file: beside the file itself, whatever links lead to it.

        Raises:
            BudgetError: there is another one beside a link to the file, as earlier releases made it.
        """
        linked = Path(secret_path).parent / "ledger"
        own_folder = Path(secret_path).resolve().parent / "ledger"
        if (
            linked.is_dir()
            and any(linked.iterdir())
            and not (own_folder.is_dir() and linked.samefile(own_folder))
        ):
            instead = f"move it there: mv {linked} {own_folder}"
            if own_folder.is_dir():
                instead = (
                    f"{own_folder} already exists, and one secret has one budget. Move {linked} away, and write down the runs of each lake with "
                    "`dpsql restore NAME --lake DIR --ledger`"
                )
            raise BudgetError(
                f"ledger {linked} is next to a link, but a ledger belongs next to the secret itself ({own_folder.parent}): {instead}"
            )
        return cls(own_folder, secret)

    def sealed_by(self, secret: Secret) -> Ledger:
        """Return the same ledger for those who have the secret."""
        return replace(self, secret=secret)

    def lines(self) -> tuple[Line, ...]:
        """Return all lines, oldest first.

        Raises:
            BudgetError: a line is missing, edited, unreadable or of an unknown version; nothing may be spent until it is restored.
        """
        seals = read_seals(self.folder)  # before the lines: others add a line first, then its seal
        contents = self._contents()
        lines = tuple(
            _line(self._path(number), content) for number, content in enumerate(contents, start=1)
        )
        self._check_whole(seals, contents, lines)
        return lines

    @property
    def register(self) -> RunRegister:
        """The register of what the runs of this ledger have published, and where."""
        return RunRegister(self.folder / REGISTER)

    def find(self, run_id: str) -> Line | None:
        """Return the line of a run; None if it has none.

        Raises:
            BudgetError: as `lines`.
        """
        return next((line for line in self.lines() if line.run_id == run_id), None)

    def has(self, run_id: str) -> bool:
        """Tell whether a run has its line; raises as `lines`."""
        return self.find(run_id) is not None

    def unchecked(self) -> int:
        """Return how many lines nobody here can check for edits: they were sealed with another secret."""
        seals = read_seals(self.folder)
        return seals.of_others(self.secret) if seals and self.secret else 0

    def own_id(self) -> str:
        """Return the ledger's id, made when it is first asked for; with it go the seals of the lines that are there.

        Raises:
            BudgetError: a line is missing or edited, or this is a copy.
        """
        if self.secret is None:
            raise BudgetError(
                f"ledger {self.folder}: a new run needs the secret to seal its line: Ledger.beside(path, secret)"
            )
        with reporting_os_errors(f"ledger {self.folder}", BudgetError):
            self.folder.mkdir(parents=True, exist_ok=True, mode=0o700)
            seals = read_seals(self.folder)
            if seals is None:
                self.lines()  # nothing damaged is sealed
                seals = make_seals(self.folder, self._contents(), self.secret)
            self.check_is_home()
            return seals.ledger_id

    def check(self, line: Line, cap: Cap | None) -> None:
        """Refuse a line that `append` would refuse; raises as it does."""
        with reporting_os_errors(f"ledger {self.folder}", BudgetError):
            _check(self.lines(), line, cap)

    def append(
        self, line: Line, cap: Cap | None, spent_already: bool = False, of_frame: bool = False
    ) -> int:
        """Check the cap and write the line; returns its number.

        Args:
            line: of the run.
            cap: what all lines of its ledger name may spend together; None is no cap.
            spent_already: the run is on its way, so nothing is left to refuse.
            of_frame: its cap is an argument, of which a refusal speaks.

        Raises:
            BudgetError: with this run the ledger's runs would spend more than the cap, or it would be spent where the cap does not see
                it; nothing was written.
        """
        with reporting_os_errors(f"ledger {self.folder}", BudgetError):
            if self.secret is not None or line.origin.ledger_id:
                self.own_id()
            self.folder.mkdir(parents=True, exist_ok=True, mode=0o700)
            while True:
                earlier_lines = self.lines()
                if any(earlier.run_id == line.run_id for earlier in earlier_lines):
                    raise BudgetError(
                        f"ledger {self.folder}: run {line.run_id} has its line already; a run id is used once"
                    )
                if not spent_already:
                    _check(earlier_lines, line, cap, of_frame)
                number = len(earlier_lines) + 1
                if number > MAX_LINES:
                    raise BudgetError(f"ledger {self.folder}: full ({MAX_LINES} lines)")
                try:
                    create_file(
                        self._path(number), json.dumps(document(line), indent=1).encode() + b"\n"
                    )
                except FileExistsError:
                    continue  # another run took this number: its line counts too
                if self.secret is not None:
                    seal_lines(self.folder, self._line_bytes, self.secret)
                return number

    def check_cap_is_kept(self, source: Source) -> None:
        """Refuse a source that has lost the cap of its ledger; raises BudgetError."""
        lines = self.lines()
        for level in PrivacyLevel:
            check_cap(
                [line for line in lines if line.cost.protects is level],
                source.ledger,
                source.name,
                declared_cap(source, level),
            )

    def check_is_home(self) -> None:
        """Refuse a copy of a ledger that is still at its place; follow one that has moved.

        Raises:
            BudgetError: says which one to go on with.
        """
        folder = self.folder.resolve()
        home = self.folder / HOME
        with reporting_os_errors(f"ledger {self.folder}", BudgetError):
            recorded = Path(os.fsdecode(home.read_bytes())) if home.exists() else None
            if (
                recorded is not None
                and recorded != folder
                and os.path.isdir(recorded)
                and not recorded.samefile(folder)
            ):
                recorded_seals = read_seals(recorded)
                own_seals = read_seals(folder)
                if recorded_seals and own_seals and recorded_seals.ledger_id == own_seals.ledger_id:
                    raise BudgetError(
                        f"ledger {folder} is a copy of {recorded}, which is still there: each would spend without the other, and their runs could "
                        f"publish the same noise on other data. Continue with the secret next to {recorded}; or move {folder} away for a ledger of its "
                        "own, in which nothing is known to be spent"
                    )
            if recorded != folder and folder.is_dir():
                replace_file(home, os.fsencode(folder))

    def _contents(self) -> list[bytes]:
        """Return the bytes of every line, oldest first."""
        names = list[str]()
        with (
            reporting_os_errors(f"ledger {self.folder}", BudgetError),
            contextlib.suppress(FileNotFoundError),
        ):
            names = [
                name
                for name in os.listdir(self.folder)
                if not name.startswith(".") and name not in (REGISTER, ASKS, SEALS, HOME)
            ]
        # Read by number: while others append, a listing may have a line and miss the one before it.
        newest = max(
            (int(name[:6]) for name in names if re.fullmatch(r"\d{6}\.json", name)), default=0
        )
        foreign = sorted(set(names) - {self._path(number).name for number in range(1, newest + 1)})
        if foreign:
            raise BudgetError(f"ledger {self.folder}: {foreign[0]} is no line; move it away")
        return [self._must_read(number) for number in range(1, newest + 1)]

    def _must_read(self, number: int) -> bytes:
        content = self._line_bytes(number)
        if content is None:
            remedy = f"put it back: {PUT_BACK}. {without_original(self.folder)}"
            raise BudgetError(f"ledger line {self._path(number)} is lost; {remedy}")
        return content

    def _line_bytes(self, number: int) -> bytes | None:
        with (
            reporting_os_errors(f"ledger line {self._path(number)}", BudgetError),
            contextlib.suppress(FileNotFoundError),
        ):
            return self._path(number).read_bytes()
        return None

    def _path(self, number: int) -> Path:
        return self.folder / f"{number:06d}.json"

    def _check_whole(
        self, seals: Seals | None, contents: Sequence[bytes], lines: Sequence[Line]
    ) -> None:
        """Hold the lines against their seals."""
        otherwise = without_original(self.folder)
        if seals is None:
            if any(line.origin.ledger_id for line in lines):
                raise BudgetError(
                    f"{self.folder / SEALS} is lost; put it back: it says which lines the ledger has had. {otherwise}"
                )
            return
        missing = seals.missing_lines(len(contents))
        if missing:
            names = self._path(missing[0]).name + (
                f" to {self._path(missing[-1]).name}" if len(missing) > 1 else ""
            )
            raise BudgetError(
                f"ledger {self.folder}: {names} {'are' if len(missing) > 1 else 'is'} lost; put back: {PUT_BACK}. {otherwise}"
            )
        edited = seals.edited(contents, self.secret) if self.secret else ()
        if edited:
            names = ", ".join(self._path(number).name for number in edited[:5]) + (
                " and more" if len(edited) > 5 else ""
            )
            raise BudgetError(
                f"ledger {self.folder}: edited after it was written: {names}; put back the original: {PUT_BACK}. {otherwise}"
            )


def _check(
    earlier_lines: Sequence[Line], line: Line, cap: Cap | None, of_frame: bool = False
) -> None:
    check_line(earlier_lines, line, of_frame)
    if cap is None:
        return
    if cap.protects is not line.cost.protects:
        raise ValueError(f"a cap of level {cap.protects} for a cost of level {line.cost.protects}")
    on_ledger = [
        earlier
        for earlier in earlier_lines
        if (earlier.ledger, earlier.cost.protects) == (line.ledger, cap.protects)
    ]
    shared = [earlier for earlier in on_ledger if not protects_other_unit(line, earlier)]
    total_after = cost_in_period([*shared, line], cap)
    delta = total_after.delta(cap.epsilon)
    if not delta <= cap.delta:  # so that NaN is refused too
        total_before = cost_in_period(shared, cap)
        per = (
            "row"
            if cap.protects is PrivacyLevel.EVENT
            else f"{cap.period_us / 86_400_000_000:g} days"
        )
        raise BudgetError(
            f"ledger {line.ledger!r}: this run (epsilon {line.declared_epsilon:g}, delta {line.declared_delta:g}) would exceed the cap of "
            f"epsilon {cap.epsilon:g}, delta {cap.delta:g} per {per}: "
            f"with the {len(shared)} runs before, delta at epsilon {cap.epsilon:g} would be {delta:.3g} "
            f"(mu {total_before.mu:.4g} -> {total_after.mu:.4g}, threshold and hash {total_before.failure:.3g} -> {total_after.failure:.3g}); "
            f"ask for a smaller epsilon, or raise the cap: {cap.place}"
        )


def _line(path: Path, content: bytes) -> Line:
    try:
        return line_from(json.loads(content))
    except UnknownLineVersion as problem:
        raise BudgetError(f"ledger line {path}: {problem}") from None
    except (ValueError, TypeError, KeyError, RecursionError):
        remedy = f"put back the original file: {PUT_BACK}. {without_original(path.parent)}"
        raise BudgetError(f"ledger line {path}: not readable; {remedy}") from None
