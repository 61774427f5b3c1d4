"""Every setting of the gateway: its name, its bounds, its default and what it is for."""

from __future__ import annotations

from typing import Annotated, Literal

import platformdirs
from pydantic import BaseModel, BeforeValidator, ConfigDict, Field

from torana.config.fields import (
    BaseUrl,
    BudgetLimits,
    ConnectorTables,
    Directory,
    EmbeddingModel,
    FileKinds,
    Functions,
    Host,
    Hosts,
    McpTables,
    Models,
    Networks,
    OptionalFile,
    Origins,
    OwnPrices,
    PermissionRules,
    Secret,
    Text,
    TokenLimits,
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
SECRETS = frozenset({"gateway_token", "model_api_key", "search_api_key"})

#: Tables in which there are secrets: only their names are shown.
TABLES = frozenset({"connectors", "mcp"})


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
    model_files: FileKinds = Field(
        default=("text",),
        description="What of the files that come with messages from chat platforms the model is handed: "
        "`text`, and of a model that can look at them `image` and `pdf`. Everything else is only named to it; "
        "to `builtin` everything is.",
    )
    embedding_model: EmbeddingModel = Field(
        default=None,
        description="The model by which memories are also found by their meaning; without it by their words "
        "alone. `model_base_url` and `model_api_key` count for it too where its provider is the model's.",
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
    compact: bool = Field(
        default=True,
        description="Let the model summarise what it is not shown any more of a long session, so that it "
        "knows of it; `builtin` never does.",
    )
    session_days: Whole = Field(
        default=0,
        ge=0,
        le=36_500,
        description="Days after which a session in which nothing was said or answered is deleted; 0 keeps all.",
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
    limits_per_user: BudgetLimits = Field(
        default=(),
        description="What each user may send and spend, such as `500 messages/day`, `2000000 tokens/month`, "
        "`5 usd/month`, `100000 tokens/minute`, and `3 turns` without an answer at once.",
    )
    limits_per_token: TokenLimits = Field(
        default=(),
        description="The same for each token but the gateway's own; here also `20 messages/minute`.",
    )
    limits_global: BudgetLimits = Field(default=(), description="The same for all together.")
    prices: OwnPrices = Field(
        default=(),
        description="Prices of models in dollars per million input and output tokens, such as "
        "`openai-chat:my-model 0.15 0.60`; they stand above those that are known.",
    )
    max_output_tokens: Whole = Field(
        default=4096,
        ge=1,
        le=1_000_000,
        description="How many tokens a model may answer with in one call; it holds, and is held back, where "
        "tokens or money are limited.",
    )
    max_response_bytes: Whole = Field(
        default=1_048_576,
        ge=1_024,
        le=1_073_741_824,
        description="Bytes of text, thinking and tool calls in one response of a model; a larger response is "
        "cut off, and its turn fails.",
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
    turn_model_calls: Whole = Field(
        default=50,
        ge=1,
        le=1000,
        description="How often one turn may ask the model, in all its attempts; then it fails.",
    )
    turn_tool_calls: Whole = Field(
        default=100, ge=1, le=10_000, description="How many tools one turn may call; then it fails."
    )
    turn_tokens: Whole = Field(
        default=0, ge=0, le=1_000_000_000, description="How many tokens one turn may take; 0 lifts the limit."
    )
    concurrency: Whole = Field(
        default=100, ge=1, le=10_000, description="How many turns run at once; the others wait for a place."
    )
    queue_per_session: Whole = Field(
        default=20,
        ge=1,
        le=10_000,
        description="Messages of one session that may have no answer yet; more are refused with 429.",
    )
    queue_per_user: Whole = Field(
        default=50,
        ge=1,
        le=10_000,
        description="Messages of one user that may have no answer yet; more are refused with 429.",
    )
    queue: Whole = Field(
        default=1000,
        ge=1,
        le=100_000,
        description="Messages in all that may have no answer yet; more are refused with 503.",
    )
    schedules_per_user: Whole = Field(
        default=50,
        ge=0,
        le=10_000,
        description="Reminders and scheduled tasks that one user may have that have not ended; 0 allows none.",
    )
    schedule_min_minutes: Whole = Field(
        default=5,
        ge=1,
        le=1440,
        description="Minutes that must lie between two times of a schedule with a rule, at least.",
    )
    schedule_firings_per_day: Whole = Field(
        default=300,
        ge=1,
        le=100_000,
        description="How often one user's schedules may be fired in a day (UTC); more are missed.",
    )
    max_crashes: Whole = Field(
        default=3,
        ge=1,
        le=1000,
        description="After so many deaths of the gateway alone with one message, that message is given up.",
    )
    drain: Whole = Field(
        default=30,
        ge=0,
        le=3600,
        description="Seconds that running turns get when the gateway is stopped; the next start goes on with "
        "the rest.",
    )
    tools: Functions = Field(
        default=(),
        description="Python functions of your own that the agent may call, each as `package.module:function`.",
    )
    permissions: PermissionRules = Field(
        default=(),
        description="Which tools may run, for whom: a table for each rule, `[[permissions]]`, of which the "
        "first that fits holds; without one the tool's own default. `ask` has somebody approve each call.",
    )
    approval_minutes: Whole = Field(
        default=60,
        ge=1,
        le=10_080,
        description="Minutes after which a call that nobody approved is denied.",
    )
    mcp: McpTables = Field(
        default={},
        description="The MCP servers whose tools the agent may use, a table for each: `[mcp.time]` with "
        '`command` or `url`. A value such as `"$API_KEY"` is taken from that environment variable.',
    )
    mcp_config: OptionalFile = Field(
        default=None,
        description="A JSON file with more MCP servers, under `mcpServers` as other clients keep them.",
    )
    web_allow: Hosts = Field(
        default=(),
        description="Hosts that the agent may fetch from although they are not on the public internet, such "
        "as a wiki of yours, or are this machine or on a network that it is connected to.",
    )
    web_deny: Hosts = Field(
        default=(), description="Hosts that the agent never fetches from, with everything below them."
    )
    search: Annotated[Literal["none", "searxng", "brave", "tavily"], BeforeValidator(lower)] = Field(
        default="none", description="The service by which the agent searches the web."
    )
    search_url: BaseUrl = Field(
        default=None,
        description="The address of your SearXNG instance, or of a proxy before another service; it may be a "
        "private one.",
    )
    search_api_key: Secret = Field(default=None, description="The key for the search service.")
    workspace_megabytes: Whole = Field(
        default=100, ge=1, le=1_000_000, description="How much one user may keep in files of the agent's."
    )
    workspace_files: Whole = Field(
        default=1000, ge=1, le=100_000, description="How many files one user may keep."
    )
    connectors: ConnectorTables = Field(
        default={},
        description="The chat platforms to connect to, a table for each: `[connectors.telegram]`. A value "
        'such as `"$BOT_TOKEN"` is taken from that environment variable.',
    )
    hooks_port: Whole = Field(
        default=0,
        ge=0,
        le=65535,
        description="The port on which platforms that call the gateway reach it, at `/hooks/{account}`, and "
        "nothing else is served; 0 is none.",
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
