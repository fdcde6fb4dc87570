"use strict";

// The page is complete without scripts: they sort, filter, copy, zoom and unfold.
const root = document.documentElement;
root.classList.add("scripted");

function unpacked(base64) {
  const bytes = Uint8Array.from(atob(base64), (char) => char.charCodeAt(0));
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"));
  return new Response(stream).blob();
}

// A link to what is folded unfolds it.
function unfold() {
  const target = location.hash && document.getElementById(decodeURIComponent(location.hash.slice(1)));
  if (!target) return;
  for (let at = target; at; at = at.parentElement) if (at.tagName === "DETAILS") at.open = true;
  target.scrollIntoView();
}
addEventListener("hashchange", unfold);
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
  const data = await unpacked(document.getElementById("facts").textContent);
  const link = document.createElement("a");
  link.href = URL.createObjectURL(new Blob([data], { type: "application/json" }));
  link.download = "dsprof-report.json";
  link.click(); // the browser reads it later: the URL lives as long as the page
});
