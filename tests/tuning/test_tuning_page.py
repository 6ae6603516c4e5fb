import re
from pathlib import Path

from dp_accounting.dp_event import GaussianDpEvent, PoissonSampledDpEvent, SelfComposedDpEvent

from sordino.accounting import Adjacency, privacy_of
from sordino.tuning import NegativeBinomialNumber, Repeat

PAGE = (Path(__file__).parents[2] / "docs" / "tuning.md").read_text()


def test_the_page_about_tuning_runs():
    names = {}
    for block in re.findall(r"```python\n(.*?)```", PAGE, flags=re.DOTALL):
        exec(compile(block, "docs/tuning.md", "exec"), names)
    assert 2.9 < names["tuned"].guarantee.epsilon <= 3.0 and len(names["tuned"].scores) == 5


def test_a_factor_in_its_table_is_what_the_target_needs():
    row = re.search(r"^\| repeat, one stage of 15, logarithmic \| \S ([\d.]+) \|", PAGE, re.MULTILINE)
    step = PoissonSampledDpEvent(2048 / 60_000, GaussianDpEvent(1.808 * (float(row[1]) + 0.005)))
    trial = SelfComposedDpEvent(step, 1172)
    event = Repeat(NegativeBinomialNumber(15.0)).event(trial, (15,))
    assert 2.9 < privacy_of(event, Adjacency.ZERO_OUT).epsilon(1e-5) <= 3.0
