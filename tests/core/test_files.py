"""Files that are whole, or as they were."""

from __future__ import annotations

import pytest

from trainobs.core.files import replacing


@pytest.mark.parametrize("error", [OSError, MemoryError, KeyboardInterrupt])
def test_whatever_ends_the_writing_leaves_the_old_file_and_nothing_else(tmp_path, error):
    path = tmp_path / "file"
    path.write_text("as it was")

    def write() -> None:
        with replacing(path) as temporary:
            temporary.write_text("half of")
            raise error

    with pytest.raises(error):
        write()
    assert [(each.name, each.read_text()) for each in tmp_path.iterdir()] == [("file", "as it was")]
