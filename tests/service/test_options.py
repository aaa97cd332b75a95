"""What the command of the service does not take."""

from __future__ import annotations

import pytest

from trainobs.service.main import main


@pytest.mark.parametrize("word", ["abc", "0", "1.5", "1000000", ""])
@pytest.mark.parametrize("option", ["--max-sessions", "--max-sessions-per-user"])
def test_a_number_of_sessions_that_is_none_is_told(option, word, capsys):
    with pytest.raises(SystemExit) as end:
        main([option, word])
    assert end.value.code == 2
    assert f"argument {option}: {word!r} is no number from 1 to " in capsys.readouterr().err
