"""Train a small network whose loader has more to do than the network.

Usage::

    python examples/quickstart.py                # the training process makes its own batches
    python examples/quickstart.py --workers 2    # two processes make them meanwhile

The first run makes 300 images of 0.2 MB; then each takes some 10 s on two cores.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import avg_pool2d, cross_entropy
from torch.utils.data import DataLoader, Dataset

from trainobs import observe

IMAGES, SIDE = 300, 256


class Images(Dataset[tuple[Tensor, int]]):
    """Images in files, ten times each in an epoch, worked on as they are asked for."""

    def __init__(self, folder: Path) -> None:
        self.files = [folder / f"{number:03}.npy" for number in range(IMAGES)]
        folder.mkdir(parents=True, exist_ok=True)
        for number, file in enumerate(self.files):
            if not file.exists():
                image = np.random.default_rng(number).integers(0, 256, (3, SIDE, SIDE), np.uint8)
                image[:, :: 2 + number % 2] //= 2
                np.save(file, image)

    def __len__(self) -> int:
        """Images in an epoch."""
        return 10 * IMAGES

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        """An image of shape (3, 64, 64), and which of two kinds it is."""
        image = torch.from_numpy(np.load(self.files[index % IMAGES])).float() / 255
        for axis in (1, 2):
            turned = image.flip(axis)
            image = torch.where(turned > image.mean(), turned, image)
        return avg_pool2d(image, 4), index % 2


def main() -> None:
    """Train for one epoch."""
    parser = argparse.ArgumentParser(description="Train a small network, observed.")
    parser.add_argument("--workers", type=int, default=0, help="processes that make batches")
    parser.add_argument("--run-dir", help="where the run log goes")
    parser.add_argument("--images", type=Path, default=Path(__file__).parent / ".data")
    options = parser.parse_args()
    torch.manual_seed(0)
    torch.set_num_threads(1)  # the other CPUs are for workers

    model = nn.Sequential(
        nn.Conv2d(3, 32, 5, stride=2), nn.ReLU(), nn.Conv2d(32, 32, 5, stride=2), nn.ReLU(),
        nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(32, 2),
    )  # fmt: skip
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    loader = DataLoader(Images(options.images), batch_size=20, num_workers=options.workers)

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
