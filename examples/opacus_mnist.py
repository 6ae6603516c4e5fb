"""An MNIST classifier, written as a script for Opacus. It runs with either library, by changing one import.

python examples/opacus_mnist.py --epochs 1
PYTHONPATH=examples/stand_ins python examples/opacus_mnist.py --epochs 1     without torchvision
"""

import argparse
import math
import time

import torch
import torch.nn.functional as F
from torch import nn, optim
from torch.utils.data import DataLoader
from torchvision import datasets, transforms

from sordino.opacus import PrivacyEngine

MEAN, STD = 0.1307, 0.3081  # published, so they cost no privacy


class Net(nn.Module):
    """Two convolutions and two dense layers, 26,010 parameters."""

    def __init__(self):
        super().__init__()
        self.first = nn.Conv2d(1, 16, kernel_size=8, stride=2, padding=3)
        self.second = nn.Conv2d(16, 32, kernel_size=4, stride=2)
        self.hidden = nn.Linear(32 * 4 * 4, 32)
        self.output = nn.Linear(32, 10)

    def forward(self, x):
        x = F.max_pool2d(F.relu(self.first(x)), 2, 1)
        x = F.max_pool2d(F.relu(self.second(x)), 2, 1)
        x = x.view(-1, 32 * 4 * 4)
        return self.output(F.relu(self.hidden(x)))


def train(args, model, device, loader, optimizer, engine, epoch):
    model.train()
    criterion = nn.CrossEntropyLoss()
    started = time.process_time()
    for data, target in loader:
        data, target = data.to(device), target.to(device)
        optimizer.zero_grad()
        output = model(data)
        loss = criterion(output, target)
        loss.backward()
        optimizer.step()
    seconds, epsilon = time.process_time() - started, engine.get_epsilon(delta=args.delta)
    spent = f"epsilon {math.ceil(1000 * epsilon) / 1000:.3f} at delta {args.delta:g}"  # never rounded down
    print(f"epoch {epoch}: {seconds:.2f} processor seconds, {spent}", flush=True)


def test(model, device, loader):
    model.eval()
    correct = 0
    with torch.no_grad():
        for data, target in loader:
            data, target = data.to(device), target.to(device)
            prediction = model(data).argmax(dim=1, keepdim=True)
            correct += prediction.eq(target.view_as(prediction)).sum().item()
    print(f"test accuracy {correct / len(loader.dataset):.4f}", flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--batch-size", type=int, default=64)
    parser.add_argument("--test-batch-size", type=int, default=1024)
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--lr", type=float, default=0.1)
    parser.add_argument("--sigma", type=float, default=1.0, help="noise multiplier")
    parser.add_argument("--max-grad-norm", type=float, default=1.0)
    parser.add_argument("--delta", type=float, default=1e-5)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--seed", type=int, default=0, help="seed of the initial weights, not of the noise")
    parser.add_argument("--data-root", default="../mnist")
    args = parser.parse_args()

    torch.manual_seed(args.seed)
    device = torch.device(args.device)
    transform = transforms.Compose([transforms.ToTensor(), transforms.Normalize((MEAN,), (STD,))])
    train_set = datasets.MNIST(args.data_root, train=True, download=True, transform=transform)
    test_set = datasets.MNIST(args.data_root, train=False, transform=transform)
    train_loader = DataLoader(train_set, batch_size=args.batch_size)
    test_loader = DataLoader(test_set, batch_size=args.test_batch_size)

    model = Net().to(device)
    optimizer = optim.SGD(model.parameters(), lr=args.lr, momentum=0)
    engine = PrivacyEngine()
    model, optimizer, train_loader = engine.make_private(
        module=model,
        optimizer=optimizer,
        data_loader=train_loader,
        noise_multiplier=args.sigma,
        max_grad_norm=args.max_grad_norm,
    )
    for epoch in range(1, args.epochs + 1):
        train(args, model, device, train_loader, optimizer, engine, epoch)
    test(model, device, test_loader)


if __name__ == "__main__":
    main()
