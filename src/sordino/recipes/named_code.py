"""Code that the user names on the command line: `package.module:function` or `path/to/file.py:function`.

Guarantee: a function is imported only because the user named it. A name that was read from a file (a recipe, a run
folder) is a `NamedInFile` and is refused, and so is a file inside a run folder, even if the user names it: such a
folder may come from somebody else.
"""

from __future__ import annotations

import importlib
import importlib.util
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from sordino.data import Facts
from sordino.errors import UsageError
from sordino.gradients.probes import one_line
from sordino.recipes.settings import NamedInFile
from sordino.training.description import TrainingSetup
from sordino.training.run_folder import RunFolder

Setup = Callable[[], TrainingSetup]
Loss = Callable[..., Tensor]


def named_function(name: str, folder: RunFolder | None = None) -> Setup:
    """The function that the user named, which returns the untrained model or a `TrainingSetup`.

    What lies inside the run folder is refused, by default inside any run folder.
    """
    function = _named(name, "model", "network", folder)
    return lambda: _setup(function, name)


def named_loss(name: str) -> Loss:
    """The loss that the user named: a function of outputs and target.

    >>> named_loss("torch.nn.functional:multi_margin_loss").__name__
    'multi_margin_loss'
    """
    loss: Loss = _named(name, "loss", "own_loss", None)
    return loss


def named_model(name: str, facts: Facts) -> nn.Module:
    """The untrained model of a name in a recipe: that of a function, or `timm:NAME`, made for data with these facts."""
    kind, _, rest = name.partition(":")
    if kind == "timm":
        return _of_timm(rest, facts)
    setup = named_function(name)()
    if setup.given:
        raise UsageError(
            f"{name!r:.200}() must return the module alone here, got a TrainingSetup with {', '.join(setup.given)}: "
            "name the loss by --loss, and give the others as settings."
        )
    return setup.model


def load_weights(module: nn.Module, folder: RunFolder, *, of: str) -> None:
    """Loads the weights of a run folder into the module that the user's function returned."""
    weights, expected = folder.weights(), module.state_dict()
    found = {name: (tuple(x.shape), x.dtype) for name, x in weights.items()}
    wanted = {name: (tuple(x.shape), x.dtype) for name, x in expected.items()}
    if found != wanted:
        raise UsageError(
            f"the model that --model gives does not fit the weights in {str(folder.path)!r}, which are those "
            f"of a {of}: {_difference(found, wanted)}."
        )
    module.load_state_dict(weights)


def _named(name: str, option: str, example: str, folder: RunFolder | None) -> Any:
    """The function of a name, from a file or a module."""
    if isinstance(name, NamedInFile):
        raise UsageError(
            f"the recipe names code, and nothing that a file names is imported: pass --{option} {name!s} if you "
            "trust it."
        )
    place, colon, attribute = name.rpartition(":")
    if not (colon and place and attribute.isidentifier()):
        raise UsageError(
            f"{option} must be MODULE:FUNCTION, as in package.module:{example} or path/to/file.py:{example}, got "
            f"{name!r:.200}."
        )
    if place.endswith(".py"):
        path = Path(os.path.realpath(place))
        if _is_inside(path, folder):
            raise UsageError(
                f"{place!r} lies in the run folder, and nothing in a run folder is executed: read it, and copy it to "
                "another place if you trust it."
            )
        module = _imported(name, path.parent, lambda: _module_of_file(path))
    else:
        here = Path(os.path.realpath("."))
        module = _imported(name, None if _is_inside(here, folder) else here, lambda: importlib.import_module(place))
    function = getattr(module, attribute, None)
    if not callable(function):
        raise UsageError(f"{name!r:.200} is not a function: {place!r:.200} has none of this name.")
    return function


def _is_inside(path: Path, folder: RunFolder | None) -> bool:
    """Whether a path lies in the run folder, or in any run folder if none is given."""
    if folder is not None:
        return path.is_relative_to(os.path.realpath(folder.path))
    return any(RunFolder(each).is_begun and RunFolder(each).is_run for each in (path, *path.parents))


def _module_of_file(path: Path) -> Any:
    if not path.is_file():
        raise UsageError(f"{str(path)!r} cannot be read: no such file.")
    spec = importlib.util.spec_from_file_location(f"sordino_user_{path.stem}", path)
    if spec is None or spec.loader is None:
        raise UsageError(f"{str(path)!r} is not a Python file.")
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look their module up there
    spec.loader.exec_module(module)
    return module


def _imported(name: str, beside: Path | None, load_module: Callable[[], Any]) -> Any:
    """Imports with `beside` at the end of the search path, so that nothing there hides an installed package."""
    added = [] if beside is None or str(beside) in sys.path else [str(beside)]
    sys.path.extend(added)
    try:
        return load_module()
    except UsageError:
        raise
    except Exception as error:
        raise UsageError(f"{name!r:.200} cannot be imported: {type(error).__name__}: {one_line(error)}") from error
    finally:
        for path in added:
            sys.path.remove(path)


def _setup(function: Callable[[], object], name: str) -> TrainingSetup:
    try:
        found = function()
    except Exception as error:
        raise UsageError(f"{name!r:.200}() failed: {type(error).__name__}: {one_line(error)}") from error
    if isinstance(found, nn.Module):
        return TrainingSetup(found)
    if isinstance(found, TrainingSetup):
        return found
    raise UsageError(
        f"{name!r:.200}() must return the untrained module or a sordino.TrainingSetup, got {type(found).__name__}."
    )


def _of_timm(name: str, facts: Facts) -> nn.Module:
    """A network of timm with random weights, in which batch normalization is replaced. Nothing is downloaded."""
    from sordino.models.batchnorm import replace_batchnorm

    try:
        timm = importlib.import_module("timm")
    except ImportError:
        raise UsageError(f"timm:{name:.80} needs timm: install sordino[timm].") from None
    if not timm.is_model(name):
        raise UsageError(f"timm has no model {name!r:.80}: timm.list_models() has the names.")
    if len(facts.input_shape) != 3 or facts.num_classes is None:
        raise UsageError(f"timm:{name} classifies images, and {facts.name!r} has inputs of shape {facts.input_shape}.")
    channels, *size = facts.input_shape
    has_size = getattr(timm.models.get_pretrained_cfg(name), "fixed_input_size", False)
    sized = {"img_size": tuple(size)} if has_size else {}
    try:
        made = timm.create_model(name, pretrained=False, num_classes=facts.num_classes, in_chans=channels, **sized)
    except (AssertionError, RuntimeError, TypeError, ValueError) as error:
        raise UsageError(
            f"timm:{name} cannot be made for inputs of shape {facts.input_shape}: {one_line(error)}"
        ) from None
    model: nn.Module = replace_batchnorm(made)
    return model


def _difference(found: dict[str, Any], wanted: dict[str, Any]) -> str:
    """The first difference between the weights of a folder and those of a model, in the order of the model."""
    for name, (shape, dtype) in wanted.items():
        if name not in found:
            return f"it has {name!r:.80}, which the folder has not"
        if (shape, dtype) != found[name]:
            there, its_dtype = found[name]
            return f"{name!r:.80} is {dtype} of shape {shape} in it, and {its_dtype} of shape {there} in the folder"
    missing = min(name for name in found if name not in wanted)
    return f"it has no {missing!r:.80}"
