// Timelines: the page holds a drawing of each; plotly takes its place when a reader wants to zoom.
{
  const colour = (name) => getComputedStyle(root).getPropertyValue(`--${name}`).trim();
  let library;

  function plotly() {
    library ??= inflate(document.getElementById("plotlyjs").textContent).then(run);
    return library;
  }

  async function inflate(text) {
    return new Blob([await unpacked(text)], { type: "text/javascript" });
  }

  const specs = new Map();

  async function spec(figure) {
    if (!specs.has(figure)) {
      const blob = await unpacked(figure.querySelector("script").textContent);
      specs.set(figure, JSON.parse(await blob.text()));
    }
    return themed(specs.get(figure));
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
    modeBarButtons: [["zoom2d", "pan2d", "zoomIn2d", "zoomOut2d", "resetScale2d"]],
    responsive: true,
    scrollZoom: true,
  });

  async function draw(figure) {
    const plot = figure.querySelector(".plot");
    const note = figure.querySelector(".zoom");
    try {
      if (!window.Plotly) {
        note.textContent = "Loading…";
        await plotly();
      }
      if (drawn.has(figure)) return;
      const { data, layout } = await spec(figure);
      plot.hidden = false;
      const drawing = window.Plotly.newPlot(plot, data, layout, config());
      drawn.add(figure);
      figure.dataset.drawn = "";
      await drawing;
      note.textContent = "Turn the wheel, or drag, to zoom; double-click to see the whole step.";
    } catch (error) {
      drawn.delete(figure);
      delete figure.dataset.drawn;
      plot.hidden = true;
      note.textContent = `This browser cannot zoom the figure (${error.message}).`;
    }
  }

  for (const figure of document.querySelectorAll(".figure")) {
    const button = figure.querySelector(".zoom button");
    button?.addEventListener("click", () => draw(figure));
    figure.querySelector(".drawing").addEventListener("dblclick", () => button?.click());
  }

  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", async () => {
    for (const figure of drawn) {
      const { data, layout } = await spec(figure);
      window.Plotly.react(figure.querySelector(".plot"), data, layout);
    }
  });
}
