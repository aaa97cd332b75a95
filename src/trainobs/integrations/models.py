"""Embedding lookups of the model that trains, for every entry point."""

from __future__ import annotations

import weakref
from functools import partial
from typing import Any

from torch import nn

from trainobs.core.abi import Phase
from trainobs.core.errors import SettingError, a_type
from trainobs.integrations.guard import tell_fault
from trainobs.session.session import Session
from trainobs.session.settings import Settings


def check_model(model: Any) -> nn.Module | None:
    """The model that a user gave.

    Raises:
        SettingError: it is no module of torch.
    """
    if model is None or isinstance(model, nn.Module):
        return model
    raise SettingError(
        "bad value for `model`", a_type(model), "give the torch.nn.Module that trains"
    )


def watch_lookups(session: Session, model: nn.Module | None, settings: Settings) -> None:
    """Count the lookups of the model's embedding tables, if it has any, from now on."""
    every = settings.embedding_every
    if model is None or every == 0:
        return
    try:
        from trainobs.embeddings.find import sites_of

        if next(sites_of(model), None) is None:
            session.look_at_end(partial(_tell_late, weakref.ref(model)))
            return
        from trainobs.embeddings.model_lookups import (
            ModelLookups,  # not cheap: for models with tables
        )

        lookups = ModelLookups(
            model,
            lambda: session.clock.serial,
            every=every,
            world_size=session.info.world_size,
            rank=session.info.rank,
            aside=lambda: session.clock.phase == Phase.VALIDATION,
        )
        if lookups.hot_rows is not None:  # first: the tables begin what is shown of both
            session.watch_hot_rows(lookups.hot_rows)
        session.watch_lookups(lookups)
    except Exception:
        tell_fault("does not count embedding lookups")


def _tell_late(model: weakref.ref[nn.Module]) -> None:
    """Tell of tables that a model without any has got while it trained."""
    from trainobs.embeddings.find import sites_of
    from trainobs.embeddings.model_changes import tell_late

    trained = model()
    if trained is not None:
        tell_late([path for _, path in sites_of(trained)])
