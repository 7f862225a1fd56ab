"""Bodies of inference requests: parsed by type, checked by range, reduced to what a worker may be told.

Field names and limits are OpenAI's chat completion fields, and vLLM's extra sampling fields where clients use them.
Unknown fields are ignored, as OpenAI-compatible servers do; known fields that this server cannot honour are refused
rather than silently dropped.
"""

import re
from typing import Any, Literal

import msgspec
from msgspec import Struct

from apps.api.cache_controls import CacheField
from apps.api.schema_limits import check_cost
from apps.api.schema_references import is_endless
from headrace_wire.errors import InvalidRequestError
from headrace_wire.messages import ChatTurn, SamplingParams, StructuredOutput

MAX_STOP_STRINGS = 4
MAX_STOP_LENGTH = 512
MAX_MESSAGES = 4096


class TextPart(Struct, tag_field="type", tag="text"):
    """A part of a message's content."""

    text: str


class ChatMessage(Struct):
    """One message as clients send it."""

    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: str | list[TextPart] | None = None

    def turn(self, index: int) -> ChatTurn:
        """Return the message as text.

        Raises:
            InvalidRequestError: it has no content.
        """
        if self.content is None:
            raise InvalidRequestError("`content` is missing or null.", param=f"messages[{index}].content")
        text = self.content if isinstance(self.content, str) else "".join(part.text for part in self.content)
        return ChatTurn("system" if self.role == "developer" else self.role, text)


class StreamOptions(Struct):
    """Options of a streamed answer."""

    include_usage: bool = False


class JsonSchema(Struct):
    """`response_format.json_schema`."""

    name: str = ""
    schema: dict[str, Any] | None = None


class ResponseFormat(Struct):
    """`response_format`."""

    type: Literal["text", "json_object", "json_schema"]
    json_schema: JsonSchema | None = None


class SamplingFields(Struct, kw_only=True):
    """Sampling fields that the HTTP and the WebSocket interface share."""

    max_tokens: int | None = None
    max_completion_tokens: int | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    min_tokens: int | None = None
    n: int | None = None
    stop: str | list[str] | None = None
    stop_token_ids: list[int] | None = None
    include_stop_str_in_output: bool | None = None
    seed: int | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    repetition_penalty: float | None = None
    logit_bias: dict[str, float] | None = None
    ignore_eos: bool | None = None
    response_format: ResponseFormat | None = None
    logprobs: bool | None = None
    top_logprobs: int | None = None
    tools: list[dict[str, Any]] | None = None
    functions: list[dict[str, Any]] | None = None
    priority: int | None = None
    """Ours: place in a busy queue, 0 first to 3, within what the tenant's plan allows."""
    prompt_cache: str | None = None
    """Ours: name of a prompt cache of the tenant; its messages go before those of the request."""
    cache: CacheField | None = None
    user: str | None = None
    """The caller's end user, whose answers are given to nobody else."""

    def sampling(self) -> SamplingParams:
        """Return the checked sampling parameters; `max_tokens` 0 and `seed` -1 stand for "not named".

        Raises:
            InvalidRequestError: a value is out of range, or a field is not supported.
        """
        self._refuse_unsupported()
        for name, low, high in _RANGES:
            _check_range(name, getattr(self, name), low, high)
        given: dict[str, Any] = {
            "max_tokens": self.max_completion_tokens or self.max_tokens or 0,
            "temperature": self.temperature,
            "top_p": self.top_p,
            "top_k": max(0, self.top_k) if self.top_k is not None else None,
            "min_p": self.min_p,
            "min_tokens": self.min_tokens,
            "presence_penalty": self.presence_penalty,
            "frequency_penalty": self.frequency_penalty,
            "repetition_penalty": self.repetition_penalty,
            "stop": _stop_strings(self.stop),
            "stop_token_ids": _stop_token_ids(self.stop_token_ids),
            "include_stop": self.include_stop_str_in_output,
            "seed": self.seed if self.seed is not None else -1,
            "ignore_eos": self.ignore_eos,
            "logit_bias": _logit_bias(self.logit_bias),
            "structured": _structured(self.response_format),
        }
        return SamplingParams(**{name: value for name, value in given.items() if value is not None})

    def _refuse_unsupported(self) -> None:
        if self.n is not None and self.n != 1:
            raise InvalidRequestError("Only `n` = 1 is supported.", param="n")
        for name in ("logprobs", "top_logprobs", "tools", "functions"):
            if getattr(self, name):
                raise InvalidRequestError(f"`{name}` is not supported.", param=name)


class ChatCompletionRequest(SamplingFields, kw_only=True):
    """`POST /v1/chat/completions`."""

    model: str
    messages: list[ChatMessage]
    stream: bool | None = None
    """OpenAI's clients may send null, which is no."""
    stream_options: StreamOptions | None = None

    def conversation(self) -> list[ChatTurn]:
        """Return the messages as turns.

        Raises:
            InvalidRequestError: there are none, too many, or one without content.
        """
        return conversation_of(self.messages)


