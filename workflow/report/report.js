"use strict";
// Claims are filtered by paper, verdict and words, long tables begin closed, figures open in a dialog.
// Without this the page shows all of it.
const form = document.getElementById("filter");
const said = document.getElementById("said");
const sheets = Array.from(document.querySelectorAll(".sheet"));
const claims = Array.from(document.querySelectorAll("tr[data-verdict]"));
const MANY = Number(form.dataset.many);

const chosen = (name) => {
  const boxes = Array.from(form.elements[name].length ? form.elements[name] : [form.elements[name]]);
  return { all: boxes.every((box) => box.checked), of: new Set(boxes.filter((box) => box.checked).map((box) => box.value)) };
};

// What the address names, if it is a part of the papers' sections.
const linked = () => {
  let name = location.hash.slice(1);
  try {
    name = decodeURIComponent(name);
  } catch {
    return null;
  }
  const part = name && document.getElementById(name);
  return part && part.closest("[data-paper]") ? part : null;
};

const tick = (name, value) => {
  for (const box of form.querySelectorAll(`[name="${name}"]`)) {
    if (value === undefined || box.value === value) box.checked = true;
  }
};

// A heading stands with what follows it up to the next one.
const headings = (part) => {
  for (const heading of part.querySelectorAll("h3")) {
    let shown = false;
    for (let at = heading.nextElementSibling; at && at.tagName !== "H3"; at = at.nextElementSibling) {
      shown ||= !at.hidden;
    }
    heading.hidden = !shown;
  }
};

const words = () => form.elements.words.value.trim().toLowerCase();
const everything = () => chosen("verdict").all && words() === "";

const filter = () => {
  const papers = chosen("paper");
  const verdicts = chosen("verdict");
  const wanted = words();
  const all = everything();
  const kept = linked();
  for (const sheet of sheets) {
    const rows = Array.from(sheet.querySelectorAll("tbody tr"));
    let shown = 0;
    for (const row of rows) {
      const fits = verdicts.all || verdicts.of.has(row.dataset.verdict);
      row.hidden = row !== kept && !(fits && row.textContent.toLowerCase().includes(wanted));
      shown += !row.hidden;
    }
    sheet.hidden = shown === 0;
    sheet.querySelector(".found").textContent = all ? "" : `(${shown} shown)`;
  }
  // Figures have no verdict.
  for (const figure of document.querySelectorAll("figure")) figure.hidden = !all;
  for (const part of document.querySelectorAll("[data-paper]")) {
    const some = all || part.querySelector("tr[data-verdict]:not([hidden])");
    part.hidden = !papers.of.has(part.dataset.paper) || !some;
    headings(part);
  }
  const shown = claims.filter((row) => !row.hidden && !row.closest("[data-paper]").hidden).length;
  said.textContent = shown === 0 ? "No claim matches" : `${shown.toLocaleString("en")} of ${claims.length.toLocaleString("en")} claims shown`;
};

// A link leads somewhere whatever was filtered out or closed.
const show = () => {
  const part = linked();
  if (part === null) return;
  tick("paper", part.closest("[data-paper]").dataset.paper);
  filter();
  if (part.closest("[hidden]")) {
    tick("verdict");
    form.elements.words.value = "";
    filter();
  }
  const sheet = part.closest(".sheet");
  if (sheet) sheet.open = true;
  if (part.matches("tr[data-verdict]")) {
    part.tabIndex = -1;
    part.focus({ preventScroll: true });
    part.scrollIntoView({ block: "center" });
  } else {
    part.scrollIntoView();
  }
};

const enlarge = () => {
  const dialog = document.getElementById("zoom");
  const large = document.createElement("img");
  dialog.querySelector(".scroll").append(large);
  dialog.querySelector("button").addEventListener("click", () => dialog.close());
  dialog.addEventListener("click", (event) => event.target === dialog && dialog.close());
  for (const image of document.querySelectorAll(".picture img")) {
    const title = image.closest("figure").querySelector("h4").textContent;
    const button = document.createElement("button");
    button.type = "button";
    button.setAttribute("aria-haspopup", "dialog");
    image.replaceWith(button);
    button.append(image);
    const words = document.createElement("span");
    words.className = "unseen";
    words.textContent = ". Enlarge";
    button.append(words);
    button.addEventListener("click", () => {
      large.src = image.src;
      large.alt = image.alt;
      document.getElementById("zoom-title").textContent = title;
      dialog.showModal();
    });
  }
};

sheets.forEach((sheet, number) => {
  sheet.open = sheet.querySelectorAll("tbody tr").length <= MANY || (MANY === 0 && number === 0);
});
form.hidden = false;
form.addEventListener("submit", (event) => event.preventDefault());
form.addEventListener("input", () => {
  filter();
  // What is left of a choice is there to be read.
  if (!everything()) for (const sheet of sheets) sheet.open ||= !sheet.hidden;
});
form.addEventListener("reset", () => setTimeout(filter));
for (const button of form.querySelectorAll("[data-open]")) {
  button.addEventListener("click", () => {
    for (const sheet of sheets) sheet.open = button.dataset.open !== "";
  });
}
if (document.getElementById("zoom")) enlarge();
filter();
show();
addEventListener("hashchange", show);
// A link to where the address already is changes no address.
document.addEventListener("click", (event) => {
  const link = event.target.closest('a[href^="#"]');
  if (link && link.hash === location.hash) show();
});
