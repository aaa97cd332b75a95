"""Train a small network whose loader has more to do than the network; about 10 s on two cores.

Usage::

    python examples/quickstart.py                # the training process makes its own batches
    python examples/quickstart.py --workers 2    # two processes make them meanwhile
"""

from __future__ import annotations

import argparse

import torch
from torch import Tensor, nn
from torch.nn.functional import avg_pool2d, cross_entropy
from torch.utils.data import DataLoader, Dataset

from trainobs import observe


class Images(Dataset[tuple[Tensor, int]]):
    """Large images of two kinds, each of them made smaller as it is asked for."""

    def __len__(self) -> int:
        """Images in an epoch."""
        return 32 * 100

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        """An image of shape (3, 64, 64), and its kind."""
        generator = torch.Generator().manual_seed(index)
        large = torch.rand(3, 256, 256, generator=generator)
        large[:, :: 2 + index % 2] += 0.5
        return avg_pool2d(large, 4), index % 2


def main() -> None:
    """Train for one epoch."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--workers", type=int, default=0, help="processes that make batches")
    parser.add_argument("--run-dir", help="where the run log goes")
    options = parser.parse_args()
    torch.manual_seed(0)
    torch.set_num_threads(1)  # the other CPUs are for workers

    model = nn.Sequential(
        nn.Conv2d(3, 32, 5, stride=2), nn.ReLU(), nn.Conv2d(32, 32, 5, stride=2), nn.ReLU(),
        nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(32, 2),
    )  # fmt: skip
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    loader = DataLoader(Images(), batch_size=32, num_workers=options.workers)

    with observe(run_dir=options.run_dir) as obs:
        for images, kinds in obs.loader(loader):
            with obs.step():
                with obs.phase("forward"):
                    loss = cross_entropy(model(images), kinds)
                with obs.phase("backward"):
                    loss.backward()
                with obs.phase("optimizer"):
                    optimizer.step()
                    optimizer.zero_grad()


if __name__ == "__main__":
    main()
