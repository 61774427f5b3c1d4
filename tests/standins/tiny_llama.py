"""The engine of llama.cpp with a tiny model of random weights, made when a test runs.

The engine is that of ik_llama.cpp, a fork with a prebuilt wheel. The tokenizer is trained on texts of this
repository, so that its tokens resemble those of real models. The answers have no sense; the engine counts,
evaluates and generates tokens as for any other model.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterable
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from torana.testing import ChatRequest
from torana.testing.openai_server import Reply

_MISSING = "the engine is missing: pip install ik-llama-cpp-python==0.1.5 gguf==0.19.0"

_MERGES = 1_500
_WORD = re.compile(r" ?[^\W\d_]+| ?\d| ?[^\s\w]+|\s+")

_EMBEDDING, _FORWARD, _HEADS = 32, 64, 2

#: The length of each answer in tokens.
_ANSWER = 24


class TinyLlama:
    """Answers chat requests with llama.cpp; ``tokens_of`` and ``reply`` are for ``OpenAIStandIn``."""

    def __init__(self, *, path: Path, window: int) -> None:
        library = pytest.importorskip("ik_llama_cpp", reason=_MISSING)
        self._llama: Any = library.IkLlama(str(path), n_ctx=window, n_threads=1, verbose=False)
        self._window = window

    def tokens_of(self, request: ChatRequest) -> int:
        """Return the engine's number of tokens of a request."""
        return len(self._tokenize(request))

    def reply(self, request: ChatRequest) -> Reply:
        """Evaluate the request, which fails beyond the window, and generate an answer."""
        tokens = self._tokenize(request)
        said = self._llama.generate(tokens, max_tokens=min(_ANSWER, self._window - len(tokens)))
        usage = {"prompt_tokens": len(tokens), "completion_tokens": len(said)}
        return Reply(answer=self._llama.detokenize(said) or "…", usage=usage)

    def _tokenize(self, request: ChatRequest) -> list[int]:
        return self._llama.tokenize(_prompt(request))


def write_model(path: Path, texts: Iterable[str]) -> None:
    """Write a model of random weights, whose tokenizer is trained on the texts."""
    np = pytest.importorskip("numpy")
    gguf = pytest.importorskip("gguf", reason=_MISSING)
    tokens, merges = _trained(texts)
    writer = gguf.GGUFWriter(str(path), "llama")
    writer.add_context_length(8_192)
    writer.add_embedding_length(_EMBEDDING)
    writer.add_block_count(1)
    writer.add_feed_forward_length(_FORWARD)
    writer.add_head_count(_HEADS)
    writer.add_head_count_kv(_HEADS)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_vocab_size(len(tokens))
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("gpt-2")
    writer.add_token_list(tokens)
    writer.add_token_types([3 if token == "<end>" else 1 for token in tokens])
    writer.add_token_merges(merges)
    writer.add_bos_token_id(len(tokens) - 1)
    writer.add_eos_token_id(len(tokens) - 1)
    random = np.random.default_rng(1)

    def add(name: str, *shape: int) -> None:
        writer.add_tensor(f"{name}.weight", (random.standard_normal(shape) * 0.1).astype(np.float32))

    add("token_embd", len(tokens), _EMBEDDING)
    add("output", len(tokens), _EMBEDDING)
    for name in ("output_norm", "blk.0.attn_norm", "blk.0.ffn_norm"):
        add(name, _EMBEDDING)
    for name in ("attn_q", "attn_k", "attn_v", "attn_output"):
        add(f"blk.0.{name}", _EMBEDDING, _EMBEDDING)
    add("blk.0.ffn_gate", _FORWARD, _EMBEDDING)
    add("blk.0.ffn_up", _FORWARD, _EMBEDDING)
    add("blk.0.ffn_down", _EMBEDDING, _FORWARD)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def _prompt(request: ChatRequest) -> str:
    """Return the request as one text, as a chat template does it."""
    tools = "".join(json.dumps(tool.model_dump(mode="json")) + "\n" for tool in request.tools)
    said = "".join(f"<|{message['role']}|>\n{json.dumps(message)}\n" for message in request.messages)
    return f"{tools}{said}<|assistant|>\n"


def _trained(texts: Iterable[str]) -> tuple[list[str], list[str]]:
    """Return the tokens and the merges of a byte-pair encoding."""
    letters = _letters()
    counts = Counter(word for text in texts for word in _WORD.findall(text))
    words = [[letters[byte] for byte in word.encode()] for word, _ in counts.most_common(2_000)]
    weights = [count for _, count in counts.most_common(2_000)]
    tokens = sorted(letters.values())
    merges: list[str] = []
    for _ in range(_MERGES):
        pairs: Counter[tuple[str, str]] = Counter()
        for word, weight in zip(words, weights, strict=True):
            for pair in pairwise(word):
                pairs[pair] += weight
        if not pairs:
            break
        first, second = min(pairs, key=lambda pair: (-pairs[pair], pair))
        merges.append(f"{first} {second}")
        tokens.append(first + second)
        words = [_merged(word, first, second) if first in word else word for word in words]
    return [*tokens, "<end>"], merges


def _merged(word: list[str], first: str, second: str) -> list[str]:
    merged: list[str] = []
    for letter in word:
        if merged and merged[-1] == first and letter == second:
            merged[-1] = first + second
        else:
            merged.append(letter)
    return merged


def _letters() -> dict[int, str]:
    """Return GPT-2's printable character for each byte."""
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [byte for byte in range(256) if byte not in printable]
    return {byte: chr(byte) for byte in printable} | {byte: chr(256 + n) for n, byte in enumerate(others)}
