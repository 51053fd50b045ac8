"""The processor is named from what the kernel says, whatever it says."""

from __future__ import annotations

import platform

import pytest

from cgtool.devices import processor

X86 = """processor\t: 0
vendor_id\t: AuthenticAMD
model\t\t: 17
model name\t: AMD EPYC 9654 96-Core Processor

processor\t: 1
model name\t: another one
"""
GRACE = """processor\t: 0
BogoMIPS\t: 2000.00
CPU implementer\t: 0x41
CPU architecture: 8
CPU part\t: 0xd4f
"""
POWER = "processor\t: 0\ncpu\t\t: POWER9, altivec supported\n"


@pytest.mark.parametrize(
    ("text", "name"),
    [
        (X86, "AMD EPYC 9654 96-Core Processor"),
        (GRACE, "aarch64 CPU implementer 0x41 CPU part 0xd4f"),
        (POWER, "POWER9, altivec supported"),
        ("", "what Python knows"),
        ("no colon\n:\nmodel name :\n", "what Python knows"),
        (None, "what Python knows"),
    ],
)
def test_the_first_processor_is_named(tmp_path, monkeypatch, text, name):
    if text is not None:
        (tmp_path / "cpuinfo").write_text(text)
    monkeypatch.setattr(processor, "_CPUINFO", tmp_path / "cpuinfo")
    monkeypatch.setattr(platform, "machine", lambda: "aarch64")
    monkeypatch.setattr(platform, "processor", lambda: "what Python knows")
    assert processor.processor() == name
    monkeypatch.setattr(platform, "processor", lambda: "")
    assert processor.processor() == (None if name == "what Python knows" else name)


def test_there_is_a_processor():
    assert processor.processors() >= 1
