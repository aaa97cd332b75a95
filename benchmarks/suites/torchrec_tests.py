"""TorchRec's own distributed tests, with its sharders and with FAE's in their place.

Usage::

    python benchmarks/suites/torchrec_tests.py CHECKOUT [TESTS ...] [-k WHICH]

CHECKOUT is a copy of TorchRec's repository near the version that is installed, whose wheel has no
tests; TESTS are files below it. They run on hosts by gloo, in forked ranks, those that ask for GPUs
too. Left out is what does not pass with the stock sharders, most of it for want of a GPU. Half of
the rows of each table are hot. Printed is how many tests end alike, in how many of them hot rows
were kept, what was refused, and which end otherwise: the exit code is 1 if one does.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections import Counter
from importlib.util import find_spec
from pathlib import Path

HERE = Path(__file__).parent
SOURCE = HERE.parents[1] / "src"
TIMEOUT_S = 240
FOLDER = "torchrec/distributed"
TESTS = (
    "composable/tests/test_ddp.py",
    "composable/tests/test_embedding.py",
    "composable/tests/test_embeddingbag.py",
    "composable/tests/test_fsdp.py",
    "composable/tests/test_fused_optim.py",
    "composable/tests/test_fused_optim_nccl.py",
    "model_tracker/tests/test_model_delta_tracker.py",
    "tests/test_apply_optim_per_param.py",
    "tests/test_emb_anomaly.py",
    "tests/test_embedding_update.py",
    "tests/test_fp_embeddingbag.py",
    "tests/test_fp_embeddingbag_single_rank.py",
    "tests/test_init_parameters.py",
    "tests/test_model_parallel_gloo.py",
    "tests/test_model_parallel_hierarchical.py",
    "tests/test_model_parallel_nccl_single_rank.py",
    "tests/test_qcomms_embedding_modules.py",
    "tests/test_sequence_model_parallel.py",
    "tests/test_sequence_model_parallel_hierarchical.py",
    "tests/test_sequence_model_parallel_single_rank.py",
    "train_pipeline/tests/test_backward_injection.py",
    "train_pipeline/tests/test_gradient_accumulation.py",
    "train_pipeline/tests/test_train_pipeline_prefetch_sparse_dist.py",
    "train_pipeline/tests/test_train_pipelines.py",
    "train_pipeline/tests/test_train_pipelines_utils.py",
)
ON_HOSTS = (
    (r"not torch\.cuda\.is_available\(\)", "False"),
    (r"torch\.cuda\.device_count\(\) <=? \d", "False"),
    (r'self\.skipTest\("NCCL not supported on CPUs\."\)', "pass"),
    (r'"nccl"', '"gloo"'),
    (r'torch\.device\(f?"cuda:[^"]*"\)', 'torch.device("cpu")'),
    (r"assert isinstance\(sharded_model, \w+\)", "pass"),  # ours holds such a one
    (r"max_examples=\d+", "max_examples=2, derandomize=True"),
)


def lay_out(checkout: Path, place: Path) -> None:
    """The installed package, and the checkout's tests in it, made fit for hosts."""
    spec = find_spec("torchrec")
    assert spec is not None
    assert spec.submodule_search_locations
    shutil.copytree(
        spec.submodule_search_locations[0], place / "torchrec", copy_function=os.symlink
    )
    helpers = (place / FOLDER / "test_utils").glob("*.py")
    tests = (checkout / FOLDER).glob("**/tests/*.py")
    for source, copy in (
        *((helper.resolve(), helper) for helper in [*helpers]),
        *((test, place / test.relative_to(checkout)) for test in tests),
    ):
        copy.parent.mkdir(exist_ok=True)
        text = source.read_text()
        for pattern, text_on_hosts in ON_HOSTS:
            text = re.sub(pattern, text_on_hosts, text)
        copy.unlink(missing_ok=True)  # a link to what is installed
        copy.write_text(text)


def run(place: Path, tests: list[str], chosen: str, notes: Path | None) -> dict[str, str]:
    """Outcome of each test; with FAE's sharders if there is a folder for notes."""
    found = place / "outcomes.json"
    path = os.pathsep.join(map(str, (place, HERE, SOURCE)))
    env = os.environ | {"SUITE_OUTCOMES": str(found), "SUITE_FAE": str(notes or "")}
    command = [sys.executable, "-m", "pytest", "-q", "-p", "in_place", "-p", "no:cacheprovider"]
    command += [
        "--continue-on-collection-errors",
        "--no-header",
        "--tb=no",
        f"--timeout={TIMEOUT_S}",
        "-k",
        chosen,
    ]
    subprocess.run(
        [*command, *tests],
        cwd=place,
        env=env | {"PYTHONPATH": path, "CUDA_VISIBLE_DEVICES": "", "TRAINOBS_AUTO": "0"},
        stdout=sys.stderr,
        check=False,
    )
    if not found.exists():
        raise SystemExit("pytest ended before the tests did")
    return dict(json.loads(found.read_text()))


def compare(place: Path, tests: list[str], chosen: str) -> int:
    """Run both sides and print what became of the tests; returns how many differ."""
    from in_place import WITH_A_BATCH, note_of

    notes = place / "notes"
    notes.mkdir()
    stock = run(place, tests, chosen, None)
    passing = [test for test, outcome in stock.items() if outcome == "passed"]
    ours = run(place, passing, "", notes) if passing else {}
    failed = [test for test in passing if ours.get(test) != "passed"]
    found = {
        test: set((notes / note_of(test)).read_text().splitlines())
        for test in passing
        if (notes / note_of(test)).exists()
    }
    hot = sum("hot" in lines for lines in found.values())
    refused = {
        test
        for test in failed
        if any(line.startswith(WITH_A_BATCH) for line in found.get(test, ()))
    }
    different = [test for test in failed if test not in refused]
    print(f"pass with TorchRec's sharders: {len(passing)} of {len(stock)}")
    print(f"with FAE's: {len(passing) - len(failed)}, hot rows were kept in {hot}")
    reasons = Counter(line for lines in found.values() for line in lines - {"hot"})
    for reason, count in reasons.most_common():
        print(f"  refused in {count}: {reason}")
    for test in different:
        print(f"  differs: {test}")
    return len(different)


def main() -> int:
    """See above."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("checkout", type=Path)
    parser.add_argument("tests", nargs="*")
    parser.add_argument("-k", default="", help="which of them, in the words of pytest")
    args = parser.parse_args()
    tests = args.tests or [f"{FOLDER}/{test}" for test in TESTS]
    with tempfile.TemporaryDirectory(prefix="trainobs-suite-") as place:
        lay_out(args.checkout, Path(place))
        existing = [test for test in tests if Path(place, test).exists()]
        return bool(compare(Path(place), existing, args.k))


if __name__ == "__main__":
    sys.exit(main())
