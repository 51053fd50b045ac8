"use strict";
// A canvas that is zoomed and moved along x: time, order or events; and scrolled along y.

const DRAG = 4; // pixels that a pointer moves before it is a drag
const FASTEST = 0.5; // of the width, for a step of a key
const TEXT = 13; // pixels of the page's text on a common screen
const PAPER = [1000, 500]; // units of a plot on a sheet of paper
const ON_COLOR = "#10151c"; // text on the color of a node

/** Colors of the page, as the canvas needs them. */
let theme = {};

function readTheme() {
  const style = getComputedStyle(document.documentElement);
  const names = ["ink", "muted", "faint", "line", "panel", "page", "accent", "band", "band-2", "bad", "warn"];
  theme = Object.fromEntries(names.map((name) => [name, style.getPropertyValue(`--${name}`).trim()]));
  const count = Number(style.getPropertyValue("--series"));
  theme.series = Array.from({ length: count }, (_, at) => style.getPropertyValue(`--series-${at}`).trim());
  theme.rest = style.getPropertyValue("--series-rest").trim();
  theme.scale = Array.from({ length: 8 }, (_, at) => style.getPropertyValue(`--scale-${at}`).trim());
  theme.font = style.fontFamily;
}

class Plot {
  /** `draw(context)`, `hover(x, y, event)` (null outside), `click(x, y, event)` with x and y in
      units; `step(by)` goes to the next thing (1) or the one before (-1). One that is `still` is
      neither zoomed nor moved: the wheel scrolls the page around it. */
  constructor(host, label, { draw, hover, click, step, still = false }) {
    this.host = host;
    this.canvas = make("canvas.plot", { tabindex: still ? null : 0, role: "img", "aria-label": label });
    host.append(this.canvas);
    this.context = this.canvas.getContext("2d");
    Object.assign(this, { draw, hover, click, step });
    this.canvas.plot = this;
    this.extent(0, 1, 0.001);
    this.top = 0; // scrolled along y
    this.tall = 0; // height of the content
    this.width = this.height = 0;
    this.unit = 1;
    this.frame = 0;
    this.frameMs = 0;
    new ResizeObserver(() => this.resize()).observe(host);
    if (still) this.listenStill();
    else this.listen();
  }

  /** All there is along x, and the least that can be shown of it. */
  extent(from, to, least) {
    Object.assign(this, { from, to: to > from ? to : from + 1, least });
    [this.x0, this.x1] = [this.from, this.to];
  }

  resize() {
    if (this.printing) return;
    const { width, height } = this.host.getBoundingClientRect();
    if (!width || !height) return;
    // On a large screen, whose text is larger, everything drawn is: a unit is more than a pixel.
    this.fill(width, height, window.devicePixelRatio || 1, parseFloat(getComputedStyle(document.documentElement).fontSize) / TEXT);
  }

  /** On paper: as wide as that, and no taller than what is drawn. */
  print(isPrinting) {
    this.printing = isPrinting;
    if (!isPrinting) return this.resize();
    const [width, height] = PAPER;
    this.fill(width, height, 2, 1);
    if (this.tall && this.tall < height) this.fill(width, this.tall, 2, 1);
  }

  /** Painted with at least two pixels for one of the page. */
  sharpen() {
    this.fill(this.width * this.unit, this.height * this.unit, Math.max(2, window.devicePixelRatio), this.unit);
  }

  fill(width, height, ratio, unit) {
    Object.assign(this, { width: width / unit, height: height / unit, unit, ratio: ratio * unit });
    this.canvas.width = Math.round(width * ratio);
    this.canvas.height = Math.round(height * ratio);
    this.paint();
  }

  /** Where an event is, in units. */
  place(event) {
    return [event.offsetX / this.unit, event.offsetY / this.unit];
  }

  px(x) {
    return ((x - this.x0) / (this.x1 - this.x0)) * this.width;
  }

  x(px) {
    return this.x0 + (px / this.width) * (this.x1 - this.x0);
  }

  /** Pixels for one unit of x. */
  get scale() {
    return this.width / (this.x1 - this.x0);
  }

  redraw() {
    this.frame ||= requestAnimationFrame(() => this.paint());
  }

