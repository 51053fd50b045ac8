"use strict";
// The panel beside every view: all of the selected node, or the sum of the selected nodes.

const NEAR_LINES = 3; // shown around a line
const MOST_NEIGHBORS = 6;
const MOST_ROWS_OF_A_SUM = 8;

class Details {
  constructor(host) {
    this.host = host;
    state.on("selection capture", () => this.show());
    this.show();
  }

  show() {
    const { nodes, lead } = state;
    this.host.hidden = nodes.length === 0;
    if (!nodes.length) return;
    const content = lead >= 0 ? this.node(state.capture, lead) : this.sum(state.capture, nodes);
    const close = make("button.close", { title: "Clear the selection (Esc)", "aria-label": "Clear the selection", onclick: () => state.clear() }, "×");
    replace(this.host, close, content);
    this.host.scrollTop = 0;
  }

  // --- one node

  node(capture, node) {
    const [op, module, moduleType, frame, frames, forward, autograd, ranges] = capture.place(node);
    const graph = capture.graphs[capture.graphOf[node]];
    const title = capture.title(node);
    const kernel = capture.kernelOf[node];
    const own = frames.length ? frames[0] : -1;
    return [
      make("h2", {}, breakable(op === null ? title : shortOp(op))),
      make("p.muted", {}, `node ${capture.id(node)} of ${graph.name || "(no name)"}, ${capture.nodeType(node)}`),
      this.list([
        ["time", this.timeOf(capture, node)],
        ["module", module === null ? null : [link(moduleText(module), () => selectModule(capture, module)), moduleType && ` (${moduleType})`]],
        ["op", op],
        ["autograd", autograd],
        ["ranges", ranges.length ? ranges.join(" › ") : null],
        ["stream", capture.streamOf[node] < 0 ? null : capture.streams[capture.streamOf[node]]],
        ["body", this.bodies(capture, node)],
      ]),
      this.valuesOf(capture, node),
      this.lines(capture, node, frame, own, forward),
      this.around(capture, node),
      kernel >= 0 && this.section("Kernel", [
        make("p.mono", {}, breakable(capture.kernels[kernel][0])),
        capture.kernels[kernel][1] !== capture.kernels[kernel][0] &&
          make("details", {}, make("summary", {}, "Full name"), make("p.mono.small", {}, breakable(capture.kernels[kernel][1]))),
      ]),
      this.section("Launch", this.list(capture.launches[capture.launchOf[node]])),
      this.work(capture, node),
      this.argumentsOf(capture, node),
    ];
  }

  /** What the op had written when the node had run. */
  valuesOf(capture, node) {
    const rows = capture.values[node] ?? [];
    return this.section("Values", this.list(rows.map(([name, text]) => [name, / NaN/.test(text) ? make("span.bad", {}, text) : text])));
  }

  timeOf(capture, node) {
    const time = capture.durationOf[node];
    if (time < 0) return null;
    const start = capture.startOf[node] >= 0 ? `, starts at ${timeText(capture.startOf[node])}` : "";
    const path = capture.critical[node] === 1 ? "on the critical path" : capture.slackOf[node] >= 0 ? `can take ${timeText(capture.slackOf[node])} longer without delaying the graph` : null;
    return [`${timeText(time)}, ${shareText(time / capture.totalWeight())} of the replays${start}`, path && make("div.muted", {}, path)];
  }

  bodies(capture, node) {
    const graphs = capture.bodies[node];
    if (!graphs) return null;
    return graphs.map((at) => {
      const [first, end] = capture.graphs[at].nodes;
      const nodes = Array.from({ length: end - first }, (_, each) => first + each);
      return link(`${capture.graphs[at].name} (${countText(nodes.length, "node")})`, () => state.select(nodes, capture.graphs[at].name));
    });
  }

  lines(capture, node, frame, own, forward) {
    if (frame < 0 && own < 0) return null;
    const parts = [];
    if (forward >= 0 && frame >= 0) parts.push(snippet(capture, frame, "forward line"));
    if (own >= 0 && (own !== frame || forward < 0)) parts.push(snippet(capture, own, forward >= 0 ? "where backward is called" : "line"));
    else if (forward < 0 && frame >= 0) parts.push(snippet(capture, frame, "line"));
    const chain = (forward >= 0 ? capture.origins[forward][4] : capture.place(node)[4]).slice(1);
    if (chain.length) {
      parts.push(make("details", {}, make("summary", {}, `Called from (${chain.length})`),
        make("ul.plain", {}, chain.map((at) => make("li", {}, frameLink(capture, at), ` in ${capture.frames[at][2]}`)))));
    }
    return this.section("Source", parts);
  }

