"""Figures of densities contain their labels, and are the same each time."""

from __future__ import annotations

import pytest

from sordino_papers.optimized_noise.densities import draw_line, draw_plane


@pytest.mark.parametrize(
    ("draw", "spacing", "labels"),
    [
        (draw_line, 0.1, ["best: at least 0.958", "Laplace: 1.000"]),
        (draw_plane, 0.5, ["best: at least 1.2", "best, smooth: at least 1.56", "isotropic: 1.655", "Laplace: 1.743"]),
    ],
)
def test_a_figure_has_the_cost_of_each_density(tmp_path, draw, spacing, labels):
    first, again = tmp_path / "new" / "first.svg", tmp_path / "again.svg"
    draw(first, spacing)
    draw(again, spacing)
    figure = first.read_text()
    assert all(words in figure for words in labels)
    assert again.read_text() == figure