  paint() {
    cancelAnimationFrame(this.frame);
    this.frame = 0;
    if (!this.width) return;
    const began = performance.now();
    const { context, ratio } = this;
    context.setTransform(ratio, 0, 0, ratio, 0, 0);
    context.clearRect(0, 0, this.width, this.height);
    this.draw(context);
    this.frameMs = performance.now() - began;
  }

  zoom(factor, at = this.width / 2) {
    const span = Math.min(this.to - this.from, Math.max(this.least, (this.x1 - this.x0) * factor));
    const x = this.x(at);
    this.move(x - (at / this.width) * span, span);
  }

  /** Shows `span` from `x0` on, as far as there is something. */
  move(x0, span = this.x1 - this.x0) {
    span = Math.min(span, this.to - this.from);
    this.x0 = Math.max(this.from, Math.min(x0, this.to - span));
    this.x1 = this.x0 + span;
    this.redraw();
  }

  /** A part of x in the middle of the view, zoomed out or in only if it cannot be seen. */
  reveal(from, to) {
    const span = this.x1 - this.x0;
    const wide = (to - from) * this.scale;
    if (from >= this.x0 && to <= this.x1 && wide > 2) return this.redraw();
    const shown = wide > 2 && wide < this.width ? span : Math.max(this.least, (to - from) * 12);
    this.move((from + to) / 2 - shown / 2, shown);
  }

  fit() {
    this.move(this.from, this.to - this.from);
  }

  scroll(by) {
    this.top = Math.max(0, Math.min(this.top + by, this.tall - this.height));
    this.redraw();
  }

  listenStill() {
    const { canvas } = this;
    canvas.classList.add("still");
    canvas.addEventListener("pointermove", (event) => this.hover(...this.place(event), event));
    canvas.addEventListener("pointerleave", () => this.hover(null));
    canvas.addEventListener("click", (event) => this.click(...this.place(event), event));
  }

  listen() {
    const { canvas } = this;
    canvas.addEventListener("wheel", (event) => {
      event.preventDefault();
      if (event.shiftKey && !event.deltaX) this.scroll(event.deltaY);
      else if (Math.abs(event.deltaX) > Math.abs(event.deltaY)) this.move(this.x0 + event.deltaX / this.scale);
      else this.zoom(Math.exp(Math.max(-100, Math.min(100, event.deltaY)) * 0.003), this.place(event)[0]);
      this.hover(null);
    }, { passive: false });
    let drag = null;
    canvas.addEventListener("pointerdown", (event) => {
      if (event.button) return;
      canvas.focus({ preventScroll: true });
      const [x, y] = this.place(event);
      drag = { x, y, x0: this.x0, top: this.top, moved: false };
      canvas.setPointerCapture(event.pointerId);
    });
    canvas.addEventListener("pointermove", (event) => {
      const [x, y] = this.place(event);
      if (!drag) return this.hover(x, y, event);
      const [dx, dy] = [x - drag.x, y - drag.y];
      drag.moved ||= Math.hypot(dx, dy) > DRAG;
      if (!drag.moved) return;
      this.hover(null);
      this.top = Math.max(0, Math.min(drag.top - dy, this.tall - this.height));
      this.move(drag.x0 - dx / this.scale);
    });
    canvas.addEventListener("pointerup", (event) => {
      if (drag && !drag.moved) this.click(...this.place(event), event);
      drag = null;
    });
    canvas.addEventListener("pointercancel", () => (drag = null));
    canvas.addEventListener("pointerleave", () => this.hover(null));
    canvas.addEventListener("keydown", (event) => {
      if (event.ctrlKey || event.metaKey || event.altKey) return;
      const rows = { ArrowUp: -40, ArrowDown: 40 }[event.key];
      if (rows) this.scroll(rows);
      else if (!this.press(event.key)) return;
      event.preventDefault();
      event.stopPropagation();
    });
  }

  /** Whether a key means something: all but the arrows up and down, wherever the focus is. */
  press(key) {
    const span = this.x1 - this.x0;
    const actions = {
      w: () => this.zoom(FASTEST),
      "+": () => this.zoom(FASTEST),
      "=": () => this.zoom(FASTEST),
      s: () => this.zoom(1 / FASTEST),
      "-": () => this.zoom(1 / FASTEST),
      a: () => this.move(this.x0 - span / 4),
      d: () => this.move(this.x0 + span / 4),
      f: () => this.fit(),
      ArrowLeft: () => this.step?.(-1),
      ArrowRight: () => this.step?.(1),
    };
    if (!Object.hasOwn(actions, key)) return false;
    actions[key]();
    return true;
  }
}

