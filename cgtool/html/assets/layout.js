"use strict";
// Where nodes are drawn: in time where they were timed, else in the order that their edges allow; a
// lane for each stream, with the modules as bands above its nodes.

const MOST_ROWS = 8; // of nodes that run at the same time in one lane

/** Nodes from `first` to before `end`, with the start and the end of each. */
class NodeLayout {
  constructor(capture, first, end) {
    Object.assign(this, { capture, first, end });
    this.starts = new Float64Array(end - first);
    this.ends = new Float64Array(end - first);
  }

  nodes() {
    return Array.from(this.starts, (_, at) => this.first + at);
  }

  start(node) {
    return this.starts[node - this.first];
  }

  stop(node) {
    return this.ends[node - this.first];
  }

  /** A lane for each stream of these nodes: `bands(sorted)` is drawn above its rows. */
  streams(nodes, bands) {
    const { capture } = this;
    const byStream = numbersBy(nodes.map((node) => capture.streamOf[node]));
    return [...byStream].sort(([a], [b]) => a - b).map(([stream, places]) => {
      const sorted = places.map((at) => nodes[at]).sort((a, b) => this.start(a) - this.start(b) || a - b);
      return {
        name: stream < 0 ? "no stream" : capture.streams[stream],
        count: sorted.length,
        rows: this.rows(sorted),
        bands: bands(sorted),
      };
    });
  }

  /** Nodes that run at the same time are in different rows. */
  rows(sorted) {
    const rows = [[]];
    const free = [0];
    for (const node of sorted) {
      let row = free.findIndex((end) => end <= this.start(node));
      if (row < 0) {
        row = Math.min(rows.length, MOST_ROWS - 1);
        if (row === rows.length) rows.push([]);
      }
      free[row] = Math.max(free[row] ?? 0, this.stop(node));
      rows[row].push(node);
    }
    return rows.map((row) => Int32Array.from(row));
  }

  /** The first place in a row whose node ends at `x` or later: nodes of a row do not overlap, so
      their ends rise. */
  firstEnding(row, x) {
    return firstWhere(row.length, (at) => this.stop(row[at]) >= x);
  }

  /** Neighbors with the same name as one band each: `name(node)` is the number of a name in
      `texts`; -1 for none. */
  visits(sorted, texts, name) {
    const [starts, ends, names] = [[], [], []];
    let last = -1;
    for (const node of sorted) {
      const own = name(node);
      if (own >= 0 && own === last) {
        ends[ends.length - 1] = Math.max(ends.at(-1), this.stop(node));
      } else if (own >= 0) {
        starts.push(this.start(node));
        ends.push(this.stop(node));
        names.push(own);
      }
      last = own;
    }
    return {
      starts: Float64Array.from(starts), ends: Float64Array.from(ends), names: Int32Array.from(names), texts,
      typical: typicalLength(starts.map((start, at) => ends[at] - start)),
    };
  }

  /** By depth, the visits to modules: neighbors with the same first names of their path. */
  bands(sorted) {
    const { capture } = this;
    const paths = capture.prefixes ??= modulePrefixes(capture);
    const bands = [];
    for (let depth = 0; depth < DEEPEST; depth++) {
      const visits = this.visits(sorted, paths.names, (node) => (capture.originOf[node] < 0 ? -1 : (paths.of[capture.originOf[node]][depth] ?? -1)));
      if (!visits.names.length) break;
      bands.push(visits);
    }
    return bands;
  }
}

/** One graph. `inOrder`: even if its nodes were timed. */
class GraphLayout extends NodeLayout {
  constructor(capture, graph, inOrder = false) {
    super(capture, ...capture.graphs[graph].nodes);
    this.graph = graph;
    this.place(inOrder);
  }

  get lanes() {
    return (this.placed ??= this.streams(this.nodes(), (sorted) => this.bands(sorted)));
  }

  /** The start and the end of each node. */
  place(inOrder) {
    const { capture, first } = this;
    const started = !inOrder && capture.startOf.subarray(first, this.end).some((start) => start >= 0);
    const timed = !inOrder && capture.durationOf.subarray(first, this.end).some((time) => time >= 0);
    this.inTime = timed;
    const { before } = capture.links(this.graph);
    for (const at of this.order()) {
      let start = started ? capture.startOf[first + at] : -1;
      if (start < 0) {
        start = 0;
        for (const source of before(first + at)) start = Math.max(start, this.ends[source - first]);
      }
      const length = timed ? Math.max(0, capture.durationOf[first + at]) : 1;
      this.starts[at] = start;
      this.ends[at] = start + length;
    }
    this.length = this.ends.reduce((most, end) => Math.max(most, end), 0);
    this.cutOverlaps();
  }

  /** Starts are medians of several replays: a node may seem to start before the one that it waits
      for has ended. That one is drawn up to there. */
  cutOverlaps() {
    const { capture, first, starts, ends } = this;
    const [from, to] = capture.graphs[this.graph].edges;
    for (let row = from; row < to; row++) {
      const [source, target] = [capture.source[row], capture.target[row]];
      const sameLane = capture.streamOf[first + source] === capture.streamOf[first + target];
      if (sameLane && capture.edgeType[row] === 0 && starts[target] > starts[source]) {
        ends[source] = Math.min(ends[source], starts[target]);
      }
    }
  }

  /** Its nodes, each after those that it waits for. */
  order() {
    const { capture, first } = this;
    const count = this.end - first;
    const [from, to] = capture.graphs[this.graph].edges;
    let rising = true;
    for (let row = from; row < to && rising; row++) rising = capture.source[row] < capture.target[row];
    const order = Array.from({ length: count }, (_, at) => at);
    if (rising) return order;
    const { before, after } = capture.links(this.graph);
    const waits = order.map((at) => before(first + at).length);
    const ready = order.filter((at) => waits[at] === 0);
    for (const at of ready) {
      for (const target of after(first + at)) if (--waits[target - first] === 0) ready.push(target - first);
    }
    return ready;
  }
}

/** `{of, names}`: by origin, the numbers of its module's path and of all modules around it,
    outermost first; and their names. */
function modulePrefixes(capture) {
  const numbers = new Map();
  const names = [];
  const number = (name) => {
    if (!numbers.has(name)) {
      numbers.set(name, names.length);
      names.push(name);
    }
    return numbers.get(name);
  };
  const of = capture.origins.map(([, module]) => {
    if (!module) return [];
    const parts = module.split(".");
    return parts.slice(0, DEEPEST).map((_, at) => number(parts.slice(0, at + 1).join(".")));
  });
  return { of, names };
}

/** Longer ones make half of the sum. */
function typicalLength(lengths) {
  const half = lengths.reduce((sum, length) => sum + length, 0) / 2;
  let sum = 0;
  return lengths.sort((a, b) => b - a).find((length) => (sum += length) >= half) ?? 0;
}

/** The first position whose value is more than `least`; `values` rise. */
function firstAbove(values, least) {
  return firstWhere(values.length, (at) => values[at] > least);
}

/** The first of `count` positions for which `holds` is true: it is for all that follow. */
function firstWhere(count, holds) {
  let [low, high] = [0, count];
  while (low < high) {
    const middle = (low + high) >> 1;
    if (holds(middle)) high = middle;
    else low = middle + 1;
  }
  return low;
}
