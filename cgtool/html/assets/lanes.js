"use strict";
// Draws the lanes of a layout on a plot: the modules as bands, below them the nodes.

const RULER = 22;
const HEAD = 26; // of a graph
const BAND = 17;
const LETTER = 6.5; // how wide one is
const ROWS = [24, 66]; // how tall a row of nodes is: there may be few
const GAP = 10;
const MARK = 4;
const TOGETHER = 6; // graphs that are shown at once, of a capture that has no more

class Lanes {
  constructor(plot) {
    this.plot = plot;
    this.clear();
  }

  /** Begins a frame: nothing is drawn yet. */
  clear() {
    this.areas = []; // of what can be clicked
    this.rowY = new Map();
  }

  /** How tall lanes are whose bands are all open. */
  static height(lanes, row) {
    return lanes.reduce((sum, lane) => sum + (lanes.length > 1 ? BAND : 0) + lane.bands.length * (BAND + 1) + lane.rows.length * (row + 1) + 6, 0);
  }

  /** Draws all lanes of a layout from `y` on, and returns where they end. `look` has `capture`, the
      height of a `row`, the numbers, colors and pale colors of nodes as `coloring` makes them
      (`of`, `colors`, `dim`), `lit(node)`, and if wanted `lines(node, name, room)` below a node's
      name and `band(number)`, the color of a band. */
  draw(context, layout, y, look) {
    for (const lane of layout.lanes) {
      if (layout.lanes.length > 1) {
        context.font = `11px ${theme.font}`;
        context.fillStyle = theme.muted;
        drawText(context, `${lane.name}, ${countText(lane.count, "node")}`, 8, y + 8, this.plot.width - 16);
        y += BAND;
      }
      const heights = look.band ? lane.bands.map(() => BAND) : this.bandHeights(lane);
      const bands = () => heights.forEach((height, depth) => {
        if (height) this.drawBands(context, layout, lane.bands[depth], y, height, lane.bands[depth].isColored && look.band);
        y += height && height + 1;
      });
      if (!look.below) bands();
      for (const row of lane.rows) {
        this.drawRow(context, layout, row, y, look);
        y += look.row + 1;
      }
      if (look.below) bands();
      y += 6;
    }
    return y;
  }

  /** How tall the bands of a depth are: they open as one zooms in. */
  bandHeights(lane) {
    let most = BAND;
    return lane.bands.map(({ typical }, depth) => {
      const open = Math.max(0, Math.min(1, (typical * this.plot.scale - 6) / 22));
      most = Math.min(most, BAND * (depth === 0 ? Math.max(open, 0.5) : open));
      return most < 2 ? 0 : most;
    });
  }

