"""Adult: the published files, and no others."""

from pathlib import Path

import pytest
import torch

from sordino.data.standard import adult_schema, load_adult
from sordino.errors import DataError, StateError

ROOT = Path.home() / ".cache" / "sordino"
MISSING = [name for name in ("adult.data", "adult.test") if not (ROOT / "adult" / name).exists()]


@pytest.mark.skipif(bool(MISSING), reason=f"{', '.join(MISSING)} missing in {ROOT / 'adult'}")
def test_adult_has_the_published_numbers_of_rows_classes_and_groups():
    data = load_adult(ROOT)
    assert data.train.inputs.shape == (32_561, 105) and data.test.inputs.shape == (16_281, 105)
    assert data.train.target.bincount().tolist() == [24_720, 7_841]
    assert data.test.target.bincount().tolist() == [12_435, 3_846]
    assert data.train.groups["sex"].bincount().tolist() == [10_771, 21_790]
    assert len(data.train.groups["race"].bincount()) == 5
    assert data.train.inputs.isfinite().all() and data.train.inputs.abs().max() <= 1
    # The first person: 39 years, State-gov, 13 years of education, 40 hours a week.
    first = data.train.inputs[0]
    assert torch.isclose(first[0], torch.tensor(2 * (39 - 17) / (90 - 17) - 1)) and first[1 + 5] == 1


def test_a_file_that_was_not_published_is_refused(tmp_path):
    with pytest.raises(DataError, match=r"adult.data' cannot be read"):
        load_adult(tmp_path)
    (tmp_path / "adult").mkdir()
    (tmp_path / "adult" / "adult.data").write_bytes(b"x" * 3_974_305)
    with pytest.raises(StateError, match="is not the published file"):
        load_adult(tmp_path)


def test_the_facts_of_adult_are_public_and_count_its_columns():
    schema = adult_schema()
    assert len(schema.columns) == 14 and schema.groups == ("sex", "race") and schema.missing == {"", None, "?"}
