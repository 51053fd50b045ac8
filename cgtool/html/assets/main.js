"use strict";
// The frame of the page: menu, search, keys, light and dark.

const VIEWS = {
  difference: DifferenceView, answer: AnswerView, graph: GraphView, tables: TablesView, source: SourceView,
  memory: MemoryView, run: RunView, added: RunMemoryView,
};

class Page {
  constructor(data) {
    const [count, longest] = data.cut;
    const cut = `${countText(count, "text")} of more than ${numberText(longest)} characters: shortened in the middle`;
    if (count) for (const { notes } of data.captures) notes.push(cut);
    this.captures = data.captures.map((tree, at) => new Capture(tree, data.columns, at));
    this.difference = data.difference && new Difference(data.difference, data.columns, this.captures);
    state.capture = this.captures.at(-1);
    state.fields = data.fields;
    this.opened = new Map();
    document.title = `${this.difference ? data.difference.names.join(" and ") : state.capture.spec} · cgtool`;
    this.tabs = make("nav", { role: "tablist", "aria-label": "views" });
    this.sides = make("div.choice", { role: "radiogroup", "aria-label": "capture", hidden: this.captures.length < 2 });
    this.search = new Search();
    this.title = make("div.title");
    const theme = make("button.icon", { title: "Light or dark", "aria-label": "Light or dark", onclick: () => toggleTheme() }, "◐");
    this.main = make("main");
    this.aside = make("aside", { "aria-label": "selection", hidden: true });
    this.copy = make("button", { title: "Copy the picture of this view; where the browser does not allow that, save it", onclick: () => this.copyImage() }, "Copy image");
    const keys = make("button.icon", { title: "Keys (?)", "aria-label": "Keys", onclick: showKeys }, "?");
    document.body.append(make("header", {}, this.title, this.sides, this.tabs, this.search.element, make("div", {}, this.copy, keys, theme)), this.main, this.aside);
    new Details(this.aside);
    state.on("view", () => this.show());
    state.on("capture", () => this.choose());
    document.addEventListener("keydown", (event) => this.key(event));
    state.view = location.hash.slice(1);
    this.choose();
  }

  /** What there is of the capture that is shown now. */
  choose() {
    const { capture } = state;
    const { spec, simulated, facts, number } = capture;
    const device = facts.find(([label]) => label === "device")[1];
    // Two captures are often of one program: their files tell them apart.
    const title = this.captures.length > 1 ? `${"AB"[number]}: ${fileName(capture.name)}` : spec;
    replace(this.title, make("strong", { title: this.captures.length > 1 ? `${capture.name}: ${spec}` : spec }, title), make(simulated ? "span.simulated" : "span.muted", {}, device));
    replace(this.sides, this.captures.map((each, at) =>
      make("button.toggle", { role: "radio", "aria-checked": String(at === number), title: each.name, onclick: () => state.open(each) }, "AB"[at])));
    this.names = Object.keys(VIEWS).filter((name) => VIEWS[name].applies(capture, this.difference));
    replace(this.tabs, this.names.map((name, at) =>
      make("button", { role: "tab", id: `tab-${name}`, title: `${VIEWS[name].title} (${at + 1})`, onclick: () => state.show(name) }, VIEWS[name].title)));
    state.showSource = this.names.includes("source") ? (file, line) => this.showSource(file, line) : null;
    state.showUnneeded = capture.unneeded.length && this.names.includes("graph") ? () => this.showUnneeded() : null;
    state.show(this.names.includes(state.view) ? state.view : this.names[0]);
  }

  showSource(file, line) {
    state.show("source");
    this.opened.get("source").view.show(file, line);
  }

  /** Marks the dependencies and selects the node behind the one that costs most: its panel has the
      reason. */
  showUnneeded() {
    const { capture } = state;
    state.show("graph");
    this.opened.get("graph").view.mark("unneeded", true);
    const cost = ({ source, target }) => Math.min(capture.weight(source), capture.weight(target));
    state.selectNode(capture.unneeded.reduce((a, b) => (cost(b) > cost(a) ? b : a)).target);
  }

