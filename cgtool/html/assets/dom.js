"use strict";
// Elements and texts. Text of a capture is only ever added as text.

/** `make("td.number", { title: "..." }, "12", child)`; an attribute `onclick` is a listener. */
function make(name, attributes = {}, ...children) {
  const [tag, ...classes] = name.split(".");
  const element = document.createElement(tag);
  if (classes.length) element.className = classes.join(" ");
  for (const [key, value] of Object.entries(attributes)) {
    if (value === null || value === undefined || value === false) continue;
    if (key.startsWith("on")) element.addEventListener(key.slice(2), value);
    else element.setAttribute(key, value === true ? "" : value);
  }
  append(element, children);
  return element;
}

function append(element, ...children) {
  for (const child of children.flat(Infinity)) {
    if (child !== null && child !== undefined && child !== false) element.append(child);
  }
  return element;
}

function replace(element, ...children) {
  element.replaceChildren();
  return append(element, children);
}

/** A line of code that is broken where there is no room: what follows is indented as in the code, and a
    little more. */
function codeLine(name, text) {
  const line = make(name, {}, text || " ");
  line.style.setProperty("--hang", `${Math.max(0, text.search(/\S/)) + 2}ch`);
  line.classList.add("code-line");
  return line;
}

/** Text of a message: what is between backticks is code. */
function prose(text) {
  return text.split("`").map((part, at) => (at % 2 && part ? make("code", {}, part) : part));
}

/** A path may be broken after each `/`, a name after each `.` and `_`. */
function breakable(text) {
  return text.split(/(?<=[/._,:])/).flatMap((part) => [part, make("wbr")]);
}

// --- numbers, as analysis/units.py writes them

/** Rounded as Python does: a value in the middle of two goes to the even one. */
function rounded(value, digits) {
  const text = value.toFixed(digits); // from the middle, up
  const isMiddle = (value * 2 ** (digits + 1)) % 2 === 1;
  return isMiddle && Number(text.at(-1)) % 2 ? (value - 0.5 / 10 ** digits).toFixed(digits) : text;
}

function timeText(value) {
  if (!(value >= 0)) return "—";
  let unit = "ns";
  for (unit of ["ns", "us", "ms", "s"]) {
    if (rounded(value, 1) < 999.5 || unit === "s") break;
    value /= 1000;
  }
  return `${rounded(value, value >= 100 || unit === "ns" ? 0 : value >= 10 ? 1 : 2)} ${unit}`;
}

function bytesText(value) {
  if (!(value >= 0)) return "—";
  if (value < 1024) return `${rounded(value, 0)} B`;
  let unit = "KiB";
  for (unit of ["KiB", "MiB", "GiB"]) {
    value /= 1024;
    if (rounded(value, 0) < 1024 || unit === "GiB") break;
  }
  return `${rounded(value, value < 100 ? 1 : 0)} ${unit}`;
}

function scaledText(value, unit) {
  if (!(value >= 0)) return "—";
  let prefix = "";
  for (prefix of ["", "k", "M", "G", "T", "P"]) {
    if (rounded(value, 1) < 999.5 || prefix === "P") break;
    value /= 1000;
  }
  return `${rounded(value, value >= 10 ? 0 : 1)} ${prefix}${unit}`;
}

function numberText(value) {
  return value.toLocaleString("en-US");
}

function figureText(value) {
  return Number(value.toPrecision(4)).toString();
}

function countText(value, noun) {
  return `${numberText(value)} ${noun}${value === 1 ? "" : "s"}`;
}

function shareText(share) {
  if (!(share >= 0)) return "—";
  if (share > 0 && share < 0.0005) return "<0.1%";
  if (share >= 0.995 && share < 1 - 1e-9) return `${(Math.floor(1000 * share) / 10).toFixed(1)}%`;
  return share >= 0.0995 || share === 0 ? `${(100 * share).toFixed(0)}%` : `${(100 * share).toFixed(1)}%`;
}

// --- names

function shortOp(op) {
  return (op.split("::")[1] ?? op).split(".")[0];
}

function fileName(path) {
  return path.slice(path.lastIndexOf("/") + 1);
}
