"""What a started engine says of itself: model, tokenizer, renderer, traits."""

from collections.abc import Callable, Sequence
from typing import Any

from tokenizers import Tokenizer

from headrace_wire.continuation import EngineTraits
from headrace_wire.messages import ChatTurn
from headrace_worker.engine import EngineInfo, EngineRefusedError, RequestRefusedError
from headrace_worker.registration import model_assets
from headrace_worker.vllm_engine.adapters import max_adapters
from headrace_worker.vllm_engine.refusals import message_of


def describe(llm: Any, *, model_name: str, draws_by_position: bool) -> EngineInfo:  # noqa: ANN401  vLLM is untyped
    """Return what the streams need to know; renders probe conversations, so call it in a thread.

    Raises:
        EngineRefusedError: this model cannot be served.
    """
    model = llm.model_config
    hf_tokenizer = llm.get_tokenizer()
    backend = getattr(hf_tokenizer, "backend_tokenizer", None)
    if backend is None:
        raise EngineRefusedError(f"{model_name} has no fast tokenizer (tokenizer.json).")
    tokenizer_json: str = backend.to_str()
    renderer = VllmRenderer(llm)
    template = hf_tokenizer.get_chat_template() if hf_tokenizer.chat_template else ""
    special = {name: text for name, text in hf_tokenizer.special_tokens_map.items() if isinstance(text, str)}
    import vllm  # noqa: PLC0415

    assets = model_assets(
        identity=[
            "vllm",
            vllm.__version__,
            model.model,
            str(model.revision),
            str(model.dtype),
            model.quantization or "",
        ],
        tokenizer_json=tokenizer_json.encode(),
        chat_template=template,
        special_tokens=special,
        renderer=renderer,
        max_model_len=model.max_model_len,
    )
    # Our own copy decodes: the renderer's may be locked by a thread that renders.
    return EngineInfo(
        model_name,
        assets,
        Tokenizer.from_str(tokenizer_json),
        renderer,
        model.max_model_len,
        llm.vllm_config.scheduler_config.max_num_seqs,
        _traits(llm.vllm_config, draws_by_position=draws_by_position),
        _cache_tokens(llm.vllm_config.cache_config),
        max_adapters(llm.vllm_config),
    )


def _cache_tokens(cache: Any) -> int:  # noqa: ANN401  vLLM is untyped
    return int((cache.num_gpu_blocks or 0) * cache.block_size) if cache.enable_prefix_caching else 0


def _traits(config: Any, *, draws_by_position: bool) -> EngineTraits:  # noqa: ANN401  vLLM is untyped
    import torch  # noqa: PLC0415
    from vllm import envs  # noqa: PLC0415

    is_float32 = config.model_config.dtype == torch.float32 and not config.model_config.quantization
    # Rounding a key or value to fewer digits turns a difference in the last digit into one that chooses otherwise.
    is_float32 = is_float32 and config.cache_config.cache_dtype == "auto"
    return EngineTraits(
        is_batch_invariant=is_float32 or bool(envs.VLLM_BATCH_INVARIANT),
        draws_by_position=draws_by_position or config.use_v2_model_runner,
    )


class VllmRenderer:
    """Renders with vLLM's own renderer; called from one thread at a time."""

    def __init__(self, llm: Any) -> None:  # noqa: ANN401  vLLM is untyped
        self._renderer = llm.renderer

    def render(self, conversation: Sequence[ChatTurn]) -> list[int]:
        """Return the ids of a conversation with the generation prompt at its end."""
        from vllm.renderers.params import ChatParams  # noqa: PLC0415

        messages = [{"role": turn.role, "content": turn.content} for turn in conversation]
        params = ChatParams(chat_template_kwargs={"add_generation_prompt": True, "continue_final_message": False})
        return self._ids(lambda: self._renderer.render_chat([messages], params)[1])

    def tokenize(self, text: str) -> list[int]:
        """Return the ids of a plain prompt."""
        return self._ids(lambda: self._renderer.render_cmpl([{"prompt": text}]))

    def _ids(self, render: Callable[[], Any]) -> list[int]:
        try:
            (rendered,) = render()
        except Exception as error:  # template errors come as they are: jinja2's, transformers', vLLM's
            message = message_of(error)
            code = "context_length_exceeded" if "maximum context length" in message else "invalid_request_error"
            raise RequestRefusedError(code, message, "messages") from error
        return list(rendered["prompt_token_ids"])
