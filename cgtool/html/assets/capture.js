"use strict";
// One capture: its columns by node, and what they refer to.

const EVEN = Math.log(3); // evenness of three equal parts
const MOST_GRAY = 0.05; // share of the nodes whose modules have no color
const DEEPEST = 8; // names of a module path

class Capture {
  constructor(tree, columns, number) {
    Object.assign(this, tree);
    // A module may be called "constructor".
    this.types = Object.assign(Object.create(null), tree.types);
    this.number = number;
    const column = (name) => columns[`${number}/${name}`] ?? null;
    this.type = column("type");
    this.count = this.type.length;
    this.worksOfType = this.nodeTypes.map((type) => this.work.includes(type));
    const none = () => new Int32Array(this.count).fill(-1);
    const unknown = () => new Float32Array(this.count).fill(NaN);
    for (const name of ["origin", "stream", "kernel", "title", "launch", "arguments", "bound", "start", "duration", "slack", "nans", "infinities"]) {
      this[`${name}Of`] = column(name) ?? none();
    }
    for (const name of ["bytes", "flops", "memory", "compute", "waves", "occupancy", "least", "largest"]) {
      this[`${name}Of`] = column(name) ?? unknown();
    }
    for (const name of ["critical", "pointerEnd", "pointer", "source", "target", "edgeType"]) this[name] = column(name);
    this.unneeded = this.readUnneeded(column("unneeded"));
    this.blocks = this.pools ? this.readBlocks(column) : null;
    this.graphOf = new Int32Array(this.count);
    this.graphs.forEach((graph, at) => this.graphOf.fill(at, ...graph.nodes));
    this.groupings = new Map();
    this.linked = new Map();
  }

  /** Blocks of memory by column; `node` is one of all nodes. */
  readBlocks(column) {
    const names = ["pool", "at", "bytes", "requested", "graph", "stream", "origin", "node", "label", "from", "to"];
    const blocks = Object.fromEntries(names.map((name) => [name, column(`block/${name}`)]));
    blocks.count = blocks.pool.length;
    blocks.node = blocks.node.map((node, block) => (node < 0 ? -1 : node + this.graphs[blocks.graph[block]].nodes[0]));
    blocks.isWorkspace = Uint8Array.from(blocks.label, (label) => this.blockLabels[label] === WORKSPACE);
    blocks.last = blocks.to.reduce((most, to) => Math.max(most, to), blocks.from.at(-1) ?? 0) + 1;
    return blocks;
  }

  /** The edges that the data does not need, as nodes: `{graph, source, target}`. */
  readUnneeded(edges) {
    let graph = 0;
    return Array.from(edges, (edge) => {
      while (edge >= this.graphs[graph].edges[1]) graph++;
      const [first] = this.graphs[graph].nodes;
      return { graph, source: this.source[edge] + first, target: this.target[edge] + first };
    });
  }

  /** What holds a block, or what it is made for. */
  blockText(block) {
    const { blocks } = this;
    const origin = blocks.origin[block];
    const [op, module, , frame] = origin < 0 ? NO_PLACE : this.origins[origin];
    const place = [op === null ? "" : shortOp(op), module ?? "", this.frameText(frame)].filter(Boolean).join(" ");
    return `${bytesText(blocks.bytes[block])} ${this.blockLabels[blocks.label[block]] || place}`.trim();
  }

  /** The blocks that were allocated right before a node, for it. */
  blocksOf(node) {
    if (!this.blocks) return [];
    this.byOwner ??= numbersBy(this.blocks.node);
    return this.byOwner.get(node) ?? [];
  }

  // --- what a node is

  title(node) {
    return this.titles[this.titleOf[node]];
  }

  nodeType(node) {
    return this.nodeTypes[this.type[node]];
  }

  id(node) {
    return node - this.graphs[this.graphOf[node]].nodes[0];
  }

  /** `[op, module, type of the module, frame, frames, forward origin, autograd node, ranges, module as
      tables name it]`. */
  place(node) {
    return this.originOf[node] < 0 ? NO_PLACE : this.origins[this.originOf[node]];
  }

  op(node) {
    const op = this.place(node)[0];
    return op === null ? null : shortOp(op);
  }

  module(node) {
    return this.place(node)[1];
  }

  /** Its module as tables name it, with the callable if there are several. */
  modulePath(node) {
    const { part } = this.graphs[this.graphOf[node]];
    const name = this.place(node)[8];
    return part ? `${part}: ${name}` : name;
  }

  /** A module as `modulePath` names it, with the numbers of repeated layers left out: numbered
      modules in one place that have one type. */
  layerOf(module) {
    this.numbered ??= this.typesOfNumbered();
    this.layers ??= new Map();
    if (!this.layers.has(module)) {
      this.layers.set(module, module.replace(/(?<=^|\.| )\d+(?=\.|$)/g, (number, at) => (this.numbered.get(module.slice(0, at))?.size > 1 ? number : "*")));
    }
    return this.layers.get(module);
  }

