// The timeline: any step that the page has, zoomed, searched and coloured as the reader asks.
{
  const section = document.getElementById("timeline");
  const live = section?.querySelector(".live");
  const part = (name) => live.querySelector(name);
  const WIDTH = 1000, ROW = 14, BAR = 11, GAP = 8, LEVELS = 3, SERIES = 8, MOST = 22, LEAST_NS = 100;
  const LANES = ["activity", "phase", "communication", "copies"];
  const named = (lane) => (lane === "phase" ? "phases" : lane.replace(/^group /, ""));
  const communicates = (bar) => bar.lane === "communication" || bar.lane.startsWith("group ");
  const PHASES = ["forward", "backward", "step"];
  const UNITS = [[1e9, "s"], [1e6, "ms"], [1e3, "µs"], [1, "ns"]];

  let report, shown, span, picked = null;
  let framed = [];
  let paint = () => "other";

  const fixed = (value) => (value >= 100 ? Math.round(value).toLocaleString("en") : value.toPrecision(3));
  // What would be rounded to 1,000 of a unit is 1 of the next.
  const unit = (ns) => UNITS.find(([size]) => ns >= 0.9995 * size) ?? UNITS[3];

  function duration(ns) {
    const [size, name] = unit(ns);
    return `${size === 1 ? ns : fixed(ns / size)} ${name}`;
  }

  // Rows of lanes by rank; bars of a lane that overlap lie below each other.
  function laidOut(step) {
    const rows = new Map();
    for (const bar of step.bars) {
      const key = `${bar.rank} ${bar.lane}`;
      if (!rows.has(key)) rows.set(key, { rank: bar.rank, lane: bar.lane, bars: [] });
      rows.get(key).bars.push(bar);
    }
    const order = (lane) => (LANES.includes(lane) ? LANES.indexOf(lane) : LANES.length);
    const compare = (a, b) =>
      a.rank - b.rank || order(a.lane) - order(b.lane) || a.lane.localeCompare(b.lane, "en", { numeric: true });
    let y = 4 - ROW - GAP;
    let rank = null;
    const sorted = [...rows.values()].sort(compare);
    for (const row of sorted) {
      row.isFirst = row.rank !== rank;
      rank = row.rank;
      row.y = y += ROW + (row.isFirst ? GAP : 0);
      stack(row);
    }
    return { step, rows: sorted, bars: sorted.flatMap((row) => row.bars), height: y + ROW };
  }

  function stack(row) {
    const ends = [];
    row.bars.sort((a, b) => a.start_ns - b.start_ns || b.end_ns - a.end_ns);
    const levels = row.bars.map((bar) => {
      const free = ends.findIndex((end) => end <= bar.start_ns);
      const level = free >= 0 ? free : Math.min(ends.length, LEVELS - 1);
      ends[level] = Math.max(ends[level] ?? 0, bar.end_ns);
      return level;
    });
    const height = BAR / Math.max(ends.length, 1);
    row.bars.forEach((bar, i) => Object.assign(bar, { y: row.y + levels[i] * height, height }));
  }

  // Colours: of operations and phases, or of the groups and modules that take longest.
  function painter(by) {
    const bars = report.timelines.flatMap((step) => step.bars);
    if (by === "kind") {
      const operations = [...new Set(bars.filter(communicates).map((bar) => bar.kind))].sort();
      return (bar) => {
        if (communicates(bar)) return `series-${(operations.indexOf(bar.kind) % SERIES) + 1}`;
        if (bar.kind === "blocked") return "exposed_comm";
        if (PHASES.includes(bar.kind)) return `phase-${bar.kind}`;
        return ["compute", "copies", "idle"].includes(bar.kind) ? bar.kind : "other";
      };
    }
    const sums = new Map();
    for (const bar of bars) if (bar[by]) sums.set(bar[by], (sums.get(bar[by]) ?? 0) + bar.end_ns - bar.start_ns);
    const most = [...sums.keys()].sort((a, b) => sums.get(b) - sums.get(a)).slice(0, SERIES);
    return (bar) => (bar[by] ? (most.includes(bar[by]) ? `series-${most.indexOf(bar[by]) + 1}` : "other") : "line");
  }

  function label(bar, by) {
    if (by === "kind") return bar.kind;
    return bar[by] ? (paint(bar) === "other" ? `other ${by}s` : bar[by]) : `no ${by} recorded`;
  }

  const said = (bar) =>
    [
      `rank ${bar.rank}`, bar.lane === bar.kind ? "" : named(bar.lane), bar.kind,
      duration(bar.end_ns - bar.start_ns), `from ${duration(Math.max(bar.start_ns, 0))}`,
      bar.group, bar.module, bar.label,
    ].filter(Boolean).join(", ");

  function matching() {
    const words = part("[type=search]").value.toLowerCase().split(/\s+/).filter(Boolean);
    if (!words.length) return null;
    const holds = (bar) => {
      const text = `${bar.kind} ${bar.module} ${bar.group} ${bar.label}`.toLowerCase();
      return words.every((word) => text.includes(word));
    };
    return new Set(shown.bars.filter(holds));
  }

  const shape = (kind, colour, d) => {
    const path = document.createElementNS("http://www.w3.org/2000/svg", "path");
    path.setAttribute("class", kind);
    path.style.setProperty("--part", `var(--${colour})`);
    path.setAttribute("d", d);
    return path;
  };

  const word = (x, y, text, kind) => {
    const made = document.createElementNS("http://www.w3.org/2000/svg", "text");
    made.setAttribute("x", x);
    made.setAttribute("y", y);
    made.setAttribute("class", kind);
    made.textContent = text;
    return made;
  };

  // Whether a colour, of the scheme that is shown, needs pale letters.
  function isDark(colour) {
    const shades = getComputedStyle(live).getPropertyValue(`--${colour}`).match(/[0-9a-f]{2}/gi) ?? [];
    const [red, green, blue] = shades.map((shade) => parseInt(shade, 16));
    return 0.3 * red + 0.59 * green + 0.11 * blue < 140;
  }

  function draw() {
    const [from, to] = span;
    const scale = WIDTH / (to - from);
    const px = WIDTH / Math.max(part(".bars").clientWidth, 100); // units of one pixel
    const found = matching();
    const paths = new Map();
    const words = [];
    for (const row of shown.rows) {
      const reach = new Map();
      for (const bar of row.bars) {
        if (bar.end_ns <= from || bar.start_ns >= to) continue;
        const begun = Math.max((bar.start_ns - from) * scale, -1);
        const end = Math.max(Math.min((bar.end_ns - from) * scale, WIDTH + 1), begun + px);
        const key = `${paint(bar)} ${found && !found.has(bar) ? "dim" : ""}`;
        if (end <= (reach.get(key + bar.y) ?? -2)) continue; // within a pixel that is painted
        reach.set(key + bar.y, end);
        const path = `M${begun.toFixed(2)} ${bar.y.toFixed(1)}H${end.toFixed(2)}v${bar.height.toFixed(1)}H${begun.toFixed(2)}z`;
        paths.set(key, (paths.get(key) ?? "") + path);
        const left = Math.max(begun, 0);
        const room = (Math.min(end, WIDTH) - left) / px;
        if (bar.height === BAR && bar.lane !== "activity" && room > 12 + 6.5 * bar.kind.length && !(found && !found.has(bar)))
          words.push(word(`${((left + 4 * px) * 100) / WIDTH}%`, bar.y + 9, bar.kind, `start on ${isDark(paint(bar)) ? "pale" : ""}`));
      }
    }
    const marks = ticks(from, to);
    const lines = marks.map(([ns]) => `M${((ns - from) * scale).toFixed(2)} 0V${shown.height}`).join("");
    const frames = framed.map(frame).filter(Boolean);
    const drawn = [...paths].map(([key, d]) => shape(key.split(" ")[1], key.split(" ")[0], d));
    const ring = picked ? [shape("outline pick", "ink", outline(picked, from, scale))] : [];
    part(".bars svg").replaceChildren(shape("line", "line", lines), ...drawn, ...frames, ...ring);
    const anchor = (x) => (x === 0 ? "start" : x > WIDTH - 30 * px ? "end" : "");
    const axis = marks.map(([ns, text]) => word(`${((ns - from) * scale * 100) / WIDTH}%`, shown.height + 14, text, anchor((ns - from) * scale)));
    for (const old of [...part(".bars").querySelectorAll("text")]) old.remove();
    part(".bars").append(...axis, ...words);
    part(".found").textContent = found ? `${found.size} of ${shown.bars.length} bars` : "";
  }

  function frame(rank) {
    const mine = shown.rows.filter((row) => row.rank === rank);
    if (mine.length) return shape("outline", "ink", `M1 ${mine[0].y - 3}H${WIDTH - 1}V${mine.at(-1).y + BAR + 3}H1z`);
  }

  function outline(bar, from, scale) {
    const begun = (bar.start_ns - from) * scale, end = (bar.end_ns - from) * scale;
    return `M${begun.toFixed(2)} ${bar.y - 1}H${end.toFixed(2)}v${bar.height + 2}H${begun.toFixed(2)}z`;
  }

  function ticks(from, to) {
    const rough = ((to - from) * 110) / Math.max(part(".bars").clientWidth, 330);
    const power = 10 ** Math.floor(Math.log10(rough));
    const size = [1, 2, 5, 10].map((digit) => digit * power).find((one) => one >= rough);
    const [scale, name] = unit(to);
    const digits = Math.min(Math.max(Math.ceil(-Math.log10(size / scale) - 1e-9), 0), 9);
    const made = [];
    for (let ns = Math.ceil(from / size) * size; ns <= to; ns += size)
      made.push([ns, ns ? `${(ns / scale).toLocaleString("en", { minimumFractionDigits: digits, maximumFractionDigits: digits })} ${name}` : "0"]);
    return made;
  }

  function show(step) {
    shown = laidOut(step);
    span = [0, Math.max(step.duration_ns, 1)];
    picked = null;
    framed = toFrame(step);
    const why = { worst: ", the longest", median: ", near the median", first: ", the first measured", named: ", named by a finding" }[step.why] ?? "";
    const name = { recording: "The recording", dump: "Calls that the flight recorders held" }[step.why] ?? `Step ${step.step}${why}`;
    const title = `${name}: ${duration(step.duration_ns)}`;
    part(".step").textContent = title;
    part(".range").value = report.timelines.indexOf(step);
    part(".range").setAttribute("aria-valuetext", title);
    for (const button of part(".picks").children) button.ariaPressed = String(button.value === String(step.step));
    const height = shown.height + 20;
    part(".bars").setAttribute("height", height);
    part(".bars svg").setAttribute("height", height);
    part(".bars svg").setAttribute("viewBox", `0 0 ${WIDTH} ${height}`);
    part(".plot").classList.toggle("tall", height > 850);
    part(".plot").setAttribute("aria-label", `${title}. Lanes of ${new Set(step.bars.map((bar) => bar.rank)).size} ranks.`);
    names(height);
    recolour();
    say(framed.length ? `The frame marks ${step.why === "dump" ? "what the first finding names" : "the rank that the others waited for longest"}: rank ${framed.join(", ")}.` : "");
    numbers();
  }

  function names(height) {
    const name = (row) => `${row.isFirst ? `rank ${row.rank} ` : ""}${named(row.lane)}`;
    const texts = shown.rows.map(name).map((text) => (text.length > MOST ? `${text.slice(0, MOST - 1)}…` : text));
    const lanes = part(".lanes");
    lanes.replaceChildren(...shown.rows.map((row, i) => word("100%", row.y + 9, texts[i], row.isFirst ? "strong" : "")));
    const wide = Math.max(...[...lanes.children].map((text) => text.getComputedTextLength()));
    lanes.setAttribute("width", Math.max(64, Math.ceil(wide) + 8));
    lanes.setAttribute("height", height);
  }

  // The stragglers of a step; of a dump, the ranks of its first finding.
  function toFrame({ step, why }) {
    if (why === "dump") return report.timeline_places.find((one) => one.step === step)?.ranks ?? [];
    const late = report.step_map.marks.filter((mark) => mark.kind === "straggler" && mark.step === step);
    return [...new Set(late.map((mark) => mark.rank))];
  }

  function recolour() {
    const by = part("select").value;
    paint = painter(by);
    const keys = new Map();
    for (const bar of shown.bars) keys.set(label(bar, by), paint(bar));
    const made = [...keys].map(([text, colour]) => {
      const key = document.createElement("li");
      key.style.setProperty("--part", `var(--${colour})`);
      key.textContent = text;
      return key;
    });
    part(".keys").replaceChildren(...made);
    draw();
  }

  function numbers() {
    const sums = new Map();
    for (const bar of shown.bars) {
      const key = [bar.rank, named(bar.lane), bar.kind].join("\n");
      const length = bar.end_ns - bar.start_ns;
      const [count, sum, most] = sums.get(key) ?? [0, 0, 0];
      sums.set(key, [count + 1, sum + length, Math.max(most, length)]);
    }
    const body = part("tbody");
    body.replaceChildren();
    for (const [key, [count, sum, most]] of sums) {
      const row = body.insertRow();
      const cell = (text, name) => {
        const made = row.insertCell();
        made.className = name;
        made.textContent = text;
        return made;
      };
      for (const text of key.split("\n")) cell(text, "short");
      for (const [value, text] of [[count, count], [sum, duration(sum)], [most, duration(most)]]) {
        cell(text, "n").dataset.v = value;
      }
    }
  }

  let asked = 0;
  const redraw = () => {
    cancelAnimationFrame(asked);
    asked = requestAnimationFrame(draw);
  };

  function look(from, length) {
    const whole = Math.max(shown.step.duration_ns, 1);
    const kept = Math.min(Math.max(length, LEAST_NS), whole);
    const begun = Math.min(Math.max(from, 0), whole - kept);
    span = [begun, begun + kept];
    redraw();
  }

  function zoom(times, at = 0.5) {
    const [from, to] = span;
    look(from + (to - from) * (1 - 1 / times) * at, (to - from) / times);
  }

  const move = (share) => look(span[0] + share * (span[1] - span[0]), span[1] - span[0]);

  function say(text) {
    part(".picked").textContent = text;
  }

  function pick(bar) {
    picked = bar ?? null;
    if (bar) {
      say(said(bar));
      if (bar.end_ns < span[0] || bar.start_ns > span[1]) look(bar.start_ns - (span[1] - span[0]) / 2, span[1] - span[0]);
    }
    redraw();
  }

  function next(by) {
    const bars = [...(matching() ?? shown.bars)].sort((a, b) => a.start_ns - b.start_ns || a.y - b.y);
    if (bars.length) pick(bars[(bars.indexOf(picked) + by + bars.length + (picked || by > 0 ? 0 : 1)) % bars.length]);
  }

  function under(event) {
    const box = part(".bars").getBoundingClientRect();
    const ns = span[0] + ((event.clientX - box.left) / box.width) * (span[1] - span[0]);
    const near = (3 / box.width) * (span[1] - span[0]);
    const y = event.clientY - box.top;
    const hit = (bar) => y >= bar.y && y < bar.y + bar.height && ns >= bar.start_ns - near && ns <= bar.end_ns + near;
    return shown.bars.filter(hit).sort((a, b) => a.end_ns - a.start_ns - (b.end_ns - b.start_ns))[0];
  }

  // A finding goes to its step: its collective is searched for, its ranks are framed.
  async function goTo({ step, operation, ranks }) {
    await started();
    part("[type=search]").value = operation;
    show(report.timelines.find((one) => one.step === step));
    if (ranks.length) framed = ranks;
    const found = [...(matching() ?? [])].filter((bar) => !ranks.length || ranks.includes(bar.rank));
    const longest = found.sort((a, b) => b.end_ns - b.start_ns - (a.end_ns - a.start_ns))[0];
    if (longest) {
      const length = longest.end_ns - longest.start_ns;
      if (length < 0.02 * shown.step.duration_ns) look(longest.start_ns - 10 * length, 21 * length);
      pick(longest);
    } else draw();
    section.scrollIntoView();
    part(".plot").focus({ preventScroll: true });
  }

  const KEYS = {
    "+": () => zoom(2), "=": () => zoom(2), "-": () => zoom(0.5), 0: () => look(0, Infinity),
    ArrowLeft: () => move(-0.2), ArrowRight: () => move(0.2), n: () => next(1), p: () => next(-1),
  };

  function listen() {
    const plot = part(".plot"), tip = part(".tip");
    part(".range").addEventListener("input", (event) => show(report.timelines[event.target.value]));
    part("[type=search]").addEventListener("input", draw);
    part("select").addEventListener("change", recolour);
    for (const button of live.querySelectorAll(".picks button"))
      button.addEventListener("click", () => show(report.timelines.find((step) => String(step.step) === button.value)));
    for (const button of live.querySelectorAll("[data-key]")) button.addEventListener("click", () => KEYS[button.dataset.key]());
    plot.addEventListener("keydown", (event) => {
      if (event.ctrlKey || event.metaKey || event.altKey || !Object.hasOwn(KEYS, event.key)) return;
      event.preventDefault();
      KEYS[event.key]();
    });
    plot.addEventListener("wheel", (event) => {
      if (document.activeElement !== plot) return; // the page scrolls until the drawing is clicked
      event.preventDefault();
      const box = part(".bars").getBoundingClientRect();
      zoom(2 ** (-event.deltaY / 300), (event.clientX - box.left) / box.width);
    }, { passive: false });
    let dragged = null;
    plot.addEventListener("pointerdown", (event) => { dragged = { x: event.clientX, from: span[0], far: false }; });
    addEventListener("pointerup", () => { dragged = null; });
    plot.addEventListener("pointermove", (event) => {
      if (dragged) {
        const moved = (event.clientX - dragged.x) / part(".bars").clientWidth;
        dragged.far ||= Math.abs(event.clientX - dragged.x) > 4;
        if (dragged.far) look(dragged.from - moved * (span[1] - span[0]), span[1] - span[0]);
      }
      const bar = dragged?.far ? null : under(event);
      tip.hidden = !bar;
      if (!bar) return;
      tip.textContent = said(bar);
      const box = plot.getBoundingClientRect();
      tip.style.left = `${Math.min(Math.max(event.clientX - box.left - tip.offsetWidth / 2, 0), box.width - tip.offsetWidth)}px`;
      tip.style.top = `${event.clientY - box.top + 18}px`;
    });
    plot.addEventListener("pointerleave", () => { tip.hidden = true; });
    plot.addEventListener("click", (event) => pick(under(event)));
    new ResizeObserver(redraw).observe(plot);
  }

  let starting;
  const started = () => (starting ??= start());

  async function start() {
    report = JSON.parse(await (await facts()).text());
    const first = report.timelines.find((step) => step.bars.length);
    report.timelines = report.timelines.filter((step) => step.bars.length).sort((a, b) => a.step - b.step);
    live.hidden = false;
    section.dataset.live = "";
    listen();
    show(first);
  }

  if (live) {
    const seen = new IntersectionObserver((entries) => {
      if (!entries.some((entry) => entry.isIntersecting)) return;
      seen.disconnect();
      started();
    }, { rootMargin: "800px" });
    seen.observe(section);
    addEventListener("beforeprint", () => started());
    document.addEventListener("click", (event) => {
      const link = event.target.closest("a[data-place]");
      if (!link) return;
      event.preventDefault();
      history.replaceState(null, "", link.href);
      goTo(JSON.parse(link.dataset.place));
    });
  }
}
