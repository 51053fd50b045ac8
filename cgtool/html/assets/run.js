"use strict";
// The Run view: the captures and replays of a program in time, and its ledger.

const LABEL = 16; // above the rows of a lane
const THIN = [3, 20]; // a row: there may be many
const TALL = 280; // of a lane whose rows are not the thinnest
const NAMED = 12; // a row that has room for the name of its graph

/** The time in which a graph was replayed, cut where its replays were counted: from, to, and how
    often it was replayed there, as a share of where that was most often; null if they were not. */
function slicesOf({ first, last, replays, moments }) {
  if (first === null) return [];
  if (!moments.length) return [{ from: first, to: last ?? first, share: null }];
  const points = [[first, 0], ...moments, [last, replays]];
  const slices = points.slice(1).map(([to, count], at) => {
    const [from, before] = points[at];
    return { from, to, rate: (count - before) / Math.max(1, to - from) };
  });
  const most = Math.max(...slices.map(({ rate }) => rate));
  return slices.map(({ from, to, rate }) => ({ from, to, share: rate / most }));
}

const KINDS = [
  // name, color, whether an entry is of this kind: the first that holds
  ["failed", 1, (entry) => entry.failure !== null],
  ["captured again", 2, (entry) => entry.because !== null],
  ["never replayed", 4, (entry) => entry.unused],
  ["replayed", 0, () => true],
];

/** The captures and replays in time, with what the colors mean. */
class RunTimeline {
  constructor(area, capture, still = false) {
    this.capture = capture;
    this.run = capture.run;
    this.area = area;
    this.slices = this.run.entries.map(slicesOf);
    this.kinds = this.run.entries.map((entry) => KINDS.find(([, , holds]) => holds(entry)));
    this.legend = [
      ...KINDS.filter((kind) => this.kinds.includes(kind)).map(([name, color]) => legendEntry("span.entry", {}, `var(--series-${color})`, name)),
      make("span.muted", {}, `One row per graph: a block for its capture, a bar from its first to its last replay${this.run.entries.some(({ moments }) => moments.length) ? ", taller where there are more" : ""}.`),
    ];
    this.place();
    this.plot = new Plot(area, "Captures and replays of the program over time", {
      draw: (context) => this.draw(context),
      hover: (x, y, event) => this.hover(x, y, event),
      click: (x, y) => this.click(x, y),
      step: (by) => this.step(by),
      still,
    });
    const begin = Math.min(...this.run.processes.map(({ from }) => from), ...this.run.entries.map(({ began }) => began));
    const end = this.run.entries.reduce((end, { began, capture: time, last }) => Math.max(end, began + time, last ?? 0), Math.max(begin + 1, ...this.run.processes.map(({ to }) => to ?? this.run.wall)));
    const margin = 0.01 * (end - begin);
    this.plot.extent(begin - margin, end + margin, Math.min(1000, end - begin));
    this.zoomToGraphs();
    state.on("selection color", () => this.light(), capture);
    this.light();
  }

  /** A program may import and load for a minute before it captures anything. */
  zoomToGraphs() {
    const { entries } = this.run;
    if (!entries.length) return;
    const begin = entries.reduce((least, { began }) => Math.min(least, began), Infinity);
    const end = entries.reduce((most, { began, capture, last }) => Math.max(most, began + capture, last ?? 0), begin);
    this.plot.move(begin - 0.05 * (end - begin), Math.max(this.plot.least, 1.1 * (end - begin)));
  }

  /** The graphs with selected nodes. */
  light() {
    this.lit = state.nodes.length ? new Set(state.nodes.map((node) => this.capture.graphOf[node])) : null;
    this.plot.redraw();
  }

  /** The lanes from top to bottom, those of a process below its name; in each, a row for each of
      its graphs. */
  place() {
    let y = RULER;
    this.heads = [];
    this.tops = [];
    this.rows = []; // by entry: where it is, and how tall
    const inLane = this.run.lanes.map(() => []);
    this.run.entries.forEach(({ lane }, at) => inLane[lane].push(at));
    this.run.processes.forEach((process, number) => {
      this.heads.push({ y, process });
      y += HEAD;
      this.run.lanes.forEach(([, of], lane) => {
        if (of !== number) return;
        this.tops[lane] = y;
        const entries = inLane[lane];
        const tall = Math.max(THIN[0], Math.min(THIN[1], Math.floor(TALL / entries.length)));
        entries.forEach((entry, row) => (this.rows[entry] = { y: y + LABEL + row * tall, tall }));
        y += LABEL + entries.length * tall + 6;
      });
      y += GAP;
    });
    this.tall = y;
    this.area.style.flex = `0 1 ${y / TEXT}rem`;
  }

  /** Selects the graph that was captured next. */
  step(by) {
    const graphs = this.run.entries.filter(({ graph }) => graph >= 0).sort((a, b) => a.began - b.began).map(({ graph }) => graph);
    const at = this.lit ? graphs.findIndex((graph) => this.lit.has(graph)) + by : 0;
    if (graphs[at] !== undefined) this.select(graphs[at]);
  }

