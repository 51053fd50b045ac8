"use strict";
// The Difference view: what came, went, changed and moved from A to B, and what became slower.

const CHANGE_COLORS = { changed: 2, moved: 4, removed: 1, added: 0 }; // of the series; others as a band
const SIDE_GAP = 46; // between the lanes of A and of B
const MOST_RIBBONS = 4000;
const SLOWER = 1.1; // another time than this much more or less is not colored

/** Which node of one capture is which of the other. */
class Difference {
  constructor(tree, columns, captures) {
    Object.assign(this, tree);
    this.captures = captures;
    const empty = new Int32Array(0);
    [this.a, this.b, this.kind] = ["a", "b", "kind"].map((name) => columns[`difference/${name}`] ?? empty);
    this.timed = captures.every((capture) => capture.timed);
    // By side and node: its row.
    this.rowOf = captures.map((capture, side) => {
      const rows = new Int32Array(capture.count).fill(-1);
      (side ? this.b : this.a).forEach((node, row) => {
        if (node >= 0) rows[node] = row;
      });
      return rows;
    });
  }

  /** The time in B as a multiple of that in A; NaN where one is missing. */
  ratio(row) {
    const [a, b] = [this.a[row], this.b[row]];
    if (a < 0 || b < 0) return NaN;
    const [before, after] = [this.captures[0].durationOf[a], this.captures[1].durationOf[b]];
    return before > 0 && after > 0 ? after / before : NaN;
  }
}

class DifferenceView {
  static title = "Difference";

  constructor(host, _, difference) {
    this.difference = difference;
    this.way = "change";
    this.area = make("div.plot-host.two");
    this.legend = make("div.legend");
    this.layouts = [new Map(), new Map()];
    const { graphs, captures } = difference;
    const name = ({ a, b }) => (b === null ? `${captures[0].graphs[a].name}, only in A` : captures[1].graphs[b].name);
    const pick = make("select", { "aria-label": "graph", onchange: () => this.choose(Number(pick.value)) },
      graphs.map((graph, at) => make("option", { value: at }, name(graph))));
    const way = make("select", { onchange: () => this.color(way.value) }, ["change", "time"].map((each) => make("option", {}, each)));
    append(host,
      make("div.page", {}, make("p.sentence", {}, `${difference.sentence.replace(/\.$/, "")}.`),
        make("p.muted", {}, `A is ${difference.names[0]}, B is ${difference.names[1]}.`),
        difference.times && make("p", {}, prose(difference.times)),
        difference.notes.length > 0 && make("ul", {}, difference.notes.map((note) => make("li", {}, note)))),
      graphs.length > 0 && [
        make("div.toolbar", {}, graphs.length > 1 && make("label", {}, "Graph ", pick),
          difference.timed && make("label", {}, "Color by ", way),
          make("button", { onclick: () => this.plot.fit() }, "Fit"),
          plotHint("change")),
        this.area, this.legend],
      make("div.page", {}, difference.tables.map((table) => tableSection(table, table.nodes ? (row) => this.select(table.nodes[row.number]) : null))));
    if (!graphs.length) return;
    this.plot = new Plot(this.area, "The nodes of both captures, one above the other", {
      draw: (context) => this.draw(context),
      hover: (x, y, event) => this.hover(x, y, event),
      click: (x, y) => this.click(x, y),
      step: (by) => this.step(by),
    });
    // The first graph with a difference; without any, times are what may differ.
    const first = graphs.findIndex(({ rows: [from, to] }) => difference.kind.subarray(from, to).some((kind) => kind > 0));
    if (first < 0 && difference.timed) this.way = way.value = "time";
    pick.value = Math.max(0, first);
    this.choose(Math.max(0, first));
    state.on("selection color", () => this.plot.redraw());
  }

  static applies(capture, difference) {
    return difference !== null;
  }

  select([a, b]) {
    const side = b.length ? 1 : 0;
    const nodes = side ? b : a;
    if (!nodes.length) return;
    state.open(this.difference.captures[side]);
    state.select(nodes, nodes.length === 1 ? state.capture.title(nodes[0]) : "nodes of this row");
  }