  /** By what is before the number, the types of numbered modules. */
  typesOfNumbered() {
    const types = new Map(Object.entries(this.types));
    for (let node = 0; node < this.count; node++) {
      const path = this.modulePath(node);
      if (!types.has(path)) types.set(path, this.place(node)[2]);
    }
    const numbered = new Map();
    for (const [path, type] of types) {
      const [, before] = /^(|.*[. ])\d+$/s.exec(path) ?? [];
      if (before === undefined || !type) continue;
      if (!numbered.has(before)) numbered.set(before, new Set());
      numbered.get(before).add(type);
    }
    return numbered;
  }

  /** A module as `modulePath` names it, as far as it has a color in pictures: the first names of its
      path, as many as divide the nodes most evenly among few modules. Repeated layers are one only
      where that does not divide them. */
  partOf(module) {
    this.cut ??= this.chooseCut();
    this.parts ??= new Map();
    if (!this.parts.has(module)) this.parts.set(module, this.cut(module));
    return this.parts.get(module);
  }

  chooseCut() {
    const weights = new Map();
    for (let node = 0; node < this.count; node++) {
      const path = this.modulePath(node);
      weights.set(path, (weights.get(path) ?? 0) + this.weight(node));
    }
    const total = this.totalWeight() || 1;
    /** The entropy of the shares; less than 0 where too much would have no color. */
    const evenness = (cut) => {
      const sums = new Map();
      for (const [path, weight] of weights) sums.set(cut(path), (sums.get(cut(path)) ?? 0) + weight / total);
      const shares = [...sums.values()].sort((a, b) => b - a);
      const rest = shares.slice(theme.series.length).reduce((sum, share) => sum + share, 0);
      return rest > MOST_GRAY ? -1 : shares.reduce((sum, share) => sum - (share && share * Math.log(share)), 0);
    };
    const best = (name) => Array.from({ length: DEEPEST }, (_, depth) => (path) => path && pathNames(name(path)).slice(0, depth + 1).join("."))
      .reduce((a, b) => (evenness(b) > evenness(a) + 1e-9 ? b : a));
    const each = best((path) => path);
    const layers = best((path) => this.layerOf(path));
    return evenness(each) >= Math.min(EVEN, evenness(layers)) ? each : layers;
  }

  /** The number of the frame whose line the node belongs to; -1 for none. */
  frame(node) {
    return this.place(node)[3];
  }

  frameText(frame) {
    if (frame < 0) return "";
    const [file, line] = this.frames[frame];
    return `${this.fileText(file)}:${line}`;
  }

  /** The source line of a frame; empty where it is not known. */
  lineText(frame) {
    if (frame < 0) return "";
    const [file, line] = this.frames[frame];
    const { numbers, lines } = this.files[file];
    return lines[numbers.indexOf(line)]?.trim() ?? "";
  }

  /** A file by its name, or by its path where two have the same name. */
  fileText(file) {
    this.fileTexts ??= this.files.map(({ path }, at) => {
      const name = fileName(path);
      const again = this.files.some((other, number) => number !== at && fileName(other.path) === name);
      return again ? path : name;
    });
    return this.fileTexts[file];
  }

  /** Whether it does work on the device: tables count no others. */
  doesWork(node) {
    return this.worksOfType[this.type[node]];
  }

  /** The time of a node, or 1 for each that does work where nothing was timed. */
  weight(node) {
    return this.timed ? Math.max(0, this.durationOf[node]) : Number(this.doesWork(node));
  }

  /** What shares refer to: one replay of each graph, or all nodes that do work. */
  totalWeight() {
    return this.total ??= this.type.reduce((sum, _, node) => sum + this.weight(node), 0);
  }

  weightText(weight) {
    return this.timed ? timeText(weight) : countText(weight, "node");
  }

  /** Whether it is part of a backward. */
  isBackward(node) {
    const place = this.place(node);
    return place[5] >= 0 || place[6] !== null || this.graphs[this.graphOf[node]].phase === "backward";
  }

  // --- groups of nodes

  /** `{of, names}`: the number of each node's group by `module`, `op`, `line`, ..., and names. */
  grouping(by) {
    if (!this.groupings.has(by)) this.groupings.set(by, this.group(GROUPS[by]));
    return this.groupings.get(by);
  }

  group([key, name]) {
    const numbers = new Map();
    const names = [];
    const of = new Int32Array(this.count);
    for (let node = 0; node < this.count; node++) {
      const value = key(this, node);
      let number = numbers.get(value);
      if (number === undefined) {
        number = names.length;
        numbers.set(value, number);
        names.push(name(this, value));
      }
      of[node] = number;
    }
    return { of, names };
  }

