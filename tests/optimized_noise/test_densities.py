"""Pictures of densities say what is in them, and are the same each time."""

from __future__ import annotations

import pytest

from sordino_papers.optimized_noise.densities import draw_line, draw_plane


@pytest.mark.parametrize(
    ("draw", "spacing", "said"),
    [
        (draw_line, 0.1, ["best: at least 0.958", "Laplace: 1.000"]),
        (draw_plane, 0.5, ["best: at least 1.2", "best, smooth: at least 1.56", "isotropic: 1.655", "Laplace: 1.743"]),
    ],
)
def test_a_picture_has_the_cost_of_each_density(tmp_path, draw, spacing, said):
    first, again = tmp_path / "new" / "first.svg", tmp_path / "again.svg"
    draw(first, spacing)
    draw(again, spacing)
    picture = first.read_text()
    assert all(words in picture for words in said)
    assert again.read_text() == picture
