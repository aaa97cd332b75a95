"""ResNets for train.py and train_plain.py: torchvision's where it is installed, else our own.

``SmallResNet`` names its parameters as torchvision does, so a checkpoint of one loads in the other.
"""

from __future__ import annotations

import torch
from options import stop
from torch import Tensor, nn

# Blocks per stage. He et al., "Deep Residual Learning for Image Recognition" (2016), table 1;
# ResNet-10 is ResNet-18 with one block per stage, small enough for two CPU cores.
BLOCKS = {10: (1, 1, 1, 1), 18: (2, 2, 2, 2), 34: (3, 4, 6, 3), 50: (3, 4, 6, 3)}


def build_resnet(depth: int, classes: int) -> nn.Module:
    """Return an untrained ResNet: images ``(N, 3, H, W)`` in, logits ``(N, classes)`` out."""
    if depth not in BLOCKS:
        depths = ", ".join(map(str, BLOCKS))
        stop("cannot build the model", f"--depth {depth}", f"choose one of {depths}")
    try:
        from torchvision.models.resnet import BasicBlock, Bottleneck, ResNet
    except (ImportError, RuntimeError):  # RuntimeError: a torchvision made for another torch
        if depth == 50:
            stop("cannot build a ResNet-50", "no torchvision that imports", "choose --depth 34")
        return SmallResNet(BLOCKS[depth], classes)
    block = Bottleneck if depth == 50 else BasicBlock
    return ResNet(block, list(BLOCKS[depth]), num_classes=classes)


class SmallResNet(nn.Module):
    """The ResNets without bottlenecks.

    Args:
        blocks: how many blocks each of the four stages has.
        classes: how many logits come out.
    """

    def __init__(self, blocks: tuple[int, int, int, int], classes: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(3, 64, 7, stride=2, padding=3, bias=False)
        self.bn1 = nn.BatchNorm2d(64)
        self.maxpool = nn.MaxPool2d(3, stride=2, padding=1)
        self.layer1 = build_stage(64, 64, blocks[0], stride=1)
        self.layer2 = build_stage(64, 128, blocks[1], stride=2)
        self.layer3 = build_stage(128, 256, blocks[2], stride=2)
        self.layer4 = build_stage(256, 512, blocks[3], stride=2)
        self.fc = nn.Linear(512, classes)
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")

    def forward(self, images: Tensor) -> Tensor:
        """Return logits ``(N, classes)`` for images ``(N, 3, H, W)``."""
        x = self.maxpool(torch.relu(self.bn1(self.conv1(images))))
        x = self.layer4(self.layer3(self.layer2(self.layer1(x))))
        return self.fc(x.mean(dim=(2, 3)))


class Block(nn.Module):
    """Two 3x3 convolutions and a shortcut around them."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, outputs, 3, stride=stride, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(outputs)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(outputs)
        self.downsample = nn.Sequential()
        if stride != 1 or inputs != outputs:
            self.downsample.append(nn.Conv2d(inputs, outputs, 1, stride=stride, bias=False))
            self.downsample.append(nn.BatchNorm2d(outputs))

    def forward(self, x: Tensor) -> Tensor:
        """Return ``(N, outputs, H / stride, W / stride)`` for ``(N, inputs, H, W)``."""
        out = self.bn2(self.conv2(torch.relu(self.bn1(self.conv1(x)))))
        return torch.relu(out + self.downsample(x))


def build_stage(inputs: int, outputs: int, blocks: int, stride: int) -> nn.Sequential:
    """Return ``blocks`` blocks; the first one changes size and channels."""
    rest = (Block(outputs, outputs, stride=1) for _ in range(blocks - 1))
    return nn.Sequential(Block(inputs, outputs, stride), *rest)
