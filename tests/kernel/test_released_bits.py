"""Releases for given keys do not change: an experiment that is repeated with its seed gives equal results."""

from __future__ import annotations

import json

import pytest
from released_cases import CASES, FILE, kept

RECORDED = json.loads(FILE.read_text())


def test_every_case_is_recorded() -> None:
    assert sorted(CASES) == sorted(RECORDED)


@pytest.mark.parametrize("name", sorted(CASES))
def test_a_release_is_what_it_was(name: str) -> None:
    found, recorded = kept(CASES[name]()), RECORDED[name]
    assert list(found) == list(recorded)
    changed = {part: (recorded[part], found[part]) for part in recorded if found[part] != recorded[part]}
    assert not changed, f"{name} releases other numbers (recorded, found): {changed}"
