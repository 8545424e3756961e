"""Content with a digest over HTTP: validators, ranges and Repr-Digest (RFC 9110 and 9530). Written out here because
Starlette's own file response has a different ETag, reads ranges by its own rules, and answers errors in plain text."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

from fastapi import Request
from fastapi.responses import Response, StreamingResponse

from caps.service.problems import Problem
from caps.wire import digests
from caps.wire.problems import Kind
from services.coordinator import formats
from services.coordinator.store import FileEntry

_CHUNK = 1 << 18
_RANGE = re.compile(r"bytes=(\d{0,18})-(\d{0,18})", re.ASCII)


def send(
    request: Request,
    source: Path | bytes,
    entry: FileEntry,
    *,
    media_type: str,
    filename: str | None = None,
    varies: bool = False,
) -> Response:
    """The response: the whole content, a part of it, or nothing if the client already has it."""
    etag = f'"{entry.sha256}"'
    headers = {
        "ETag": etag,
        "Accept-Ranges": "bytes",
        "Cache-Control": "private, no-cache",
        "Repr-Digest": digests.spelled(bytes.fromhex(entry.sha256)),
    }
    if varies:
        headers["Vary"] = "Accept"
    if _matches(request.headers.get("if-none-match"), etag):
        return Response(status_code=304, headers=headers)
    if filename is not None:
        headers["Content-Disposition"] = f'attachment; filename="{filename}"'
    begin, end, status = 0, entry.size, 200
    if request.method == "GET" and request.headers.get("if-range", etag) == etag:
        part = wanted_part(request.headers.get("range"), entry.size)
        if part is not None:
            begin, end, status = *part, 206
            headers["Content-Range"] = f"bytes {begin}-{end - 1}/{entry.size}"
    headers["Content-Length"] = str(end - begin)
    if request.method == "HEAD":
        return Response(status_code=status, headers=headers, media_type=media_type)
    if isinstance(source, bytes):
        return Response(source[begin:end], status, headers, media_type)
    return StreamingResponse(_read(source, begin, end), status, headers, media_type)


def send_rows(
    request: Request, form: str | None, name: str, files: Mapping[str, FileEntry], where: Callable[[str], Path]
) -> Response:
    """The rows of a release or a sample, in the format that is named or else preferred by Accept."""
    picked = formats.chosen(form, request.headers.get("accept"), files)
    return send(
        request,
        where(picked.file),
        files[picked.file],
        media_type=picked.media_type,
        filename=f"{name}.{picked.name}",
        varies=True,
    )


def entry_of(text: bytes) -> FileEntry:
    """The size and digest of what is not a file."""
    return FileEntry(len(text), formats.digest_of_bytes(text))


def wanted_part(header: str | None, size: int) -> tuple[int, int] | None:
    """First byte and end of a single range; None, meaning all, for any other header. Raises Problem if it is beyond."""
    match = _RANGE.fullmatch(header.replace(" ", "")) if header is not None else None
    if match is None or match.group(1) == match.group(2) == "":
        return None
    first, last = match.groups()
    if first and last and int(first) > int(last):
        return None
    begin = int(first) if first else max(0, size - int(last))
    end = min(size, int(last) + 1) if first and last else size
    if begin >= end:
        headers = {"Content-Range": f"bytes */{size}"}
        raise Problem(Kind.RANGE_NOT_SATISFIABLE, f"the range begins after the last of {size} bytes", headers=headers)
    return begin, end


def _matches(header: str | None, etag: str) -> bool:
    if header is None:
        return False
    tags = [tag.strip().removeprefix("W/") for tag in header.split(",")]
    return "*" in tags or etag in tags


def _read(path: Path, begin: int, end: int) -> Iterator[bytes]:
    with path.open("rb") as file:
        file.seek(begin)
        while begin < end:
            chunk = file.read(min(_CHUNK, end - begin))
            if not chunk:
                raise OSError(f"{path.name} is shorter than recorded")
            begin += len(chunk)
            yield chunk
