"""The model: one request, one streamed answer."""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing, asynccontextmanager
from typing import Any, cast

import httpx2
from pydantic_ai.exceptions import UnexpectedModelBehavior
from pydantic_ai.messages import ModelMessage, ModelResponse
from pydantic_ai.models import (
    Model,
    ModelRequestParameters,
    StreamedResponse,
    check_allow_model_requests,
)
from pydantic_ai.profiles.openai import OpenAIModelProfile
from pydantic_ai.settings import ModelSettingName, ModelSettings
from pydantic_ai.tools import RunContext, ToolDefinition

from torana.models.openai_compatible.http import send, translate_errors
from torana.models.openai_compatible.messages import write_messages
from torana.models.openai_compatible.provider import ChatProvider
from torana.models.openai_compatible.stream import ChatStream, read_chunks


class ChatModel(Model[httpx2.AsyncClient]):
    """A language model of a server with OpenAI's Chat Completions.

    Of a request's settings, ``max_tokens``, ``extra_body``, ``timeout`` and ``max_retries`` have an effect.
    """

    unsupported_settings = frozenset[ModelSettingName](
        (
            *("top_k", "temperature", "top_p", "parallel_tool_calls", "seed", "presence_penalty"),
            *("frequency_penalty", "logit_bias", "stop_sequences", "extra_headers", "service_tier"),
        )
    )
    _unsupported_file_inputs = frozenset({"video"})
    _relocates_tool_files = True

    def __init__(self, model_name: str, *, provider: ChatProvider) -> None:
        self._model_name = model_name
        self._service = self._provider = provider
        super().__init__()

    @property
    def model_name(self) -> str:
        return self._model_name

    @property
    def system(self) -> str:
        return self._service.name

    @property
    def base_url(self) -> str:
        return self._service.base_url

    async def request(
        self,
        messages: list[ModelMessage],
        model_settings: ModelSettings | None,
        model_request_parameters: ModelRequestParameters,
    ) -> ModelResponse:
        async with self.request_stream(messages, model_settings, model_request_parameters) as stream:
            async for _ in stream:
                pass
            return stream.get()

    @asynccontextmanager
    async def request_stream(
        self,
        messages: list[ModelMessage],
        model_settings: ModelSettings | None,
        model_request_parameters: ModelRequestParameters,
        run_context: RunContext[Any] | None = None,
    ) -> AsyncGenerator[StreamedResponse]:
        """Open a stream. Its first chunk is awaited, so that another model can still replace this one."""
        check_allow_model_requests()
        settings, parameters = self.prepare_request(model_settings, model_request_parameters)
        namespace = self._service.model_id_namespace
        with translate_errors(self._model_name, namespace):
            request = self._request(self._body(messages, settings or {}, parameters), settings or {})
            retries = (settings or {}).get("max_retries", self._service.retries)
            response = await send(self._service.client, request, retries=retries)
        try:
            async with aclosing(read_chunks(response, self._model_name)) as chunks:
                with translate_errors(self._model_name, namespace):
                    first = await anext(chunks, None)
                if first is None:
                    raise UnexpectedModelBehavior("Streamed response ended without content or tool calls")
                yield ChatStream(
                    model_request_parameters=parameters,
                    first=first,
                    rest=chunks,
                    response=response,
                    profile=cast("OpenAIModelProfile", self.profile),
                    provider=self._service.name,
                    namespace=namespace,
                    url=self.base_url,
                    model=self._model_name,
                )
        finally:
            await response.aclose()

    async def call(self, method: str, url: str, *, body: Mapping[str, Any] | None = None) -> object:
        """Send a request other than a chat completion; return the JSON of the response.

        Raises ``httpx2.HTTPError`` and ``ValueError``.
        """
        headers = {"Authorization": f"Bearer {self._service.api_key}"}
        response = await self._service.client.request(method, url, json=body, headers=headers)
        return response.raise_for_status().json()

    def _request(self, body: Mapping[str, Any], settings: ModelSettings) -> httpx2.Request:
        headers = {
            "Accept": "application/json",
            "Authorization": f"Bearer {self._service.api_key}",
            "Content-Type": "application/json",
        }
        content = json.dumps(body, ensure_ascii=False, separators=(",", ":"), allow_nan=False).encode()
        return self._service.client.build_request(
            "POST",
            f"{self.base_url}chat/completions",
            headers=headers,
            content=content,
            timeout=cast("Any", settings.get("timeout", httpx2.USE_CLIENT_DEFAULT)),
        )

    def _body(
        self, messages: list[ModelMessage], settings: ModelSettings, parameters: ModelRequestParameters
    ) -> dict[str, Any]:
        profile = cast("OpenAIModelProfile", self.profile)
        instructions = self._get_instruction_parts(messages, parameters) or []
        body: dict[str, Any] = {
            "model": self._model_name,
            "messages": write_messages(self, messages, instructions),
            "stream": True,
            "stream_options": {"include_usage": True},
        }
        if limit := settings.get("max_tokens"):
            new = profile.get("openai_chat_supports_max_completion_tokens", True)
            body["max_completion_tokens" if new else "max_tokens"] = limit
        if parameters.function_tools:
            body["tools"] = [_write_tool(tool, profile) for tool in parameters.declared_tool_defs.values()]
            body["tool_choice"] = "auto"
        return {**body, **cast("Mapping[str, Any]", settings.get("extra_body") or {})}


def _write_tool(tool: ToolDefinition, profile: OpenAIModelProfile) -> dict[str, Any]:
    function: dict[str, Any] = {
        "name": tool.name,
        "description": tool.description or "",
        "parameters": tool.parameters_json_schema,
    }
    if tool.strict and profile.get("openai_supports_strict_tool_definition", True):
        function["strict"] = tool.strict
    return {"type": "function", "function": function}
