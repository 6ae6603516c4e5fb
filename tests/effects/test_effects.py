"""Results of `sordino effects`, their pages, and what must stay out of the folder of a run."""

import json
import re
import shutil
from pathlib import Path

import pytest

import sordino.report
from sordino.cli.effects import effects
from sordino.effects.measurements import Subject, measure, public_ensemble
from sordino.effects.pages import write_internal, write_public
from sordino.effects.twin import NOT_PRIVATE, compare, train_twin
from sordino.errors import DataError, StateError, UsageError
from sordino.recipes import SavedRun
from sordino.report import write_card


@pytest.fixture
def copied(digits_run, tmp_path):
    return Path(shutil.copytree(digits_run, tmp_path / "run"))


def test_accuracy_falls_from_the_easiest_tenth_to_the_hardest(measured):
    _, _, found = measured
    first, last = found.deciles[0].accuracy.value, found.deciles[-1].accuracy.value
    assert first < 0.6 and last > 0.95
    assert sum(each.rows for each in found.deciles) == found.rows == 360


def test_curves_begin_at_the_accuracy_and_never_rise(measured):
    _, _, found = measured
    for curve in found.curves:
        assert list(curve.accuracies) == sorted(curve.accuracies, reverse=True)
        assert curve.radii[0] == 0 and curve.accuracies[0] > 0.5 and curve.accuracies[-1] < 0.1


def test_the_most_harmed_are_rows_that_the_ensemble_knows_and_the_model_does_not(measured):
    subject, _, found = measured
    assert 1 < len(found.harmed) <= 12
    losses = [each.reference - each.model for each in found.harmed]
    assert losses == sorted(losses, reverse=True) and losses[-1] > 0
    assert not subject.right[[each.row for each in found.harmed]].any()


def test_no_member_of_the_ensemble_judges_rows_that_it_has_learnt_from(measured):
    """On rows that it was trained on, the ensemble would have an accuracy of 1."""
    _, ensemble, _ = measured
    assert ensemble.right.mean() < 0.99


def test_the_card_shows_effects_and_refuses_those_of_other_weights(copied, measured):
    subject, _, found = measured
    write_public(found, subject, copied)
    page = write_card(copied)
    assert "Accuracy by group and under attack" in page.read_text()
    facts = json.loads((copied / "report.json").read_text())["effects"]
    assert facts["headline"] == found.headline and len(facts["groups"]) == 10
    changed = (copied / "effects.json").read_text().replace(found.model_sha256, "0" * 64)
    (copied / "effects.json").write_text(changed)
    with pytest.raises(StateError, match="is about other weights"):
        write_card(copied)


@pytest.mark.parametrize("text", ["[]", "{", "{}", '{"format": 1, "kind": "effects on public rows"}', '{"a": NaN}'])
def test_a_damaged_file_is_refused_by_the_card(copied, text):
    (copied / "effects.json").write_text(text)
    with pytest.raises(StateError, match=r"effects\.json"):
        write_card(copied)


def test_what_a_twin_shows_is_marked_and_never_written_into_a_run(copied, measured, tmp_path):
    subject, ensemble, found = measured
    beside = compare(subject, train_twin(subject.saved), ensemble, attacked=20)
    assert beside.twin.value > found.overall.value and beside.lost.value > 0
    assert beside.headline.startswith("Compared with a twin that was trained without privacy, accuracy is ")
    assert beside.masking.transferred is not None
    page = write_internal(beside, found, subject, tmp_path / "inside")
    for path in (page, page.with_suffix(".json")):
        assert NOT_PRIVATE in path.read_text()
    assert page.stat().st_mode & 0o077 == 0 and page.parent.stat().st_mode & 0o077 == 0
    assert "epsilon" not in page.read_text() and "ε" not in page.read_text()
    with pytest.raises(UsageError, match="lies in a run folder, but the result is not private"):
        write_internal(beside, found, subject, copied / "inside")


def test_the_report_imports_nothing_of_effects():
    for path in Path(sordino.report.__file__).parent.glob("*.py"):
        assert not re.search(r"(from|import) sordino\.effects", path.read_text()), path


