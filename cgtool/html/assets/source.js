"use strict";
// The Source view: the files with nodes, time and bytes beside each line.

const MEANING = {
  time: "GPU time of the line's nodes in one replay of each graph, including their backward",
  share: "of the replays, idle time included; of all nodes, where nothing was timed",
  backward: "share of the time spent in backward",
  bytes: "read and written by its ops, each tensor counted once",
  memory: "allocated for its ops; memory that is reused counts each time",
};

class SourceView {
  static title = "Source";

  constructor(host, capture) {
    this.capture = capture;
    this.perLine = linesOf(capture);
    const files = this.files();
    this.pick = make("select", { "aria-label": "file", onchange: () => this.show(Number(this.pick.value)) },
      files.map(({ file, weight }) => make("option", { value: file, title: capture.files[file].path }, `${capture.fileText(file)}, ${capture.weightText(weight)}`)));
    this.note = make("span.hint");
    this.content = make("div.scroll");
    append(host, make("div.toolbar", {}, make("label", {}, "File ", this.pick), this.note), this.content);
    state.on("selection", () => this.mark(), capture);
    this.show(files[0].file);
  }

  /** Some line of a file is known. */
  static applies(capture) {
    return capture.files.length > 0 && capture.count > 0 && linesOf(capture).size > 0;
  }

  /** Files, the most time first. */
  files() {
    const weights = new Map();
    for (const { file, weight } of this.perLine.values()) weights.set(file, (weights.get(file) ?? 0) + weight);
    return [...weights].map(([file, weight]) => ({ file, weight })).sort((a, b) => b.weight - a.weight);
  }

  show(file, line = null) {
    const { capture } = this;
    this.file = file;
    this.pick.value = file;
    const { numbers, lines, absent } = capture.files[file];
    const used = [...this.perLine.values()].filter((each) => each.file === file);
    const byNumber = new Map(used.map((each) => [each.line, each]));
    const rows = numbers.length ? numbers.map((number, at) => [number, lines[at]]) : used.map((each) => [each.line, null]).sort((a, b) => a[0] - b[0]);
    this.note.textContent = absent ? `Only line numbers are known: ${absent}.` : "";
    const most = used.reduce((sum, each) => Math.max(sum, each.weight), 0);
    const heads = [...(capture.timed ? ["time"] : []), "share", "nodes", ...["backward", "bytes", "memory"].filter((name) => used.some((each) => each[name]))];
    let last = 0;
    const body = rows.flatMap(([number, text]) => {
      const skipped = last && number > last + 1;
      last = number;
      const row = this.row(number, text, byNumber.get(number), most, heads);
      return skipped ? [make("tr.skipped", {}, make("td", { colspan: heads.length + 2 }, "⋯")), row] : [row];
    });
    replace(this.content, make("table.source", { "aria-label": capture.files[file].path },
      make("thead", {}, make("tr", {}, heads.map((head, at) => make(at ? "th.number.more" : "th.number", { title: MEANING[head] }, head)), make("th.number", {}, "line"), make("th", {}, capture.files[file].path))),
      make("tbody", {}, body)));
    const heaviest = used.reduce((a, b) => (b.weight > (a?.weight ?? -1) ? b : a), null);
    const to = line ?? heaviest?.line;
    this.content.querySelector(`tr[data-line="${Number(to)}"]`)?.scrollIntoView({ block: "center" });
    this.content.scrollLeft = 0;
    this.mark();
  }

  row(number, text, used, most, heads) {
    const { capture } = this;
    const total = capture.totalWeight() || 1;
    const cells = used
      ? { time: timeText(used.weight), share: shareText(used.weight / total), nodes: numberText(used.nodes.length),
          backward: used.backward ? shareText(used.backward / used.weight) : "", bytes: used.bytes ? bytesText(used.bytes) : "",
          memory: used.memory ? bytesText(used.memory) : "" }
      : {};
    const row = make("tr", { "data-line": number, class: used ? "used" : null },
      heads.map((head, at) => make(at ? "td.number.more" : "td.number", {}, cells[head] ?? "")),
      make("td.number.line-cell", {}, used ? link(String(number), () => this.choose(used), `Select its ${countText(used.nodes.length, "node")}`) : String(number)),
      make("td.text-of-line", {}, text == null ? make("span.muted", {}, "(source not known)") : codeLine("div", text)));
    if (used) {
      // The heavier the line, the stronger its color.
      row.style.setProperty("--heat", String(Math.round(100 * Math.sqrt(used.weight / (most || 1)))));
      row.addEventListener("click", (event) => event.target.closest("button") || this.choose(used));
    }
    return row;
  }

  choose({ file, line, nodes }) {
    state.select(nodes, `${this.capture.fileText(file)}:${line}`);
  }

  /** Lines with selected nodes. */
  mark() {
    for (const row of this.content.querySelectorAll("tr.used")) {
      const used = this.perLine.get(`${this.file}:${row.dataset.line}`);
      row.classList.toggle("marked", state.mask !== null && used.nodes.some((node) => state.mask[node]));
    }
  }
}

/** Sums by line: a node counts at its line, that of a backward at its forward line. */
function linesOf(capture) {
  if (capture.lineSums) return capture.lineSums;
  const sums = new Map();
  const at = (frame) => {
    const [file, line] = capture.frames[frame];
    const key = `${file}:${line}`;
    if (!sums.has(key)) sums.set(key, { file, line, nodes: [], weight: 0, backward: 0, bytes: 0, memory: 0 });
    return sums.get(key);
  };
  for (let node = 0; node < capture.count; node++) {
    const frame = capture.frame(node);
    if (frame < 0 || !capture.doesWork(node)) continue;
    const sum = at(frame);
    const weight = capture.weight(node);
    sum.nodes.push(node);
    sum.weight += weight;
    if (capture.isBackward(node)) sum.backward += weight;
    if (capture.bytesOf[node] >= 0) sum.bytes += capture.bytesOf[node];
  }
  capture.blocks?.origin.forEach((origin, block) => {
    const frame = origin < 0 ? -1 : capture.origins[origin][3];
    if (frame >= 0) at(frame).memory += capture.blocks.bytes[block];
  });
  return (capture.lineSums = sums);
}
