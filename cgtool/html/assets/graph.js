"use strict";
// The Graph view: lanes by stream, in time or in order; forward above backward.

const RULER = 22;
const HEAD = 26; // of a graph
const BAND = 17;
const LETTER = 6.5; // how wide one is
const ROWS = [24, 66]; // how tall a row of nodes is: there may be few
const GAP = 10;
const TOGETHER = 6; // graphs that are shown at once, of a capture that has no more

class GraphView {
  static title = "Graph";

  constructor(host, capture) {
    this.capture = capture;
    this.layouts = new Map();
    this.shown = this.groups()[0].graphs;
    this.extras = { critical: false, edges: false, unneeded: false };
    this.legend = make("div.legend");
    this.area = make("div.plot-host");
    append(host, [this.toolbar(), this.area, this.legend]);
    this.plot = new Plot(this.area, "Nodes of the graph by stream and time", {
      draw: (context) => this.draw(context),
      hover: (x, y, event) => this.hover(x, y, event),
      click: (x, y, event) => this.click(x, y, event),
      step: (by) => this.step(by),
    });
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
    this.recolor();
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
    return [
      unneeded && legendEntry("span.entry.wide", {}, "var(--bad)", "false dependency: the node behind it waits for work whose results it does not use; click it for the reason"),
      critical && make("span.wide", {}, onPath ? `Critical path: ${path}.` : "The critical path is shown on the parent graph."),
      edges && make("span.wide", {}, "Dependencies are drawn where nodes are wide enough: zoom in."),
    ].filter(Boolean);
  }

  // --- drawing

  /** How tall the bands of a depth are: they open as one zooms in. */
  bandHeights(lane) {
    let most = BAND;
    return lane.bands.map(({ typical }, depth) => {
      const open = Math.max(0, Math.min(1, (typical * this.plot.scale - 6) / 22));
      most = Math.min(most, BAND * (depth === 0 ? Math.max(open, 0.5) : open));
      return most < 2 ? 0 : most;
    });
  }

  draw(context) {
    const { plot } = this;
    drawRuler(context, plot, RULER, (x, step) => (this.inTime ? markText(x, step) : numberText(Math.round(x))), 1);
    let y = RULER - plot.top;
    context.save();
    context.beginPath();
    context.rect(0, RULER, plot.width, plot.height - RULER);
    context.clip();
    this.row = this.rowHeight();
    this.areas = []; // of what can be clicked
    this.places = new Map(); // of lanes, for edges
    for (const layout of this.visible()) {
      y = this.drawGraph(context, layout, y);
    }
    plot.tall = y + plot.top + GAP;
    if (this.extras.edges) this.drawEdges(context);
    if (this.extras.unneeded) this.drawUnneeded(context);
    this.drawLinks(context);
    context.restore();
  }

  /** Taller where all rows fit then. */
  rowHeight() {
    let [fixed, rows] = [RULER, 0];
    for (const layout of this.visible()) {
      fixed += HEAD + GAP;
      for (const lane of layout.lanes) {
        fixed += 23 + lane.bands.length * (BAND + 1);
        rows += lane.rows.length;
      }
    }
    return Math.max(ROWS[0], Math.min(ROWS[1], Math.floor((this.plot.height - fixed) / rows) - 1));
  }

  drawGraph(context, layout, y) {
    const { plot, capture } = this;
    const graph = capture.graphs[layout.graph];
    const count = layout.end - layout.first;
    context.font = `600 12px ${theme.font}`;
    context.fillStyle = theme.ink;
    context.textBaseline = "middle";
    const name = graph.name || "(no name)";
    const room = plot.width / 2;
    drawText(context, name, 8, y + HEAD / 2, room);
    const after = 16 + Math.min(room, widthOf(context, name));
    context.font = `12px ${theme.font}`;
    context.fillStyle = theme.muted;
    const drawn = `, ${timeText(layout.length)} from first start to last end`;
    const replay = graph.replay === null ? "" : ` under the profiler; a replay without it takes ${timeText(graph.replay)}`;
    const length = layout.inTime ? drawn + replay : ", in execution order (not timed)";
    context.fillText(`${countText(count, "node")}${length}`, after, y + HEAD / 2);
    y += HEAD;
    for (const lane of layout.lanes) {
      if (layout.lanes.length > 1) {
        context.font = `11px ${theme.font}`;
        context.fillStyle = theme.muted;
        drawText(context, `${lane.name}, ${countText(lane.count, "node")}`, 8, y + 8, plot.width - 16);
        y += 17;
      }
      for (const [depth, height] of this.bandHeights(lane).entries()) {
        if (!height) break;
        this.drawBands(context, layout, lane.bands[depth], y, height, depth);
        y += height + 1;
      }
      for (const row of lane.rows) {
        this.drawRow(context, layout, row, y);
        y += this.row + 1;
      }
      y += 6;
    }
    return y + GAP;
  }

