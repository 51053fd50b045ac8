"""What the user's code replaced in Python and PyTorch is put back and named."""

from __future__ import annotations

import builtins
import json
import os
import sys

import torch

from cgtool.worker.user_process import Originals, describe_replaced, frames_of_replaced


def originals() -> Originals:
    kept = Originals()
    kept.keep("torch", "torch.autograd", "torch.Tensor")
    return kept


def test_nothing_replaced_is_nothing_found():
    assert originals().restore() == []


def test_replaced_names_are_put_back_and_named():
    kept = originals()
    length, grad, module = builtins.len, torch.autograd.grad, sys.modules["json"]
    builtins.len = None
    torch.autograd.grad = lambda *_: None
    torch.Tensor.data_ptr = None
    sys.modules["json"] = None
    del os.getcwd
    restored = kept.restore()
    assert builtins.len is length
    assert torch.autograd.grad is grad
    assert torch.ones(1).data_ptr() != 0
    assert sys.modules["json"] is module is json
    assert callable(os.getcwd)
    assert {replaced.name for replaced in restored} == {
        "builtins.len",
        "torch.autograd.grad",
        "torch.Tensor.data_ptr",
        "sys.modules['json']",
        "os.getcwd",
    }
    working = [replaced for replaced in restored if not replaced.is_broken]
    assert [replaced.name for replaced in working] == ["torch.autograd.grad"]
    assert describe_replaced(restored).endswith("and 2 more")


def test_what_libraries_do_to_themselves_is_not_the_users():
    kept = originals()
    before = torch.ones_like
    torch.ones_like = torch.zeros_like
    torch.a_new_name = 3
    try:
        assert kept.restore() == []
        assert torch.ones_like is before
    finally:
        del torch.a_new_name


def test_the_line_that_assigns_is_found(tmp_path, monkeypatch):
    (tmp_path / "patches_torch.py").write_text("import torch\n\n\ntorch.zeros_like = None\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    kept = originals()
    import patches_torch  # noqa: F401

    restored = kept.restore()
    assert [replaced.name for replaced in restored] == ["torch.zeros_like"]
    (frame,) = frames_of_replaced(restored)
    assert (frame.file, frame.line) == (str(tmp_path / "patches_torch.py"), 4)
    del sys.modules["patches_torch"]
