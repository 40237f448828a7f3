"""`calve` as a command that leaves all work to executors, however little: `python -m tests.faults.on_cluster run`."""

from functools import partial

from calve.cli.main import main
from calve.resolve.resolver import Limits, PositionResolver
from calve.runtime import api
from calve.write import choose

if __name__ == "__main__":
    vars(choose)["DRIVER_ROWS"] = 10
    vars(choose)["tasks_for"] = lambda _size, _cores: 2
    vars(api)["PositionResolver"] = partial(PositionResolver, limits=Limits(rows=10))
    main()
