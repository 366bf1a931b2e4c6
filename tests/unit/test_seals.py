"""The secret file, and the seals of a ledger: edits and a lost end are noticed and named, nobody is locked out by a crash."""

import copy
import hashlib
import hmac
import json
import os
import pickle
import re
import shutil
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, replace
from pathlib import Path

import pytest

from dpsql.errors import BudgetError, SecretError
from dpsql.privacy.ledger import Ledger, Line
from dpsql.privacy.secret import Secret, default_secret_path
from tests.unit.test_ledger import LINE

SECRET = Secret(bytes(range(32)))


def line(number: int) -> Line:
    return replace(LINE, run_id=f"{number:032x}")


@pytest.fixture
def ledger(tmp_path: Path) -> Ledger:
    """Five sealed lines."""
    made = Ledger(tmp_path / "secrets" / "ledger", SECRET)
    for number in range(1, 6):
        assert made.append(line(number), None) == number
    return made


def edit(path: Path, change: Callable[[bytes], bytes]) -> None:
    path.write_bytes(change(path.read_bytes()))


@pytest.mark.parametrize("number", [1, 3, 5])
def test_an_edit_of_any_part_of_any_line_is_noticed_and_named(ledger: Ledger, number: int) -> None:
    path = ledger.folder / f"{number:06d}.json"
    original = path.read_bytes()
    for i in range(0, len(original), 7):
        path.write_bytes(
            original[:i] + (b"0" if original[i : i + 1] != b"0" else b"1") + original[i + 1 :]
        )
        with pytest.raises(BudgetError, match=rf"{number:06d}\.json"):
            ledger.append(line(9), None)
    given = json.loads(original)
    for change in (
        {"cost": {**given["cost"], "mu2": 0.0, "mu2_shared": 0.0}},
        {"ledger": "others"},
        {"kind": "try"},
    ):
        path.write_bytes(json.dumps({**given, **change}, indent=1).encode() + b"\n")
        with pytest.raises(
            BudgetError,
            match=rf"edited after it was written: {number:06d}\.json; put back the original.*--ledger",
        ):
            ledger.lines()
        assert len(Ledger(ledger.folder).lines()) == 5  # only the owner of the secret can tell
    path.write_bytes(original)
    assert len(ledger.lines()) == 5


def test_every_edited_line_is_named_and_no_other(ledger: Ledger) -> None:
    for number in (2, 4):
        edit(
            ledger.folder / f"{number:06d}.json",
            lambda text: text.replace(b"2026-01-01", b"2026-01-02"),
        )
    with pytest.raises(BudgetError, match=r"written: 000002\.json, 000004\.json; put"):
        ledger.lines()


def test_a_line_of_another_place_or_another_ledger_does_not_fit(
    ledger: Ledger, tmp_path: Path
) -> None:
    one = ledger.folder / "000001.json"
    two = ledger.folder / "000002.json"
    first = one.read_bytes()
    second = two.read_bytes()
    one.write_bytes(second)
    two.write_bytes(first)
    with pytest.raises(BudgetError, match=r"000001\.json, 000002\.json"):
        ledger.lines()
    other = Ledger(tmp_path / "other" / "ledger", SECRET)
    for number in range(1, 6):
        other.append(replace(line(number), source="elsewhere"), None)
    one.write_bytes((other.folder / "000001.json").read_bytes())
    two.write_bytes(second)
    seals, foreign = ((each.folder / "seals").read_bytes().splitlines() for each in (ledger, other))
    (ledger.folder / "seals").write_bytes(
        b"\n".join([seals[0], foreign[1], *seals[2:], b""])
    )  # with its seal
    with pytest.raises(
        BudgetError, match=r"000001\.json, 000002\.json"
    ):  # nor does the row after it
        ledger.lines()


@pytest.mark.parametrize(
    ("cut", "says"),
    [
        (1, r"000005\.json is lost"),
        (3, r"000003\.json to 000005\.json are lost"),
        (5, r"000001\.json to"),
    ],
)
def test_a_lost_end_is_noticed(ledger: Ledger, cut: int, says: str) -> None:
    for number in range(5, 5 - cut, -1):
        (ledger.folder / f"{number:06d}.json").unlink()
    for reader in (ledger, Ledger(ledger.folder)):
        with pytest.raises(BudgetError, match=says):
            reader.append(line(9), None)


def test_lost_and_damaged_seals_are_noticed(ledger: Ledger) -> None:
    path = ledger.folder / "seals"
    whole = path.read_bytes()
    rows = whole.splitlines(keepends=True)
    for damage in (
        b"",
        b"\n",
        rows[0][:-2] + b"\n",
        b"".join(rows[1:]),
        rows[0] + b"".join(rows[2:]),
        whole + b"x\n",
        whole + rows[1],
    ):
        path.write_bytes(damage)
        with pytest.raises(BudgetError, match=r"seals: damaged; put back"):
            ledger.lines()
    path.write_bytes(whole)
    number = ledger.append(
        replace(line(6), origin=replace(LINE.origin, ledger_id=ledger.own_id())), None
    )
    path.unlink()
    with pytest.raises(BudgetError, match=r"seals is lost; put it back"):
        ledger.append(line(7), None)
    assert number == 6


