"""`PrivateTrainer` takes private steps in the loop of transformers, and refuses what cannot be private."""

from __future__ import annotations

import math
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import (
    BertConfig,
    BertForSequenceClassification,
    EarlyStoppingCallback,
    ResNetConfig,
    ResNetForImageClassification,
    TrainerCallback,
    TrainingArguments,
)

import sordino as so
from sordino.errors import SordinoError, StateError, UsageError
from sordino.huggingface.trainer import PrivateTrainer
from sordino.training.run_folder import RunFolder

pytestmark = pytest.mark.filterwarnings("ignore:'pin_memory' argument")
ROWS, STEPS = 48, 6


def data() -> dict[str, Tensor]:
    ids = torch.randint(5, 50, (ROWS, 6), generator=torch.Generator().manual_seed(1))
    return {"input_ids": ids, "attention_mask": torch.ones_like(ids), "labels": (ids[:, 0] > 25).long()}


def public() -> list[dict[str, Tensor]]:
    rows = data()
    return [{name: column[row] for name, column in rows.items()} for row in range(8)]


class StopAt(TrainerCallback):
    def __init__(self, step: int) -> None:
        self.step = step

    def on_step_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        if state.global_step == self.step:
            raise KeyboardInterrupt


def arguments(folder: Path, **settings: Any) -> TrainingArguments:
    usual: dict[str, Any] = {"per_device_train_batch_size": 8, "gradient_accumulation_steps": 2, "num_train_epochs": 2}
    usual |= {"learning_rate": 1e-2, "lr_scheduler_type": "cosine", "warmup_steps": 1, "logging_steps": 1}
    return TrainingArguments(str(folder), **usual | {"report_to": [], "disable_tqdm": True, "save_steps": 2} | settings)


def trainer(folder: Path, args: dict[str, Any] | None = None, **options: Any) -> PrivateTrainer:
    torch.manual_seed(0)
    config = BertConfig(
        vocab_size=50, hidden_size=8, num_hidden_layers=1, num_attention_heads=2, intermediate_size=8,
        max_position_embeddings=8,
    )  # fmt: skip
    usual: dict[str, Any] = {"train_dataset": data(), "epsilon": 8.0, "delta": 1e-2, "seed": 3}
    made = arguments(folder, **args or {})
    return PrivateTrainer(BertForSequenceClassification(config), made, **usual | options)


def weights(trained: PrivateTrainer) -> list[Tensor]:
    return [x.detach().clone() for x in trained.model.parameters()]


def same(one: list[Tensor], other: list[Tensor]) -> bool:
    return all(map(torch.equal, one, other))


def test_an_interrupted_training_goes_on_to_the_same_weights(tmp_path: Path) -> None:
    whole = trainer(tmp_path / "whole")
    output = whole.train()
    assert (output.global_step, math.isnan(output.training_loss)) == (STEPS, True)
    stopped = trainer(tmp_path / "model", callbacks=[StopAt(3)])
    with pytest.raises(KeyboardInterrupt):
        stopped.train()
    resumed = trainer(tmp_path / "model")
    resumed.train(resume_from_checkpoint=True)
    assert same(weights(whole), weights(resumed))
    assert not same(weights(stopped), weights(resumed))
    assert resumed.guarantee == whole.guarantee
    assert not RunFolder(tmp_path / "model-run").private.exists()  # the key is deleted at the end


def test_the_log_has_epsilon_and_no_loss_of_private_rows(tmp_path: Path) -> None:
    made = trainer(tmp_path / "model", {"eval_strategy": "epoch"}, eval_dataset=public())
    made.train()
    rows = made.state.log_history
    names = {name for row in rows for name in row}
    assert not names & {"loss", "train_loss", "total_flos", "num_input_tokens_seen"}
    spent = [row["epsilon"] for row in rows if "epsilon" in row and "learning_rate" in row]
    assert spent == sorted(spent)
    assert len(spent) == STEPS
    assert spent[-1] == made.guarantee.epsilon <= 8.0
    assert sum("eval_loss" in row for row in rows) == 2


