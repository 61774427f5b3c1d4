"""Every setting of the gateway: its name, its bounds, its default and what it is for."""

from __future__ import annotations

from typing import Annotated, Literal

import platformdirs
from pydantic import BaseModel, BeforeValidator, ConfigDict, Field

from torana.config.fields import (
    BaseUrl,
    Directory,
    Functions,
    Host,
    Hosts,
    Models,
    Networks,
    Origins,
    Secret,
    Text,
    Whole,
    Zone,
    lower,
    system_timezone,
)

#: What every environment variable of the gateway begins with.
PREFIX = "TORANA_"

#: The settings that ``torana serve`` also takes on its command line; a secret is never among them.
FLAGS = frozenset({"host", "port", "data_dir", "skills_dir", "model"})

#: Never shown: not in a message, not by ``config show``, not in a log.
SECRETS = frozenset({"gateway_token", "model_api_key"})


class Settings(BaseModel):
    """What the gateway is told by its operator: checked, complete and frozen.

    ``load`` makes it from flags, environment and files; made directly it holds its arguments and the defaults.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, hide_input_in_errors=True, validate_default=True)

    host: Host = Field(
        default="127.0.0.1",
        description="The address to listen on; one that other machines reach needs `gateway_token`.",
    )
    port: Whole = Field(default=18789, ge=1, le=65535, description="The TCP port to listen on.")
    gateway_token: Secret = Field(
        default=None,
        description="The token that every request but `GET /health` must carry; at least 16 characters where "
        "other machines reach the gateway.",
    )
    allow_open: bool = Field(
        default=False,
        description="Let the gateway listen without a token on an address that other machines reach; whoever "
        "reaches it may then use the agent.",
    )
    allowed_hosts: Hosts = Field(
        default=(),
        description="Names under which a gateway without a token answers besides those of this machine; add "
        "the name that a proxy or a browser uses.",
    )
    trusted_proxies: Networks = Field(
        default=(),
        description="Addresses of reverse proxies whose `X-Forwarded-For` is believed; nobody's is by default.",
    )
    cors_origins: Origins = Field(
        default=(), description="Origins of web pages whose scripts may call the gateway (CORS)."
    )
    data_dir: Directory = Field(
        default_factory=lambda: platformdirs.user_data_path("torana"),
        description="The directory of the database, the logs and the installed skills; one gateway uses it at "
        "a time.",
    )
    skills_dir: Directory = Field(
        default_factory=lambda checked: checked["data_dir"] / "skills",
        description="The directory of your own skills, one folder for each.",
    )
    model: Models = Field(
        default=("builtin",),
        description="The language model, or several, of which each stands in for those before it; `builtin` "
        "needs no key.",
    )
    model_base_url: BaseUrl = Field(
        default=None,
        description="The address of an OpenAI-compatible server to use instead of the provider's own; with "
        "it, `openai:` is read as `openai-chat:`.",
    )
    model_api_key: Secret = Field(
        default=None,
        description="The key for the model's provider; without it the provider's own variable is used, such "
        "as `OPENAI_API_KEY`.",
    )
    persona: Text = Field(
        default="You are a helpful assistant. Answer briefly and plainly, in the language of the question. "
        "Use a tool where it knows better than you, and say so when you do not know.",
        description="The instructions with which every conversation begins.",
    )
    timezone: Zone = Field(
        default_factory=system_timezone,
        description="The time zone in which the agent tells and understands times.",
    )
    history_messages: Whole = Field(
        default=40,
        ge=1,
        le=1000,
        description="How many of a session's newest messages the model sees; fewer cost less, more remember "
        "more.",
    )
    recall_in_rooms: bool = Field(
        default=False,
        description="Recall a user's private memory also in a channel where more than one user has spoken; the "
        "others there read the answer.",
    )
    rate_per_user: Whole = Field(
        default=20,
        ge=0,
        le=100_000,
        description="Messages that one user may send in a minute; 0 lifts the limit.",
    )
    rate_global: Whole = Field(
        default=100,
        ge=0,
        le=100_000,
        description="Messages that all users together may send in a minute; 0 lifts the limit.",
    )
    wait: Whole = Field(
        default=300,
        ge=1,
        le=86_400,
        description="Seconds that a plain request waits for its answer before it gets 504; the turn goes on.",
    )
    turn_timeout: Whole = Field(
        default=600,
        ge=1,
        le=86_400,
        description="Seconds after which a running turn is stopped and fails.",
    )
    tools: Functions = Field(
        default=(),
        description="Python functions of your own that the agent may call, each as `package.module:function`.",
    )
    log_level: Annotated[Literal["debug", "info", "warning", "error"], BeforeValidator(lower)] = Field(
        default="info", description="The least severe events that are logged."
    )
    log_format: Annotated[Literal["auto", "console", "json"], BeforeValidator(lower)] = Field(
        default="auto",
        description="How logs are written: for people (`console`), as JSON lines (`json`), or for people on a "
        "terminal and as JSON elsewhere (`auto`).",
    )


def variable(name: str) -> str:
    """The environment variable of a setting: ``TORANA_PORT`` for ``port``."""
    return f"{PREFIX}{name.upper()}"


def flag(name: str) -> str:
    """The command line flag of a setting: ``--data-dir`` for ``data_dir``."""
    return f"--{name.replace('_', '-')}"
