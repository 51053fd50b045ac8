"use strict";
// The picture of the first screen: eager and replay in time, or what is known of that; and the bytes in
// use. Modules have the same colors in both.

const ROW = 26; // of nodes
const MEMORY = 96; // height of the bytes in use
const MOST_TALL = 300; // of the captures of a program
const SAME_SCALE = "One iteration of each, to the same scale.";

class Overview {
  constructor(host, capture) {
    this.capture = capture;
    this.legend = make("div.legend");
    const { blocks } = capture;
    this.colors = () => (blocks ? coloringOfBlocks(coloring(capture, "module"), blocks) : coloring(capture, "module"));
    const times = capture.run ? [this.program(host)] : picturesOf(capture).map((picture) => this.timelines(host, picture));
    this.plots = [...times, this.memory(host)].filter(Boolean);
    if (capture.count && !(capture.run && this.plots.length < 2)) append(host, this.legend);
    const show = () => {
      showLegend(capture, this.colors(), this.legend, undefined, "module");
      for (const plot of this.plots) plot.redraw();
    };
    state.on("selection color", show, capture);
    show();
  }

  /** A plot that is so tall, with a sentence above it. */
  plot(host, text, tall, label, actions) {
    const area = make("div.plot-host");
    area.style.height = `${tall / TEXT}rem`;
    append(host, text && make("p.head", {}, text), area);
    return new Plot(area, label, { ...actions, still: true });
  }

  program(host) {
    const area = make("div.plot-host");
    const timeline = new RunTimeline(area, this.capture, true);
    area.style.height = `${Math.min(timeline.tall, MOST_TALL) / TEXT}rem`;
    append(host, area, make("div.legend", {}, timeline.legend));
    return timeline.plot;
  }

  // --- time

  timelines(host, { rows, note }) {
    const { capture } = this;
    const most = Math.max(1, ...rows.map(({ layout }) => layout.length));
    const isTimed = rows[0].layout.inTime;
    const tall = rows.reduce((sum, { layout }) => sum + HEAD + Lanes.height(layout.lanes, ROW), isTimed ? RULER : 0);
    const plot = this.plot(host, note, tall, "Nodes by time, with their modules", {
      draw: (context) => {
        const { of, colors, dim } = this.colors();
        const { of: parts } = coloredBy(capture, "module");
        const byPart = new Map(Array.from(parts, (part, node) => [part, colors[of[node]]]));
        const look = {
          capture, row: ROW, of, colors, dim, lit: (node) => !state.mask || state.mask[node] === 1,
          band: (part) => byPart.get(part) ?? theme["band-2"],
        };
        let y = 0;
        lanes.clear();
        if (isTimed) drawRuler(context, plot, (y = RULER), markText, 1);
        for (const { name, text, layout } of rows) {
          drawHead(context, plot, name, text, y + HEAD / 2);
          y = lanes.draw(context, layout, y + HEAD, look);
        }
      },
      hover: (x, y, event) => showThing(plot, event, x === null ? null : lanes.at(x, y)),
      click: (x, y) => {
        const thing = lanes.at(x, y);
        if (!thing) state.clear();
        else if (thing.module === undefined) state.selectNode(thing.node);
        else selectGroup(capture, coloredBy(capture, "module"), thing.module);
      },
    });
    const lanes = new Lanes(plot);
    plot.extent(-0.005 * most, 1.005 * most, most);
    return plot;
  }

  // --- memory

  memory(host) {
    const { capture } = this;
    const { blocks, pools } = capture;
    if (!blocks?.count) return null;
    const members = Array.from({ length: blocks.count }, (_, block) => block);
    const use = new MemoryUse(blocks, members);
    const begins = beginsOf(blocks, members);
    const reserved = pools.reduce((sum, pool) => sum + pool.reserved, 0);
    const simulated = capture.simulated ? "; a model of the allocator" : "";
    const text = `${bytesText(use.most)} at the peak, ${bytesText(reserved)} reserved; in the order of allocations and frees${simulated}`;
    const plot = this.plot(host, null, HEAD + MEMORY, "Bytes in use by module", {
      draw: (context) => {
        use.color(this.colors());
        drawHead(context, plot, "memory", text, HEAD / 2);
        use.draw(context, plot, HEAD + MEMORY, MEMORY - 4);
        drawBegins(context, plot, capture, begins, HEAD + MEMORY - 9);
        context.fillStyle = theme.line;
        context.fillRect(0, HEAD + MEMORY - 1, plot.width, 1);
      },
      hover: (x, y, event) => {
        const at = Math.floor(plot.x(x ?? 0));
        showTooltip(event, x === null ? null : [`${bytesText(use.at(at))} in use`, `event ${numberText(at)}`]);
      },
      click: () => state.show("memory"),
    });
    plot.extent(0, Math.max(1, blocks.last), 1);
    return plot;
  }
}

