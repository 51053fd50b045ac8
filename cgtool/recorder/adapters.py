"""Engines that say with which sizes they capture and replay, without ``cgtool.note`` in them.

An adapter names a method of an engine that knows the sizes of the batch which is computed next.
What it returns is noted as the program itself would note it.
"""

from __future__ import annotations

import sys
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
    capture, replay or eager step of the thread."""
    before: bool = False
    """The method itself captures or replays: ``sizes`` is called before it, with None."""


def follow_engine(adapter: Adapter, patches: Patches, say: Callable[[str], None]) -> None:
    """Note what an engine does from the import of its module on, until ``patches`` are undone, or
    until it does something else than is known: ``say`` is called with the reason, and the engine
    goes on."""
    failed: list[Exception] = []

    def note(result: Any, *args: Any, **kwargs: Any) -> None:
        try:
            sizes = None if failed else adapter.sizes(result, *args, **kwargs)
        except Exception as error:
            failed.append(error)
            method = f"{adapter.module}.{adapter.owner}.{adapter.method}"
            say(f"the sizes of {method} are not noted: {type(error).__name__}: {error}")
        else:
            if sizes is not None:
                note_alone(sizes)

    def call(original: Any, *args: Any, **kwargs: Any) -> Any:
        if adapter.before:
            note(None, *args, **kwargs)
            return original(*args, **kwargs)
        result = original(*args, **kwargs)
        note(result, *args, **kwargs)
        return result

    patches.wrap_later(adapter.module, f"{adapter.owner}.{adapter.method}", call)


# --- transformers' continuous batching: a graph for each padded number of tokens and cache entries

_BATCHING = "transformers.generation.continuous_batching"


def _padded(
    result: tuple[int, int], _runner: Any, num_q_tokens: int, max_kv_read: int, *_: Any, **__: Any
) -> Values | None:
    """Sizes from the result of ``maybe_pad_inputs``."""
    sizes: Values = {"tokens": num_q_tokens, "padded_tokens": result[0]}
    if result[1]:  # decoding reads the cache by its blocks, whatever their number
        sizes |= {"cache": max_kv_read, "padded_cache": result[1]}
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


# --- vLLM: the wrapper of each captured model, or piece of one, and the batch that it is called for


def _described(_result: None, _wrapper: Any, *_: Any, **__: Any) -> Values | None:
    """Sizes from the batch descriptor of the forward context, which has padded sizes."""
    context = sys.modules["vllm.forward_context"]
    is_there = getattr(context, "is_forward_context_available", lambda: True)
    batch = context.get_forward_context().batch_descriptor if is_there() else None
    if batch is None:
        return None
    sizes: Values = {"tokens": batch.num_tokens}
    for name, field in (("requests", "num_reqs"), ("loras", "num_active_loras")):
        if number := getattr(batch, field, None):
            sizes[name] = number
    return sizes


# --- SGLang: a graph for each padded number of requests; a runner that refuses a batch runs nothing


def _captures(_result: None, _runner: Any, size: int, *_: Any, **__: Any) -> Values:
    return {"batch": size}


def _refused(result: bool, _runner: Any, batch: Any, *_: Any, **__: Any) -> Values | None:
    return None if result else {"batch": batch.batch_size}


def _loaded(_result: Any, runner: Any, *_: Any, **__: Any) -> Values:
    return {"batch": runner.raw_bs, "padded_batch": runner.bs}


def _runner(module: str, owner: str, captures: str, decides: str, loads: str) -> list[Adapter]:
    """A runner of SGLang's, and three of its methods."""
    module = f"sglang.srt.model_executor.{module}"
    return [
        Adapter(module, owner, captures, _captures, before=True),
        Adapter(module, owner, decides, _refused),
        Adapter(module, owner, loads, _loaded),
    ]


ADAPTERS = (
    Adapter(f"{_BATCHING}.model_runner", "ModelRunner", "maybe_pad_inputs", _padded),
    Adapter(f"{_BATCHING}.continuous_api", "ContinuousBatchProcessor", "maybe_pad_inputs", _padded),
    Adapter(
        "transformers.generation.utils",
        "GenerationMixin",
        "prepare_inputs_for_generation",
        _filled,
    ),
    Adapter("vllm.compilation.cuda_graph", "CUDAGraphWrapper", "__call__", _described, before=True),
    *_runner(
        "runner.decode_cuda_graph_runner",
        "DecodeCudaGraphRunner",
        *("capture_one_shape", "can_run_graph", "load_batch"),
    ),
    *_runner(
        "cuda_graph_runner",  # before 0.5.13
        "CudaGraphRunner",
        *("capture_one_batch_size", "can_run", "replay_prepare"),
    ),
)
