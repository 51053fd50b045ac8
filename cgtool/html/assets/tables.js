"use strict";
// The Tables view: nodes by module (a tree, with an icicle plot above it), op, kernel, line.

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
    this.icicle = make("div.plot-host.icicle");
    this.content = make("div.scroll");
    append(host, make("div.toolbar", {}, this.buttons, this.onlyButton, this.copy), this.icicle, this.content);
    state.on("selection", () => (this.only ? this.show() : this.mark()), capture);
    state.on("color", () => this.plot?.redraw(), capture);
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
    let rows;
    this.icicle.hidden = by !== "module";
    if (by === "module") {
      const root = moduleTree(capture, chosen);
      rows = root.inner;
      this.drawIcicle(root);
    } else {
      rows = groupRows(capture, by, chosen);
    }
    this.total = capture.totalWeight() || 1;
    this.table = new SortedTable(this.columns(), rows, {
      label: `nodes by ${by}`, sort: capture.timed ? "time" : "nodes",
      marked: (row) => state.mask !== null && row.nodes.length > 0 && row.nodes.every((node) => state.mask[node]),
    });
    replace(this.copy, this.table.copyButton());
    replace(this.content, this.table.element);
  }

  mark() {
    this.table.mark();
    this.plot?.redraw();
  }

  columns() {
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
      has(capture.bytesOf) && { name: "bytes", number: true, value: (row) => row.bytes, text: bytesText },
      has(capture.flopsOf) && { name: "operations", number: true, value: (row) => row.flops, text: (value) => scaledText(value, "FLOP") },
      has(capture.memoryOf) && { name: "of peak", number: true, title: "share of the measured peak bandwidth or FLOP/s, whichever is higher", value: (row) => row.roofed ? row.roof / row.roofed : null, text: shareText },
      has(capture.boundOf) && { name: "bound", value: (row) => row.bound },
      (by === "op" || by === "kernel") && { name: "top line", value: (row) => row.line },
    ];
    return columns.filter(Boolean);
  }

  // --- the icicle plot

  drawIcicle(root) {
    this.root = root;
    this.levels = [];
    const add = (row, x, level) => {
      (this.levels[level] ??= []).push({ row, x });
      let at = x;
      for (const inner of row.inner) {
        add(inner, at, level + 1);
        at += inner.weight;
      }
    };
    add(root, 0, 0);
    this.icicle.style.flex = `0 0 ${(Math.min(9, this.levels.length) * 21 + 3) / TEXT}rem`;
    if (!this.plot) {
      this.plot = new Plot(this.icicle, "Modules, as wide as their time", {
        draw: (context) => this.drawLevels(context),
        hover: (x, y, event) => this.hover(x, y, event),
        click: (x, y, event) => this.click(x, y, event),
      });
    }
    this.plot.extent(0, root.weight, root.weight / 1e5);
    this.plot.tall = this.levels.length * 21 + 3;
    this.plot.redraw();
  }

  drawLevels(context) {
    const { plot, capture } = this;
    context.font = `11px ${theme.font}`;
    context.textBaseline = "middle";
    this.levels.forEach((level, depth) => {
      const y = depth * 21 + 1 - plot.top;
      let drawn = -1;
      for (const [at, { row, x }] of level.entries()) {
        const [left, right] = [Math.max(-2, plot.px(x)), Math.min(plot.width + 2, plot.px(x + row.weight))];
        if (right < 0 || left > plot.width || right <= drawn) continue;
        drawn = right - left < 1 ? left + 1 : right;
        const lit = state.mask && row.nodes.length && row.nodes.every((node) => state.mask[node]);
        context.fillStyle = lit ? theme.series[0] : at % 2 ? theme.band : theme["band-2"];
        context.fillRect(left, y, Math.max(1, right - left - 1), 20);
        context.fillStyle = lit ? "#10151c" : theme.ink;
        const name = depth ? row.name : `all, ${capture.weightText(row.weight)}`;
        drawText(context, name, Math.max(left, 0) + 5, y + 10.5, right - Math.max(left, 0) - 8);
      }
    });
  }

  at(px, y) {
    const x = this.plot.x(px);
    const level = this.levels[Math.floor((y + this.plot.top - 1) / 21)];
    return level?.find((each) => x >= each.x && x < each.x + each.row.weight)?.row;
  }

  hover(x, y, event) {
    const row = x === null ? null : this.at(x, y);
    if (!row) return showTooltip(null, null);
    const share = shareText(row.weight / this.total);
    return showTooltip(event, [row.path ?? row.name, row.type, `${this.capture.weightText(row.weight)}, ${share}`]);
  }

  click(x, y) {
    const row = this.at(x, y);
    if (row) state.select(row.nodes, row.path ?? row.name);
  }

  resume() {
    this.plot?.resize();
  }
}

// --- rows: groups of nodes with their sums

function newRow(name, path = null) {
  return { name, path, type: null, nodes: [], inner: [], weight: 0, backward: 0, bytes: null, flops: null, roof: 0, roofed: 0, bounds: new Map(), lines: new Map() };
}

function addNode(capture, row, node) {
  const weight = capture.weight(node);
  row.nodes.push(node);
  row.weight += weight;
  if (capture.isBackward(node)) row.backward += weight;
  if (capture.bytesOf[node] >= 0) row.bytes = (row.bytes ?? 0) + capture.bytesOf[node];
  if (capture.flopsOf[node] >= 0) row.flops = (row.flops ?? 0) + capture.flopsOf[node];
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
    // The dots in the name of a range separate nothing.
    const parts = /(^|: )\(/.test(path) ? [path] : path.split(".");
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
