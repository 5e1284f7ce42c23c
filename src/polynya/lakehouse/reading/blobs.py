"""The object store for drivers and tasks: blocking calls, streamed uploads, and the URIs in table
metadata."""

from __future__ import annotations

import os
import secrets
from collections.abc import Mapping
from contextlib import suppress
from heapq import nlargest
from itertools import accumulate
from typing import Any, Protocol, cast

import msgspec

from polynya.base.errors import ConfigError
from polynya.objectstore import AlreadyExists, NotFound, StoreSettings, StoreUnavailable
from polynya.objectstore.files import Files
from polynya.objectstore.s3_refusals import describe
from polynya.objectstore.settings import s3_config

_UPLOAD_BUFFER_BYTES = 8 << 20
_FOLDERS: set[str] = set()  # folders whose names up to the root this process has synced
# by folder: the newest files there that this process has synced; older ones were synced, too
_NEWEST: dict[str, set[str]] = {}
_NEWEST_FILES = 128
CREDENTIALS = {
    "s3_access_key_id": "ACCESS_KEY_ID",
    "s3_secret_access_key": "SECRET_ACCESS_KEY",
    "s3_session_token": "SESSION_TOKEN",
}


class Upload(Protocol):
    """A new object being written. After `close` it is durable; after `abort` it does not exist."""

    def write(self, data: Any) -> int: ...
    def close(self) -> None: ...
    def abort(self) -> None: ...


class Blobs(Protocol):
    """Objects by key; several threads may read. Raises NotFound, AlreadyExists, StoreUnavailable of
    `polynya.objectstore`."""

    def get(self, key: str) -> bytes: ...
    def get_range(self, key: str, start: int, length: int) -> bytes: ...
    def put(self, key: str, data: bytes) -> None:
        """Create an object. The same bytes from an own earlier attempt count as success; other
        bytes raise AlreadyExists."""
        ...

    def open_upload(self, key: str) -> Upload: ...
    def list_keys(self, folder: str) -> list[str]:
        """Return the keys below a folder (no trailing slash), ascending."""
        ...

    def sync_folder(self, folder: str) -> None:
        """Make files durable that other code wrote directly into a folder. They never change, and
        later files have greater names; names that begin with "_" are of files that change."""
        ...

    def uri(self, key: str) -> str: ...
    def key(self, uri: str) -> str: ...
    def storage_options(self) -> dict[str, str]:
        """Return the options for deltalake."""
        ...


def open_blobs(settings: StoreSettings, environment: Mapping[str, str] = os.environ) -> Blobs:
    """Open the store of a plan with the runner's own credentials. Raises ConfigError if it cannot
    be reached from here."""
    if settings.backend == "local":
        if not os.path.isdir(settings.root):
            raise ConfigError(
                f"the server keeps its objects in the folder {settings.root}, which is not on "
                "this machine: "
                "run this on the server's machine, or give the server an S3 store"
            )
        return LocalBlobs(settings.root, shared=settings.shared)
    if settings.backend == "s3":
        return S3Blobs(settings, environment)
    raise ConfigError(
        "tables need an object store of the kind 'local' or 's3'; the server's is "
        f"'{settings.backend}'"
    )


def with_credentials(
    settings: StoreSettings, environment: Mapping[str, str] = os.environ
) -> StoreSettings:
    """Return the server's S3 settings with the runner's own credentials: `POLYNYA_COLD_S3_…`, else
    the standard AWS chain."""
    own = {
        name: environment.get(f"POLYNYA_COLD_S3_{key}") or getattr(settings, name)
        for name, key in CREDENTIALS.items()
    }
    return msgspec.structs.replace(settings, root=settings.root.strip("/"), **own)


