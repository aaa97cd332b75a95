"""Cases whose tables share features."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from tests.fae.cases import Case


def with_shared_features(case: Case) -> Case:
    """The same case, with tables that are looked up by features of the first."""
    rng = np.random.default_rng([case.seed, 3])
    first, *others = case.tables
    tables, kinds = [first], case.kinds
    for table in others:
        if rng.random() < 0.7 and not table.is_replicated:
            features = (str(rng.choice(first.features)), *table.features[1:])
            hot = first.hot if rng.random() < 0.8 else table.hot
            hot = tuple(row for row in hot if row < first.rows)
            table = replace(table, rows=first.rows, hot=hot, features=features)
            if hot != first.hot:  # so that no row of both is kept apart
                kinds = tuple("mixed" if kind == "pure" else kind for kind in kinds)
        tables.append(table)
    return replace(case, tables=tuple(tables), kinds=kinds)
