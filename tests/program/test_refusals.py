"""What is not an entry point: each message says what it is, and what to give instead."""

from __future__ import annotations

import pytest

from cgtool.model.failure import CgtoolError
from cgtool.program.load import load


@pytest.mark.parametrize(
    ("text", "name", "reason"),
    [
        ("build = 3", "build", "is an int, which cannot be called"),
        ("build = torch.ones(3)", "build", "is a Tensor, which cannot be called"),
        ("import os", "os", "is a module, which cannot be called"),
        ("class A: pass", "A", "is a class, but not an nn.Module"),
        ("async def build(): pass", "build", "is an async function"),
        ("async def build(): yield", "build", "is an async function"),
        ("def build(): yield", "build", "is a generator function"),
        ("class A:\n    async def __call__(self): pass\na = A()", "a", "is an async function"),
    ],
)
def test_the_wrong_thing_is_pointed_at(refused, text, name, reason):
    failure = refused(text, name)
    assert failure.exit_code == 2
    assert reason in failure.message
    assert "an entry point is one of" in failure.why
    assert failure.phase == "load"


@pytest.mark.parametrize(
    ("returned", "reason"),
    [
        ("3", "returned an int, 3"),
        ("'text'", "returned a str, 'text'"),
        ("object()", "returned an object, <object"),
        ("{'a': build}", "returned a dict, {'a': <function"),
        ("(build, build)", "returned a tuple, (<function"),
        ("(build, (), {}, 1)", "returned a tuple"),
        ("nn.Linear", "returned a type"),
        ("list(range(10 ** 4))", "returned a list, [0, 1, 2, 3, 4, 5, ...]"),
        ("Bad()", "returned a Bad, <"),
        ("torch.ones(1)", "returned a Tensor"),
        ("None", "returned None"),
        ("(nn.Linear(1, 1), 3)", "returned arguments of type int"),
        ("(nn.Linear(1, 1), {'input': 3})", "returned arguments of type dict"),
        ("(nn.Linear(1, 1), (), 3)", "returned keyword arguments of type int"),
        ("(nn.Linear(1, 1), (), {3: 3})", "returned keyword arguments of type dict"),
        ("(nn.Linear(1, 1), (1, 2))", "does not take: too many positional"),
        ("(nn.Linear(1, 1), ())", "does not take: missing a required argument: 'input'"),
        ("nn.Linear(1, 1)", "returned a callable that takes input, and no arguments"),
        ("wait", "returned an async function"),
        ("(wait, ())", "returned an async function"),
        ("((build, build),)", "returned a tuple"),
        ("((build, build), 3)", "without their arguments"),
        ("((build,), ((),), {})", "without their arguments"),
        ("((build, build), ((),))", "returned 2 callables and 1 tuples"),
        ("((nn.Tanh(),), (3,))", "the arguments of Tanh are an int"),
        ("((nn.Tanh(),), ((3,),))", "argument 0 of Tanh is an int, not a tensor"),
        ("((nn.Tanh(),), (([torch.ones(1)],),))", "argument 0 of Tanh is a list, not a tensor"),
        ("((nn.Tanh(),), ((),))", ": Tanh does not take its arguments: missing"),
        ("((wait,), ((),))", "wait is an async function"),
    ],
)
def test_nonsense_from_a_factory(refused, returned, reason):
    failure = refused(
        f"""
        class Bad:
            def __repr__(self): raise ValueError
        async def wait(): pass
        def build(device):
            return {returned}
        """
    )
    assert failure.exit_code == 4
    assert reason in failure.message
    assert len(failure.message) < 400
    assert failure.why
    (frame,) = failure.frames
    assert (frame.line, frame.function) == (7, "build")


def test_a_step_that_returns_a_number_is_refused_with_the_reason(refused):
    failure = refused("def build(): return torch.ones(1).item()")
    assert "returned a float, 1.0" in failure.message
    assert "replay" in failure.fix


def test_a_function_without_inputs(refused):
    failure = refused("def f(x, y, z=1): return x", "f")
    assert failure.exit_code == 2
    assert failure.message.endswith("f takes x, y, but no inputs are given")
    assert "--input 'x=" in failure.fix
    assert "f_inputs(device)" in failure.fix
    failure = refused("def f(x: torch.Tensor): return x", "f")
    assert failure.exit_code == 2
    failure = refused("def f(*, x): return x", "f")
    assert failure.exit_code == 2
    failure = refused("def build(x, device): return x")
    assert failure.exit_code == 2


def test_a_single_parameter_is_taken_for_the_device_with_a_note(refused):
    failure = refused("def f(x):\n    return x.sum()", "f")
    assert failure.exit_code == 4
    assert "'str' object has no attribute 'sum'" in failure.message
    assert "called as a factory, with the device 'cpu'" in failure.why
    assert "--input 'x=" in failure.fix
    assert failure.frames[0].line == 4
    failure = refused("def f(x):\n    return x * 2", "f")
    assert "returned a str, 'cpucpu'" in failure.message
    assert "called as a factory" in failure.why


def test_an_unbound_method(refused):
    text = "class A:\n    def step(self, x): pass\n    def other(self): pass"
    assert "it is a method" in refused(text, "A.step").fix
    assert refused(text, "A.other").exit_code in (2, 4)