  drawBands(context, layout, bands, y, height, depth) {
    const { plot } = this;
    if (y > plot.height || y + height < RULER) return;
    const { names } = this.capture.prefixes;
    const { starts, ends } = bands;
    this.areas.push({ y, height, bands, layout });
    context.font = `11px ${theme.font}`;
    context.textBaseline = "middle";
    let drawn = -1; // bands of less than a pixel are drawn once
    for (let at = Math.max(0, firstAbove(ends, plot.x0)); at < starts.length && starts[at] < plot.x1; at++) {
      const x = Math.max(-2, plot.px(starts[at]));
      const right = Math.min(plot.width + 2, plot.px(ends[at]));
      if (right <= drawn) continue;
      const wide = Math.max(1, right - x - (right - x > 3 ? 1 : 0));
      context.fillStyle = at % 2 ? theme.band : theme["band-2"];
      context.fillRect(x, y, wide, height);
      drawn = right - x < 1 ? x + 1 : right;
      if (height > 11 && wide > 18) {
        context.fillStyle = theme.ink;
        const name = names[bands.names[at]];
        const shown = depth === 0 ? name : name.slice(name.lastIndexOf(".", name.lastIndexOf(".") - 1) + 1);
        drawText(context, wide > 7 * name.length ? name : shown, Math.max(x, 0) + 5, y + height / 2 + 0.5, wide - 8 + Math.min(x, 0));
      }
    }
  }

  drawRow(context, layout, row, y) {
    const { plot, capture, colors, row: tall } = this;
    if (y > plot.height || y + tall < RULER) return;
    const { starts, ends, first } = layout;
    this.areas.push({ y, height: tall, row, layout });
    const { of, colors: full, dim } = colors;
    // A single node gets a frame and its links; several nodes stand out by their colors.
    const mask = state.lead < 0 ? state.mask : null;
    const { critical } = capture;
    const onPath = this.extras.critical;
    const [scale, x0, x1] = [plot.scale, plot.x0, plot.x1];
    context.font = `11px ${theme.font}`;
    context.textBaseline = "middle";
    // Nodes of less than two pixels: each pixel gets the color of its longest node, and
    // neighboring pixels of one color are drawn at once.
    let [pixel, best, bestLength, bestLit] = [-1, -1, -1, false];
    let [runFrom, runTo, runColor] = [0, -1, ""];
    const endRun = () => {
      if (runTo >= runFrom && runColor) {
        context.fillStyle = runColor;
        context.fillRect(runFrom, y, runTo - runFrom + 1, tall);
      }
      [runFrom, runTo, runColor] = [0, -1, ""];
    };
    const endPixel = () => {
      if (pixel < 0) return;
      const color = bestLit ? full[of[best]] : dim[of[best]];
      if (color === runColor && pixel === runTo + 1) runTo = pixel;
      else {
        endRun();
        [runFrom, runTo, runColor] = [pixel, pixel, color];
      }
      pixel = -1;
    };
    for (let at = layout.firstEnding(row, x0); at < row.length; at++) {
      const node = row[at];
      const start = starts[node - first];
      if (start > x1) break;
      const length = ends[node - first] - start;
      const wide = length * scale;
      const x = (start - x0) * scale;
      const lit = (!mask || mask[node] === 1) && (!onPath || critical[node] === 1);
      if (wide < 2) {
        const here = Math.max(0, Math.floor(x));
        if (here !== pixel) {
          endPixel();
          [pixel, best, bestLength, bestLit] = [here, node, length, lit];
        } else if ((lit && !bestLit) || (lit === bestLit && length > bestLength)) {
          [best, bestLength, bestLit] = [node, length, lit];
        }
        continue;
      }
      endPixel();
      endRun();
      const left = Math.max(x, -2);
      const right = Math.min(x + wide, plot.width + 2);
      context.fillStyle = lit ? full[of[node]] : dim[of[node]];
      context.fillRect(left, y, right - left - (wide > 4 ? 1 : 0), tall);
      if (right - left > 26) {
        context.fillStyle = lit ? "#10151c" : theme.muted;
        const at = Math.max(left, 0);
        const room = right - at - 8;
        const name = capture.op(node) ?? capture.title(node);
        const lines = this.moreLines(layout, node, name, room).slice(0, Math.floor(tall / 18) - 1);
        const step = tall / (lines.length + 2);
        drawText(context, name, at + 5, y + (lines.length ? step : tall / 2) + 0.5, room);
        lines.forEach(([text, least], line) => drawText(context, text, at + 5, y + (line + 2) * step + 1, room, least));
      }
    }
    endPixel();
    endRun();
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
    for (const { row, layout, y } of this.areas) {
      if (!row || node < layout.first || node >= layout.end) continue;
      if (!layout.rowOf) {
        layout.rowOf = new Map();
        for (const lane of layout.lanes) for (const each of lane.rows) for (const one of each) layout.rowOf.set(one, each);
      }
      if (layout.rowOf.get(node) === row) {
        return [this.plot.px(layout.start(node)), this.plot.px(layout.stop(node)), y];
      }
    }
    return null;
  }

