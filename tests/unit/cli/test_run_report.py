"""What `calve run` prints of a sink when it ends."""

import io

import pytest
from rich.console import Console

from calve.cli.run import _print_result
from calve.errors import BadRow
from calve.pipeline.supervisor import Ending, SinkResult

CAUSE = BadRow("it is not JSON", detail="file /in/1.json: {", hint="Look.")


@pytest.mark.parametrize("logged", [True, False])
def test_what_the_log_has_told_already_is_not_told_again(*, logged: bool) -> None:
    out = io.StringIO()
    _print_result(Console(file=out), SinkResult("orders", Ending.FAILED, CAUSE, logged=logged))
    end = "orders: halted, 0 changes in 0 commits, 0.0 seconds\n"
    assert out.getvalue() == f"{end}  {CAUSE.primary if logged else CAUSE}\n"
