"""The plugin as TensorBoard knows it.

TensorBoard does not start with a plugin that cannot be imported. So this imports the standard
library and TensorBoard alone. trainobs, and with it pyarrow, is imported to answer a request.
"""

from __future__ import annotations

import re
import time
from importlib import resources
from pathlib import Path
from urllib.parse import parse_qsl

from tensorboard.plugins import base_plugin

from trainobs_tensorboard.answers import (
    JSON,
    Answer,
    App,
    Environ,
    RefusedError,
    app,
    as_json,
    etag_of,
    whole,
)
from trainobs_tensorboard.run_logs import RunLogs, directories, version_of

_JAVASCRIPT = "text/javascript; charset=utf-8"
_KINDS = {
    ".css": "text/css; charset=utf-8",
    ".js": _JAVASCRIPT,
    ".json": JSON,
    ".png": "image/png",
    ".svg": "image/svg+xml",
    ".woff2": "font/woff2",
}
"""What the page may consist of."""

_FILE = re.compile(r"(?:[\w-][\w.-]*/)*[\w-][\w.-]*", re.ASCII)  # no part begins with a dot

_NAMED = 200
"""Characters of a name that an answer quotes."""

_BAD, _NOT_FOUND = "400 Bad Request", "404 Not Found"


class TrainobsPlugin(base_plugin.TBPlugin):  # type: ignore[misc]
    """The tab, and what it asks for: the files of the page, the list of runs, the data of runs."""

    plugin_name = "trainobs"

    def __init__(self, context: base_plugin.TBContext) -> None:
        spec = getattr(context.flags, "logdir_spec", None)
        self._runs = RunLogs(directories(context.logdir, spec))
        self._any_run = False
        self._started_ns = time.time_ns()

    def get_plugin_apps(self) -> dict[str, App]:
        """Route -> what answers it."""
        return {
            "/index.js": app(self._index),
            "/static/*": app(self._file),
            "/runs": app(self._list),
            "/data": app(self._data),
        }

    def is_active(self) -> bool:
        """Whether there has been a run; TensorBoard asks each time it lists its tabs."""
        self._any_run = self._any_run or bool(self._runs.found().runs)
        return self._any_run

    def frontend_metadata(self) -> base_plugin.FrontendMetadata:
        """The name of the tab, and where it begins."""
        return base_plugin.FrontendMetadata(es_module_path="/index.js", tab_name="Trainobs")

    def _index(self, environ: Environ) -> Answer:
        return whole(Path(__file__).with_name("index.js").read_bytes(), _JAVASCRIPT)

    def _file(self, environ: Environ) -> Answer:
        """A file of the page, which trainobs brings."""
        name = environ["PATH_INFO"].partition("/static/")[2]
        kind = _KINDS.get(Path(name).suffix)
        if kind is None or not _FILE.fullmatch(name):
            raise _no_file(name)
        folder = resources.files("trainobs.report").joinpath("static")
        try:
            return whole(folder.joinpath(*name.split("/")).read_bytes(), kind)
        except OSError as error:  # also of a name that is too long for one
            raise _no_file(name) from error

    def _list(self, environ: Environ) -> Answer:
        """The runs, those changed last first."""
        found = self._runs.found()
        runs = [
            {"run": run.key, "name": run.name, "modified_ns": run.modified_ns} for run in found.runs
        ]
        return as_json({"runs": runs, "complete": found.complete})

    def _data(self, environ: Environ) -> Answer:
        """What the page shows of a run, or of a run beside another; made only if it is new."""
        query = dict(parse_qsl(environ.get("QUERY_STRING", ""), keep_blank_values=True))
        if "run" not in query:
            raise _no_run(_BAD, "no run= in the request")
        dirs = [self._directory(query.pop(name)) for name in ("run", "with") if name in query]
        # Looked at before the runs are read: what changes meanwhile has another ETag the next
        # time. After a restart of TensorBoard, another trainobs may tell the same run otherwise.
        version = "\n\n".join([str(self._started_ns), *map(version_of, dirs)])
        return Answer(etag_of(version.encode()), JSON, lambda: _page_json(query, *dirs))

    def _directory(self, key: str) -> Path:
        run_dir = self._runs.directory(key)
        if run_dir is None:
            raise _no_run(_NOT_FOUND, f"no run log {key} below the log directory")
        return run_dir


def _page_json(query: dict[str, str], run_dir: Path, *others: Path) -> bytes:
    from trainobs.core.errors import TrainobsError
    from trainobs.report.page_data import page_json

    try:
        return page_json(run_dir, query, *others)
    except TrainobsError as error:
        raise RefusedError(_BAD, error.failed, error.found, error.do) from error


def _no_file(name: str) -> RefusedError:
    do = "pip install --upgrade trainobs trainobs-tensorboard, and start TensorBoard again"
    found = f"no file {name[:_NAMED]} in the trainobs that is installed"
    return RefusedError(_NOT_FOUND, "The page cannot be shown.", found, do)


def _no_run(status: str, found: str) -> RefusedError:
    do = "choose one of the list, which is read again every few seconds"
    return RefusedError(status, "There is no run to show.", found, do)