  /** A place of a line's end: far outside, the browser takes seconds to dash what is not seen. */
  near(x) {
    const { width } = this.plot;
    return Math.max(-width, Math.min(x, 2 * width));
  }

  curve(context, from, to) {
    const [a, b] = [this.spot(from), this.spot(to)];
    if (!a || !b) return;
    const [x, right] = [this.near(a[1]), this.near(b[0])];
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
    for (const { row, layout } of [...this.areas]) {
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
    context.strokeStyle = theme.ink;
    context.lineWidth = 2;
    const [left, right] = [this.near(spot[0]), this.near(spot[1])];
    context.strokeRect(left - 1, spot[2] - 1, Math.max(3, right - left + 1), this.row + 2);
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
      const [x, end] = [top, low].map(([left, right]) => this.near((left + right) / 2));
      const [y, floor] = [top[2] + this.row, low[2]];
      context.moveTo(x, y);
      context.bezierCurveTo(x, (y + floor) / 2, end, (y + floor) / 2, end, floor);
      context.stroke();
    }
    context.setLineDash([]);
  }

  // --- pointer and keys

  /** What is at a place: `{node}`, `{module, from, to}` or null. */
  at(px, y) {
    const area = this.areas?.find((each) => y >= each.y && y < each.y + each.height);
    if (!area || y < RULER) return null;
    const { plot } = this;
    const { layout } = area;
    const x = plot.x(px);
    const slack = 1.5 / plot.scale;
    if (area.row) {
      const { row } = area;
      let best = -1;
      for (let at = layout.firstEnding(row, x - slack); at < row.length && layout.start(row[at]) <= x + slack; at++) {
        const node = row[at];
        if (best < 0 || layout.stop(node) - layout.start(node) > layout.stop(best) - layout.start(best)) best = node;
      }
      return best < 0 ? null : { node: best };
    }
    const { bands } = area;
    const at = firstAbove(bands.ends, x);
    if (at >= bands.starts.length || bands.starts[at] > x) return null;
    const module = this.capture.prefixes.names[bands.names[at]];
    return { module, layout, from: bands.starts[at], to: bands.ends[at] };
  }

  hover(x, y, event) {
    const thing = x === null ? null : this.at(x, y);
    this.plot.canvas.style.cursor = thing ? "pointer" : "";
    if (!thing) return showTooltip(null, null);
    const { capture } = this;
    if (thing.module !== undefined) {
      const length = this.inTime ? timeText(thing.to - thing.from) : countText(thing.to - thing.from, "node");
      return showTooltip(event, [thing.module, capture.types[thing.module] ?? null, length]);
    }
    showTooltip(event, nodeRows(capture, thing.node));
  }

  click(x, y, event) {
    const thing = this.at(x, y);
    const again = event.timeStamp - (this.clicked ?? -1000) < 350;
    this.clicked = event.timeStamp;
    if (!thing) return state.clear();
    if (thing.module !== undefined) {
      if (again) return this.zoomTo(thing.from, thing.to);
      return selectModule(this.capture, thing.module);
    }
    if (again) {
      const layout = this.layouts.get(this.capture.graphOf[thing.node]);
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
  ];
}
