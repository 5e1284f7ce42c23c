"""`/registry`: the REST API of Confluent's Schema Registry, over the topic `_schemas`.

https://docs.confluent.io/platform/current/schema-registry/develop/api.html
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from polynya.front.http.protocol.errors import Failure
from polynya.front.http.protocol.extension import Request, Response
from polynya.front.http.registry.answers import (
    ConfigBody,
    ModeBody,
    flag,
    part,
    read_body,
    read_schema,
    refusal,
    shown,
    shown_text,
)
from polynya.front.http.registry.log import RegistryLog
from polynya.front.http.registry.registration import Registration
from polynya.registry import plans, refused
from polynya.registry.plans import Change
from polynya.registry.records import Version
from polynya.registry.refused import Refused
from polynya.registry.schemas import TYPES, serialized
from polynya.registry.view import View

MOUNT = "/registry/"
ROOT = "/registry"
LISTED_CHARACTERS_MAX = 32 << 20  # of the texts in one response


class RegistryRoutes:
    """The handler of `MOUNT` and `ROOT`."""

    def __init__(self, log: RegistryLog) -> None:
        self._log = log

    async def handle(self, request: Request) -> Response:
        """Answer a request. Raises `Failure` and faults."""
        try:
            return await self._answer(request)
        except Refused as failed:
            return refusal(failed)

    async def _answer(self, request: Request) -> Response:
        reads = request.method in ("GET", "HEAD")
        match request.segments:
            case () | ("",) if reads:
                return shown({})
            case ("contexts",) if reads:
                return shown(["."])
            case ("schemas", *rest) if reads:
                return await self._schemas(request, rest)
            case ("subjects", *rest):
                return await self._subjects(request, rest)
            case ("config",) | ("config", ""):
                return await self._config(request, None)
            case ("config", subject):
                return await self._config(request, subject)
            case ("mode",) | ("mode", ""):
                return await self._mode(request, None)
            case ("mode", subject):
                return await self._mode(request, subject)
            case ("compatibility", "subjects", subject, "versions", *rest) if len(rest) <= 1:
                return await self._compatibility(request, subject, rest[0] if rest else None)
        raise _no_route()

    # --- schemas ----------------------------------------------------------------------------------

    async def _schemas(self, request: Request, rest: list[str]) -> Response:
        match rest:
            case ["types"]:
                return shown(sorted(TYPES, reverse=True))
            case []:
                return shown(_all(await self._log.current(), request))
            case ["ids", text, *more]:
                id_ = _id(text)
                found = await self._sharing(id_)
                if not found:
                    raise Refused(refused.SCHEMA_NOT_FOUND, f"Schema {id_} not found")
                if not more:
                    answer = await self._formatted(request, found[0])
                    for name in ("subject", "version", "id"):
                        del answer[name]
                    if flag(request, "fetchMaxId"):
                        answer["maxId"] = self._log.view.id_max
                    return shown(answer)
                return _of_id(request, found, more)
        raise _no_route()

    async def _formatted(self, request: Request, version: Version) -> dict[str, Any]:
        """Return a version as JSON, with its text in the format that the request names."""
        answer, format_ = version.shown, request.query.get("format", "")
        if format_ not in ("", "serialized"):
            raise Refused(
                422, f"the format '{format_[:32]}' is unknown; expected 'serialized' or none"
            )
        if format_:
            wanted = plans.candidate_of(self._log.view, version)
            work = partial(serialized, version.content.type, wanted)
            answer["schema"] = await self._log.work(work, wanted.size)
        return answer

    async def _sharing(self, id_: int) -> list[Version]:
        """Return the versions with an id. An id never changes its schema, so one that this core
        knows is answered without the topic."""
        found = [*self._log.view.sharing(id_)]
        return found or [*(await self._log.current()).sharing(id_)]

    # --- subjects ---------------------------------------------------------------------------------

    async def _subjects(self, request: Request, rest: list[str]) -> Response:
        method = "GET" if request.method == "HEAD" else request.method
        permanent = flag(request, "permanent")
        history = self._log.history
        match (method, rest):
            case ("GET", []):
                return shown(part(request, _names(await self._log.current(), request)))
            case ("POST", [subject]):
                wanted = self._registration(request, subject)
                found = await wanted.find(
                    await self._log.current(), deleted=flag(request, "deleted")
                )
                return shown(await self._formatted(request, found))
            case ("DELETE", [subject]):
                return await self._changed(
                    lambda view: plans.delete_subject(
                        view, subject, permanent=permanent, history=history
                    )
                )
            case ("GET", [subject, "versions"]):
                return shown(part(request, _numbers(await self._log.current(), subject, request)))
            case ("POST", [subject, "versions"]):
                return shown(await self._registration(request, subject).register())
            case ("GET", [subject, "versions", text, *more]):
                return await self._version(request, subject, text, more)
            case ("DELETE", [subject, "versions", text]):
                return await self._changed(
                    lambda view: plans.delete_version(
                        view, subject, text, permanent=permanent, history=history
                    )
                )
        raise _no_route() if method in ("GET", "POST", "DELETE") else _method("GET, POST, DELETE")

    async def _version(
        self, request: Request, subject: str, text: str, more: list[str]
    ) -> Response:
        view = await self._log.current()
        deleted = flag(request, "deleted")
        found = plans.find_version(view, subject, text, deleted=deleted)
        match more:
            case []:
                return shown(await self._formatted(request, found))
            case ["schema"]:
                return shown_text(found.content.text)
            case ["referencedby"]:
                ids = sorted({each.id for each in view.users_of(found)})
                return shown(part(request, ids))
        raise _no_route()

    def _registration(self, request: Request, subject: str) -> Registration:
        body = read_schema(request)
        return Registration(self._log, subject, body, normalize=flag(request, "normalize"))

    async def _compatibility(self, request: Request, subject: str, version: str | None) -> Response:
        if request.method != "POST":
            raise _method("POST")
        wanted = self._registration(request, subject)
        found = await wanted.complaints(await self._log.current(), version)
        answer: dict[str, Any] = {"is_compatible": not found}
        if flag(request, "verbose"):
            answer["messages"] = found
        return shown(answer)

    # --- settings ---------------------------------------------------------------------------------

    async def _config(self, request: Request, subject: str | None) -> Response:
        match request.method:
            case "GET" | "HEAD":
                view = await self._log.current()
                if subject is None or subject in view.configs:
                    return shown(plans.config_shown(view, subject))
                plans.check_subject(subject)
                if flag(request, "defaultToGlobal"):
                    return shown(plans.config_shown(view, None))
                raise plans.no_config(subject)
            case "PUT":
                body = read_body(request, ConfigBody)
                if body.refused:
                    raise Refused(
                        refused.NOT_PERMITTED,
                        f"the registry has no setting {', '.join(body.refused)}; it has "
                        "'compatibility' and 'normalize'",
                    )
                level = body.compatibility or body.compatibilityLevel
                return await self._changed(
                    lambda view: plans.set_config(
                        view, subject, level=level, normalize=body.normalize
                    )
                )
            case "DELETE":
                return await self._changed(lambda view: plans.delete_config(view, subject))
        raise _method("GET, HEAD, PUT, DELETE")

    async def _mode(self, request: Request, subject: str | None) -> Response:
        match request.method:
            case "GET" | "HEAD":
                view = await self._log.current()
                if subject is not None and subject not in view.modes:
                    plans.check_subject(subject)
                    if not flag(request, "defaultToGlobal"):
                        raise plans.no_mode(subject)
                return shown({"mode": view.mode_of(subject)})
            case "PUT":
                mode, force = read_body(request, ModeBody).mode, flag(request, "force")
                return await self._changed(
                    lambda view: plans.set_mode(view, subject, mode, force=force)
                )
            case "DELETE" if subject is not None:
                return await self._changed(lambda view: plans.delete_mode(view, subject))
        raise _method("GET, HEAD, PUT, DELETE" if subject is not None else "GET, HEAD, PUT")

    async def _changed(self, decide: Callable[[View], Change]) -> Response:
        async def decided(view: View) -> Change:
            return decide(view)

        return shown(await self._log.change(decided))


def _all(view: View, request: Request) -> list[dict[str, Any]]:
    prefix = request.query.get("subjectPrefix", "")
    deleted, newest = flag(request, "deleted"), flag(request, "latestOnly")
    found: list[Version] = []
    for subject in sorted(view.subjects):
        if subject.startswith(prefix):
            versions = view.all_of(subject, deleted=deleted)
            found += versions[-1:] if newest else versions
    found = part(request, found)
    size = sum(len(each.content.text) for each in found)
    if size > LISTED_CHARACTERS_MAX:
        raise Refused(
            422,
            f"the schemas of the list have {size:,} characters, and a response has at most "
            f"{LISTED_CHARACTERS_MAX:,}: pass 'limit' and 'offset', or 'subjectPrefix'",
        )
    return [each.shown for each in found]


def _of_id(request: Request, found: list[Version], more: list[str]) -> Response:
    deleted = flag(request, "deleted")
    subject = request.query.get("subject", "")
    shared = [
        each for each in found if (deleted or not each.deleted) and subject in ("", each.subject)
    ]
    match more:
        case ["schema"]:
            return shown_text(found[0].content.text)
        case ["subjects"]:
            return shown(part(request, sorted({each.subject for each in shared})))
        case ["versions"]:
            pairs = [{"subject": each.subject, "version": each.version} for each in shared]
            return shown(part(request, pairs))
    raise _no_route()


def _names(view: View, request: Request) -> list[str]:
    prefix = request.query.get("subjectPrefix", "")
    only = flag(request, "deletedOnly") or flag(request, "deleted_only")
    deleted = flag(request, "deleted") or only
    return [
        name
        for name in sorted(view.subjects)
        if name.startswith(prefix)
        and view.all_of(name, deleted=deleted)
        and not (only and view.all_of(name))
    ]


def _numbers(view: View, subject: str, request: Request) -> list[int]:
    plans.check_subject(subject)
    only = flag(request, "deletedOnly") or flag(request, "deleted_only")
    found = view.all_of(subject, deleted=flag(request, "deleted") or only)
    if not found:
        raise plans.subject_missing(subject)
    return [each.version for each in found if each.deleted or not only]


def _id(text: str) -> int:
    if not (text.isascii() and text.isdigit()) or int(text[:20]) > plans.ID_MAX:
        raise Refused(404, f"'{text[:64]}' is not the id of a schema; expected a number")
    return int(text)


def _no_route() -> Failure:
    return Failure("NO_ROUTE", "no route of the schema registry matches this path and method")


def _method(allowed: str) -> Failure:
    return Failure("METHOD_NOT_ALLOWED", headers=(("Allow", allowed),))
