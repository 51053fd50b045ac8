"use strict";
// The Memory view: address against time for each pool. Time is the order of the allocator's events.

const CURVE = 84; // height of the bytes in use
const MOST_STREAMS = 4; // that are named
const MOST_LIT = 20000; // selected nodes whose arguments are looked at

const WORKSPACE = "cuBLAS workspace"; // of no op or module, whichever is the first to multiply

/** Colors of nodes, as `coloring` makes them, with one more for workspaces, and by block its number:
    `ofBlock`. */
function coloringOfBlocks({ of, colors, dim, legend }, { node, isWorkspace }) {
  const own = colors.length;
  return {
    of, colors: [...colors, theme["band-2"]], dim: [...dim, theme.band],
    ofBlock: node.map((each, block) => (isWorkspace[block] ? own : each < 0 ? own - 1 : of[each])),
    legend: isWorkspace.includes(1) ? [...legend, [theme["band-2"], WORKSPACE, null, null]] : legend,
  };
}

/** Bytes in use after each event that changes them, of all and by color (of blocks, as
    `coloringOfBlocks` numbers them), and the event with the most. */
class MemoryUse {
  constructor(blocks, members) {
    this.blocks = blocks;
    this.changes = members.flatMap((block) => {
      const begin = [blocks.from[block], blocks.bytes[block], block];
      return blocks.to[block] < 0 ? [begin] : [begin, [blocks.to[block], -blocks.bytes[block], block]];
    }).sort((a, b) => a[0] - b[0] || a[1] - b[1]);
    this.events = Float64Array.from(this.changes, ([event]) => event);
    let now = 0;
    this.bytes = Float64Array.from(this.changes, ([, change]) => (now += change));
    const peak = this.bytes.reduce((best, bytes, at) => (bytes > this.bytes[best] ? at : best), 0);
    [this.peakEvent, this.most] = [this.events[peak] ?? 0, this.bytes[peak] ?? 0];
  }

  at(event) {
    const at = firstAbove(this.events, event) - 1;
    return at < 0 ? 0 : this.bytes[at];
  }

  color({ ofBlock, colors }) {
    this.colors = colors;
    const now = new Float64Array(colors.length);
    this.stacks = colors.map(() => new Float64Array(this.changes.length));
    this.changes.forEach(([, change, block], at) => {
      now[ofBlock[block]] += change;
      now.forEach((bytes, color) => (this.stacks[color][at] = bytes));
    });
  }

  /** Draws the colors one above the other, so tall at the peak. */
  draw(context, plot, bottom, height) {
    const { events, bytes } = this;
    // Where the bytes change, in whole pixels, and the event there: a pixel shows the most of its own.
    const steps = [];
    let first = Math.max(0, firstAbove(events, plot.x0) - 1);
    while (first < events.length && events[first] <= plot.x1) {
      const x = Math.max(0, Math.round(plot.px(events[first])));
      const end = plot.x(x + 0.5);
      let [most, last] = [first, first];
      while (last + 1 < events.length && events[last + 1] < end) {
        if (bytes[++last] > bytes[most]) most = last;
      }
      steps.push([x, most]);
      if (most !== last) steps.push([x + 1, last]);
      first = last + 1;
    }
    const base = new Float64Array(steps.length);
    const y = (value) => bottom - (value / (this.most || 1)) * height;
    this.stacks.forEach((stack, color) => {
      context.fillStyle = this.colors[color];
      steps.forEach(([x, event], at) => {
        const right = steps[at + 1]?.[0] ?? plot.width;
        if (right > x && stack[event]) context.fillRect(x, y(base[at] + stack[event]), right - x, (stack[event] / this.most) * height);
        base[at] += stack[event];
      });
    });
  }
}

/** The events with which graphs begin: `[graph, event]`. */
function beginsOf(blocks, members) {
  const begins = new Map();
  for (const block of members) {
    const graph = blocks.graph[block];
    if (!(begins.get(graph) <= blocks.from[block])) begins.set(graph, blocks.from[block]);
  }
  return begins;
}

/** Marks where graphs begin, along a line. */
function drawBegins(context, plot, capture, begins, y) {
  context.font = `11px ${theme.font}`;
  context.textBaseline = "middle";
  for (const [graph, event] of begins) {
    const x = Math.round(plot.px(event));
    const { name } = capture.graphs[graph];
    context.fillStyle = theme.page;
    context.fillRect(x, y - 9, widthOf(context, name) + 10, 18);
    context.fillStyle = theme.muted;
    context.fillRect(x, y - 9, 1, 18);
    context.fillText(name, x + 5, y);
  }
}

