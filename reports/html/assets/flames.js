// A click on a frame of a flame graph gives it the whole width; on the topmost, the whole is back.
for (const picture of document.querySelectorAll(".flame > svg")) {
  const frames = [...picture.children].map((frame) => ({
    frame,
    left: parseFloat(frame.getAttribute("x")),
    width: parseFloat(frame.getAttribute("width")),
  }));
  picture.addEventListener("click", (event) => {
    const chosen = frames.find(({ frame }) => frame.contains(event.target));
    if (!chosen) return;
    for (const { frame, left, width } of frames) {
      const begin = Math.max(left, chosen.left);
      const end = Math.min(left + width, chosen.left + chosen.width);
      frame.setAttribute("x", `${((begin - chosen.left) / chosen.width) * 100}%`);
      frame.setAttribute("width", `${(Math.max(end - begin, 0) / chosen.width) * 100}%`);
      frame.style.display = end - begin > 0.01 ? "" : "none";
    }
  });
}
