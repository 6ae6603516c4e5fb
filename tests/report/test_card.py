"""The privacy card states what follows from the run, the same on the page and in JSON, and nothing secret."""

import json
import math
import re
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest
from scipy.stats import norm

from sordino.accounting import GaussianCurve
from sordino.accounting.guarantee import rounded_up
from sordino.cli.runs import report
from sordino.errors import DataError, StateError, UsageError
from sordino.recipes import Recipe, SavedRun, carry_out
from sordino.report import Section, register_section, sections, write_card
from sordino.report.accuracy import measured
from sordino.report.card import write_report
from sordino.report.evidence import Evidence
from sordino.report.markup import Html, element
from sordino.report.promise import TradeOff, limits
from sordino.report.provenance import data, settings, signature
from sordino.report.spending import spending, spent_by_sampler

NAMES = ("guarantee", "limits", "inference", "measured", "spending", "settings", "data", "origin", "signature")


class Seen(HTMLParser):
    """Tags, attributes and text of a page, as a browser would parse them."""

    def __init__(self, text):
        super().__init__()
        self.tags, self.attributes, self.words, self.open = [], [], "", []
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        self.attributes += attrs
        if tag not in ("meta",):
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_startendtag(self, tag, attrs):
        self.tags.append(tag)
        self.attributes += attrs

    def handle_data(self, data):
        self.words += data


@pytest.fixture(scope="module")
def card(run, tmp_path_factory):
    """The page and the facts of a run with default settings."""
    path = write_card(run, tmp_path_factory.mktemp("card"))
    return path.read_text(), json.loads((path.parent / "report.json").read_text())


def test_every_section_is_on_the_page_and_in_the_facts_in_the_same_order(card):
    page, facts = card
    assert tuple(facts)[2:] == NAMES
    assert tuple(re.findall(r'<section id="(\w+)"', page)) == NAMES


def test_the_page_is_well_formed_runs_nothing_and_fetches_nothing(card):
    seen = Seen(card[0])
    assert seen.open == []
    assert not {"script", "link", "img", "iframe", "object", "image"} & set(seen.tags)
    assert seen.tags.count("svg") == 4
    for name, value in seen.attributes:
        assert not name.startswith("on")
        assert name not in ("href", "src", "xlink:href") or value.startswith("#")
    assert "http" not in card[0].replace("http-equiv", "") and "@import" not in card[0] and "url(h" not in card[0]


def test_identifiers_are_unique_and_references_meet_them(card):
    names = re.findall(r' id="([^"]+)"', card[0])
    assert len(names) == len(set(names))
    assert set(re.findall(r'(?:href="#|url\(#)([^")]+)', card[0])) <= set(names)


def test_every_picture_has_words(card):
    labels = re.findall(r'<svg role="img" aria-label="([^"]+)"', card[0])
    assert len(labels) == 4 and all(len(label) > 40 for label in labels)


def test_epsilon_is_rounded_up_and_stands_with_its_adjacency(card, evidence):
    shown = re.search(r"ε = ([\d.]+), δ = 0.0001</p><p>for every example, under zero-out adjacency", card[0])
    assert float(shown.group(1)) >= evidence.guarantee.epsilon
    assert shown.group(1) == rounded_up(evidence.guarantee.epsilon)


def test_page_and_facts_agree(card, evidence):
    page, facts = card
    words = Seen(page).words
    assert facts["guarantee"]["epsilon"] == evidence.guarantee.epsilon
    for group in facts["inference"]["groups"]:
        assert f"{group['size']} examples{rounded_up(group['epsilon'])}" in words
    for point in facts["inference"]["membership"]:
        assert f"{rounded_up(100 * point['best_true_positive_rate'], 3)} %" in words
    assert facts["origin"]["model_sha256"] in words
    assert f"Accuracy on {facts['measured']['test']['rows']} public test rows, with its 95 % interval" in words


def test_the_trade_off_is_a_bound_and_hardly_above_the_exact_one():
    alarms = np.logspace(-4, -0.01, 50)
    for mu in (0.1, 1.0, 3.0):
        exact, bound = norm.cdf(norm.ppf(alarms) + mu), TradeOff.of(GaussianCurve(mu)).detected(alarms)
        assert (bound >= exact).all()
        assert (bound <= 1.03 * exact).all()