  choose(at) {
    const { graphs, captures } = this.difference;
    this.graph = graphs[at];
    const sides = [this.graph.a, this.graph.b];
    // One axis for both: a node takes its time in both, or as much as every other.
    const inOrder = sides.some((graph, side) => graph !== null && !captures[side].timed);
    this.shown = sides.map((graph, side) => {
      if (graph === null) return null;
      const { layouts } = this;
      if (!layouts[side].has(graph)) layouts[side].set(graph, new GraphLayout(captures[side], graph, inOrder));
      return layouts[side].get(graph);
    });
    const most = Math.max(1, ...this.shown.map((layout) => layout?.length ?? 0));
    this.inTime = this.shown.some((layout) => layout?.inTime);
    const rows = this.shown.reduce((sum, layout) => sum + (layout?.lanes.reduce((all, lane) => all + lane.rows.length, 0) ?? 0), 0);
    this.area.style.flex = `0 0 ${(RULER + HEAD + SIDE_GAP + rows * (ROWS[0] + 9) + GAP) / TEXT}rem`;
    this.plot.extent(-0.01 * most, 1.01 * most, Math.min(this.inTime ? 100 : 4, most));
    this.color(this.way);
  }

  /** Selects the next node that is not the same, or as fast, in the other capture. */
  step(by) {
    const { captures, rowOf, kind, a, b } = this.difference;
    const [from, to] = this.graph.rows;
    const { lead, capture } = state;
    const isOther = (row) => kind[row] > 0 || (this.way === "time" && this.fill(row) !== theme["band-2"]);
    let row = lead < 0 ? (by > 0 ? from - 1 : to) : rowOf[capture.number][lead];
    do row += by; while (row >= from && row < to && !isOther(row));
    if (row < from || row >= to) return;
    const side = b[row] >= 0 ? 1 : 0;
    state.open(captures[side]);
    state.selectNode(side ? b[row] : a[row]);
  }

  color(way) {
    this.way = way;
    const kind = this.difference.kind.subarray(...this.graph.rows);
    const variable = (name) => (name in CHANGE_COLORS ? `var(--series-${CHANGE_COLORS[name]})` : "var(--band-2)");
    const count = (at) => kind.reduce((sum, each) => sum + (each === at), 0);
    const entries = way === "change"
      ? this.difference.kinds.map((name, at) => [variable(name), name, count(at)]).filter(([, , count]) => count)
      : [["var(--series-0)", "faster in B"], ["var(--band-2)", `within ${Math.round(100 * (SLOWER - 1))}%`], ["var(--series-1)", "slower in B"], ["var(--series-rest)", "in one capture only"]];
    replace(this.legend, entries.map(([color, name, count]) => {
      return legendEntry("span.entry", {}, color, name, count === undefined ? null : numberText(count));
    }));
    this.plot.redraw();
  }

  fill(row) {
    const { kind } = this.difference;
    if (this.way === "time") {
      const ratio = this.difference.ratio(row);
      if (Number.isNaN(ratio)) return theme.rest;
      return ratio > SLOWER ? theme.series[1] : ratio < 1 / SLOWER ? theme.series[0] : theme["band-2"];
    }
    return theme.series[CHANGE_COLORS[this.difference.kinds[kind[row]]]] ?? theme["band-2"];
  }

  // --- drawing

  draw(context) {
    const { plot } = this;
    drawRuler(context, plot, RULER, (x, step) => (this.inTime ? markText(x, step) : numberText(Math.round(x))), 1);
    let y = RULER - plot.top;
    this.areas = [];
    this.spots = [new Map(), new Map()]; // by side: where wide nodes are
    const heads = [];
    this.shown.forEach((layout, side) => {
      heads.push(y + HEAD / 2);
      y += HEAD;
      for (const lane of layout?.lanes ?? []) {
        for (const row of lane.rows) {
          this.drawRow(context, layout, row, side, y);
          y += ROWS[0] + 1;
        }
        y += 8;
      }
      if (side === 0) y += SIDE_GAP - HEAD;
    });
    this.drawRibbons(context);
    this.shown.forEach((layout, side) => this.drawHead(context, layout, side, heads[side]));
    plot.tall = y + plot.top;
  }

  drawHead(context, layout, side, y) {
    const { captures, names } = this.difference;
    context.font = `600 12px ${theme.font}`;
    context.fillStyle = theme.ink;
    const length = layout?.inTime ? `, ${timeText(layout.length)}` : "";
    const text = layout
      ? `${captures[side].graphs[layout.graph].name}, ${countText(layout.end - layout.first, "node")}${length}`
      : `not in ${names[side]}`;
    drawText(context, `${"AB"[side]}: ${text}`, 8, y, this.plot.width - 16);
  }