  /** The view: one for each capture, created when it is first looked at. */
  show() {
    const { view, capture } = state;
    for (const tab of this.tabs.children) tab.setAttribute("aria-selected", String(tab.id === `tab-${view}`));
    for (const { host } of this.created ??= []) host.hidden = true;
    const owner = view === "difference" ? this : capture;
    owner.views ??= new Map();
    this.opened = owner.views;
    if (!owner.views.has(view)) {
      const host = make("div.view", { role: "tabpanel", "aria-labelledby": `tab-${view}`, "data-view": view });
      this.main.append(host);
      const opened = { host };
      this.created.push(opened);
      owner.views.set(view, opened);
      opened.view = new VIEWS[view](host, capture, this.difference);
    } else {
      const opened = owner.views.get(view);
      opened.host.hidden = false;
      opened.view.resume?.();
    }
    this.copy.hidden = !this.host.querySelector("canvas.plot");
    history.replaceState(null, "", `#${view}`);
  }

  /** The element of the view that is shown. */
  get host() {
    return this.opened.get(state.view).host;
  }

  async copyImage() {
    const name = `${state.capture.spec} ${state.view}`;
    this.copy.textContent = await copyImage(imageOf(this.host, document.title), name);
    setTimeout(() => (this.copy.textContent = "Copy image"), 1500);
  }

  key(event) {
    if (event.ctrlKey || event.metaKey || event.altKey || document.querySelector("dialog[open]")) return;
    const typing = event.target.closest("input, select, textarea");
    if (event.key === "Escape") {
      if (typing) typing.blur();
      else state.clear();
    } else if (typing) {
      return;
    } else if (event.key === "/") {
      this.search.input.focus();
    } else if (event.key === "?") {
      showKeys();
    } else if (toNeighbor(event)) {
      // The arrow meant the button next to this one, not the plot.
    } else if (this.names[Number(event.key) - 1]) {
      state.show(this.names[Number(event.key) - 1]);
    } else if (!this.opened.get(state.view).view.plot?.press(event.key)) return;
    event.preventDefault();
  }
}

// --- keys

const KEYS = [
  ["Anywhere", [
    ["1 to 9", "open a view"],
    ["/", "search"],
    ["Esc", "clear the selection; leave the search"],
    ["Tab, Enter", "go to the next control; use it"],
    ["?", "show these keys"],
  ]],
  ["Timelines", [
    ["w, +", "zoom in"],
    ["s, -", "zoom out"],
    ["a, d", "move left, right"],
    ["f", "show everything"],
    ["← →", "previous or next node (Graph), change (Difference), event (Memory), graph (Run)"],
    ["↑ ↓", "scroll, when the timeline has the focus"],
  ]],
  ["Mouse", [
    ["wheel, drag", "zoom, move"],
    ["Shift + wheel", "scroll; in Memory, zoom the addresses"],
    ["double-click", "zoom to a node or a module"],
  ]],
  ["Search", [
    ["relu", "any part of the name of a module, op, kernel or line"],
    ["module=layers.0", "a module and everything inside it; * matches anything"],
    ["op=mm|addmm, phase=backward", "one of these ops, in backward"],
    ["line=model.py:40-60", "lines of a file, or those called from there"],
  ]],
];

let keysDialog = null;

function showKeys() {
  keysDialog ??= document.body.appendChild(make("dialog.keys", { "aria-labelledby": "keys" },
    make("h2", { id: "keys" }, "Keys"),
    make("div.columns", {}, KEYS.map(([title, rows]) => make("section", {}, make("h3", {}, title),
      make("dl", {}, rows.map(([key, does]) => [make("dt", {}, make("kbd", {}, key)), make("dd", {}, does)]))))),
    make("form", { method: "dialog" }, make("button", {}, "Close (Esc)"))));
  keysDialog.showModal();
}

/** In a row of tabs or of choices, the arrows go to the next one. */
function toNeighbor({ key, target }) {
  const by = { ArrowLeft: -1, ArrowRight: 1 }[key];
  const group = by && target.closest("[role=tablist], [role=radiogroup]");
  if (!group) return false;
  const at = [...group.children].indexOf(target);
  const next = (at + by + group.children.length) % group.children.length;
  group.children[next].click();
  group.children[next].focus(); // it may be another element than before the click
  return true;
}

// --- search

const SUGGESTED = ["module", "op", "kernel", "line"]; // what is searched without a field
const MOST_SUGGESTED = 4; // of each

/** Finds nodes by any of their names, or by `FIELD=PATTERN` as in `cgtool dump --select`. */
class Search {
  constructor() {
    this.input = make("input", {
      type: "search", placeholder: "Search nodes, or module=layers.0.* (/)", spellcheck: "false",
      "aria-label": "Search nodes by name, module, kernel or line",
      role: "combobox", "aria-controls": "suggestions", "aria-expanded": "false",
      oninput: () => this.suggest(), onfocus: () => this.suggest(),
      onblur: () => setTimeout(() => this.open(false), 150),
      onkeydown: (event) => this.key(event),
    });
    this.list = make("ul.suggestions", { id: "suggestions", hidden: true, role: "listbox", "aria-label": "matches" });
    this.element = make("div.search", { role: "search" }, this.input, this.list);
  }