class MemoryView {
  static title = "Memory";

  constructor(host, capture) {
    this.capture = capture;
    this.pool = 0;
    const pick = make("select", { "aria-label": "pool", onchange: () => this.show(Number(pick.value)) },
      capture.pools.map(({ name, reserved }, at) => make("option", { value: at }, `${name}, ${bytesText(reserved)}`)));
    this.sentence = make("p.muted");
    this.streams = make("p.muted");
    this.area = make("div.plot-host");
    this.legend = make("div.legend");
    this.lists = make("div.lists");
    append(host,
      make("div.toolbar", {},
        capture.pools.length > 1 && make("label", {}, "Pool ", pick),
        colorPicker(capture),
        make("button", { onclick: () => this.fit() }, "Fit"),
        make("button", { onclick: () => this.choose(this.use.peakEvent) }, "Peak"),
        plotHint("event")),
      make("div.strip", {}, this.sentence, this.streams), this.area, this.legend, this.lists);
    this.plot = new Plot(this.area, "Blocks of the pool by address and time", {
      draw: (context) => this.draw(context),
      hover: (x, y, event) => this.hover(x, y, event),
      click: (x, y) => this.click(x, y),
      step: (by) => this.choose(Math.max(0, Math.min(this.event + by, capture.blocks.last))),
    });
    this.plot.canvas.addEventListener("wheel", (event) => event.shiftKey && this.zoomAddresses(event), { capture: true, passive: false });
    state.on("selection", () => this.light(), capture);
    state.on("color", () => this.recolor(), capture);
    this.show(0);
    this.light();
  }

  static applies(capture) {
    return Boolean(capture.blocks?.count);
  }

  show(pool) {
    const { capture } = this;
    const { blocks } = capture;
    this.pool = pool;
    this.members = Array.from({ length: blocks.count }, (_, block) => block).filter((block) => blocks.pool[block] === pool);
    const { reserved, live, peak, floor, untouched, peakAt, segments } = capture.pools[pool];
    this.sentence.textContent = `${bytesText(reserved)} reserved in ${countText(segments.length, "segment")}; peak ${bytesText(peak)}${peakAt ? ` at ${peakAt}` : ""}; ` +
      `${bytesText(live)} live at the end; ${bytesText(untouched)} never used. With these lifetimes, no pool can be smaller than ${bytesText(floor)}. ` +
      "An event is an allocation or a free.";
    this.size = Math.max(1, reserved);
    this.begins = beginsOf(blocks, this.members);
    this.spread();
    this.use = new MemoryUse(blocks, this.members);
    this.plot.extent(0, Math.max(1, blocks.last), Math.min(8, blocks.last));
    this.fit();
    this.choose(this.use.peakEvent);
  }

  /** The height of each segment: the root of its bytes, so that small ones are seen. */
  spread() {
    const { segments } = this.capture.pools[this.pool];
    const heights = segments.map(([, bytes]) => Math.sqrt(bytes));
    const scale = this.size / (heights.reduce((sum, height) => sum + height, 0) || 1);
    let at = 0;
    this.scaled = segments.map(([begin, bytes], number) => {
      const from = at;
      at += heights[number] * scale;
      return { begin, from, factor: (heights[number] * scale) / (bytes || 1) };
    });
    this.offsets = Float64Array.from(this.scaled, ({ begin }) => begin);
    this.froms = Float64Array.from(this.scaled, ({ from }) => from);
  }

  /** Where an offset is, of all heights; an end is in the segment that it ends. */
  height(offset, isEnd = false) {
    const segment = this.scaled[firstAbove(this.offsets, isEnd ? offset - 1 : offset) - 1];
    return segment ? segment.from + (offset - segment.begin) * segment.factor : offset;
  }

  /** The offset that is at a height. */
  offset(height) {
    const segment = this.scaled[firstAbove(this.froms, height) - 1];
    return segment ? segment.begin + (height - segment.from) / segment.factor : height;
  }

  fit() {
    [this.low, this.high] = [0, this.size];
    this.plot.fit();
  }

  recolor() {
    this.colors = coloringOfBlocks(this.coloring(), this.capture.blocks);
    this.use.color(this.colors);
    showLegend(this.capture, { legend: this.legendRows() }, this.legend, `Share of bytes at event ${numberText(this.event)}:`);
    this.plot.redraw();
  }

