"""Updates on the wire: what sparse gradients save when those who hold the data are many."""

from sordino.communication.fed_sgd import Federated as Federated
from sordino.communication.fed_sgd import Traffic as Traffic
from sordino.communication.fed_sgd import federated_sgd as federated_sgd
from sordino.communication.wire import Dense as Dense
from sordino.communication.wire import IndexCoded as IndexCoded
from sordino.communication.wire import SeedCoded as SeedCoded
from sordino.communication.wire import Wire as Wire
