"""A step uses the gradient of the last batch, of the whole batch, and once."""

import pytest
import torch
import torch.nn.functional as F
from opacus_script import ROWS, assert_same, data_set, gradient, kernel_gradients, made_private, network, train
from torch.utils.data import TensorDataset

import sordino as so
from sordino.errors import UsageError


def started():
    _, module, optimizer, loader = made_private()
    batches = iter(loader)
    inputs, labels = next(batches)
    return module, optimizer, batches, F.cross_entropy(module(inputs), labels)


def test_two_steps_on_one_batch_are_refused():
    _, optimizer, _, loss = started()
    loss.backward()
    optimizer.step()
    with pytest.raises(UsageError, match="there is no current batch"):
        optimizer.step()


def test_a_step_without_backward_is_refused():
    _, optimizer, _, _ = started()
    with pytest.raises(UsageError, match=r"backward\(\) was not called"):
        optimizer.step()


def test_backward_twice_is_refused():
    _, _, _, loss = started()
    loss.backward()
    with pytest.raises(UsageError, match=r"backward\(\) was already called"):
        loss.backward()


def test_backward_on_a_batch_of_the_past_is_refused():
    module, optimizer, batches, loss = started()
    loss.backward()
    optimizer.step()
    inputs, labels = next(batches)
    with pytest.raises(UsageError, match="must be computed from the loader's last batch"):
        loss.backward()
    with pytest.raises(UsageError, match="must be computed from the loader's last batch"):
        (loss + F.cross_entropy(module(inputs), labels)).backward()


def test_a_batch_of_the_past_cannot_be_trained_on():
    _, module, optimizer, loader = made_private()
    batches = iter(loader)
    old, labels = next(batches)
    F.cross_entropy(module(old), labels).backward()
    optimizer.step()
    next(batches)
    with pytest.raises(UsageError, match="the tensors of the loader's last batch"):
        module(old)


def test_tensors_of_ones_own_cannot_be_trained_on():
    _, module, _, loader = made_private()
    next(iter(loader))
    with pytest.raises(UsageError, match="the tensors of the loader's last batch"):
        module(torch.zeros(8, 4))


def test_a_batch_without_a_step_is_refused_because_it_tells_something():
    _, _, batches, loss = started()
    loss.backward()
    with pytest.raises(UsageError, match="no step was taken on the previous batch"):
        next(batches)


def test_two_batches_cannot_be_accumulated():
    _, module, _, loader = made_private()
    with pytest.raises(UsageError, match="no step was taken on the previous batch"):
        for inputs, labels in loader:
            (F.cross_entropy(module(inputs), labels) / 2).backward()


def test_two_forward_passes_cannot_be_one_loss():
    _, module, _, loader = made_private()
    inputs, labels = next(iter(loader))
    with pytest.raises(UsageError, match="one forward pass"):
        (F.cross_entropy(module(inputs), labels) + F.cross_entropy(module(inputs), labels)).backward()


def test_a_closure_is_called_once_before_the_release():
    calls = []
    found = []
    _, module, optimizer, loader = made_private()
    optimizer.param_groups[0]["lr"] = 0.0
    for inputs, labels in loader:

        def closure(inputs=inputs, labels=labels):
            calls.append(0)
            loss = F.cross_entropy(module(inputs), labels)
            loss.backward()
            return loss

        assert optimizer.step(closure=closure) is not None
        found.append(gradient(module))
    assert len(calls) == len(loader)
    assert_same(found[:3], kernel_gradients(network(), data_set(), 3))


def test_zeroing_clipping_and_writing_gradients_change_nothing():
    _, module, optimizer, loader = made_private()
    optimizer.param_groups[0]["lr"] = 0.0
    for inputs, labels in loader:
        F.cross_entropy(module(inputs), labels).backward()
        torch.nn.utils.clip_grad_norm_(module.parameters(), 1e-3)
        for parameter in module.parameters():
            parameter.grad = torch.full_like(parameter, 1e6)
        optimizer.zero_grad()
        module.zero_grad()
        module.eval()
        F.cross_entropy(module(torch.ones(5, 4)), torch.zeros(5, dtype=torch.int64)).backward()
        module.train()
        optimizer.step()
    assert_same([gradient(module)], kernel_gradients(network(), data_set(), 5)[-1:])


def test_a_batch_carries_no_graph_of_its_own():
    module, _, _, loss = started()
    assert not loss.requires_grad
    assert all(parameter.grad is None for parameter in module.parameters())
    with pytest.raises(RuntimeError):
        torch.autograd.grad(loss, list(module.parameters()))


