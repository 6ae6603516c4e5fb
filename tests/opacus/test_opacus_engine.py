"""A script written for Opacus takes the steps of the kernel."""

import copy
import pickle

import pytest
import torch
import torch.nn.functional as F
from opacus_script import (
    INPUTS,
    ROWS,
    assert_same,
    data_set,
    gradient,
    kernel_gradients,
    made_private,
    network,
    script_gradients,
    train,
)
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import sordino as so
from sordino.errors import UsageError
from sordino.opacus import PrivacyEngine
from sordino.opacus.grad_sample import register_grad_sampler
from sordino.opacus.utils.batch_memory_manager import BatchMemoryManager
from sordino.opacus.validators import ModuleValidator, register_module_validator, utils
from sordino.opacus.validators.utils import register_module_fixer


def test_a_script_releases_what_the_kernel_does():
    assert_same(script_gradients(5), kernel_gradients(network(), data_set(), 5))


def test_a_model_that_the_tape_cannot_follow_releases_what_the_kernel_does():
    class Odd(nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = nn.Parameter(torch.linspace(-1, 1, INPUTS * 3).reshape(3, INPUTS))

        def forward(self, x):
            return torch.vmap(lambda row: F.linear(row, self.weight))(x)

    assert_same(script_gradients(5, model=Odd()), kernel_gradients(Odd(), data_set(), 5))


def test_dropout_is_that_of_the_kernel():
    def model():
        return nn.Sequential(network(), nn.Dropout(0.5))

    assert_same(script_gradients(5, model=model()), kernel_gradients(model(), data_set(), 5))


def test_per_layer_clipping_is_the_kernels():
    norms = [0.1, 0.2, 0.3, 0.4]
    found = script_gradients(3, clipping="per_layer", max_grad_norm=norms)
    assert_same(found, kernel_gradients(network(), data_set(), 3, clip=so.ClipPerLayer(norms)))


@pytest.mark.parametrize("mode", ["hooks", "functorch", "ew", "ghost", "ghost_fsdp"])
def test_every_mode_returns_what_opacus_returns(mode):
    criterion = nn.CrossEntropyLoss()
    engine, *returned = made_private(grad_sample_mode=mode, criterion=criterion)
    if mode.startswith("ghost"):
        assert returned.pop(2) is criterion
    assert len(returned) == 3
    train(*returned, criterion)
    assert engine.get_epsilon(1e-3) > 0


@pytest.mark.parametrize("largest", [1, 3, 100])
def test_physical_batches_change_nothing(largest):
    _, module, optimizer, loader = made_private()
    optimizer.param_groups[0]["lr"] = 0.0
    found, batches = [], 0
    with BatchMemoryManager(data_loader=loader, max_physical_batch_size=largest, optimizer=optimizer) as parts:
        for inputs, labels in parts:
            assert len(inputs) <= largest
            optimizer.zero_grad()
            F.cross_entropy(module(inputs), labels).backward()
            optimizer.step()
            batches += 1
            if all(p.grad is not None for p in module.parameters()):
                found.append(gradient(module))
    assert len(found) == len(parts) == 5
    assert batches > 5 or largest == 100
    assert_same(found, kernel_gradients(network(), data_set(), 5))


def test_epsilon_is_of_the_steps_begun():
    engine, module, optimizer, loader = made_private()
    assert engine.get_epsilon(1e-3) == 0
    train(module, optimizer, loader)
    train(module, optimizer, loader)
    expected = so.Plan(so.Poisson(8 / ROWS, 10), so.LossGradient(F.cross_entropy), so.ClipByNorm(1.0), so.Gaussian(1.0))
    assert (
        engine.get_epsilon(1e-3) == expected.guarantee(delta=1e-3).epsilon == engine.accountant.get_epsilon(delta=1e-3)
    )


def test_a_batch_that_was_drawn_is_counted_although_no_step_followed():
    engine, _, _, loader = made_private()
    next(iter(loader))
    assert engine.get_epsilon(1e-3) > 0


def test_the_guarantee_says_what_the_script_has_to_keep():
    engine, *_ = made_private()
    statement = engine.guarantee(1e-3).statement
    assert "keeps raw batches, the model's outputs and losses to itself" in statement
    assert "the number of steps was not chosen" in statement
    assert "seed stays secret" in statement
    assert "zero-out" in statement


def test_a_target_is_kept_and_steps_beyond_it_are_refused():
    model = network()
    engine, optimizer = PrivacyEngine(seed=0), torch.optim.SGD(model.parameters(), lr=0.1)
    module, optimizer, loader = engine.make_private_with_epsilon(
        module=model,
        optimizer=optimizer,
        data_loader=DataLoader(data_set(), batch_size=8),
        target_epsilon=2.0,
        target_delta=1e-3,
        epochs=2,
        max_grad_norm=1.0,
    )
    train(module, optimizer, loader)
    assert engine.get_epsilon(1e-3) < 1.9 < engine.guarantee(1e-3).epsilon <= 2.0
    train(module, optimizer, loader)
    assert engine.get_epsilon(1e-3) == engine.guarantee(1e-3).epsilon
    with pytest.raises(UsageError, match="all 10 steps of the plan have been taken"):
        train(module, optimizer, loader)


def test_an_engine_adds_up_all_that_it_made_private():
    engine, *first = made_private()
    train(*first)
    once = engine.get_epsilon(1e-3)
    _, *second = made_private(engine=engine)
    train(*second)
    twice = engine.get_epsilon(1e-3)
    _, module, optimizer, loader = alone = made_private()
    train(module, optimizer, loader)
    train(module, optimizer, loader)
    assert once < twice == pytest.approx(alone[0].get_epsilon(1e-3), rel=1e-3)


def test_two_trainings_by_one_engine_have_noise_of_their_own():
    engine, first, *rest = made_private(noise_multiplier=100.0)
    train(first, *rest)
    _, second, *rest = made_private(engine=engine, noise_multiplier=100.0)
    train(second, *rest)
    assert not torch.allclose(gradient(first), gradient(second))


def test_without_a_seed_no_two_runs_are_the_same():
    gradients = []
    for _ in range(2):
        _, module, optimizer, loader = made_private(seed=None)
        train(module, optimizer, loader)
        gradients.append(gradient(module))
    assert not torch.equal(*gradients)


def test_names_in_the_state_do_not_change():
    model = network()
    names = list(model.state_dict())
    _, module, *rest = made_private(model=model)
    train(module, *rest)
    assert list(module.state_dict()) == names == [name for name, _ in module.named_parameters()]
    network().load_state_dict(module.state_dict())
    assert isinstance(module.get_submodule("0"), nn.Linear)


def test_evaluation_is_that_of_the_model():
    model = network()
    _, module, *_ = made_private(model=model)
    inputs = torch.randn(7, INPUTS)
    module.eval()
    assert not model.training
    assert torch.equal(module(inputs), model(inputs))
    module.train()
    with torch.no_grad():
        assert torch.equal(module(inputs), model(inputs))


def test_a_script_may_look_at_its_own_batch():
    _, module, optimizer, loader = made_private()
    total = 0.0
    for inputs, labels in loader:
        outputs = module(inputs)
        loss = F.cross_entropy(outputs, labels)
        loss.backward()
        optimizer.step()
        right = outputs.detach().argmax(dim=1).numpy() == labels.detach().numpy()
        assert right.sum() == (outputs.argmax(1) == labels).sum().item()
        total += loss.item()
        assert outputs.shape == (len(inputs), 3)
        assert outputs.max(1)[1].shape == labels.shape
    assert total > 0


def test_a_batch_may_be_looked_at_without_gradients():
    model = network()
    _, module, _, loader = made_private(model=model)
    inputs, _ = next(iter(loader))
    with torch.no_grad():
        outputs = module(inputs)
        assert outputs.tolist() == model(torch.tensor(inputs.tolist())).tolist()
    with pytest.raises(UsageError, match="takes the tensors of the loader's last batch"):
        module(outputs)


def test_the_validator_replaces_batch_norm():
    model = nn.Sequential(nn.Conv2d(1, 8, 3), nn.BatchNorm2d(8))
    (error,) = ModuleValidator.validate(model)
    assert "mixes the examples" in str(error)
    with pytest.raises(UsageError, match="mixes the examples"):
        ModuleValidator.validate(model, strict=True)
    fixed = ModuleValidator.fix_and_validate(model)
    assert isinstance(fixed[1], nn.GroupNorm)
    assert ModuleValidator.is_valid(fixed)


@pytest.fixture
def registered(monkeypatch):
    """Registered functions are forgotten after the test."""
    monkeypatch.setattr(utils, "_VALIDATORS", {})
    monkeypatch.setattr(utils, "_FIXERS", {})


def test_a_registered_check_refuses_a_layer_before_training(registered):
    @register_module_validator([nn.Tanh, nn.Linear])
    def narrow(layer):
        return [ValueError("too wide for us")] if getattr(layer, "out_features", 0) > 5 else []

    model = network()
    assert [str(problem) for problem in ModuleValidator.validate(model)] == ["too wide for us"]
    with pytest.raises(UsageError, match="a registered check refuses it: too wide for us"):
        made_private(model=model)
    model[0].requires_grad_(False)
    assert ModuleValidator.is_valid(model)  # a frozen layer is not checked
    with pytest.raises(UsageError, match=r"must be classes of torch\.nn\.Module, got list"):
        register_module_validator([int])


def test_a_registered_check_cannot_admit_what_the_library_refuses(registered):
    register_module_validator(nn.BatchNorm2d)(lambda layer: [])
    with pytest.raises(UsageError, match="mixes the examples"):
        made_private(model=nn.Sequential(nn.Conv2d(1, 8, 3), nn.BatchNorm2d(8)))


def test_a_registered_replacement_comes_before_group_norm(registered):
    @register_module_fixer([nn.BatchNorm2d])
    def instance_norm(layer):
        return nn.InstanceNorm2d(layer.num_features)

    shared = nn.BatchNorm2d(8)
    model = nn.Sequential(nn.Conv2d(1, 8, 3), shared, nn.Sequential(shared, nn.BatchNorm1d(8)))
    fixed = ModuleValidator.fix_and_validate(model)
    assert isinstance(fixed[1], nn.InstanceNorm2d) and fixed[2][0] is fixed[1]
    assert isinstance(fixed[2][1], nn.GroupNorm) and model[1] is shared
    register_module_fixer(nn.Conv2d)(lambda layer: None)
    with pytest.raises(UsageError, match="the result of a registered fixer must be"):
        ModuleValidator.fix(model)


def test_a_registered_gradient_of_rows_is_never_called():
    @register_grad_sampler(nn.Linear)
    def wrong(layer, activations, backprops):
        raise AssertionError

    assert_same(script_gradients(2), kernel_gradients(network(), data_set(), 2))
    with pytest.raises(UsageError, match="must be classes"):
        register_grad_sampler("Linear")


def test_a_model_that_mixes_examples_is_refused_in_the_first_pass():
    class Centred(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(INPUTS, 3)

        def forward(self, x):
            return self.layer(x - x.mean(dim=0))

    with pytest.raises(UsageError, match="mixes the examples of a batch"):
        train(*made_private(model=Centred())[1:])


def test_a_row_that_is_not_finite_counts_as_absent():
    data = data_set()
    inputs, labels = (x.clone() for x in data.tensors)
    inputs[::2] = float("nan")
    inputs[1] = float("inf")
    labels[3::8], labels[5::8] = 7, -1
    poisoned = TensorDataset(inputs, labels)
    assert_same(script_gradients(5, data=poisoned), kernel_gradients(network(), poisoned, 5))


def test_a_row_that_the_model_fails_on_counts_as_absent():
    def model():
        torch.manual_seed(0)
        return nn.Sequential(nn.Embedding(5, 4), nn.Flatten(), nn.Linear(12, 3))

    ids = torch.randint(0, 5, (ROWS, 3), generator=torch.Generator().manual_seed(0))
    ids[::7, 1] = 99
    data = TensorDataset(ids, data_set().tensors[1])
    assert_same(script_gradients(5, data=data, model=model()), kernel_gradients(model(), data, 5))


def test_a_copy_is_the_plain_model():
    model = network()
    _, module, optimizer, loader = made_private(model=model)
    average = copy.deepcopy(module)
    assert type(average) is nn.Sequential
    train(module, optimizer, loader)
    assert not torch.equal(average[0].weight, model[0].weight)


def test_no_copy_draws_the_same_noise_again():
    _, module, optimizer, loader = made_private()
    again = copy.deepcopy(loader)
    train(module, optimizer, again)
    assert again.session is loader.session and loader.session.run.steps == 5
    with pytest.raises(UsageError, match="cannot be pickled"):
        pickle.dumps(module)
