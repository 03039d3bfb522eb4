"""The web page's files, with headers that forbid it to load or run anything else."""

from pathlib import Path
from typing import Final

import fastapi_offline
from fastapi import APIRouter, Depends, Response
from fastapi.responses import FileResponse

FOLDERS: Final = {
    "/": Path(__file__).parent / "page",
    "/swagger-ui/": Path(fastapi_offline.__file__).parent / "static",
}
DOCS: Final = "/docs"
ADDRESSES: Final = frozenset(
    {
        *("/", DOCS),
        *(
            url + path.relative_to(folder).as_posix()
            for url, folder in FOLDERS.items()
            for path in folder.rglob("*")
            if path.is_file()
        ),
    }
)
HEADERS: Final = {
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; font-src 'self'; "
        "img-src 'self' data: blob:; connect-src 'self'; "
        "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    ),
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    # Files change with a release. Until then their ETags save the browser the download.
    "Cache-Control": "no-cache",
}


async def _add_headers(response: Response) -> None:
    response.headers.update(HEADERS)


router = APIRouter(tags=["page"], dependencies=[Depends(_add_headers)])
for url, folder in FOLDERS.items():
    router.frontend(url, directory=folder, fallback=None, check_dir=False)


@router.get(DOCS, include_in_schema=False)
async def docs() -> FileResponse:
    """Swagger UI, from an installed package."""
    return FileResponse(FOLDERS["/"] / "docs.html", headers=HEADERS)