def test_the_step_is_that_of_a_private_run(tmp_path: Path) -> None:
    """With plain SGD and a constant rate, the trainer gives the weights of so.fit, bit for bit."""
    made = trainer(tmp_path / "model", {"optim": "sgd", "lr_scheduler_type": "constant", "warmup_steps": 0})
    reference = trainer(tmp_path / "reference").model
    made.train()
    rows, optimizer = data(), torch.optim.SGD(reference.parameters(), lr=1e-2)
    so.fit(reference, rows, made.plan, delta=1e-2, optimizer=optimizer, seed=3, progress=False)
    assert same(weights(made), [x.detach() for x in reference.parameters()])
    assert isinstance(made.plan.clip, so.ClipByNorm)
    assert made.plan.clip.bound == 1.0  # max_grad_norm


def test_training_stops_early_on_public_rows_only_and_keeps_its_guarantee(tmp_path: Path) -> None:
    settings = {"eval_strategy": "steps", "eval_steps": 1, "save_steps": 1, "load_best_model_at_end": True}
    patience = EarlyStoppingCallback(early_stopping_patience=1, early_stopping_threshold=10.0)
    made = trainer(
        tmp_path / "model",
        settings | {"metric_for_best_model": "eval_loss"},
        eval_dataset=public(),
        callbacks=[patience],
    )
    planned = made.guarantee.epsilon
    assert made.train().global_step < STEPS
    assert made.guarantee.epsilon == planned


def test_a_folder_with_a_run_is_not_begun_again(tmp_path: Path) -> None:
    trainer(tmp_path / "model", {"max_steps": 1}).train()
    with pytest.raises(UsageError, match="has a run already: resume it, or choose another folder"):
        trainer(tmp_path / "model", {"max_steps": 1}).train()
    with pytest.raises(StateError, match="the run cannot be continued"):
        trainer(tmp_path / "model", {"max_steps": 1}).train(resume_from_checkpoint=True)


@pytest.mark.parametrize(
    ("args", "options", "says"),
    [
        ({"train_sampling_strategy": "group_by_length"}, {}, "train_sampling_strategy must be 'random'"),
        ({"label_smoothing_factor": 0.1}, {}, "pass loss="),
        ({"neftune_noise_alpha": 5.0}, {}, "neftune_noise_alpha adds noise"),
        ({"include_num_input_tokens_seen": "all"}, {}, "counts tokens of private rows"),
        ({"auto_find_batch_size": True}, {}, "would change the sampling rate"),
        ({"torch_compile": True}, {}, "torch_compile cannot be taken apart"),
        ({"lr_scheduler_type": "reduce_lr_on_plateau", "eval_strategy": "epoch"}, {"eval_dataset": []}, "no schedule"),
        ({"optim": "lomo"}, {}, "steps in the backward pass"),
        ({"max_grad_norm": 0.0}, {}, "must be positive, got 0.0"),
        ({"per_device_train_batch_size": 25}, {}, "batch_size must be"),
        ({}, {"model_init": lambda: None}, "model_init must not be given"),
        ({}, {"compute_loss_func": lambda *_: None}, "compute_loss_func must not be given"),
        ({}, {"epsilon": None}, "epsilon must be given"),
        ({}, {"delta": None}, "delta must be given"),
        ({}, {"train_dataset": {"text": ["private"] * ROWS}}, "label"),
    ],
)
def test_what_cannot_be_private_is_refused_in_one_line(tmp_path: Path, args: Any, options: Any, says: str) -> None:
    with pytest.raises((SordinoError, ImportError), match=says) as refused:
        trainer(tmp_path / "model", args, **options)
    assert "\n" not in str(refused.value)
    assert not list(tmp_path.iterdir())