  /** The nodes whose blocks cover the most of the plot have a color: that of the other views, if
      they have one there. */
  coloring() {
    const usual = coloring(this.capture, state.color);
    if (state.color === "time") return usual;
    const { node, bytes, from, to, last, isWorkspace } = this.capture.blocks;
    const { of, names } = coloredBy(this.capture, state.color);
    const areas = new Float64Array(names.length);
    for (const block of this.members) {
      if (node[block] >= 0 && !isWorkspace[block]) areas[of[node[block]]] += bytes[block] * ((to[block] < 0 ? last : to[block]) - from[block]);
    }
    const kept = usual.legend.filter(([, , , group]) => group !== null).map(([color, , , group]) => [group, color]);
    const colors = coloringOf(of, names, areas, new Map(kept));
    colors.legend = colors.legend.filter(([, , area]) => area > 0);
    return colors;
  }

  /** The colors with their bytes in use at the chosen event. */
  legendRows() {
    const { node, bytes, isWorkspace } = this.capture.blocks;
    const { of } = coloredBy(this.capture, state.color);
    const key = (name, group) => (name === WORKSPACE && group === null ? WORKSPACE : group);
    const named = new Map(this.colors.legend.map(([, name, , group]) => [key(name, group), 0]));
    for (const block of this.inUseAt(this.event)) {
      const group = node[block] >= 0 && named.has(of[node[block]]) ? of[node[block]] : null;
      const own = isWorkspace[block] ? WORKSPACE : group;
      named.set(own, (named.get(own) ?? 0) + bytes[block]);
    }
    const rows = this.colors.legend.map(([color, name, weight, group]) => [color, name, state.color === "time" ? null : named.get(key(name, group)), group]);
    rows.sort((a, b) => (a[3] === null) - (b[3] === null) || b[2] - a[2]);
    const isRest = rows.some(([, name, , group]) => key(name, group) === null);
    return isRest || !named.get(null) ? rows : [...rows, [theme.rest, "of no node", named.get(null), null]];
  }

  /** The blocks that selected nodes own or point into. */
  light() {
    const { capture } = this;
    this.lit = null;
    if (state.nodes.length) {
      this.lit = new Uint8Array(capture.blocks.count);
      const { node } = capture.blocks;
      for (let block = 0; block < node.length; block++) if (node[block] >= 0 && state.mask[node[block]]) this.lit[block] = 1;
      if (state.nodes.length <= MOST_LIT) for (const each of state.nodes) for (const block of capture.pointers(each)[0]) this.lit[block] = 1;
    }
    this.plot.redraw();
  }

  // --- drawing

  y(offset, isEnd = false) {
    const top = RULER + CURVE;
    return top + (1 - (this.height(offset, isEnd) - this.low) / (this.high - this.low)) * (this.plot.height - top);
  }

  draw(context) {
    const { plot, capture } = this;
    drawRuler(context, plot, RULER, (x) => `event ${numberText(Math.round(x))}`, 1);
    this.drawCurve(context);
    context.save();
    context.beginPath();
    context.rect(0, RULER + CURVE, plot.width, plot.height);
    context.clip();
    context.fillStyle = theme.panel;
    context.fillRect(0, RULER + CURVE, plot.width, plot.height);
    this.drawBlocks(context);
    context.font = `11px ${theme.font}`;
    for (const [at, bytes, kind, stream] of capture.pools[this.pool].segments) {
      const [top, bottom] = [this.y(at + bytes, true), this.y(at)];
      context.fillStyle = theme.faint;
      context.fillRect(0, Math.round(top), plot.width, 1);
      if (bottom - top < 40) continue;
      const name = `${bytesText(bytes)} segment (${kind})${stream < 0 ? "" : `, ${capture.streams[stream]}`}`;
      const wide = context.measureText(name).width;
      context.fillStyle = theme.panel;
      context.fillRect(plot.width - wide - 12, top + 1, wide + 12, 18);
      context.fillStyle = theme.muted;
      context.fillText(name, plot.width - wide - 6, top + 10);
    }
    context.restore();
    const x = plot.px(this.event + 0.5);
    context.fillStyle = theme.ink;
    context.fillRect(Math.round(x), RULER, 1, plot.height);
  }

  drawCurve(context) {
    const { plot, use, event } = this;
    use.draw(context, plot, RULER + CURVE, CURVE - 22);
    drawBegins(context, plot, this.capture, this.begins, RULER + CURVE - 9);
    context.fillStyle = theme.ink;
    const text = `${bytesText(use.at(event))} in use at event ${numberText(event)}${event === use.peakEvent ? " (the peak)" : ""}`;
    const x = Math.max(4, Math.min(plot.px(event) + 6, plot.width - context.measureText(text).width - 6));
    context.fillText(text, x, RULER + 9);
  }

