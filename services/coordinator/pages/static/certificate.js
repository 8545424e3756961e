// Verifies a release's certificate in the browser: who signed what, with the keys on the page. `caps verify` checks more.
"use strict";

(() => {
  const box = document.getElementById("certificate");
  const verdict = document.getElementById("verdict");
  if (!box || !verdict) {
    return;
  }
  const OWN = new Set(["server", "ledger", "at"]); // what may differ between the servers' attestations
  const text = new TextEncoder();

  class Fails extends Error {}

  // RFC 8785: members in the order of their UTF-16 code units; numbers and strings as ECMAScript writes them.
  function canonical(value) {
    if (Array.isArray(value)) {
      return `[${value.map(canonical).join(",")}]`;
    }
    if (value !== null && typeof value === "object") {
      return `{${Object.keys(value).sort().map((name) => `${JSON.stringify(name)}:${canonical(value[name])}`).join(",")}}`;
    }
    return JSON.stringify(value);
  }

  function bytes(hex) {
    if (typeof hex !== "string" || !/^([0-9a-f]{2})+$/.test(hex)) {
      throw new Fails("a signature or a key is not in hexadecimal");
    }
    return Uint8Array.from(hex.match(/../g), (pair) => parseInt(pair, 16));
  }

  async function sha256(data) {
    const digest = new Uint8Array(await crypto.subtle.digest("SHA-256", data));
    return Array.from(digest, (byte) => byte.toString(16).padStart(2, "0")).join("");
  }

  function must(condition, words) {
    if (!condition) {
      throw new Fails(words);
    }
  }

  const parties = new Map(
    Array.from(box.querySelectorAll("[data-party]"), (row) => [row.dataset.party, { role: row.dataset.role, key: row.dataset.key }]),
  );

  async function signed(one, kind, role) {
    const party = parties.get(one.signer);
    must(party && party.role === role, `the ${kind} of ${one.signer} is signed by no ${role} of this study`);
    const key = await crypto.subtle.importKey("raw", bytes(party.key), { name: "Ed25519" }, false, ["verify"]);
    const told = text.encode(canonical({ type: `caps/v1/${kind}`, document: one.document }));
    const holds = await crypto.subtle.verify({ name: "Ed25519" }, key, bytes(one.signature), told);
    must(holds, `the ${kind} of ${one.signer} does not have a valid signature of ${one.signer}'s key`);
  }

  const named = (role) => Array.from(parties).filter(([, party]) => party.role === role).map(([name]) => name);

  const CHECKS = [
    ["the document is in canonical form, so that everybody reads the same", async (given) => {
      must(canonical(given.certificate) === given.text, "the certificate is not in canonical form");
    }],
    ["all its documents are about this study, which is the digest of the agreement", async ({ certificate }) => {
      const study = await sha256(text.encode(canonical({ type: "caps/v1/manifest", ...certificate.manifest })));
      must(study === box.dataset.study, "the agreement in the certificate is not this study's: it was changed");
      const documents = [...certificate.approvals, ...certificate.attestations, certificate.release];
      must(documents.every((one) => one.document.study === study), "a signed document is about another study");
    }],
    ["the agreement names the keys that are shown here", async ({ certificate }) => {
      const { servers, holders, coordinator } = certificate.manifest;
      const listed = [...servers.map((one) => [one, "server"]), ...holders.map((one) => [one, "holder"]), [coordinator, "coordinator"]];
      must(listed.length === parties.size, "the agreement has other parties than are shown here");
      for (const [one, role] of listed) {
        const shown = parties.get(one.name);
        must(shown && shown.role === role && shown.key === one.signing_key, `the key of ${one.name} is not the one shown here`);
      }
    }],
    ["every server, and every holder whose data were used, signed its approval", async ({ certificate }) => {
      for (const one of certificate.approvals) {
        await signed(one, "approval", one.document.role === "holder" ? "holder" : "server");
      }
      const approved = new Set(certificate.approvals.map((one) => one.signer));
      const used = certificate.attestations.flatMap((one) => [...one.document.holders, ...(one.document.refused || [])]);
      for (const name of [...named("server"), ...used]) {
        must(approved.has(name), `there is no approval of ${name}`);
      }
    }],
    ["every server signed its own attestation of the run", async ({ certificate }) => {
      const signers = certificate.attestations.map((one) => one.signer);
      must(canonical(signers) === canonical(named("server")), "the attestations are not one of each server");
      for (const one of certificate.attestations) {
        await signed(one, "attestation", "server");
        must(one.document.server === one.signer, `the attestation of ${one.signer} names another server`);
      }
    }],
    ["all servers attest the same inputs, answers and privacy statement", async ({ certificate }) => {
      const common = (one) => canonical(Object.fromEntries(Object.entries(one.document).filter(([name]) => !OWN.has(name))));
      must(new Set(certificate.attestations.map(common)).size === 1, "the servers attest different things");
    }],
    ["the coordinator signed the digests of all files, and they are of the run that the servers attest", async ({ certificate }) => {
      const release = certificate.release;
      await signed(release, "release", "coordinator");
      const attested = certificate.attestations[0].document;
      must(release.document.run === box.dataset.run && attested.run === box.dataset.run, "the certificate is of another run");
      must(release.document.transcript === attested.transcript, "the release is not made from the answers that the servers attest");
    }],
    ["epsilon, delta and the number of rows are those shown here", async ({ certificate }) => {
      const { privacy } = certificate.manifest;
      const same = privacy.epsilon === box.dataset.epsilon && privacy.delta === box.dataset.delta;
      must(same && String(certificate.release.document.rows) === box.dataset.rows, "this page shows other numbers than the certificate");
    }],
  ];

  function element(name, words, kind) {
    const made = document.createElement(name);
    made.textContent = words;
    if (kind) {
      made.className = kind;
    }
    return made;
  }

  function tell(kind, title, passed, failure) {
    verdict.className = `notice ${kind}`;
    const list = element("ul", "");
    passed.forEach((words) => list.append(element("li", `✓ ${words}`)));
    if (failure) {
      list.append(element("li", `✗ ${failure}`));
    }
    verdict.replaceChildren(element("p", title, "notice-title"), list);
    verdict.dataset.verdict = kind;
  }

  async function supported() {
    try {
      await crypto.subtle.importKey("raw", new Uint8Array(32), { name: "Ed25519" }, false, ["verify"]);
      return true;
    } catch (error) {
      return error.name !== "NotSupportedError" && error.name !== "TypeError";
    }
  }

  async function check() {
    if (!window.crypto || !crypto.subtle || !(await supported())) {
      tell("warn", "This browser cannot check signatures: it has no Ed25519. Nothing was checked. Use a newer one, or caps verify.", []);
      return null;
    }
    const passed = [];
    try {
      const answer = await fetch(box.dataset.certificate, { cache: "no-store" });
      must(answer.ok, `the certificate could not be fetched (status ${answer.status})`);
      const given = { text: await answer.text() };
      try {
        given.certificate = JSON.parse(given.text);
      } catch {
        throw new Fails("the certificate is not JSON");
      }
      for (const [words, run] of CHECKS) {
        await run(given);
        passed.push(words);
      }
      tell("good", "Checked in your browser: this is what the parties signed.", passed);
      return given.certificate;
    } catch (error) {
      const words = error instanceof Fails ? error.message : "the certificate does not have the form of one";
      tell("bad", "Do not trust this release: its certificate is not what the parties signed.", passed, words);
      return null;
    }
  }

  const checked = check();

  const chosen = document.getElementById("own-file");
  const found = document.getElementById("own-file-found");
  chosen?.addEventListener("change", async () => {
    const certificate = await checked;
    const file = chosen.files[0];
    if (!file || !certificate) {
      found.textContent = file ? "The certificate did not pass, so nothing can be compared with it." : "";
      return;
    }
    const digest = await sha256(await file.arrayBuffer());
    const match = Object.entries(certificate.release.document.files).find(([, one]) => one === digest);
    found.textContent = match
      ? `✓ This file is ${match[0]} of this release, byte for byte.`
      : "✗ This file is none of this release's: it was changed, or it is of another release or sample.";
  });
})();
