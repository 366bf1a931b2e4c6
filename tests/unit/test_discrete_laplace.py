"""Tables of discrete Laplace noise: proven in integers, and looked up exactly as they say."""

import dataclasses
import hashlib
from bisect import bisect_right
from fractions import Fraction
from itertools import accumulate
from unittest import mock

import numpy as np
import pytest

from dpsql.errors import AccountingError
from dpsql.privacy.noise_costs import prove
from dpsql.udfs.noise import discrete_laplace as module
from dpsql.udfs.noise import randomness
from dpsql.udfs.noise.discrete_laplace import (
    LARGEST,
    SMALLEST,
    WORDS,
    DiscreteLaplace,
    discrete_laplace,
)

EPSILONS = (LARGEST, 3.0, 1.0, 0.1, 0.01, 1e-4)


def changed(table: DiscreteLaplace, entry: str, change: int) -> DiscreteLaplace:
    """A table with one entry larger by `change`, and the entry of 0 smaller, so that all words are used."""
    first = (
        table.middle[0]
        - (change if entry == "middle" else 0) * 2
        - (change if entry == "tail" else 0) * 2
    )
    onward = (
        table.onward[0] - (change if entry in ("onward", "onward_tail") else 0),
        *table.onward[1:],
    )
    middle = (first, *table.middle[1:])
    match entry:
        case "middle":
            middle = (*middle[:-1], middle[-1] + change)
        case "onward":
            onward = (*onward[:-1], onward[-1] + change)
    return dataclasses.replace(
        table,
        middle=middle,
        onward=onward,
        tail=table.tail + (change if entry == "tail" else 0),
        onward_tail=table.onward_tail + (change if entry == "onward_tail" else 0),
    )


@pytest.mark.parametrize("epsilon", EPSILONS)
def test_tables_keep_their_epsilon(epsilon: float) -> None:
    prove(discrete_laplace(epsilon))


@pytest.mark.parametrize("epsilon", (1.0, 0.1, 0.01))
@pytest.mark.parametrize(
    ("entry", "sign"),
    (
        ("middle", 1),
        ("middle", -1),
        ("onward", 1),
        ("onward", -1),
        ("tail", -1),
        ("onward_tail", -1),
    ),
)
def test_an_entry_at_a_seam_that_is_off_by_a_billionth_is_refused(
    epsilon: float, entry: str, sign: int
) -> None:
    table = discrete_laplace(epsilon)
    size = {
        "middle": table.middle[-1],
        "tail": table.tail,
        "onward": table.onward[-1],
        "onward_tail": table.onward_tail,
    }[entry]
    with pytest.raises(AccountingError, match="does not keep its epsilon"):
        prove(changed(table, entry, sign * (size >> 30)))
    prove(
        changed(table, entry, sign)
    )  # One word more or less is within the slack and keeps the ratio


def test_a_tail_that_is_too_heavy_is_only_noise_that_is_larger() -> None:
    """It makes the step into the tail a smaller one, and all later steps stay what they are."""
    table = discrete_laplace(0.1)
    prove(changed(table, "tail", table.tail >> 30))


@pytest.mark.parametrize("epsilon", EPSILONS)
def test_a_scale_that_is_a_thousandth_too_small_is_refused(epsilon: float) -> None:
    with pytest.raises(AccountingError, match="does not keep its epsilon"):
        prove(dataclasses.replace(discrete_laplace(epsilon), epsilon=epsilon * 0.999))


def test_a_table_made_without_slack_is_refused() -> None:
    with mock.patch.object(module, "SLACK", Fraction(0)):
        tight = discrete_laplace.__wrapped__(0.1)
    with pytest.raises(AccountingError, match="does not keep its epsilon"):
        prove(tight)


def test_a_truncated_tail_and_lost_words_are_refused() -> None:
    table = discrete_laplace(0.5)
    truncated = dataclasses.replace(
        table, tail=0, middle=(table.middle[0] + 2 * table.tail, *table.middle[1:])
    )
    with pytest.raises(AccountingError, match="empty entry"):
        prove(truncated)
    with pytest.raises(AccountingError, match="not all random words"):
        prove(dataclasses.replace(table, tail=table.tail - 1))
    with pytest.raises(AccountingError, match="not all random words"):
        prove(dataclasses.replace(table, onward_tail=table.onward_tail + 1))