@pytest.mark.parametrize("left", [0, 1, 50, 104])
def test_a_process_that_died_before_its_seal_was_written_locks_nobody_out(
    ledger: Ledger, left: int
) -> None:
    """It has not read anything, so its line may be counted or not; the next one seals it as found."""
    path = ledger.folder / "seals"
    whole = path.read_bytes()
    row = len(whole.splitlines(keepends=True)[-1])
    path.write_bytes(whole[: len(whole) - row + left])  # `left` bytes of its row were written
    assert len(ledger.lines()) == 5
    assert ledger.append(line(6), None) == 6
    assert path.read_bytes()[: len(whole)] == whole and path.read_bytes().count(b"\n") == 7
    edit(ledger.folder / "000005.json", lambda text: text.replace(b"2026", b"2025"))
    with pytest.raises(BudgetError, match=r"000005\.json"):
        ledger.lines()


def test_a_ledger_of_an_earlier_release_is_read_and_sealed_as_found(tmp_path: Path) -> None:
    folder = tmp_path / "ledger"
    old = Ledger(folder)
    for number in (1, 2):
        old.append(line(number), None)
    assert {path.name for path in folder.iterdir()} == {"000001.json", "000002.json"}
    now = Ledger(folder, SECRET)
    assert len(now.lines()) == 2
    assert now.append(line(3), None) == 3
    edit(folder / "000001.json", lambda text: text.replace(b"2026", b"2025"))
    with pytest.raises(BudgetError, match=r"000001\.json"):
        now.lines()


def test_a_new_secret_beside_an_old_ledger_goes_on_and_says_what_it_cannot_check(
    ledger: Ledger,
) -> None:
    lost = Ledger(ledger.folder, Secret(b"n" * 32))
    assert lost.unchecked() == 5 and ledger.unchecked() == 0
    assert lost.append(line(6), None) == 6
    path = ledger.folder / "seals"
    rows = path.read_bytes().splitlines()
    path.write_bytes(
        b"\n".join(
            [*rows[:5], rows[5][:-1] + (b"0" if rows[5][-1:] != b"0" else b"1"), rows[6], b""]
        )
    )
    with pytest.raises(BudgetError, match=r"000006\.json"):  # the row before it is bound by its own
        lost.lines()


def test_a_copy_is_refused_while_the_original_is_there_and_a_moved_ledger_goes_on(
    ledger: Ledger, tmp_path: Path
) -> None:
    home = ledger.folder.parent
    shutil.copytree(home, tmp_path / "copy")
    copy = Ledger(tmp_path / "copy" / "ledger", SECRET)
    for attempt in (copy.own_id, lambda: copy.append(line(9), None)):
        with pytest.raises(
            BudgetError,
            match=r"copy/ledger is a copy of .*secrets/ledger, which is still there.*a ledger of its own",
        ):
            attempt()
    assert len(copy.lines()) == 5  # reading tells
    ledger.append(line(6), None)
    (tmp_path / "link").symlink_to(home)
    assert Ledger(tmp_path / "link" / "ledger", SECRET).own_id() == ledger.own_id()
    shutil.rmtree(home)  # restored from a backup, as a whole, somewhere else
    assert copy.append(line(9), None) == 6
    copy.folder.parent.rename(tmp_path / "moved")
    assert Ledger(tmp_path / "moved" / "ledger", SECRET).append(line(10), None) == 7


def test_two_ledgers_have_two_ids_and_other_noise(tmp_path: Path) -> None:
    ids = [Ledger(tmp_path / name / "ledger", SECRET).own_id() for name in ("a", "b")]
    assert len(set(ids)) == 2 and all(re.fullmatch("[0-9a-f]{32}", each) for each in ids)
    assert Ledger(tmp_path / "a" / "ledger", SECRET).own_id() == ids[0]
    run = "ab" * 16
    bound = [SECRET.of_ledger(each) for each in ("", *ids)]
    assert (
        len({secret.noise_key(run, "plan") for secret in bound})
        == len({secret.salt(run) for secret in bound})
        == 3
    )
    assert bound[0].noise_key(run, "plan") == SECRET.noise_key(run, "plan")
    with pytest.raises(BudgetError, match="needs the secret"):
        Ledger(tmp_path / "c" / "ledger").append(
            replace(LINE, origin=replace(LINE.origin, ledger_id=ids[0])), None
        )


