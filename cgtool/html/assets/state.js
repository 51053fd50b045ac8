"use strict";
// What is shown and what is selected, in all views alike.

class State extends EventTarget {
  capture = null;
  view = "";
  /** Selected nodes, in order, and what they have in common, in words. */
  nodes = new Int32Array(0);
  label = "";
  /** By node, whether it is selected; null if nothing is. */
  mask = null;
  /** The one node whose details are shown; -1: those of all selected. */
  lead = -1;
  color = "op";
  /** What `FIELD=PATTERN` in the search may name. */
  fields = [];

  select(nodes, label, lead = nodes.length === 1 ? nodes[0] : -1) {
    this.nodes = Int32Array.from(nodes);
    this.label = label;
    this.lead = lead;
    this.mask = null;
    if (this.nodes.length) {
      this.mask = new Uint8Array(this.capture.count);
      for (const node of this.nodes) this.mask[node] = 1;
    }
    this.changed("selection");
  }

  selectNode(node) {
    this.select([node], this.capture.title(node));
  }

  clear() {
    this.select([], "");
  }

  show(view) {
    this.view = view;
    this.changed("view");
  }

  colorBy(way) {
    this.color = way;
    this.changed("color");
  }

  /** Calls the listeners of `on`. */
  changed(name) {
    this.dispatchEvent(new Event(name));
  }

  /** For a view of one capture: while that is the one that is shown. */
  on(names, listener, capture = null) {
    const ifShown = () => {
      if (capture === null || capture === this.capture) listener();
    };
    for (const name of names.split(" ")) this.addEventListener(name, ifShown);
  }

  /** Shows another of the captures; what was selected is of the one before. */
  open(capture) {
    if (capture === this.capture) return;
    this.clear();
    this.capture = capture;
    if (!capture.timed && ["time", "bound"].includes(this.color)) this.color = "op";
    this.changed("capture");
  }
}

const state = new State();
