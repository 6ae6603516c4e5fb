"""The privacy card: what a finished run promises, on a page that can be signed."""

from sordino.report.card import write_card as write_card
from sordino.report.comparison import write_comparison as write_comparison
from sordino.report.sections import Section as Section
from sordino.report.sections import register_section as register_section
