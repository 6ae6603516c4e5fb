"""The wall around the kernel: bounded sums, private vectors and noise are made in it, and nowhere else."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

import sordino

SOURCES = Path(sordino.__file__).parent
PAPERS = SOURCES.parents[1] / "papers" / "sordino_papers"
MADE_IN_THE_KERNEL = {"BoundedSum", "Private", "NoiseAt", "Release"}
CLAIMED = {  # what nothing enforces: whoever calls it proves it
    *("of_sensitivity", "from_wire", "lift", "shifted"),  # bounds, linear maps, and vectors added before the noise
    *("address", "bounded", "next_from", "noise_from"),  # events of one's own, and steps that are taken in parts
    *("add_and_learn", "rounded_sum"),
}
ADDS_NOISE = "the noise's add"
CHANGES_A_STATE = "a state with another value or bound"

# What else may do so, and why its theorem holds. A line that is not needed any more is to be deleted.
ALLOWED: dict[str, tuple[set[str], str]] = {
    "attacks/audit/white_box.py": ({"bounded"}, "one sum over all that joined, canaries beside the others"),
    "training/communication/fed_sgd.py": (
        {"from_wire", "bounded"},
        "sums that clients clipped, widened by the rounding of the wire",
    ),
    "convex/hidden_run.py": (
        {"address", "next_from", "noise_from"},
        "the event of the last iterate is charged; each step draws from its own address under the key of that charge",
    ),
    "convex/least_squares.py": ({"of_sensitivity"}, "the smallest eigenvalue, by Weyl's inequality"),
    "convex/noisy_cgd.py": ({ADDS_NOISE}, "a noise, made of another one"),
    "convex/sufficient_statistics.py": ({"of_sensitivity"}, "a Gram matrix of rows that `rows` bounds, summed by BLAS"),
    "encodings/codecs.py": ({"lift"}, "puts the kept coordinates back, at public places"),
    "encodings/matched.py": ({"lift"}, "divides by scales that are public or learned from earlier releases"),
    "encodings/project.py": ({"lift"}, "multiplies by a basis that is public or learned from earlier releases"),
    "opacus/session.py": ({"bounded"}, "sums over disjoint parts of those who joined"),
    "optimized_noise/noise.py": ({"Private", "add_and_learn", ADDS_NOISE}, "a noise"),
    "releases/vector.py": (
        {"of_sensitivity", "Release"},
        "the caller's own number and bound, with or without a budget",
    ),
    "tuning/payments.py": ({"address"}, "the event of all trials is charged; each trial has a key of its own"),
    "verification/noise_checks.py": ({"NoiseAt", ADDS_NOISE}, "sums of nobody"),
    "verification/synthetic.py": ({"NoiseAt"}, "synthetic records only"),
    "papers/harness/ablations.py": (
        {"BoundedSum", "NoiseAt", "Private", ADDS_NOISE, CHANGES_A_STATE},
        "returns `NotPrivate`: methods without a guarantee, to compare with",
    ),
    "papers/sparsification/diagnostics/mask_counts.py": ({"Private"}, "returns `NotPrivate`: counts of raw gradients"),
}
FILES = {path.relative_to(SOURCES).as_posix(): path for path in sorted(SOURCES.rglob("*.py"))} | {
    f"papers/{path.relative_to(PAPERS).as_posix()}": path for path in sorted(PAPERS.rglob("*.py"))
}


def made_in(source: str) -> Iterator[tuple[int, str]]:
    """The lines in which a module makes a type of the kernel or refers to its constructor, under any name.

    Annotations, tests of types and doctests do not count.
    """
    tree = ast.parse(source)
    only_types = {id(inner) for node in ast.walk(tree) for part in _types_in(node) for inner in ast.walk(part)}
    for node in ast.walk(tree):
        if id(node) in only_types:
            continue
        if isinstance(node, ast.Name | ast.Attribute) and isinstance(node.ctx, ast.Load):
            name = _name(node)
            is_claimed_call = name in CLAIMED and isinstance(node, ast.Attribute)
            if (name in MADE_IN_THE_KERNEL and not _only_names_a_constructor(node, tree)) or is_claimed_call:
                yield node.lineno, name
        if (
            isinstance(node, ast.alias)
            and node.asname not in (None, node.name)
            and node.name in MADE_IN_THE_KERNEL | {"rounded_sum"}
        ):
            yield node.lineno, node.name
        if isinstance(node, ast.Call):
            if _adds_noise(node):
                yield node.lineno, ADDS_NOISE
            if _name(node.func) in ("replace", "__new__", "__class__") and _changes_a_state(node):
                yield node.lineno, CHANGES_A_STATE


def _types_in(node: ast.AST) -> Iterator[ast.AST]:
    """The parts of a node that name types only."""
    match node:
        case ast.arg(annotation=annotation) | ast.AnnAssign(annotation=annotation) if annotation is not None:
            yield annotation
        case ast.FunctionDef(returns=returns) if returns is not None:
            yield returns
        case ast.Call(func=called, args=args) if _name(called) in ("isinstance", "cast"):
            yield from args[1:] if _name(called) == "isinstance" else args[:1]
        case ast.Call(func=ast.Attribute(attr="instance"), args=args):
            yield from args[:1]  # a check of an argument
        case ast.Subscript(slice=of):
            yield of  # Iterator[Private]
        case ast.Assign(value=ast.Subscript() as alias):
            yield alias


def _only_names_a_constructor(node: ast.AST, tree: ast.AST) -> bool:
    """Whether a type is only the receiver of a constructor that is counted by its own name, or of nobody's sum."""
    receivers = {
        id(each.value)
        for each in ast.walk(tree)
        if isinstance(each, ast.Attribute) and each.attr in CLAIMED | {"of_nobody", "of_rows"}
    }
    return id(node) in receivers


