"""Which modules a plain function runs, and what is differentiated and named because of it."""

from __future__ import annotations

import gc
import importlib
import queue
import threading
import weakref
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch

from cgtool.model.failure import CgtoolError
from cgtool.program.description import named_tensors
from cgtool.program.phases import call, differentiable, flatten_outputs, grads
from cgtool.program.reach import Reachable
from cgtool.program.workload import tensors_in


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("net = nn.Linear(2, 2)\ndef f(x): return net(x)", ["net"]),
        ("net = nn.Linear(2, 2)\nother = nn.Linear(2, 2)\ndef f(x): return net(x)", ["net"]),
        ("net = nn.Linear(2, 2)\ndef h(x): return net(x)\ndef f(x): return h(x)", ["net"]),
        ("net = nn.Linear(2, 2)\ndef f(x): return [net(y) for y in (x,)][0]", ["net"]),
        ("net = nn.Linear(2, 2)\nbias = net\ndef f(x): return net(x) + net.bias", ["net"]),
        ("nets = [nn.Linear(2, 2), nn.Tanh()]\ndef f(x): return nets[1](nets[0](x))",
         ["nets.0", "nets.1"]),
        ("nets = {'a': nn.Linear(2, 2)}\ndef f(x): return nets['a'](x)", ["nets.a"]),
        ("def f(x, net=nn.Linear(2, 2)): return net(x)", ["net"]),
        ("def f(x, *, net=nn.Linear(2, 2)): return net(x)", ["net"]),
        ("def make():\n    net = nn.Linear(2, 2)\n    return lambda x: net(x)\n"
         "f = make()", ["net"]),
        ("def make():\n    net = nn.Linear(2, 2)\n    return torch.no_grad()(lambda x: net(x))\n"
         "f = make()", ["net"]),
        ("def make():\n    net = nn.Linear(2, 2)\n    return torch.compile(lambda x: net(x))\n"
         "f = make()", ["net"]),
        ("import functools\ndef g(net, x): return net(x)\n"
         "f = functools.partial(g, nn.Linear(2, 2))", ["0"]),
        ("import functools\nf = functools.partial(nn.Linear(2, 2))", [""]),
        ("net = nn.Linear(2, 2)\nf = net.forward", [""]),
        ("class T:\n    def __init__(self): self.net = nn.Linear(2, 2)\n"
         "    def f(self, x): return self.net(x)\nf = T().f", ["net"]),
        ("class T:\n    def __init__(self): self.nets = [nn.Linear(2, 2)]\n"
         "    def __call__(self, x): return self.nets[0](x)\nf = T()", ["nets.0"]),
        ("class T: pass\nstate = T()\nstate.net = nn.Linear(2, 2)\n"
         "def f(x): return state.net(x)", ["state.net"]),
        ("outer = nn.Sequential(nn.Linear(2, 2))\ninner = outer[0]\n"
         "def f(x): return inner(x) + outer(x)", ["outer"]),
        ("def f(x): return x * 2", []),
    ],
)  # fmt: skip
def test_modules_found_by_name(loaded, text, names):
    workload = loaded(text, "f", "0=float32[3,2]")
    assert list(workload.parts[0].modules) == names
    shown = [name for name in names if name]
    assert bool(workload.notes) == bool(shown)
    for name in shown:
        assert name in workload.notes[0]
    assert call(workload.parts[0]).shape == (3, 2)


def test_a_module_of_another_file(write, loaded):
    write("net = nn.Linear(2, 2)", "zoo_of_nets.py")
    workload = loaded("import zoo_of_nets\ndef f(x): return zoo_of_nets.net(x)", "f", "x=f32[1,2]")
    assert list(workload.parts[0].modules) == ["zoo_of_nets.net"]


def test_a_module_elsewhere_is_left_out(loaded):
    workload = loaded(
        "net = nn.Linear(2, 2)\nteacher = nn.Linear(2, 2, device='meta')\n"
        "def f(x):\n    return teacher(x) if x is None else net(x)",
        "f",
        "x=f32[1,2]",
    )
    assert list(workload.parts[0].modules) == ["net"]
    assert any("the module teacher, which is left out" in note for note in workload.notes)


def test_only_parameters_that_outputs_reach_are_differentiated(loaded):
    workload = loaded(
        "used = nn.Linear(2, 2)\nidle = nn.Linear(2, 2)\n"
        "def f(x):\n    return idle(x) if x is None else used(x)",
        "f",
        "x=f32[1,2]?grad",
    )
    (part,) = workload.parts
    outputs = flatten_outputs(call(part))
    backward = differentiable(part, outputs)
    assert [name for name, _ in backward.inputs] == ["input x", "used.weight", "used.bias"]
    gradients = grads(backward, False)
    assert torch.equal(gradients[0], part.modules["used"].weight.sum(0, keepdim=True))


