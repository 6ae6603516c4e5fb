"""The wall around the kernel: bounded sums, private vectors and noise are made in it, and nowhere else."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

import sordino

SOURCES = Path(sordino.__file__).parent
MADE_IN_THE_KERNEL = {"BoundedSum", "Private", "NoiseAt", "Release"}
CLAIMED = {"of_sensitivity", "from_wire"}  # bounds that nothing enforces: whoever gives one proves it
ADDS_NOISE = "the noise's add"

# What else may do so, and why its theorem holds. A line that is not needed any more is to be deleted.
ALLOWED: dict[str, tuple[set[str], str]] = {
    "communication/fed_sgd.py": ({"from_wire"}, "sums that clients clipped, widened by the rounding of the wire"),
    "convex/least_squares.py": ({"of_sensitivity"}, "the smallest eigenvalue, by Weyl's inequality"),
    "convex/noisy_cgd.py": ({ADDS_NOISE}, "a noise, made of another one"),
    "convex/sufficient_statistics.py": ({"of_sensitivity"}, "a Gram matrix of rows that `rows` bounds, summed by BLAS"),
    "optimized_noise/noise.py": ({"Private", ADDS_NOISE}, "a noise"),
    "releases/vector.py": (
        {"of_sensitivity", "Release"},
        "the caller's own number and bound, with or without a budget",
    ),
    "verification/noise_checks.py": ({"NoiseAt", ADDS_NOISE}, "sums of nobody"),
    "verification/synthetic.py": ({"NoiseAt"}, "synthetic records only"),
}


def made_in(source: str) -> Iterator[tuple[int, str]]:
    """The lines in which a module makes a type of the kernel, by a call or a subclass. Doctests do not count."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.ClassDef):
            yield from ((node.lineno, _name(base)) for base in node.bases if _name(base) in MADE_IN_THE_KERNEL)
        if isinstance(node, ast.Call):
            if _name(node.func) in MADE_IN_THE_KERNEL | CLAIMED:
                yield node.lineno, _name(node.func)
            elif _adds_noise(node):
                yield node.lineno, ADDS_NOISE


def _adds_noise(call: ast.Call) -> bool:
    """Whether a call adds noise. The `add` of a noise has a total and an address, a `Release` a total and a step."""
    if not isinstance(call.func, ast.Attribute) or call.func.attr not in ("add", "add_and_learn"):
        return False
    receiver = _name(call.func.value).lower()
    if receiver == "torch" or receiver.endswith("release"):
        return False
    takes_address = len(call.args) == 2 or "at" in {each.arg for each in call.keywords}
    return takes_address or "noise" in receiver or call.func.attr == "add_and_learn"


def _name(expression: ast.expr) -> str:
    match expression:
        case ast.Name(id=name) | ast.Attribute(attr=name):
            return name
        case ast.Call(func=called) | ast.Subscript(value=called):
            return _name(called)
        case _:
            return ""


@pytest.mark.parametrize(
    ("source", "found"),
    [
        ("states.BoundedSum(total, 1.0, layout)", {"BoundedSum"}),
        ("class Noted(Private): ...", {"Private"}),
        ("Gaussian(1.0).add(total, at)", {ADDS_NOISE}),
        ("self.plan.noise.add(total, at=at)", {ADDS_NOISE}),
        ("noise.add(*both)", {ADDS_NOISE}),
        ("learning.add_and_learn(*both)", {ADDS_NOISE}),
        ("noise.add(total, release.noise_at(step))", {ADDS_NOISE}),
        ("whatever.add(BoundedSum(total, 1.0, layout), NoiseAt(stream, 0))", {ADDS_NOISE, "BoundedSum", "NoiseAt"}),
        ("Release(noise, address).add(total)", {"Release"}),
        ("BoundedSum.of_sensitivity(value, 1.0, layout)", {"of_sensitivity"}),
        ("BoundedSum.of_nobody(1.0, layout) + clip(each)", set()),
        ("'''\n>>> Private(total, layout)\n'''  # BoundedSum(", set()),
        ("self._release.add(total, step); names.add(name); torch.add(a, b); bar.add(row)", set()),
        ("NotPrivate(model, 'why'); PrivateRun(plan, model, data); private.lift(basis)", set()),
    ],
)
def test_what_is_made_is_found(source: str, found: set[str]) -> None:
    assert {what for _, what in made_in(source)} == found


@pytest.mark.parametrize("path", sorted(SOURCES.rglob("*.py")), ids=lambda path: str(path.relative_to(SOURCES)))
def test_only_the_kernel_bounds_sums_and_adds_noise(path: Path) -> None:
    name = path.relative_to(SOURCES).as_posix()
    if name.startswith("kernel/"):
        return
    allowed, _ = ALLOWED.get(name, (set(), ""))
    outside = [f"line {line}: {what}" for line, what in made_in(path.read_text("utf-8")) if what not in allowed]
    assert not outside, f"{name} makes by itself what `Budget.release` and `PrivateRun` make: {', '.join(outside)}"


@pytest.mark.parametrize("name", ALLOWED)
def test_every_exception_is_still_needed(name: str) -> None:
    allowed, _ = ALLOWED[name]
    assert allowed == {what for _, what in made_in((SOURCES / name).read_text("utf-8"))}


@pytest.mark.parametrize("path", sorted((SOURCES / "verification").glob("*.py")), ids=lambda path: path.name)
def test_a_verification_uses_nothing_private_of_what_it_verifies(path: Path) -> None:
    attributes = [node for node in ast.walk(ast.parse(path.read_text("utf-8"))) if isinstance(node, ast.Attribute)]
    private = {
        f"{_name(node.value)}.{node.attr}"
        for node in attributes
        if node.attr.startswith("_") and not node.attr.startswith("__") and _name(node.value) not in ("self", "cls")
    }
    assert not private
