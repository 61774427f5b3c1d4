"""Every setting of the gateway: its name, bounds, default and description."""

from __future__ import annotations

from typing import Annotated, Literal

import platformdirs
from pydantic import BaseModel, BeforeValidator, ConfigDict, Field

from torana.config.fields import (
    BaseUrl,
    BudgetLimits,
    ClusterName,
    ConnectorTables,
    DatabaseUrl,
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
    RedisUrl,
    Secret,
    Text,
    TokenLimits,
    ToolPatterns,
    Whole,
    Zone,
    lower,
    system_timezone,
)

#: The prefix of every environment variable of the gateway.
PREFIX = "TORANA_"

#: The settings that ``torana serve`` also accepts as flags. No secret is one of them.
FLAGS = frozenset({"host", "port", "data_dir", "skills_dir", "model"})

#: Secrets: never shown in messages, by ``config show`` or in logs.
SECRETS = frozenset({"gateway_token", "database_url", "redis_url", "model_api_key", "search_api_key"})

#: Tables that contain secrets: only the names of their entries are shown.
TABLES = frozenset({"connectors", "mcp"})


class Settings(BaseModel):
    """The operator's settings: validated, complete and frozen.

    ``load`` builds them from flags, environment and files. An object that is built directly has only its
    arguments and the defaults.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, hide_input_in_errors=True, validate_default=True)

    host: Host = "127.0.0.1"
    """The address to listen on. An address that other machines can reach requires `gateway_token`."""
    port: Annotated[Whole, Field(ge=1, le=65535)] = 18789
    """The TCP port to listen on."""
    gateway_token: Secret = None
    """The token that every request except `GET /health` must carry. It has at least 16 characters if other
    machines can reach the gateway.
    """
    allow_open: bool = False
    """Allow an address that other machines can reach without a token. Everyone who reaches it can then use the
    agent.
    """
    allowed_hosts: Hosts = ()
    """Host names that a gateway without a token accepts besides the names of this machine. Add the name that
    your proxy or browser uses.
    """
    trusted_proxies: Networks = ()
    """Addresses of reverse proxies whose `X-Forwarded-For` header is trusted. By default none is trusted."""
    cors_origins: Origins = ()
    """Origins of web pages that may call the gateway from a browser (CORS)."""
    data_dir: Directory = Field(default_factory=lambda: platformdirs.user_data_path("torana"))
    """The directory of the database, the logs and the installed skills. Only one gateway can use it at a time.
    """
    database_url: DatabaseUrl = None
    """The address of a PostgreSQL database to use instead of `torana.db` in the data directory. Only one
    gateway can use it at a time, unless `replicas` is true.
    """
    replicas: bool = False
    """Let several gateways use the PostgreSQL database at the same time. Set it for all of them."""
    cluster: ClusterName = None
    """The name of this deployment, such as `production`. The first start stores it in the PostgreSQL database,
    which then refuses gateways with another name or without a name.
    """
    redis_url: RedisUrl = None
    """The address of a Redis or Valkey server that all replicas share. It counts messages for the rate limits
    of all replicas, carries the events of running turns from one replica to another, and may lose its data.
    """
    skills_dir: Directory = Field(default_factory=lambda checked: checked["data_dir"] / "skills")
    """The directory of your own skills, with one folder for each skill."""
    model: Models = ("builtin",)
    """The language model. With several models, each is the fallback for the models before it. `builtin` needs
    no key.
    """
    model_base_url: BaseUrl = None
    """The address of an OpenAI-compatible server to use instead of the provider's own server. With it,
    `openai:` means `openai-chat:`.
    """
    model_api_key: Secret = None
    """The API key of the model's provider. By default the provider's own variable is used, such as
    `OPENAI_API_KEY`.
    """
    model_files: FileKinds = ("text",)
    """The kinds of files that the model receives: `text`, and `image` and `pdf` for a model that accepts them;
    `builtin` receives none. The model receives only the names of other files from chat platforms.
    """
    embedding_model: EmbeddingModel = None
    """The embedding model that finds memories by meaning. Without it memories are found by words only.
    `model_base_url` and `model_api_key` also apply to it if it has the same provider as the model.
    """
    persona: Text = (
        "You are a helpful assistant. Answer briefly and plainly, in the language of the question. "
        "Use a tool where it knows better than you, and say so when you do not know."
    )
    """The instructions at the start of every conversation."""
    timezone: Zone = Field(default_factory=system_timezone)
    """The time zone in which the agent reads and writes times."""
    history_messages: Annotated[Whole, Field(ge=1, le=1000)] = 40
    """The number of a session's newest messages that the model receives. Fewer messages cost less; more
    messages give more context.
    """
    context_window: Annotated[Whole, Field(ge=0, le=100_000_000)] = 0
    """The context window of the language model in tokens. Requests are shortened to fit into it, with room for
    the answer. 0 asks the model's server, or uses the known window of a hosted model.
    """
    compact: bool = True
    """Let the model summarise the messages of a long session that it no longer receives. `builtin` never does.
    """
    compact_percent: Annotated[Whole, Field(ge=0, le=100)] = 50
    """The maximum share of a session's tokens that its summaries may use, in percent. A summary that would
    exceed it is left out. 0 allows none.
    """
    session_days: Annotated[Whole, Field(ge=0, le=36_500)] = 0
    """Days without a message or reply after which a session is deleted. 0 keeps all sessions."""
    recall_in_rooms: bool = False
    """Recall a user's private memories also in a channel with several users. The other users can read the
    answer.
    """
    rate_per_user: Annotated[Whole, Field(ge=0, le=100_000)] = 20
    """Messages that one user may send in a minute. 0 disables the limit."""
    rate_global: Annotated[Whole, Field(ge=0, le=100_000)] = 100
    """Messages that all users together may send in a minute. 0 disables the limit."""
    limits_per_user: BudgetLimits = ()
    """Limits for each user, such as `500 messages/day`, `2000000 tokens/month`, `5 usd/month`, `100000
    tokens/minute`, and `3 turns` (unanswered messages at a time).
    """
    limits_per_token: TokenLimits = ()
    """Limits for each created token (not the gateway token). Here `20 messages/minute` is allowed too."""
    limits_global: BudgetLimits = ()
    """Limits for the whole gateway."""
    prices: OwnPrices = ()
    """Prices of models in dollars per million input and output tokens, such as `openai-chat:my-model 0.15
    0.60`. They replace known prices.
    """
    max_output_tokens: Annotated[Whole, Field(ge=1, le=1_000_000)] = 4096
    """The maximum number of output tokens of one model call. It applies, and is reserved before each call, if
    tokens or money are limited.
    """
    max_response_bytes: Annotated[Whole, Field(ge=1_024, le=1_073_741_824)] = 1_048_576
    """The maximum number of bytes of text, thinking and tool calls in one model response, and of text in all
    responses of a turn. Their thinking and tool calls may have four times as many together. A larger response
    is cut off, and its turn fails.
    """
    wait: Annotated[Whole, Field(ge=1, le=86_400)] = 300
    """Seconds that a request waits for its answer before it gets status 504. The turn continues."""
    turn_timeout: Annotated[Whole, Field(ge=1, le=86_400)] = 600
    """Seconds after which a running turn is stopped and fails."""
    turn_model_calls: Annotated[Whole, Field(ge=1, le=1000)] = 50
    """The maximum number of model calls of one turn, in all its attempts. After that the turn fails."""
    turn_tool_calls: Annotated[Whole, Field(ge=1, le=10_000)] = 100
    """The maximum number of tool calls of one turn. After that the turn fails."""
    turn_tokens: Annotated[Whole, Field(ge=0, le=1_000_000_000)] = 0
    """The maximum number of tokens of one turn. 0 disables the limit."""
    concurrency: Annotated[Whole, Field(ge=1, le=10_000)] = 100
    """The maximum number of turns that run at a time. The others wait, and users get free slots in turn. A
    tenth of the slots, rounded down, is kept for users without a running turn.
    """
    queue_per_session: Annotated[Whole, Field(ge=1, le=10_000)] = 20
    """The maximum number of unanswered messages of one session. More are refused with status 429."""
    queue_per_user: Annotated[Whole, Field(ge=1, le=10_000)] = 50
    """The maximum number of unanswered messages of one user, or of a created token that names no user. More are
    refused with status 429.
    """
    queue: Annotated[Whole, Field(ge=1, le=100_000)] = 1000
    """The maximum number of unanswered messages of the whole gateway. More are refused with status 503."""
    schedules_per_user: Annotated[Whole, Field(ge=0, le=10_000)] = 50
    """The maximum number of active reminders and scheduled tasks of one user. 0 allows none."""
    schedule_min_minutes: Annotated[Whole, Field(ge=1, le=1440)] = 5
    """The minimum number of minutes between two runs of a recurring schedule."""
    schedule_firings_per_day: Annotated[Whole, Field(ge=1, le=100_000)] = 300
    """The maximum number of runs of one user's schedules in a day (UTC). Further runs are skipped."""
    max_crashes: Annotated[Whole, Field(ge=1, le=1000)] = 3
    """The number of crashes while a message is processed alone before the message is marked as failed."""
    drain: Annotated[Whole, Field(ge=0, le=3600)] = 30
    """Seconds that running turns get to finish when the gateway is stopped. The next start continues the
    others.
    """
    drain_delay: Annotated[Whole, Field(ge=0, le=3600)] = 0
    """Seconds for which `/health` reports `draining` before the gateway stops accepting messages, so that a
    load balancer sends no more of them.
    """
    tools: Functions = ()
    """Your own Python functions that the agent may call, each as `package.module:function`."""
    tools_pinned: ToolPatterns = ()
    """Names or patterns of tools that every request to a language model lists, such as `calculate` or
    `github_*`. The model opens the others when it needs them. `*` lists all.
    """
    tools_direct: Annotated[Whole, Field(ge=0, le=1_000)] = 10
    """The number of tools of MCP servers and of your own functions that requests list directly. If there are
    more, the model searches them with `find_tools`.
    """
    permissions: PermissionRules = ()
    """Rules for tools, each a table `[[permissions]]`. The first matching rule applies; without a match, the
    tool's own default applies. With `ask`, a person approves each call.
    """
    approval_minutes: Annotated[Whole, Field(ge=1, le=10_080)] = 60
    """Minutes after which a call without an approval is denied."""
    mcp: McpTables = {}
    """The MCP servers whose tools the agent may use, each a table such as `[mcp.time]` with `command` or `url`.
    A value such as `"$API_KEY"` is read from that environment variable.
    """
    mcp_config: OptionalFile = None
    """A JSON file with more MCP servers under `mcpServers`, in the format of other clients."""
    web_allow: Hosts = ()
    """Hosts that the agent may fetch from although they are not on the public internet: this machine, or hosts
    of a private network such as a wiki.
    """
    web_deny: Hosts = ()
    """Hosts that the agent never fetches from, including their subdomains."""
    search: Annotated[Literal["none", "searxng", "brave", "tavily"], BeforeValidator(lower)] = "none"
    """The service with which the agent searches the web."""
    search_url: BaseUrl = None
    """The address of your SearXNG instance, or of a proxy in front of another service. It may be a private
    address.
    """
    search_api_key: Secret = None
    """The API key of the search service."""
    workspace_megabytes: Annotated[Whole, Field(ge=1, le=1_000_000)] = 100
    """Megabytes of files that the agent may store for one user."""
    workspace_files: Annotated[Whole, Field(ge=1, le=100_000)] = 1000
    """The maximum number of files that the agent stores for one user."""
    connectors: ConnectorTables = {}
    """The chat platforms to connect to, each a table such as `[connectors.telegram]`. A value such as
    `"$BOT_TOKEN"` is read from that environment variable.
    """
    hooks_port: Annotated[Whole, Field(ge=0, le=65535)] = 0
    """The port for calls from chat platforms at `/hooks/{account}`. The port serves nothing else. 0 disables
    it.
    """
    trace_endpoint: BaseUrl = None
    """The address of an OpenTelemetry collector that receives traces over OTLP/HTTP, such as
    `http://127.0.0.1:4318`. It needs the extra `otel`.
    """
    trace_content: bool = False
    """Add the texts of messages, and the arguments and results of tools, to the traces."""
    log_level: Annotated[Literal["debug", "info", "warning", "error"], BeforeValidator(lower)] = "info"
    """The lowest level of events that are logged."""
    log_format: Annotated[Literal["auto", "console", "json"], BeforeValidator(lower)] = "auto"
    """The format of logs: readable lines (`console`), JSON lines (`json`), or readable lines on a terminal and
    JSON otherwise (`auto`).
    """


def variable(name: str) -> str:
    """Return the environment variable of a setting: ``TORANA_PORT`` for ``port``."""
    return f"{PREFIX}{name.upper()}"


def flag(name: str) -> str:
    """Return the command line flag of a setting: ``--data-dir`` for ``data_dir``."""
    return f"--{name.replace('_', '-')}"
