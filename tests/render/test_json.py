"""JSON holds every name as it is, and nothing that a terminal or an editor would act on."""

from __future__ import annotations

import json

from hypothesis import given
from hypothesis import strategies as st

from cgtool.analysis.reports import explain_findings
from cgtool.model.capture import Frame
from cgtool.model.finding import Finding
from cgtool.render.json import encode, json_bytes, sarif
from tests.strategies import names

ODD = "\x00 \x1b[31m \x7f \x85 \x9b31m \u061c \u200f \u2028 \u202e \u2066 \ufeff"
texts = names | st.just(ODD) | st.text(st.sampled_from(ODD))


def shows_nothing_odd(data: bytes) -> bool:
    text = data.decode()
    return text.endswith("\n") and not any(
        character in text for character in ODD if not character.isprintable()
    )


@given(st.recursive(texts, lambda inner: st.lists(inner) | st.dictionaries(texts, inner)))
def test_what_is_written_reads_back(value: object) -> None:
    for indent in (None, 2):
        data = json_bytes(value, indent=indent)
        assert json.loads(data) == value
        assert shows_nothing_odd(data)


def test_reports_and_sarif() -> None:
    finding = Finding("sync-item", ODD, (Frame(f"/{ODD}.py", 1, ODD),), module=ODD, fix=ODD)
    report = encode("cgtool-check", {"findings": [ODD]})
    assert shows_nothing_odd(report)
    assert json.loads(report)["findings"] == [ODD]
    log = sarif(explain_findings([finding]))
    assert shows_nothing_odd(log)
    assert ODD in json.loads(log)["runs"][0]["results"][0]["message"]["text"]
