"use strict";

// The page is complete without scripts: they sort, filter, copy, zoom and unfold.
const root = document.documentElement;
root.classList.add("scripted");

// Base85 of Python, with `,.:` for the letters that mean something in HTML.
const letters = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz!#$%:()*+-;,=.?@^_`{|}~";

function decoded(text) {
  const values = new Uint8Array(128);
  for (let i = 0; i < letters.length; i++) values[letters.charCodeAt(i)] = i;
  const bytes = new DataView(new ArrayBuffer(Math.ceil(text.length / 5) * 4));
  for (let i = 0; i < text.length; i += 5) {
    let number = 0;
    for (let j = i; j < i + 5; j++) number = number * 85 + (j < text.length ? values[text.charCodeAt(j)] : 84);
    bytes.setUint32((i / 5) * 4, number);
  }
  return new Uint8Array(bytes.buffer, 0, Math.floor((text.length * 4) / 5));
}

function unpacked(text) {
  const stream = new Blob([decoded(text)]).stream().pipeThrough(new DecompressionStream("gzip"));
  return new Response(stream).blob();
}

let read;
// The report as JSON.
const facts = () => (read ??= unpacked(document.getElementById("facts").textContent));

function plain(fragment) {
  try {
    return decodeURIComponent(fragment);
  } catch {
    return fragment; // somebody cut the address
  }
}

// A link to what is folded unfolds it.
function unfold() {
  const target = location.hash && document.getElementById(plain(location.hash.slice(1)));
  if (!target) return;
  for (let at = target; at; at = at.parentElement) if (at.tagName === "DETAILS") at.open = true;
  target.scrollIntoView();
}
addEventListener("hashchange", unfold);

// `dsprof serve --live` loads the page again: what was unfolded stays so.
if (location.protocol === "http:") {
  const folds = [...document.querySelectorAll("details")];
  addEventListener("pagehide", () => {
    sessionStorage.setItem(location.pathname, JSON.stringify(folds.map((details) => details.open)));
  });
  const open = JSON.parse(sessionStorage.getItem(location.pathname) ?? "[]");
  if (open.length === folds.length) folds.forEach((details, at) => (details.open = open[at]));
}
unfold();

// Paper cannot be unfolded.
let folded = [];
addEventListener("beforeprint", () => {
  folded = [...document.querySelectorAll("details:not([open])")].map((details) => [details, details.name]);
  for (const [details] of folded) {
    details.name = ""; // several of one name may be open on paper
    details.open = true;
  }
});
addEventListener("afterprint", () => {
  for (const [details, name] of folded) {
    details.open = false;
    details.name = name;
  }
});

document.querySelector(".download").addEventListener("click", async () => {
  const data = await facts();
  const link = document.createElement("a");
  link.href = URL.createObjectURL(new Blob([data], { type: "application/json" }));
  link.download = "dsprof-report.json";
  link.click(); // the browser reads it later: the URL lives as long as the page
});