def test_the_same_run_gives_the_same_page(measured, digits_run, tmp_path):
    subject, ensemble, found = measured
    again = measure(subject, ensemble, attacked=60)
    assert again == found
    pages = [write_public(each, subject, tmp_path / str(k)).read_bytes() for k, each in enumerate((found, again))]
    assert pages[0] == pages[1]


def test_groups_of_people_come_alone_and_together_and_say_what_is_missing(people_run):
    subject = Subject.of(SavedRun.read(people_run))
    found = measure(subject, public_ensemble(subject), attacked=0)
    assert list(dict.fromkeys(group.by for group in found.groups)) == ["class", "colour", "status", "colour and status"]
    names = [group.name for group in found.groups]
    assert "red, widow" in names and "green, widow" not in names
    notes = " ".join(found.notes)
    assert "no public row belongs to it: status married" in notes
    assert "colour and status red, married; green, widow" in notes
    assert "equalized odds need rows of both classes in each group, and 'red, widow' has rows of one." in found.notes
    assert {each.by for each in found.disparities} == {"colour", "status", "colour and status"}


def test_columns_that_are_named_are_the_only_ones(people_run):
    subject = Subject.of(SavedRun.read(people_run), columns=["status"])
    assert [grouping.by for grouping in subject.groupings] == ["class", "status"]


def test_the_command_prints_a_sentence_first_and_writes_beside_the_run(people_run, tmp_path, capsys):
    effects(people_run, group=["colour"], attacked=0, out=tmp_path / "shown")
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("Compared with 4 networks that were trained without privacy")
    assert "points lower for" in lines[0]
    assert lines[2].split() == ["group", "public", "rows", "accuracy", "points", "lost"]
    assert lines[-1] == str(tmp_path / "shown" / "effects.html")
    assert sorted(path.name for path in tmp_path.rglob("*.*")) == ["effects.html", "effects.json"]


def test_json_has_the_twin_apart_with_its_warning(digits_run, tmp_path, capsys):
    effects(digits_run, twin=True, attacked=0, as_json=True, out=tmp_path / "shown")
    printed = json.loads(capsys.readouterr().out)
    assert printed["internal"]["warning"] == NOT_PRIVATE
    public = json.loads((tmp_path / "shown" / "effects.json").read_text())
    assert public == {name: value for name, value in printed.items() if name != "internal"}
    assert (tmp_path / "shown.internal" / "effects-internal.html").exists()


def test_unknown_columns_are_refused_with_those_that_exist(people_run, digits_run):
    with pytest.raises(UsageError, match="there is no group column 'height': declared are colour, status"):
        effects(people_run, group=["height"])
    with pytest.raises(UsageError, match="there is no group column 'sex': 'digits' declares none"):
        effects(digits_run, group=["sex"])


def test_a_run_that_is_not_finished_is_refused(copied):
    (copied / "model.safetensors").unlink()
    with pytest.raises(UsageError, match="is not finished"):
        effects(copied)


def test_a_table_without_public_rows_is_refused(people_run, tmp_path):
    run = Path(shutil.copytree(people_run, tmp_path / "run"))
    schema = (run / "schema.toml").read_text().replace('test = "public.csv"\n', "")
    (run / "schema.toml").write_text(schema)
    with pytest.raises(DataError, match="names no test rows"):
        effects(run)


def test_public_rows_of_another_shape_are_refused(digits_run):
    with pytest.raises(DataError, match=re.escape("the test rows have shape (2, 400), but the model takes (1, 8, 8).")):
        effects(digits_run, data="two-patch")


def test_a_column_that_no_public_row_has_is_refused(people_run, monkeypatch):
    import sordino.effects.measurements as module

    judge = module.judge

    def without_colours(*arguments):
        judged = judge(*arguments)
        judged.rows.groups["colour"].fill_(-1)
        return judged

    monkeypatch.setattr(module, "judge", without_colours)
    with pytest.raises(DataError, match="no public row has a known value of group column colour"):
        effects(people_run)
