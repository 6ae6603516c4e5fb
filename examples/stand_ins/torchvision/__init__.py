"""A replacement for the two modules of torchvision that the MNIST example needs, if torchvision is not available.

PYTHONPATH=examples/stand_ins python examples/opacus_mnist.py
"""
