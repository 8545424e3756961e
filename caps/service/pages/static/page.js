// What pages need beyond HTML: a question before what cannot be undone, no second sending of the same form, and tables
// that can be read on a telephone.
"use strict";

document.addEventListener("submit", (event) => {
  const form = event.target;
  const button = event.submitter;
  const question = button && button.dataset.confirm;
  if (question && !window.confirm(question)) {
    event.preventDefault();
    return;
  }
  if (form.hasAttribute("data-once")) {
    if (form.dataset.sent) {
      event.preventDefault();
      return;
    }
    form.dataset.sent = "yes";
    form.setAttribute("aria-busy", "true");
  }
});

// A page that the browser kept and shows again (the back button) may be sent again.
window.addEventListener("pageshow", (event) => {
  if (event.persisted) {
    window.location.reload();
  }
});

// On a narrow screen a table's rows are shown one below the other (style.css), each cell with the title of its column.
const named = () => {
  for (const table of document.querySelectorAll("main table:has(thead):not(.cells, .numbers table)")) {
    const titles = [...table.tHead.rows[0].cells].map((cell) => cell.textContent.trim());
    for (const row of table.tBodies[0] ? table.tBodies[0].rows : []) {
      [...row.cells].forEach((cell, place) => { cell.dataset.title = titles[place] || ""; });
    }
    table.classList.add("stacks");
  }
};
named();
for (const swapped of ["htmx:afterSettle", "shown"]) {
  document.addEventListener(swapped, named);
}
