"""The process groups as torch lists them in execution traces, and in what is made from them."""

from __future__ import annotations

from typing import Any

import msgspec

from dsprof.files.decoding import UNDECODABLE
from dsprof.trace.readers import untrusted_values

LIST = "## process_group:init ##"
"""The name of the node that lists them, as JSON in its first argument."""


class ProcessGroup(msgspec.Struct):
    """One group; `ranks` is empty where it is all ranks."""

    pg_name: Any = ""
    pg_desc: str = ""
    backend_id: Any = None
    backend_config: str = ""
    ranks: list[int] = []
    group_size: int = 0

    def __post_init__(self) -> None:
        """Keep no more of a text than a report would show."""
        self.pg_desc, self.backend_config = (
            untrusted_values.text(self.pg_desc),
            untrusted_values.text(self.backend_config),
        )


class ProcessGroups:
    """The groups of a rank by the names that collectives give them."""

    def __init__(self) -> None:
        self._known: dict[str, ProcessGroup] = {}
        self.world_size = 0
        self.backend = ""

    def learn(self, text: Any) -> None:
        """Take in a list; anything else is skipped."""
        try:
            groups = msgspec.json.decode(text, type=list[ProcessGroup])
        except (TypeError, *UNDECODABLE):
            return
        for group in groups:
            for key in {str(group.pg_name), str(group.backend_id)}:
                self._known[key] = group
            self.world_size = max(self.world_size, group.group_size, *group.ranks, 0)
            self.backend = self.backend or group.backend_config.rpartition(":")[2]

    def get(self, name: str) -> ProcessGroup | None:
        """Return the group of a name."""
        return self._known.get(name)
