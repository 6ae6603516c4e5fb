"""Networks by name, each with its exact number of parameters. None mixes the rows of a batch."""

from sordino.models.lenet import lenet as lenet
from sordino.models.perceptron import linear as linear
from sordino.models.perceptron import table_network as table_network
from sordino.models.perceptron import two_layer as two_layer
from sordino.models.registry import Built as Built
from sordino.models.registry import build as build
from sordino.models.registry import names as names
from sordino.models.resnet import resnet18 as resnet18
from sordino.models.resnet import resnet20 as resnet20
from sordino.models.resnet import resnet34 as resnet34
from sordino.models.scatter_cnn import h_cnn as h_cnn
from sordino.models.scatter_cnn import h_cnn_small as h_cnn_small
from sordino.models.scatter_linear import ScatterLinear as ScatterLinear
from sordino.models.tanh_cnn import dp_cnn as dp_cnn
from sordino.models.tanh_cnn import dp_cnn_small as dp_cnn_small
from sordino.models.vit import vit as vit
from sordino.models.vit import vit_small as vit_small