class LocalBlobs:
    """The embedded store's folder. Every write is fsynced with its folders."""

    def __init__(self, root: str, *, shared: bool = False) -> None:
        self.root = os.path.abspath(root)
        self._files = Files(self.root if shared else "")

    def get(self, key: str) -> bytes:
        return self._read(key, 0, -1)

    def get_range(self, key: str, start: int, length: int) -> bytes:
        data = self._read(key, start, length)
        if len(data) != length:
            raise ValueError(f"{key} ends after {len(data)} of the {length} bytes from {start}")
        return data

    def put(self, key: str, data: bytes) -> None:
        path = self._made(key)
        temporary = self._temporary()
        try:
            descriptor = self._files.create(temporary)
            try:
                view = memoryview(data)
                while view:
                    view = view[self._files.write(descriptor, view) :]
                self._files.sync(descriptor)
            finally:
                self._files.close(descriptor)
            self._files.link(temporary, path)
        except FileExistsError:
            if self.get(key) != data:
                raise AlreadyExists(key) from None
        except OSError as fault:
            raise StoreUnavailable(f"{path} cannot be written: {fault}") from fault
        finally:
            if os.path.exists(temporary):
                self._files.unlink(temporary)
        self._files.sync_folder(os.path.dirname(path))

    def open_upload(self, key: str) -> Upload:
        return _LocalUpload(self._made(key), self._temporary(), self._files)

    def list_keys(self, folder: str) -> list[str]:
        found = []
        for path, _, names in os.walk(os.path.join(self.root, folder)):
            found += [
                os.path.relpath(os.path.join(path, name), self.root)
                for name in names
                if not name.startswith(".")
            ]
        return sorted(found)

    def sync_folder(self, folder: str) -> None:
        path = os.path.join(self.root, folder)
        self._folder(path)
        for level in accumulate(folder.split("/"), os.path.join, initial=self.root):
            self._files.share(level)
        known = _NEWEST.get(path, set())
        oldest = min(known, default="")
        with os.scandir(path) as entries:
            names = {entry.name for entry in entries if entry.is_file()}
        for name in names - known:
            if name > oldest:
                self._sync(os.path.join(path, name))
        numbered = (name for name in names if not name.startswith("_"))
        _NEWEST[path] = set(nlargest(_NEWEST_FILES, numbered))
        self._files.sync_folder(path)

    def _sync(self, path: str) -> None:
        """Make a file durable. A temporary one of another process may be gone."""
        try:
            descriptor = os.open(path, os.O_RDONLY)
        except FileNotFoundError:
            return
        try:
            self._files.share(descriptor)
            self._files.sync(descriptor)
        finally:
            self._files.close(descriptor)

    def uri(self, key: str) -> str:
        return f"file://{self.root}/{key}"

    def key(self, uri: str) -> str:
        return _below(uri, f"file://{self.root}/")

    def storage_options(self) -> dict[str, str]:
        return {}

    def _read(self, key: str, start: int, length: int) -> bytes:
        try:
            return self._files.read(os.path.join(self.root, key), start, length)
        except (FileNotFoundError, IsADirectoryError, NotADirectoryError):
            raise NotFound(key) from None
        except OSError as fault:
            raise StoreUnavailable(f"{key} cannot be read: {fault}") from fault

    def _made(self, key: str) -> str:
        path = os.path.join(self.root, key)
        try:
            self._folder(os.path.dirname(path))
        except OSError as fault:
            raise StoreUnavailable(f"{path} cannot be written: {fault}") from fault
        return path

    def _temporary(self) -> str:
        """Return a path that no listing shows; the server removes leftovers."""
        path = os.path.join(self.root, ".tmp", secrets.token_hex(16))
        self._folder(os.path.dirname(path))
        return path

    def _folder(self, path: str) -> None:
        """Create every level below the root and sync its name."""
        if path in _FOLDERS and os.path.isdir(path):
            return
        if path != self.root:
            self._folder(os.path.dirname(path))
            self._files.make_folder(path)
            self._files.sync_folder(os.path.dirname(path))
        _FOLDERS.add(path)


class _LocalUpload:
    """A file that gets its name only when it is complete, because a backup copies every file that
    it sees."""

    def __init__(self, path: str, temporary: str, files: Files) -> None:
        self._path, self._temporary = path, temporary
        self._files = files
        # closed by `close` or `abort`
        self._file = os.fdopen(files.create(temporary), "wb", 1 << 20)

    def write(self, data: Any) -> int:
        return self._file.write(data)

    def close(self) -> None:
        self._file.flush()
        self._files.sync(self._file.fileno())
        self._file.close()
        self._files.link(self._temporary, self._path)
        self._files.unlink(self._temporary)
        self._files.sync_folder(os.path.dirname(self._path))

    def abort(self) -> None:
        self._file.close()
        with suppress(FileNotFoundError):
            self._files.unlink(self._temporary)


