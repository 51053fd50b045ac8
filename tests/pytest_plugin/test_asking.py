"""The marker, the calls and pyproject.toml: budgets and options, and what is none."""

from __future__ import annotations

import pytest

from cgtool.model.failure import CgtoolError
from cgtool.pytest_plugin.marker import Options, budgets_of, options_of
from tests.pytest_plugin.projects import run, write

pytest_plugins = ["pytester"]


def test_budgets_of_the_call_go_before_the_marker_and_that_before_pyproject(pytester):
    write(
        pytester,
        """
pytestmark = pytest.mark.cudagraph(max_nodes=1, backward=False)

def test_module(cudagraph):
    cudagraph("model.py:build").gate(baseline=False)

@pytest.mark.cudagraph(max_nodes=2)
def test_closer(cudagraph):
    cudagraph("model.py:build").gate(baseline=False)

def test_call(cudagraph):
    graph = cudagraph("model.py:build", backward=True)
    assert graph.nodes == 5
    graph.gate(max_nodes=5, baseline=False)
""",
    )
    pytester.makepyprojecttoml(
        """
[tool.cgtool.gate]
max-graphs = 0
[tool.cgtool.gate.simulated]
max-graphs = 9
[tool.cgtool.gate."model.py:build".simulated]
max-edges = 9
max-nodes = 0
"""
    )
    result = run(pytester)
    result.assert_outcomes(passed=2, failed=1)
    result.stdout.fnmatch_lines(
        [
            "E*AssertionError: model.py:build: failed: 1 of 3 figures: nodes 2, at most 1",
            "E*limit from @pytest.mark.cudagraph of test_module max_nodes",
        ]
    )


def test_a_marker_that_is_wrong_fails_before_the_test(pytester):
    write(
        pytester,
        """
@pytest.mark.cudagraph(max_node=400)
def test_typo(cudagraph): ...

@pytest.mark.cudagraph(400)
def test_nameless(cudagraph): ...

@pytest.mark.cudagraph(max_pool_mib="64 MiB")
def test_unit(cudagraph): ...

@pytest.mark.cudagraph(seed="zero")
def test_type(cudagraph): ...

@pytest.mark.cudagraph(max_nodes=4, min_nodes=5)
def test_contradiction(cudagraph): ...

@pytest.mark.cudagraph(requires_gpu=True, device="simulated")
def test_devices(cudagraph): ...

@pytest.mark.cudagraph(max_nodes=400)
def test_no_fixture(): ...
""",
    )
    result = run(pytester)
    result.assert_outcomes(errors=7)
    result.stdout.fnmatch_lines(
        [
            "*of test_typo: no budget or option 'max_node'; did you mean max_nodes?",
            "*of test_nameless: 400 has no name",
            "*of test_unit max_pool_mib: '64 MiB' is not a number of MiB*",
            "*of test_type: seed='zero': expected an integer",
            "*min_nodes is 5, which is more than *max_nodes of 4",
            "*of test_devices: requires_gpu, and device='simulated'",
            "*of test_no_fixture: the test does not use the fixture",
        ]
    )


def test_marked_budgets_that_are_never_used_fail_a_test_that_passed(pytester):
    write(
        pytester,
        """
@pytest.mark.cudagraph(max_nodes=1)
def test_forgot(cudagraph): ...

@pytest.mark.cudagraph(max_nodes=1)
def test_failed_before(cudagraph):
    assert 1 == 2

@pytest.mark.cudagraph(seed=1)
def test_options_alone(cudagraph): ...
""",
    )
    result = run(pytester)
    result.assert_outcomes(failed=2, passed=1)
    result.stdout.fnmatch_lines(
        ["*were not judged: test_forgot calls no graph.gate()", "*assert 1 == 2"]
    )


