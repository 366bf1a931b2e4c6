"""Every way of measuring against plain lists; what each asks of the data; what smoothing may do."""

import dataclasses
import math
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from dpsql.udfs.noise.discrete_laplace import DiscreteLaplace
from dpsql.udfs.sliding.panes import (
    MONITOR,
    PANE,
    SUM,
    Bins,
    Measurement,
    PaneCells,
    Window,
    new_bins,
)
from dpsql.udfs.sliding.smoothing import MEMORIES, LimitedTranslation
from tests.mechanisms.sliding import reference
from tests.mechanisms.sliding.pane_runs import cells, plain, retroactive, windows

W = 6
NOTHING = np.zeros(1, np.int64)
KINDS = {PANE: "pane", SUM: "sum", MONITOR: "monitor"}


def bursty(panes: int = 150, bins: int = 12, seed: int = 5) -> np.ndarray:
    """Flat, slow, stepping and bursting bins."""
    g = np.random.default_rng(seed)
    rate = np.exp(g.normal(1, 2, bins)) * np.ones((panes, 1))
    rate[panes // 2 :, : bins // 3] *= 8
    rate[g.random((panes, bins)) < 0.02] += 400
    return g.poisson(rate)


def test_plain_is_the_sum_of_noisy_panes() -> None:
    x = bursty()
    found = np.array([window.value for window in windows(plain(W, 0.5), x)])
    table = plain(W, 0.5).table
    one = np.arange(1)
    for j in range(x.shape[1]):

        def noise(pane: int, j: int = j) -> int:
            each = cells(1, x.shape[1], pane)
            return int(
                dataclasses.replace(each, key=each.key[j : j + 1]).pane(table, one, NOTHING)[0]
            )

        assert found[:, j].tolist() == reference.plain(x[:, j].tolist(), W, noise)


def test_retroactive_is_the_papers_algorithm() -> None:
    """Bit for bit, on the same noise."""
    m = retroactive(W, 0.5)
    x = bursty(200)
    found = np.array([window.value for window in windows(m, x)])
    one = np.arange(1)
    fired = 0
    for j in range(x.shape[1]):
        key = cells(1, x.shape[1], 0).key[j : j + 1]

        def at(pane: int, key: np.ndarray = key) -> PaneCells:
            return dataclasses.replace(cells(1, 1, pane), key=key)

        def together(first: int, size: int, at=at) -> int:  # type: ignore[no-untyped-def]
            return int(at(first).sum(m.table, one, np.array([0]), np.array([size]), NOTHING)[0])

        values, alone = reference.paper(
            x[:, j].tolist(),
            lambda t, at=at: int(at(t).monitor(m.monitor, one, NOTHING)[0]),
            lambda t, at=at: int(at(t).pane(m.table, one, NOTHING)[0]),
            together,
            m.table.epsilon,
        )
        fired += len(alone)
        assert found[:, j].tolist() == np.rint(reference.windows(values, W)).astype(int).tolist()
    assert 0.3 * x.size < fired < 0.99 * x.size  # some panes wait


@dataclass(frozen=True)
class Watched(PaneCells):
    """Cells that write down what is asked: (kind, bin, first pane, panes, epsilon)."""

    asked: list[tuple[str, int, int, int, float]] = field(default_factory=list)
    silent: bool = False

    def _note(
        self,
        kind: str,
        rows: np.ndarray,
        first: np.ndarray,
        size: np.ndarray,
        table: DiscreteLaplace,
    ) -> None:
        for row, a, b in zip(rows.tolist(), first.tolist(), size.tolist(), strict=True):
            self.asked.append((kind, row, a, b, table.epsilon))

    def _noisy(self, table, rows, back, round_, members, exact):  # type: ignore[no-untyped-def]
        self._note(KINDS[round_], rows, *_panes_of(self, rows, back, members), table)
        noisy = super()._noisy(table, rows, back, round_, members, exact)
        return exact if self.silent else noisy


def _panes_of(
    at: PaneCells, rows: np.ndarray, back: np.ndarray | int, members: np.ndarray | int
) -> tuple[np.ndarray, np.ndarray]:
    """Number of the first pane and how many panes, for each row."""
    return at.start_us // at.slide_us - np.broadcast_to(back, rows.shape), np.broadcast_to(
        members, rows.shape
    )


