"""Pages of lists: `limit` items, and in `next` the cursor of the page that follows."""

from collections.abc import Callable, Sequence
from typing import Annotated, Final, TypeVar

from fastapi import Query

from kronos_client.contract.errors import ErrorCode, JobError

MAX_LIMIT: Final = 1000

Item = TypeVar("Item")

Limit = Annotated[int, Query(ge=1, le=MAX_LIMIT, description="most items of one page")]
Cursor = Annotated[
    str | None, Query(max_length=1000, description="`next` of the page before; the first page if left out")
]
NEXT: Final = "cursor of the next page; null on the last one"


def page_of(
    items: Sequence[Item], name_of: Callable[[Item], str], limit: int, cursor: str | None
) -> tuple[list[Item], str | None]:
    """The page that begins at the item named ``cursor``, and the name of the first one after it.

    Raises JobError BAD_VALUE if no item has that name.
    """
    names = [name_of(item) for item in items]
    if cursor is not None and cursor not in names:
        raise JobError(
            ErrorCode.BAD_VALUE, "cursor: the list has changed; begin again with its first page", "cursor"
        )
    start = 0 if cursor is None else names.index(cursor)
    end = start + limit
    return list(items[start:end]), names[end] if end < len(names) else None
