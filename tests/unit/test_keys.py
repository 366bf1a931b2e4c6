"""The key codec: what was encoded comes back, and different keys never share an encoding."""

import itertools

import pyarrow as pa
import pytest

from dpsql.udfs.keys import MAX_KEY_BYTES, NULL_HEADER, decode, encode

VALUES = [None, b"", b"a", b"----", b"0001a", b"\x00\xff", "é".encode(), b"x" * 4000]


@pytest.mark.parametrize("columns", [0, 1, 2, 3])
def test_round_trip(columns: int) -> None:
    """Catches: NULL read as '', lengths in characters, offsets that drift after a NULL or an empty value."""
    keys = list(itertools.islice(itertools.product(VALUES, repeat=columns), 400))
    found = decode(pa.array([encode(list(k)) for k in keys], pa.binary()), columns)
    assert [c.to_pylist() for c in found] == [list(c) for c in zip(*keys, strict=True)]
    assert all(c.type == pa.binary() for c in found)


def test_the_encoding_is_injective() -> None:
    """Catches: separators that a value can contain; ('a', NULL) and (NULL, 'a') must be different people."""
    keys = [k for n in (1, 2, 3) for k in itertools.product(VALUES[:-1], repeat=n)]
    for n in (1, 2, 3):
        same_width = [encode(list(k)) for k in keys if len(k) == n]
        assert len(set(same_width)) == len(same_width)
    assert encode([b"a", None]) != encode([None, b"a"])


def test_slices_and_chunks_decode_like_whole_arrays() -> None:
    """Catches: an Arrow offset that is ignored (the histogram is cut and concatenated before it is decoded)."""
    array = pa.array(
        [encode([bytes([65 + i]) * i, None if i % 2 else b"z"]) for i in range(9)], pa.binary()
    )
    whole = [c.to_pylist() for c in decode(array, 2)]
    assert [c.to_pylist() for c in decode(array.slice(3, 4), 2)] == [c[3:7] for c in whole]
    chunked = pa.chunked_array([array.slice(0, 2), array.slice(2)])
    assert [c.to_pylist() for c in decode(chunked, 2)] == whole
    assert [c.to_pylist() for c in decode(array.slice(0, 0), 2)] == [[], []]


def test_the_longest_key_still_has_a_four_digit_length() -> None:
    assert MAX_KEY_BYTES <= 9999
    assert len(NULL_HEADER) == len(encode([b""])) == 4