  suggest() {
    const text = this.input.value.trim();
    this.open(text !== "");
    if (!text) return;
    const { capture } = state;
    let nodes = [];
    let problem = null;
    try {
      nodes = findNodes(capture, text);
    } catch (error) {
      problem = error.message;
    }
    this.matches = nodes;
    const all = make("li", { role: "option", class: "all", onpointerdown: () => this.choose(nodes, text) },
      problem ?? (nodes.length ? `All ${countText(nodes.length, "node")}` : "No match"));
    const rows = [all];
    if (!problem && !text.includes("=")) {
      const wanted = text.toLowerCase();
      for (const by of SUGGESTED) {
        const { of, names } = capture.grouping(by);
        const groups = names.map((_, at) => at).filter((at) => names[at].toLowerCase().includes(wanted));
        for (const group of groups.slice(0, MOST_SUGGESTED)) {
          rows.push(make("li", {
            role: "option", title: names[group],
            onpointerdown: () => this.choose(capture.filter((node) => of[node] === group), names[group]),
          }, make("span.muted", {}, `${by} `), names[group]));
        }
      }
    }
    replace(this.list, rows);
    this.chosen = 0;
    this.mark();
  }

  open(isOpen) {
    this.list.hidden = !isOpen;
    this.input.setAttribute("aria-expanded", String(isOpen));
  }

  mark() {
    [...this.list.children].forEach((row, at) => {
      row.id = `suggestion-${at}`;
      row.setAttribute("aria-selected", String(at === this.chosen));
    });
    this.input.setAttribute("aria-activedescendant", `suggestion-${this.chosen}`);
  }

  key(event) {
    const rows = [...this.list.children];
    if (event.key === "ArrowDown" || event.key === "ArrowUp") {
      this.chosen = (this.chosen + (event.key === "ArrowDown" ? 1 : rows.length - 1)) % rows.length;
      this.mark();
      event.preventDefault();
    } else if (event.key === "Enter" && rows.length) {
      rows[this.chosen].dispatchEvent(new Event("pointerdown"));
    }
  }

  choose(nodes, text) {
    this.open(false);
    this.input.blur();
    state.select(nodes, text);
    if (nodes.length && state.view === "answer") state.show("graph");
  }
}

/** Raises an Error, in words, for a pattern that means nothing. */
function findNodes(capture, text) {
  if (!/^\s*[a-z_]+\s*!?=/i.test(text)) {
    const wanted = text.toLowerCase();
    const found = SUGGESTED.map((by) => {
      const { of, names } = capture.grouping(by);
      const holds = names.map((name) => name.toLowerCase().includes(wanted));
      return (node) => holds[of[node]];
    });
    const full = capture.kernels.map(([, name]) => name.toLowerCase().includes(wanted));
    return capture.filter((node) => found.some((holds) => holds(node)) || full[capture.kernelOf[node]]);
  }
  const terms = text.split(/,(?=\s*[a-z_]+\s*!?=)/i).map((term) => {
    const [, field, not, patterns] = /^\s*([a-z_]+)\s*(!?)=\s*(.*?)\s*$/i.exec(term) ?? [];
    if (!state.fields.includes(field)) throw new Error(`Unknown field ${field}; known: ${state.fields.join(", ")}`);
    if (!patterns) throw new Error(`${field}= needs a pattern; * matches anything`);
    const tests = patterns.split("|").filter(Boolean).map((pattern) => fieldTest(capture, field, pattern.trim()));
    return (node) => tests.some((holds) => holds(node)) !== (not === "!");
  });
  return capture.filter((node) => terms.every((holds) => holds(node)));
}

