"""The command `trainobs`, also as `python -m trainobs`."""

import signal


def main() -> int:
    """Run a command: see `trainobs.cli`.

    Its modules take a moment to import, in which Ctrl-C ends the process at once. An exception
    would show which import it was, or be taken for a package that cannot be imported.
    """
    usual = signal.getsignal(signal.SIGINT)
    if usual is signal.default_int_handler:  # else it is ignored, as behind nohup
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    from trainobs.cli import main as run

    signal.signal(signal.SIGINT, usual)
    return run()


if __name__ == "__main__":
    raise SystemExit(main())