def watch(
    m: Measurement, x: np.ndarray, silent: bool = False
) -> Iterator[tuple[list[tuple[str, int, int, int, float]], Window, Bins]]:
    bins = new_bins(m.columns, x.shape[1])
    for pane, row in enumerate(x):
        each = cells(1, x.shape[1], pane)
        watched = Watched(each.noise_key, each.key, each.start_us, each.slide_us, 1, 0, [], silent)
        yield watched.asked, m.close(bins, row.astype(np.int64), pane, watched), bins


@pytest.mark.parametrize("m", [plain(W, 0.5), retroactive(W, 0.5)], ids=["PANES", "RETROACTIVE"])
@pytest.mark.parametrize("x", [bursty(400), np.zeros((400, 3), int)], ids=["bursty", "empty"])
def test_what_is_asked_of_a_bins_pane_costs_at_most_epsilon(m: Measurement, x: np.ndarray) -> None:
    """Condition (b) of the theorem, from the questions themselves; no cell is asked twice; nothing is asked of a pane after its sum."""
    spent: Counter[tuple[int, int]] = Counter()
    asked_cells: set[tuple[str, int, int, int]] = set()
    in_sums: Counter[tuple[int, int]] = Counter()
    kinds: Counter[str] = Counter()
    for asked, _, _ in watch(m, x):
        for kind, row, first, size, epsilon in asked:
            assert (kind, row, first, size) not in asked_cells
            asked_cells.add((kind, row, first, size))
            kinds[kind] += 1
            for pane in range(first, first + size):
                spent[row, pane] += epsilon
                in_sums[row, pane] += kind != "monitor"
    assert max(spent.values()) <= 0.5 * (1 + 1e-12)
    assert max(in_sums.values()) == 1
    if "sum" in kinds or "monitor" in kinds:
        assert kinds["sum"] > 10  # else nothing has been looked at


def test_a_window_has_a_standard_error_where_each_of_its_panes_was_measured_by_itself() -> None:
    """Catches: an error bar over a prediction, or over the average of several panes that stands for the last of them."""
    m = retroactive(W, 0.5)
    x = bursty(300)
    sums = []
    seen = set()
    for pane, (asked, window, _) in enumerate(watch(m, x)):
        sums += [
            (row, first, size, epsilon)
            for kind, row, first, size, epsilon in asked
            if kind != "monitor"
        ]
        sums = [each for each in sums if each[1] + each[2] > pane - W]
        variance = np.zeros(x.shape[1])
        measured = np.zeros(x.shape[1], int)
        alone = np.ones(x.shape[1], bool)
        for row, first, size, epsilon in sums:
            inside = min(1, max(0, first + size - max(first, pane - W + 1)))
            variance[row] += inside / (2 * math.sinh(epsilon / 2) ** 2)
            measured[row] += inside
            alone[row] &= size == 1 or not inside
        whole = alone & (measured == min(W, pane + 1))
        seen.update(zip(alone.tolist(), whole.tolist(), strict=True))
        assert window.stderr == pytest.approx(
            np.where(whole, np.sqrt(variance), np.nan), rel=1e-12, nan_ok=True
        )
        assert window.measured is not None
        assert (window.measured == measured).all()
    assert seen == {(True, True), (True, False), (False, False)}


@dataclass(frozen=True)
class TakenBack(PaneCells):
    """Cells whose noise takes away what was added to the exact sums of one pane."""

    there: int = 0
    added: int = 0

    def _noisy(self, table, rows, back, round_, members, exact):  # type: ignore[no-untyped-def]
        first, size = _panes_of(self, rows, back, members)
        less = self.added * ((first <= self.there) & (self.there < first + size)).astype(np.int64)
        return super()._noisy(table, rows, back, round_, members, exact - less)