  select(graph) {
    if (graph < 0) return state.clear();
    const [first, end] = this.capture.graphs[graph].nodes;
    return state.select(Array.from({ length: end - first }, (_, at) => first + at), this.capture.graphs[graph].name);
  }

  draw(context) {
    const { plot, run } = this;
    plot.tall = this.tall;
    drawRuler(context, plot, RULER, markText, 1);
    context.save();
    context.beginPath();
    context.rect(0, RULER, plot.width, plot.height);
    context.clip();
    context.textBaseline = "middle";
    for (const { y, process } of this.heads) {
      const top = y - plot.top;
      context.font = `600 12px ${theme.font}`;
      context.fillStyle = theme.ink;
      const before = plot.x0 > process.from ? `, started ${timeText(plot.x0 - process.from)} before this` : "";
      drawText(context, `process ${process.pid}: ${process.command}${before}`, 8, top + HEAD / 2, plot.width - 16);
      const [from, to] = [process.from, process.to ?? run.wall].map((time) => Math.max(-2, Math.min(plot.px(time), plot.width + 2)));
      context.fillStyle = theme.line;
      context.fillRect(from, top + HEAD - 3, to - from, 2);
    }
    run.entries.forEach((entry, at) => this.drawEntry(context, entry, at));
    this.drawEvents(context);
    context.font = `11px ${theme.font}`;
    run.lanes.forEach(([name], lane) => {
      const top = this.tops[lane] - plot.top;
      const wide = Math.min(context.measureText(name).width + 12, plot.width);
      context.globalAlpha = 0.85;
      context.fillStyle = theme.page;
      context.fillRect(0, top, wide, 15);
      context.globalAlpha = 1;
      context.fillStyle = theme.ink;
      drawText(context, name, 8, top + 8, plot.width - 16);
    });
    context.restore();
  }

  /** A line through all lanes for each event, with its name where there is room. */
  drawEvents(context) {
    context.font = `11px ${theme.font}`;
    context.fillStyle = theme.muted;
    const bottom = Math.min(this.tall - this.plot.top, this.plot.height);
    let free = 0;
    for (const [time, name] of this.run.events) {
      const x = Math.round(this.plot.px(time));
      if (x < 0 || x > this.plot.width) continue;
      context.fillRect(x, RULER, 1, bottom - RULER);
      if (x < free) continue;
      free = x + widthOf(context, name) + 10;
      context.fillText(name, x + 4, bottom - 8);
    }
  }

  drawEntry(context, entry, at) {
    const { plot } = this;
    const { y, tall } = this.rows[at];
    const [top, high] = [y - plot.top, Math.max(2, tall - 2)];
    if (top + high < RULER || top > plot.height) return;
    const lit = !this.lit || this.lit.has(entry.graph);
    const color = theme.series[this.kinds[at][1]];
    context.fillStyle = lit ? color : dimmed(color);
    const x = plot.px(entry.began);
    const wide = Math.max(2, plot.px(entry.began + entry.capture) - x);
    context.fillRect(x, top, wide, high);
    if (tall >= NAMED) this.drawName(context, entry, [x, x + wide], top + high / 2, lit);
    if (entry.first === null) return;
    context.globalAlpha = 0.55;
    for (const { from, to, share } of this.slices[at]) {
      // Whole pixels, because bars that overlap would be darker there.
      const x = Math.round(plot.px(from));
      const wide = Math.max(share === 0 ? 0 : 2, Math.round(plot.px(to)) - x);
      const tall = share === null ? high / 2 : share && high * (0.3 + 0.7 * share);
      context.fillRect(x, top + (share === null ? high / 4 : high - Math.max(1, tall)), wide, Math.max(1, tall));
    }
    context.globalAlpha = 1;
  }

  /** After its capture, if its replays begin later; else before it. */
  drawName(context, entry, [left, right], y, lit) {
    if (!entry.key && entry.graph < 0) return; // the lane has the only name there is
    const name = this.name(entry);
    context.font = `11px ${theme.font}`;
    const room = widthOf(context, name) + 8;
    const free = entry.first === null ? this.plot.width : this.plot.px(entry.first);
    const x = right + room < free ? right + 4 : left > room ? left - room + 4 : null;
    if (x === null) return;
    const { fillStyle } = context;
    context.fillStyle = lit ? theme.muted : theme.faint;
    context.fillText(name, x, y);
    context.fillStyle = fillStyle;
  }

  name({ key, graph, lane }) {
    return key || this.capture.graphs[graph]?.name || this.run.lanes[lane][0];
  }

  at(px, y) {
    const { plot, run } = this;
    const entry = run.entries[this.rows.findIndex((row) => y + plot.top >= row.y && y + plot.top < row.y + row.tall)];
    const x = plot.x(px);
    const slack = 3 / plot.scale;
    const inside = (from, to) => x >= from - slack && x <= to + slack;
    if (!entry) return null;
    const isReplayed = entry.first !== null && inside(entry.first, entry.last ?? entry.first);
    return isReplayed || inside(entry.began, entry.began + entry.capture) ? entry : null;
  }

