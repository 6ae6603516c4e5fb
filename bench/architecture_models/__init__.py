"""Kinds of models that the survey compares, by family. Importing a family registers its kinds."""

from bench.architecture_models import attention as attention
from bench.architecture_models import conditional as conditional
from bench.architecture_models import convolutional as convolutional
from bench.architecture_models import dense as dense
from bench.architecture_models import folded as folded
from bench.architecture_models import generative as generative
from bench.architecture_models import hugging_face as hugging_face
from bench.architecture_models import large as large
from bench.architecture_models import parameters as parameters
from bench.architecture_models import sequences as sequences
from bench.architecture_models import spatial as spatial
from bench.architecture_models import structured as structured
from bench.architecture_models import unusual as unusual
from bench.architecture_models.kinds import KINDS as KINDS
from bench.architecture_models.kinds import Case as Case
from bench.architecture_models.kinds import Kind as Kind