/** How to move in a plot, with what the arrows go to. */
function plotHint(step) {
  return make("span.hint", {}, `wheel: zoom · drag: move · ← →: next ${step} · ?: all keys`);
}

/** Steps of 1, 2 or 5 with about so many pixels between two. */
function niceStep(scale, pixels) {
  const least = pixels / scale;
  const power = 10 ** Math.floor(Math.log10(least));
  return [1, 2, 5, 10].map((factor) => factor * power).find((step) => step >= least);
}

/** A time on a ruler, in the unit of its steps: with enough digits to distinguish two marks at any zoom. */
function markText(time, step) {
  const [unit, size] = [["s", 1e9], ["ms", 1e6], ["us", 1e3], ["ns", 1]].find(([, each]) => step >= each);
  return `${numberText(Math.round(time / size))} ${unit}`;
}

/** A ruler along the top: `text(x, step)` at each step. */
function drawRuler(context, plot, height, text, least = 0) {
  const step = Math.max(least, niceStep(plot.scale, 110));
  context.fillStyle = theme.panel;
  context.fillRect(0, 0, plot.width, height);
  context.font = `11px ${theme.font}`;
  context.textBaseline = "middle";
  const first = Math.ceil(plot.x0 / step);
  // Counted: adding a step to a very large number may not change it.
  for (let mark = 0; mark <= (plot.x1 - plot.x0) / step; mark++) {
    const x = (first + mark) * step;
    const at = Math.round(plot.px(x)) + 0.5;
    context.fillStyle = theme.line;
    context.fillRect(at, height, 1, plot.height);
    context.fillStyle = theme.muted;
    drawText(context, text(x, step), at + 4, height / 2, plot.width - at - 4, Infinity);
  }
  context.fillStyle = theme.line;
  context.fillRect(0, height - 1, plot.width, 1);
}

const widths = new Map();

function widthOf(context, text) {
  const key = `${context.font}|${text}`;
  let width = widths.get(key);
  if (width === undefined) {
    if (widths.size > 20000) widths.clear();
    width = context.measureText(text).width;
    widths.set(key, width);
  }
  return width;
}

/** Text in a box, cut where there is no room; nothing if fewer than `least` characters are left: a
    number without its end would be another one. */
function drawText(context, text, x, y, room, least = 3) {
  if (room < 14 || !text) return;
  const width = widthOf(context, text);
  if (width > room) {
    let most = Math.floor((text.length * room) / width) - 1;
    const cut = () => `${text.slice(0, most)}…`;
    // Its first letters may be wider than the others.
    while (most >= least && widthOf(context, cut()) > room) most--;
    if (most < least) return;
    text = cut();
  }
  context.fillText(text, x, y);
}

// --- what is under the pointer

let tooltip = null;

/** Rows of text next to the pointer: the first is a title; none hides it. */
function showTooltip(event, rows) {
  tooltip ??= document.body.appendChild(make("div.tooltip", { role: "tooltip" }));
  tooltip.hidden = !rows;
  if (!rows) return;
  replace(tooltip, rows.filter(Boolean).map((row, at) => make(at ? "div" : "strong", {}, row)));
  const { width, height } = tooltip.getBoundingClientRect();
  const x = Math.min(event.clientX + 14, innerWidth - width - 8);
  const y = event.clientY + 18 + height > innerHeight ? event.clientY - height - 10 : event.clientY + 18;
  tooltip.style.left = `${Math.max(4, x)}px`;
  tooltip.style.top = `${Math.max(4, y)}px`;
}

// --- colors of nodes

/** Colors of all nodes by the way that was chosen: `{of, colors, dim, legend}`: by node the
    number of a color, the colors, and those of what is not selected. */
function coloring(capture, way) {
  const key = `color ${way} ${theme.page}`;
  if (!capture.groupings.has(key)) {
    capture.groupings.set(key, way === "time" ? colorByTime(capture) : colorByGroup(capture, way));
  }
  return capture.groupings.get(key);
}

/** The groups of nodes that have a color each. */
function coloredBy(capture, way) {
  return capture.grouping({ module: "part", time: "type" }[way] ?? way);
}

