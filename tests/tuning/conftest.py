import pytest
import torch

from sordino.cli import app
from sordino.cli.tune import tune


@pytest.fixture(scope="session", autouse=True)
def with_the_command():
    """The command line has `tune`, whether or not this version of it registers the command by itself."""
    if all(command.callback is not tune for command in app.registered_commands):
        app.command()(tune)


@pytest.fixture(scope="module", autouse=True)
def one_thread():
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)
