"""The files of a run must be consistent: an epsilon that was changed by hand is refused."""

import json

import pytest
from dp_accounting.dp_event import ComposedDpEvent, GaussianDpEvent

from sordino.accounting import Adjacency, privacy_of
from sordino.errors import StateError, UsageError
from sordino.report.evidence import Evidence, parse_event


def test_the_guarantee_is_that_of_the_recorded_event(evidence):
    promised = json.loads((evidence.path / "privacy.json").read_text())
    event = parse_event(promised["event"], what="the event")
    assert evidence.guarantee.epsilon == privacy_of(event, Adjacency.ZERO_OUT).epsilon(1e-4) == promised["epsilon"]
    assert not evidence.holds_more_than_the_plan


def test_a_larger_promise_than_the_event_needs_stays(make_run):
    assert Evidence.read(make_run(privacy={"epsilon": 2.9})).guarantee.epsilon == 2.9


def test_releases_beside_the_plan_are_noticed(make_run, evidence):
    more = ComposedDpEvent([evidence.guarantee.event, GaussianDpEvent(10.0)])
    found = Evidence.read(make_run(privacy={"event": repr(more), "epsilon": 2.9}))
    assert found.holds_more_than_the_plan


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"epsilon": 0.1}, "claims epsilon 0.1, but its event proves"),
        ({"epsilon": None}, "is damaged"),
        ({"epsilon": "1"}, "is damaged"),
        ({"delta": 1e-3}, "does not belong to the recipe.toml"),
        ({"delta": 0}, "is damaged"),
        ({"sampler": "shuffled"}, "does not belong to the recipe.toml"),
        ({"sampler": "none"}, "is damaged"),
        ({"batch_size": 204}, "does not belong to the recipe.toml"),
        ({"steps": 21}, "leaves out steps"),
        ({"noise_multiplier": 6.0}, "leaves out steps"),
        ({"adjacency": "replace-one"}, "its event proves"),
        ({"adjacency": 1}, "is damaged"),
        ({"assumptions": [1]}, "is damaged"),
        ({"tuning": None}, "is damaged"),
        ({"tuning": {"rule": "clip-momentum", "payment": "compose"}}, "'candidates' is missing"),
        ({"tuning": {"rule": "clip-momentum", "payment": "compose", "candidates": ["3"]}}, "is damaged"),
        ({"event": "GaussianDpEvent(noise_multiplier=9.0)"}, "leaves out steps"),
        ({"event": "NoOpDpEvent()"}, "leaves out steps"),
        ({"event": "GaussianDpEvent(noise_multiplier=[])"}, "is damaged"),
        ({"event": "SelfComposedDpEvent(event=5, count=5)"}, "is damaged"),
        ({"event": "print()"}, "does not describe what was released"),
    ],
)
def test_a_promise_that_was_tampered_with_is_refused(make_run, changes, message):
    path = make_run(privacy=changes)
    with pytest.raises(StateError, match=message) as refused:
        Evidence.read(path)
    assert "\n" not in str(refused.value)


def test_a_promise_with_a_part_missing_is_refused(make_run):
    path = make_run()
    promised = json.loads((path / "privacy.json").read_text())
    del promised["unit"]
    (path / "privacy.json").write_text(json.dumps(promised))
    with pytest.raises(StateError, match="is damaged: 'unit' is missing"):
        Evidence.read(path)


def test_an_unfinished_run_is_refused(make_run):
    path = make_run()
    (path / "model.safetensors").unlink()
    with pytest.raises(UsageError, match="is not finished"):
        Evidence.read(path)


@pytest.mark.parametrize("name", ["privacy.json", "recipe.toml", "facts.json", "metrics.jsonl", "model.safetensors"])
def test_a_file_that_was_overwritten_is_refused(make_run, name):
    path = make_run()
    (path / name).write_bytes(b"\x80\x04}")
    with pytest.raises(StateError):
        Evidence.read(path)
