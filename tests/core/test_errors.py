"""Errors cross process borders whole."""

from __future__ import annotations

import pickle

import pytest

from trainobs.core.errors import FAEError, ProbeCause, ProbeError, a_type, shown


@pytest.mark.parametrize(
    "error",
    [
        FAEError("what failed", "what is", "what to do"),
        ProbeError(ProbeCause.REFUSED, "a", "b", "c"),
    ],
    ids=["three parts", "with a cause"],
)
def test_a_pickled_error_is_the_same(error):
    copy = pickle.loads(pickle.dumps(error))
    assert (type(copy), str(copy), copy.__dict__) == (type(error), str(error), error.__dict__)


@pytest.mark.parametrize(
    ("value", "line"),
    [
        ("a\nb", r"'a\nb'"),
        ("x" * 198, repr("x" * 198)),
        ("x" * 199, "'" + "x" * 199 + "... (201 characters)"),
        (b"x" * 300, "b'" + "x" * 198 + "... (300 characters)"),
        (10**5000, "an int without a repr: ValueError"),
    ],
    ids=["lines", "short", "long", "bytes", "a number that Python does not write"],
)
def test_a_value_is_shown_on_one_short_line(value, line):
    assert shown(value) == line


@pytest.mark.parametrize(
    ("value", "told"), [(1, "an int"), ("", "a str"), ({}, "a dict"), (object(), "an object")]
)
def test_a_type_has_its_article(value, told):
    assert a_type(value) == told