def test_a_ledger_is_beside_the_secret_itself_whatever_links_lead_to_it(tmp_path: Path) -> None:
    """A link to the secret had a ledger of its own: another budget, another register."""
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    secret = Secret.load(tmp_path / "a" / "secret")
    (tmp_path / "b" / "secret").symlink_to(tmp_path / "a" / "secret")
    Ledger.beside(tmp_path / "a" / "secret", secret).append(LINE, None)
    assert Ledger.beside(tmp_path / "b" / "secret", secret).lines() == (LINE,)
    (tmp_path / "b" / "ledger").mkdir()
    (tmp_path / "b" / "ledger" / "000001.json").write_text(
        json.dumps({**asdict(LINE), "version": 2})
    )
    with pytest.raises(
        BudgetError, match=r"b/ledger is next to a link.*a/ledger already exists.*--ledger"
    ):
        Ledger.beside(tmp_path / "b" / "secret")
    shutil.rmtree(tmp_path / "a" / "ledger")
    with pytest.raises(BudgetError, match=r"move it there: mv .*b/ledger .*a/ledger"):
        Ledger.beside(tmp_path / "b" / "secret")
    (tmp_path / "b" / "ledger").rename(tmp_path / "a" / "ledger")
    assert Ledger.beside(tmp_path / "b" / "secret", secret).lines() == (LINE,)


VALUE = bytes(range(32))


def stored(folder: Path, value: bytes = VALUE, mode: int = 0o600) -> Path:
    path = folder / "secret"
    path.write_bytes(value)
    path.chmod(mode)
    return path


def test_made_once_and_for_the_owner_only(tmp_path: Path) -> None:
    path = tmp_path / "config" / "dpsql" / "secret"
    first = Secret.load(path)
    assert path.stat().st_mode & 0o777 == 0o600
    assert path.parent.stat().st_mode & 0o777 == 0o700
    assert Secret.load(path).check() == first.check()
    assert [entry.name for entry in path.parent.iterdir()] == ["secret"]


def test_many_starters_get_the_same_one(tmp_path: Path) -> None:
    for round_ in range(20):
        path = tmp_path / str(round_) / "secret"
        with ThreadPoolExecutor(8) as pool:
            checks = {secret.check() for secret in pool.map(Secret.load, [path] * 8)}
        assert len(checks) == 1


def test_keys_are_those_of_the_specification(tmp_path: Path) -> None:
    secret = Secret.load(stored(tmp_path), create=False)
    assert (
        secret.noise_key("r", "i") == hmac.new(VALUE, b"dpsql/1/noise|r|i", hashlib.sha256).digest()
    )
    assert secret.salt("r") == hmac.new(VALUE, b"dpsql/1/salt|r", hashlib.sha256).digest()[:16]
    assert secret.check() != Secret(VALUE[::-1]).check()
    bound = secret.of_ledger("l")
    assert (
        bound.noise_key("r", "i")
        == hmac.new(VALUE, b"dpsql/2/noise|l|r|i", hashlib.sha256).digest()
    )
    assert bound.salt("r") == hmac.new(VALUE, b"dpsql/2/salt|l|r", hashlib.sha256).digest()[:16]
    assert (bound.check(), bound.path, repr(bound)) == (secret.check(), secret.path, "Secret(...)")


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o620, 0o666])
def test_refused_when_others_can_touch_it(tmp_path: Path, mode: int) -> None:
    path = stored(tmp_path, mode=mode)
    with pytest.raises(SecretError, match=f"chmod 600 {path}"):
        Secret.load(path)


def test_refused_when_it_is_somebody_elses(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = stored(tmp_path)
    monkeypatch.setattr(os, "geteuid", lambda: path.stat().st_uid + 1)
    with pytest.raises(SecretError, match="belongs to another user"):
        Secret.load(path)


@pytest.mark.parametrize("length", [0, 31, 33])
def test_refused_when_it_has_another_length(tmp_path: Path, length: int) -> None:
    with pytest.raises(SecretError, match=f"has {length} bytes"):
        Secret.load(stored(tmp_path, b"x" * length))


def test_odd_things_in_its_place_are_refused_and_never_hang(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe", 0o600)
    (tmp_path / "nowhere").symlink_to(tmp_path / "gone")
    (tmp_path / "circle").symlink_to(tmp_path / "circle")
    (tmp_path / "device").symlink_to("/dev/zero")
    for name in ("pipe", "nowhere", "circle", "device", "."):
        with pytest.raises(SecretError, match="secret"):
            Secret.load(tmp_path / name)
    with pytest.raises(SecretError, match="no such file"):
        Secret.load(tmp_path / "none", create=False)
    with pytest.raises(SecretError):
        Secret.load(stored(tmp_path) / "below-a-file")


def test_never_shown_pickled_or_copied(tmp_path: Path) -> None:
    secret = Secret(VALUE)
    assert repr(secret) == str(secret) == "Secret(...)"
    for leak in (pickle.dumps, copy.copy, copy.deepcopy):
        with pytest.raises(TypeError, match="never pickled"):
            leak(secret)
    assert not hasattr(secret, "__dict__")


def test_default_path(tmp_path: Path) -> None:
    assert default_secret_path({"DPSQL_SECRET_FILE": "/s"}) == Path("/s")
    assert default_secret_path({"XDG_CONFIG_HOME": "/c"}) == Path("/c/dpsql/secret")
    assert (
        default_secret_path({"XDG_CONFIG_HOME": "relative"}) == Path.home() / ".config/dpsql/secret"
    )
