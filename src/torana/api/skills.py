"""Skills over HTTP: all of them with their state, installed, approved, switched off and on, removed."""

from __future__ import annotations

from typing import Annotated, Any

import anyio.to_thread
from fastapi import APIRouter, Query, Request, Response
from fastapi.responses import JSONResponse

from torana.api import shapes, wire
from torana.api.access import act, needs, who
from torana.api.openapi import COMMON, OF_BODIES, archive_body, documented, json_body
from torana.api.parameters import Id
from torana.api.services import NO_STORE, Services
from torana.api.shapes.skills import DIGEST_LIMIT, PATH_LIMIT
from torana.errors import BadRequest, Conflict, NotFound, ScopeMissing
from torana.skills.archive import PACKED_LIMIT
from torana.skills.changes import UPLOAD, SkillChanges
from torana.skills.sources import ADDRESS_LIMIT
from torana.skills.telling import shown_body, standing_body

ARCHIVES = ("application/zip", "application/gzip", "application/octet-stream")

#: How often longer than a message an archive may take to arrive.
_PATIENCE = 4

_PathQuery = Annotated[
    str, Query(alias="path", description="Of an archive: the skill's folder.", max_length=300)
]
_OriginQuery = Annotated[
    str,
    Query(
        alias="origin",
        description="Of an archive: where it is from, by the operator's word.",
        max_length=ADDRESS_LIMIT,
    ),
]


def add_skills(router: APIRouter, services: Services) -> None:
    """``/v1/skills``, to be read and installed."""

    @router.get(
        "/v1/skills",
        dependencies=[needs("skills")],
        response_model=shapes.SkillStandingsBody,
        response_description="The skills, by source and name.",
        responses=documented(*COMMON),
        summary="All skills, loaded or not, with their state",
    )
    async def list_skills() -> Response:
        found = await anyio.to_thread.run_sync(services.skills.changes.standings.listed)
        return JSONResponse({"items": list(map(standing_body, found)), "next": None}, headers=NO_STORE)

    @router.get(
        "/v1/skills/{slug}",
        dependencies=[needs("skills")],
        response_model=shapes.SkillDetailBody,
        response_description="The skill.",
        responses=documented(*COMMON, NotFound),
        summary="A skill with what it wants and what was found in it, for whoever is to approve it",
    )
    async def show_skill(slug: Id) -> Response:
        return await _told(services, slug)

    @router.post(
        "/v1/skills",
        dependencies=[needs("skills")],
        status_code=201,
        response_model=shapes.SkillDetailBody,
        response_description="The skill, in quarantine.",
        responses=documented(*COMMON, *OF_BODIES, Conflict),
        summary="Install a skill from an address, or from an archive that is sent; it waits for approval",
        openapi_extra={
            "requestBody": archive_body(
                "SkillRequest", {"source": "https://example.com/tea.zip"}, archives=ARCHIVES
            )
        },
    )
    async def install_skill(request: Request, path: _PathQuery = "", origin: _OriginQuery = "") -> Response:
        _check_unbound(request)
        changes = services.skills.changes
        if wire.media_type(request.headers) in ARCHIVES:
            archive = await _archive(request, services)
            origin = origin if origin and "admin" in who(request).scopes else UPLOAD
            made = await changes.take_in(archive, origin=origin, path=path or None, act=act(request))
        else:
            source, folder = _source(await wire.read_object(request, within=services.body_timeout))
            made = await changes.install(source, path=folder or None, act=act(request))
        return await _told(services, made.slug, status_code=201)

    @router.post(
        "/v1/skills/{slug}/update",
        dependencies=[needs("skills")],
        response_model=shapes.SkillDetailBody,
        response_description="The skill; a newer version of it is in quarantine.",
        responses=documented(*COMMON, *OF_BODIES, NotFound, Conflict),
        summary="Fetch an installed skill again, or take a newer version of it that is sent",
        openapi_extra={"requestBody": archive_body(None, {}, archives=ARCHIVES)},
    )
    async def update_skill(request: Request, slug: Id) -> Response:
        _check_unbound(request)
        if wire.media_type(request.headers) in ARCHIVES:
            archive = await _archive(request, services)
            await services.skills.changes.renew(slug, archive, act=act(request))
        else:
            await services.skills.changes.update(slug, act=act(request))
        return await _told(services, slug)

    @router.delete(
        "/v1/skills/{slug}",
        dependencies=[needs("skills")],
        response_model=shapes.RemovedSkillBody,
        response_description="It is gone.",
        responses=documented(*COMMON, NotFound, Conflict),
        summary="Remove an installed skill",
    )
    async def remove_skill(request: Request, slug: Id) -> Response:
        _check_unbound(request)
        await services.skills.changes.remove(slug, act=act(request))
        return JSONResponse({"slug": slug}, headers=NO_STORE)


