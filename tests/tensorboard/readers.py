"""What TensorBoard itself reads of a directory: by its data server, and by its Python loader."""

from __future__ import annotations

import json
import re
import subprocess
import warnings
from argparse import Namespace
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from tensorboard.backend.event_processing.data_ingester import LocalDataIngester
from tensorboard.context import RequestContext
from tensorboard.data.provider import DataProvider, RunTagFilter
from tensorboard.data.server_ingester import ExistingServerDataIngester, get_server_binary
from tensorboard.plugins.base_plugin import TBContext
from tensorboard.util.grpc_util import ChannelCredsType

from tests.session.jobs import wait_for

with warnings.catch_warnings():  # of what TensorBoard brings along
    warnings.simplefilter("ignore", DeprecationWarning)
    from tensorboard.plugins.custom_scalar.custom_scalars_plugin import CustomScalarsPlugin
    from tensorboard.plugins.text.text_plugin import text_array_to_html

READERS = ("data server", "python")


@contextmanager
def opened(reader: str, directory: Path) -> Iterator[DataProvider]:
    """A directory as one of TensorBoard's readers gives it to its pages."""
    if reader == "python":
        flags = Namespace(
            samples_per_plugin={},
            purge_orphaned_data=True,
            max_reload_threads=1,
            detect_file_replacement=None,
            reload_multifile=False,
            logdir=str(directory),
            logdir_spec="",
            reload_interval=0,
            reload_task="blocking",
        )
        ingester = LocalDataIngester(flags)
        ingester.start()
        yield ingester.data_provider
        return
    with TemporaryDirectory() as place:
        port = Path(place, "port")
        options = ["--reload=once", "--port=0", f"--port-file={port}", f"--logdir={directory}"]
        with subprocess.Popen([get_server_binary().path, *options]) as server:
            try:
                wait_for(lambda: port.exists() and port.read_text().endswith("\n"))
                provider = ExistingServerDataIngester(
                    f"localhost:{port.read_text().strip()}",
                    channel_creds_type=ChannelCredsType.LOCAL,
                ).data_provider
                runs = len({path.parent for path in directory.rglob("*tfevents*")})
                wait_for(lambda: len(provider.list_runs(CONTEXT, experiment_id="")) == runs)
                yield provider
            finally:
                server.terminate()


CONTEXT = RequestContext()


def tags(provider: DataProvider, plugin: str) -> dict[str, list[str]]:
    """Tags of each run: of numbers, or of what is kept as tensors."""
    listed = provider.list_scalars if plugin == "scalars" else provider.list_tensors
    found = listed(CONTEXT, experiment_id="", plugin_name=plugin)
    return {run: list(of_run) for run, of_run in found.items()}


def points(provider: DataProvider, run: str, tag: str) -> dict[int, float]:
    """Points of a curve."""
    found = _read(provider.read_scalars, "scalars", run, tag)
    return {point.step: point.value for point in found}


def text(provider: DataProvider, run: str, tag: str) -> str:
    """The last text of a tag, as the HTML that the page draws."""
    found = _read(provider.read_tensors, "text", run, tag)
    return text_array_to_html(found[-1].numpy, enable_markdown=True)


def _read(read: Callable[..., Any], plugin: str, run: str, tag: str) -> list[Any]:
    one = RunTagFilter([run], [tag])
    found = read(CONTEXT, experiment_id="", plugin_name=plugin, downsample=1000, run_tag_filter=one)
    return found[run][tag]


def layout(provider: DataProvider) -> dict[str, list[Any]]:
    """Charts of the custom-scalars page by category, as the page gets them."""
    plugin = CustomScalarsPlugin(TBContext(data_provider=provider))
    found = json.loads(plugin.layout_impl(CONTEXT, "") or "{}")
    return {c["title"]: c["chart"] for c in found.get("category", ())}


def curves_of(chart: dict[str, Any], names: list[str]) -> list[str]:
    """The tags that a chart draws."""
    if "margin" in chart:
        return [n for series in chart["margin"]["series"] for n in names if n == series["value"]]
    patterns = chart["multiline"]["tag"]
    return [name for name in names if any(re.match(pattern, name) for pattern in patterns)]
