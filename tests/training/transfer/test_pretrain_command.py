"""`sordino pretrain`: a file from nothing but a seed, and refusals of one line."""

from __future__ import annotations

import pytest
import typer
from typer.testing import CliRunner

from sordino.cli.data import pretrain
from sordino.errors import UsageError
from sordino.training.transfer import PretrainedNetwork


def command(*arguments):
    app = typer.Typer()
    app.command()(pretrain)
    result = CliRunner().invoke(app, [str(argument) for argument in arguments])
    if result.exception is not None:
        raise result.exception
    return result.output


def test_the_command_writes_a_network_and_says_that_it_costs_nothing(tmp_path) -> None:
    path = tmp_path / "net.safetensors"
    printed = command("--model", "lenet", "--shape", "1x28x28", "--pictures", 64, "--out", path, "--quiet")
    assert "no private row was read" in printed
    assert PretrainedNetwork.read(path).model == "lenet"


def test_an_existing_file_is_kept(tmp_path) -> None:
    path = tmp_path / "net.safetensors"
    path.write_bytes(b"mine")
    with pytest.raises(UsageError, match="is not overwritten"):
        command("--out", path)
    assert path.read_bytes() == b"mine"


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (("--shape", "32"), "as 3x32x32"),
        (("--shape", "2x32x32"), r"channels \(1 or 3\)"),
        (("--model", "unheard-of"), "there is no model"),
        (("--model", "linear"), "needs a network of several layers"),
        (("--pictures", "0"), "pictures must be a whole number from 1"),
    ],
)
def test_arguments_that_make_no_network_are_refused(arguments, reason, tmp_path) -> None:
    path = tmp_path / "net.safetensors"
    with pytest.raises(UsageError, match=reason):
        command(*arguments, "--out", path, "--quiet")
    assert not path.exists()


@pytest.mark.parametrize(("name", "reason"), [("net.pt", "end in .safetensors"), ("no/net.safetensors", "must exist")])
def test_a_place_where_no_file_can_be_is_refused_before_anything_is_trained(name, reason, tmp_path) -> None:
    with pytest.raises(UsageError, match=reason):
        command("--out", tmp_path / name)
