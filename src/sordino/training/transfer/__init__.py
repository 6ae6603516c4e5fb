"""Pretraining on synthetic images, and private fine-tuning of pretrained networks."""

from sordino.data.synthetic import DeadLeaves as DeadLeaves
from sordino.training.transfer.embedding_perturbation import EmbeddingPerturbation as EmbeddingPerturbation
from sordino.training.transfer.embedding_perturbation import fit_embedded as fit_embedded
from sordino.training.transfer.parts import AllParameters as AllParameters
from sordino.training.transfer.parts import BiasOnly as BiasOnly
from sordino.training.transfer.parts import InputNormalisation as InputNormalisation
from sordino.training.transfer.parts import LinearProbe as LinearProbe
from sordino.training.transfer.parts import TrainedPart as TrainedPart
from sordino.training.transfer.pretraining import PretrainedNetwork as PretrainedNetwork
from sordino.training.transfer.pretraining import pretrain as pretrain
