"""What is asked for of a range, and the tasks that read its files."""

from collections.abc import Sequence
from dataclasses import dataclass

from calve.changelog.events import EventTarget
from calve.changelog.pairing import Pairing
from calve.changelog.worker import EventTask
from calve.iceberg.planning.change_range import ChangeRange
from calve.model.changelog import ChangedFile, ChangeScanPlan
from calve.reader.splits import read_tasks


@dataclass(frozen=True)
class ChangeRequest:
    """What is asked for."""

    range: ChangeRange
    """With the columns of the result."""
    key: tuple[str, ...]
    net: bool
    before: bool

    @classmethod
    def of(
        cls, found: ChangeRange, *, key: Sequence[str] | None, columns: Sequence[str] | None, net: bool, before: bool
    ) -> "ChangeRequest":
        """Check the key and the columns, which include the key. Raises InvalidInput."""
        chosen = found.key if key is None else found.named(key)
        found.check_key(chosen)
        wanted = found.columns if columns is None else found.named(columns)
        missing = [name for name in chosen if name not in wanted]
        return cls(found.select([*missing, *wanted]), tuple(chosen), net, before)

    def pairing(self, plan: ChangeScanPlan) -> Pairing:
        """How events become changes."""
        places = tuple(self.range.columns.index(name) for name in self.key)
        return Pairing(plan.steps, places, self.net, self.before)

    def into(self, needed: ChangeRange, plan: ChangeScanPlan, condition_columns: Sequence[str] = ()) -> EventTarget:
        """What events are read into. Without a key, rows are compared by all columns."""
        light = tuple(dict.fromkeys([*self.key, *condition_columns]))
        return EventTarget(needed.target(plan), light, images=self.needs_images)

    @property
    def needs_images(self) -> bool:
        """Whether all columns of deleted rows are read."""
        return self.before or not self.key


def event_tasks(files: Sequence[ChangedFile], parallelism: int) -> tuple[EventTask, ...]:
    """Tasks that read each file once: `parallelism` or a multiple of it, of about equal cost."""
    changed = {id(one.file): one for one in files}  # a file that came back is there twice, with other deletes
    tasks = read_tasks([one.file for one in files], parallelism)
    return tuple(EventTask(tuple((split, changed[id(split.file)]) for split in task.splits)) for task in tasks)
