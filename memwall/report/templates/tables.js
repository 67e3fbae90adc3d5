// Tables of many rows: a click on a heading sorts, a field above filters. The table of kernels has its own.
(() => {
  const LEAST_ROWS = 10;

  /** The number that a cell begins with, `<0.01` below 0.01, or null. */
  const number = (text) => {
    const found = /^<?\s*([+-]?[\d,]*\.?\d+(?:e[+-]?\d+)?)/i.exec(text);
    return found ? parseFloat(found[1].replaceAll(",", "")) - (text[0] === "<" ? 1e-9 : 0) : null;
  };

  for (const table of document.querySelectorAll(".scroll > table:not([id])")) {
    const body = table.tBodies[0];
    const rows = [...body.rows];
    if (rows.length < LEAST_ROWS) continue;
    table.classList.add("rows");

    const controls = document.createElement("p");
    const field = document.createElement("input");
    const count = document.createElement("span");
    controls.className = "controls";
    field.type = "search";
    field.placeholder = "filter the rows";
    field.setAttribute("aria-label", "filter the rows");
    controls.append(field, " ", count);
    table.parentNode.before(controls);
    field.oninput = () => {
      const words = field.value.toLowerCase().split(/\s+/).filter(Boolean);
      let shown = 0;
      for (const row of rows) {
        const text = row.textContent.toLowerCase();
        row.hidden = !words.every((word) => text.includes(word));
        shown += !row.hidden;
      }
      count.textContent = words.length ? `${shown} of ${rows.length} rows` : "";
    };

    const heads = [...table.tHead.rows[0].cells];
    heads.forEach((head, column) => {
      head.tabIndex = 0;
      const sort = () => {
        const numeric = head.className === "n";
        const down = head.getAttribute("aria-sort") ? head.getAttribute("aria-sort") === "ascending" : numeric;
        for (const other of heads) other.removeAttribute("aria-sort");
        head.setAttribute("aria-sort", down ? "descending" : "ascending");
        const key = (row) => (numeric ? number(row.cells[column].textContent) : row.cells[column].textContent.toLowerCase());
        const sorted = rows.map((row) => [key(row), row]);
        sorted.sort(([a], [b]) => (a === null) - (b === null) || (a < b ? -1 : a > b ? 1 : 0) * (down ? -1 : 1));
        body.append(...sorted.map(([, row]) => row));
      };
      head.onclick = sort;
      head.onkeydown = (event) => { if (event.key === "Enter") sort(); };
    });
  }
})();
