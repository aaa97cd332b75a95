"""Several ranks: the same kind in the same step, and nothing lost by it."""

from __future__ import annotations

import numpy as np
import pytest
from torch.utils.data import DataLoader

from tests.fae import pack_jobs
from tests.fae.packing import Inputs, collate, is_all_hot, make_input, profile
from tests.fae.ranks import Ranks
from trainobs.core.errors import FAEError
from trainobs.fae import pack
from trainobs.fae.packing.window_agreement import Offer, agree, tell_of_same_inputs


def an_offer(inputs: int, hot: int, size: int, **more) -> Offer:
    counts = {"batch_count": -(-inputs // size), "hot_count": hot // size, "input_count": inputs}
    return Offer(**counts, batch_size=size, epoch=0, window=0, settings=1, **more)


@pytest.mark.parametrize("seed", range(100))
def test_what_is_agreed_every_rank_can_do(seed):
    draw = np.random.default_rng(seed)
    size, ranks = int(draw.integers(1, 7)), int(draw.integers(1, 5))
    offers = []
    for _ in range(ranks):
        inputs = int(draw.integers(12, 40))
        offers.append(an_offer(inputs, int(draw.integers(0, inputs + 1)), size))
    steps = max(offer.batch_count for offer in offers)
    if any(offer.input_count < steps for offer in offers):
        with pytest.raises(FAEError, match="for the last"):
            agree(offers, drop_last=False)
        return
    pure, mixed = agree(offers, drop_last=False)
    assert pure + mixed == steps
    for offer in offers:
        assert pure <= offer.hot_count
        left = offer.input_count - pure * size
        assert mixed <= left <= mixed * size  # no empty batch, none too large

    def is_possible(count: int) -> bool:
        return all(
            count <= offer.hot_count and offer.input_count - count * size >= steps - count
            for offer in offers
        )

    assert is_possible(pure)
    assert not is_possible(pure + 1)  # no pure step is given away


def test_with_drop_last_the_shortest_rank_decides():
    offers = [an_offer(40, 40, 4), an_offer(22, 9, 4)]
    assert agree(offers, drop_last=True) == (2, 4)
    over = Offer(0, 0, 0, 0, 0, 0, 1, ended=1)
    assert agree([offers[0], over], drop_last=True) is None
    assert agree([over, over], drop_last=False) is None
    with pytest.raises(FAEError, match="0 inputs on rank 1 for the last 10 steps"):
        agree([offers[0], over], drop_last=False)
    with pytest.raises(FAEError, match="no window left on rank 1, and one without inputs"):
        agree([an_offer(0, 0, 4), over], drop_last=False)


def cases() -> list[pack_jobs.Case]:
    draw, found = np.random.default_rng(3), []
    for seed in range(30):
        count = int(draw.integers(20, 90))
        other = count + int(draw.integers(-3, 4))
        found.append(
            {
                "hot": float(draw.choice([0.0, 0.7, 0.9, 0.97, 1.0])),
                "counts": (count, other if seed % 2 else count),
                "size": int(draw.integers(2, 7)),
                "window": int(draw.integers(2, 30)),
                "seed": seed,
                "drop_last": seed % 5 == 0,
            }
        )
    short = {"hot": 0.9, "counts": (40, 45), "size": 4, "window": 5, "seed": 1}  # a window less
    return [*found, short, {**short, "drop_last": True}]


def test_two_ranks_train_on_one_kind_in_each_step(pair: Ranks):
    refused = pure = 0
    for case, *ranks in zip(cases(), *pair.run(pack_jobs.kinds_and_inputs, cases()), strict=True):
        if isinstance(ranks[0], str):
            assert ranks[0] == ranks[1]  # the same error on both
            assert "for the last" in ranks[0]
            assert case["counts"][0] != case["counts"][1]
            refused += 1
            continue
        kinds = [[is_pure for is_pure, _ in batches] for batches in ranks]
        assert kinds[0] == kinds[1]
        pure += sum(kinds[0])
        of = profile(case["hot"], case["seed"])
        for rank, batches in enumerate(ranks):
            check_rank(rank, batches, case, of)
    assert pure > 50
    assert 0 < refused < 10


def check_rank(rank: int, batches, case: pack_jobs.Case, of) -> None:
    numbers = [number for _, batch in batches for number in batch]
    wanted = range(1000 * rank, 1000 * rank + case["counts"][rank])
    assert len(set(numbers)) == len(numbers)
    if case.get("drop_last"):
        assert set(numbers) <= set(wanted)
        assert len(numbers) > len(wanted) - 6 - case["size"]
    else:
        assert sorted(numbers) == list(wanted)
    assert all(0 < len(batch) <= case["size"] for _, batch in batches)
    for is_pure, batch in batches:
        assert not is_pure or all(is_all_hot(make_input(number), of) for number in batch)


def test_ranks_that_pack_differently_are_told_at_once(pair: Ranks):
    first, second = pair.run(pack_jobs.disagreements)
    for found in (first, second):
        assert [what.split(" of rank 0")[0] for what in found[:5]] == [
            f"rank 1 does not have the {what}"
            for what in ("settings", "settings", "settings", "batch_size", "epoch")
        ]
    assert first[5] == "an error on rank 1"
    assert "the disk is gone" in second[5]
    assert first[6] == second[6] == "rank 1 does not have the settings of rank 0"  # one resumed


def test_all_ranks_are_told_where_one_goes_on_with_other_inputs(pair: Ranks):
    first, second = pair.run(pack_jobs.resumed_elsewhere)
    assert first == (0, "an error on rank 1")
    assert second == (0, "other inputs in window 0 of epoch 0")


def test_the_loaders_of_a_data_module_have_one_group(pair: Ranks):
    assert pair.run(pack_jobs.groups_of_a_data_module) == [1, 1]


def test_ranks_wait_as_long_as_the_job_says(pair: Ranks):
    assert pair.run(pack_jobs.patience_s) == [7.0, 7.0]


def test_ranks_that_report_other_losses_are_told_in_the_next_window(pair: Ranks):
    assert (
        pair.run(pack_jobs.other_losses)
        == [(10, "rank 1 does not have the settings of rank 0")] * 2
    )


def test_the_state_of_one_rank_serves_all(pair: Ranks):
    for whole, rest in pair.run(pack_jobs.resumed):
        assert whole == rest
        assert len(rest) == 5


def test_a_state_of_an_epochs_end_serves_other_ranks_with_other_hot_rows(pair: Ranks):
    alone = pack(DataLoader(Inputs(83), 4, collate_fn=collate), profile(0.5), window=4)
    assert sum(1 for _ in alone) == 21
    for behind, fresh in pair.run(pack_jobs.next_epochs, alone.state_dict()):
        assert behind == fresh
        assert len(behind) == 14


def test_streams_that_end_a_little_apart_are_evened_out(pair: Ranks):
    first, second = pair.run(pack_jobs.streams)
    assert first == second
    assert len(first) == 20
    assert any(first)


def test_ranks_with_the_same_inputs_are_told_and_others_are_not(caplog):
    def of(digest):
        return an_offer(40, 12, 4, digest=digest)

    assert not tell_of_same_inputs([of(3)])
    assert not tell_of_same_inputs([of(3), of(4)])
    assert not tell_of_same_inputs([an_offer(0, 0, 4)] * 2)
    assert caplog.records == []
    assert tell_of_same_inputs([of(3)] * 3)
    assert "found: the same 40 inputs on 3 ranks" in caplog.text
