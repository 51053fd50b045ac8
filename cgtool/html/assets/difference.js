"use strict";
// The Difference view: what came, went, changed and moved from A to B, and what became slower.

const CHANGE_COLORS = { changed: 2, moved: 4, removed: 1, added: 0 }; // of the series; others as a band
const SIDE_GAP = 46; // between the lanes of A and of B
const MOST_MODULES = 3; // that are named beside a kind of change
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
    this.lanes = new Lanes(this.plot);
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
    const tall = this.shown.reduce((sum, layout) => sum + (layout ? Lanes.height(layout.lanes, ROWS[0]) : 0), RULER + HEAD + SIDE_GAP + GAP);
    this.area.style.flex = `0 0 ${tall / TEXT}rem`;
    this.plot.extent(-0.01 * most, 1.01 * most, Math.min(this.inTime ? 100 : 4, most));
    this.color(this.way);
  }

  /** Selects the next node that is not the same, or as fast, in the other capture. */
  step(by) {
    const { captures, rowOf, kind, a, b } = this.difference;
    const [from, to] = this.graph.rows;
    const { lead, capture } = state;
    const isOther = (row) => kind[row] > 0 || (this.way === "time" && this.fill(row) !== this.same);
    let row = lead < 0 ? (by > 0 ? from - 1 : to) : rowOf[capture.number][lead];
    do row += by; while (row >= from && row < to && !isOther(row));
    if (row < from || row >= to) return;
    const side = b[row] >= 0 ? 1 : 0;
    state.open(captures[side]);
    state.selectNode(side ? b[row] : a[row]);
  }

  color(way) {
    this.way = way;
    const { kinds, kind, rowOf } = this.difference;
    const own = kind.subarray(...this.graph.rows);
    const variable = (name) => (name in CHANGE_COLORS ? `var(--series-${CHANGE_COLORS[name]})` : "var(--band-2)");
    const count = (at) => own.reduce((sum, each) => sum + (each === at), 0);
    const entries = way === "change"
      ? kinds.map((name, at) => [variable(name), name, count(at), this.modules(at)]).filter(([, , count]) => count)
      : [["var(--series-0)", "faster in B"], ["var(--band-2)", `within ${Math.round(100 * (SLOWER - 1))}%`], ["var(--series-1)", "slower in B"], ["var(--series-rest)", "in one capture only"]];
    replace(this.legend, entries.map(([color, name, count, modules = ""]) => {
      return legendEntry("span.entry", {}, color, name, count === undefined ? null : `${numberText(count)}${modules}`);
    }));
    this.rest = theme.series.length;
    this.same = this.rest + 1;
    this.of = rowOf.map((rows) => Uint8Array.from(rows, (row) => (row < 0 ? this.rest : this.fill(row))));
    this.plot.redraw();
  }

  /** The modules with the most nodes of a kind of change, in words. */
  modules(kind) {
    if (!kind) return "";
    const { a, b, captures, kind: kinds } = this.difference;
    const counts = new Map();
    for (let row = this.graph.rows[0]; row < this.graph.rows[1]; row++) {
      if (kinds[row] !== kind) continue;
      const capture = captures[b[row] >= 0 ? 1 : 0];
      const name = capture.layerOf(capture.modulePath(b[row] >= 0 ? b[row] : a[row]));
      counts.set(name, (counts.get(name) ?? 0) + 1);
    }
    const ranked = [...counts].sort((x, y) => y[1] - x[1]);
    const named = ranked.slice(0, MOST_MODULES).map(([name, count]) => `${moduleText(name)}${ranked.length > 1 ? ` ${numberText(count)}` : ""}`);
    return ` (${named.join(", ")}${ranked.length > named.length ? `, ${numberText(ranked.length - named.length)} more` : ""})`;
  }

  /** The number of a row's color. */
  fill(row) {
    const { kinds, kind } = this.difference;
    if (this.way !== "time") return CHANGE_COLORS[kinds[kind[row]]] ?? this.same;
    const ratio = this.difference.ratio(row);
    if (Number.isNaN(ratio)) return this.rest;
    return ratio > SLOWER ? 1 : ratio < 1 / SLOWER ? 0 : this.same;
  }

  // --- drawing

  draw(context) {
    const { plot, lanes } = this;
    drawRuler(context, plot, RULER, (x, step) => (this.inTime ? markText(x, step) : numberText(Math.round(x))), 1);
    const colors = [...theme.series, theme.rest, theme["band-2"]];
    const heads = [];
    let y = RULER - plot.top;
    lanes.clear();
    this.shown.forEach((layout, side) => {
      heads.push(y + HEAD / 2);
      y += HEAD;
      if (layout) y = lanes.draw(context, layout, y, this.look(side, colors));
      if (side === 0) y += SIDE_GAP - HEAD;
    });
    this.drawRibbons(context, colors);
    const chosen = this.shown[state.capture.number];
    if (chosen) {
      for (const node of state.nodes.subarray(0, MOST_RIBBONS)) {
        const spot = lanes.spot(chosen, node);
        if (spot) lanes.frame(context, spot, ROWS[0]);
      }
    }
    this.shown.forEach((layout, side) => drawHead(context, plot, "AB"[side], this.head(layout, side), heads[side]));
    plot.tall = y + plot.top;
  }

  /** What is the same is pale; the bands of B are below its nodes, so that ribbons cross none. */
  look(side, colors) {
    const of = this.of[side];
    return { capture: this.difference.captures[side], row: ROWS[0], of, colors, dim: colors, lit: (node) => of[node] !== this.same, below: side === 1 };
  }

  head(layout, side) {
    const { captures, names } = this.difference;
    if (!layout) return `not in ${names[side]}`;
    return `${captures[side].graphs[layout.graph].name}, ${countText(layout.end - layout.first, "node")}${layout.inTime ? `, ${timeText(layout.length)}` : ""}`;
  }

  /** From each node of A in view to the same in B. */
  drawRibbons(context, colors) {
    const { difference, plot, lanes } = this;
    const [a, b] = this.shown;
    if (!a || !b) return;
    let drawn = 0;
    for (const { row: nodes, layout } of lanes.areas) {
      if (!nodes || layout !== a) continue;
      for (let at = a.firstEnding(nodes, plot.x0); at < nodes.length && a.start(nodes[at]) <= plot.x1; at++) {
        const row = difference.rowOf[0][nodes[at]];
        const [x, right, y] = lanes.spot(a, nodes[at]);
        const isWide = right - x >= 1.5 || difference.kind[row] > 0;
        const other = row < 0 || !isWide ? null : lanes.spot(b, difference.b[row]);
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
        context.fillStyle = colors[this.fill(row)];
        context.fill();
      }
    }
    context.globalAlpha = 1;
  }

  // --- pointer

  hover(x, y, event) {
    const thing = x === null ? null : this.lanes.at(x, y);
    showThing(this.plot, event, thing, thing?.node === undefined ? [] : this.changes(thing));
  }

  /** How a node differs from the same in the other capture. */
  changes({ node, layout }) {
    const { a, b, captures, kind, kinds, rowOf } = this.difference;
    const row = rowOf[layout.capture.number][node];
    if (row < 0) return [];
    const isTimed = !Number.isNaN(this.difference.ratio(row));
    return [kinds[kind[row]], isTimed && `${timeText(captures[0].durationOf[a[row]])} in A, ${timeText(captures[1].durationOf[b[row]])} in B`];
  }

  click(x, y) {
    const thing = this.lanes.at(x, y);
    if (!thing) return state.clear();
    state.open(thing.layout.capture);
    return thing.module === undefined ? state.selectNode(thing.node) : selectModule(thing.layout.capture, thing.module);
  }

  resume() {
    this.plot?.resize();
  }
}
