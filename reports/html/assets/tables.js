// Tables: a click on a heading sorts all rows; the first ones stay in sight.
{
  function value(cell) {
    if (cell.classList.contains("none")) return null;
    return cell.dataset.v === undefined ? cell.textContent : Number(cell.dataset.v);
  }

  function order(table, column, descending) {
    const compare = (a, b) => {
      if (a === null || b === null) return (a === null) - (b === null);
      const sign = descending ? -1 : 1;
      return sign * (typeof a === "number" ? a - b : a.localeCompare(b, "en", { numeric: true }));
    };
    const rows = [...table.tBodies].flatMap((body) => [...body.rows]);
    rows.sort((a, b) => compare(value(a.cells[column]), value(b.cells[column])));
    // Counted first: a row that is put into a body leaves its own.
    const counts = [...table.tBodies].map((body) => body.rows.length);
    let begun = 0;
    counts.forEach((count, i) => {
      table.tBodies[i].replaceChildren(...rows.slice(begun, begun + count));
      begun += count;
    });
  }

  for (const heading of document.querySelectorAll("table.data th")) {
    const button = document.createElement("button");
    button.type = "button";
    button.append(...heading.childNodes);
    heading.append(button);
    button.addEventListener("click", () => {
      const descending = heading.ariaSort ? heading.ariaSort === "ascending" : heading.classList.contains("n");
      for (const other of heading.parentElement.cells) other.ariaSort = null;
      heading.ariaSort = descending ? "descending" : "ascending";
      order(heading.closest("table"), heading.cellIndex, descending);
    });
  }
}
