"""The adapters, on methods of transformers that stand in for those of its versions."""

from __future__ import annotations

import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch

from cgtool.recorder import notes
from cgtool.torch_compat.patches import Patches
from tests.recorder.test_recorder import Recorded, captured, values

TRANSFORMERS = "transformers.generation"


class ModelRunner:
    """5.13 and later."""

    def maybe_pad_inputs(
        self, num_q_tokens: int, max_kv_read: int, use_decode_fast_path: bool
    ) -> tuple[int, int]:
        return (16, 0) if use_decode_fast_path else (64, 256)


class GenerationMixin:
    cache: Any = None

    def prepare_inputs_for_generation(self, input_ids: Any, **_: Any) -> dict[str, Any]:
        return {"input_ids": input_ids[:, -1:], "past_key_values": self.cache}


class CUDAGraphWrapper:
    """vLLM's, which captures or replays."""

    graph: Any = None

    def __call__(self) -> None:
        if self.graph is None:
            self.graph = captured()
        self.graph.replay()


class DecodeCudaGraphRunner:
    """SGLang's."""

    raw_bs = bs = 0

    def capture_one_shape(self, size: int, forward: Any) -> None:
        self.graph = captured()

    def can_run_graph(self, batch: Any) -> bool:
        return batch.batch_size <= 4

    def load_batch(self, batch: Any) -> None:
        self.raw_bs, self.bs = batch.batch_size, 4


class CudaGraphRunner(DecodeCudaGraphRunner):
    """That of its earlier versions."""

    capture_one_batch_size = DecodeCudaGraphRunner.capture_one_shape
    can_run = DecodeCudaGraphRunner.can_run_graph
    replay_prepare = DecodeCudaGraphRunner.load_batch


def module(
    monkeypatch: pytest.MonkeyPatch, name: str, kind: type, package: str = TRANSFORMERS
) -> None:
    """A module of an engine that is imported already."""
    found = ModuleType(f"{package}.{name}")
    fresh = type(kind.__name__, (), dict(vars(kind)))
    setattr(found, kind.__name__, fresh)
    monkeypatch.setitem(sys.modules, found.__name__, found)


def engine(name: str, kind: str, package: str = TRANSFORMERS) -> Any:
    return getattr(sys.modules[f"{package}.{name}"], kind)()


def test_continuous_batching(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, patches: Patches
) -> None:
    module(monkeypatch, "continuous_batching.model_runner", ModelRunner)
    recorded = Recorded(tmp_path, patches)
    runner = engine("continuous_batching.model_runner", "ModelRunner")
    assert runner.maybe_pad_inputs(40, 200, False) == (64, 256)
    prefill = captured()
    runner.maybe_pad_inputs(1, 0, use_decode_fast_path=True)
    decode = captured()
    for tokens in (40, 50):
        runner.maybe_pad_inputs(num_q_tokens=tokens, max_kv_read=200, use_decode_fast_path=False)
        prefill.replay()
    runner.maybe_pad_inputs(9, 100, True)
    decode.replay()
    first, second = recorded.ledger().graphs
    assert (first.key, second.key) == ("tokens 64, cache 256", "tokens 16")
    assert values(first) == [((40, 64, 200, 256), 1), ((50, 64, 200, 256), 1)]
    assert values(second) == [((9, 16), 1)]
    assert first.notes[0].names == ("tokens", "padded_tokens", "cache", "padded_cache")


@pytest.mark.parametrize("length", ["get_max_cache_shape", "get_max_length"])
def test_generate_with_a_static_cache(
    length: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, patches: Patches
) -> None:
    module(monkeypatch, "utils", GenerationMixin)
    recorded = Recorded(tmp_path, patches)
    graph = captured()
    model = engine("utils", "GenerationMixin")
    model.cache = SimpleNamespace(is_compileable=True, **{length: lambda: 128})
    for length in (9, 10):
        model.prepare_inputs_for_generation(torch.zeros(2, length))
        graph.replay()
    model.cache = SimpleNamespace(is_compileable=False)
    model.prepare_inputs_for_generation(torch.zeros(2, 11))
    graph.replay()
    (only,) = recorded.ledger().graphs
    assert values(only) == [((2, 9, 128), 1), ((2, 10, 128), 1)]


def test_vllm(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, patches: Patches) -> None:
    module(monkeypatch, "cuda_graph", CUDAGraphWrapper, "vllm.compilation")
    context = SimpleNamespace(batch_descriptor=None)
    monkeypatch.setitem(
        sys.modules,
        "vllm.forward_context",
        SimpleNamespace(get_forward_context=lambda: context),
    )
    recorded = Recorded(tmp_path, patches)
    wrapper = engine("cuda_graph", "CUDAGraphWrapper", "vllm.compilation")
    for requests in (8, 8, None):
        context.batch_descriptor = SimpleNamespace(num_tokens=64, num_reqs=requests)
        wrapper()
    context.batch_descriptor = None
    wrapper()
    (only,) = recorded.ledger().graphs
    assert (only.key, only.replays) == ("tokens 64, requests 8", 4)
    assert values(only) == [((64, 8), 1), ((64,), 1)]


@pytest.mark.parametrize(
    ("name", "kind", "methods"),
    [
        (
            "runner.decode_cuda_graph_runner",
            DecodeCudaGraphRunner,
            ("capture_one_shape", "can_run_graph", "load_batch"),
        ),
        (
            "cuda_graph_runner",
            CudaGraphRunner,
            ("capture_one_batch_size", "can_run", "replay_prepare"),
        ),
    ],
)
def test_sglang(
    name: str,
    kind: type,
    methods: tuple[str, str, str],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    patches: Patches,
) -> None:
    package = "sglang.srt.model_executor"
    module(monkeypatch, name, kind, package)
    recorded = Recorded(tmp_path, patches)
    runner = engine(name, kind.__name__, package)
    capture, can_run, load = (getattr(runner, method) for method in methods)
    capture(4, None)
    for size in (1, 3, 3, 5):
        batch = SimpleNamespace(batch_size=size)
        if can_run(batch):
            load(batch)
            runner.graph.replay()
        else:
            assert list(notes.pending.values()) == [{"batch": 5}]
    (only,) = recorded.ledger().graphs
    assert (only.key, only.replays) == ("batch 4", 3)
    assert values(only) == [((1, 4), 1), ((3, 4), 2)]
    assert only.notes[0].names == ("batch", "padded_batch")


def test_an_engine_that_changed_runs_on(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, patches: Patches
) -> None:
    def maybe_pad_inputs(self: Any) -> str:
        return "other"

    changed = type("ModelRunner", (), {"maybe_pad_inputs": maybe_pad_inputs})
    module(monkeypatch, "continuous_batching.model_runner", changed)
    recorded = Recorded(tmp_path, patches)
    runner = engine("continuous_batching.model_runner", "ModelRunner")
    assert [runner.maybe_pad_inputs() for _ in range(9)] == ["other"] * 9
    graph = captured()
    graph.replay()
    run = recorded.ledger()
    assert [each.replays for each in run.graphs] == [1]
    (text,) = run.lost
    assert "model_runner.ModelRunner.maybe_pad_inputs are not noted: TypeError" in text
