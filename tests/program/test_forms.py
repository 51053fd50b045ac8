"""The accepted forms of an entry point, distinguished by what they are."""

from __future__ import annotations

import pytest
import torch

from cgtool.model.options import CaptureOptions
from cgtool.program.load import load
from cgtool.program.phases import WorkloadRun, call

NET = """
class Net(nn.Module):
    def __init__(self, width=4):
        super().__init__()
        self.linear = nn.Linear(width, width)
    def forward(self, x, *, scale=1.0):
        return self.linear(x) * scale
"""


@pytest.mark.parametrize(
    "signature",
    [
        "build(device)",
        "build()",
        "build(device='cuda')",
        "build(batch=4, device=None)",
        "build(*, device)",
        "build(device, /)",
        "build(where)",
        "build(where: str)",
        "build(where: torch.device)",
        "build(device: torch.device, width=3)",
    ],
)
def test_a_factory_of_a_callable_and_arguments(loaded, signature):
    workload = loaded(f"{NET}\ndef {signature}:\n    return Net().eval(), (torch.ones(2, 4),)")
    assert workload.kind == "callable"
    (part,) = workload.parts
    assert part.name == "Net"
    assert part.modules == {"": part.function}
    assert part.args[0].shape == (2, 4)
    assert not part.function.training
    assert [name for name, _ in part.parameters()] == ["linear.weight", "linear.bias"]
    assert workload.frame.line == 11
    assert workload.notes == ()


def test_a_factory_gets_the_device(loaded):
    loaded("def build(device):\n    assert device == 'cpu'\n    return lambda: torch.ones(1)")


def test_keyword_arguments_and_a_bare_tensor(loaded):
    workload = loaded(f"{NET}\ndef build():\n    return Net(), torch.ones(2, 4), {{'scale': 2.0}}")
    (part,) = workload.parts
    assert part.args[0].shape == (2, 4)
    assert part.kwargs == {"scale": 2.0}
    assert part.function.training
    assert workload.notes == (
        "Net: the graph keeps the values of the arguments that are not tensors: scale (float)",
    )
    assert call(part).shape == (2, 4)


def test_several_callables(loaded):
    workload = loaded(
        f"""{NET}
def build(device):
    first, second = Net(), Net(8)
    return (first, second), ((torch.ones(2, 4),), (torch.ones(2, 8),))"""
    )
    assert workload.kind == "callables"
    assert [part.name for part in workload.parts] == ["first", "second"]
    assert [part.args[0].shape[1] for part in workload.parts] == [4, 8]


def test_several_callables_without_names_are_numbered(loaded):
    workload = loaded(
        f"{NET}\ndef build():\n    made = [Net(), Net()]\n    return made, [torch.ones(1, 4)] * 2"
    )
    assert [part.name for part in workload.parts] == ["Net 0", "Net 1"]


def test_a_factory_of_a_step(loaded):
    workload = loaded(
        """
        def build(device):
            net = nn.Linear(2, 2)
            optimizer = torch.optim.SGD(net.parameters())
            def train_step():
                net(torch.ones(1, 2)).sum().backward()
                optimizer.step()
            return train_step
        """
    )
    assert workload.kind == "step"
    assert workload.parts[0].name == "train_step"
    assert list(workload.parts[0].modules) == ["net"]


@pytest.mark.parametrize(
    "result",
    ["torch.ones(1)", "None", "{'loss': torch.ones(1), 'n': 3}", "[torch.ones(1), None]", "()"],
)
def test_a_function_that_is_a_step(loaded, result):
    workload = loaded(f"CALLS = []\ndef build():\n    CALLS.append(1)\n    return {result}")
    assert workload.kind == "step"
    assert "ran once while loading" in workload.notes[0]
    assert workload.parts[0].function.__globals__["CALLS"] == [1]


TRAIN = """
def build(device):
    model = nn.Sequential(nn.Linear(4, 4), nn.Tanh())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    def train(x, y):
        optimizer.zero_grad()
        loss = (model(x) - y).square().mean()
        {backward}
        optimizer.step()
        return loss
    return train, (torch.ones(2, 4), torch.zeros(2, 4))
"""


@pytest.mark.parametrize(
    ("backward", "kind"),
    [
        ("loss.backward()", "step"),
        ("loss.backward(retain_graph=True)", "step"),
        ("torch.autograd.backward([loss])", "step"),
        ("loss = loss + torch.autograd.grad(loss, model[0].weight, create_graph=True)[0].sum()",
         "callable"),
    ],
)  # fmt: skip
def test_a_function_with_arguments_that_calls_backward_is_a_step(loaded, backward, kind):
    workload = loaded(TRAIN.format(backward=backward))
    run = WorkloadRun(workload, CaptureOptions())
    run.run_eagerly(2, lambda _: None, lambda _error, _phase: None)
    assert workload.kind == kind
    assert any("train calls backward() itself" in note for note in workload.notes) == (
        kind == "step"
    )


