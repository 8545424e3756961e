// The slider over rounds: shows the lines that were there after a round, and says what it measured.
"use strict";

(() => {
  const slider = document.getElementById("round");
  if (!slider) {
    return;
  }
  const shown = document.getElementById("round-shown");
  const words = document.getElementById("round-words");
  const edges = document.querySelectorAll("#graph [data-round]");
  const rows = document.querySelectorAll("#rounds [data-round]");

  function show() {
    const now = Number(slider.value);
    edges.forEach((edge) => {
      const round = Number(edge.dataset.round);
      edge.classList.toggle("later", round > now);
      edge.classList.toggle("newest", round === now && now > 0);
    });
    const row = Array.from(rows).find((one) => Number(one.dataset.round) === now);
    shown.textContent = `${now} of ${slider.max}`;
    words.textContent = row ? `${now ? `Round ${now}` : "Before the first round"}: ${row.cells[1].textContent}` : "";
  }

  slider.addEventListener("input", show);
  show();
})();
