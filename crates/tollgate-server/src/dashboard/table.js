// Tables that are sorted by their heads. Roles are spelled out, since a narrow screen lays rows out as
// blocks, and browsers then forget that they were rows.

import { element, keep, setAttribute, setText } from "./dom.js";

/// More rows than this help nobody, and cost time each second.
const ROWS_MAX = 200;

/// `columns` are `{name, title, value, cell, update, isText}`: `value` is sorted by, `cell` makes what a cell
/// holds and `update` changes it; without these two, `text` of a row is written.
export class Table {
  constructor(parent, label, columns, sortedBy = null) {
    this.columns = columns;
    this.sortedBy = sortedBy;
    this.isDown = true;
    this.heads = columns.map((column) => this.head(column));
    this.body = element("tbody", { role: "rowgroup" });
    const head = element("thead", { role: "rowgroup" }, element("tr", { role: "row" }, ...this.heads));
    parent.append(element("table", { role: "table", "aria-label": label }, head, this.body));
  }

  head(column) {
    const attributes = { role: "columnheader", scope: "col", class: column.isText ? "text" : "figure" };
    if (!column.value) return element("th", attributes, column.title);
    const sort = () => {
      this.isDown = this.sortedBy === column.name ? !this.isDown : !column.isText;
      this.sortedBy = column.name;
      this.show(this.rows, this.nameOf);
    };
    return element("th", attributes, element("button", { type: "button", onclick: sort }, column.title));
  }

  /// Shows rows, named by `nameOf`; tells how many there was no room for.
  show(rows, nameOf) {
    [this.rows, this.nameOf] = [rows, nameOf];
    const by = this.columns.find((column) => column.name === this.sortedBy);
    this.heads.forEach((head, number) => {
      const isBy = this.columns[number] === by;
      if (this.columns[number].value) setAttribute(head, "aria-sort", isBy ? (this.isDown ? "descending" : "ascending") : "none");
    });
    const sorted = by ? [...rows].sort((a, b) => compare(by.value(a), by.value(b)) * (this.isDown ? -1 : 1)) : rows;
    keep(this.body, sorted.slice(0, ROWS_MAX), nameOf, () => this.row(), (row, item) => this.update(row, item));
    return Math.max(0, rows.length - ROWS_MAX);
  }

  row() {
    const cells = this.columns.map((column) => element("td", { role: "cell", class: `${column.isText ? "text" : "figure"} ${column.name}`, "data-title": column.title }, ...(column.cell ? [column.cell()] : [])));
    return element("tr", { role: "row" }, ...cells);
  }

  update(row, item) {
    this.columns.forEach((column, number) => {
      const cell = row.children[number];
      if (column.update) column.update(cell.firstElementChild, item);
      else setText(cell, column.text(item));
    });
  }
}

const compare = (a, b) => (typeof a === "string" ? a.localeCompare(b) : a - b);