GRADIENTS = """
def build(device):
    model = nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 4))
    def train(x):
        x = x.detach().requires_grad_()
        hidden = model[:2](x)
        loss = model[2](hidden).square().mean()
        {body}
    return train, (torch.ones(2, 4),)
"""
_UPDATE = "with torch.no_grad(): [p.sub_(g) for p, g in zip(model.parameters(), grads)]"


@pytest.mark.parametrize(
    ("body", "kind"),
    [
        ("torch.autograd.grad(loss, [*model.parameters()]); return loss", "step"),
        ("torch.autograd.grad(loss, x); return {'hidden': [hidden]}", "step"),
        # What is behind the inputs of the gradient is not used up.
        ("torch.autograd.grad(loss, hidden); return hidden", "callable"),
        ("torch.autograd.grad(model[2](hidden).sum(), x); return loss", "step"),
        ("torch.autograd.grad(loss, model[2].weight); return hidden", "callable"),
        ("return loss + torch.autograd.grad((x * x).sum(), x)[0].sum()", "callable"),
        ("torch.autograd.grad(loss, x, retain_graph=True); return loss", "callable"),
        ("torch.autograd.grad(loss, x); return loss.detach()", "callable"),
        # The graph is kept, and what it needs is overwritten.
        (
            "grads = torch.autograd.grad(loss, [*model.parameters()], retain_graph=True)\n"
            f"        {_UPDATE}\n        return loss",
            "step",
        ),
    ],
)
def test_a_function_that_uses_up_the_graph_of_its_outputs_is_a_step(loaded, body, kind):
    workload = loaded(GRADIENTS.format(body=body))
    run = WorkloadRun(workload, CaptureOptions())
    run.run_eagerly(2, lambda _: None, lambda _error, _phase: None)
    assert workload.kind == kind
    noted = any("takes the gradients of output" in note for note in workload.notes)
    assert noted == (kind == "step")


def test_a_step_that_returns_a_dataclass(loaded):
    workload = loaded(
        """
        import dataclasses
        @dataclasses.dataclass
        class Out:
            loss: torch.Tensor
            steps: int = 3
        def build():
            return Out(torch.ones(1))
        """
    )
    assert workload.kind == "step"


def test_no_arguments_at_all(loaded):
    assert loaded("def build():\n    return (lambda: torch.ones(1)), ()").kind == "step"
    text = """
    class Const(nn.Module):
        def __init__(self):
            super().__init__()
            self.w = nn.Parameter(torch.ones(1))
        def forward(self): return self.w * 2
    def build(): return Const(), ()
    def bare(): return Const()
    """
    assert loaded(text).kind == "callable"
    assert loaded(text, "bare").kind == "step"
    assert loaded(text, "Const").kind == "callable"


@pytest.mark.filterwarnings("ignore:`torch.jit:DeprecationWarning")
@pytest.mark.parametrize("name", ["Net", "net", "compiled", "parallel", "scripted"])
def test_modules_with_inputs(loaded, name):
    text = f"""{NET}
net = Net()
compiled = torch.compile(net)
parallel = nn.DataParallel(net)
scripted = torch.jit.script(nn.Linear(4, 4))
"""
    argument = "input" if name == "scripted" else "x"
    workload = loaded(text, name, f"{argument}=float32[2,4]?grad")
    (part,) = workload.parts
    assert workload.kind == "callable"
    assert part.modules == {"": part.function}
    assert part.kwargs[argument].requires_grad
    if name != "scripted":
        assert part.name == "Net"
    if name == "parallel":
        assert part.parameters()[0][0] == "module.linear.weight"
    if name == "net":
        assert workload.frame.line == 11


def test_a_class_that_takes_a_device(loaded):
    text = """
    class Net(nn.Module):
        def __init__(self, device=None):
            super().__init__()
            assert device == "cpu"
        def forward(self, x): return x
    """
    assert loaded(text, "Net", "x=f32[2]").kind == "callable"


