"""What scripts of Opacus do besides training: loaders, hooks, checkpoints, facts of the optimizer, one process."""

import copy
import pickle

import pytest
import torch
import torch.nn.functional as F
from opacus_script import assert_same, data_set, gradient, kernel_gradients, made_private, network, train
from torch.utils.data import DataLoader
from torch.utils.data.distributed import DistributedSampler

from sordino.errors import UsageError
from sordino.opacus import PrivacyEngine
from sordino.opacus.data_loader import DPDataLoader
from sordino.opacus.distributed import DifferentiallyPrivateDistributedDataParallel as DPDDP
from sordino.opacus.engine import WeakTarget
from sordino.opacus.utils.fsdp_utils import FSDP2Wrapper
from sordino.opacus.utils.uniform_sampler import UniformWithReplacementSampler


def test_a_loader_that_was_made_private_before_gets_the_batches():
    given = DPDataLoader.from_data_loader(DataLoader(data_set(), batch_size=8), distributed=False)
    assert given.sample_rate == 0.2 and len(given) == 5
    with pytest.raises(UsageError, match="no batches yet"):
        next(iter(given))
    *_, loader = made_private(loader=given)
    assert loader is given
    assert len(next(iter(loader))) == 2


def test_a_distributed_loader_of_one_process_is_the_plain_one(monkeypatch):
    plain = DataLoader(data_set(), batch_size=8)
    given = DPDataLoader.from_data_loader(plain, distributed=True)
    assert (given.batch_sampler.num_samples, given.batch_sampler.sample_rate) == (40, 0.2)
    engine, *private = made_private(loader=given)
    train(*private)
    assert private[-1] is given and engine.get_epsilon(1e-3) > 0
    monkeypatch.setattr(torch.distributed, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.distributed, "get_world_size", lambda: 2)
    with pytest.raises(UsageError, match="got 2 processes"):
        DPDataLoader.from_data_loader(plain, distributed=True)


def test_a_sampler_of_opacus_is_refused_in_a_loader():
    sampler = UniformWithReplacementSampler(num_samples=40, sample_rate=0.2)
    assert len(list(sampler)) == 5
    with pytest.raises(UsageError, match="batch_sampler"):
        made_private(loader=DataLoader(data_set(), batch_sampler=sampler))


@pytest.mark.parametrize("wrap_model", [True, False])
def test_the_original_model_can_be_called(wrap_model):
    model, found = network(), []
    _, hooks, optimizer, loader = made_private(model=model, wrap_model=wrap_model)
    optimizer.param_groups[0]["lr"] = 0.0
    for inputs, labels in loader:
        F.cross_entropy(model(inputs), labels).backward()
        optimizer.step()
        found.append(gradient(model))
    assert_same(found[:3], kernel_gradients(network(), data_set(), 3))
    (hooks.remove_hooks if wrap_model else hooks.cleanup)()
    assert not model._forward_hooks and not model._forward_pre_hooks


def test_a_model_trains_with_and_without_a_wrapper_and_goes_on_from_a_plain_checkpoint(tmp_path):
    """The course of the notebook of Opacus on `wrap_model=False`: one loader serves several engines."""
    given, adam = DataLoader(data_set(), batch_size=8, shuffle=True), torch.optim.Adam
    _, wrapped, _, _ = made_private(loader=given, engine=PrivacyEngine())
    model = network()
    engine, hooks, optimizer, loader = made_private(
        model=model, loader=given, engine=PrivacyEngine(), make_optimizer=adam, wrap_model=False
    )
    assert list(model.state_dict()) == list(wrapped.state_dict())
    for _ in range(2):
        train(model.train(), optimizer, loader)
    spent = engine.get_epsilon(1e-5)
    hooks.cleanup()
    torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, tmp_path / "checkpoint.pt")

    saved, loaded = torch.load(tmp_path / "checkpoint.pt"), network(seed=3)
    loaded.load_state_dict(saved["model"])
    again, _, optimizer, loader = made_private(
        model=loaded, loader=given, engine=PrivacyEngine(), make_optimizer=adam, wrap_model=False
    )
    optimizer.load_state_dict(saved["optimizer"])
    before = next(iter(loaded.parameters())).clone()
    train(loaded.train(), optimizer, loader)
    assert not torch.equal(before, next(iter(loaded.parameters())))
    assert 0 < again.get_epsilon(1e-5) < spent  # an engine of its own counts its own steps