@pytest.mark.parametrize(
    "epsilon", (SMALLEST * 0.99, LARGEST * 1.01, 0.0, -1.0, float("nan"), float("inf"))
)
def test_no_table_for_an_epsilon_that_it_could_not_keep(epsilon: float) -> None:
    with pytest.raises(ValueError, match="a table of discrete Laplace noise needs"):
        discrete_laplace(epsilon)


def halves(values: list[int]) -> np.ndarray:
    return np.array([(value >> 64, value & ((1 << 64) - 1)) for value in values], np.uint64)


def spelled_out(table: DiscreteLaplace, drawn: list[int]) -> int:
    """The definition: intervals of words in the order of k, tails at both ends; a word of a tail asks for the next one."""
    last = table.last
    ends = list(accumulate([table.tail, *reversed(table.middle[1:]), *table.middle, table.tail]))
    k = bisect_right(ends, drawn[0]) - (last + 1)
    if abs(k) <= last:
        return k
    beyond = last + 1
    onward = list(accumulate([*table.onward, table.onward_tail]))
    for word in drawn[1:]:
        more = bisect_right(onward, word)
        beyond += more
        if more <= last:
            return beyond if k > 0 else -beyond
    raise AssertionError("more words are needed")


@pytest.mark.parametrize("epsilon", (3.0, 1.0, 0.1))
def test_every_word_gives_the_number_that_the_table_says(epsilon: float) -> None:
    """The first and the last word of every interval, also of the second and third word, and a thousand others."""
    table = discrete_laplace(epsilon)
    ends = list(accumulate([table.tail, *reversed(table.middle[1:]), *table.middle, table.tail]))
    onward = list(accumulate([*table.onward, table.onward_tail]))
    assert ends[-1] == onward[-1] == WORDS
    edges = [edge + off for edge in (0, *ends) for off in (-1, 0) if 0 <= edge + off < WORDS]
    further = [edge + off for edge in (0, *onward) for off in (-1, 0) if 0 <= edge + off < WORDS]
    generator = np.random.default_rng(1)
    anywhere = [int.from_bytes(generator.bytes(16), "big") for _ in range(1000)]
    cases = [
        (word, further[i % len(further)], further[i % 7], 0)
        for i, word in enumerate([*edges, *anywhere])
    ]
    cases += [
        (word, after, third, 0)
        for word in (0, WORDS - 1)
        for after in further
        for third in (5, WORDS - 1)
    ]

    def given(
        _key: bytes, tag: np.ndarray, _m: int, _r: int, _s: int, number: int = 0
    ) -> np.ndarray:
        return halves([cases[i][number] for i in tag[:, 0].tolist()])

    tag = np.zeros((len(cases), 2), np.uint64)
    tag[:, 0] = np.arange(len(cases))
    with mock.patch.object(module, "words", given):
        drawn = table.draw(b"", tag, 1, 0, 1).tolist()
    assert drawn == [spelled_out(table, list(case)) for case in cases]
    assert max(map(abs, drawn)) > 2 * table.last  # some went on for three words


def test_a_cell_gives_one_number_whatever_is_asked_beside_it() -> None:
    key = hashlib.sha256(b"k").digest()
    table = discrete_laplace(1.0)
    tag = randomness.tags(key, np.zeros(5000, np.int64), np.arange(5000))
    steps = np.arange(5000) % 7
    drawn = table.draw(key, tag, 2, 1, steps)
    assert (np.abs(drawn) > table.last).any()
    for part in (slice(0, 1), slice(17, 2000), np.arange(4999, 0, -3)):
        assert np.array_equal(table.draw(key, tag[part], 2, 1, steps[part]), drawn[part])
    assert len(table.draw(key, tag[:0], 2, 1, steps[:0])) == 0
