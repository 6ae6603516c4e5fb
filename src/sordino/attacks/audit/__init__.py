"""Audits: attacks with canaries give a lower bound on epsilon, to compare with the proved upper bound."""

from sordino.attacks.audit.lower_bounds import CLOPPER_PEARSON as CLOPPER_PEARSON
from sordino.attacks.audit.lower_bounds import F_DP as F_DP
from sordino.attacks.audit.lower_bounds import GAUSSIAN as GAUSSIAN
from sordino.attacks.audit.lower_bounds import METHODS as METHODS
from sordino.attacks.audit.lower_bounds import ONE_RUN as ONE_RUN
from sordino.attacks.audit.scores import Scores as Scores
from sordino.attacks.audit.white_box import white_box_scores as white_box_scores
