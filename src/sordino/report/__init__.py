"""Reports: the privacy card of a finished run, a comparison of runs, and the page of a verification."""

from sordino.report.card import write_card as write_card
from sordino.report.comparison import write_comparison as write_comparison
from sordino.report.sections import Section as Section
from sordino.report.sections import register_section as register_section
