"""Somebody else's test suite, plain against observed: which tests end otherwise?

Usage::

    python benchmarks/suites/run.py torch CHECKOUT        # of pytorch, or of torchdata
    python benchmarks/suites/run.py torchdata CHECKOUT
    python benchmarks/suites/run.py lightning CHECKOUT [TESTS ...]
    python benchmarks/suites/run.py accelerate CHECKOUT [TESTS ...]
    python benchmarks/suites/run.py huggingface CHECKOUT [TESTS ...]

The suites are not part of the installed packages: check out their repositories, or unpack their
source archives. TESTS are files or folders below the checkout. A test that ends otherwise runs
again, three times on each side, since some of these tests fail now and then by themselves; it
counts as different if it does so each time. Tests that do not pass in the plain run are left out.
On a machine that others use, tests with workers run into their time limits on either side.
The exit code is 1 if there is a difference.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

HERE = Path(__file__).parent
SOURCE = HERE.parents[1] / "src"
AGAIN = 3
TIMEOUT_S = 120


@dataclass(frozen=True)
class Suite:
    """How to run and how to observe a suite.

    Attributes:
        tests: by default; below the checkout.
        root: where pytest starts, below the checkout.
        observe: SUITE_OBSERVE of the plugin.
    """

    tests: tuple[str, ...]
    root: str = "."
    observe: str = "loaders"


_STATEFUL = "test/stateful_dataloader"

SUITES = {
    "torch": Suite(("test/test_dataloader.py", f"{_STATEFUL}/test_dataloader.py")),
    "torchdata": Suite((f"{_STATEFUL}/test_dataloader.py", f"{_STATEFUL}/test_state_dict.py")),
    "lightning": Suite(
        tuple(f"tests/tests_pytorch/{part}" for part in ("callbacks", "loops", "trainer")),
        root="tests",
        observe="",
    ),
    "accelerate": Suite(tuple(f"tests/test_{part}.py" for part in ("data_loader", "accelerator"))),
    "huggingface": Suite(("tests/trainer",), observe="huggingface"),
}


def run(
    suite: Suite, checkout: Path, tests: list[str], chosen: str = "", *, observed: bool
) -> dict[str, str]:
    """Outcome of each test."""
    with tempfile.TemporaryDirectory(prefix="trainobs-suite-") as place:
        found = Path(place) / "outcomes.json"
        path = os.pathsep.join([str(HERE), str(SOURCE), os.environ.get("PYTHONPATH", "")])
        env = os.environ | {"SUITE_OUTCOMES": str(found), "PYTHONPATH": path}
        env |= {"TRAINOBS_DIR": place, "HF_HUB_OFFLINE": "1", "TRAINOBS_AUTO": "0"}
        if observed:
            env |= {"SUITE_OBSERVE": suite.observe, "TRAINOBS_AUTO": "1"}
        command = [sys.executable, "-m", "pytest", "-q", "-p", "observed", "-p", "no:cacheprovider"]
        command += ["--no-header", "--tb=no", f"--timeout={TIMEOUT_S}", "-k", chosen]
        command += ["--rootdir=."]  # so that a test's name is one that it can be run again by
        subprocess.run(
            [*command, *tests], cwd=checkout / suite.root, env=env, stdout=sys.stderr, check=False
        )
        if not found.exists():
            raise SystemExit("pytest ended before the tests did")
        outcomes = dict(json.loads(found.read_text()))
        if not outcomes:
            raise SystemExit("pytest found no test")
        return outcomes


def compare(suite: Suite, checkout: Path, tests: list[str], chosen: str) -> int:
    """Run both sides and print a row; returns how many tests differ."""
    plain = run(suite, checkout, tests, chosen, observed=False)
    passing = [test for test, outcome in plain.items() if outcome == "passed"]
    observed = run(suite, checkout, tests, chosen, observed=True)
    suspects = [test for test in passing if observed.get(test) != "passed"]
    for _ in range(AGAIN if suspects else 0):
        sides = [run(suite, checkout, suspects, observed=side) for side in (False, True)]
        suspects = [t for t in suspects if sides[0].get(t) == "passed" != sides[1].get(t)]
        if not suspects:
            break
    skipped = sum(outcome == "skipped" for outcome in plain.values())
    print(f"tests that pass plain: {len(passing)} (of {len(plain)}, {skipped} skipped)")
    print(f"same: {len(passing) - len(suspects)}  different: {len(suspects)}")
    for test in suspects:
        print(f"  {test}")
    return len(suspects)


def main() -> int:
    """See above."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("suite", choices=SUITES)
    parser.add_argument("checkout", type=Path)
    parser.add_argument("tests", nargs="*")
    parser.add_argument("-k", default="", help="which of them, in the words of pytest")
    args = parser.parse_intermixed_args()
    suite, checkout = SUITES[args.suite], args.checkout.resolve()
    tests = args.tests or [test for test in suite.tests if (checkout / test).exists()]
    if args.suite == "torch":
        return bool(_torch(suite, checkout, Path(tests[0]), args.k))
    tests = [str((checkout / test).relative_to(checkout / suite.root)) for test in tests]
    return bool(compare(suite, checkout, tests, args.k))


def _torch(suite: Suite, checkout: Path, test: Path, chosen: str) -> int:
    """Torch's tests as they are, or as torchdata has them for its own loader, with torch's."""
    text = (checkout / test).read_text()
    theirs = "from torchdata.stateful_dataloader import StatefulDataLoader as DataLoader"
    with tempfile.TemporaryDirectory(prefix="trainobs-suite-") as place:
        Path(place, "test_dataloader.py").write_text(
            text.replace(theirs, "from torch.utils.data import DataLoader")
        )
        return compare(suite, Path(place), ["test_dataloader.py"], chosen)


if __name__ == "__main__":
    sys.exit(main())
