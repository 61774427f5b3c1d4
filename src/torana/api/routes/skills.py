"""Skills: install, approve, enable, disable and remove them."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Annotated

import anyio.to_thread
from fastapi import Query, Request

from torana.api.dependencies import act, current_principal, services_of, slot_of
from torana.api.openapi import archive_body, json_body, problem_responses
from torana.api.parameters import Id
from torana.api.request_body import media_type, read_body, read_bytes
from torana.api.routes.router import new_router, require_scopes
from torana.api.schemas.skills import (
    RemovedSkillBody,
    SkillApproval,
    SkillDetailBody,
    SkillRequest,
    SkillStandingsBody,
)
from torana.errors import ScopeMissing
from torana.skills.installation.archive import PACKED_LIMIT
from torana.skills.installation.installer import UPLOAD, unknown_skill
from torana.skills.installation.sources import ADDRESS_LIMIT

ARCHIVES = ("application/zip", "application/gzip", "application/octet-stream")

#: The time limit for an archive, in multiples of the limit for a JSON body.
_ARCHIVE_TIME_FACTOR = 4

_BOUND = "The token lacks the scope `skills`, or is bound to a user."
_MISSING = "There is no such skill."
_REFUSED = "The body or a field is invalid, or (`skill_refused`) the skill is invalid."
_TOO_LARGE = f"The archive is larger than {PACKED_LIMIT:,} bytes, or the JSON body than 262,144 bytes."

_PathQuery = Annotated[
    str, Query(alias="path", description="For an archive: the folder of the skill in it.", max_length=300)
]
_OriginQuery = Annotated[
    str,
    Query(
        alias="origin",
        description="For an archive: its source. Only a token with the scope `admin` can name it.",
        max_length=ADDRESS_LIMIT,
    ),
]

router = new_router()


@router.get(
    "/v1/skills",
    dependencies=[require_scopes("skills")],
    response_description="The skills, by source and slug.",
    responses=problem_responses(),
    summary="List all skills with their state, loaded or not",
)
async def list_skills(request: Request) -> SkillStandingsBody:
    skills = services_of(request).skills
    async with skills.reporting:
        found = await anyio.to_thread.run_sync(skills.changes.statuses.list_statuses)
    return SkillStandingsBody.model_validate({"items": found, "next": None})


@router.get(
    "/v1/skills/{slug}",
    dependencies=[require_scopes("skills")],
    response_description="The skill.",
    responses=problem_responses({404: _MISSING}),
    summary="Get a skill with its needs and the findings in it, to review it before an approval",
)
async def show_skill(request: Request, slug: Id) -> SkillDetailBody:
    return await _details(request, slug)


@router.post(
    "/v1/skills",
    dependencies=[require_scopes("skills")],
    status_code=201,
    response_description="The skill, in quarantine.",
    responses=problem_responses(
        {
            400: _REFUSED,
            403: _BOUND,
            409: "A skill with this slug exists, or the maximum number of skills is installed.",
            413: _TOO_LARGE,
            415: "The body is neither JSON nor an archive of a known type.",
        },
        reads_body=True,
    ),
    summary="Install a skill from a URL or from an uploaded archive; it waits for approval",
    openapi_extra={"requestBody": archive_body(SkillRequest, archives=ARCHIVES)},
)
async def install_skill(request: Request, path: _PathQuery = "", origin: _OriginQuery = "") -> SkillDetailBody:
    _check_unbound(request)
    changes = services_of(request).skills.changes
    if media_type(request.headers) in ARCHIVES:
        origin = origin if origin and "admin" in current_principal(request).scopes else UPLOAD
        async with _archive(request) as archive:
            made = await changes.install_archive(archive, origin=origin, path=path or None, act=act(request))
    else:
        body = await read_body(request, SkillRequest)
        made = await changes.install(body.source, path=body.path or None, act=act(request))
    return await _details(request, made.slug)


@router.post(
    "/v1/skills/{slug}/update",
    dependencies=[require_scopes("skills")],
    response_description="The skill. A newer version of it is in quarantine.",
    responses=problem_responses(
        {
            400: "The newer version of the skill is invalid (`skill_refused`).",
            403: _BOUND,
            404: _MISSING,
            408: "The archive did not arrive in time.",
            409: "The skill has no source to fetch it from, or is a core skill.",
            413: _TOO_LARGE,
        }
    ),
    summary="Fetch an installed skill again, or upload a newer version of it",
    openapi_extra={"requestBody": archive_body(None, archives=ARCHIVES)},
)
async def update_skill(request: Request, slug: Id) -> SkillDetailBody:
    _check_unbound(request)
    changes = services_of(request).skills.changes
    if media_type(request.headers) in ARCHIVES:
        async with _archive(request) as archive:
            await changes.update_from_archive(slug, archive, act=act(request))
    else:
        await changes.update(slug, act=act(request))
    return await _details(request, slug)


@router.delete(
    "/v1/skills/{slug}",
    dependencies=[require_scopes("skills")],
    response_description="The slug of the removed skill.",
    responses=problem_responses({403: _BOUND, 404: _MISSING, 409: "The skill was not installed."}),
    summary="Remove an installed skill",
)
async def remove_skill(request: Request, slug: Id) -> RemovedSkillBody:
    _check_unbound(request)
    await services_of(request).skills.changes.remove(slug, act=act(request))
    return RemovedSkillBody(slug=slug)


@router.post(
    "/v1/skills/{slug}/approve",
    dependencies=[require_scopes("admin")],
    response_description="The skill, which is loaded.",
    responses=problem_responses(
        {
            400: _REFUSED,
            404: _MISSING,
            409: "The files do not match `digest`, or the skill is a core skill.",
        },
        reads_body=True,
    ),
    summary="Approve a skill, with or without its scripts",
    openapi_extra={"requestBody": json_body(SkillApproval)},
)
async def approve_skill(request: Request, slug: Id) -> SkillDetailBody:
    approval = await read_body(request, SkillApproval)
    await services_of(request).skills.changes.approve(
        slug, digest=approval.digest, grant=approval.scripts is not False, act=act(request)
    )
    return await _details(request, slug)


@router.post(
    "/v1/skills/{slug}/enable",
    dependencies=[require_scopes("admin")],
    response_description="The skill, which is loaded.",
    responses=problem_responses(
        {
            400: "The skill cannot be loaded (`skill_refused`).",
            404: _MISSING,
            409: "The skill is not disabled, or its files changed after the approval.",
        }
    ),
    summary="Enable a disabled skill as it was approved",
)
async def enable_skill(request: Request, slug: Id) -> SkillDetailBody:
    await services_of(request).skills.changes.enable(slug, act=act(request))
    return await _details(request, slug)


@router.post(
    "/v1/skills/{slug}/disable",
    dependencies=[require_scopes("skills")],
    response_description="The skill, which is not loaded any more.",
    responses=problem_responses(
        {
            400: "The skill cannot be read (`skill_refused`).",
            403: _BOUND,
            404: _MISSING,
            409: "The skill is not active, or is a core skill.",
        }
    ),
    summary="Disable a skill until it is enabled again",
)
async def disable_skill(request: Request, slug: Id) -> SkillDetailBody:
    _check_unbound(request)
    await services_of(request).skills.changes.disable(slug, act=act(request))
    return await _details(request, slug)


async def _details(request: Request, slug: str) -> SkillDetailBody:
    skills = services_of(request).skills
    async with skills.reporting:
        found = await anyio.to_thread.run_sync(skills.changes.statuses.get, slug)
    if found is None:
        raise unknown_skill(slug)
    return SkillDetailBody.from_details(found)


def _check_unbound(request: Request) -> None:
    """Raise ``ScopeMissing`` for a token that is bound to a user: skills are shared by all users."""
    if current_principal(request).user is not None:
        raise ScopeMissing(
            "The token is bound to a user, and all users share the skills; use a token without a user."
        )


@asynccontextmanager
async def _archive(request: Request) -> AsyncGenerator[bytes]:
    """Read an archive, and hold a slot while it is in memory."""
    services = services_of(request)
    within = _ARCHIVE_TIME_FACTOR * services.body_timeout
    async with slot_of(request, services.archives):
        yield await read_bytes(request, limit=PACKED_LIMIT, within=within)