def test_accuracy_by_class_is_that_of_the_predictions(card, run):
    from sordino.data import load

    labels = load("digits").test.target.tolist()
    predicted = [answer["prediction"] for answer in SavedRun.read(run).predict("digits")]
    for name, accuracy in card[1]["measured"]["by_class"].items():
        of_class = [guess == name for guess, label in zip(predicted, labels, strict=True) if str(label) == name]
        assert (accuracy["right"], accuracy["rows"]) == (sum(of_class), len(of_class))
    assert card[1]["measured"]["test"]["rows"] == len(labels)


def test_spending_ends_at_what_is_promised(card, evidence):
    (solid,) = [x for x in card[1]["spending"]["accountants"] if x["name"] == evidence.guarantee.accountant]
    assert solid["epsilons"][-1] == evidence.guarantee.epsilon
    assert solid["epsilons"] == sorted(solid["epsilons"])
    assert card[1]["spending"]["accountants"][0] == solid  # the tightest comes first


def test_samplers_without_a_guarantee_under_this_adjacency_are_left_out(evidence):
    assert "fixed-size" not in {spent.label for spent in spent_by_sampler(evidence.question)}


HOSTILE = "<script>alert(1)</script>"
SEED = 987654321


@pytest.fixture(scope="module")
def hostile(make_run, tmp_path_factory):
    """The page and the facts of a run whose names attempt injection, and that has a seed."""
    names = (HOSTILE, "$x_1$", "a\u202eb", "\x00\n", '" onload="x', "</svg>", "&amp;", "漢字", "]]>", "-->")
    run = make_run(
        facts={"name": HOSTILE, "class_names": names},
        privacy={"assumptions": [HOSTILE, "'\"><img src=x>"], "versions": {HOSTILE: HOSTILE}},
        name="<b>run",
        sampler="shuffled",  # its privacy curve is fast to compute
        seed=SEED,
        initial_seed=SEED,
    )
    path = write_card(run, tmp_path_factory.mktemp("card"))
    return path.read_text(), (path.parent / "report.json").read_text()


def test_whatever_a_name_holds_stays_text(hostile):
    page, facts = hostile
    seen = Seen(page)
    assert not {"script", "img", "b"} & set(seen.tags)
    assert not any(name.startswith("on") for name, _ in seen.attributes)
    assert HOSTILE in seen.words and "$x_1$" in seen.words and "漢字" in seen.words
    assert "\u202e" not in page and "\x00" not in page
    assert json.loads(facts)["data"]["name"] == HOSTILE


def test_a_seed_is_never_shown(hostile):
    assert str(SEED) not in "".join(hostile)
    assert "anyone who knows the seed" in hostile[0]


COURSE = [
    {"step": 10, "epsilon": 0.7, "validation_accuracy": 0.25},
    {"step": 20, "epsilon": 1.0, "validation_accuracy": 0.375, "test_accuracy": 0.5},
]


def test_the_way_is_shown_where_every_step_may_be_seen(make_run):
    section = measured(Evidence.read(make_run(metrics=COURSE)))
    assert "Validation during training." in section.html
    assert [row["validation_accuracy"] for row in section.facts["course"]] == [0.25, 0.375]


def test_hidden_steps_stay_hidden(make_run):
    run = Evidence.read(make_run(metrics=COURSE, privacy={"view": "final-model"}))
    section = measured(run)
    assert section.facts["course"] == []
    assert "Validation during training." not in section.html and "0.25" not in section.html
    assert "for the final model only" in section.html
    assert "would hold if every step were observed" in spending(run).html


def test_a_metric_without_a_step_is_not_drawn(make_run):
    rows = [{"validation_accuracy": 0.5}, {"step": True, "validation_accuracy": 0.5}, {"step": 3, "validation_x": "y"}]
    assert measured(Evidence.read(make_run(metrics=rows))).facts["course"] == []


def test_what_is_not_promised_depends_on_the_run(make_run, evidence):
    secret_size = make_run(adjacency="add-or-remove", expected_examples=1437)
    public, secret = (" ".join(limits(run).facts["not_promised"]) for run in (evidence, Evidence.read(secret_size)))
    assert "under zero-out adjacency it is public" in public and "is public" not in secret
    assert "seed" not in public


def test_absent_test_rows_are_explained_and_the_recorded_accuracy_stays(make_run):
    section = measured(Evidence.read(make_run(data="gone.npz")))
    assert "test accuracy 0.5" in section.html and "gone.toml" in section.html
    assert "by_class" not in section.facts and "absent" in section.facts


SCHEMA = """
confirmed_public = true
target = {column = "ill", classes = ["no", "yes"]}
columns.age = {kind = "number", bounds = [0, 120]}
columns.sex = {kind = "category", categories = ["female", "male"]}
"""