  drawBlocks(context) {
    const { plot, capture, colors, lit } = this;
    const { from, to, at, bytes, isWorkspace, last } = capture.blocks;
    const least = 8 + this.use.most / 1e5;
    context.font = `11px ${theme.font}`;
    context.textBaseline = "middle";
    const boxes = new Map(); // by color: setting one for each block takes longer than drawing it
    const texts = [];
    for (const block of this.members) {
      const end = to[block] < 0 ? last : to[block];
      if (end < plot.x0 || from[block] > plot.x1 || at[block] < 0) continue;
      const left = Math.max(-2, plot.px(from[block]));
      const right = Math.min(plot.width + 2, plot.px(end));
      const [top, bottom] = [this.y(at[block] + bytes[block], true), this.y(at[block])];
      if (bottom < RULER + CURVE || top > plot.height) continue;
      const number = colors.ofBlock[block];
      const bright = !lit || lit[block] === 1;
      const color = bright ? colors.colors[number] : colors.dim[number];
      const gap = bottom - top > 3 && right - left > 3 ? 1 : 0;
      if (!boxes.has(color)) boxes.set(color, []);
      boxes.get(color).push(left, top, Math.max(1, right - left - gap), Math.max(0.6, bottom - top - gap));
      if (bottom - top > 12 && right - left > 40 && bytes[block] > least) texts.push({ block, bright, left, right, top, bottom });
    }
    for (const [color, box] of boxes) {
      context.fillStyle = color;
      for (let corner = 0; corner < box.length; corner += 4) context.fillRect(box[corner], box[corner + 1], box[corner + 2], box[corner + 3]);
    }
    for (const { block, bright, left, right, top, bottom } of texts) {
      context.fillStyle = !bright ? theme.muted : isWorkspace[block] ? theme.ink : ON_COLOR;
      const middle = (Math.max(top, RULER + CURVE) + Math.min(bottom, plot.height)) / 2;
      drawText(context, capture.blockText(block), Math.max(left, 0) + 5, middle, right - Math.max(left, 0) - 10, bytesText(capture.blocks.bytes[block]).length);
    }
  }

  zoomAddresses(event) {
    event.preventDefault();
    event.stopImmediatePropagation();
    const top = RULER + CURVE;
    const share = 1 - (this.plot.place(event)[1] - top) / (this.plot.height - top);
    const at = this.low + share * (this.high - this.low);
    const span = Math.min(this.size, Math.max(4096, (this.high - this.low) * Math.exp((event.deltaY || event.deltaX) * 0.003)));
    this.low = Math.max(0, Math.min(at - share * span, this.size - span));
    this.high = this.low + span;
    this.plot.redraw();
  }

  // --- pointer

  at(px, y) {
    const { plot, capture } = this;
    if (y < RULER + CURVE) return -1;
    const { from, to, at, bytes, last } = capture.blocks;
    const [event, top] = [plot.x(px), RULER + CURVE];
    const address = this.offset(this.low + (1 - (y - top) / (plot.height - top)) * (this.high - this.low));
    return this.members.find((block) => at[block] <= address && address < at[block] + bytes[block] && from[block] <= event && event < (to[block] < 0 ? last : to[block])) ?? -1;
  }

  hover(x, y, event) {
    if (x === null) return showTooltip(null, null);
    if (y < RULER + CURVE) {
      const at = Math.floor(this.plot.x(x));
      return showTooltip(event, [`${bytesText(this.use.at(at))} in use`, `event ${numberText(at)}`, "click to list what is in use here"]);
    }
    const block = this.at(x, y);
    this.plot.canvas.style.cursor = block < 0 ? "" : "pointer";
    if (block < 0) return showTooltip(null, null);
    return showTooltip(event, this.rows(block));
  }

  rows(block) {
    const { capture } = this;
    const { bytes, requested, from, to, origin, graph, stream, label } = capture.blocks;
    const [op, module, , frame] = origin[block] < 0 ? NO_PLACE : capture.origins[origin[block]];
    return [
      `${bytesText(bytes[block])}${requested[block] < bytes[block] ? `, ${bytesText(requested[block])} requested` : ""}`,
      capture.blockLabels[label[block]],
      op && shortOp(op),
      module === null ? null : moduleText(module),
      capture.frameText(frame),
      `allocated in ${capture.graphs[graph[block]].name} at event ${numberText(from[block])}, ${to[block] < 0 ? "live at the end" : `freed at ${numberText(to[block])}`}`,
      stream[block] < 0 ? null : `once freed, only ${capture.streams[stream[block]]} can reuse it`,
    ];
  }

