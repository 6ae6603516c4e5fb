"""The page about the origin of the convex model says what its result file says."""

import json
from pathlib import Path

ROOT = Path(__file__).parents[3]
PAGE = (ROOT / "papers" / "sordino_papers" / "hidden_state" / "CONVEX_ORIGIN.md").read_text()
RESULT = json.loads((ROOT / "results" / "convex_origin.json").read_text())


def test_the_table_holds_the_measured_numbers():
    for row in RESULT["problems"]:
        gates = row["gated_random"]
        cells = [
            f"{row['rows']} in {row['dimensions']}",
            str(row["arrangements"]),
            f"{row['cones']:.5f}",
            f"{row['best_network']:.5f}",
            *(f"{gates[number]:.3f}" for number in ("8", "64", "512")),
            f"{row['gated_all']:.3f}",
        ]
        assert f"| {' | '.join(cells)} |" in PAGE


def test_the_networks_agree_with_the_program_as_the_page_says():
    for row in RESULT["problems"]:
        assert row["cones_lower_bound"] <= row["best_network"] <= row["cones"] * (1 + 2e-5)
