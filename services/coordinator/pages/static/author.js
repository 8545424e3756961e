// A file that is chosen becomes the text of a field, which is sent with its form. Nothing is read but that file.
"use strict";

(() => {
  const reveal = () => document.querySelectorAll("[data-script]").forEach((one) => { one.hidden = false; });

  async function read(input) {
    const into = document.getElementById(input.dataset.into);
    const words = document.getElementById(`${input.id}-words`);
    const most = Number(input.dataset.most);
    const texts = [];
    for (const file of input.files) {
      if (file.size > most) {
        words.textContent = `${file.name} is longer than ${Math.floor(most / 1e6)} MB: that is no code book and no card.`;
        return;
      }
      try {
        texts.push(new TextDecoder("utf-8", { fatal: true }).decode(await file.arrayBuffer()));
      } catch {
        words.textContent = `${file.name} is not text in UTF-8.`;
        return;
      }
    }
    into.value = texts.join("\n");
    words.textContent = "Read. Look at it below, then add it.";
  }

  document.addEventListener("change", (event) => {
    if (event.target instanceof HTMLInputElement && event.target.dataset.into) {
      read(event.target);
    }
  });
  document.addEventListener("DOMContentLoaded", reveal);
  document.addEventListener("htmx:afterSettle", reveal);
  reveal();
})();
