"""The zero adapter: what requests without an adapter get in a batch with others, on a CPU.

vLLM's kernels for GPUs leave the rows of such requests out. Its CPU operations look their adapter up by number, and the
number of none, -1, is the last one in Python: beside a request that has an adapter, a request without one is computed
with whatever adapter is in the last place. Here such rows go through the first matrix as zeros, so that nothing comes
out of the second one and nothing is added.
"""

from typing import Any


def install() -> None:
    """Give vLLM's CPU operations the zero adapter; again is harmless. Belongs into the process that runs the model."""
    from vllm.lora.punica_wrapper.punica_cpu import PunicaWrapperCPU  # noqa: PLC0415  only where adapters are served

    wrapper = vars(PunicaWrapperCPU)
    prefill, decode = wrapper["_shrink_prefill"], wrapper["_shrink_decode"]
    if prefill.__module__ == __name__:
        return

    def shrink_prefill(self: Any, y: Any, x: Any, w_t_all: Any, scale: float) -> None:  # noqa: ANN401  untyped
        prefill(self, y, x if self.no_lora else _without_base(self, x), w_t_all, scale)

    def shrink_decode(self: Any, y: Any, x: Any, w_t_all: Any, scale: float) -> None:  # noqa: ANN401  untyped
        decode(self, y, _without_base(self, x), w_t_all, scale)

    for name, shrink in (("_shrink_prefill", shrink_prefill), ("_shrink_decode", shrink_decode)):
        setattr(PunicaWrapperCPU, name, shrink)


def _without_base(wrapper: Any, x: Any) -> Any:  # noqa: ANN401  untyped
    """Return the inputs with zeros for the tokens of requests that have no adapter."""
    is_base = wrapper.token_lora_indices < 0
    return x.masked_fill(is_base[: x.shape[0], None], 0.0) if bool(is_base.any()) else x
