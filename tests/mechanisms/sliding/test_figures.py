"""The figures of docs/privacy/sliding.md from the product's own steps, on generated streams."""

import numpy as np
import pytest

from benchmarks.papers.sliding import W, errors, stream, ways

EPSILON = 0.1


def shares(name: str, keys: int) -> dict[str, np.ndarray]:
    """Squared error of (sums, clipped, smoothed) as a share of plain PANES, by plan; and of PANES as a share of what its noise should give."""
    x, weights = stream(name)
    seeds = {label: range(1, keys + 1) if label == "PANES" else [1] for label in ways(EPSILON)}
    found = {
        label: np.mean([errors(m, x, weights, seed) for seed in seeds[label]], axis=0)
        for label, m in ways(EPSILON).items()
    }
    base = found["PANES"][0]
    expected = (
        np.minimum(np.arange(1, len(x) + 1), W).mean()
        * weights.sum()
        / (2 * np.sinh(EPSILON / 2) ** 2)
    )
    return {
        "expected": np.array([base / expected]),
        **{label: each / base for label, each in found.items()},
    }


def test_montreal() -> None:
    found = shares("montreal", 5)
    assert found["expected"][0] == pytest.approx(1.0, abs=0.02)
    assert found["RETROACTIVE, the paper's"][0] == pytest.approx(1.57, rel=0.05)
    assert found["PANES"][2] <= 1.1 * 0.906


def test_order_on_the_world_cup_model() -> None:
    found = shares("worldcup", 1)
    order = [
        found["PANES"][2],
        found["PANES"][1],
        found["PANES"][0],
        found["RETROACTIVE, the paper's"][0],
    ]
    assert sorted(order) == order
    assert found["PANES"][2] <= 1.1 * 0.246
