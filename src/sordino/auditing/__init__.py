"""Attacks by canaries that bound epsilon from below, beside the proof that bounds it from above."""

from sordino.auditing.methods import CLOPPER_PEARSON as CLOPPER_PEARSON
from sordino.auditing.methods import F_DP as F_DP
from sordino.auditing.methods import GAUSSIAN as GAUSSIAN
from sordino.auditing.methods import METHODS as METHODS
from sordino.auditing.methods import ONE_RUN as ONE_RUN
from sordino.auditing.scores import Scores as Scores
from sordino.auditing.white_box import white_box_scores as white_box_scores
