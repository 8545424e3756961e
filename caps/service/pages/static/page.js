// What forms need beyond HTML: a question before what cannot be undone, and no second sending of the same form.
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
