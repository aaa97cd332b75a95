"""CPU time of steps in several source trees, such as those of two versions.

`python benchmarks/versions.py RUNS SOURCE SOURCE...`: each loop in fresh processes, which take
turns. Prints, for each loop and each tree behind the first, the median and the quartiles of what
its process took for a step, of what the first one's took.
"""

from __future__ import annotations

import json
import statistics
import sys
from pathlib import Path
from typing import Any

from startup import run_case

STEPS = 3000
BEGIN = f"""
import itertools, tempfile, torch
from torch.utils.data import DataLoader, Dataset
from trainobs import ObsCallback, observe
torch.set_num_threads(1)
RUN, STEPS = tempfile.mkdtemp(), {STEPS}
class Rows(Dataset):
    def __len__(self): return 64 * (STEPS + 500)
    def __getitem__(self, index): return torch.ones(32)
    def __getitems__(self, indices): return [torch.ones(len(indices), 32)]
class Files(Dataset):
    def __init__(self):
        self.names = [RUN + "/" + str(number) for number in range(64)]
        for name in self.names:
            with open(name, "wb") as file: file.write(bytes(4096))
    def __len__(self): return 32 * (STEPS + 500)
    def __getitem__(self, index):
        with open(self.names[index % 64], "rb", buffering=0) as file:
            return torch.tensor(len(file.read()))
model = torch.nn.Sequential(torch.nn.Linear(32, 64), torch.nn.ReLU(), torch.nn.Linear(64, 1))
optimizer = torch.optim.SGD(model.parameters(), 1e-3)
def train(batch):
    optimizer.zero_grad()
    model(batch).square().mean().backward()
    optimizer.step()
def loop(steps):
    for batch in itertools.islice(batches, steps):
        with obs.step():
            train(batch)
"""
PLAIN = """
context = observe(run_dir=RUN + "/run")
obs = context.__enter__()
batches = iter(obs.loader(DataLoader(Rows(), 64, collate_fn=lambda found: found[0])))
loop(300)
"""
FILES = """
train = lambda batch: None
context = observe(run_dir=RUN + "/run", data_roots=RUN)
obs = context.__enter__()
batches = iter(obs.loader(DataLoader(Files(), 32)))
loop(300)
"""
LIGHTNING = """
import lightning as L, time, logging
logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
class Tiny(L.LightningModule):
    def __init__(self):
        super().__init__()
        self.model = model
    def training_step(self, batch, index): return self.model(batch).square().mean()
    def configure_optimizers(self): return torch.optim.SGD(self.parameters(), 1e-3)
class Clock(L.Callback):
    def on_train_batch_end(self, trainer, module, outputs, batch, index):
        global cpu, end
        if index == 299: cpu = time.process_time()
        if index == STEPS + 299: end = time.process_time()
loader = DataLoader(Rows(), 64, collate_fn=lambda found: found[0])
trainer = L.Trainer(max_steps=STEPS + 300, accelerator="cpu", logger=False,
    enable_checkpointing=False, enable_progress_bar=False, enable_model_summary=False,
    callbacks=[Clock(), ObsCallback(run_dir=RUN + "/run")])
"""
END = "context.__exit__(None, None, None)"
FIT = "trainer.fit(Tiny(), loader); cpu += time.process_time() - end"
CASES = {
    "plain loop": (BEGIN + PLAIN, "loop(STEPS)", END),
    "32 files of 4 KiB a step": (BEGIN + FILES, "loop(STEPS)", END),
    "Lightning": (BEGIN + LIGHTNING, FIT, ""),
}
"""As those of `startup`."""


def main(runs: int, sources: list[Path]) -> dict[str, Any]:
    """All pairs, and what they come to."""
    found: dict[str, list[list[float]]] = {case: [[] for _ in sources] for case in CASES}
    for run in range(runs):
        for case, program in CASES.items():
            turns = list(zip(found[case], sources, strict=True))
            for times, source in turns if run % 2 == 0 else reversed(turns):
                times.append(run_case(program, source)["cpu_ms"] * 1e3 / STEPS)
    return {case: _compared(times) for case, times in found.items()}


def _compared(times: list[list[float]]) -> dict[str, Any]:
    first, *others = times
    ratios = [[b / a for a, b in zip(first, other, strict=True)] for other in others]
    return {
        "us": [round(statistics.median(each), 1) for each in times],
        "ratio": [[round(q, 3) for q in statistics.quantiles(each, n=4)] for each in ratios],
    }


if __name__ == "__main__":
    print(json.dumps(main(int(sys.argv[1]), [Path(path).resolve() for path in sys.argv[2:]])))
