"""The picture of the rooms in docs/design/house.md.

`python -m tests.architecture.picture` draws it.

An arrow leads from a room to one that it imports. Arrows that follow from others are left out, and
so is `core`, which all rooms but `host` import.
"""

from __future__ import annotations

import graphlib

from tests.architecture.rooms import PAGE, SOURCE, imports, modules, room_of

BEGIN, END = "<!-- picture: begin -->\n", "<!-- picture: end -->\n"
LEFT_OUT = {"core", "__init__", "__main__"}

Graph = dict[str, set[str]]


def rooms_graph() -> Graph:
    """Room -> rooms that it imports, as the imports have it."""
    graph: Graph = {}
    for name, path in modules(SOURCE).items():
        here = room_of(name)
        there = {room_of(found) for found in imports(path) if found.startswith("trainobs.")}
        graph[here] = graph.get(here, set()) | there - {here}
    return {room: found - LEFT_OUT for room, found in graph.items() if room not in LEFT_OUT}


def reduced(graph: Graph) -> Graph:
    """Without the edges that follow from others."""
    reach: Graph = {}
    for room in graphlib.TopologicalSorter(graph).static_order():
        near = graph[room]
        reach[room] = near.union(*(reach[other] for other in near))
    return {
        room: {one for one in near if not any(one in reach[other] for other in near)}
        for room, near in graph.items()
    }


def picture() -> str:
    """In Mermaid."""
    graph = reduced(rooms_graph())
    edges = [f"    {_node(a)} --> {_node(b)}\n" for a in sorted(graph) for b in sorted(graph[a])]
    alone = [f"    {_node(room)}\n" for room in sorted(graph) if not _touched(graph, room)]
    return f"```mermaid\nflowchart TD\n{''.join(edges + alone)}```\n"


def _node(room: str) -> str:
    return f"{room.replace('/', '_')}[{room}]" if "/" in room else room


def _touched(graph: Graph, room: str) -> bool:
    return bool(graph[room]) or any(room in near for near in graph.values())


def with_picture(page: str) -> str:
    """A page with the picture as it is now."""
    before, _, rest = page.partition(BEGIN)
    _, _, after = rest.partition(END)
    return f"{before}{BEGIN}{picture()}{END}{after}"


if __name__ == "__main__":
    PAGE.write_text(with_picture(PAGE.read_text()))