def test_a_seed_settles_what_is_drawn(pytester):
    write(
        pytester,
        """
MODEL = "model.py:drawn"

@pytest.mark.cudagraph(seed=3)
def test_seed(cudagraph):
    sizes = {cudagraph(MODEL).nodes for _ in range(2)}
    assert sizes == {cudagraph(MODEL, seed=3).nodes}
""",
        "import random, torch\n\ndef drawn(device):\n    n = random.randrange(10**6) % 50\n"
        "    def f(x):\n        for _ in range(n):\n            x = x + 1\n        return x\n"
        "    return f, (torch.zeros(1, device=device),)\n",
    )
    run(pytester).assert_outcomes(passed=1)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"max_nod": 4}, "gate: no budget 'max_nod'; did you mean max_nodes?"),
        ({"seed": 4}, "gate: seed is not a budget"),
        ({"max_nodes": True}, "gate max_nodes: 'True' is not a number; it is a count"),
        ({"max_nodes": 4.5}, "gate max_nodes: 4.5 is not a whole number, but nodes are counts"),
        ({"max_nodes": -1}, "gate max_nodes: -1 is negative, but figures are not"),
        ({"max_nodes": float("nan")}, "gate max_nodes: nan is not a limit"),
        ({"max_nodes": {"foward": 4}}, "gate max_nodes foward: unknown phase 'foward'"),
        ({"max_pool_mib": {"forward": 4}}, "gate max_pool_mib forward: pool-mib is known only for"),
        ({"max_increase": "2%"}, "gate max_increase: '2%' does not name a metric"),
        ({"max_increase": {"node": 1}}, "gate max_increase: unknown metric 'node'"),
        (
            {"max_increase": {"replay-us": 1}},
            "gate max_increase replay-us: '1' is not a percentage",
        ),
        ({"max_regression": 3}, "gate max_regression replay-us: '3' is not a percentage"),
    ],
)
def test_an_unknown_budget_is_named(given, said):
    with pytest.raises(CgtoolError) as raised:
        budgets_of("gate", given)
    assert raised.value.failure.message.startswith(said)
    assert raised.value.failure.exit_code == 2


def test_budgets_by_phase_and_tolerances():
    budgets = budgets_of(
        "gate",
        {"max_nodes": {"all": 9, "backward": 4}, "max_increase": {"nodes": 2, "pool_mib": "5%"}},
    )
    assert [(limit.metric, limit.phase, limit.limit) for limit in budgets.limits] == [
        ("nodes", None, 9.0),
        ("nodes", "backward", 4.0),
    ]
    assert [
        (increase.metric, increase.amount, increase.share) for increase in budgets.increases
    ] == [
        ("nodes", 2.0, None),
        ("pool-mib", None, 0.05),
    ]


def test_options_of_the_call_go_before_those_of_the_marker():
    before = Options(seed=1, input=("x=float32[4]",), requires_gpu=True)
    options = options_of({"seed": 2, "backward": False}, before)
    assert (options.seed, options.backward, options.requires_gpu) == (2, False, True)
    assert options.input == ("x=float32[4]",)
    assert options_of({"input": "x=float32[4]"}, Options()).input == ("x=float32[4]",)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"max_nodes": 4}, "cudagraph(): max_nodes is not an option"),
        ({"requires_gpu": True}, "cudagraph(): no option 'requires_gpu'"),
        ({"inputs": ["x"]}, "cudagraph(): no option 'inputs'; did you mean input?"),
        ({"pool": "own"}, "cudagraph(): pool='own': expected shared or separate"),
        ({"timeout": 0}, "cudagraph(): Expected `float` > 0.0 - at `timeout`"),
    ],
)
def test_an_unknown_option_is_named(given, said):
    with pytest.raises(CgtoolError) as raised:
        options_of(given, Options())
    assert raised.value.failure.message.startswith(said)


WRONG = [
    ("cudagraph()", "cudagraph(): missing a required argument: 'entry'"),
    ("cudagraph('model.py:build', 'simulated')", "cudagraph(): too many positional arguments"),
    ("graph.gate(baseline='baselines/a.json')", "graph.gate(): Expected `bool`, got `str` - at*"),
    ("graph.gate(max_runs=0)", "graph.gate(): Expected `int` >= 1 - at `max_runs`"),
    ("graph.gate(max_runs='x')", "graph.gate(): Expected `int`, got `str` - at `max_runs`"),
    ("graph.gate(max_seconds=float('nan'))", "graph.gate(): Expected `float` > 0.0 - at*"),
    # With none, nothing would be proved.
    ("graph.verify(replays=0)", "graph.verify(): Expected `int` >= 1 - at `replays`"),
    ("graph.verify(replays='3')", "graph.verify(): Expected `int`, got `str` - at `replays`"),
    ("graph.verify(trials=-1)", "graph.verify(): Expected `int` >= 0 - at `trials`"),
    ("graph.check(allow=3)", "graph.check(): Expected `str | array`, got `int` - at `allow`"),
    (
        "graph.check(allow='sync-itm')",
        "graph.check(): unknown code 'sync-itm'; did you mean sync-item?",
    ),
]


def test_a_wrong_call_is_reported_as_one(pytester):
    write(
        pytester,
        f"""
def test_calls(cudagraph):
    graph = cudagraph("model.py:build", backward=False)
    for call in {[call for call, _ in WRONG]}:
        with pytest.raises(pytest.fail.Exception) as raised:
            eval(call)
        print(raised.value)
""",
    )
    result = run(pytester, "-s")
    result.assert_outcomes(passed=1)
    result.stdout.fnmatch_lines([f"*{said}" for _, said in WRONG])
