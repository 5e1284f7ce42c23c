"""Requests with a schema: register, look up, and check compatibility."""

from __future__ import annotations

from functools import partial
from typing import Any

from msgspec import structs

from polynya.front.http.registry.answers import SchemaBody
from polynya.front.http.registry.log import RegistryLog
from polynya.registry import plans, refused
from polynya.registry.plans import Asked, Change
from polynya.registry.records import Content, Version, extra_of, references_of
from polynya.registry.refused import Refused
from polynya.registry.schemas import TYPES, Candidate, equal, judge, spelled
from polynya.registry.view import View


class Registration:
    """A schema that a request has, against a subject."""

    def __init__(
        self, log: RegistryLog, subject: str, body: SchemaBody, *, normalize: bool
    ) -> None:
        """Raises Refused."""
        plans.check_subject(subject)
        plans.check_type(body.type)
        references = references_of(body.references)
        if references is None:
            raise Refused(
                refused.INVALID_SCHEMA,
                "Invalid schema: each of 'references' needs a 'name', a 'subject' and a 'version'",
            )
        self._log = log
        self._subject = subject
        self._body = body
        self._references = references
        self._normalize = normalize
        parts = {"metadata": body.metadata, "ruleSet": body.ruleSet}
        self._extra = extra_of(parts)
        self._spelled: dict[tuple[bool, tuple[str, ...]], str] = {}

    async def register(self) -> dict[str, Any]:
        """Register the schema, and return its id and version. Raises Refused and faults."""
        answer: dict[str, Any] = await self._log.change(self._decide)
        return answer

    async def find(self, view: View, *, deleted: bool) -> Version:
        """Return the version of the subject that has the schema. Raises Refused."""
        if not view.all_of(self._subject, deleted=deleted):
            raise plans.subject_missing(self._subject)
        content = await self._content(view)
        found = await self._same(view, content, deleted=deleted)
        if found is None:
            raise Refused(refused.SCHEMA_NOT_FOUND, "Schema not found")
        return found

    async def complaints(self, view: View, version: str | None) -> list[str]:
        """Return why the schema may not follow a version of the subject, or those that its level
        names. Raises Refused."""
        level = view.level_of(self._subject)
        if version is None:
            return await self._complaints(view, level)
        other = plans.find_version(view, self._subject, version)
        return await self._judged(view, level, [other])

    async def _decide(self, view: View) -> Change:
        content = await self._content(view)
        same = await self._same(view, content, deleted=False)
        asked = Asked(content, self._body.wanted_id, self._body.version or None)
        if same is not None and asked.id in (None, same.id):
            return Change((), {"id": same.id, "version": same.version})
        plans.check_registration(view, self._subject, asked)
        if asked.id is None:
            found = await self._complaints(view, view.level_of(self._subject))
            if found:
                raise Refused(
                    refused.INCOMPATIBLE,
                    "Schema being registered is incompatible with an earlier schema for subject "
                    f'"{self._subject}", details: [{", ".join(found)}]',
                )
        return plans.register(view, self._subject, asked, self._log.history)

    async def _same(self, view: View, content: Content, *, deleted: bool) -> Version | None:
        """Return the newest version of the subject with a content, if need be in other words."""
        exact = view.same(self._subject, content, deleted=deleted)
        if exact is not None or not TYPES[content.type].is_loose:
            return exact
        others = {
            each.version: each
            for each in reversed(view.all_of(self._subject, deleted=deleted))
            if structs.replace(each.content, text="") == structs.replace(content, text="")
        }
        wanted = Candidate(content.text, plans.resolve(view, content.references))
        candidates = [plans.candidate_of(view, each) for each in others.values()]
        size = sum(each.size for each in (wanted, *candidates))
        found = await self._log.work(partial(equal, content.type, wanted, candidates), size)
        return None if found is None else others[found.version]

    async def _content(self, view: View) -> Content:
        """Return the schema in its one form. Raises Refused."""
        body = self._body
        normalize = self._normalize or view.normalizes(self._subject)
        texts = plans.resolve(view, self._references)
        key = (normalize, tuple(texts.values()))
        if key not in self._spelled:
            wanted = Candidate(body.schema or "", texts)
            work = partial(spelled, body.type, wanted, normalize=normalize)
            self._spelled[key] = await self._log.work(work, wanted.size)
        return Content(body.type, self._spelled[key], self._references, self._extra)

    async def _complaints(self, view: View, level: str) -> list[str]:
        return await self._judged(view, level, plans.earlier(view, self._subject, level))

    async def _judged(self, view: View, level: str, versions: list[Version]) -> list[str]:
        type_ = self._body.type
        if level == "NONE" or not versions:
            return []
        for each in versions:
            if each.content.type != type_:
                return [
                    f"{{errorType:'TYPE_CHANGED', description:'version {each.version} is a schema of "
                    f"the type {each.content.type}, not {type_}'}}",
                    f"{{compatibility: '{level}'}}",
                ]
        wanted = Candidate(self._body.schema or "", plans.resolve(view, self._references))
        earlier = [plans.candidate_of(view, each) for each in versions]
        work = partial(judge, type_, level, wanted, earlier)
        return await self._log.work(work, sum(each.size for each in (wanted, *earlier)))