_RANGES: tuple[tuple[str, float, float], ...] = (
    ("max_tokens", 1, 2**31 - 1),
    ("max_completion_tokens", 1, 2**31 - 1),
    ("temperature", 0, 2),
    ("top_p", 1e-6, 1),
    ("top_k", -1, 2**31 - 1),
    ("min_p", 0, 1),
    ("min_tokens", 0, 2**31 - 1),
    ("seed", 0, 2**63 - 1),
    ("presence_penalty", -2, 2),
    ("frequency_penalty", -2, 2),
    ("repetition_penalty", 0.01, 10),
)

_decoder = msgspec.json.Decoder(ChatCompletionRequest)
_PATH = re.compile(r" - at `(?:key in )?\$\.?([^`]*)`$")
_MISSING = re.compile(r"missing required field `([^`]+)`")


def parse_chat_completion(body: bytes) -> ChatCompletionRequest:
    """Read a request body.

    Raises:
        InvalidRequestError: not JSON, or a field of the wrong type; `param` names it.
    """
    try:
        return _decoder.decode(body)
    except msgspec.ValidationError as error:
        raise invalid_field(error) from error
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise InvalidRequestError(f"The request body is not valid JSON: {error}.") from error
    except RecursionError as error:
        raise InvalidRequestError("The request body is nested too deeply.") from error


def invalid_field(error: msgspec.ValidationError) -> InvalidRequestError:
    """Turn msgspec's message into ours, with the field's path as `param`."""
    text = str(error)
    path = _PATH.search(text)
    missing = _MISSING.search(text)
    parts = [path[1]] if path and path[1] else []
    if missing:
        parts.append(missing[1])
    problem = _PATH.sub("", text)
    param = ".".join(parts) or None
    return InvalidRequestError(f"Invalid request: {problem}" + (f" (at `{param}`)." if param else "."), param=param)


def conversation_of(messages: list[ChatMessage]) -> list[ChatTurn]:
    """Return messages as turns.

    Raises:
        InvalidRequestError: there are none, too many, or one without content.
    """
    if not messages:
        raise InvalidRequestError("`messages` must hold at least one message.", param="messages")
    if len(messages) > MAX_MESSAGES:
        raise InvalidRequestError(f"`messages` may hold at most {MAX_MESSAGES} messages.", param="messages")
    return [message.turn(index) for index, message in enumerate(messages)]


def _check_range(name: str, value: float | None, low: float, high: float) -> None:
    if value is not None and not low <= value <= high:
        # Not `:g`, which rounds: a limit that is told must be one that is taken.
        raise InvalidRequestError(f"`{name}` must be between {low} and {high}.", param=name)


def _stop_strings(stop: str | list[str] | None) -> tuple[str, ...] | None:
    if stop is None:
        return None
    strings = (stop,) if isinstance(stop, str) else tuple(stop)
    if len(strings) > MAX_STOP_STRINGS:
        raise InvalidRequestError(f"`stop` may hold at most {MAX_STOP_STRINGS} strings.", param="stop")
    if any(not text or len(text) > MAX_STOP_LENGTH for text in strings):
        raise InvalidRequestError(f"Each `stop` string must have 1 to {MAX_STOP_LENGTH} characters.", param="stop")
    return strings


def _stop_token_ids(ids: list[int] | None) -> tuple[int, ...] | None:
    if ids is None:
        return None
    if len(ids) > 256 or any(not 0 <= i < 2**32 for i in ids):
        raise InvalidRequestError("`stop_token_ids` must be up to 256 token ids.", param="stop_token_ids")
    return tuple(ids)


def _logit_bias(bias: dict[str, float] | None) -> dict[int, float] | None:
    if bias is None:
        return None
    if len(bias) > 1024 or any(
        not (key.isascii() and key.isdigit() and len(key) <= 10) or not -100 <= v <= 100 for key, v in bias.items()
    ):
        raise InvalidRequestError("`logit_bias` maps token ids to values from -100 to 100.", param="logit_bias")
    return {int(key): value for key, value in bias.items()}


def _structured(wanted: ResponseFormat | None) -> StructuredOutput | None:
    if wanted is None or wanted.type == "text":
        return None
    if wanted.type == "json_object":
        return StructuredOutput(json_object=True)
    if wanted.json_schema is None or wanted.json_schema.schema is None:
        raise InvalidRequestError("`response_format.json_schema.schema` is missing.", param="response_format")
    if is_endless(wanted.json_schema.schema):
        raise InvalidRequestError(
            "`response_format.json_schema.schema` refers to nothing but itself: no text satisfies it.",
            param="response_format",
        )
    encoded = msgspec.json.encode(wanted.json_schema.schema).decode()
    check_cost(wanted.json_schema.schema, encoded)
    return StructuredOutput(json_schema=encoded)
