"use strict";
// The Graph view: lanes by stream, in time or in order; forward above backward.

class GraphView {
  static title = "Graph";

  constructor(host, capture) {
    this.capture = capture;
    this.layouts = new Map();
    this.shown = this.groups()[0].graphs;
    this.extras = { critical: false, edges: false, unneeded: false };
    this.legend = make("div.legend");
    this.area = make("div.plot-host");
    this.content = make("div.scroll.below");
    append(host, [this.toolbar(), this.area, this.legend, this.content]);
    this.plot = new Plot(this.area, "Nodes of the graph by stream and time", {
      draw: (context) => this.draw(context),
      hover: (x, y, event) => this.hover(x, y, event),
      click: (x, y, event) => this.click(x, y, event),
      step: (by) => this.step(by),
    });
    this.lanes = new Lanes(this.plot);
    this.showGraphs(this.shown);
    state.on("selection", () => this.reveal(), capture);
    state.on("color", () => this.recolor(), capture);
    if (state.nodes.length) this.reveal();
  }

  static applies(capture) {
    return capture.count > 0;
  }

  /** Graphs that are shown together: all if they are few and have one axis, times or order. */
  groups() {
    const { graphs, durationOf } = this.capture;
    const isTimed = (at) => durationOf.subarray(...graphs[at].nodes).some((time) => time >= 0);
    const top = graphs.map((_, at) => at).filter((at) => graphs[at].parent === null);
    const bodies = graphs.map((_, at) => at).filter((at) => graphs[at].parent !== null);
    const nodes = (chosen) => countText(chosen.reduce((sum, at) => sum + graphs[at].nodes[1] - graphs[at].nodes[0], 0), "node");
    const groups = [];
    if (top.length <= TOGETHER && new Set(top.map(isTimed)).size < 2) groups.push({ name: `all graphs, ${nodes(top)}`, graphs: this.paired(top) });
    for (const at of [...top, ...bodies]) {
      groups.push({ name: `${graphs[at].name || "(no name)"}, ${nodes([at])}`, graphs: [at] });
    }
    return groups.length === 2 && top.length === 1 ? groups.slice(1) : groups;
  }

  /** Each forward above its backward. */
  paired(top) {
    const { graphs } = this.capture;
    const rank = (at) => [graphs[at].callable, graphs[at].phase === "backward" ? 1 : 0];
    return [...top].sort((a, b) => rank(a)[0] - rank(b)[0] || rank(a)[1] - rank(b)[1] || a - b);
  }

  toolbar() {
    const groups = this.groups();
    const pick = make("select", { "aria-label": "graph", onchange: () => this.showGraphs(groups[pick.value].graphs) },
      groups.map(({ name }, at) => make("option", { value: at }, name)));
    this.pick = pick;
    this.toggles = {};
    const toggle = (name, text, title) =>
      (this.toggles[name] = make("button.toggle", { "aria-pressed": "false", title, onclick: () => this.mark(name, !this.extras[name]) }, text));
    return make("div.toolbar", {},
      groups.length > 1 && make("label", {}, "Graph ", pick),
      colorPicker(this.capture),
      toggle("critical", "Critical path", "The longest chain of nodes that wait for each other"),
      toggle("edges", "Dependencies", "What each node waits for, where there is room"),
      this.capture.unneeded.length > 0 && toggle("unneeded", "False dependencies", "Dependencies between nodes that do not use what the other writes: without them, both could run at the same time"),
      make("button", { title: "Show all (f)", onclick: () => this.plot.fit() }, "Fit"),
      plotHint("node"));
  }

  /** Draws dependencies or the critical path, or no longer. */
  mark(name, isOn) {
    this.extras[name] = isOn;
    this.toggles[name].setAttribute("aria-pressed", String(isOn));
    this.recolor();
  }

  showGraphs(graphs) {
    this.shown = graphs;
    for (const at of graphs) {
      if (!this.layouts.has(at)) this.layouts.set(at, new GraphLayout(this.capture, at));
    }
    const layouts = this.visible();
    this.inTime = layouts.some((layout) => layout.inTime);
    const most = Math.max(1, ...layouts.map((layout) => layout.length));
    this.plot.extent(-0.01 * most, 1.01 * most, this.inTime ? Math.min(100, most) : Math.min(4, most));
    this.plot.top = 0;
    this.area.style.flex = `0 1 ${this.tall(ROWS[1]) / TEXT}rem`;
    this.list();
    this.recolor();
  }

