"""A child is not forked in the middle of an import in another thread."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

JOB = """
import os, signal, sys, threading, time
from contextlib import nullcontext
from trainobs.core.unforked import unforked

def load(guard):
    with guard:
        import takes_long

with unforked():
    pass
thread = threading.Thread(target=load, args=[{guard}])
thread.start()
while "takes_long" not in sys.modules:
    time.sleep(0.001)
child = os.fork()
if child == 0:
    signal.alarm(2)
    import takes_long
    os._exit(takes_long.whole)
thread.join()
again = os.fork()
if again == 0:
    os._exit(0)
print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), os.waitpid(again, 0)[1])
"""


@pytest.mark.parametrize(("guard", "child"), [("unforked()", "7"), ("nullcontext()", "-14")])
def test_a_child_can_import_what_was_being_imported(tmp_path, guard, child):
    (tmp_path / "takes_long.py").write_text("import time; time.sleep(0.3); whole = 7")
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([*sys.path, str(tmp_path)])}
    command = [sys.executable, "-c", JOB.format(guard=guard)]
    done = subprocess.run(command, capture_output=True, text=True, env=environment)
    assert done.stdout.split() == [child, "0"], done.stderr  # -14: it waited without end


def test_who_holds_what_the_import_waits_for_forks_all_the_same(tmp_path):
    job = """
import os, threading
from trainobs.core import unforked as module
module.PATIENCE_S = 0.1
begun, end = threading.Event(), threading.Event()
def load():
    with module.unforked(), module.unforked():
        begun.set()
        end.wait()
thread = threading.Thread(target=load)
thread.start()
begun.wait()
child = os.fork()
if child == 0:
    with module.unforked():
        os._exit(0)
end.set()
thread.join()
print(os.waitpid(child, 0)[1])
"""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    # Since 3.12, Python itself warns of a fork beside a thread.
    command = [sys.executable, "-W", "ignore::DeprecationWarning", "-c", job]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, check=True)
    assert (done.stdout, done.stderr) == ("0\n", "")


def test_a_fork_waits_for_a_load_to_its_end():
    job = """
import os, threading, time
from trainobs.core import unforked as module
module.PATIENCE_S = 0.1
begun, loaded = threading.Event(), []
def load():
    with module.unforked(), module.unforked_load():
        begun.set()
        time.sleep(0.5)
        loaded.append(1)
    with module.unforked_load():
        pass
thread = threading.Thread(target=load)
thread.start()
begun.wait()
child = os.fork()
if child == 0:
    with module.unforked_load():
        os._exit(len(loaded))
thread.join()
print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, "-W", "ignore::DeprecationWarning", "-c", job]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, check=True)
    assert (done.stdout, done.stderr) == ("1\n", "")
