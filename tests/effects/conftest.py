"""A small network trained on the digits, finished runs, and measurements of one."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from sordino.data import load
from sordino.effects.measurements import Subject, measure, public_ensemble
from sordino.recipes import Recipe, SavedRun, carry_out

SCHEMA = """
confirmed_public = true
groups = ["colour", "status"]
test = "public.csv"
target = {column = "ill", classes = ["no", "yes"]}
columns.age = {kind = "number", bounds = [0, 100]}
columns.colour = {kind = "category", categories = ["red", "green"]}
columns.status = {kind = "category", categories = ["single", "widow", "married"]}
"""


@pytest.fixture(scope="session", autouse=True)
def short_trainings():
    """Shortens training without privacy."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("sordino.effects.rare_examples._FEWEST_STEPS", 300)
        yield


@pytest.fixture(scope="session")
def digits():
    """Pixels from 0 to 1 and labels, of the training and the test rows."""
    data = load("digits")
    return tuple((split.inputs.float() / 16, split.target) for split in (data.train, data.test))


@pytest.fixture(scope="session")
def network(digits):
    """A network with an accuracy of about 97 %."""
    (inputs, target), _ = digits
    torch.manual_seed(0)
    model = nn.Sequential(nn.Flatten(), nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 10))
    optimizer = torch.optim.Adam(model.parameters(), 0.01)
    for _ in range(60):
        optimizer.zero_grad()
        F.cross_entropy(model(inputs), target).backward()
        optimizer.step()
    return model.eval()


@pytest.fixture(scope="session")
def digits_run(tmp_path_factory):
    """The folder of a short private training. Tests that add files to it work on a copy."""
    recipe = Recipe("digits", "linear", epsilon=3.0, delta=1e-4, steps=20, batch_size=200, learning_rate=0.5, seed=0)
    return carry_out(recipe, tmp_path_factory.mktemp("runs") / "digits", progress=False).path


@pytest.fixture(scope="session")
def people_run(tmp_path_factory):
    """The folder of a run on a table with two group columns. No row is a green widow, and no red widow is ill."""
    folder = tmp_path_factory.mktemp("people")
    (folder / "people.toml").write_text(SCHEMA)
    for name, seed in (("people.csv", 0), ("public.csv", 1)):
        (folder / name).write_text("age,colour,status,ill\n" + "".join(_people(seed)))
    recipe = Recipe(
        str(folder / "people.csv"),
        "linear",
        epsilon=3.0,
        delta=1e-4,
        schema=str(folder / "people.toml"),
        steps=20,
        batch_size=100,
        seed=0,
    )
    return carry_out(recipe, folder / "run", progress=False).path


def _people(seed):
    generator = torch.Generator().manual_seed(seed)
    for _ in range(600):
        age, colour, status = (int(torch.randint(n, (1,), generator=generator)) for n in (100, 2, 2))
        status = 0 if colour == 1 else status
        ill = age > 50 and not (colour == 0 and status == 1)
        yield f"{age},{('red', 'green')[colour]},{('single', 'widow')[status]},{('no', 'yes')[ill]}\n"


@pytest.fixture(scope="session")
def measured(digits_run, short_trainings):
    """The subject, the public ensemble and the measurements of the digits run."""
    subject = Subject.of(SavedRun.read(digits_run))
    ensemble = public_ensemble(subject)
    return subject, ensemble, measure(subject, ensemble, attacked=60)