  work(capture, node) {
    const [bytes, flops, memory, compute, waves, occupancy] = ["bytes", "flops", "memory", "compute", "waves", "occupancy"].map((name) => capture[`${name}Of`][node]);
    const seconds = capture.durationOf[node] / 1e9;
    const bound = capture.boundOf[node];
    const rate = (value, unit) => (seconds > 0 ? `, ${scaledText(value / seconds, unit)}` : "");
    const rows = [
      ["bytes", bytes >= 0 ? `${bytesText(bytes)}${rate(bytes, "B/s")}` : null],
      ["", memory >= 0 ? bar(memory, "of peak bandwidth") : null],
      ["operations", flops >= 0 ? `${scaledText(flops, "FLOP")}${rate(flops, "FLOP/s")}` : null],
      ["", compute >= 0 ? bar(compute, "of peak FLOP/s") : null],
      ["blocks", waves >= 0 ? bar(waves, "of the blocks that fit on the GPU at once") : null],
      ["occupancy", occupancy >= 0 ? bar(occupancy, "of the threads that a multiprocessor can hold") : null],
      ["limited by", bound >= 0 ? `${capture.bounds[bound][0]}: ${capture.bounds[bound][1]}` : null],
    ];
    return this.section("Work", this.list(rows));
  }

  argumentsOf(capture, node) {
    const [allocations, tensors] = capture.pointers(node);
    const given = capture.argumentsOf[node] >= 0 ? capture.arguments[capture.argumentsOf[node]] : [];
    const tensor = (at) => {
      const [name, bytes, dtype, shape] = capture.tensors[at];
      return [name, `${dtype}${shape.length ? `[${shape.join(",")}]` : ""} ${bytesText(bytes)}`];
    };
    const block = (at) => {
      return [`block ${at}`, capture.blockText(at)];
    };
    const own = capture.blocksOf(node).map((at) => {
      const to = capture.blocks.to[at];
      return [`block ${at}`, `${capture.blockText(at)}, ${to < 0 ? "live at the end" : `freed after ${countText(to - capture.blocks.from[at], "allocator event")}`}`];
    });
    return [
      this.section("Arguments", [this.list(given), this.list([...tensors.map(tensor), ...allocations.map(block)])]),
      this.section("Memory allocated for it", this.list(own)),
    ];
  }

  // --- neighbors

  around(capture, node) {
    const [before, after] = capture.neighbors(node).map((nodes) => [...nodes]);
    const other = capture.counterparts(node);
    const parts = [];
    if (before.length || after.length) parts.push(neighborBoxes(capture, node, before, after));
    const unneeded = before.filter((each) => capture.isUnneeded(each, node));
    const needless = after.filter((each) => capture.isUnneeded(node, each));
    if (unneeded.length) parts.push(make("p", {}, unneededText(capture, node, unneeded)));
    else if (needless.length) parts.push(make("p", {}, neededByNoneText(capture, needless)));
    if (other.length) {
      const phase = capture.place(node)[5] >= 0 ? "forward" : "backward";
      parts.push(make("p", {}, link(`Select its ${phase} (${countText(other.length, "node")})`, () => state.select(other, `${phase} of ${capture.title(node)}`))));
    }
    return this.section("Dependencies", parts);
  }

  // --- several nodes

  sum(capture, nodes) {
    let [weight, bytes, flops] = [0, 0, 0];
    const total = capture.totalWeight();
    for (const node of nodes) {
      weight += capture.weight(node);
      if (capture.bytesOf[node] >= 0) bytes += capture.bytesOf[node];
      if (capture.flopsOf[node] >= 0) flops += capture.flopsOf[node];
    }
    return [
      make("h2", {}, breakable(state.label)),
      make("p.muted", {}, `${countText(nodes.length, "node")} selected`),
      this.list([
        [capture.timed ? "time" : "nodes", `${capture.weightText(weight)}, ${shareText(weight / total)} of ${capture.timed ? "the replays" : "all"}`],
        ["bytes", bytes ? bytesText(bytes) : null],
        ["operations", flops ? scaledText(flops, "FLOP") : null],
      ]),
      this.commonLine(capture, nodes),
      ...["module", "op", "kernel", "line"].map((by) => this.top(capture, nodes, by, weight)),
    ];
  }

  commonLine(capture, nodes) {
    const frame = capture.frame(nodes[0]);
    if (frame < 0 || nodes.some((node) => capture.frame(node) !== frame)) return null;
    return this.section("Source", snippet(capture, frame, "line"));
  }

  top(capture, nodes, by, total) {
    const { of, names } = capture.grouping(by);
    const weights = new Map();
    for (const node of nodes) weights.set(of[node], (weights.get(of[node]) ?? 0) + capture.weight(node));
    if (weights.size < 2) return null;
    const ranked = [...weights].sort((a, b) => b[1] - a[1]);
    const rows = ranked.slice(0, MOST_ROWS_OF_A_SUM).map(([group, weight]) =>
      make("tr", {},
        make("td.grow", {}, link(names[group], () => state.select([...nodes].filter((node) => of[node] === group), names[group]))),
        make("td.number", {}, capture.timed ? timeText(weight) : numberText(weight)),
        make("td.number.muted", {}, shareText(weight / total))));
    const more = ranked.length > rows.length && make("p.muted", {}, `${numberText(ranked.length - rows.length)} more`);
    return this.section(`By ${by}`, [make("table.compact", {}, make("tbody", {}, rows)), more]);
  }

