"""`sordino attack`: what an attacker gets out of a finished run, or out of gradients that were sent."""

from __future__ import annotations

import typer

from sordino.cli.attack_members import members
from sordino.cli.attack_reconstruct import attack_reconstruct

app = typer.Typer(rich_markup_mode=None, help="Attack a finished run, or gradients that were sent.")
app.command()(members)
app.command("reconstruct")(attack_reconstruct)
