"""Loops that a framework runs, of `loops.py`."""

from __future__ import annotations

import time
from typing import Any

import torch
from torch.utils.data import DataLoader

from tests.attach.loop_parts import (
    PLACE,
    REST_S,
    SECONDS,
    Files,
    backward,
    batches,
    going_on,
    is_over,
    model,
    note,
)


def _lightning_trainer() -> Any:
    from lightning.pytorch import Trainer

    return Trainer(
        max_epochs=-1,
        accelerator="cpu",
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        default_root_dir=PLACE,
    )


def lightning() -> None:
    from lightning.pytorch import LightningModule

    class Module(LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.net = model()

        def training_step(self, batch: torch.Tensor, number: int) -> torch.Tensor:
            time.sleep(REST_S)
            self.trainer.should_stop |= is_over()
            return self.net(batch).sum()

        def validation_step(self, batch: torch.Tensor, number: int) -> None:
            self.net(batch)

        def configure_optimizers(self) -> torch.optim.Optimizer:
            return torch.optim.SGD(self.parameters(), 0.1)

    _lightning_trainer().fit(Module(), DataLoader(Files(40), 1), DataLoader(Files(5), 1))


def manual() -> None:
    """Lightning's manual optimization: two optimizers in turn, of which one steps twice."""
    from lightning.pytorch import LightningModule

    class Module(LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.automatic_optimization = False
            self.nets = torch.nn.ModuleList([model(), model()])

        def training_step(self, batch: torch.Tensor, number: int) -> None:
            time.sleep(REST_S)
            self.trainer.should_stop |= is_over()
            first, second = self.optimizers()
            for net, optimizer in ((0, first), (1, second), (1, second)):
                optimizer.zero_grad()
                self.manual_backward(self.nets[net](batch).sum())
                optimizer.step()

        def configure_optimizers(self) -> list[torch.optim.Optimizer]:
            return [torch.optim.Adam(net.parameters()) for net in self.nets]

    _lightning_trainer().fit(Module(), DataLoader(Files(40), 1))


def hugging_face() -> None:
    hugging_face_trainer(save_strategy="no").train()


def hugging_face_trainer(**settings: Any) -> Any:
    """Sums gradients up over two batches."""
    from transformers import Trainer, TrainerCallback, TrainingArguments

    class Net(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.net = model()

        def forward(self, x: torch.Tensor) -> dict[str, torch.Tensor]:
            time.sleep(REST_S)
            return {"loss": self.net(x).sum()}

    class Items(Files):
        def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
            return {"x": super().__getitem__(index)}

    class Stop(TrainerCallback):
        def on_step_end(self, args: object, state: object, control: object, **_: object) -> None:
            control.should_training_stop = is_over()

    arguments = TrainingArguments(
        output_dir=str(PLACE / "out"),
        per_device_train_batch_size=1,
        gradient_accumulation_steps=2,
        max_steps=100_000,
        report_to=[],
        logging_strategy="no",
        use_cpu=True,
        disable_tqdm=True,
        **settings,
    )
    data = {"train_dataset": Items(), "eval_dataset": Items(5)}
    return Trainer(Net(), arguments, callbacks=[Stop()], **data)


def accelerated() -> None:
    """A loop by Accelerate, which sums up gradients of two batches."""
    from accelerate import Accelerator

    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=2)
    net = model()
    net, optimizer, loader = accelerator.prepare(
        net, torch.optim.SGD(net.parameters(), 0.1), DataLoader(Files(), 1)
    )
    fetched = iter(loader)
    for _ in going_on():
        for _ in range(2):
            batch = next(fetched)
            with accelerator.accumulate(net):
                note("back")
                accelerator.backward(net(batch).sum())
                optimizer.step()
                optimizer.zero_grad()


def ddp() -> None:
    torch.distributed.init_process_group("gloo")
    net = torch.nn.parallel.DistributedDataParallel(model())
    optimizer = torch.optim.SGD(net.parameters(), 0.1)
    fetched = batches()
    for _ in range(int(SECONDS / REST_S / 4)):  # the same on all ranks
        optimizer.zero_grad()
        backward(net(next(fetched)).sum())
        optimizer.step()
        time.sleep(REST_S)
    torch.distributed.destroy_process_group()
