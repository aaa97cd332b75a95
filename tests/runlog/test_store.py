"""What encodes tables is imported late, and other threads can compute while it is read."""

from __future__ import annotations

import subprocess
import sys

CODE = """
import sys
import numpy as np
from pathlib import Path
from trainobs.runlog import store
from trainobs.runlog.columns import Column
from trainobs.runlog.table import Table

def libraries():
    lines = Path("/proc/self/maps").read_text().splitlines()
    return {line.split()[-1] for line in lines if "/pyarrow/" in line}

before = libraries()
store._load_libraries()
assert "pyarrow" not in sys.modules
loaded = libraries()
store.store(Path(sys.argv[1]), Table([Column("a")], {"a": np.arange(3)}))
assert "pyarrow.lib" in sys.modules
late = {Path(path).name.split(".")[0] for path in libraries() - loaded}
print(len(before), len(loaded) > 3, *sorted(late))
"""


def test_libraries_of_arrow_are_loaded_before_import_holds_the_lock(tmp_path):
    command = [sys.executable, "-c", CODE, str(tmp_path / "table")]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["0", "True"], "and none came with the import"
