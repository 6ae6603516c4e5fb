"""Updates on the wire: what sparse gradients save when those who hold the data are many."""

from sordino.communication.fed_sgd import Federated as Federated
from sordino.communication.fed_sgd import Traffic as Traffic
from sordino.communication.fed_sgd import federated_sgd as federated_sgd
from sordino.communication.wire import DenseFormat as DenseFormat
from sordino.communication.wire import IndexFormat as IndexFormat
from sordino.communication.wire import SeedFormat as SeedFormat
from sordino.communication.wire import Wire as Wire
