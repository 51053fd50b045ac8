"""Engines that say with which sizes they capture and replay, without ``cgtool.note`` in them.

An adapter names a method of an engine that knows the sizes of the batch which is computed next.
What it returns is noted as the program itself would note it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from cgtool.recorder.notes import Values, note_alone
from cgtool.torch_compat.patches import Patches


class Adapter(NamedTuple):
    """A method of an engine. A version of the engine that has no such method says nothing."""

    module: str
    owner: str
    method: str
    sizes: Callable[..., Values | None]
    """Called with what the method returned, and with its arguments: what to note for the next
    capture or replay of the thread."""


def follow_engine(adapter: Adapter, patches: Patches, say: Callable[[str], None]) -> None:
    """Note what an engine does from the import of its module on, until ``patches`` are undone, or
    until it does something else than is known: ``say`` is called with the reason, and the engine
    goes on."""
    failed: list[Exception] = []

    def call(original: Any, *args: Any, **kwargs: Any) -> Any:
        result = original(*args, **kwargs)
        if not failed:
            try:
                sizes = adapter.sizes(result, *args, **kwargs)
            except Exception as error:
                failed.append(error)
                method = f"{adapter.module}.{adapter.owner}.{adapter.method}"
                say(f"the sizes of {method} are not noted: {type(error).__name__}: {error}")
            else:
                if sizes is not None:
                    note_alone(sizes)
        return result

    patches.wrap_later(adapter.module, f"{adapter.owner}.{adapter.method}", call)


# --- transformers' continuous batching: a graph for each padded number of tokens and cache entries

_BATCHING = "transformers.generation.continuous_batching"


def _padded(
    result: tuple[int, int], _runner: Any, num_q_tokens: int, max_kv_read: int, *_: Any, **__: Any
) -> Values | None:
    """Sizes from the result of ``maybe_pad_inputs``."""
    return _padded_sizes((num_q_tokens, max_kv_read), result)


def _passed(_result: Any, batch: Any, *args: Any, **_: Any) -> Values | None:
    """Sizes from ``get_model_kwargs(padded_q_size, padded_kv_cache_size)``, before there was
    ``maybe_pad_inputs``."""
    tokens = getattr(batch, "actual_query_length", None)
    read = getattr(batch, "actual_read_sizes", None)
    if not tokens or not read or len(args) != 2 or not args[0]:
        return None
    return _padded_sizes((tokens, max(read)), args)


def _padded_sizes(needed: tuple[int, int], padded: tuple[int, ...]) -> Values:
    sizes: Values = {"tokens": needed[0], "padded_tokens": padded[0]}
    if padded[1]:  # decoding reads the cache by its blocks, whatever their number
        sizes |= {"cache": needed[1], "padded_cache": padded[1]}
    return sizes


# --- transformers' `generate` with a static cache: attention reads all of it, however full it is


def _filled(result: dict[str, Any], _model: Any, input_ids: Any, *_: Any, **__: Any) -> Any:
    """Sizes from ``prepare_inputs_for_generation``, whose ``input_ids`` are the whole text until
    now."""
    cache: Any = result.get("past_key_values")
    if not getattr(cache, "is_compileable", False):
        return None
    rows, filled = input_ids.shape[:2]
    # Until 5.17, where that is deprecated, the second is the name.
    length = getattr(cache, "get_max_length", None) or cache.get_max_cache_shape
    return {"rows": rows, "cache": filled, "padded_cache": length()}


ADAPTERS = (
    Adapter(f"{_BATCHING}.model_runner", "ModelRunner", "maybe_pad_inputs", _padded),
    Adapter(f"{_BATCHING}.continuous_api", "ContinuousBatchProcessor", "maybe_pad_inputs", _padded),
    Adapter(f"{_BATCHING}.input_outputs", "ContinuousBatchingIOs", "get_model_kwargs", _passed),
    Adapter(
        "transformers.generation.utils",
        "GenerationMixin",
        "prepare_inputs_for_generation",
        _filled,
    ),
)
