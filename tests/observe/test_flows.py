"""How often the source of a function is read."""

from __future__ import annotations

import importlib.util

from cgtool.observe.annotations import Annotations
from cgtool.observe.flow_reader import read_flows
from cgtool.observe.flows import Flows
from cgtool.observe.host_reads import HostReads
from cgtool.observe.iteration import observe

HELPERS = 8


def test_functions_that_call_each_other_are_read_once_each(tmp_path, monkeypatch):
    """Many helpers that did not run, reached through each other from branches that leave early: as
    in the search for the order of an `einsum` in opt_einsum."""
    names = [f"helper_{number}" for number in range(HELPERS)]
    calls = "\n".join(f"    {name}(items)" for name in names)
    leaves = "\n".join(f"    if items[0] == {number}:\n        return 0" for number in range(4))
    source = "\n".join(f"def {name}(items):\n{calls}\n" for name in names)
    source += f"def run(items):\n    for item in items:\n        pass\n{leaves}\n{calls}\n"
    # The helpers run nothing: the last branch always leaves.
    source = source.replace("== 3", "> 2")
    file = tmp_path / "library.py"
    file.write_text(source)
    spec = importlib.util.spec_from_file_location("library", file)
    library = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(library)
    reads, blocks = HostReads(), []
    change_tensors = Flows.change_tensors

    def counted(flows, code, statements, depth=3):
        blocks.append(code.co_name)
        return change_tensors(flows, code, statements, depth)

    monkeypatch.setattr(Flows, "change_tensors", counted)
    iteration = observe(lambda: library.run([3]), {}, Annotations(), reads, set())
    read_flows(iteration.ran, reads)
    assert set(names) <= set(blocks)
    assert max(map(blocks.count, names)) <= 3
