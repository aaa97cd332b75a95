"""Tiny runs of a real Hugging Face Trainer: a BERT of one layer, and a data set of files."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import IterableDataset
from transformers import (
    BertConfig,
    BertForSequenceClassification,
    Trainer,
    TrainerCallback,
    TrainingArguments,
)

from tests.integrations.models import FileData, Numbers, read_steps

Sample = dict[str, Tensor]

TOKENS = 6
VOCABULARY = 16


class TokenFiles(FileData):
    """`VOCABULARY` files at most; an item is one open and one read."""

    def __getitem__(self, index: int) -> Sample:
        return sample(self.first_byte(index))


class Tokens(Numbers):
    """Data in memory."""

    def __getitem__(self, index: int) -> Sample:
        return sample(index)


class TokenStream(IterableDataset[Sample]):
    """Data without a length."""

    def __init__(self, count: int) -> None:
        self.count = count

    def __iter__(self) -> Any:
        return (sample(index) for index in range(self.count))


def sample(number: int) -> Sample:
    """Tokens and a label, made from a number."""
    return {
        "input_ids": torch.full((TOKENS,), number % VOCABULARY),
        "labels": torch.tensor(number % 2),
    }


def model(dropout: float = 0.0) -> BertForSequenceClassification:
    """The same weights each time."""
    torch.manual_seed(0)
    return BertForSequenceClassification(
        BertConfig(
            vocab_size=VOCABULARY,
            hidden_size=8,
            num_hidden_layers=1,
            num_attention_heads=2,
            intermediate_size=8,
            max_position_embeddings=TOKENS,
            hidden_dropout_prob=dropout,
        )
    )


class HuggingFace:
    """A directory for runs."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.output = directory / "out"

    def arguments(self, **options: Any) -> TrainingArguments:
        """Quiet ones: they log, save and evaluate only when told to."""
        quiet: dict[str, Any] = {
            "output_dir": str(self.output),
            "num_train_epochs": 1,
            "per_device_train_batch_size": 2,
            "per_device_eval_batch_size": 2,
            "report_to": "none",
            "save_strategy": "no",
            "logging_strategy": "no",
            "disable_tqdm": True,
            "use_cpu": True,
            "dataloader_pin_memory": False,
        }
        return TrainingArguments(**(quiet | options))

    def trainer(
        self,
        *callbacks: TrainerCallback,
        data: object = None,
        kind: type[Trainer] = Trainer,
        module: Any = None,
        **options: Any,
    ) -> Trainer:
        """A Trainer of 16 samples in batches of 2, and of 4 samples for evaluation."""
        return kind(
            model=model() if module is None else module,
            args=self.arguments(**options),
            train_dataset=Tokens(16) if data is None else data,
            eval_dataset=Tokens(4),
            callbacks=list(callbacks),
        )

    def train(self, *callbacks: TrainerCallback, **options: Any) -> Trainer:
        """A Trainer after its training."""
        trainer = self.trainer(*callbacks, **options)
        trainer.train()
        return trainer


def column(callback: Any, name: str) -> list[Any]:
    """A metric of each row of a callback's run log; the first is the set-up."""
    return read_steps(callback.run_dir)[name].to_pylist()
