"""What is logged harms nobody, whatever the handlers are."""

from __future__ import annotations

import logging
import signal
import subprocess
import sys

import pytest

from trainobs.core.log import logger


class Failing(logging.Handler):
    """As of a service that cannot be reached, which has forgotten to catch it."""

    def __init__(self, error: Exception) -> None:
        super().__init__()
        self._error = error
        self.heard = 0

    def emit(self, record: logging.LogRecord) -> None:
        self.heard += 1
        raise self._error


@pytest.fixture
def handler():
    failing = Failing(ConnectionError("no log server"))
    logging.getLogger().addHandler(failing)
    yield failing
    logging.getLogger().removeHandler(failing)


def test_a_handler_that_fails_does_not_harm_who_logs(handler):
    with pytest.raises(ConnectionError):  # it does harm others
        logging.getLogger("trainobs").warning("something")
    logger.warning("%s of %d", "something", 3)
    assert handler.heard == 2


def test_what_a_signal_handler_raises_is_no_fault_of_a_handler(handler):
    def give_up(number, frame):
        raise TimeoutError

    class Slow(logging.Handler):
        def emit(self, record):
            signal.raise_signal(signal.SIGALRM)

    slow, before = Slow(), signal.signal(signal.SIGALRM, give_up)
    logging.getLogger("trainobs").addHandler(slow)
    try:
        with pytest.raises(TimeoutError):
            logger.warning("something")
    finally:
        logging.getLogger("trainobs").removeHandler(slow)
        signal.signal(signal.SIGALRM, before)


@pytest.mark.skipif(
    sys.version_info < (3, 11), reason="Python 3.10 tells who called in its own way"
)
def test_the_caller_is_told_and_not_what_catches(caplog):
    logger.warning("something")
    assert caplog.records[0].pathname == __file__


SCRIPT = """
import logging, sys
from trainobs.core.log import logger
if sys.argv[1:]:
    logging.basicConfig(format="%(name)s says: %(message)s")
logger.warning("cannot do %s\\n  found: nothing", "it")
logger.warning("%s takes no notice of 5 %%", "trainobs")
"""


@pytest.mark.parametrize(
    ("handlers", "first"),
    [((), "trainobs: cannot do it"), (("own",), "trainobs says: cannot do it")],
)
def test_each_message_says_who_says_it(handlers, first):
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, *handlers], capture_output=True, text=True, check=True
    )
    begin = "trainobs says: " if handlers else ""
    assert done.stderr.splitlines() == [
        first,
        "  found: nothing",
        f"{begin}trainobs takes no notice of 5 %",
    ]