  click(x, y) {
    if (y < RULER + CURVE) return this.choose(Math.max(0, Math.floor(this.plot.x(x))));
    const block = this.at(x, y);
    if (block < 0) return state.clear();
    const { node } = this.capture.blocks;
    return node[block] >= 0 ? state.selectNode(node[block]) : undefined;
  }

  /** Lists what is in use at an event, and what stays. */
  choose(event) {
    this.event = event;
    const then = this.inUseAt(event);
    const stays = this.members.filter((block) => this.capture.blocks.to[block] < 0);
    const name = event === this.use.peakEvent ? "In use at the peak" : `In use at event ${numberText(event)}`;
    replace(this.lists, this.list(name, then), this.list("Live at the end", stays));
    this.streams.textContent = this.byStream(then);
    this.recolor();
  }

  inUseAt(event) {
    const { from, to } = this.capture.blocks;
    return this.members.filter((block) => from[block] <= event && (to[block] < 0 || to[block] > event));
  }

  /** What holds a block; for one that nothing holds at the end, the graph that frees it. */
  holder(block) {
    const { label, to } = this.capture.blocks;
    const name = this.capture.blockLabels[label[block]];
    if (name || to[block] < 0) return name;
    const [graph] = [...this.begins].filter(([, begin]) => begin <= to[block]).reduce((a, b) => (b[1] > a[1] ? b : a));
    return `freed in ${this.capture.graphs[graph].name}`;
  }

  /** Blocks by what holds them or what they are made for. */
  list(title, members) {
    const { capture } = this;
    const { bytes, origin, node } = capture.blocks;
    const groups = new Map();
    for (const block of members) {
      const [op, , , frame] = origin[block] < 0 ? NO_PLACE : capture.origins[origin[block]];
      const holder = this.holder(block);
      const key = JSON.stringify([holder, op, frame]);
      if (!groups.has(key)) groups.set(key, { holder, op: op === null ? "" : shortOp(op), line: capture.frameText(frame), bytes: 0, blocks: 0, nodes: [] });
      const group = groups.get(key);
      group.bytes += bytes[block];
      group.blocks++;
      if (node[block] >= 0) group.nodes.push(node[block]);
    }
    const total = [...groups.values()].reduce((sum, group) => sum + group.bytes, 0) || 1;
    const named = [...groups.values()].some((group) => group.holder);
    const choose = (row) => state.select([...new Set(row.nodes)].sort((a, b) => a - b), row.holder || row.op || "blocks");
    const table = new SortedTable([
      named && { name: "held by", value: (row) => row.holder },
      { name: "bytes", number: true, value: (row) => row.bytes, text: bytesText },
      { name: "share", number: true, value: (row) => row.bytes / total, text: shareText },
      { name: "blocks", number: true, value: (row) => row.blocks, text: numberText },
      { name: "line", value: (row) => row.line },
      { name: "op", value: (row) => row.op, link: choose },
    ].filter(Boolean), [...groups.values()], { label: title, sort: "bytes" });
    return make("section", {}, make("h2", {}, `${title}: ${bytesText(groups.size ? total : 0)}`), table.element);
  }

  /** What is free for each stream: no other can use it. Empty for one stream. */
  byStream(members) {
    const { capture } = this;
    const { stream, bytes } = capture.blocks;
    const rows = new Map();
    for (const [, reserved, , of] of capture.pools[this.pool].segments) {
      if (!rows.has(of)) rows.set(of, { name: capture.streams[of] ?? "no stream", reserved: 0, used: 0 });
      rows.get(of).reserved += reserved;
    }
    if (rows.size < 2) return "";
    for (const block of members) if (rows.has(stream[block])) rows.get(stream[block]).used += bytes[block];
    const free = (row) => Math.max(0, row.reserved - row.used);
    const ranked = [...rows.values()].sort((a, b) => free(b) - free(a));
    const texts = ranked.slice(0, MOST_STREAMS).map((row) => `${bytesText(free(row))} of ${bytesText(row.reserved)} on ${row.name}`);
    if (ranked.length > texts.length) texts.push(`and ${countText(ranked.length - texts.length, "more stream")}`);
    return `Free at event ${numberText(this.event)}, for its own stream only: ${texts.join(", ")}.`;
  }

  resume() {
    this.recolor();
    this.plot.resize();
  }
}
