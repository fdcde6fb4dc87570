"""YAML that neither nests nor grows without end; importing yaml takes long, hence a module."""

from __future__ import annotations

from yaml import SafeLoader
from yaml.nodes import MappingNode, Node

_DEEPEST = 100


class ShallowLoader(SafeLoader):
    """Refuses what is nested too deeply while it reads: yaml's scanner is quadratic in depth."""

    _depth = 0

    def compose_node(self, parent: Node | None, index: int) -> Node | None:
        """Compose a node and all that it holds.

        Raises:
            RecursionError: it is nested too deeply.
        """
        self._depth += 1
        if self._depth > _DEEPEST:
            raise RecursionError
        node = super().compose_node(parent, index)
        self._depth -= 1
        return node

    def flatten_mapping(self, node: MappingNode) -> None:
        """Merge nothing: `<<` of mappings that merge others doubles them with each line."""
