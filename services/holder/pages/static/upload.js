// A file that is dropped or chosen goes to the holder as it is, with progress; what it answers is shown in the page.
"use strict";

(() => {
  const shown = (bytes) => (bytes < 1e6 ? `${Math.ceil(bytes / 1e3)} KB` : `${(bytes / 1e6).toFixed(1)} MB`);

  function send(box, file) {
    const result = document.querySelector(box.dataset.result);
    const bar = box.querySelector("progress");
    const words = box.querySelector("[data-words]");
    const most = Number(box.dataset.most);
    if (box.dataset.busy) {
      return;
    }
    bar.hidden = false;
    bar.value = 0;
    if (file.size > most) {
      bar.hidden = true;
      words.textContent = `${file.name} has ${shown(file.size)}; this holder takes files of up to ${shown(most)}.`;
      return;
    }
    const where = new URL(box.dataset.to, window.location.href);
    for (const field of document.querySelectorAll(box.dataset.fields || "[data-none]")) {
      where.searchParams.set(field.name, field.type === "checkbox" ? String(field.checked) : field.value);
    }
    const request = new XMLHttpRequest();
    request.open("PUT", where);
    const headers = JSON.parse(document.body.getAttribute("hx-headers"));
    for (const [name, value] of Object.entries(headers)) {
      request.setRequestHeader(name, value);
    }
    request.setRequestHeader("HX-Request", "true");
    request.setRequestHeader("HX-Current-URL", window.location.href);
    request.setRequestHeader("Content-Type", "application/octet-stream");
    request.upload.addEventListener("progress", (event) => {
      if (event.lengthComputable) {
        bar.value = event.loaded / event.total;
        words.textContent = event.loaded < event.total
          ? `Sending ${file.name}: ${shown(event.loaded)} of ${shown(event.total)}`
          : `Checking ${file.name} …`;
      }
    });
    const ended = (text) => {
      delete box.dataset.busy;
      bar.hidden = true;
      words.textContent = text;
    };
    request.addEventListener("load", () => {
      const elsewhere = request.getResponseHeader("HX-Redirect");
      if (elsewhere) {
        window.location.assign(elsewhere);
        return;
      }
      if (request.getResponseHeader("HX-Refresh")) {
        window.location.reload();
        return;
      }
      ended(`${file.name}, ${shown(file.size)}`);
      result.innerHTML = request.responseText;
      window.htmx.process(result);
      result.dispatchEvent(new Event("shown", { bubbles: true }));
      result.focus();
    });
    request.addEventListener("error", () => ended(`${file.name} was not sent: the holder does not answer, or refused it midway.`));
    request.addEventListener("abort", () => ended("Nothing was sent."));
    box.dataset.busy = "yes";
    words.textContent = `Sending ${file.name}`;
    request.send(file);
  }

  function prepare(box) {
    const input = box.querySelector("input[type=file]");
    input.addEventListener("change", () => {
      if (input.files.length) {
        send(box, input.files[0]);
        input.value = "";
      }
    });
    box.addEventListener("dragover", (event) => {
      event.preventDefault();
      box.classList.add("over");
    });
    box.addEventListener("dragleave", () => box.classList.remove("over"));
    box.addEventListener("drop", (event) => {
      event.preventDefault();
      box.classList.remove("over");
      if (event.dataTransfer.files.length) {
        send(box, event.dataTransfer.files[0]);
      }
    });
    box.dataset.ready = "yes";
  }

  document.querySelectorAll("[data-to]").forEach(prepare);
})();