  hover(x, y, event) {
    const entry = x === null ? null : this.at(x, y);
    this.plot.canvas.style.cursor = entry ? "pointer" : "";
    if (!entry) return showTooltip(null, null);
    const nodes = entry.graph < 0 ? null : this.capture.graphs[entry.graph].nodes;
    return showTooltip(event, [
      this.name(entry),
      `captured in ${timeText(entry.capture)}, at ${timeText(entry.began)}`,
      nodes && countText(nodes[1] - nodes[0], "node"),
      entry.reserved ? `${bytesText(entry.reserved)} reserved` : null,
      entry.failure ? null : entry.replays === null ? "replays not counted" : `${countText(entry.replays, "replay")}${entry.first === null ? "" : `, from ${timeText(entry.first)} to ${timeText(entry.last)}`}`,
      entry.because,
      entry.failure,
      entry.end && `${entry.end}${entry.ended === null ? "" : ` at ${timeText(entry.ended)}`}`,
    ]);
  }

  click(x, y) {
    const entry = this.at(x, y);
    return entry ? this.select(entry.graph) : state.clear();
  }
}

class RunView {
  static title = "Run";

  constructor(host, capture) {
    this.run = capture.run;
    const area = make("div.plot-host");
    this.content = make("div.scroll");
    this.timeline = new RunTimeline(area, capture);
    this.plot = this.timeline.plot;
    append(host,
      make("div.toolbar", {}, this.timeline.legend,
        make("button", { title: "From the start of the program to its end (f)", onclick: () => this.plot.fit() }, "Whole program"),
        make("button", { title: "From the first capture to the last replay", onclick: () => this.timeline.zoomToGraphs() }, "Graphs"),
        plotHint("graph")),
      area, this.content);
    this.choose(0);
  }

  static applies(capture) {
    return Boolean(capture.run);
  }

  choose(table) {
    const { tables } = this.run;
    if (!tables.length) return;
    const buttons = tables.map(({ title }, at) => make("button.toggle", { role: "radio", "aria-checked": String(at === table), onclick: () => this.choose(at) }, title));
    const { graphs } = tables[table];
    const shown = screenTable(tables[table], graphs ? (row) => this.timeline.select(graphs[row.number]) : null);
    replace(this.content, make("div.choices", {}, make("div.choice", { role: "radiogroup", "aria-label": "table" }, buttons), shown.copyButton()), shown.element);
  }

  resume() {
    this.plot.resize();
  }
}

/** What each capture of a program has added to the memory of its pool and of the driver, in order: a
    bar begins where the one before it ended. */
class RunMemoryView {
  static title = "Memory";

  constructor(host, capture) {
    const { memory, estimates } = capture.run;
    const total = memory.reduce((sum, [, , , , grown, , driver]) => sum + grown + driver, 0);
    const ofDriver = memory.reduce((sum, [, , , , , , driver]) => sum + driver, 0);
    const part = (from, size, series) => {
      const filled = make("span.part", { "data-series": series });
      filled.style.left = `${(100 * from) / total || 0}%`;
      filled.style.width = `${(100 * size) / total || 0}%`;
      return size > 0 && filled;
    };
    let before = 0;
    const rows = memory.map(([graph, key, line, pool, grown, kept, driver]) => {
      const name = key || capture.graphs[graph]?.name || "(not read)";
      const select = () => state.select(capture.filter((node) => capture.graphOf[node] === graph), name);
      const parts = [part(before, grown, 0), part(before + grown, driver ?? 0, 1)];
      before += grown + (driver ?? 0);
      return make("tr", {},
        make("td", {}, graph < 0 ? name : link(name, select)), make("td.muted", {}, line), make("td.muted", {}, pool),
        make("td.grow", {}, make("span.waterfall", {}, parts)),
        make("td.number", {}, bytesText(grown)), make("td.number", {}, bytesText(kept)), ofDriver > 0 && make("td.number", {}, bytesText(driver)), make("td.number", {}, bytesText(before)));
    });
    const heads = ["graph", "line", "pool", "", "pool grew", "keeps", ...(ofDriver > 0 ? ["driver"] : []), "together"];
    append(host,
      make("div.toolbar", {},
        legendEntry("span.entry", {}, "var(--series-0)", "the pool grew"), ofDriver > 0 && legendEntry("span.entry", {}, "var(--series-1)", "the driver, for the executable graph"),
        make("span.muted", {}, `${bytesText(total)} for ${countText(memory.length, "graph")}, in the order of their captures. Later captures use what a pool has free: all but what the graphs keep.`)),
      make("div.scroll", {},
        make("table.compact.added", {}, make("thead", {}, make("tr", {}, heads.map((head) => make("th", {}, head)))), make("tbody", {}, rows)),
        estimates.map((text) => make("p.small", {}, text))));
  }

  static applies(capture) {
    return Boolean(capture.run?.memory.length);
  }
}
