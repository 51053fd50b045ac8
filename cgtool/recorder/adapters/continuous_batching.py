"""transformers' continuous batching: a graph for each padded number of tokens and cache entries."""

from __future__ import annotations

from typing import Any

from cgtool.recorder.adapters.adapter import Adapter

_PACKAGE = "transformers.generation.continuous_batching"


def _padded(
    result: tuple[int, int], _runner: Any, num_q_tokens: int, max_kv_read: int, *_: Any, **__: Any
) -> dict[str, float] | None:
    """Of ``maybe_pad_inputs``."""
    return _sizes((num_q_tokens, max_kv_read), result)


def _passed(_result: Any, batch: Any, *args: Any, **_: Any) -> dict[str, float] | None:
    """Of ``get_model_kwargs(padded_q_size, padded_kv_cache_size)``, before there was
    ``maybe_pad_inputs``."""
    tokens = getattr(batch, "actual_query_length", None)
    read = getattr(batch, "actual_read_sizes", None)
    if not tokens or not read or len(args) != 2 or not args[0]:
        return None
    return _sizes((tokens, max(read)), args)


def _sizes(needed: tuple[int, int], padded: tuple[int, ...]) -> dict[str, float]:
    sizes: dict[str, float] = {"tokens": needed[0], "padded_tokens": padded[0]}
    if padded[1]:  # decoding reads the cache by its blocks, whatever their number
        sizes |= {"cache": needed[1], "padded_cache": padded[1]}
    return sizes


ADAPTERS = (
    Adapter(f"{_PACKAGE}.model_runner", "ModelRunner", "maybe_pad_inputs", _padded),
    Adapter(f"{_PACKAGE}.continuous_api", "ContinuousBatchProcessor", "maybe_pad_inputs", _padded),
    Adapter(f"{_PACKAGE}.input_outputs", "ContinuousBatchingIOs", "get_model_kwargs", _passed),
)
