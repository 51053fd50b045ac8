"""A program that calls all of ``torch.cuda`` and ``torch.accelerator`` with the keyword arguments
that PyTorch documents, and prints what failed, by name."""

from __future__ import annotations

import inspect
import json
import warnings
from contextlib import AbstractContextManager

import torch

warnings.simplefilter("ignore")
DEVICE = torch.device("cuda", 0)
stream, event = torch.cuda.Stream(), torch.cuda.Event()


def captured() -> torch.cuda.CUDAGraph:
    graph = torch.cuda.CUDAGraph(keep_graph=False)
    with torch.cuda.graph(cuda_graph=graph, stream=stream):
        torch.ones(2, device=DEVICE).add_(1)
    return graph


def captured_for_accelerator() -> None:
    graph = torch.accelerator.Graph(pool=torch.cuda.graph_pool_handle())
    with torch.Stream(device=DEVICE), graph:
        torch.ones(2, device=DEVICE).add_(1)
    graph.replay()


ARGUMENTS = {
    "Stream": {"device": DEVICE, "priority": -1},
    "ExternalStream": {"stream_ptr": stream.cuda_stream, "device": DEVICE},
    "Event": {"enable_timing": True, "blocking": True, "interprocess": False, "external": False},
    "CUDAPluggableAllocator": {
        "path_to_so_file": "libc.so.6",
        "alloc_fn_name": "malloc",
        "free_fn_name": "free",
    },
    "StreamContext": {"stream": stream},
    "caching_allocator_alloc": {"size": 16, "device": DEVICE, "stream": stream},
    "caching_allocator_delete": {"mem_ptr": torch.cuda.caching_allocator_alloc(16)},
    "can_device_access_peer": {"device": 0, "peer_device": 0},
    "change_current_allocator": {"allocator": torch.cuda.memory._CUDAAllocator(None)},
    "check_error": {"res": 0},
    "device_of": {"obj": torch.ones(2, device=DEVICE)},
    "export_dot": {"path": "graph.dot"},
    "export_graph_data": {"path": "graph.pickle"},
    "get_stream_from_external": {"data_ptr": stream.cuda_stream, "device": DEVICE},
    "make_graphed_callables": {
        "callables": torch.nn.Linear(2, 2).cuda(),
        "sample_args": (torch.ones(2, 2, device=DEVICE),),
    },
    "manual_seed": {"seed": 1},
    "manual_seed_all": {"seed": 1},
    "memory_snapshot": {"mempool_id": torch.cuda.graph_pool_handle(), "include_traces": False},
    "memory_summary": {"device": DEVICE, "abbreviated": True},
    "set_per_process_memory_fraction": {"fraction": 0.5, "device": DEVICE},
    "set_rng_state": {"new_state": torch.cuda.get_rng_state(), "device": DEVICE},
    "set_rng_state_all": {"new_states": torch.cuda.get_rng_state_all()},
    "set_stream": {"stream": torch.cuda.default_stream()},
    "set_sync_debug_mode": {"debug_mode": "default"},
    "stream": {"stream": stream},
    "use_mem_pool": {"pool": torch.cuda.MemPool(use_on_oom=True), "device": DEVICE},
}
OTHERS = {
    "Stream.wait_stream": lambda: stream.wait_stream(stream=torch.cuda.Stream()),
    "Stream.wait_event": lambda: stream.wait_event(event=stream.record_event(event=event)),
    "Stream.__init__": lambda: torch.cuda.Stream(
        stream_id=stream.stream_id, device_index=0, device_type=stream.device_type
    ),
    "Event.record": lambda: event.record(stream=stream),
    "Event.wait": lambda: event.wait(stream=stream),
    "Event.elapsed_time": lambda: event.elapsed_time(end_event=stream.record_event()),
    "torch.Stream": lambda: torch.Stream(device="cuda", priority=-1).synchronize(),
    "torch.Event": lambda: torch.Event(device="cuda", enable_timing=True).record(),
    "torch.get_device_module": lambda: torch.get_device_module().current_stream(device="cuda"),
    "CUDAGraph.replay": lambda: captured().replay(),
    "CUDAGraph.pool": lambda: torch.cuda.memory_snapshot(mempool_id=captured().pool()),
    "CUDAGraph.reset": lambda: captured().reset(),
    "check_error": lambda: torch.cuda.CudaError(2),
    "cudart": lambda: torch.cuda.cudart().cudaMemGetInfo(0),
    **({"Graph": captured_for_accelerator} if hasattr(torch.accelerator, "Graph") else {}),
    "profiler.start": torch.cuda.profiler.start,
    "profiler.stop": torch.cuda.profiler.stop,
    "default_generators": lambda: torch.rand(
        2, device=DEVICE, generator=torch.cuda.default_generators[0]
    ),
    "graphsafe_get_state": lambda: torch.cuda.default_generators[0].graphsafe_set_state(
        torch.cuda.default_generators[0].graphsafe_get_state()
    ),
    "random.fork_rng": lambda: torch.random.fork_rng(devices=[0]).__enter__(),
    "_C._cuda_getCurrentRawStream": lambda: torch._C._cuda_getCurrentRawStream(0),
    "_C._graph_pool_handle": torch._C._graph_pool_handle,
}


def call(module: object, name: str) -> None:
    function = getattr(module, name)
    others = "Storage", "Tensor", "graph", "Graph", "Error", "GreenContext"
    if not callable(function) or name.endswith(others):
        return
    parameters = inspect.signature(function).parameters.values()
    on_device = {each.name: DEVICE for each in parameters if each.name == "device"}
    by_position = any(each.kind is each.POSITIONAL_ONLY for each in parameters)
    result = function(DEVICE) if by_position else function(**ARGUMENTS.get(name, on_device))
    if isinstance(result, AbstractContextManager) or hasattr(result, "__enter__"):
        with result:
            pass


failures = {}
calls = {f"cuda.{name}": (call, torch.cuda, name) for name in torch.cuda.__all__}
calls |= {f"acc.{name}": (call, torch.accelerator, name) for name in torch.accelerator.__all__}
calls |= {name: (function,) for name, function in OTHERS.items()}
for name, (function, *arguments) in calls.items():
    try:
        function(*arguments)
    except BaseException as error:  # also those of cgtool
        failures[name] = f"{type(error).__name__}: {error}"
print(json.dumps([len(calls), failures]))
captured().replay()