def add_skill_decisions(router: APIRouter, services: Services) -> None:
    """``/v1/skills/{slug}/…``: the operator's word."""

    @router.post(
        "/v1/skills/{slug}/approve",
        dependencies=[needs("admin")],
        response_model=shapes.SkillDetailBody,
        response_description="The skill, which is loaded.",
        responses=documented(*COMMON, *OF_BODIES, NotFound, Conflict),
        summary="Let a skill be loaded, and its scripts be run",
        openapi_extra={"requestBody": json_body("SkillApproval", {"digest": "sha256:9f86d081…"})},
    )
    async def approve_skill(request: Request, slug: Id) -> Response:
        document = await wire.read_object(request, within=services.body_timeout)
        digest, scripts = _approval(document)
        await services.skills.changes.approve(slug, digest=digest, grant=scripts, act=act(request))
        return await _told(services, slug)

    @router.post(
        "/v1/skills/{slug}/enable",
        dependencies=[needs("admin")],
        response_model=shapes.SkillDetailBody,
        response_description="The skill, which is loaded.",
        responses=documented(*COMMON, BadRequest, NotFound, Conflict),
        summary="Load a skill again that was disabled, as it was approved",
    )
    async def enable_skill(request: Request, slug: Id) -> Response:
        await services.skills.changes.enable(slug, act=act(request))
        return await _told(services, slug)

    @router.post(
        "/v1/skills/{slug}/disable",
        dependencies=[needs("skills")],
        response_model=shapes.SkillDetailBody,
        response_description="The skill, which is not loaded any more.",
        responses=documented(*COMMON, BadRequest, NotFound, Conflict),
        summary="Load a skill no more",
    )
    async def disable_skill(request: Request, slug: Id) -> Response:
        _check_unbound(request)
        await services.skills.changes.disable(slug, act=act(request))
        return await _told(services, slug)


async def _told(services: Services, slug: str, *, status_code: int = 200) -> Response:
    shown = await anyio.to_thread.run_sync(services.skills.changes.standings.shown, slug)
    if shown is None:
        raise SkillChanges.not_there(slug)
    return JSONResponse(shown_body(shown), status_code=status_code, headers=NO_STORE)


def _check_unbound(request: Request) -> None:
    """Skills are everybody's: who speaks for one user changes none of them."""
    if who(request).user is not None:
        raise ScopeMissing(
            "The token speaks for one user, and skills are everybody's; use one that is unbound."
        )


async def _archive(request: Request, services: Services) -> bytes:
    return await wire.read_bytes(request, limit=PACKED_LIMIT, within=_PATIENCE * services.body_timeout)


def _source(document: dict[str, Any]) -> tuple[str, str | None]:
    return _required(document, "source", ADDRESS_LIMIT), wire.text(document, "path", most=PATH_LIMIT)


def _approval(document: dict[str, Any]) -> tuple[str, bool]:
    scripts = document.get("scripts")
    if not isinstance(scripts, bool | None):
        raise wire.wrong("scripts", "must be true or false")
    return _required(document, "digest", DIGEST_LIMIT), scripts is not False


def _required(document: dict[str, Any], name: str, most: int) -> str:
    value = wire.text(document, name, most=most)
    if value is None or not value.strip():
        raise wire.wrong(name, "must be a string that is not blank")
    return value
