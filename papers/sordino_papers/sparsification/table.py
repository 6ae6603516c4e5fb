"""Main table of random sparsification: accuracies with and without it, at two epsilons, on three datasets."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from sordino_papers.harness.entry import Entry, RunScale, SideTable
from sordino_papers.harness.page import gains_table
from sordino_papers.harness.training import DpSgdTrial, Sparsity
from sordino_papers.harness.training_entries import SetPart, training_entry

NONE, RANDOM = "none", "RS"
EPSILONS = (3.0, 1.0)
USUAL_EPSILON = 3.0
LEFT_OUT = 10_000  # training rows that settings are compared on
QUICK_ROWS = 2_000


@dataclass(frozen=True)
class Choice:
    """Settings relative to the usual ones: a clip norm, with the momentum that keeps C / (1 - mu); a factor for epochs;
    a final rate.

    `stretched` is a factor for the learning rate.
    """

    clip: float
    longer: float = 1.0
    final_rate: float = 0.0
    stretched: float = 1.0

    def __str__(self) -> str:
        stretched = "" if self.stretched == 1.0 else f", steps {self.stretched:g} x as long"
        return f"clip {self.clip:g}, {self.longer:g} x epochs, rate {self.final_rate:g}{stretched}"

    def of(self, usual: DpSgdTrial) -> DpSgdTrial:
        constant = usual.clip / (1 - usual.momentum)
        return replace(
            usual,
            clip=self.clip,
            momentum=round(1 - self.clip / constant, 6),
            epochs=self.longer * usual.epochs,
            learning_rate=self.stretched * usual.learning_rate,
            sparsity=Sparsity(self.final_rate) if self.final_rate else None,
        )


@dataclass(frozen=True)
class NetworkSetup:
    """A network on a dataset, with the paper's accuracies at the two epsilons, without and with sparsification.

    `usual` are the settings of earlier work, from which the search starts; `chosen` is its result.
    """

    title: str
    data: str
    usual: DpSgdTrial
    paper: dict[str, tuple[float, float]]
    chosen: dict[str, tuple[Choice, Choice]]
    how: str

    def trial(self, choice: Choice, epsilon: float) -> DpSgdTrial:
        """The trial of a choice. Below the usual epsilon the learning rate shrinks in proportion to epsilon."""
        rate = self.usual.learning_rate * min(1.0, epsilon / USUAL_EPSILON)
        return choice.of(replace(self.usual, learning_rate=rate))


# A diagonal of the grid of clips, epochs and rates: both sides get the same clips and the same epochs.
SEARCHED = {
    NONE: (Choice(0.1), Choice(0.5, 1.2), Choice(1.0, 1.5)),
    RANDOM: (Choice(0.1, 1.0, 0.5), Choice(0.5, 1.2, 0.7), Choice(1.0, 1.5, 0.9)),
}
_SEARCHED = (
    "by six points at each epsilon, three clips with three numbers of epochs, each without and with sparsification, on "
    "10,000 training rows that were left out, one seed (`--ablate` runs them). Not blindly: an earlier table of other "
    "settings had been seen, with its test accuracies, and about ten looks at the left-out rows."
)
_GROUPED = (
    "Its features are the published ones: on those left-out rows three seeds had them 0.4 points above logarithms; "
    "with these it had been at 88.8 on the test rows at epsilon 3, and at 87.4 at epsilon 1."
)
_FEATURES = (
    "H-CNN has colours along the axes of photographs, standardised by moments of drawn pictures, and twice the "
    "published rate. Both were chosen on 10,000 training rows that were left out, after some twenty looks at them, and "
    "after runs with red, green and blue had 68.5 and 68.2 on the test rows at epsilon 3. The rate was compared in a "
    "third of the epochs, and at all of them with red, green and blue. How wide the colours of training rows are was "
    "looked at too, before the published widths were taken. Epsilon does not count these looks."
)
_OWN = "the paper's own (its Table 3, and the commands that it publishes)"
_SHORTER = "Unless named, rates at epsilon 1 are a third of those at epsilon 3, by our rule and not the paper's."
_HALF = (
    "DP-CNN with masks takes half of its rate at epsilon 1, and without them a third. Both sides were compared on "
    "10,000 training rows that were left out, in a third of the epochs, one seed, at a third, half and two thirds of "
    "the rate: 53.3, 53.1 and 48.4 without masks, 52.1, 55.1 and 53.2 with them. Those without masks at half, and with "
    "them at a third and at two thirds, came after the runs of the table; a third with masks had been seen on the test "
    "rows, at 53.5."
)

SMALL_CNN = NetworkSetup(
    "DP-CNN/S",
    "fashion-mnist",
    DpSgdTrial("dp-cnn-s", batch_size=2048, epochs=40, learning_rate=4.0, clip=0.1, momentum=0.9, averaging="ema:0.99"),
    paper={NONE: (86.6, 83.2), RANDOM: (87.4, 84.5)},
    chosen={NONE: (Choice(0.5, 1.2), Choice(0.5, 1.2)), RANDOM: (Choice(0.5, 1.2, 0.7), Choice(0.5, 1.2, 0.7))},
    how=f"DP-CNN/S {_SEARCHED}",
)
SMALL_SCATTERING = NetworkSetup(
    "H-CNN/S",
    "fashion-mnist",
    DpSgdTrial("h-cnn-s", batch_size=2048, epochs=40, learning_rate=4.0, clip=0.1, momentum=0.9, averaging="ema:0.99"),
    paper={NONE: (88.9, 85.8), RANDOM: (89.2, 87.0)},
    chosen={NONE: (Choice(0.5, 1.2), Choice(0.5, 1.2)), RANDOM: (Choice(0.5, 1.2, 0.7), Choice(1.0, 1.5, 0.9))},
    how=f"H-CNN/S {_SEARCHED} {_GROUPED}",
)
SCATTERING = NetworkSetup(
    "H-CNN",
    "cifar10",
    DpSgdTrial("h-cnn", batch_size=8192, epochs=60, learning_rate=8.0, clip=0.1, momentum=0.9, averaging="ema:0.99"),
    paper={NONE: (69.7, 62.4), RANDOM: (70.0, 63.2)},
    chosen={NONE: (Choice(0.1), Choice(0.1)), RANDOM: (Choice(0.1, 1.0, 0.5), Choice(0.1, 1.0, 0.5))},
    how=f"{_OWN} but for two. {_FEATURES}",
)
CNN = NetworkSetup(
    "DP-CNN",
    "cifar10",
    DpSgdTrial("dp-cnn", batch_size=1000, epochs=40, learning_rate=1.0, clip=0.1, momentum=0.9, averaging="ema:0.99"),
    paper={NONE: (62.8, 52.8), RANDOM: (64.6, 55.2)},  # with Poisson sampling: Table 3 of the paper
    chosen={NONE: (Choice(1.0), Choice(1.0)), RANDOM: (Choice(1.0, 1.2, 0.9), Choice(1.0, 1.2, 0.9, stretched=1.5))},
    how=f"{_OWN} but for rates at epsilon 1. {_HALF}",
)
FRAMEWORKS = (SMALL_CNN, SMALL_SCATTERING, SCATTERING, CNN)
HOUSE_NUMBERS = (
    replace(SCATTERING, data="svhn", paper={NONE: (85.9, 80.7), RANDOM: (86.8, 82.2)}),
    replace(CNN, data="svhn", paper={NONE: (83.4, 76.0), RANDOM: (84.5, 79.1)}),
)


@dataclass(frozen=True)
class SparsificationTable:
    """The experiment `sparsification`."""

    name: str = "sparsification"
    about: str = (
        "Test accuracy in percent without sparsification and with it, delta 1e-5, zero-out, Poisson batches, averages\n"
        "of iterates. Paper: Zhu and Blaschko (2023), Table 2; Table 3 for DP-CNN on CIFAR-10, which samples so too."
    )

    def entries(self, scale: RunScale) -> Sequence[Entry]:
        return tuple(_entries(scale))

    def ablation(self, scale: RunScale) -> Sequence[Entry]:
        """The search: settings compared once on training rows that are left out."""
        return tuple(_search(scale))

    def sides(self, scale: RunScale, seeds: int, folder: Path) -> Sequence[SideTable]:
        entries = self.entries(scale)
        pairs = tuple(zip(entries[::2], entries[1::2], strict=True))
        command = f"sordino reproduce {self.name} --scale {scale} --seeds {seeds}"
        return (gains_table(pairs, folder, scale, seeds, command),)


SPARSIFICATION = SparsificationTable()


def _frameworks(scale: RunScale) -> Sequence[NetworkSetup]:
    """The networks of a scale. House numbers come last, because their files are large."""
    if scale is RunScale.PAPER:
        return *FRAMEWORKS, *HOUSE_NUMBERS
    return SMALL_CNN, SMALL_SCATTERING, _halved(SCATTERING), _halved(CNN)


def _halved(framework: NetworkSetup) -> NetworkSetup:
    """Products in bfloat16, to save a quarter of the time."""
    how = f"{framework.how} Products are in bfloat16 at this scale, to save time."
    return replace(framework, usual=replace(framework.usual, precision="bfloat16"), how=how)


def _entries(scale: RunScale) -> Iterator[Entry]:
    for framework in _frameworks(scale):
        for place, epsilon in enumerate(EPSILONS):
            for kind in (NONE, RANDOM):
                method, paper = f"{framework.title}, {kind}", framework.paper[kind][place]
                yield _entry(framework, method, framework.chosen[kind][place], epsilon, scale, paper=paper)


def _search(scale: RunScale) -> Iterator[Entry]:
    for framework in (SMALL_CNN, SMALL_SCATTERING):
        for epsilon in EPSILONS:
            for choice in (*SEARCHED[NONE], *SEARCHED[RANDOM]):
                method = f"search, {framework.title}, {choice}"
                yield _entry(framework, method, choice, epsilon, scale, left_out=LEFT_OUT)


def _entry(
    framework: NetworkSetup,
    method: str,
    choice: Choice,
    epsilon: float,
    scale: RunScale,
    *,
    left_out: int = 0,
    paper: float | None = None,
) -> Entry:
    trial, part = framework.trial(choice, epsilon), SetPart(framework.data, left_out=left_out)
    if scale is RunScale.QUICK:
        trial, part = replace(trial, batch_size=200, epochs=2.0), replace(part, examples=QUICK_ROWS)
    return training_entry(
        method, part, trial, epsilon, paper=paper, chosen="" if left_out else f"{framework.how} {_SHORTER}"
    )