  drawRow(context, layout, row, side, y) {
    const { plot, difference } = this;
    const rows = difference.rowOf[side];
    const capture = difference.captures[side];
    const isShown = state.capture === capture;
    this.areas.push({ y, row, layout, side });
    context.font = `11px ${theme.font}`;
    context.textBaseline = "middle";
    let [pixel, kind] = [-1, -1]; // a pixel shows its most unusual node
    for (let at = layout.firstEnding(row, plot.x0); at < row.length; at++) {
      const node = row[at];
      const x = plot.px(layout.start(node));
      if (x > plot.width) break;
      const right = plot.px(layout.stop(node));
      const index = rows[node];
      const own = index < 0 ? 0 : difference.kind[index];
      if (right - x < 1.5) {
        const here = Math.floor(x);
        if (here === pixel && own <= kind) continue;
        [pixel, kind] = [here, own];
      }
      const color = index < 0 ? theme.rest : this.fill(index);
      context.fillStyle = color;
      context.fillRect(Math.max(x, -2), y, Math.max(1, Math.min(right, plot.width + 2) - Math.max(x, -2) - (right - x > 4 ? 1 : 0)), ROWS[0]);
      if (right - x >= 1.5 || own > 0) this.spots[side].set(node, [x, right, y]);
      if (right - x > 26) {
        context.fillStyle = color === theme["band-2"] ? theme.ink : "#10151c";
        drawText(context, capture.op(node) ?? capture.title(node), Math.max(x, 0) + 5, y + ROWS[0] / 2 + 0.5, Math.min(right, plot.width) - Math.max(x, 0) - 8);
      }
      if (isShown && state.mask?.[node]) {
        context.strokeStyle = theme.ink;
        context.lineWidth = 2;
        context.strokeRect(x + 1, y + 1, Math.max(2, right - x - 3), ROWS[0] - 2);
      }
    }
  }

  /** From each node of A to the same in B. */
  drawRibbons(context) {
    const { difference } = this;
    let drawn = 0;
    for (const [node, [x, right, y]] of this.spots[0]) {
      const row = difference.rowOf[0][node];
      const other = row < 0 ? undefined : this.spots[1].get(difference.b[row]);
      if (!other || drawn++ > MOST_RIBBONS) continue;
      const [x2, right2, y2] = other;
      const top = y + ROWS[0];
      const middle = (top + y2) / 2;
      context.beginPath();
      context.moveTo(x, top);
      context.bezierCurveTo(x, middle, x2, middle, x2, y2);
      context.lineTo(Math.max(x2 + 0.7, right2 - 1), y2);
      context.bezierCurveTo(right2, middle, right, middle, Math.max(x + 0.7, right - 1), top);
      context.closePath();
      context.globalAlpha = difference.kind[row] || this.way === "time" ? 0.5 : 0.3;
      context.fillStyle = this.fill(row);
      context.fill();
    }
    context.globalAlpha = 1;
  }

  // --- pointer

  at(px, y) {
    const area = this.areas?.find((each) => y >= each.y && y < each.y + ROWS[0]);
    if (!area) return null;
    const { row, layout, side } = area;
    const x = this.plot.x(px);
    const slack = 1.5 / this.plot.scale;
    const at = row.findIndex((node) => layout.start(node) - slack <= x && x <= layout.stop(node) + slack);
    return at < 0 ? null : { node: row[at], side };
  }

  hover(x, y, event) {
    const thing = x === null ? null : this.at(x, y);
    this.plot.canvas.style.cursor = thing ? "pointer" : "";
    if (!thing) return showTooltip(null, null);
    const { difference } = this;
    const row = difference.rowOf[thing.side][thing.node];
    const ratio = row < 0 ? NaN : difference.ratio(row);
    const times = Number.isNaN(ratio) ? null
      : `${timeText(difference.captures[0].durationOf[difference.a[row]])} in A, ${timeText(difference.captures[1].durationOf[difference.b[row]])} in B`;
    return showTooltip(event, [...nodeRows(difference.captures[thing.side], thing.node), row < 0 ? null : difference.kinds[difference.kind[row]], times]);
  }

  click(x, y) {
    const thing = this.at(x, y);
    if (!thing) return state.clear();
    state.open(this.difference.captures[thing.side]);
    return state.selectNode(thing.node);
  }

  resume() {
    this.plot?.resize();
  }
}
