"""The web page's files, with headers that forbid it to load or run anything else."""

from pathlib import Path
from typing import Final

from fastapi import APIRouter, Depends, Response

FOLDER: Final = Path(__file__).parent / "page"
ADDRESSES: Final = frozenset(
    {"/", *(f"/{path.relative_to(FOLDER).as_posix()}" for path in FOLDER.rglob("*") if path.is_file())}
)
HEADERS: Final = {
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data: blob:; "
        "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    ),
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    # Files change with a release. Until then their ETags save the browser the download.
    "Cache-Control": "no-cache",
}


async def _add_headers(response: Response) -> None:
    response.headers.update(HEADERS)


router = APIRouter(dependencies=[Depends(_add_headers)])
router.frontend("/", directory=FOLDER, fallback=None, check_dir=False)
