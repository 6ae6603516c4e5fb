"""The command line: reads arguments, calls the library, prints. No arithmetic happens here.

Exit codes: 0 done, 2 wrong argument, 3 data, 4 budget, 5 corrupt state, 75 stopped and resumable. An error is one
line: what, got, allowed.
"""

from __future__ import annotations

import sys

import typer

from sordino.cli import attack, data
from sordino.cli.audit import audit
from sordino.cli.effects import effects
from sordino.cli.plan import plan
from sordino.cli.pretrain import pretrain
from sordino.cli.report import report
from sordino.cli.reproduce import reproduce
from sordino.cli.runs import models, predict, runs
from sordino.cli.train import train
from sordino.cli.tune import tune
from sordino.cli.verify import verify
from sordino.errors import SordinoError

app = typer.Typer(add_completion=False, rich_markup_mode=None, pretty_exceptions_enable=False)
for command in (plan, train, tune, pretrain, runs, predict, report, effects, verify, audit, models):
    app.command()(command)
passed_on = {"ignore_unknown_options": True, "help_option_names": []}  # to the command that is installed, as they are
app.command(context_settings=passed_on)(reproduce)
app.add_typer(data.app, name="data")
app.add_typer(attack.app, name="attack")


@app.callback()
def sordino() -> None:
    """Train neural networks on sensitive data with a proof of differential privacy."""


def main(arguments: list[str] | None = None) -> None:
    """Runs the command line and exits: every refusal is one line on standard error."""
    command = typer.main.get_command(app)
    arguments = sys.argv[1:] if arguments is None else arguments
    try:
        code = command.main(arguments or ["--help"], prog_name="sordino", standalone_mode=False)
    except SordinoError as error:
        _fail(str(error), error.exit_code)
    except BrokenPipeError:
        raise
    except OSError as error:
        place = "" if error.filename is None else f" {str(error.filename)!r}"
        _fail(
            f"the system refuses:{place} {error.strerror or error}. What was kept so far stays, and can be resumed.", 3
        )
    except Exception as error:
        if not hasattr(error, "format_message"):  # click's own family of usage errors, wherever typer keeps it
            raise
        _fail(error.format_message(), 2)
    sys.exit(code or 0)


def _fail(message: str, code: int) -> None:
    print("sordino: " + " ".join(message.split()), file=sys.stderr)
    sys.exit(code)
