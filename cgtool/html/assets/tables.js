"use strict";
// The Tables view: nodes by module (a tree), op, kernel, line.

const TABLES = ["module", "op", "kernel", "line", "stream"];

class TablesView {
  static title = "Tables";

  constructor(host, capture) {
    this.capture = capture;
    this.by = "module";
    this.only = false;
    this.buttons = make("div.choice", { role: "radiogroup", "aria-label": "group by" }, TABLES.map((by) =>
      make("button.toggle", { role: "radio", "data-by": by, onclick: () => this.choose(by) }, by)));
    this.onlyButton = make("button.toggle", { "aria-pressed": "false", onclick: () => this.toggle() }, "Selection only");
    this.copy = make("span");
    this.content = make("div.scroll");
    append(host, make("div.toolbar", {}, this.buttons, this.onlyButton, this.copy), this.content);
    state.on("selection", () => (this.only ? this.show() : this.table.mark()), capture);
    this.choose("module");
  }

  static applies(capture) {
    return capture.count > 0;
  }

  choose(by) {
    this.by = by;
    for (const button of this.buttons.children) button.setAttribute("aria-checked", String(button.dataset.by === by));
    this.show();
  }

  toggle() {
    this.only = !this.only;
    this.onlyButton.setAttribute("aria-pressed", String(this.only));
    this.show();
  }

  show() {
    const { capture, by } = this;
    const { mask } = state;
    const chosen = (node) => capture.doesWork(node) && (!this.only || !mask || mask[node] === 1);
    const rows = by === "module" ? moduleTree(capture, chosen).inner : groupRows(capture, by, chosen);
    this.total = capture.totalWeight() || 1;
    this.table = new SortedTable(this.columns(rows), rows, {
      label: `nodes by ${by}`, sort: capture.timed ? "time" : "nodes",
      marked: (row) => state.mask !== null && row.nodes.length > 0 && row.nodes.every((node) => state.mask[node]),
    });
    replace(this.copy, this.table.copyButton());
    replace(this.content, this.table.element);
  }

  columns(rows) {
    const { capture, by } = this;
    const has = (column) => column.some((value) => value >= 0);
    const columns = [
      { name: by, value: (row) => row.name, link: (row) => state.select(row.nodes, row.path ?? row.name) },
      by === "module" && { name: "type", value: (row) => row.type },
      capture.timed && { name: "time", number: true, value: (row) => row.weight, text: timeText },
      { name: "share", number: true, title: capture.timed ? "of the replays, idle time included" : "of all nodes", value: (row) => row.weight / this.total, text: shareText, bar: (row) => row.weight / this.total },
      { name: "nodes", number: true, value: (row) => row.nodes.length, text: numberText },
      capture.timed && { name: "per node", number: true, title: "mean time of a node", value: (row) => row.weight / row.nodes.length, text: timeText },
      { name: "backward", number: true, title: "share of the time spent in backward", value: (row) => row.backward / (row.weight || 1), text: shareText },
      ...valueColumns((known) => rows.some(known), (row, name) => row[name]),
      has(capture.bytesOf) && { name: "bytes", number: true, value: (row) => row.bytes, text: bytesText },
      has(capture.flopsOf) && { name: "operations", number: true, value: (row) => row.flops, text: (value) => scaledText(value, "FLOP") },
      has(capture.memoryOf) && { name: "of peak", number: true, title: "share of the measured peak bandwidth or FLOP/s, whichever is higher", value: (row) => row.roofed ? row.roof / row.roofed : null, text: shareText },
      has(capture.boundOf) && { name: "bound", value: (row) => row.bound },
      (by === "op" || by === "kernel") && { name: "top line", value: (row) => row.line },
    ];
    return columns.filter(Boolean);
  }
}

// --- rows: groups of nodes with their sums

function newRow(name, path = null) {
  return { name, path, type: null, nodes: [], inner: [], weight: 0, backward: 0, bytes: null, flops: null, roof: 0, roofed: 0, least: Infinity, largest: -Infinity, nans: 0, infinities: 0, bounds: new Map(), lines: new Map() };
}

function addNode(capture, row, node) {
  const weight = capture.weight(node);
  row.nodes.push(node);
  row.weight += weight;
  if (capture.isBackward(node)) row.backward += weight;
  if (capture.bytesOf[node] >= 0) row.bytes = (row.bytes ?? 0) + capture.bytesOf[node];
  if (capture.flopsOf[node] >= 0) row.flops = (row.flops ?? 0) + capture.flopsOf[node];
  if (capture.leastOf[node] < row.least) row.least = capture.leastOf[node];
  if (capture.largestOf[node] > row.largest) row.largest = capture.largestOf[node];
  row.nans += Math.max(0, capture.nansOf[node]);
  row.infinities += Math.max(0, capture.infinitiesOf[node]);
  const roof = Math.max(capture.memoryOf[node] || 0, capture.computeOf[node] || 0);
  if (roof) {
    row.roof += roof * weight;
    row.roofed += weight;
  }
  const bound = capture.boundOf[node];
  row.bounds.set(bound, (row.bounds.get(bound) ?? 0) + weight);
  const frame = capture.frame(node);
  row.lines.set(frame, (row.lines.get(frame) ?? 0) + weight);
}

/** What most of its weight has in common. */
function endRow(capture, row) {
  const most = (weights) => [...weights].reduce((a, b) => (b[1] > a[1] ? b : a), [-1, -1]);
  const [bound, weight] = most(row.bounds);
  row.bound = bound < 0 ? null : 2 * weight >= row.weight ? capture.bounds[bound][0] : "mixed";
  row.line = capture.frameText(most(row.lines)[0]);
  return row;
}

function groupRows(capture, by, chosen) {
  const { of, names } = capture.grouping(by);
  const rows = names.map((name) => newRow(name));
  for (let node = 0; node < capture.count; node++) if (chosen(node)) addNode(capture, rows[of[node]], node);
  return rows.filter((row) => row.nodes.length).map((row) => endRow(capture, row));
}

/** All nodes as a tree of the modules that they are part of. */
function moduleTree(capture, chosen) {
  const root = newRow("all");
  const known = new Map();
  const inside = (row, name, path, depth) => {
    if (!known.has(path)) {
      const inner = Object.assign(newRow(name, path), { depth, type: capture.types[path] ?? null });
      known.set(path, inner);
      row.inner.push(inner);
    }
    return known.get(path);
  };
  for (let node = 0; node < capture.count; node++) {
    if (!chosen(node)) continue;
    addNode(capture, root, node);
    const path = capture.modulePath(node);
    const parts = pathNames(path);
    let row = root;
    parts.forEach((name, depth) => {
      row = inside(row, name, parts.slice(0, depth + 1).join("."), depth);
      row.type ??= depth === parts.length - 1 ? capture.place(node)[2] : null;
      addNode(capture, row, node);
    });
  }
  for (const row of known.values()) {
    endRow(capture, row);
    row.inner.sort((a, b) => a.nodes[0] - b.nodes[0]);
    row.open = row.depth === 0 && row.inner.length > 0 && row.inner.length <= 12;
  }
  return root;
}
