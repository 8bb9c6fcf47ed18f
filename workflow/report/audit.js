"use strict";
// Tables sort by a button in each header, and rows are found by their words. Without this the
// page shows all of it, in its first order.
for (const table of document.querySelectorAll("table[data-sort]")) {
  const body = table.tBodies[0];
  const first = Array.from(body.rows);
  const said = document.getElementById("said");
  const key = (row, column) => {
    const cell = row.cells[column];
    return "v" in cell.dataset ? cell.dataset.v : cell.textContent.trim();
  };
  const compare = (a, b) => {
    const [x, y] = [Number(a), Number(b)];
    return Number.isNaN(x) || Number.isNaN(y) ? a.localeCompare(b) : x === y ? 0 : x < y ? -1 : 1;
  };
  Array.from(table.tHead.rows[0].cells).forEach((header, column) => {
    const button = document.createElement("button");
    button.type = "button";
    button.append(...header.childNodes);
    header.append(button);
    button.addEventListener("click", () => {
      const falling = header.getAttribute("aria-sort") === "ascending";
      for (const other of table.tHead.rows[0].cells) other.removeAttribute("aria-sort");
      header.setAttribute("aria-sort", falling ? "descending" : "ascending");
      // What has no value stays last either way.
      const [none, some] = [[], []];
      for (const row of first) (key(row, column) === "" ? none : some).push(row);
      some.sort((a, b) => compare(key(a, column), key(b, column)) * (falling ? -1 : 1));
      body.append(...some, ...none);
      said.textContent = `Sorted by ${button.textContent}, ${falling ? "descending" : "ascending"}`;
    });
  });
}
for (const input of document.querySelectorAll("input[data-table]")) {
  const rows = Array.from(document.getElementById(input.dataset.table).tBodies[0].rows);
  const count = document.getElementById(input.dataset.count);
  input.closest(".find").hidden = false;
  const find = () => {
    const wanted = input.value.trim().toLowerCase();
    let shown = 0;
    for (const row of rows) {
      row.hidden = !row.textContent.toLowerCase().includes(wanted);
      shown += !row.hidden;
    }
    count.textContent = `${shown} of ${rows.length} rows shown`;
  };
  input.addEventListener("input", find);
  find();
}