def test_a_module_class_that_needs_arguments(refused):
    failure = refused(
        "class Net(nn.Module):\n    def __init__(self, width): super().__init__()", "Net"
    )
    assert failure.exit_code == 2
    assert failure.message.endswith("Net cannot be created without width")


def test_a_module_without_inputs(refused):
    failure = refused("net = nn.Linear(1, 1)", "net")
    assert failure.exit_code == 2
    assert "net(input): no inputs are given" in failure.message


@pytest.mark.parametrize(
    ("inputs", "reason"),
    [
        (["k=f32[1]"], "missing a required argument: 'x'"),
        (["y=f32[1]"], "it has no parameter `y`"),
        (["x=f32[1]", "y=f32[1]"], "it has no parameter `y`"),
        (["0=f32[1]", "x=f32[1]"], "multiple values for argument 'x'"),
        (["0=f32[1]", "1=f32[1]", "2=f32[1]"], "too many positional"),
    ],
)
def test_inputs_that_do_not_fit(refused, inputs, reason):
    failure = refused("def f(x, k=1): return x", "f", *inputs)
    assert failure.exit_code == 2
    assert "f(x, k=1): " in failure.message
    assert failure.fix == "--input names its parameters: x, k"
    assert reason in failure.message


@pytest.mark.parametrize("target", ["build", "step", "several"])
def test_inputs_that_nothing_takes(refused, target):
    failure = refused(
        """
        def build(): return nn.Linear(1, 1), (torch.ones(1, 1),)
        def step(): return torch.ones(1)
        def several(): return (nn.Tanh(),), ((torch.ones(1),),)
        """,
        target,
        "x=f32[1]",
    )
    assert failure.exit_code == 2
    assert "which takes no --input" in failure.message


def test_an_inputs_function_that_returns_nonsense(refused):
    text = "def f(x): return x\ndef f_inputs(device): return {}"
    failure = refused(text.format(3), "f")
    assert failure.exit_code == 4
    assert "f_inputs returned an int, 3" in failure.message
    failure = refused(text.format("()"), "f")
    assert failure.exit_code == 4
    assert "missing a required argument" in failure.message
    failure = refused("def f(x): return x\ndef f_inputs(a, b): return a", "f")
    assert "takes more parameters than a device" in failure.message


def test_a_factory_that_raises(refused):
    failure = refused(
        """
        def inner(device):
            return torch.ones(2) @ torch.ones(3)
        def build(device):
            return inner(device)
        """
    )
    assert failure.exit_code == 4
    assert failure.phase == "load"
    assert "raised RuntimeError" in failure.message
    assert [(frame.line, frame.function) for frame in failure.frames] == [
        (5, "inner"),
        (7, "build"),
    ]


@pytest.mark.parametrize("raised", ["SystemExit(2)", "GeneratorExit", "BaseException('x')"])
def test_a_factory_that_ends_the_process(refused, raised):
    assert refused(f"def build(): raise {raised}").exit_code == 4


def test_a_module_class_that_raises(refused):
    failure = refused("class Net(nn.Module):\n    def __init__(self): 1 / 0", "Net", "x=f32[1]")
    assert failure.exit_code == 4
    assert failure.frames[0].line == 4


def test_tensors_on_another_device(refused):
    failure = refused(
        """
        def build(device):
            return nn.Linear(1, 1), ({"x": [torch.ones(1, 1, device="meta")]},)
        """
    )
    assert failure.exit_code == 4
    assert "Linear: argument 0['x'][0] is on the meta device" in failure.message
    assert failure.frames[0].line == 4
    assert "to_empty(device=device)" in failure.fix
    failure = refused("def build():\n    return (nn.Tanh(),), ((torch.ones(1, device='meta'),),)")
    assert "Tanh: argument 0 is on the meta device" in failure.message
    failure = refused("def build(): return nn.Linear(1, 1, device='meta'), (torch.ones(1, 1),)")
    assert "parameter weight is on the meta device" in failure.message


def test_cpu_tensors_for_a_capture_on_cuda(write):
    path = write("def f(x, k): return x * k\ndef build(): return f, (torch.ones(2), 1)")
    with pytest.raises(CgtoolError) as caught:
        load(f"{path}:build", device="cuda")
    assert "argument 0 is on cpu, the capture is on cuda" in caught.value.failure.message


def test_a_host_scalar_is_only_noted(write):
    path = write("def build(): return torch.relu, (torch.tensor(1.0),)")
    workload = load(f"{path}:build", device="cuda")
    assert "argument 0 is a scalar tensor on the CPU" in workload.notes[0]


def test_an_invalid_seed(write):
    path = write("def build(): return torch.ones(1)")
    for seed in (1 << 70, -(1 << 70)):
        with pytest.raises(CgtoolError) as caught:
            load(f"{path}:build", device="cpu", seed=seed)
        assert caught.value.failure.exit_code == 2
    assert load(f"{path}:build", device="cpu", seed=(1 << 64) - 1)


def test_a_hostile_name_travels(refused):
    failure = refused(
        "def step(): raise ValueError('\\x1b[31m[bold]\"\\n')\nstep.__name__ = 'a\\nb'\n"
        "def build(): return step()"
    )
    assert failure.exit_code == 4
