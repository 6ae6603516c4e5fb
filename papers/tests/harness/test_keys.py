"""Keys of results outlive the code: a new field or a new class name changes none, and no two entries share one."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass, make_dataclass, replace
from pathlib import Path
from typing import ClassVar

import pytest

from sordino.convex.random_features import RandomSigns
from sordino.encodings import ConstantRate
from sordino_papers.experiments import EXPERIMENTS
from sordino_papers.harness.entry import HasExtraEntries, RunScale
from sordino_papers.harness.keys import as_key, default_of, kind_of
from sordino_papers.harness.training import DpSgdTrial, RandomWeights, Sparsity

DEFAULTS = Path(__file__).with_name("key_defaults.json")
TRIAL = DpSgdTrial("linear", batch_size=8, epochs=2.0, learning_rate=0.1, clip=1.0, momentum=0.9)


def entries_of(experiment, scale):
    beside = experiment.extra_entries(scale) if isinstance(experiment, HasExtraEntries) else ()
    return [*experiment.entries(scale), *experiment.ablation(scale), *beside]


def every_entry():
    return [entry for each in EXPERIMENTS.values() for scale in RunScale for entry in entries_of(each, scale)]


def test_a_field_that_is_added_with_a_default_changes_no_key() -> None:
    before = make_dataclass("Settings", [("rate", float)], frozen=True)
    after = make_dataclass("Settings", [("rate", float), ("views", int, 1)], frozen=True)
    assert as_key(before(0.5)) == as_key(after(0.5)) == {"rate": 0.5}
    assert as_key(after(0.5, views=2)) == {"rate": 0.5, "views": 2}


def test_a_class_that_is_renamed_keeps_its_key() -> None:
    before, after = (make_dataclass(name, [("rate", float)], namespace={"kind": "steady"}) for name in ("Old", "New"))
    assert as_key({"schedule": before(0.5)}) == as_key({"schedule": after(0.5)})


def test_values_of_two_classes_in_one_place_differ_by_their_kind() -> None:
    cooling, constant = Sparsity(0.9), Sparsity(0.9, schedule=ConstantRate())
    assert as_key(cooling) == {"final_rate": 0.9}
    assert as_key(constant) == {"final_rate": 0.9, "schedule": {"kind": "constant"}}


def test_a_class_that_could_pass_for_another_is_refused() -> None:
    @dataclass(frozen=True)
    class Base:
        kind: ClassVar[str] = "base"

    @dataclass(frozen=True)
    class Heir(Base):
        pass

    assert kind_of(Base) == "base"
    with pytest.raises(TypeError, match="Heir must declare a `kind` of its own"):
        as_key(Heir())
    with pytest.raises(TypeError, match="RandomSigns must be in KINDS"):
        as_key(RandomSigns(width=2))
    with pytest.raises(TypeError, match="a key is made of"):
        as_key({"measure": print})


@pytest.mark.parametrize(
    "changes",
    [{"precision": "bfloat16"}, {"optimizer": "adam"}, {"averaging": "ema:0.9"}, {"sparsity": Sparsity(0.5)}],
    ids=lambda changes: next(iter(changes)),
)
def test_a_setting_that_differs_from_its_default_adds_itself_to_the_key_and_nothing_else(changes) -> None:
    assert as_key(replace(TRIAL, **changes)) == as_key(TRIAL) | as_key(changes)
    assert as_key(replace(TRIAL, start=RandomWeights())) == as_key(TRIAL)


@pytest.mark.parametrize("name", EXPERIMENTS)
@pytest.mark.parametrize("scale", list(RunScale))
def test_no_two_entries_have_one_key_and_every_key_reads_back_from_json(name, scale) -> None:
    keys = [entry.key for entry in entries_of(EXPERIMENTS[name], scale)]
    written = {json.dumps(key, sort_keys=True, allow_nan=False) for key in keys}
    assert len(written) == len(keys)
    assert [json.loads(json.dumps(key)) for key in keys] == keys


@pytest.mark.parametrize("name", EXPERIMENTS)
def test_the_settings_of_entries_differ_by_what_the_key_says_and_not_only_by_name(name) -> None:
    """Entries of one name at two scales are one measurement exactly where their settings are equal."""
    entries = [entry for scale in RunScale for entry in entries_of(EXPERIMENTS[name], scale)]
    by_name: dict[str, list] = {}
    for entry in entries:
        by_name.setdefault(entry.name, []).append(entry)
    for same_name in by_name.values():
        for one in same_name:
            for other in same_name:
                assert (one.key == other.key) == (dict(one.settings) == dict(other.settings))


def test_a_default_that_keys_leave_out_is_the_one_that_results_were_kept_with() -> None:
    """A default that changes would silently change what kept keys mean. A new field may be added to the file."""
    kept = json.loads(DEFAULTS.read_text())
    found = {name: defaults for value in every_value() for name, defaults in [defaults_of(value)]}
    assert kept == {name: {field: found[name].get(field) for field in kept[name]} for name in kept}
    assert found.keys() == kept.keys()


def every_value() -> Iterator[object]:
    seen: set[type] = set()

    def walk(value: object) -> Iterator[object]:
        if isinstance(value, Mapping):
            for each in value.values():
                yield from walk(each)
        elif isinstance(value, Sequence) and not isinstance(value, str):
            for each in value:
                yield from walk(each)
        elif is_dataclass(value):
            if type(value) not in seen:
                seen.add(type(value))
                yield value
            for field in fields(value):
                yield from walk(getattr(value, field.name))

    for entry in every_entry():
        yield from walk(entry.settings)


def defaults_of(value) -> tuple[str, dict[str, object]]:
    """The defaults of a class. It is named by its fields and its kind, so that it can be renamed."""
    defaults = {field.name: default_of(field) for field in fields(value)}
    name = ", ".join(filter(None, [kind_of(type(value)), *(f"{name}" for name in list(defaults)[:2])]))
    written = {}
    for field, default in defaults.items():
        try:
            written[field] = as_key(default)
        except TypeError:
            continue  # there is no default, or a class that no kept key needed
    return name, written


if __name__ == "__main__":
    every = dict(defaults_of(value) for value in every_value())
    DEFAULTS.write_text(json.dumps(every, indent=2, sort_keys=True) + "\n")