@pytest.mark.parametrize("bits", [0, 10])
@pytest.mark.parametrize(
    "m", [plain(W, 1e-4), retroactive(W, 1e-4, share=0.9)], ids=["PANES", "RETROACTIVE"]
)
def test_a_sum_that_wraps_around_is_seen_with_its_noise_only(m: Measurement, bits: int) -> None:
    """How many rows come is not bounded, so sums go round at 64 bits, and at 54 where 2^10 units are a step. The noise goes round with
    them: everything is a function of sum plus noise, modulo 2^64 units. A sum taken as a number before, or compared, would jump for one row
    more, and no noise covers that."""
    size = 60
    pane = 20
    more = 9
    end = 2 ** (63 - bits)
    near = {"previous": end - 1024.0, "sum": 2, "open": 7, "target": 2}
    at = dataclasses.replace(cells(1, size, pane), bits=bits)
    found = []
    for added in (0, more):
        bins = new_bins(m.columns, size)
        for name in bins.keys() & near.keys():
            bins[name][:] = near[name]
        back = TakenBack(
            at.noise_key, at.key, at.start_us, at.slide_us, at.mechanism, bits, pane, added
        )
        exact = at.rounded(np.full(size, (end - 5 + added << bits) - 2**64 * (added > 4)))
        window = m.close(bins, exact, pane, back)
        found.append(
            [
                *bins.values(),
                window.value,
                window.stderr,
                *([] if window.smoothed is None else [window.smoothed]),
            ]
        )
    assert all(
        np.array_equal(a, b, equal_nan=a.dtype.kind == "f") for a, b in zip(*found, strict=True)
    )


STREAMS = hnp.arrays(
    np.int64,
    (60, 5),
    elements=st.one_of(
        st.integers(0, 30), st.sampled_from([0, 0, 0, 1000, 10**9, 2**58, -(2**58)])
    ),
)


@given(STREAMS, st.sampled_from([1, 4, 6]), st.sampled_from([0.1, 1.0, 5.0]))
def test_smoothing_moves_a_sum_by_two_standard_errors_at_most_and_changes_nothing_else(
    x: np.ndarray, w: int, epsilon: float
) -> None:
    """Every example has five streams; `--hypothesis-profile=explore` makes ten thousand."""
    m = dataclasses.replace(
        plain(w, epsilon), smoother=LimitedTranslation(w, plain(w, epsilon).table.variance, False)
    )
    unsmoothed = windows(dataclasses.replace(m, smoother=None), x)
    for shown, without in zip(windows(m, x), unsmoothed, strict=True):
        assert np.array_equal(shown.value, without.value)
        assert np.array_equal(shown.stderr, without.stderr)
        assert without.smoothed is None
        assert shown.smoothed is not None
        u = shown.value.astype(np.float64)
        assert (
            np.abs(shown.smoothed - u) <= 2 * shown.stderr * (1 + 1e-12) + np.spacing(np.abs(u))
        ).all()


def test_the_floor_of_smoothing_is_zero() -> None:
    x = np.zeros((100, 30), int)
    shown = list(windows(plain(W, 0.5), x))
    assert (
        min(float(window.smoothed.min()) for window in shown if window.smoothed is not None) == 0.0
    )
    assert min(int(window.value.min()) for window in shown) < 0


@pytest.mark.parametrize("memory", MEMORIES)
@pytest.mark.parametrize(("w", "pane"), [(1, 0), (1, 9), (4, 2), (4, 40), (15, 300)])
def test_what_the_smoother_knows_of_the_noise(memory: int, w: int, pane: int) -> None:
    """Var u - Cov(u, c) and Var(u - c) from the weights written out."""
    size = min(pane + 1, w)
    decay = 1 - 1 / memory
    total = math.fsum(decay**age for age in range(pane + 1))
    u = [1.0 if age < size else 0.0 for age in range(pane + 1)]
    c = [size * decay**age / total for age in range(pane + 1)]
    gain = 3.0 * math.fsum(a * (a - b) for a, b in zip(u, c, strict=True))
    apart = 3.0 * math.fsum((a - b) ** 2 for a, b in zip(u, c, strict=True))
    assert LimitedTranslation(w, 3.0, True).agreement(memory, pane) == pytest.approx(
        (gain, apart), rel=1e-9, abs=1e-9
    )


def test_the_smoothers_target_is_the_running_mean() -> None:
    values = np.random.default_rng(3).normal(5, 2, (50, 2))
    smoother = LimitedTranslation(W, 1.0, False)
    means = np.zeros((2, len(MEMORIES)))
    distances = np.zeros((2, len(MEMORIES)))
    for pane, row in enumerate(values):
        smoother.advance(
            means, distances, row, values[max(0, pane - W + 1) : pane + 1].sum(axis=0), pane
        )
    for memory in MEMORIES:
        found = W * smoother.mean(means, memory, 49)
        assert found == pytest.approx(
            [reference.smoothing_target(values[:, j].tolist(), memory, W) for j in range(2)]
        )