def test_a_model_that_mixes_examples_is_refused_before_a_folder_is_made(tmp_path: Path) -> None:
    config = ResNetConfig(embedding_size=4, hidden_sizes=[4], depths=[1], num_labels=2)
    rows = {"pixel_values": torch.rand(ROWS, 3, 8, 8), "labels": torch.randint(2, (ROWS,))}
    made = PrivateTrainer(
        ResNetForImageClassification(config), arguments(tmp_path / "model"), train_dataset=rows, epsilon=8.0, delta=1e-2
    )
    with pytest.raises(UsageError, match=r"BatchNorm2d.*mixes the examples of a batch") as refused:
        made.train()
    assert "\n" not in str(refused.value)
    assert not list(tmp_path.glob("model-run*"))


def test_measurements_on_the_private_rows_are_refused(tmp_path: Path) -> None:
    rows = data()
    with pytest.raises(UsageError, match="eval_dataset must be public rows"):
        trainer(tmp_path / "model", train_dataset=rows, eval_dataset=rows)
    made = trainer(tmp_path / "model", train_dataset=rows)
    for measure in (made.evaluate, made.predict):
        with pytest.raises(UsageError, match="a release: evaluate on public rows"):
            measure(rows)
    with pytest.raises(UsageError, match="each trial of a search is a release"):
        made.hyperparameter_search()


def test_half_precision_is_that_of_the_gradient(tmp_path: Path) -> None:
    made = trainer(tmp_path / "model", {"bf16": True, "use_cpu": True, "max_steps": 1})
    contribution = made.plan.contribution
    assert isinstance(contribution, so.LossGradient)
    assert contribution.autocast is torch.bfloat16
    made.train()
    assert all(x.dtype == torch.float32 and bool(x.isfinite().all()) for x in weights(made))


def test_a_plan_decides_everything_and_a_budget_counts_it(tmp_path: Path) -> None:
    from sordino.huggingface import as_records, loss_for

    model = trainer(tmp_path / "other").model
    records = as_records(model, data())
    budget = so.Budget(records, epsilon=9.0, delta=1e-2)
    plan = so.Plan(so.Poisson(0.5, 2), so.LossGradient(loss_for(model, records)), so.ClipByNorm(0.1), so.Gaussian(2.0))
    made = trainer(tmp_path / "model", {"max_steps": 2}, train_dataset=budget, plan=plan, epsilon=None)
    made.train()
    assert made.plan == plan
    assert len(budget.releases) == 1
    with pytest.raises(UsageError, match="plan has 2 steps, and the arguments ask for 6"):
        trainer(tmp_path / "more", plan=plan, epsilon=None)
    with pytest.raises(UsageError, match="epsilon is part of the plan"):
        trainer(tmp_path / "more", {"max_steps": 2}, plan=plan)


SCRIPT = """
import sys
from pathlib import Path
sys.path.insert(0, {here!r})
from test_trainer import trainer
from transformers import TrainerCallback

class Slow(TrainerCallback):
    def on_step_begin(self, args, state, control, **_):
        print("step", state.global_step, flush=True)
        import time
        time.sleep(0.3)

trainer(Path({folder!r}), callbacks=[Slow()]).train(resume_from_checkpoint={resume})
"""


@pytest.mark.slow
@pytest.mark.parametrize("step", [0, 1, 2, 4])
def test_a_killed_process_is_resumed_to_the_same_weights(tmp_path: Path, step: int) -> None:
    def process(resume: bool) -> subprocess.Popen[str]:
        script = SCRIPT.format(here=str(Path(__file__).parent), folder=str(tmp_path / "model"), resume=resume)
        return subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True)

    whole = trainer(tmp_path / "whole")
    whole.train()
    with process(resume=False) as killed:
        assert killed.stdout is not None
        for line in killed.stdout:
            if line.startswith(f"step {step}"):
                time.sleep(0.35)  # within the step, or at its end
                killed.send_signal(signal.SIGKILL)
                break
    resumed = trainer(tmp_path / "model")
    resumed.train(resume_from_checkpoint=True)
    assert same(weights(whole), weights(resumed))