def test_copies_of_the_original_model_are_plain():
    model = network()
    _, _, _, loader = made_private(model=model, wrap_model=False)
    for twin in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        assert torch.equal(twin(torch.ones(2, 4)), model(torch.ones(2, 4)))
        with pytest.raises(UsageError, match="not an output of the private model"):
            twin(next(iter(loader))[0])
        loader.session._begun = loader.session._part = None


def test_public_numbers_of_the_optimizer_may_be_read_and_not_changed():
    _, module, optimizer, loader = made_private(noise_multiplier=1.5, max_grad_norm=0.7)
    assert (optimizer.noise_multiplier, optimizer.max_grad_norm, optimizer.expected_batch_size) == (1.5, 0.7, 8)
    optimizer.noise_multiplier = 0.1
    with pytest.raises(UsageError, match="noise_multiplier is part of the plan"):
        train(module, optimizer, loader)


def test_a_checkpoint_keeps_what_was_spent(tmp_path):
    path, model = tmp_path / "checkpoint.pt", network()
    first, module, optimizer, loader = made_private(model=model, engine=PrivacyEngine())
    train(module, optimizer, loader)
    first.save_checkpoint(path=path, module=module, optimizer=optimizer, checkpoint_dict={"epoch": 1})
    spent = first.get_epsilon(1e-3)
    first.load_checkpoint(path=path, module=module, optimizer=optimizer)
    assert first.get_epsilon(1e-3) == spent  # its own steps are counted already

    second, module, optimizer, loader = made_private(model=network(seed=3), engine=PrivacyEngine())
    for _ in range(2):  # loaded again, it is not counted twice
        assert second.load_checkpoint(path=path, module=module, optimizer=optimizer)["epoch"] == 1
    assert second.get_epsilon(1e-3) == pytest.approx(spent, rel=1e-6)
    assert all(torch.equal(a, b) for a, b in zip(module.parameters(), model.parameters(), strict=True))
    train(module, optimizer, loader)
    train(*made_private(engine=first)[1:])
    assert second.get_epsilon(1e-3) == pytest.approx(first.get_epsilon(1e-3), rel=1e-6)
    assert any("checkpoint" in line for line in second.guarantee(1e-3).assumptions)


def test_checkpoints_that_prove_nothing_are_refused(tmp_path):
    path = tmp_path / "checkpoint.pt"
    engine, module, optimizer, _ = made_private(engine=PrivacyEngine())
    engine.save_checkpoint(path=path, module=module)
    with pytest.raises(UsageError, match="seed"):
        PrivacyEngine(seed=1).load_checkpoint(path=path, module=module)
    with pytest.raises(UsageError, match="pass optimizer both"):
        engine.load_checkpoint(path=path, module=module, optimizer=optimizer)
    saved = torch.load(path)
    (name,) = saved["privacy_accountant_state_dict"]
    call = saved["privacy_accountant_state_dict"][name][0]
    for wrong in (
        {},
        None,
        {name: [{**call, "steps_begun": -1}]},
        {name: [{**call, "sampler": "Unknown"}]},
        {"x": [1]},
    ):
        torch.save({**saved, "privacy_accountant_state_dict": wrong}, path)
        with pytest.raises(UsageError, match="what was spent"):
            engine.load_checkpoint(path=path, module=module)
    torch.save({"module_state_dict": {}}, path)
    with pytest.raises(UsageError, match="keys"):
        engine.load_checkpoint(path=path, module=module)


def test_wrappers_for_several_processes_return_the_model_of_one(monkeypatch):
    model = network()
    assert DPDDP(model) is model and FSDP2Wrapper(model) is model
    monkeypatch.setattr(torch.distributed, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.distributed, "get_world_size", lambda: 2)
    for wrapper in (DPDDP, FSDP2Wrapper):
        with pytest.raises(UsageError, match="got 2 processes"):
            wrapper(model)