  /** The nodes that are shown, as a table. */
  list() {
    const { capture } = this;
    const nodes = this.visible().flatMap((layout) => layout.nodes());
    const has = (value) => nodes.some((node) => value(node));
    const graphs = this.shown.length > 1 && { name: "graph", value: (node) => capture.graphs[capture.graphOf[node]].name };
    this.table = new SortedTable([
      { name: "op", value: (node) => capture.op(node) ?? capture.title(node), link: (node) => state.selectNode(node) },
      graphs,
      { name: "node", number: true, value: (node) => capture.id(node) },
      this.inTime && { name: "time", number: true, value: (node) => (capture.durationOf[node] < 0 ? null : capture.durationOf[node]), text: timeText },
      has((node) => capture.module(node) !== null) && { name: "module", value: (node) => capture.modulePath(node) },
      has((node) => capture.frame(node) >= 0) && { name: "line", value: (node) => capture.frameText(capture.frame(node)) },
      ...valueColumns(has, (node, name) => capture[`${name}Of`][node]),
      has((node) => capture.kernelOf[node] >= 0) && { name: "kernel", value: (node) => capture.title(node) },
    ].filter(Boolean), nodes, { label: "nodes", sort: "", marked: (node) => state.mask !== null && state.mask[node] === 1 });
    replace(this.content, this.table.element);
  }

  visible() {
    return this.shown.map((at) => this.layouts.get(at));
  }

  recolor() {
    this.colors = coloring(this.capture, state.color);
    showLegend(this.capture, this.colors, this.legend);
    this.legend.prepend(...this.notes());
    this.plot.redraw();
  }

  /** What the marks mean that are drawn, and why there may be none. */
  notes() {
    const { critical, edges, unneeded } = this.extras;
    const ranges = this.visible().map(({ first, end }) => this.capture.critical.subarray(first, end));
    const sum = (values) => values.reduce((a, b) => a + b, 0);
    const [onPath, all] = [sum(ranges.map(sum)), sum(ranges.map(({ length }) => length))];
    const path = onPath === all ? `all ${countText(all, "node")}` : `${numberText(onPath)} of ${countText(all, "node")}; the others are pale`;
    const has = (counts) => this.visible().some(({ first, end }) => counts.subarray(first, end).some((count) => count > 0));
    return [
      has(this.capture.nansOf) && legendEntry("span.entry", {}, "var(--bad)", "writes NaN"),
      has(this.capture.infinitiesOf) && legendEntry("span.entry", {}, "var(--warn)", "writes infinities"),
      unneeded && legendEntry("span.entry.wide", {}, "var(--bad)", "false dependency: the node behind it waits for work whose results it does not use; click it for the reason"),
      critical && make("span.wide", {}, onPath ? `Critical path: ${path}.` : "The critical path is shown on the parent graph."),
      edges && make("span.wide", {}, "Dependencies are drawn where nodes are wide enough: zoom in."),
    ].filter(Boolean);
  }

  // --- drawing

  draw(context) {
    const { plot } = this;
    drawRuler(context, plot, RULER, (x, step) => (this.inTime ? markText(x, step) : numberText(Math.round(x))), 1);
    let y = RULER - plot.top;
    context.save();
    context.beginPath();
    context.rect(0, RULER, plot.width, plot.height - RULER);
    context.clip();
    this.row = this.rowHeight();
    this.lanes.clear();
    for (const layout of this.visible()) {
      y = this.drawGraph(context, layout, y);
    }
    plot.tall = y + plot.top + GAP;
    if (this.extras.edges) this.drawEdges(context);
    if (this.extras.unneeded) this.drawUnneeded(context);
    this.drawLinks(context);
    context.restore();
  }

  /** How tall everything is, with rows of this height. */
  tall(row) {
    return this.visible().reduce((sum, { lanes }) => sum + HEAD + Lanes.height(lanes, row) + GAP, RULER + GAP);
  }

  /** Taller where all rows fit then. */
  rowHeight() {
    const rows = this.visible().reduce((sum, { lanes }) => lanes.reduce((all, lane) => all + lane.rows.length, sum), 0);
    return Math.max(ROWS[0], Math.min(ROWS[1], Math.floor((this.plot.height - this.tall(-1)) / rows) - 1));
  }

  drawGraph(context, layout, y) {
    const { plot, capture } = this;
    const graph = capture.graphs[layout.graph];
    const drawn = `, ${timeText(layout.length)} from first start to last end`;
    const replay = graph.replay === null ? "" : ` under the profiler; a replay without it takes ${timeText(graph.replay)}`;
    const length = layout.inTime ? drawn + replay : ", in execution order (not timed)";
    drawHead(context, plot, graph.name || "(no name)", `${countText(layout.end - layout.first, "node")}${length}`, y + HEAD / 2);
    return this.lanes.draw(context, layout, y + HEAD, this.look(layout)) + GAP;
  }