  /** The nodes for which `holds` is true. */
  filter(holds) {
    const nodes = [];
    for (let node = 0; node < this.count; node++) if (holds(node)) nodes.push(node);
    return nodes;
  }

  // --- edges

  /** The nodes that a node waits for, and those that wait for it: `[before, after]`. */
  neighbors(node) {
    const { before, after } = this.links(this.graphOf[node]);
    return [before(node), after(node)];
  }

  /** Whether the data does not need that one node waits for another. */
  isUnneeded(source, target) {
    this.unneededPairs ??= new Set(this.unneeded.map((edge) => `${edge.source} ${edge.target}`));
    return this.unneededPairs.has(`${source} ${target}`);
  }

  /** The edges of a graph by their ends. */
  links(graph) {
    if (!this.linked.has(graph)) {
      const [first, end] = this.graphs[graph].nodes;
      const [from, to] = this.graphs[graph].edges;
      const before = listed(this.target, this.source, from, to, first, end - first);
      const after = listed(this.source, this.target, from, to, first, end - first);
      this.linked.set(graph, { before, after });
    }
    return this.linked.get(graph);
  }

  /** What the arguments of a kernel point into: `[allocations, tensors]`. */
  pointers(node) {
    const from = node ? this.pointerEnd[node - 1] : 0;
    const all = [...this.pointer.subarray(from, this.pointerEnd[node])];
    return [all.filter((at) => at % 2 === 0).map((at) => at / 2),
            all.filter((at) => at % 2 === 1).map((at) => (at - 1) / 2)];
  }

  /** The nodes of the other phase that belong to the same calls: backward of forward, or the
      reverse. */
  counterparts(node) {
    const forward = this.place(node)[5];
    const callable = this.graphs[this.graphOf[node]].callable;
    const same = (other) => this.graphs[this.graphOf[other]].callable === callable;
    if (forward >= 0) return this.ofOrigin(forward).filter(same);
    this.byForward ??= numbersBy(this.origins.map((origin) => origin[5]));
    const backward = (this.originOf[node] >= 0 && this.byForward.get(this.originOf[node])) || [];
    return backward.flatMap((origin) => this.ofOrigin(origin)).filter(same);
  }

  ofOrigin(origin) {
    this.byOrigin ??= numbersBy(this.originOf);
    return this.byOrigin.get(origin) ?? [];
  }
}

/** By value, the positions that have it. */
function numbersBy(values) {
  const positions = new Map();
  values.forEach((value, at) => {
    if (!positions.has(value)) positions.set(value, []);
    positions.get(value).push(at);
  });
  return positions;
}

const NO_PLACE = [null, null, null, -1, [], -1, null, [], "(no module)"];

/** What nodes are grouped by: the key of a node, and the name of a key. */
const GROUPS = {
  module: [(capture, node) => capture.modulePath(node), (_, module) => moduleText(module)],
  layer: [(capture, node) => capture.layerOf(capture.modulePath(node)), (_, module) => moduleText(module)],
  part: [(capture, node) => capture.partOf(capture.modulePath(node)), (_, module) => moduleText(module)],
  op: [(capture, node) => capture.op(node), (_, op) => op ?? "(outside any op)"],
  kernel: [(capture, node) => capture.title(node), (_, title) => title],
  line: [(capture, node) => capture.frame(node), (capture, frame) => capture.frameText(frame) || "(no line)"],
  type: [(capture, node) => capture.type[node], (capture, type) => capture.nodeTypes[type]],
  stream: [(capture, node) => capture.streamOf[node], (capture, at) => capture.streams[at] ?? "(no stream)"],
  bound: [
    (capture, node) => capture.boundOf[node],
    (capture, bound) => (bound < 0 ? "unknown" : capture.bounds[bound][0]),
  ],
};

function moduleText(module) {
  return module || "(root)";
}

/** The names of a path of `modulePath`. The dots in the name of a range separate nothing. */
function pathNames(path) {
  return /(^|: )\(/.test(path) ? [path] : path.split(".");
}

/** By key, the values of its rows: a function from a node to nodes. */
function listed(keys, values, from, to, first, count) {
  const ends = new Int32Array(count + 1);
  for (let row = from; row < to; row++) ends[keys[row] + 1]++;
  for (let at = 0; at < count; at++) ends[at + 1] += ends[at];
  const at = ends.slice();
  const sorted = new Int32Array(to - from);
  for (let row = from; row < to; row++) sorted[at[keys[row]]++] = values[row] + first;
  return (node) => sorted.subarray(ends[node - first], ends[node - first + 1]);
}
