"""The comparison on the scikit-learn page agrees with its result file."""

import json
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "scikit-learn.md").read_text()
RESULT = json.loads((ROOT / "results" / "adult.json").read_text())
ROWS = {(row["method"], row["epsilon"]): row for row in RESULT["rows"]}
METHODS = list(dict.fromkeys(method for method, _ in ROWS))


def line(method):
    rows = [ROWS[method, epsilon] for epsilon in (0.5, 1.0, 3.0)]
    cells = [f"{100 * row['ours']:.2f} ± {100 * row['sem']:.2f}" for row in rows]
    return f"| {method} | {rows[0]['adjacency']} | {rows[0]['delta']:g} | {' | '.join(cells)} |"


def test_the_table_holds_the_measured_numbers():
    assert len(METHODS) == 5
    for method in METHODS:
        assert line(method) in PAGE


def test_each_row_says_how_it_was_made():
    assert "left out of the training" in RESULT["chosen"]
    for row in ROWS.values():
        assert {"command", "commit", "machine", "settings", "seconds"} <= row.keys()
        assert row["seeds"] == 10 and row["data"] == "adult"


def test_where_ours_are_ahead_is_where_the_page_says():
    for epsilon in (0.5, 1.0, 3.0):
        ours = {method: ROWS[method, epsilon]["ours"] for method in METHODS}
        none, peer = ours.pop("majority class"), ours.pop("diffprivlib LogisticRegression")
        assert none < min(peer, *ours.values())
        if epsilon < 3:
            assert peer + 0.004 < min(ours.values())
