"""transformers' ``generate`` with a static cache: attention reads all of the cache, however much of
it is filled."""

from __future__ import annotations

from typing import Any

from cgtool.recorder.adapters.adapter import Adapter


def _sizes(result: dict[str, Any], _model: Any, input_ids: Any, *_: Any, **__: Any) -> Any:
    """Of ``prepare_inputs_for_generation``, whose ``input_ids`` are the whole text until now."""
    cache: Any = result.get("past_key_values")
    if not getattr(cache, "is_compileable", False):
        return None
    rows, filled = input_ids.shape[:2]
    # Until 5.17, where that is deprecated, the second is the name.
    length = getattr(cache, "get_max_length", None) or cache.get_max_cache_shape
    return {"rows": rows, "cache": filled, "padded_cache": length()}


ADAPTERS = (
    Adapter(
        "transformers.generation.utils",
        "GenerationMixin",
        "prepare_inputs_for_generation",
        _sizes,
    ),
)
