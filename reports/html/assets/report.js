"use strict";

// The page is complete without this script: it draws figures, sorts tables and copies patches.
const root = document.documentElement;
root.classList.add("scripted");

const colour = (name) => getComputedStyle(root).getPropertyValue(`--${name}`).trim();

let library;

function plotly() {
  library ??= inflate(document.getElementById("plotlyjs").textContent).then(run);
  return library;
}

function inflate(base64) {
  const bytes = Uint8Array.from(atob(base64), (char) => char.charCodeAt(0));
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"));
  return new Response(stream, { headers: { "content-type": "text/javascript" } }).blob();
}

function run(blob) {
  return new Promise((resolve, reject) => {
    const script = document.createElement("script");
    script.src = URL.createObjectURL(blob);
    script.onload = () => resolve(window.Plotly);
    script.onerror = () => reject(new Error("plotly.js could not be started"));
    document.head.append(script);
  });
}

function themed({ data, layout }) {
  const axis = { gridcolor: colour("line"), linecolor: colour("line"), zerolinecolor: colour("line"), automargin: true };
  return {
    data: data.map((trace) => ({ ...trace, marker: { ...trace.marker, color: colour(trace.meta) } })),
    layout: {
      ...layout,
      autosize: true,
      paper_bgcolor: "transparent",
      plot_bgcolor: "transparent",
      font: { family: getComputedStyle(document.body).fontFamily, size: 12, color: colour("ink") },
      hoverlabel: { bgcolor: colour("paper"), bordercolor: colour("line"), font: { color: colour("ink") } },
      modebar: { bgcolor: "transparent", color: colour("soft"), activecolor: colour("ink") },
      showlegend: false,
      dragmode: narrow() ? false : "zoom", // a finger must be able to scroll past the figure
      margin: { l: 8, r: 8, t: 28, b: 8 },
      xaxis: { ...layout.xaxis, ...axis },
      yaxis: { ...layout.yaxis, ...axis },
    },
  };
}

const drawn = new Set();
const narrow = () => innerWidth < 640;
const config = () => ({
  displaylogo: false,
  displayModeBar: narrow() ? false : "hover",
  modeBarButtons: [["zoom2d", "pan2d", "resetScale2d"]],
  responsive: true,
});

async function draw(figure) {
  const plot = figure.querySelector(".plot");
  try {
    if (!window.Plotly) await plotly(); // a page that is printed waits for nothing
    if (drawn.has(figure)) return;
    const { data, layout } = themed(JSON.parse(figure.querySelector("script").textContent));
    plot.replaceChildren();
    const drawing = window.Plotly.newPlot(plot, data, layout, config());
    drawn.add(figure);
    figure.dataset.drawn = "";
    await drawing;
  } catch (error) {
    drawn.delete(figure);
    delete figure.dataset.drawn;
    const note = document.createElement("p");
    note.className = "waiting";
    note.textContent = `This browser could not draw the figure (${error.message}); its numbers are in the table below.`;
    plot.replaceChildren(note);
  }
}

const nearing = new IntersectionObserver(
  (entries) => {
    for (const { isIntersecting, target } of entries) {
      if (!isIntersecting) continue;
      nearing.unobserve(target);
      draw(target);
    }
  },
  { rootMargin: "400px" },
);
const figures = document.querySelectorAll(".figure");
figures.forEach((figure) => nearing.observe(figure));

function redraw(width) {
  for (const figure of drawn) {
    const { data, layout } = themed(JSON.parse(figure.querySelector("script").textContent));
    window.Plotly.react(figure.querySelector(".plot"), data, { ...layout, width });
  }
}

matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => redraw());

// Paper is white, as wide as A4 between its margins, and cannot be unfolded.
let folded = [];
addEventListener("beforeprint", () => {
  root.dataset.print = "";
  figures.forEach(draw);
  folded = [...document.querySelectorAll(":not([data-drawn]) > details:not([open])")];
  for (const details of folded) details.open = true;
  redraw(680);
});
addEventListener("afterprint", () => {
  delete root.dataset.print;
  for (const details of folded) details.open = false;
  redraw();
});

function order(table, column, descending) {
  const value = (row) => {
    const cell = row.cells[column];
    if (cell.classList.contains("none")) return null;
    return cell.dataset.v === undefined ? cell.textContent : Number(cell.dataset.v);
  };
  const compare = (a, b) => {
    if (a === null || b === null) return (a === null) - (b === null);
    const sign = descending ? -1 : 1;
    return sign * (typeof a === "number" ? a - b : a.localeCompare(b));
  };
  const body = table.tBodies[0];
  body.append(...[...body.rows].sort((a, b) => compare(value(a), value(b))));
}

for (const heading of document.querySelectorAll("table.data th")) {
  const button = document.createElement("button");
  button.type = "button";
  button.textContent = heading.textContent;
  heading.replaceChildren(button);
  button.addEventListener("click", () => {
    const descending = heading.ariaSort ? heading.ariaSort === "ascending" : heading.classList.contains("n");
    for (const other of heading.parentElement.cells) other.ariaSort = null;
    heading.ariaSort = descending ? "descending" : "ascending";
    order(heading.closest("table"), heading.cellIndex, descending);
  });
}

for (const button of document.querySelectorAll(".copy")) {
  const code = button.closest(".patch").querySelector("code");
  button.addEventListener("click", async () => {
    try {
      await navigator.clipboard.writeText(code.textContent);
      button.textContent = "Copied";
    } catch {
      getSelection().selectAllChildren(code);
      button.textContent = "Selected";
    }
  });
}