def test_functions_with_inputs(loaded):
    text = """
    def f(x, scale, *, flag=False): return x * scale
    def one(x): return x * 2
    def f_inputs(device): return torch.ones(3), 2.0
    wrapped = torch.no_grad()(f)
    compiled = torch.compile(f)
    """
    part = loaded(text, "f", "x=f32[2]", "scale=?scalar=3").parts[0]
    assert part.kwargs["scale"] == 3
    assert call(part).shape == (2,)
    part = loaded(text, "f", "0=f32[5]", "scale=?scalar=3").parts[0]
    assert part.args[0].shape == (5,)
    part = loaded(text, "one", "x=f32[2]").parts[0]
    assert part.name == "one"
    workload = loaded(text, "f")
    assert workload.parts[0].args[1] == 2.0
    assert "inputs from f_inputs" in workload.notes
    for name in ("wrapped", "compiled"):
        assert loaded(text, name, "x=f32[2]", "scale=?scalar=3").parts[0].name == "f"


@pytest.mark.parametrize(
    ("returned", "args", "kwargs"),
    [
        ("(1, 2)", (1, 2), {}),
        ("[1, 2]", (1, 2), {}),
        ("{'a': 1, 'b': 2}", (), {"a": 1, "b": 2}),
        ("((1,), {'b': 2})", (1,), {"b": 2}),
    ],
)
@pytest.mark.parametrize("parameter", ["device", ""])
def test_what_an_inputs_function_may_return(loaded, returned, args, kwargs, parameter):
    part = loaded(
        f"def f(a, b): return torch.ones(a)\ndef f_inputs({parameter}): return {returned}", "f"
    ).parts[0]
    assert (part.args, part.kwargs) == (args, kwargs)


def test_a_factory_of_a_bare_callable_with_inputs(loaded):
    text = f"{NET}\ndef build(device):\n    return Net()\ndef plain():\n    return Net()"
    for name in ("build", "plain"):
        workload = loaded(text, name, "x=float32[2,4]")
        assert workload.parts[0].name == "Net"
        assert workload.kind == "callable"


def test_input_wins_over_an_inputs_function(loaded):
    text = "def f(x): return x\ndef f_inputs(device): raise ValueError"
    assert loaded(text, "f", "x=f32[7]").parts[0].kwargs["x"].shape == (7,)


def test_a_parameter_called_device_can_be_an_input(loaded):
    text = "def f(x, device): return x"
    part = loaded(text, "f", "x=f32[2]", "device=?scalar=0").parts[0]
    assert part.kwargs["device"] == 0


def test_names_inside_classes_and_objects(loaded):
    text = """
    class Made:
        @staticmethod
        def build(device): return cls_step
        @classmethod
        def other(cls): return cls_step
        def __init__(self): self.net = nn.Linear(2, 2)
        def step(self): return self.net(torch.ones(1, 2))
        def run(self, x): return self.net(x)
        def run_inputs(self, device): return torch.ones(1, 2)
        def __call__(self): return self.net(torch.ones(1, 2))
    def cls_step(): return torch.ones(1)
    made = Made()
    """
    assert loaded(text, "Made.build").kind == "step"
    assert loaded(text, "Made.other").kind == "step"
    workload = loaded(text, "made.step")
    assert workload.kind == "step"
    assert list(workload.parts[0].modules) == ["net"]
    assert loaded(text, "made.run").parts[0].args[0].shape == (1, 2)
    workload = loaded(text, "made")
    assert workload.kind == "step"
    assert workload.parts[0].name == "Made"
    assert list(workload.parts[0].modules) == ["net"]


def test_partials_and_lambdas(loaded):
    text = """
    import functools
    def f(x, k): return x * k
    half = functools.partial(f, k=0.5)
    whole = functools.partial(f, torch.ones(2), 1)
    double = lambda x: x * 2
    """
    assert loaded(text, "half", "x=f32[2]").parts[0].name == "f"
    assert loaded(text, "whole").kind == "step"
    assert loaded(text, "double", "x=f32[2]").parts[0].name == "lambda"


def test_a_seed_decides_the_numbers(write):
    text = "import random\ndef build(): return torch.relu, (torch.rand(3), random.random())[:1]"
    first, second, other = (
        load(f"{write(text, f'm{number}.py')}:build", device="cpu", seed=seed)
        for number, seed in enumerate((5, 5, 6))
    )
    assert torch.equal(first.parts[0].args[0], second.parts[0].args[0])
    assert not torch.equal(first.parts[0].args[0], other.parts[0].args[0])


def test_the_seed_covers_inputs(loaded):
    text = "def f(x): return x"
    first, second = (loaded(text, "f", "x=f32[4]", seed=3).parts[0].kwargs["x"] for _ in "ab")
    assert torch.equal(first, second)


def test_a_builtin_as_a_function(write):
    workload = load("torch:relu", device="cpu", inputs=("0=f32[4]",))
    assert workload.parts[0].name == "relu"
