"use strict";
// A table that is sorted by its headings and copied as tab-separated text.

const FIRST_ROWS = 200; // the rest is added on request
const WIDEST_FIRST = 28; // characters of the first column that stay on a line
const LONG = 48; // characters of a cell that is broken into lines

class SortedTable {
  /** A column is `{name, value(row), text(value, row), number, title, link(row), bar}`: `text` is
      what is shown of a value, `link` what a click on it does, `bar` a share from 0 to 1. A row may
      have `depth`, `inner` (rows below it) and `open`: then it is a tree. */
  constructor(columns, rows, { sort = null, label, marked = () => false }) {
    Object.assign(this, { columns, rows, label, marked });
    this.by = sort ?? columns.find((column) => column.number)?.name ?? columns[0].name;
    this.down = true;
    this.most = FIRST_ROWS;
    this.isTree = rows.some((row) => row.inner?.length);
    this.element = make("div.table");
    this.draw();
  }

  sorted(rows) {
    if (!this.by) return rows; // as they were given
    const { value } = this.columns.find(({ name }) => name === this.by);
    const order = (a, b) => {
      const [x, y] = [value(a), value(b)];
      if (this.isMissing(x) || this.isMissing(y)) return this.isMissing(x) - this.isMissing(y);
      const ascending = typeof x === "string" ? x.localeCompare(y, "en", { numeric: true }) : x - y;
      return this.down ? -ascending : ascending;
    };
    return [...rows].sort(order);
  }

  /** The rows that are shown, in order. */
  visible(rows = this.rows) {
    if (!this.isTree) return this.sorted(rows);
    return this.sorted(rows).flatMap((row) => (row.open && row.inner.length ? [row, ...this.visible(row.inner)] : [row]));
  }

  draw() {
    const all = this.visible();
    const rows = all.slice(0, this.most);
    const heads = this.columns.map((column) => this.head(column));
    const more = all.length > rows.length &&
      make("p", {}, link(`Show all ${numberText(all.length)} rows`, () => {
        this.most = Infinity;
        this.draw();
      }));
    const table = make("table.sorted", { "aria-label": this.label },
      make("thead", {}, make("tr", {}, heads)),
      make("tbody", {}, rows.map((row) => this.row(row))));
    // The first column is broken into lines, but not to less than this.
    const lengths = rows.map((row) => this.text(this.columns[0], row).length + (this.isTree ? 4 + 2 * (row.depth ?? 0) : 0));
    table.style.setProperty("--first", `${Math.min(WIDEST_FIRST, Math.max(0, ...lengths))}ch`);
    replace(this.element, table, more);
  }

  head(column) {
    if (!column.name) return make("th", { "aria-label": "change" });
    const sorted = column.name === this.by;
    return make(column.number ? "th.number" : "th", { "aria-sort": sorted ? (this.down ? "descending" : "ascending") : null, title: column.title },
      make("button.sort", {
        onclick: () => {
          this.down = sorted ? !this.down : Boolean(column.number);
          this.by = column.name;
          this.draw();
          this.element.querySelector("[aria-sort] button").focus();
        },
      }, column.name, make("span.arrow", { "aria-hidden": "true" }, sorted ? (this.down ? " ▾" : " ▴") : "")));
  }

  row(row) {
    const marked = this.marked(row);
    return make("tr", { "aria-selected": marked ? "true" : null, class: marked ? "marked" : null },
      this.columns.map((column, at) => this.cell(column, row, at === 0)));
  }

  isMissing(value) {
    return value === null || value === undefined || Number.isNaN(value);
  }

  text(column, row) {
    const value = column.value(row);
    if (this.isMissing(value)) return column.number ? "—" : "";
    return column.text ? column.text(value, row) : String(value);
  }

  cell(column, row, isFirst) {
    const missing = this.isMissing(column.value(row));
    const text = this.text(column, row);
    // Only the first column is broken into lines.
    const shown = isFirst ? breakable(text) : text;
    const content = column.link && !missing ? make("button.link", { onclick: () => column.link(row), title: text }, shown) : shown;
    const cell = make(column.number ? "td.number" : `td.text${isFirst ? ".first" : text.length > LONG ? ".long" : ""}`, {}, isFirst && this.isTree ? this.twist(row) : null, content);
    if (column.bar) {
      replace(cell, make("span.share-text", {}, content));
      const filled = make("span.filled");
      filled.style.width = `${Math.min(100, 100 * (column.bar(row) || 0))}%`;
      cell.prepend(make("span.bar", {}, filled), " ");
    }
    return cell;
  }

  /** Opens and closes the rows below a row. */
  twist(row) {
    const indent = make("span.indent");
    indent.style.width = `${16 * (row.depth ?? 0)}px`;
    if (!row.inner?.length) return [indent, make("span.twist")];
    const button = make("button.twist", {
      "aria-expanded": String(Boolean(row.open)), "aria-label": row.open ? "Close" : "Open",
      onclick: () => {
        row.open = !row.open;
        this.draw();
      },
    }, row.open ? "▾" : "▸");
    return [indent, button];
  }

  /** Marks the rows again, without sorting them. */
  mark() {
    const rows = this.visible().slice(0, this.most);
    [...this.element.querySelectorAll("tbody tr")].forEach((element, at) => {
      const marked = this.marked(rows[at]);
      element.classList.toggle("marked", marked);
      if (marked) element.setAttribute("aria-selected", "true");
      else element.removeAttribute("aria-selected");
    });
  }

  /** Every row, tab-separated, as numbers where they are numbers. */
  tabSeparated() {
    const every = (rows) => this.sorted(rows).flatMap((row) => [row, ...every(row.inner ?? [])]);
    const line = (cells) => cells.map((cell) => String(cell ?? "").replace(/[\t\n]/g, " ")).join("\t");
    return [line(this.columns.map(({ name }) => name)), ...every(this.rows).map((row) => line(this.columns.map(({ value }) => value(row))))].join("\n");
  }

  copyButton() {
    return make("button", {
      title: "Copy all rows, tab-separated",
      onclick: async (event) => {
        const button = event.currentTarget;
        button.textContent = (await copied(this.tabSeparated())) ? "Copied" : "Could not copy";
        setTimeout(() => (button.textContent = "Copy"), 1500);
      },
    }, "Copy");
  }
}

/** A table of a command's screen (screens.py); `link(row)` selects what a row is about. */
function screenTable({ title, columns, rows }, link = null) {
  const named = columns.findIndex(([name, number]) => name && !number);
  const sorted = columns.map(([name, number, explanation], at) => ({
    name,
    number,
    title: explanation || null,
    value: ({ cells }) => cells[at][0] ?? (number ? null : cells[at][1]),
    text: (_, { cells }) => cells[at][1],
    link: at === named ? link : null,
  }));
  return new SortedTable(sorted, rows.map((cells, number) => ({ cells, number })), { label: title, sort: "" });
}

function tableSection(table, link) {
  return make("section", {}, make("h2", {}, table.title), screenTable(table, link).element);
}

async function copied(text) {
  try {
    await navigator.clipboard.writeText(text);
    return true;
  } catch {
    // Not every browser gives a page from a file its clipboard.
    const area = document.body.appendChild(make("textarea"));
    area.value = text;
    area.select();
    const done = document.execCommand("copy");
    area.remove();
    return done;
  }
}