def _changes_a_state(call: ast.Call) -> bool:
    named = {each.arg for each in call.keywords}
    made = any(_name(each) in MADE_IN_THE_KERNEL for each in call.args)
    return bool(named & {"undivided", "bound"}) or made or _name(call.func) == "__class__"


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
        ("make = Private", {"Private"}),
        ("from sordino.kernel.states import Private as Vector", {"Private"}),
        ("made = {'vector': Private}", {"Private"}),
        ("object.__new__(Private)", {"Private", CHANGES_A_STATE}),
        ("private.__class__(total, layout)", {CHANGES_A_STATE}),
        ("replace(private, undivided=total)", {CHANGES_A_STATE}),
        ("replace(total, bound=0.1)", {CHANGES_A_STATE}),
        ("BoundedSum.of_nobody(1.0, layout).shifted(total)", {"shifted"}),
        ("private.lift(lambda _: total)", {"lift"}),
        ("run.bounded(begun, Dense(total, layout))", {"bounded"}),
        ("run.noise_from(total, 9)", {"noise_from"}),
        ("lattice.rounded_sum(total, scale, stream)", {"rounded_sum"}),
        ("budget.address(event, adjacency, what=what, key=key)", {"address"}),
        ("Gaussian(1.0).add(total, at)", {ADDS_NOISE}),
        ("self.plan.noise.add(total, at=at)", {ADDS_NOISE}),
        ("noise.add(*both)", {ADDS_NOISE}),
        ("learning.add_and_learn(*both)", {ADDS_NOISE, "add_and_learn"}),
        ("noise.add(total, release.noise_at(step))", {ADDS_NOISE}),
        ("whatever.add(BoundedSum(total, 1.0, layout), NoiseAt(stream, 0))", {ADDS_NOISE, "BoundedSum", "NoiseAt"}),
        ("Release(noise, address).add(total)", {"Release"}),
        ("BoundedSum.of_sensitivity(value, 1.0, layout)", {"of_sensitivity"}),
        ("BoundedSum.of_nobody(1.0, layout) + clip(each)", set()),
        ("'''\n>>> Private(total, layout)\n'''  # BoundedSum(", set()),
        ("self._release.add(total, step); names.add(name); torch.add(a, b); bar.add(row)", set()),
        ("NotPrivate(model, 'why'); PrivateRun(plan, model, data)", set()),
        ("def f(x: Private, y: list[BoundedSum]) -> Private: isinstance(x, Private)", set()),
        ("Sums = dict[str, BoundedSum]; z: Private | None = None; cast(Private, z)", set()),
    ],
)
def test_what_is_made_is_found(source: str, found: set[str]) -> None:
    assert {what for _, what in made_in(source)} == found


@pytest.mark.parametrize("name", [name for name in FILES if not name.startswith("kernel/")])
def test_only_the_kernel_bounds_sums_and_adds_noise(name: str) -> None:
    allowed, _ = ALLOWED.get(name, (set(), ""))
    outside = [f"line {line}: {what}" for line, what in made_in(FILES[name].read_text("utf-8")) if what not in allowed]
    assert not outside, f"{name} makes by itself what `Budget.release` and `PrivateRun` make: {', '.join(outside)}"


@pytest.mark.parametrize("name", ALLOWED)
def test_every_exception_is_still_needed(name: str) -> None:
    allowed, _ = ALLOWED[name]
    assert allowed == {what for _, what in made_in(FILES[name].read_text("utf-8"))}


@pytest.mark.parametrize("path", sorted((SOURCES / "verification").glob("*.py")), ids=lambda path: path.name)
def test_a_verification_uses_nothing_private_of_what_it_verifies(path: Path) -> None:
    attributes = [node for node in ast.walk(ast.parse(path.read_text("utf-8"))) if isinstance(node, ast.Attribute)]
    private = {
        f"{_name(node.value)}.{node.attr}"
        for node in attributes
        if node.attr.startswith("_") and not node.attr.startswith("__") and _name(node.value) not in ("self", "cls")
    }
    assert not private
