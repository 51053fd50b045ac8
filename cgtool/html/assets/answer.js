"use strict";
// The Answer view: the sentences that matter, the findings, and what was captured where.

const MARKS = { error: "✖", warning: "▲", note: "●" };

class AnswerView {
  static title = "Answer";

  constructor(host, capture) {
    this.capture = capture;
    const [first, ...rest] = capture.sentences;
    append(host, make("div.page", {},
      make("section.lead", {},
        make("p.sentence", { "data-verdict": capture.verdict }, first)),
      this.picture(),
      rest.length > 0 && make("section.lead", {}, rest.map((sentence) => make("p", {}, sentence))),
      this.most(),
      make("div.flow", {},
        this.findings(),
        this.failures(),
        capture.tables.map((table) => tableSection(table)),
        capture.notes.length > 0 && make("section", {}, make("h2", {}, "Notes"), make("ul", {}, capture.notes.map((note) => make("li", {}, note)))),
        this.facts())));
  }

  static applies() {
    return true;
  }

  picture() {
    const host = make("section.picture");
    const { plots } = new Overview(host, this.capture);
    return plots.length > 0 && host;
  }

  /** Where most of the time goes, or most of the nodes are. */
  most() {
    const { capture } = this;
    if (!capture.count) return null;
    const heading = capture.timed ? "Most of the time" : "Most of the nodes";
    return make("section", {}, make("h2", {}, heading), make("div.columns", {}, ["line", "layer", "op"].map((by) => this.ranking(by))));
  }

  ranking(by) {
    const { capture } = this;
    const { of, names } = capture.grouping(by);
    const weights = new Float64Array(names.length);
    const total = capture.totalWeight();
    for (let node = 0; node < capture.count; node++) weights[of[node]] += capture.weight(node);
    const ranked = names.map((_, at) => at).filter((at) => weights[at]).sort((a, b) => weights[b] - weights[a]).slice(0, 6);
    return make("table.compact", {},
      make("caption", {}, by === "layer" ? "by module, excluding submodules" : `by ${by}`),
      make("tbody", {}, ranked.map((group) => {
        const code = by === "line" ? capture.lineText(capture.frame(of.indexOf(group))) : "";
        const filled = make("span.filled");
        filled.style.width = `${(100 * weights[group]) / weights[ranked[0]] || 0}%`;
        return make("tr", {},
          make("td.grow", {}, link(names[group], () => state.select(capture.filter((node) => of[node] === group), names[group])),
            code && make("code.line-text", { title: code }, code),
            make("span.bar.thin", {}, filled)),
          make("td.number", {}, capture.timed ? timeText(weights[group]) : numberText(weights[group])),
          make("td.number.muted", {}, shareText(weights[group] / total)));
      })));
  }

  findings() {
    const { findings } = this.capture;
    const heading = make("h2", {}, "Findings");
    if (!findings.length) return make("section", {}, heading, make("p.muted", {}, prose("None in this capture. `cgtool check` and `cgtool verify` run the code and look for more.")));
    return make("section", {}, heading, findings.map((finding) => this.finding(finding)));
  }

  finding(finding) {
    const { capture } = this;
    const place = finding.place;
    const where = (frame, label) =>
      frame >= 0 && (capture.files[capture.frames[frame][0]].numbers.length
        ? snippet(capture, frame, label)
        : make("div.snippet", {}, make("p.small", {}, make("span.muted", {}, `${label} `), frameLink(capture, frame), make("span.muted", {}, ` in ${capture.frames[frame][2]}`))));
    const nodes = place < 0 ? [] : capture.filter((node) => capture.place(node)[4].includes(place) || capture.frame(node) === place);
    return make(`article.finding.${finding.severity}`, {},
      make("h3", {}, make("span.mark", { "aria-hidden": "true" }, MARKS[finding.severity]),
        make("span.severity", {}, finding.severity), " ", prose(finding.title), " ", make("code", {}, finding.code)),
      make("p", {}, make("strong", {}, "Why: "), prose(finding.reason), finding.times > 1 ? ` (${finding.times} times)` : null),
      finding.unneeded && state.showUnneeded &&
        make("p", {}, link("Show these dependencies in the graph", state.showUnneeded)),
      where(place, finding.phase ?? "at"),
      where(finding.forward, "forward"),
      finding.evidence.length > 0 && make("ul.small", {}, finding.evidence.map((text) => make("li", {}, prose(text)))),
      finding.fix && make("p", {}, make("strong", {}, "Fix: "), prose(finding.fix)),
      finding.graphs.length > 0 && make("p", {}, link(`Show ${finding.graphs.length === 1 ? "the graph" : countText(finding.graphs.length, "graph")} in the run`, () => {
        const shown = new Set(finding.graphs);
        state.select(capture.filter((node) => shown.has(capture.graphOf[node])), finding.code);
        state.show("run");
      })),
      nodes.length > 0 && make("p", {}, link(`Show the ${nodes.length === 1 ? "node" : countText(nodes.length, "node")} in the graph`, () => {
        state.select(nodes, finding.code);
        state.show("graph");
      })));
  }

  /** Captures that failed for a reason that no finding explains. */
  failures() {
    const { failures } = this.capture;
    return failures.length > 0 && make("section", {}, make("h2", {}, "Failed captures"), failures.map((text) =>
      make("article.finding.error", {}, make("p", {}, make("span.mark", { "aria-hidden": "true" }, MARKS.error), text))));
  }

  facts() {
    return make("section", {}, make("h2", {}, "Environment"),
      make("dl.wide", {}, this.capture.facts.map(([label, text]) => [make("dt", {}, label), make("dd", {}, text)])));
  }
}
