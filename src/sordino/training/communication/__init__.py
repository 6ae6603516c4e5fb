"""Simulated federated DP-SGD, and wire formats that show how much communication sparse gradients save."""

from sordino.training.communication.fed_sgd import Federated as Federated
from sordino.training.communication.fed_sgd import Traffic as Traffic
from sordino.training.communication.fed_sgd import federated_sgd as federated_sgd
from sordino.training.communication.wire import DenseFormat as DenseFormat
from sordino.training.communication.wire import IndexFormat as IndexFormat
from sordino.training.communication.wire import SeedFormat as SeedFormat
from sordino.training.communication.wire import Wire as Wire
