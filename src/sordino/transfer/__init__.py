"""Public pictures made by a program, networks that have learnt from them, and what private rows train of those."""

from sordino.data.dead_leaves import DeadLeaves as DeadLeaves
from sordino.transfer.embedding_perturbation import EmbeddingPerturbation as EmbeddingPerturbation
from sordino.transfer.embedding_perturbation import fit_embedded as fit_embedded
from sordino.transfer.input_normalisation import InputNormalisation as InputNormalisation
from sordino.transfer.parts import BiasOnly as BiasOnly
from sordino.transfer.parts import Everything as Everything
from sordino.transfer.parts import LinearProbe as LinearProbe
from sordino.transfer.parts import Part as Part
from sordino.transfer.pretrained import Pretrained as Pretrained
from sordino.transfer.pretraining import pretrain as pretrain