  look(layout) {
    // A single node gets a frame and its links; several nodes stand out by their colors.
    const mask = state.lead < 0 ? state.mask : null;
    const { capture, row } = this;
    const onPath = this.extras.critical;
    return {
      ...this.colors, capture, row,
      lit: (node) => (!mask || mask[node] === 1) && (!onPath || capture.critical[node] === 1),
      lines: (node, name, room) => this.moreLines(layout, node, name, room),
    };
  }

  /** What is below the name of a node where there is room: its time, then its kernel. With each, of
      how many characters a part can be read. */
  moreLines(layout, node, name, room) {
    const title = this.capture.title(node);
    const time = layout.inTime ? timeText(this.capture.durationOf[node]) : "";
    return [[time, time.length], [name === title ? "" : title, 3]].filter(([text, least]) => text && room > LETTER * least);
  }

  /** Where a node is drawn: `[x, right, y]`; null if it is not. */
  spot(node) {
    const layout = this.layouts.get(this.capture.graphOf[node]);
    return layout ? this.lanes.spot(layout, node) : null;
  }

  curve(context, from, to) {
    const [a, b] = [this.spot(from), this.spot(to)];
    if (!a || !b) return;
    const [x, right] = [this.lanes.near(a[1]), this.lanes.near(b[0])];
    if (Math.max(x, right) < 0 || Math.min(x, right) > this.plot.width) return;
    const same = a[2] === b[2];
    const [y, end] = same ? [a[2] + 2, b[2] + 2] : [a[2] + this.row / 2, b[2] + this.row / 2];
    const bend = Math.max(12, Math.min(60, Math.abs(right - x) / 2));
    context.beginPath();
    context.moveTo(x, y);
    if (same) context.quadraticCurveTo((x + right) / 2, y - bend, right, end);
    else context.bezierCurveTo(x + bend, y, right - bend, end, right, end);
    context.stroke();
  }

  /** The edges of the nodes in view, unless there are too many to distinguish. */
  drawEdges(context) {
    const { capture, plot } = this;
    context.lineWidth = 1;
    context.strokeStyle = theme.muted;
    for (const { row, layout } of this.lanes.areas) {
      if (!row) continue;
      const shown = row.filter((node) => layout.stop(node) >= plot.x0 && layout.start(node) <= plot.x1);
      if (shown.length > plot.width / 6) continue;
      for (const node of shown) {
        for (const source of capture.links(layout.graph).before(node)) this.curve(context, source, node);
      }
    }
  }

  /** Edges that order work which could run at the same time. */
  drawUnneeded(context) {
    const { capture, plot } = this;
    context.lineWidth = 2;
    context.strokeStyle = theme.bad;
    let marked = -1; // pixels of a mark: edges this close look like one
    for (const { graph, source, target } of capture.unneeded) {
      const layout = this.shown.includes(graph) ? this.layouts.get(graph) : null;
      if (!layout) continue;
      const [before, x] = [plot.px(layout.stop(source)), plot.px(layout.start(target))];
      if (x < 0 || before > plot.width || Math.abs(x - marked) < 3) continue;
      marked = x;
      const [a, b] = [this.spot(source), this.spot(target)];
      // Between neighbors a curve would hardly be seen.
      if (a && b && a[2] === b[2] && x - before < 24) {
        context.fillStyle = theme.bad;
        context.fillRect((before + x) / 2 - 1, a[2] - 3, 2, this.row + 6);
      } else this.curve(context, source, target);
    }
  }

  /** What the selected node waits for, what waits for it, and its forward or backward. */
  drawLinks(context) {
    const node = state.lead;
    const spot = node < 0 ? null : this.spot(node);
    if (!spot) return;
    this.lanes.frame(context, spot, this.row);
    const [before, after] = this.capture.neighbors(node);
    context.lineWidth = 1.5;
    context.strokeStyle = theme.ink;
    for (const source of before.slice(0, 64)) this.curve(context, source, node);
    for (const target of after.slice(0, 64)) this.curve(context, node, target);
    context.strokeStyle = theme.accent;
    context.setLineDash([4, 3]);
    for (const other of this.capture.counterparts(node).slice(0, 64)) {
      const [a, b] = [this.spot(node), this.spot(other)];
      if (!a || !b) continue;
      const [top, low] = a[2] < b[2] ? [a, b] : [b, a];
      context.beginPath();
      const [x, end] = [top, low].map(([left, right]) => this.lanes.near((left + right) / 2));
      const [y, floor] = [top[2] + this.row, low[2]];
      context.moveTo(x, y);
      context.bezierCurveTo(x, (y + floor) / 2, end, (y + floor) / 2, end, floor);
      context.stroke();
    }
    context.setLineDash([]);
  }

