"""Networks by name, with documented numbers of parameters. None of them mixes the examples of a batch."""

from sordino.models.registry import Built as Built
from sordino.models.registry import build as build
from sordino.models.registry import names as names
from sordino.models.resnet import resnet18 as resnet18
from sordino.models.resnet import resnet20 as resnet20
from sordino.models.resnet import resnet34 as resnet34
from sordino.models.small_networks import ScatterLinear as ScatterLinear
from sordino.models.small_networks import dp_cnn as dp_cnn
from sordino.models.small_networks import dp_cnn_small as dp_cnn_small
from sordino.models.small_networks import h_cnn as h_cnn
from sordino.models.small_networks import h_cnn_small as h_cnn_small
from sordino.models.small_networks import lenet as lenet
from sordino.models.small_networks import linear as linear
from sordino.models.small_networks import table_network as table_network
from sordino.models.small_networks import two_layer as two_layer
from sordino.models.transformer import vit as vit
from sordino.models.transformer import vit_small as vit_small
