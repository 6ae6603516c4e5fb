"""A stand-in for the two parts of torchvision that the MNIST example needs, where torchvision cannot be had.

PYTHONPATH=examples/stand_ins python examples/opacus_mnist.py
"""
