"""Modules of reducers: each is the one record of the internal stream `_modules/SHA256`."""

from __future__ import annotations

from functools import partial
from hashlib import sha256

from google_crc32c import value as crc32c

from polynya.base.names import INTERNAL
from polynya.local.api import Page, ReadQuery, Refusal
from polynya.routing.proposals import reply_to
from polynya.service.api import Service
from polynya.stream.command import Command
from polynya.stream.features.appends.commands import Append
from polynya.stream.features.lifetimes.commands import Create
from polynya.stream.parts import Batch, Encoding
from polynya.stream.replies import Code, Reply

MODULES = f"{INTERNAL}modules/"
MAGIC = b"\0asm"  # the first bytes of a WebAssembly module
_TYPE = "application/wasm"


async def store_module(service: Service, data: bytes) -> tuple[str, bool] | Reply:
    """Store a module. Return its SHA-256, and whether it is new; a Reply is a refusal."""
    digest = sha256(data).hexdigest()
    if await module_of(service, digest) is not None:
        return digest, False
    name = MODULES + digest
    made = await _call(service, name, Create(name, service.now_ms(), _TYPE, Encoding.BYTES))
    if made.code not in (Code.CREATED, Code.EXISTS, Code.EXISTS_DIFFERENT):
        return made
    batch = Batch(Encoding.BYTES, 1, data, crc32c(data))
    reply = await _call(service, name, Append(name, service.now_ms(), _TYPE, batch))
    return reply if reply.code >= Code.NOT_FOUND else (digest, True)


async def module_of(service: Service, digest: str) -> bytes | None:
    """Return a module by its SHA-256; None: it is not stored."""
    query = ReadQuery(MODULES + digest, 0, 0, bytes_max=1, touch=False, whole_records=True)
    page = await service.read(query)
    if isinstance(page, Refusal) or not isinstance(page, Page) or not page.spans:
        return None
    data = b"".join(span.payload for span in page.spans if span.record == 0)
    return data if sha256(data).hexdigest() == digest else None


async def _call(service: Service, name: str, command: Command) -> Reply:
    return await reply_to(partial(service.open(name).propose, command))
