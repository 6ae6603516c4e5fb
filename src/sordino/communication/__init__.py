"""Simulated federated DP-SGD, and wire formats that show how much communication sparse gradients save."""

from sordino.communication.fed_sgd import Federated as Federated
from sordino.communication.fed_sgd import Traffic as Traffic
from sordino.communication.fed_sgd import federated_sgd as federated_sgd
from sordino.communication.wire import DenseFormat as DenseFormat
from sordino.communication.wire import IndexFormat as IndexFormat
from sordino.communication.wire import SeedFormat as SeedFormat
from sordino.communication.wire import Wire as Wire