def test_schedulers_and_states_see_the_optimizer_itself():
    _, module, optimizer, loader = made_private(make_optimizer=torch.optim.Adam)
    assert type(optimizer) is torch.optim.Adam
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, step_size=1, gamma=0.5)
    train(module, optimizer, loader)
    scheduler.step()
    assert optimizer.param_groups[0]["lr"] == pytest.approx(0.05)
    saved = optimizer.state_dict()
    assert {int(state["step"]) for state in saved["state"].values()} == {5}
    torch.optim.Adam(network().parameters()).load_state_dict(saved)


def test_an_optimizer_of_other_parameters_is_refused():
    with pytest.raises(UsageError, match="must have all trainable parameters"):
        made_private(make_optimizer=lambda parameters, lr: torch.optim.SGD(network().parameters(), lr=lr))
    more = torch.nn.Parameter(torch.zeros(2))
    with pytest.raises(UsageError, match="the module's parameters only"):
        made_private(make_optimizer=lambda parameters, lr: torch.optim.SGD([*parameters, more], lr=lr))


def test_parameters_added_later_are_refused():
    _, optimizer, _, loss = started()
    loss.backward()
    optimizer.add_param_group({"params": [torch.nn.Parameter(torch.zeros(2))]})
    with pytest.raises(UsageError, match="the module's parameters only"):
        optimizer.step()


def test_parameters_frozen_later_are_refused():
    _, module, _, loader = made_private()
    inputs, _ = next(iter(loader))
    module.get_submodule("0").weight.requires_grad_(False)
    with pytest.raises(UsageError, match="trainable parameters have changed"):
        module(inputs)


def test_lbfgs_is_refused():
    with pytest.raises(UsageError, match="LBFGS"):
        made_private(make_optimizer=torch.optim.LBFGS)


def test_a_frozen_layer_stays_and_the_rest_learns():
    model = network()
    model[0].weight.requires_grad_(False)
    before = [p.detach().clone() for p in model.parameters()]
    train(*made_private(model=model)[1:])
    assert [torch.equal(p, b) for p, b in zip(model.parameters(), before, strict=True)] == [True, False, False, False]


def test_an_empty_batch_is_a_step_of_noise():
    inputs, labels = data_set().tensors
    _, module, optimizer, loader = made_private(data=TensorDataset(inputs, labels), batch_size=1)
    sizes = []
    for x, y in loader:
        sizes.append(len(x))
        optimizer.zero_grad()
        outputs = module(x)
        assert outputs.shape == (len(x), 3)
        loss = F.cross_entropy(outputs, y)
        loss.backward()
        optimizer.step()
        assert gradient(module).isfinite().all()
        assert len(x) or gradient(module).std() > 0.5  # noise of one clip norm, divided by one
        if len(sizes) > 15:
            break
    assert 0 in sizes and max(sizes) > 0
    assert loader.session.run.steps == len(sizes)


def test_an_empty_batch_may_have_no_backward_but_needs_its_step():
    _, module, optimizer, loader = made_private(batch_size=1)
    for inputs, labels in loader:
        if len(inputs):
            F.cross_entropy(module(inputs), labels).backward()
        optimizer.step()
    assert loader.session.run.steps == ROWS


def test_a_step_of_the_kernel_is_finished_once_and_before_the_next():
    plan = so.Plan(so.Poisson(0.5, 3), so.LossGradient(F.cross_entropy), so.ClipByNorm(1.0), so.Gaussian(1.0))
    model = network()
    run = so.PrivateRun(plan, model, data_set(), seed=0)
    first, second = run.begin(), run.begin()
    assert run.steps == 2
    total = run.bounded(second, plan.contribution.of(model, *run.drawn(second, second.indices)))
    with pytest.raises(UsageError, match="this step has been finished"):
        run.finish(first, total)
    run.finish(second, total)
    with pytest.raises(UsageError, match="this step has been finished"):
        run.finish(second, total)


def test_a_step_begun_and_finished_apart_is_the_step_of_the_run():
    plan = so.Plan(so.Poisson(0.5, 3), so.LossGradient(F.cross_entropy), so.ClipByNorm(1.0), so.Gaussian(1.0))
    model = network()
    whole, apart = (so.PrivateRun(plan, model, data_set(), seed=0) for _ in range(2))
    for private in whole:
        begun = apart.begin()
        each = plan.contribution.of(model, *apart.drawn(begun, begun.indices))
        assert torch.equal(apart.finish(begun, apart.bounded(begun, each)).value, private.value)
    with pytest.raises(UsageError, match="have been taken"):
        apart.begin()
