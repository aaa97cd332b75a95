"""What is compared: the setup, and the arms."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from torchrec.distributed.types import CacheAlgorithm

CHECKED_STEPS = 3
WINDOW = 32  # batches that are packed together
LOOKAHEAD = 4  # batches that a pipeline fetches and a round does not train on


@dataclass(frozen=True)
class Setup:
    """What is compared; each is an option of the command line."""

    scale: float = 0.05  # of tables with more than SCALED_FROM rows
    most_rows: int = 1 << 31  # of a table, whatever the scale
    dim: int = 128
    hot_bytes: str = "512MiB"  # of tables that an arm may keep on the device
    batch_size: int = 8192
    sample: int = 256  # batches of other inputs, from which hot rows are chosen
    slope: float = 0.95  # of the logarithm of a row's lookups over that of its rank
    rounds: int = 5
    steps: int = 100  # of an arm in a round
    warmup: int = 600  # steps of an arm before the first round: a cache must fill
    seed: int = 0

    @property
    def batches(self) -> int:
        """Batches to train on, each once: whole windows of them."""
        needed = self.warmup + self.rounds * self.steps + LOOKAHEAD
        return -(-needed // WINDOW) * WINDOW


DRY_RUN = Setup(0.0001, 1000, 16, "640KiB", 64, 64, rounds=2, steps=8, warmup=4)


class Arm(NamedTuple):
    """A way to place the tables.

    Attributes:
        kernel: of tables that are not wholly hot; "" for tables outside of TorchRec's plan.
        mode: of FAE; "" without it.
        algorithm: of the cache.
        prefetches: whether the next batch's rows are fetched ahead.
    """

    kernel: str
    mode: str = ""
    algorithm: CacheAlgorithm | None = None
    prefetches: bool = False


ARMS = {
    "cpu": Arm(""),
    "uvm": Arm("fused_uvm"),
    "caching_lru": Arm("fused_uvm_caching", algorithm=CacheAlgorithm.LRU),
    "caching_lfu": Arm("fused_uvm_caching", algorithm=CacheAlgorithm.LFU),
    # For LRU alone: FBGEMM asserts that.
    "caching_lru_prefetch": Arm("fused_uvm_caching", algorithm=CacheAlgorithm.LRU, prefetches=True),
    "fae_overlay": Arm("fused_uvm", mode="overlay"),
    "fae_partitioned": Arm("fused_uvm", mode="partitioned"),
    "fae_paper": Arm("fused_uvm", mode="paper"),
    "hbm": Arm("fused"),
}