function colorByGroup(capture, way) {
  const { of, names } = coloredBy(capture, way);
  const weights = new Float64Array(names.length);
  for (let node = 0; node < capture.count; node++) weights[of[node]] += capture.weight(node);
  return coloringOf(of, names, weights);
}

/** The groups with the most weight get a color, except nodes without a module. One that is in `kept`,
    by group, keeps it. */
function coloringOf(of, names, weights, kept = new Map()) {
  const none = names.indexOf(moduleText(null));
  const ranked = names.map((_, at) => at).filter((at) => at !== none).sort((a, b) => weights[b] - weights[a]);
  const slots = new Int32Array(names.length).fill(theme.series.length);
  const shown = ranked.slice(0, theme.series.length);
  const colors = [...theme.series, theme.rest];
  const taken = new Set(shown.map((group) => kept.get(group)));
  const free = theme.series.filter((color) => !taken.has(color));
  for (const group of shown) slots[group] = colors.indexOf(kept.get(group) ?? free.shift());
  const legend = shown.map((group) => [colors[slots[group]], names[group], weights[group], group]);
  if (ranked.length > shown.length) {
    const rest = ranked.slice(shown.length);
    legend.push([theme.rest, `${numberText(rest.length)} more`, rest.reduce((sum, at) => sum + weights[at], 0), null]);
  }
  if (none >= 0) legend.push([theme.rest, names[none], weights[none], none]);
  return { of: of.map((group) => slots[group]), colors, dim: colors.map(dimmed), legend };
}

/** By the logarithm of the time. */
function colorByTime(capture) {
  const times = capture.durationOf.filter((time) => time > 0);
  const [least, most] = [times.reduce((a, b) => Math.min(a, b), Infinity), times.reduce((a, b) => Math.max(a, b), 1)];
  const steps = theme.scale.length;
  const bound = (at) => least * (most / least) ** (at / steps);
  const of = new Int32Array(capture.count).fill(steps);
  for (let node = 0; node < capture.count; node++) {
    const time = capture.durationOf[node];
    if (time > 0) {
      const at = most > least ? Math.log(time / least) / Math.log(most / least) : 0;
      of[node] = Math.min(steps - 1, Math.floor(at * steps));
    }
  }
  const colors = [...theme.scale, theme.rest];
  const legend = theme.scale.map((color, at) => [color, `${timeText(bound(at))} to ${timeText(bound(at + 1))}`, null, null]);
  return { of, colors, dim: colors.map(dimmed), legend };
}

/** What nodes are colored by, in all views. */
function colorPicker(capture) {
  const ways = ["op", "module", "kernel", "type", ...(capture.timed ? ["time", "bound"] : [])];
  const pick = make("select", { "aria-label": "color by", onchange: () => state.colorBy(pick.value) },
    ways.map((way) => make("option", { value: way }, way)));
  const show = () => (pick.value = state.color);
  state.on("color", show, capture);
  show();
  return make("label", {}, "Color by ", pick);
}

/** The colors with what has them: a click selects it. `shares` says of what the shares are. */
function showLegend(capture, { legend }, element, shares = capture.timed ? "Share of time:" : "Share of nodes:", way = state.color) {
  const total = legend.reduce((sum, [, , weight]) => sum + (weight ?? 0), 0);
  const { of } = coloredBy(capture, way);
  const caption = legend.some(([, , weight]) => weight !== null) && make("span.muted", {}, shares);
  replace(element, caption, legend.map(([color, name, weight, group]) => {
    const share = weight === null ? null : shareText(weight / total);
    if (group === null) return legendEntry("span.entry", {}, color, name, share);
    return legendEntry("button.entry", {
      title: `Select ${name}`,
      onclick: () => state.select(capture.filter((node) => of[node] === group), name),
    }, color, name, share);
  }));
}

/** A color with its name, which is cut where there is no room, and what is said of it. */
function legendEntry(tag, attributes, color, name, text = null) {
  const swatch = make("span.swatch");
  swatch.style.background = color;
  return make(tag, attributes, swatch, make("span.name", {}, name), text && make("span.muted", {}, text));
}

/** A color mixed with the page's own. */
function dimmed(color) {
  const [a, b] = [color, theme.page].map((hex) => [1, 3, 5].map((at) => parseInt(hex.slice(at, at + 2), 16)));
  return `rgb(${a.map((value, at) => Math.round(value * 0.22 + b[at] * 0.78)).join(" ")})`;
}