def test_a_module_keeps_its_whole_surface(loaded):
    workload = loaded(
        """
        class Net(nn.Module):
            def __init__(self):
                super().__init__()
                self.used, self.idle = nn.Linear(2, 2), nn.Linear(2, 2)
            def forward(self, x): return self.used(x)
        """,
        "Net",
        "x=f32[1,2]",
    )
    (part,) = workload.parts
    backward = differentiable(part, flatten_outputs(call(part)))
    assert [name for name, _ in backward.inputs] == [
        "used.weight",
        "used.bias",
        "idle.weight",
        "idle.bias",
    ]


def test_an_output_that_nothing_known_requires(loaded):
    workload = loaded("def f(x): return x.requires_grad_() * 1\n"
                      "def build(): return f, (torch.ones(2),)")  # fmt: skip
    (part,) = workload.parts
    assert differentiable(part, flatten_outputs(call(part))) is not None
    workload = loaded("leaf = torch.ones(2, requires_grad=True)\ndef g(x): return x * leaf",
                      "g", "x=f32[2]")  # fmt: skip
    (part,) = workload.parts
    backward = differentiable(part, flatten_outputs(call(part)))
    assert [name for name, _ in backward.inputs] == ["leaf"]
    workload = loaded("leaves = iter([torch.ones(2, requires_grad=True)])\n"
                      "def g(x): return x * next(leaves)",
                      "g", "x=f32[2]")  # fmt: skip
    (part,) = workload.parts
    with pytest.raises(CgtoolError) as caught:
        differentiable(part, flatten_outputs(call(part)))
    assert caught.value.failure.exit_code == 4


def test_optimizer_state_and_closed_over_tensors_have_names(loaded):
    workload = loaded(
        """
        def build(device):
            net = nn.Linear(2, 2)
            free = torch.ones(2, requires_grad=True)
            adam = torch.optim.Adam([*net.parameters(), free])
            x = torch.ones(1, 2)
            def step():
                adam.zero_grad(set_to_none=False)
                (net(x) * free).sum().backward()
                adam.step()
            return step
        """
    )
    call(workload.parts[0])
    named = {(kind, name) for name, kind, _ in named_tensors(workload)}
    assert ("parameter", "parameter net.weight") in named
    assert ("gradient", "gradient of net.weight") in named
    assert ("optimizer", "adam exp_avg of net.weight") in named
    assert ("input", "tensor x") in named
    assert ("parameter", "parameter adam.param_groups[0]['params'][2]") in named
    assert ("optimizer", "adam exp_avg_sq of adam.param_groups[0]['params'][2]") in named


HOLDERS = """
import asyncio, collections, contextlib, functools, logging, types, weakref

class Owner:
    pass

def kept(owner):
    KEPT.append(owner)
    return owner

def plain_set():
    holder = set()
    def put(value):
        owner = Owner()
        owner.value = value
        holder.clear()
        holder.add(owner)
    return holder, put

def weak(make):
    owner = kept(Owner())
    return make(owner), lambda value: setattr(owner, "value", value)

def method():
    holder = []
    return holder.copy, lambda value: holder.__setitem__(slice(None), [value])

def cache():
    holder = functools.lru_cache(collections.deque)
    return holder, lambda value: holder().append(value)

def coroutine():
    def holds():
        value = yield
        while True:
            dropped = yield
    holder = holds()
    next(holder)
    return holder, holder.send

def coroutine_that_rebinds():
    def holds():
        kept = None
        while True:
            value = yield kept
            kept = kept if value is None else value
    holder = holds()
    next(holder)
    return holder, holder.send

def generator_in_a_context():
    @contextlib.contextmanager
    def context(owner):
        yield owner
    holder = context(kept(Owner()))
    holder.__enter__()
    return holder, lambda value: setattr(KEPT[-1], "value", value)

def stack():
    holder = contextlib.ExitStack()
    def put(value):
        holder.pop_all()
        holder.callback(value.zero_)
    return holder, put

def logger():
    class Handler(logging.Handler):
        pass
    holder = logging.getLogger("holder")
    def put(value):
        holder.handlers = [Handler()]
        holder.handlers[0].value = value
    return holder, put

def queue_of_tasks():
    holder = asyncio.Queue()
    def put(value):
        while not holder.empty():
            holder.get_nowait()
        holder.put_nowait(value)
    return holder, put

def module():
    holder = types.ModuleType("holder")
    return holder, lambda value: setattr(holder, "value", value)

def iterator():
    owner = kept(Owner())
    return iter([owner]), lambda value: setattr(owner, "value", value)

def partial():
    holder = functools.partial(print)
    return holder, lambda value: setattr(holder, "value", value)

KEPT = []
"""


