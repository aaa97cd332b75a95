"""Answers to requests; what goes wrong is told in one, and never an error of TensorBoard."""

from __future__ import annotations

import gzip
import hashlib
import json
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

JSON = "application/json"

Environ = dict[str, Any]
StartResponse = Callable[[str, list[tuple[str, str]]], object]
App = Callable[[Environ, StartResponse], Iterable[bytes]]

_LEVEL = 1  # of gzip: numbers as text shrink to a third, in 20 ms a megabyte
_SMALL = 1000  # bytes that nothing is won for


class Answer(NamedTuple):
    """What a request gets.

    Attributes:
        etag: differs if the content does.
        kind: the content's media type.
        make: makes the content; not called for who has it already.
    """

    etag: str
    kind: str
    make: Callable[[], bytes]


class RefusedError(Exception):
    """A request that is wrong, with the HTTP status to say so."""

    def __init__(self, status: str, failed: str, found: str, do: str) -> None:
        super().__init__(_three_lines(failed, found, do))
        self.status = status


def whole(content: bytes, kind: str) -> Answer:
    """An answer that is already made."""
    return Answer(etag_of(content), kind, lambda: content)


def as_json(value: object) -> Answer:
    """An answer in JSON."""
    return whole(json.dumps(value).encode(), JSON)


def etag_of(content: bytes) -> str:
    """An ETag, a weak one, since what is sent may be compressed."""
    return f'W/"{hashlib.sha256(content).hexdigest()}"'


def app(answer_to: Callable[[Environ], Answer]) -> App:
    """The WSGI application of a route; it raises nothing."""

    def respond(environ: Environ, start_response: StartResponse) -> Iterable[bytes]:
        status, kind, headers, content = _response(answer_to, environ)
        if len(content) > _SMALL and "gzip" in environ.get("HTTP_ACCEPT_ENCODING", ""):
            content = gzip.compress(content, _LEVEL)
            headers.append(("Content-Encoding", "gzip"))
        headers += [
            ("Content-Type", kind),  # also of a 304: TensorBoard warns of an answer without it
            ("X-Content-Type-Options", "nosniff"),
            ("Cache-Control", "no-cache"),  # may be kept, but asked for with its ETag
            ("Vary", "Accept-Encoding"),
        ]
        start_response(status, headers)
        return [] if environ["REQUEST_METHOD"] == "HEAD" else [content]

    return respond


def _response(
    answer_to: Callable[[Environ], Answer], environ: Environ
) -> tuple[str, str, list[tuple[str, str]], bytes]:
    """Status, media type, headers and content."""
    try:
        answer = answer_to(environ)
        headers = [("ETag", answer.etag)]
        if answer.etag in environ.get("HTTP_IF_NONE_MATCH", ""):
            return "304 Not Modified", answer.kind, headers, b""
        return "200 OK", answer.kind, headers, answer.make()
    except RefusedError as error:
        return error.status, JSON, [], _error(str(error))
    except Exception as error:
        text = _three_lines(
            "This cannot be shown.",
            f"{type(error).__name__}: {error}",
            "see that `trainobs report` works in the environment that TensorBoard runs in",
        )
        return "500 Internal Server Error", JSON, [], _error(text)


def _three_lines(failed: str, found: str, do: str) -> str:
    return f"{failed}\n  found: {found}\n  do:    {do}"


def _error(text: str) -> bytes:
    # A path may hold bytes that are no text, which JSON cannot say.
    return json.dumps({"error": text.encode("utf-8", "backslashreplace").decode()}).encode()
