"""Masks that change by epoch or by step, rates that rise or stay: accuracies, and bytes of real messages."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from made_up import noise_for_pictures

from sordino.data import root
from sordino.encodings import ConstantRate, Cooling
from sordino_papers.harness import training_entries
from sordino_papers.harness.entry import Entry, Measurement, RunScale
from sordino_papers.harness.reproduce import reproduce
from sordino_papers.harness.training_entries import SetPart
from sordino_papers.sparsification import communication_cost
from sordino_papers.sparsification.communication_cost import WIRES, CommunicationCost, kept_share, traffic
from sordino_papers.sparsification.masks import KINDS, SETTINGS, SPARSIFICATION_ABLATION, MaskAblation, MaskSchedule

SIZE = 26_010  # of DP-CNN/S


@pytest.fixture(scope="module")
def found(tmp_path_factory):
    """What two clients with eight rows send at one final rate."""
    setting = SETTINGS[RunScale.QUICK]
    trial = replace(setting.sent_trial, batch_size=4, epochs=2)
    part = replace(setting.sent_part, examples=8)
    with pytest.MonkeyPatch.context() as patch:
        noise_for_pictures(patch, tmp_path_factory.mktemp("data"))
        patch.setitem(
            SETTINGS, RunScale.QUICK, replace(setting, sent_part=part, sent_trial=trial, rates=(0.9,), clients=2)
        )
        entries = SPARSIFICATION_ABLATION.extra_entries(RunScale.QUICK)
        return tuple(CommunicationCost(**entry.measure(0).more) for entry in entries)


def test_a_rate_that_rises_keeps_as_much_as_one_of_half_its_end_that_stays():
    setting = SETTINGS[RunScale.CPU]
    examples = setting.part.examples
    for per_epoch in (1, None):
        rises, stays = MaskSchedule(Cooling(), per_epoch), MaskSchedule(ConstantRate(), per_epoch)
        shares = [kept_share(rises.of(setting.trial, 0.9), examples, SIZE)]
        shares += [kept_share(stays.of(setting.trial, 0.45), examples, SIZE)]
        assert shares == pytest.approx([0.55, 0.55], abs=1e-4)


def test_seed_coded_messages_have_four_bytes_for_each_coordinate_that_is_kept(found):
    clients, steps = 2, 4
    for one in found:
        whole = 4 * SIZE * clients * steps
        expected = {"dense": whole, "seed-coded": round(whole * one.kept)}
        if one.wire in expected:
            assert one.up == one.down == expected[one.wire]
        else:
            assert one.up > whole * one.kept  # an index coder also says where


def test_the_side_says_which_bytes_fall_in_proportion(found, tmp_path):
    assert len(found) == len(KINDS) * len(WIRES)
    side = traffic(found, RunScale.QUICK, tmp_path, "command")
    assert {line[-1] for line in side.lines[1:]} == {"yes"}
    assert side.lines[1][:4] == ("cooling, mask per epoch", "0.9", "0.550", "832,320 / 832,320")
    denser = tuple(replace(one, kept=one.kept / 2) for one in found)
    assert {line[-1] for line in traffic(denser, RunScale.QUICK, tmp_path, "command").lines[1:]} == {"no"}
    kept = json.loads((tmp_path / "bytes-quick.json").read_text())["runs"]
    ends = {run["masks"]: run["share"] for run in kept if (run["wire"], run["final_rate"]) == ("seed-coded", 0.9)}
    assert ends["constant, mask per step"] == pytest.approx(0.1, abs=1e-3)
    assert ends["cooling, mask per epoch"] == pytest.approx(0.55, abs=1e-3)
    assert (tmp_path / "bytes-quick.svg").read_bytes().startswith(b"<?xml")


class Small(MaskAblation):
    """Four messages beside a table of nothing that takes long."""

    def entries(self, scale):
        return [Entry("none", "digits", 1.0, "zero-out", {}, lambda seed: Measurement(90.0))]

    def extra_entries(self, scale):
        return super().extra_entries(scale)[: len(WIRES) + 1]


def test_what_is_beside_a_table_is_measured_once_and_never_to_be_shown(found, tmp_path, monkeypatch):
    sent_by_now = []

    def sending(trial, masks, rows, *, clients, wire):
        sent_by_now.append(wire.name)
        return replace(found[0], masks=masks, wire=wire.name)

    monkeypatch.setattr(communication_cost, "measure_communication", sending)
    monkeypatch.setattr(SetPart, "rows", lambda part, trial: None)
    asked = {"scale": RunScale.QUICK, "seeds": 2, "progress": False}
    assert reproduce(Small(), tmp_path, train=False, **asked).sides == () and sent_by_now == []
    assert reproduce(Small(), tmp_path, only="none", **asked).sides == () and sent_by_now == []
    for train in (True, True, False):
        side = reproduce(Small(), tmp_path, train=train, **asked).sides[0]
        assert sent_by_now == [*(wire.name for wire in WIRES), WIRES[0].name]
        assert len(side.lines) == 2  # the one that is there in one format only is not compared


@pytest.mark.skipif(not (root() / "fashion-mnist").is_dir(), reason="needs Fashion-MNIST in the data folder")
def test_a_quick_entry_keeps_its_promise_on_real_pictures(monkeypatch, tmp_path):
    monkeypatch.setattr(training_entries, "unfinished", lambda *decided_by: tmp_path / "training")
    entry = SPARSIFICATION_ABLATION.entries(RunScale.QUICK)[2]
    found = entry.measure(0)
    assert found.more["epsilon"] <= entry.epsilon == 3.0 and found.value > 30