  drawBands(context, layout, bands, y, height, color) {
    const { plot } = this;
    if (y > plot.height || y + height < RULER) return;
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
      context.fillStyle = color ? color(bands.names[at]) : at % 2 ? theme.band : theme["band-2"];
      context.fillRect(x, y, wide, height);
      drawn = right - x < 1 ? x + 1 : right;
      if (height > 11 && wide > 18) {
        context.fillStyle = color ? ON_COLOR : theme.ink;
        const name = bands.texts[bands.names[at]];
        const parts = pathNames(name);
        const shorter = [name, name.split(": ").at(-1), parts.slice(-2).join("."), parts.at(-1)];
        drawText(context, shorter.find((each) => wide > LETTER * each.length + 8) ?? shorter.at(-1), Math.max(x, 0) + 5, y + height / 2 + 0.5, wide - 8 + Math.min(x, 0));
      }
    }
  }

  drawRow(context, layout, row, y, look) {
    const { plot } = this;
    const { capture, of, colors: full, dim, lit: isLit, row: tall } = look;
    if (y > plot.height || y + tall < RULER) return;
    const { starts, ends, first } = layout;
    this.areas.push({ y, height: tall, row, layout });
    this.rowY.set(row, y);
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
    const marks = []; // of nodes that write NaN or infinities: drawn last
    for (let at = layout.firstEnding(row, x0); at < row.length; at++) {
      const node = row[at];
      const start = starts[node - first];
      if (start > x1) break;
      const length = ends[node - first] - start;
      const wide = length * scale;
      const x = (start - x0) * scale;
      if (capture.nansOf[node] > 0) marks.push([x, wide, theme.bad]);
      else if (capture.infinitiesOf[node] > 0) marks.unshift([x, wide, theme.warn]);
      const lit = isLit(node);
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
        context.fillStyle = lit ? ON_COLOR : theme.muted;
        const at = Math.max(left, 0);
        const room = right - at - 8;
        const name = capture.op(node) ?? capture.title(node);
        const lines = look.lines ? look.lines(node, name, room).slice(0, Math.floor(tall / 18) - 1) : [];
        const step = tall / (lines.length + 2);
        drawText(context, name, at + 5, y + (lines.length ? step : tall / 2) + 0.5, room);
        lines.forEach(([text, least], line) => drawText(context, text, at + 5, y + (line + 2) * step + 1, room, least));
      }
    }
    endPixel();
    endRun();
    for (const [x, wide, color] of marks) {
      context.fillStyle = color;
      context.fillRect(x, y, Math.max(2, wide - 1), MARK);
    }
  }

  /** What is at a place: `{node}` or `{module, from, to}`, each with its `layout`; or null. */
  at(px, y) {
    const area = this.areas.find((each) => y >= each.y && y < each.y + each.height);
    if (!area || y < RULER) return null;
    const { layout, row, bands } = area;
    const x = this.plot.x(px);
    const slack = 1.5 / this.plot.scale;
    if (row) {
      let best = -1;
      for (let at = layout.firstEnding(row, x - slack); at < row.length && layout.start(row[at]) <= x + slack; at++) {
        const node = row[at];
        if (best < 0 || layout.stop(node) - layout.start(node) > layout.stop(best) - layout.start(best)) best = node;
      }
      return best < 0 ? null : { node: best, layout };
    }
    const at = firstAbove(bands.ends, x);
    if (at >= bands.starts.length || bands.starts[at] > x) return null;
    return { module: bands.texts[bands.names[at]], layout, from: bands.starts[at], to: bands.ends[at] };
  }

  /** Where a node of a layout is drawn: `[x, right, y]`; null if it is not. */
  spot(layout, node) {
    if (node < layout.first || node >= layout.end) return null;
    if (!layout.rowOf) {
      layout.rowOf = new Map();
      for (const lane of layout.lanes) for (const row of lane.rows) for (const each of row) layout.rowOf.set(each, row);
    }
    const y = this.rowY.get(layout.rowOf.get(node));
    return y === undefined ? null : [this.plot.px(layout.start(node)), this.plot.px(layout.stop(node)), y];
  }

  /** A frame around a node that is drawn there. */
  frame(context, [x, right, y], row) {
    const [left, end] = [this.near(x), this.near(right)];
    context.strokeStyle = theme.ink;
    context.lineWidth = 2;
    context.strokeRect(left - 1, y - 1, Math.max(3, end - left + 1), row + 2);
  }

  /** A place of a line's end: far outside, the browser takes seconds to dash what is not seen. */
  near(x) {
    const { width } = this.plot;
    return Math.max(-width, Math.min(x, 2 * width));
  }
}

/** A name, and what is said of it. */
function drawHead(context, plot, name, text, y) {
  const room = plot.width / 2;
  context.textBaseline = "middle";
  context.font = `600 12px ${theme.font}`;
  context.fillStyle = theme.ink;
  drawText(context, name, 8, y, room);
  const after = 16 + Math.min(room, widthOf(context, name));
  context.font = `12px ${theme.font}`;
  context.fillStyle = theme.muted;
  drawText(context, text, after, y, plot.width - after - 8);
}

/** Shows what is under the pointer (of `Lanes.at`): a node with `more` rows of text, or a module. */
function showThing(plot, event, thing, more = []) {
  plot.canvas.style.cursor = thing ? "pointer" : "";
  if (!thing) return showTooltip(null, null);
  const { capture, inTime } = thing.layout;
  if (thing.module === undefined) return showTooltip(event, [...nodeRows(capture, thing.node), ...more]);
  const length = inTime ? timeText(thing.to - thing.from) : countText(thing.to - thing.from, "node");
  return showTooltip(event, [thing.module, capture.types[thing.module] ?? null, length]);
}