def test_a_card_repeats_that_bounds_are_private_until_somebody_declares_them(make_run):
    path = make_run(data="people.csv", schema="people.toml", facts={"name": "people", "input_shape": (3,)})
    open_draft = "read_from_private_rows = true\n" + SCHEMA
    (path / "schema.toml").write_text(open_draft)
    assert "drafted from private rows" in " ".join(limits(Evidence.read(path)).facts["not_promised"])
    assert "drafted from private rows" in data(Evidence.read(path)).html
    (path / "schema.toml").write_text('declared_by = "A. Person"\n' + open_draft)
    assert "drafted from private rows" not in " ".join(limits(Evidence.read(path)).facts["not_promised"])
    assert "declared public by A. Person" in data(Evidence.read(path)).html


def test_the_columns_of_a_table_are_those_of_its_schema(make_run):
    path = make_run(data="people.csv", schema="people.toml", facts={"name": "people", "input_shape": (3,)})
    (path / "schema.toml").write_text(SCHEMA)
    section = data(Evidence.read(path))
    assert section.facts["columns"] == {"age": "number, 0 to 120", "sex": "one of 2 categories"}
    assert "age (number, 0 to 120), sex (one of 2 categories)" in section.html
    (path / "schema.toml").write_text(SCHEMA.replace("true", "false"))
    with pytest.raises(StateError, match=r"schema\.toml"):
        data(Evidence.read(path))


def test_a_registered_section_is_on_the_card_in_its_place(evidence, monkeypatch):
    monkeypatch.setattr(sections, "_makers", [signature, settings])

    @register_section
    def effects(run):
        return Section("effects", "Effects", element("p", "none"), {"found": 0}, 75)

    @register_section
    def silent(run):
        return None

    assert [section.name for section in sections.sections_of(evidence)] == ["settings", "effects", "signature"]


def test_the_example_of_the_documentation_adds_its_section(make_run, monkeypatch):
    monkeypatch.setattr(sections, "_makers", [])
    text = (Path(__file__).parents[2] / "docs" / "report.md").read_text()
    exec(re.search(r"```python\n(.*?)```", text, flags=re.DOTALL).group(1), {})
    path = make_run()
    assert sections.sections_of(Evidence.read(path)) == []
    (path / "approval.txt").write_text("<by the board>")
    (section,) = sections.sections_of(Evidence.read(path))
    assert section.html == "<p>&lt;by the board&gt;</p>"


def test_markup_is_only_what_was_marked_as_such():
    assert element("p", "<", Html("<i>"), title='"') == '<p title="&#34;">&lt;<i></p>'


def test_a_damaged_run_leaves_no_card(make_run):
    path = make_run(privacy={"epsilon": 0.01})
    with pytest.raises(StateError):
        write_card(path)
    assert not (path / "report.html").exists() and not (path / "report.json").exists()


def test_the_command_says_where_the_card_is_and_the_same_run_gives_the_same_bytes(card, run, tmp_path, capsys):
    report([run], tmp_path / "new" / "folder")
    written = tmp_path / "new" / "folder" / "report.html"
    assert capsys.readouterr().out == f"{written}\n"
    assert written.read_text() == card[0]


def test_the_command_refuses_what_is_no_run(tmp_path):
    with pytest.raises(UsageError, match="there is no run in"):
        report([tmp_path])


def test_a_place_that_cannot_be_written_to_is_refused_in_one_line(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(DataError, match=r"^'.*file' cannot be written to: [^\n]+$"):
        write_report(tmp_path / "file", "", {})


def test_facts_that_json_cannot_hold_become_null(tmp_path):
    write_report(tmp_path, "", {"epsilon": math.inf, "all": [(1.5, math.nan)]})
    assert json.loads((tmp_path / "report.json").read_text()) == {"epsilon": None, "all": [[1.5, None]]}


def test_a_run_that_was_trained_gets_a_card_in_its_folder(tmp_path, monkeypatch):
    monkeypatch.setattr("sordino.report.card.SECTIONS", (measured,))  # others need more files
    recipe = Recipe("digits", "linear", epsilon=3.0, delta=1e-4, steps=2)
    folder = carry_out(recipe, tmp_path / "run", progress=False)
    assert write_card(tmp_path / "run") == tmp_path / "run" / "report.html"
    facts = json.loads((tmp_path / "run" / "report.json").read_text())
    assert facts["measured"]["test"]["accuracy"] == facts["measured"]["at_the_end_of_training"]["test_accuracy"]
    assert Evidence.read(tmp_path / "run").guarantee.epsilon == folder.privacy()["epsilon"]
