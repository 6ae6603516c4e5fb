"""The example of a folder of images trains in less memory than its images would take."""

from __future__ import annotations

import re
import subprocess
import sys

import limited_memory
import pytest
from pages import ROOT

MEBIBYTES, IMAGES, BYTES_PER_IMAGE = 200, 6000, 3 * 128 * 128


@pytest.mark.slow
def test_the_example_trains_on_more_images_than_fit_into_its_memory() -> None:
    assert IMAGES * BYTES_PER_IMAGE > 1.3 * (MEBIBYTES << 20)
    command = [sys.executable, limited_memory.__file__, str(MEBIBYTES), str(ROOT / "examples" / "lazy_images.py")]
    done = subprocess.run([*command, "--images", str(IMAGES)], check=True, capture_output=True, text=True)
    found = re.search(r"Test accuracy ([\d.]+) %", done.stdout)
    assert found is not None and float(found[1]) > 80 and "epsilon = 3.000" in done.stdout
