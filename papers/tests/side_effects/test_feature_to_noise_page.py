"""The example of the page about the feature-to-noise ratio runs."""

from pages import run_examples


def test_the_page_about_the_feature_to_noise_ratio_runs(capsys) -> None:
    run_examples("papers/sordino_papers/side_effects/FEATURE_TO_NOISE.md")
    assert capsys.readouterr().out.count("1 / ratio") == 4
