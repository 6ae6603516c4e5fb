"""Datasets: standard ones by name, and your own from folders of images, tables and arrays."""

from sordino.data.dataset import DataSet as DataSet
from sordino.data.dataset import Facts as Facts
from sordino.data.dataset import Split as Split
from sordino.data.fetch import fetch as fetch
from sordino.data.loading import load as load
from sordino.data.open_rows import open_rows as open_rows
from sordino.data.standard import root as root
from sordino.data.synthetic import TwoPatch as TwoPatch