class S3Blobs:
    """A bucket through obstore, opened in the process that uses it, because obstore does not
    survive a fork."""

    def __init__(
        self, settings: StoreSettings, environment: Mapping[str, str] = os.environ
    ) -> None:
        from obstore.store import S3Store

        self._settings = with_credentials(settings, environment)
        self._config = s3_config(self._settings, environment)
        plain: Any = {"allow_http": True} if settings.s3_endpoint.startswith("http://") else {}
        self._store = S3Store(
            settings.s3_bucket,
            prefix=self._settings.root or None,
            config=cast(Any, self._config),
            client_options=plain,
        )
        self._base = (
            "/".join(filter(None, [f"s3://{settings.s3_bucket}", self._settings.root])) + "/"
        )

    def get(self, key: str) -> bytes:
        return self._call(lambda obstore: bytes(obstore.get(self._store, key).bytes()), key)

    def get_range(self, key: str, start: int, length: int) -> bytes:
        data = self._call(
            lambda obstore: bytes(obstore.get_range(self._store, key, start=start, length=length)),
            key,
        )
        if len(data) != length:
            raise ValueError(f"{key} ends after {len(data)} of the {length} bytes from {start}")
        return data

    def put(self, key: str, data: bytes) -> None:
        from obstore.exceptions import AlreadyExistsError, PreconditionError

        try:
            self._call(
                lambda obstore: obstore.put(
                    self._store, key, data, mode="create", use_multipart=False
                ),
                key,
            )
        except (AlreadyExistsError, PreconditionError):
            if self.get(key) != data:
                raise AlreadyExists(key) from None

    def open_upload(self, key: str) -> Upload:
        return self._call(
            lambda obstore: _S3Upload(
                obstore.open_writer(self._store, key, buffer_size=_UPLOAD_BUFFER_BYTES)
            ),
            key,
        )

    def list_keys(self, folder: str) -> list[str]:
        return self._call(
            lambda obstore: sorted(
                meta["path"] for page in obstore.list(self._store, prefix=folder) for meta in page
            ),
            folder,
        )

    def sync_folder(self, folder: str) -> None:
        """Do nothing: an acknowledged put is durable."""

    def uri(self, key: str) -> str:
        return self._base + key

    def key(self, uri: str) -> str:
        return _below(uri, self._base)

    def storage_options(self) -> dict[str, str]:
        options = {f"AWS_{name.upper()}": value for name, value in self._config.items()}
        if "AWS_ENDPOINT" in options:
            options["AWS_ENDPOINT_URL"] = options.pop("AWS_ENDPOINT")
            options["AWS_ALLOW_HTTP"] = "true"
        return options | {"AWS_CONDITIONAL_PUT": "etag"}

    def _call(self, work: Any, key: str) -> Any:
        import obstore
        from obstore.exceptions import AlreadyExistsError, BaseError, PreconditionError

        try:
            return work(obstore)
        except FileNotFoundError:
            raise NotFound(key) from None
        except (AlreadyExistsError, PreconditionError):
            raise
        except (BaseError, OSError) as fault:
            raise StoreUnavailable(f"{self._base}{key}: {describe(fault)}") from None


class _S3Upload:
    def __init__(self, writer: Any) -> None:
        self._writer = writer

    def write(self, data: Any) -> int:
        self._writer.write(memoryview(data).cast("B"))
        return len(data)

    def close(self) -> None:
        self._writer.close()

    def abort(self) -> None:
        """Do nothing: an unfinished multipart upload is no object, and a lifecycle rule of the
        bucket removes it."""


def _below(uri: str, base: str) -> str:
    if not uri.startswith(base):
        raise ConfigError(f"{uri} is not below {base}: the table was created in another store")
    return uri[len(base) :]