@pytest.mark.parametrize(
    ("holder", "rebinds"),
    {
        "plain_set()": True,
        "weak(weakref.ref)": True,
        "partial()": True,
        "method()": True,
        "cache()": False,
        "coroutine()": False,
        "coroutine_that_rebinds()": True,
        "generator_in_a_context()": True,
        "stack()": True,
        "logger()": True,
        "queue_of_tasks()": True,
        "module()": True,
        "iterator()": True,
    }.items(),
)
def test_what_holders_of_the_standard_library_hold_is_state(loaded, holder, rebinds):
    text = (
        HOLDERS
        + f"""
def build(device):
    holder, put = {holder}
    put(torch.zeros(2))
    def step():
        return holder
    step.put = put
    return step
"""
    )
    step = loaded(text).parts[0].function
    holder = step()
    reachable = Reachable([("holder", holder)])
    ((_, tensor),) = reachable.tensors.values()
    assert tensor.tolist() == [0, 0]
    if rebinds:
        restore = reachable.layout()
        step.put(torch.ones(2))
        ((_, other),) = Reachable([("holder", holder)]).tensors.values()
        assert other is not tensor
        restore()
        ((_, restored),) = Reachable([("holder", holder)]).tensors.values()
        assert restored is tensor


@pytest.mark.parametrize(
    ("imports", "name"),
    [
        ("import {0}\ndef make():\n    def step(x): return {0}.value + x", "state"),
        ("import {0} as s\ndef make():\n    def step(x): return s.value + x", "state"),
        ("import {0}\ndef make():\n    def step(x): return {0}.value + x", "folder.state"),
    ],
)  # fmt: skip
def test_a_value_in_another_file_is_state(tmp_path, monkeypatch, loaded, imports, name):
    monkeypatch.syspath_prepend(tmp_path)
    package = tmp_path / "folder_of_state"
    package.mkdir()
    for file in (tmp_path / "state_in_a_file.py", package / "state.py", package / "__init__.py"):
        file.write_text("import torch\nvalue = torch.zeros(2)\n")
    module = "state_in_a_file" if name == "state" else "folder_of_state.state"
    step = loaded(imports.format(module) + "\n    return step\ndef build(device):\n"
                  "    return make(), (torch.ones(2),)").parts[0].function  # fmt: skip
    value = importlib.import_module(module).value
    reachable = Reachable([("", step)])
    assert any(tensor is value for _, tensor in reachable.tensors.values())
    restore = reachable.layout()
    importlib.import_module(module).value = torch.ones(2)
    restore()
    assert importlib.import_module(module).value is value


def test_what_an_iterator_in_c_has_put_aside_is_not_restored():
    queue_ = queue.SimpleQueue()
    for number in range(3):
        queue_.put(number)
    restore = Reachable([("queue", queue_)]).layout()
    queue_.get()
    restore()
    assert [queue_.get(), queue_.get()] == [1, 2]


def test_what_threads_wait_for_is_not_restored():
    semaphore, event = threading.Semaphore(0), threading.Event()
    restore = Reachable([("all", [semaphore, event, ThreadPoolExecutor(1)])]).layout()
    semaphore.release()
    event.set()
    restore()
    assert semaphore.acquire(blocking=False)
    assert event.is_set()


def test_loading_keeps_no_closed_over_tensor_alive(loaded):
    workload = loaded(
        """
        import weakref
        SEEN = []
        def build():
            hidden = torch.ones(4)
            SEEN.append(weakref.ref(hidden))
            def step():
                nonlocal hidden
                hidden = hidden * 2
                return hidden
            return step
        """
    )
    reference: weakref.ref = workload.parts[0].function.__globals__["SEEN"][0]
    assert reference() is not None
    call(workload.parts[0])
    gc.collect()
    assert reference() is None


def test_tensors_in_dataclasses(loaded):
    workload = loaded(
        """
        import dataclasses
        @dataclasses.dataclass
        class Batch:
            x: torch.Tensor
            rest: dict
            me: object = None
        def build():
            batch = Batch(torch.ones(2), {"y": torch.ones(3)})
            batch.me = batch
            return (lambda b: b.x * 2), (batch,)
        """
    )
    (part,) = workload.parts
    names = [name for name, _ in tensors_in(part.args)]
    assert names[:2] == ["[0].x", "[0].rest['y']"]
