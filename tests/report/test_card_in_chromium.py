"""The card in a browser: no console messages, at most three pages of A4, and no wider than a phone."""

import shutil
import subprocess

import pytest

from sordino.report import write_card

QUIET = ("--no-first-run", "--disable-background-networking", "--disable-component-update", "--disable-sync")
TITLES = (
    *("The guarantee", "What this means", "Attacks that remain possible", "How good the model is"),
    *("How the privacy was spent", "Settings", "Data", "Origin", "Signature"),
)
pytestmark = pytest.mark.skipif(
    shutil.which("chromium") is None or shutil.which("pdftotext") is None,
    reason="chromium or pdftotext is missing: install Debian's packages chromium and poppler-utils",
)


@pytest.fixture(scope="module")
def card(make_run, tmp_path_factory):
    """A long card: long names, a seed, measurements during training."""
    names = tuple(f"a class with a rather long name {number}" for number in range(10))
    course = [{"step": step, "validation_accuracy": step / 30} for step in range(1, 21)]
    facts = {"name": "x" * 150, "class_names": names}
    run = make_run(seed=1, sampler="shuffled", steps=21, facts=facts, metrics=course)
    return write_card(run, tmp_path_factory.mktemp("card"))


@pytest.fixture
def chromium(tmp_path):
    """Runs the browser with a profile of its own."""

    def run(*arguments):
        command = ("chromium", "--headless", "--no-sandbox", "--disable-gpu", *QUIET, f"--user-data-dir={tmp_path}/p")
        return subprocess.run((*command, *arguments), capture_output=True, text=True, timeout=120, check=True)

    return run


def test_the_card_prints_on_three_pages_with_every_section_and_without_complaints(card, chromium, tmp_path):
    pdf = tmp_path / "card.pdf"
    logged = chromium("--enable-logging=stderr", f"--print-to-pdf={pdf}", "--no-pdf-header-footer", card.as_uri())
    assert "CONSOLE" not in logged.stderr
    text = subprocess.run(("pdftotext", "-layout", pdf, "-"), capture_output=True, text=True, check=True).stdout
    assert 1 <= text.count("\f") <= 3  # one after each page
    lines = [line.strip() for line in text.replace("\f", "\n").splitlines()]
    places = [lines.index(title) for title in TITLES]
    assert places == sorted(places)


def test_the_card_is_no_wider_than_a_phone(card, chromium, tmp_path):
    script = """<script>function measure() {
        const { scrollWidth, clientWidth } = frames[0].document.documentElement
        document.title = clientWidth > 300 && scrollWidth <= clientWidth ? "it fits" : "too wide"
    }</script>"""
    phone = tmp_path / "phone.html"
    phone.write_text(f'{script}<iframe src="{card.as_uri()}" style="width: 390px" onload="measure()"></iframe>')
    shown = chromium("--allow-file-access-from-files", "--dump-dom", phone.as_uri()).stdout
    assert "<title>it fits</title>" in shown
