"""The identity of a request, and sign-in by a one-time code."""

from __future__ import annotations

from datetime import timedelta

from fastapi import Request

from torana.api.dependencies import act, current_principal, services_of
from torana.api.middleware.authentication import SIGN_IN_PATH, credentials_of
from torana.api.openapi import json_body, problem_responses
from torana.api.parameters import RATE_LIMITED
from torana.api.request_body import read_optional_body
from torana.api.routes.router import new_router
from torana.api.schemas.identity import MeBody, SignInBody, SignInCodeBody, SignInCodeRequest
from torana.api.schemas.people import IssuedTokenBody
from torana.errors import SignInNotNeeded
from torana.people.sign_in import LONGEST_SIGN_IN, NewCode

_NOT_NEEDED = "The gateway has no token, so no sign-in is needed."
_UNUSABLE = "The code is unknown, has expired, or was used."

router = new_router()


@router.get(
    "/v1/me",
    response_description="The identity.",
    responses=problem_responses(),
    summary="Get the identity and the scopes of the request's token; no scope is required",
)
async def me(request: Request) -> MeBody:
    principal = current_principal(request)
    return MeBody.from_principal(principal, await services_of(request).people.tokens.token_of(principal))


@router.post(
    "/v1/sign-in-codes",
    status_code=201,
    response_description="The code. It is not shown again.",
    responses=problem_responses(
        {
            403: "The token lacks one of the wanted scopes, or may not name this user.",
            409: f"{_NOT_NEEDED} Or ten sign-ins in a row created the token.",
            429: RATE_LIMITED,
        },
        reads_body=True,
    ),
    summary="Create a code that signs a browser in once, within 60 seconds",
    description="The new token has at most the scopes of this request's token, and ends with it. The newest "
    "ten codes of a token are valid. Counts as a message for the rate limits.",
    openapi_extra={"requestBody": json_body(SignInCodeRequest, required=False)},
)
async def create_sign_in_code(request: Request) -> SignInCodeBody:
    _check_needed(request)
    services = services_of(request)
    body = await read_optional_body(request, SignInCodeRequest)
    new = NewCode(
        scopes=None if body.scopes is None else frozenset(body.scopes),
        user=body.user,
        lifetime=LONGEST_SIGN_IN if body.expires_in is None else timedelta(seconds=body.expires_in),
    )
    principal = current_principal(request)
    async with services.rates.count(principal.user, principal.token):
        issued = await services.people.sign_ins.create(new, principal, act=act(request))
    return SignInCodeBody.from_object(issued.code, code=issued.secret)


@router.post(
    SIGN_IN_PATH,
    status_code=201,
    response_description="The token with its secret. The secret is not shown again.",
    responses=problem_responses(
        {401: _UNUSABLE, 409: _NOT_NEEDED},
    ),
    summary="Exchange a one-time code, sent as the bearer token, for a token that expires soon",
)
async def sign_in(request: Request) -> IssuedTokenBody:
    _check_needed(request)
    issued = await services_of(request).people.sign_ins.sign_in(_code(request), act=act(request))
    return IssuedTokenBody.from_token(issued.token, token=issued.secret)


@router.get(
    SIGN_IN_PATH,
    response_description="The identity.",
    responses=problem_responses({401: _UNUSABLE, 409: _NOT_NEEDED}),
    summary="Get the identity that a one-time code, sent as the bearer token, signs in as",
    description="The code stays valid. A page that received the code in a link shows the identity before it "
    "signs in: the link may be another person's.",
)
async def get_sign_in(request: Request) -> SignInBody:
    _check_needed(request)
    return SignInBody.model_validate(await services_of(request).people.sign_ins.get(_code(request)))


def _code(request: Request) -> str:
    return credentials_of(request)[0].decode("latin-1")


def _check_needed(request: Request) -> None:
    if not request.app.state.guarded:
        raise SignInNotNeeded