def test_a_distributed_sampler_of_one_process_is_a_permutation():
    data = data_set()
    alone = DistributedSampler(data, num_replicas=1, rank=0)
    engine, *private = made_private(loader=DataLoader(data, 8, sampler=alone), poisson_sampling=False)
    train(*private)
    assert engine.get_epsilon(1e-3) > 0
    one_of_two = DistributedSampler(data, num_replicas=2, rank=0)
    with pytest.raises(UsageError, match="DistributedSampler"):
        made_private(loader=DataLoader(data, 8, sampler=one_of_two))


@pytest.mark.parametrize("epsilon, delta", [(50.0, 1e-3), (1.0, 0.03)])
def test_weak_targets_are_carried_out_with_a_warning(epsilon, delta):
    model, engine = network(), PrivacyEngine()
    with pytest.warns(WeakTarget):
        engine.make_private_with_epsilon(
            module=model,
            optimizer=torch.optim.SGD(model.parameters(), lr=0.1),
            data_loader=DataLoader(data_set(), batch_size=8),
            target_epsilon=epsilon,
            target_delta=delta,
            epochs=1,
            max_grad_norm=1.0,
        )
    assert engine.guarantee(delta).epsilon <= epsilon


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    "noise, delta, said", [(0.3, 1e-5, ["an epsilon above 20"]), (2.0, 0.025, ["one of the 40 rows"]), (2.0, 0.02, [])]
)
def test_a_guarantee_that_protects_little_says_so_even_if_warnings_are_off(noise, delta, said):
    engine, *private = made_private(noise_multiplier=noise)
    for _ in range(5):
        train(*private)
    accepted = [line for line in engine.guarantee(delta).assumptions if line.endswith("is accepted")]
    assert len(accepted) == len(said) and all(words in line for words, line in zip(said, accepted, strict=True))
    assert all(line in str(engine.guarantee(delta)) for line in accepted)


def test_a_loss_that_is_logged_first_may_be_divided_by_one():
    """PyTorch Lightning logs the loss, and divides it by the number of accumulated batches, which is one."""
    _, module, _, loader = made_private()
    inputs, labels = next(iter(loader))
    loss = F.cross_entropy(module(inputs), labels)
    loss.item()
    (loss / 1).backward()
    _, module, _, loader = made_private()
    inputs, labels = next(iter(loader))
    loss = F.cross_entropy(module(inputs), labels)
    loss.item()
    with pytest.raises(UsageError, match="read as Python values"):
        (loss / 2).backward()


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_lightning_trains_privately(tmp_path, monkeypatch):
    pl = pytest.importorskip("lightning.pytorch", reason="Lightning is missing: pip install 'sordino[lightning]'")
    from sordino.opacus.lightning import DPLightningDataModule

    class Data(pl.LightningDataModule):
        def train_dataloader(self):
            return DataLoader(data_set(), batch_size=8, shuffle=True)

    class Network(pl.LightningModule):
        def __init__(self):
            super().__init__()
            self.body, self.engine = network(), PrivacyEngine(seed=1)

        def forward(self, inputs):
            return self.body(inputs)

        def training_step(self, batch, index):
            inputs, labels = batch
            loss = F.cross_entropy(self(inputs), labels)
            self.log("loss", loss, on_epoch=True)
            return loss

        def configure_optimizers(self):
            _, optimizer, _ = self.engine.make_private(
                module=self,
                optimizer=torch.optim.SGD(self.parameters(), lr=0.0),
                data_loader=self.trainer.datamodule.train_dataloader(),
                noise_multiplier=1.0,
                max_grad_norm=1.0,
            )
            return optimizer

        def on_train_batch_end(self, *_):
            found.append(gradient(self.body))

    found, model = [], Network()
    monkeypatch.chdir(tmp_path)
    trainer = pl.Trainer(max_epochs=2, accelerator="cpu", enable_progress_bar=False, enable_model_summary=False)
    trainer.fit(model, DPLightningDataModule(Data()))
    assert model.engine.get_epsilon(1e-3) > 0
    assert_same(found[:10], kernel_gradients(network(), data_set(), 10))
