"""The run log whose every number can be worked out by hand."""

from tests.analysis.conftest import write_run

__all__ = ["write_run"]
