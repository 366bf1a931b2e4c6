"""The secret file: who may read it, how it is made, and that it never leaves the object."""

import copy
import hashlib
import hmac
import os
import pickle
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from dpsql.errors import SecretError
from dpsql.privacy.secret import Secret, default_secret_path

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
    assert secret.noise_key("r", "i") == hmac.new(VALUE, b"dpsql/1/noise|r|i", hashlib.sha256).digest()
    assert secret.salt("r") == hmac.new(VALUE, b"dpsql/1/salt|r", hashlib.sha256).digest()[:16]
    assert secret.check() != Secret(VALUE[::-1]).check()
    bound = secret.of_ledger("l")
    assert bound.noise_key("r", "i") == hmac.new(VALUE, b"dpsql/2/noise|l|r|i", hashlib.sha256).digest()
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
    assert default_secret_path({"XDG_CONFIG_HOME": "relative"}) == Path.home() / ".config/dpsql/secret"
