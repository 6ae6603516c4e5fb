"""Names of the top level: those of version 0.1 resolve, and type checkers see what users can import."""

import ast
import warnings
from importlib import import_module
from pathlib import Path

import pytest

import sordino as so

# All names that the top level of version 0.1 exported.
OF_VERSION_0_1 = """
    Adjacency Guarantee Unit View Ema Tail replace_batchnorm Budget calibrate ClipByNorm ClipPerLayer
    Normalise LossGradient Unchanged BudgetError DataError Interrupted SordinoError StateError
    UnsupportedEvent UsageError register_gradient Gaussian OptimizedNoise Key as_records by_user Plan
    PrivateRun BallsInBins Cyclic FixedSize Poisson Shuffled TruncatedPoisson Cosine Step Warmup
    release_sensitivity Released release BoundedSum Layout PerExample Private release_moments RunFolder Fitted
    fit Charged Public accuracy Verdict verify Crop Flip Jitter Views
""".split()


def modules_for_type_checkers():
    """Where a type checker finds each name of the top level: the imports under `TYPE_CHECKING`."""
    tree = ast.parse(Path(so.__file__).read_text())
    (block,) = (each for each in tree.body if isinstance(each, ast.If) and ast.unparse(each.test) == "TYPE_CHECKING")
    exported = {}
    for statement in block.body:
        for alias in statement.names:
            if alias.asname == alias.name or alias.name in so.__all__:  # other names are not exported
                exported[alias.name] = statement.module
    return exported


@pytest.mark.parametrize("name", OF_VERSION_0_1)
def test_a_name_of_version_0_1_resolves_and_says_where_it_went(name):
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        value = getattr(so, name)
    if name in so.__all__:
        assert not caught
    else:
        (said,) = caught
        assert said.category is DeprecationWarning
        *_, module = str(said.message).rstrip(".").split()
        assert getattr(import_module(module), name) is value


def test_type_checkers_see_all_names_in_the_modules_where_users_get_them():
    assert len(set(OF_VERSION_0_1)) == 58
    assert modules_for_type_checkers() == so._HOMES | so._DEPRECATED
    assert set(so.__all__) | set(OF_VERSION_0_1) == modules_for_type_checkers().keys()
