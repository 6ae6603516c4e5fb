"""Public pictures made by a program, networks that have learnt from them, and what private rows train of those."""

from sordino.data.synthetic import DeadLeaves as DeadLeaves
from sordino.training.transfer.embedding_perturbation import EmbeddingPerturbation as EmbeddingPerturbation
from sordino.training.transfer.embedding_perturbation import fit_embedded as fit_embedded
from sordino.training.transfer.parts import BiasOnly as BiasOnly
from sordino.training.transfer.parts import Everything as Everything
from sordino.training.transfer.parts import InputNormalisation as InputNormalisation
from sordino.training.transfer.parts import LinearProbe as LinearProbe
from sordino.training.transfer.parts import Part as Part
from sordino.training.transfer.pretraining import Pretrained as Pretrained
from sordino.training.transfer.pretraining import pretrain as pretrain
