// Findings: filter by words, copy a patch.
{
  const input = document.querySelector(".filter input");
  const findings = [...document.querySelectorAll(".finding")];
  input?.addEventListener("input", () => {
    const words = input.value.toLowerCase().split(/\s+/).filter(Boolean);
    let shown = 0;
    for (const finding of findings) {
      const text = `${finding.id} ${finding.textContent}`.toLowerCase();
      finding.hidden = !words.every((word) => text.includes(word));
      shown += !finding.hidden;
    }
    document.querySelector(".filter output").textContent = words.length ? `${shown} of ${findings.length}` : "";
  });

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
}