  // --- pointer and keys

  hover(x, y, event) {
    showThing(this.plot, event, x === null ? null : this.lanes.at(x, y));
  }

  click(x, y, event) {
    const thing = this.lanes.at(x, y);
    const again = event.timeStamp - (this.clicked ?? -1000) < 350;
    this.clicked = event.timeStamp;
    if (!thing) return state.clear();
    if (thing.module !== undefined) {
      if (again) return this.zoomTo(thing.from, thing.to);
      return selectModule(this.capture, thing.module);
    }
    if (again) {
      const { layout } = thing;
      const [start, stop] = [layout.start(thing.node), layout.stop(thing.node)];
      return this.zoomTo(start - 4 * (stop - start), stop + 4 * (stop - start));
    }
    this.quiet = true;
    state.selectNode(thing.node);
    this.quiet = false;
  }

  zoomTo(from, to) {
    const margin = 0.02 * (to - from);
    this.plot.move(from - margin, to - from + 2 * margin);
  }

  /** Selects the neighbor of the selected node in its row. */
  step(by) {
    const layouts = this.visible();
    if (state.lead < 0) {
      const first = state.nodes.find((node) => this.shown.includes(this.capture.graphOf[node]));
      return state.selectNode(first ?? layouts[0].lanes[0].rows[0][0]);
    }
    const layout = this.layouts.get(this.capture.graphOf[state.lead]);
    for (const lane of layout?.lanes ?? []) {
      const all = lane.all ??= [...lane.rows.flatMap((row) => [...row])].sort((a, b) => layout.start(a) - layout.start(b) || a - b);
      const at = all.indexOf(state.lead);
      if (at >= 0 && all[at + by] !== undefined) state.selectNode(all[at + by]);
    }
  }

  /** Shows what was selected elsewhere. */
  reveal() {
    this.table.mark();
    if (state.lead >= 0) this.table.element.querySelector("tr.marked")?.scrollIntoView({ block: "nearest" });
    this.content.scrollLeft = 0;
    const node = state.lead >= 0 ? state.lead : state.nodes[0];
    if (node === undefined || this.quiet) return this.plot.redraw();
    const graph = this.capture.graphOf[node];
    if (!this.shown.includes(graph)) {
      const groups = this.groups();
      const at = groups.findIndex(({ graphs }) => graphs.includes(graph));
      this.pick.value = at;
      this.showGraphs(groups[at].graphs);
    }
    if (state.lead >= 0) {
      const layout = this.layouts.get(graph);
      this.plot.reveal(layout.start(node), layout.stop(node));
    } else this.plot.redraw();
  }

  resume() {
    this.recolor();
    this.plot.resize();
  }
}

/** A module and all inside it. */
function selectModule(capture, module) {
  const inside = capture.origins.map(([, each]) => each !== null && (each === module || each.startsWith(`${module}.`) || module === ""));
  state.select(capture.filter((node) => capture.originOf[node] >= 0 && inside[capture.originOf[node]]), moduleText(module));
}

/** A node in a few rows, for a tooltip. */
function nodeRows(capture, node) {
  const time = capture.durationOf[node];
  const op = capture.op(node);
  return [
    op ?? capture.title(node),
    op === capture.title(node) ? null : capture.title(node),
    time >= 0 ? timeText(time) : null,
    capture.module(node) === null ? null : moduleText(capture.module(node)),
    capture.frameText(capture.frame(node)),
    ...["nans", "infinities"].map((name) => (capture[`${name}Of`][node] > 0 ? `${numberText(capture[`${name}Of`][node])} ${VALUES[name]}` : null)),
  ];
}

const VALUES = { least: "least", largest: "largest", nans: "NaN", infinities: "infinite" };

/** Columns of what ops have written, where that was looked at; `of` gives a figure of a row. */
function valueColumns(has, of) {
  return Object.entries(VALUES).map(([name, title]) => {
    const isCount = name === "nans" || name === "infinities";
    const known = (row) => (isCount ? of(row, name) > 0 : Number.isFinite(of(row, name)));
    return has(known) && { name: title, number: true, value: (row) => (known(row) ? of(row, name) : null), text: isCount ? numberText : figureText };
  });
}
