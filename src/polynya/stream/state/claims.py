"""The part of a group's state that its tables read streams with."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from polynya.stream.features.tables.state import Watch


class TableClaims:
    """The tables that read streams of a group. Each stream has its claims in `Stream.tables`."""

    def __init__(self) -> None:
        self.watches: dict[int, Watch] = {}  # by uid of the table
        self.jobs: dict[int, int] = {}  # table -> the latest job that claimed here
