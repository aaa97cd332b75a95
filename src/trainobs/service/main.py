"""The command `trainobs-probed`."""

from __future__ import annotations

import argparse
import grp
import logging
import os
import resource
import signal
import sys
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from trainobs.core.abi import SLOTS
from trainobs.core.errors import SettingError, TrainobsError
from trainobs.core.output import tell
from trainobs.core.version import __version__
from trainobs.probes.protocol import SOCKET
from trainobs.probes.shared import SharedProbes
from trainobs.service.privileges import keep_only_what_probes_need
from trainobs.service.server import Server, bind
from trainobs.service.sessions import MAX_PER_USER, MAX_SESSIONS, Sessions

logger = logging.getLogger("trainobs.service")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the service until SIGTERM or SIGINT, which end the process with status 0.

    Returns:
        The exit status if it cannot run: 2.
    """
    options = _parser().parse_args(arguments)
    logging.basicConfig(level=logging.INFO, format="trainobs-probed: %(message)s")
    try:
        _run(options)
    except TrainobsError as error:
        tell(str(error))
        return 2
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="trainobs-probed",
        description="Loads the probes of trainobs for processes that may load none.",
    )
    parser.add_argument("--version", action="version", version=f"trainobs {__version__}")
    parser.add_argument(
        "--socket", type=Path, default=SOCKET, help="where to listen (default: %(default)s)"
    )
    parser.add_argument(
        "--group", help="name or number of the group that may use it (default: that of the service)"
    )
    parser.add_argument(
        "--max-sessions",
        type=_count,
        default=MAX_SESSIONS,
        help="how many at a time (default: %(default)s)",
    )
    parser.add_argument(
        "--max-sessions-per-user",
        type=_count,
        default=MAX_PER_USER,
        help="how many of one user at a time (default: %(default)s)",
    )
    return parser


def _count(text: str) -> int:
    with suppress(ValueError):
        if 1 <= (number := int(text)) <= SLOTS:
            return number
    raise argparse.ArgumentTypeError(f"{text!r} is no number from 1 to {SLOTS}")


def _run(options: argparse.Namespace) -> None:
    told = _told_to_end()
    _raise_descriptor_limit()
    with bind(options.socket, _group(options.group)) as listener:
        try:
            keep_only_what_probes_need()
            probes = SharedProbes()  # until the process ends: its threads may be using them
            _tell_what_is_off(probes)
            per_user = options.max_sessions_per_user
            sessions = Sessions(probes, limit=options.max_sessions, per_user=per_user)
            Server(listener, probes, sessions, per_user=per_user).serve(told)
        finally:
            with suppress(OSError):
                options.socket.unlink()


def _told_to_end() -> int:
    """A descriptor that can be read once the service is told to end.

    No exception of a handler: one that comes inside of a finalizer is lost.
    """
    told, tell = os.pipe()
    os.set_blocking(tell, False)
    signal.set_wakeup_fd(tell)
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: None)
    return told


def _group(name: str | None) -> int | None:
    if name is None or name.isdecimal():
        return int(name) if name else None
    try:
        return grp.getgrnam(name).gr_gid
    except KeyError:
        raise SettingError(
            "bad value for --group", f"there is no group {name!r}", f"groupadd --system {name}"
        ) from None


def _raise_descriptor_limit() -> None:
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def _tell_what_is_off(probes: SharedProbes) -> None:
    for name, state in probes.status.items():
        if state != "on":
            logger.warning("%s is off: %s", name, state)


if __name__ == "__main__":
    sys.exit(main())