/** The timelines, `{rows, note}`: a row is `{name, text, layout}`, a note says how they were drawn. */
function picturesOf(capture) {
  const { compared, graphs } = capture;
  const top = graphs.map((_, at) => at).filter((at) => graphs[at].parent === null && graphs[at].nodes[1] > graphs[at].nodes[0]);
  const layouts = top.map((at) => new GraphLayout(capture, at));
  if (!layouts.length) return [];
  if (layouts.every(({ inTime }) => inTime)) {
    const replay = compared?.replay ?? layouts.reduce((sum, { graph, length }) => sum + (graphs[graph].replay ?? length), 0);
    if (!compared) return [{ rows: [iteration(layouts, "replay", replay)], note: null }];
    return [{
      rows: [iteration(layouts, "eager", compared.eager), iteration(layouts, "replay", replay)],
      note: `${SAME_SCALE} When kernels begin in eager was not measured: its idle time is drawn evenly between them.`,
    }];
  }
  const order = top.slice(0, TOGETHER).map((at) => {
    const layout = new GraphLayout(capture, at, true);
    layout.placed = layout.streams(layout.nodes(), partBands(layout));
    return { name: graphs[at].name || "(no name)", text: `${countText(layout.end - layout.first, "node")}, in execution order (not timed)`, layout };
  });
  const more = layouts.length - order.length;
  const whole = compared && {
    rows: Object.entries(compared).map(([name, time]) => ({ name, text: `${timeText(time)} per iteration`, layout: solid(capture, time) })),
    note: SAME_SCALE,
  };
  return [whole, { rows: order, note: more ? `The first ${TOGETHER} graphs; ${numberText(more)} more are in Graph.` : null }].filter(Boolean);
}

/** Only the whole is known. */
function solid(capture, time) {
  const layout = Object.assign(new NodeLayout(capture, 0, 0), { inTime: true, length: time });
  const band = { starts: Float64Array.of(0), ends: Float64Array.of(time), names: Int32Array.of(-1), texts: { "-1": "" }, isColored: true };
  layout.lanes = [{ name: "", count: 0, rows: [], bands: [band] }];
  return layout;
}

/** All graphs one after the other, in so much time. A node takes the time that was measured in a
    replay; the idle time of a replay is where it was, that of eager is the same before each node. */
function iteration(layouts, name, total) {
  const { capture } = layouts[0];
  const layout = new NodeLayout(capture, 0, capture.count);
  const nodes = layouts.flatMap((each) => each.nodes().sort((a, b) => each.start(a) - each.start(b) || a - b).map((node) => [node, each]));
  const idleBefore = [];
  let [begin, end, last] = [0, 0, null];
  for (const [node, each] of nodes) {
    if (each !== last) begin = end;
    last = each;
    [layout.starts[node], layout.ends[node]] = [begin + each.start(node), begin + each.stop(node)];
    idleBefore.push(Math.max(0, layout.starts[node] - end));
    end = Math.max(end, layout.ends[node]);
  }
  const measured = idleBefore.reduce((sum, idle) => sum + idle, 0);
  const idle = Math.max(0, total - (end - measured));
  let shift = 0;
  nodes.forEach(([node], at) => {
    const own = name === "eager" || !measured ? idle / nodes.length : (idleBefore[at] * idle) / measured;
    shift += own - idleBefore[at];
    layout.starts[node] += shift;
    layout.ends[node] += shift;
  });
  layout.inTime = true;
  layout.length = Math.max(total, end + shift);
  layout.lanes = layout.streams(nodes.map(([node]) => node), partBands(layout));
  return { name, text: `${timeText(total)} per iteration, GPU idle ${shareText(idle / (total || 1))}`, layout };
}

/** Bands of the modules that have colors; above them the repeated layers, where one color is of all. */
function partBands(layout) {
  const { of, names } = coloredBy(layout.capture, "module");
  const none = names.indexOf(moduleText(null));
  const repeated = Math.max(...names.map((name) => name.split(".").indexOf("*")));
  return (sorted) => {
    const parts = { ...layout.visits(sorted, names, (node) => (of[node] === none ? -1 : of[node])), isColored: true };
    return repeated < 0 ? [parts] : [...layout.bands(sorted).slice(repeated, repeated + 1), parts];
  };
}

/** The nodes of a group by its name. */
function selectGroup(capture, { of, names }, name) {
  const group = names.indexOf(name);
  state.select(capture.filter((node) => of[node] === group), name);
}