  // --- parts

  section(title, content) {
    const parts = [content].flat(Infinity).filter(Boolean);
    return parts.length ? make("section", {}, make("h3", {}, title), parts) : null;
  }

  list(rows) {
    const shown = rows.filter(([, value]) => value !== null && value !== undefined);
    return shown.length ? make("dl", {}, shown.map(([label, value]) => [make("dt", {}, label), make("dd", {}, typeof value === "string" ? breakable(value) : value)])) : null;
  }
}

function link(text, action, title) {
  return make("button.link", { onclick: action, title }, breakable(text));
}

/** A line of the source, which leads to the Source view if it is there. */
function frameLink(capture, frame) {
  const [file, line] = capture.frames[frame];
  const text = capture.frameText(frame);
  const full = `${capture.files[file].path}:${line}`;
  if (!state.showSource) return make("span.mono", { title: full }, breakable(text));
  return link(text, () => state.showSource(file, line), full);
}

/** A share as a bar and in words. */
function bar(share, text) {
  const filled = make("span.filled");
  filled.style.width = `${Math.min(100, 100 * share)}%`;
  return make("span.share", {}, make("span.bar", {}, filled), ` ${share > 1.005 ? ">100%" : shareText(share)} ${text}`);
}

/** The lines around a frame. */
function snippet(capture, frame, label) {
  const [file, line, name] = capture.frames[frame];
  const { numbers, lines } = capture.files[file];
  const at = numbers.indexOf(line);
  const shown = at < 0 ? [] : numbers.map((_, each) => each).slice(Math.max(0, at - NEAR_LINES), at + NEAR_LINES + 1);
  const near = shown.filter((each) => Math.abs(numbers[each] - line) <= NEAR_LINES);
  const indent = Math.min(...near.map((each) => (lines[each].trim() ? lines[each].search(/\S/) : Infinity)), 200);
  return make("div.snippet", {},
    make("p.small", {}, make("span.muted", {}, `${label} `), frameLink(capture, frame), make("span.muted", {}, ` in ${name}`)),
    near.length > 0 && make("pre.code", {}, near.map((each) =>
      make(numbers[each] === line ? "div.here" : "div", {}, make("span.line-number", {}, String(numbers[each])), codeLine("span", lines[each].slice(indent))))));
}

// --- what a node waits for, and what waits for it

/** Why a node waits for others whose data it does not use. */
function unneededText(capture, node, sources) {
  const stream = capture.streamOf[node];
  const names = [...new Set(sources.map((each) => capture.op(each) ?? capture.title(each)))].join(", ");
  const why = stream >= 0 && sources.every((each) => capture.streamOf[each] === stream)
    ? `both were captured on the same stream (${capture.streams[stream]})`
    : "their streams were joined in between";
  return `False dependency (red): this node waits for ${names} only because ${why}. Neither writes what the other uses.`;
}

/** The same, seen from the node that is waited for. */
function neededByNoneText(capture, targets) {
  const names = [...new Set(targets.map((each) => capture.op(each) ?? capture.title(each)))].join(", ");
  return `False dependency (red): ${names} waits for this node and does not use what it writes. Click ${targets.length === 1 ? "it" : "one"} for the reason.`;
}

/** The node between what it waits for and what waits for it. */
function neighborBoxes(capture, node, before, after) {
  const box = (name, each, attributes) => make(name, { title: [`node ${capture.id(each)}`, ...nodeRows(capture, each).filter(Boolean)].join("\n"), ...attributes },
    make("div.name", {}, capture.op(each) ?? capture.title(each)),
    make("div.muted", {}, capture.durationOf[each] >= 0 ? timeText(capture.durationOf[each]) : `node ${capture.id(each)}`));
  const column = (nodes, isUnneeded) => make("div", {},
    nodes.slice(0, MOST_NEIGHBORS).map((each) => box(isUnneeded(each) ? "button.neighbor.unneeded" : "button.neighbor", each, { onclick: () => state.selectNode(each) })),
    nodes.length > MOST_NEIGHBORS && make("span.muted", {}, `${numberText(nodes.length - MOST_NEIGHBORS)} more`));
  const arrow = () => make("span", { "aria-hidden": "true" }, "→");
  return make("div.neighbors", {},
    column(before, (each) => capture.isUnneeded(each, node)), before.length > 0 && arrow(),
    box("div.neighbor", node), after.length > 0 && arrow(), column(after, (each) => capture.isUnneeded(node, each)));
}