function fieldTest(capture, field, pattern) {
  const match = glob(pattern);
  const chain = (node) => {
    const [, , , , frames, forward] = capture.place(node);
    return forward >= 0 ? [...frames, ...capture.origins[forward][4]] : frames;
  };
  const inFile = (path, file) => glob(file || "*")(path) || glob(`*/${file}`)(path);
  const [, file, first, last] = /^(.*?):?(\d+)(?:-(\d+))?$/.exec(pattern) ?? [];
  switch (field) {
    case "module": {
      const inside = glob(`${pattern}.*`);
      return (node) => {
        const module = capture.module(node);
        return module === null ? pattern === "(no module)" : match(module || "(root)") || inside(module);
      };
    }
    case "op":
      return (node) => {
        const [op] = capture.place(node);
        return op !== null && [op, op.split(".")[0], shortOp(op)].some(match);
      };
    case "kernel":
      return (node) => capture.kernelOf[node] >= 0 && capture.kernels[capture.kernelOf[node]].some(match);
    case "type":
      return (node) => match(capture.nodeType(node));
    case "stream":
      return (node) => capture.streamOf[node] >= 0 && (match(capture.streams[capture.streamOf[node]]) || match(String(capture.streamOf[node])));
    case "phase":
      return (node) => match(capture.graphs[capture.graphOf[node]].phase);
    case "graph":
      return (node) => match(capture.graphs[capture.graphOf[node]].name);
    case "annotation":
      return (node) => capture.place(node)[7].some(match);
    case "file":
      return (node) => chain(node).some((frame) => inFile(capture.files[capture.frames[frame][0]].path, pattern));
    default:
      if (first === undefined) throw new Error(field === "line" ? "line=model.py:42 or line=model.py:40-60" : "node=12 or node=3-7");
      if (Number(last ?? first) < Number(first)) throw new Error(`The range ${first}-${last} is backwards`);
      if (field === "node") return (node) => capture.id(node) >= Number(first) && capture.id(node) <= Number(last ?? first);
      return (node) => chain(node).some((frame) => {
        const [number, line] = capture.frames[frame];
        return line >= Number(first) && line <= Number(last ?? first) && inFile(capture.files[number].path, file);
      });
  }
}

/** A pattern with `*`, `?` and `[abc]` as a test. What is between two stars is looked for once, from
    left to right: to try every place for every star would take hours in a long name. */
function glob(pattern) {
  const segments = [""];
  for (const token of pattern.match(/\[!?\]?[^\]]*\]|[^]/gu) ?? []) {
    if (token === "*") segments.push("");
    else segments[segments.length - 1] += token === "?" ? "[^]" : /^\[[^]/.test(token) ? oneOf(token) : token.replace(/[.+^${}()|[\]\\/]/, "\\$&");
  }
  const last = segments.pop();
  const [first, ...middle] = segments;
  // A lookahead does not try again once it has matched.
  const between = middle.filter(Boolean).map((segment, at) => `(?=([^]*?${segment}))\\${at + 1}`).join("");
  try {
    const compiled = new RegExp(first === undefined ? `^${last}$` : `^${first}${between}[^]*${last}$`, "u");
    return (text) => compiled.test(text);
  } catch {
    return (text) => text === pattern;
  }
}

/** `[abc]`, `[a-c]` or `[!abc]`. */
function oneOf(token) {
  const [, not, characters] = /^\[(!?)([^]*)\]$/.exec(token);
  return `[${not && "^"}${characters.replace(/[\\\][^]/g, "\\$&")}]`;
}

// --- light and dark

function toggleTheme() {
  const root = document.documentElement;
  const dark = root.dataset.theme ? root.dataset.theme === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
  root.dataset.theme = dark ? "light" : "dark";
  changeTheme();
}

function changeTheme() {
  readTheme();
  state.changed("color");
}

/** Paper is light; what is on the canvas is painted again for it. */
function printLight(isPrinting) {
  const root = document.documentElement;
  if (isPrinting) {
    root.dataset.shown = root.dataset.theme ?? "";
    root.dataset.theme = "light";
  } else if (root.dataset.shown) {
    root.dataset.theme = root.dataset.shown;
  } else {
    delete root.dataset.theme;
  }
  changeTheme();
  for (const canvas of document.querySelectorAll(".view:not([hidden]) canvas.plot")) canvas.plot.print(isPrinting);
}

// --- start

function explain(problem) {
  document.body.append(make("p.problem", { role: "alert" }, `This report cannot be shown: ${problem}`));
}

async function start() {
  if (typeof DecompressionStream === "undefined") {
    return explain("the browser is too old (it needs Chrome 103, Firefox 113 or Safari 16.4, or newer).");
  }
  readTheme();
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", changeTheme);
  addEventListener("beforeprint", () => printLight(true));
  addEventListener("afterprint", () => printLight(false));
  window.page = new Page(await readData());
  document.documentElement.dataset.ready = "";
}

start().catch((error) => {
  explain(error.message);
  throw error;
});
