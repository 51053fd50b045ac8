"""``graph.verify()`` and ``graph.check()``: what does not hold is raised with all that is known."""

from __future__ import annotations

from msgspec.structs import replace

from cgtool.analysis.findings import explain_findings, is_hazard
from cgtool.analysis.gate.budgets import nearest
from cgtool.analysis.verify import exit_code, noise
from cgtool.findings.registry import codes, page
from cgtool.model.failure import EXIT_FOUND, EXIT_OK, usage
from cgtool.model.finding import ERROR, Report
from cgtool.model.options import VerifyOptions
from cgtool.pytest_plugin.error_translation import NotHeld, drawn
from cgtool.pytest_plugin.workers import Workers


def verify(workers: Workers, options: VerifyOptions) -> Report:
    """Raises NotHeld where replay and eager part, or nobody can tell."""
    report = workers.verify(workers.entry.spec, options)
    report = replace(report, findings=(*report.findings, *noise(report)))
    if exit_code(report) == EXIT_OK:
        return report
    from cgtool.render.verify_table import render

    raise NotHeld(f"{_verdict(report)}\n{drawn(render(report))}")


def _verdict(report: Report) -> str:
    entry, compared = report.entry.spec, report.comparisons
    apart = sum(not one.equal for one in compared)
    if apart:
        return f"{entry}: replay differs from eager in {apart} of {len(compared)} comparisons"
    if exit_code(report) == EXIT_FOUND:
        errors = [one.code for one in explain_findings(report.findings) if one.severity == ERROR]
        return f"{entry}: replay is not eager: {', '.join(errors)}"
    return f"{entry}: cannot tell: eager differs too much from itself"


def check(workers: Workers, allow: tuple[str, ...]) -> Report:
    """Raises NotHeld for findings whose codes are not in ``allow``."""
    for code in allow:
        if page(code) is None:
            raise usage(f"graph.check(): no code {code!r}{nearest(code, codes())}")
    report = workers.check(workers.entry.name)
    report = replace(report, findings=tuple(f for f in report.findings if f.code not in allow))
    hazards = [one for one in explain_findings(report.findings) if is_hazard(one)]
    if not hazards:
        return report
    from cgtool.render.findings import render_report

    found = ", ".join(dict.fromkeys(one.code for one in hazards))
    raise NotHeld(f"{report.entry.spec}: {found}\n{drawn(render_report(report))}")
