"use strict";
(() => {
  const all = (query, within = document) => [...within.querySelectorAll(query)];
  const byId = (id) => document.getElementById(id);

  // Light or dark: as the system has it until the button is pressed.
  const root = document.documentElement, theme = byId("theme");
  const system = matchMedia("(prefers-color-scheme: dark)");
  const isDark = () => (root.dataset.theme ? root.dataset.theme === "dark" : system.matches);
  const showTheme = () => theme.setAttribute("aria-pressed", String(isDark()));
  theme.hidden = false;
  theme.addEventListener("click", () => { root.dataset.theme = isDark() ? "light" : "dark"; showTheme(); });
  system.addEventListener("change", showTheme);
  showTheme();

  // Tables: sorted by a header, searched by name and words, shown by kind.
  const collator = new Intl.Collator(undefined, { numeric: true, sensitivity: "base" });
  const number = (text) => (text === "inf" ? Infinity : text === "-inf" ? -Infinity : text === "" ? NaN : Number(text));
  const absent = (text) => text === "" || text === "-";
  function sort(table, column, down) {
    const body = table.tBodies[0];
    const rows = [...body.rows].map((row) => {
      const text = row.cells[column].textContent.trim();
      return { row, text, value: number(text) };
    });
    const numeric = rows.every((r) => absent(r.text) || !Number.isNaN(r.value));
    rows.sort((a, b) => {
      if (absent(a.text) || absent(b.text)) return absent(a.text) - absent(b.text);
      const order = numeric ? (a.value > b.value) - (a.value < b.value) : collator.compare(a.text, b.text);
      return down ? -order : order;
    });
    body.append(...rows.map((r) => r.row));
  }
  for (const table of all("table.clients")) {
    const heads = [...table.tHead.rows[0].cells];
    heads.forEach((head, column) => head.querySelector("button").addEventListener("click", () => {
      const down = head.getAttribute("aria-sort") === "ascending";
      for (const other of heads) other.setAttribute("aria-sort", "none");
      head.setAttribute("aria-sort", down ? "descending" : "ascending");
      sort(table, column, down);
    }));
  }
  for (const tools of all(".tools")) {
    const key = tools.dataset.for, table = byId(`${key}-table`);
    const search = byId(`${key}-search`), show = byId(`${key}-show`), count = byId(`${key}-count`);
    tools.hidden = false;
    const words = new Map([...table.tBodies[0].rows].map((row) =>
      [row, all("th, td.t", row).map((cell) => cell.textContent.toLowerCase()).join("\n")]));
    const filter = () => {
      const wanted = search.value.trim().toLowerCase();
      let n = 0;
      for (const [row, text] of words) {
        row.hidden = !(text.includes(wanted) && (!show.value || row.classList.contains(show.value)));
        n += !row.hidden;
      }
      count.textContent = n === words.size ? `${n} rows` : `${n} of ${words.size} rows`;
    };
    search.addEventListener("input", filter);
    show.addEventListener("change", filter);
    filter();
    table.addEventListener("reveal", () => { search.value = ""; show.value = ""; filter(); });
  }

  // Marks say what they are when they are pointed at, or when arrow keys come to them.
  const tip = byId("tip");
  const edges = new Map();
  for (const data of all('script[type="application/json"]')) {
    const figure = byId(data.id.replace(/-edges$/, ""));
    const strokes = all("path.edge:not(.hears):not(.heard)", figure)
      .flatMap((path) => path.getAttribute("d").split("M").filter(Boolean).map((d) => `M${d}`));
    const mutual = all("path.edge", figure)[0].getAttribute("d").split("M").length - 1;
    edges.set(figure, { ends: JSON.parse(data.textContent), strokes, mutual });
  }
  function showEdges(mark) {
    const figure = mark.closest("figure"), found = edges.get(figure);
    if (!found) return;
    const client = Number(mark.dataset.c), hears = [], heard = [];
    found.strokes.forEach((stroke, k) => {
      const [from, to] = [found.ends[2 * k], found.ends[2 * k + 1]];
      if (to === client || (from === client && k < found.mutual)) hears.push(stroke);
      else if (from === client) heard.push(stroke);
    });
    figure.querySelector(".hears").setAttribute("d", hears.join(""));
    figure.querySelector(".heard").setAttribute("d", heard.join(""));
  }
  function clear() {
    tip.hidden = true;
    for (const mark of all(".on")) mark.classList.remove("on");
    for (const path of all(".edge.hears, .edge.heard")) path.setAttribute("d", "");
  }
  function tell(mark, x, y) {
    clear();
    mark.classList.add("on");
    if (mark.dataset.c !== undefined) {
      for (const same of all(`[data-c="${mark.dataset.c}"]`)) same.classList.add("on");
      byId(`client-${mark.dataset.c}`)?.classList.add("on");
      showEdges(mark);
    }
    tip.textContent = mark.dataset.t;
    tip.hidden = false;
    const box = tip.getBoundingClientRect();
    tip.style.left = `${Math.max(4, Math.min(x + 14, innerWidth - box.width - 8))}px`;
    tip.style.top = `${y + box.height + 26 > innerHeight ? y - box.height - 12 : y + 16}px`;
  }
  // A page that scrolls under a pointer at rest must not hide what the keyboard asked for.
  let pointed = false;
  function tellThere(mark) {
    const box = mark.getBoundingClientRect();
    pointed = false;
    tell(mark, box.right - 6, box.bottom - 6);
  }
  function toRow(mark) {
    const row = mark.dataset.c === undefined ? null : byId(`client-${mark.dataset.c}`);
    if (!row) return;
    if (row.hidden) row.closest("table").dispatchEvent(new Event("reveal"));
    row.tabIndex = -1;
    row.focus({ preventScroll: true });
    row.scrollIntoView({ block: "center" });
  }
  for (const drawing of all("figure .frame > svg")) {
    const marks = all("[data-t]", drawing);
    let at = -1;
    drawing.addEventListener("pointerover", (event) => {
      if (event.target.dataset.t === undefined) return;
      at = marks.indexOf(event.target);
      pointed = true;
      tell(event.target, event.clientX, event.clientY);
    });
    drawing.addEventListener("pointerout", (event) => { if (pointed && event.target.dataset.t !== undefined) clear(); });
    drawing.addEventListener("click", (event) => { if (event.target.dataset.t !== undefined) toRow(event.target); });
    drawing.addEventListener("blur", clear);
    drawing.addEventListener("keydown", (event) => {
      const step = { ArrowRight: 1, ArrowDown: 1, ArrowLeft: -1, ArrowUp: -1 }[event.key];
      if (step && marks.length) {
        at = at < 0 && step < 0 ? marks.length - 1 : (at + step + marks.length) % marks.length;
        tellThere(marks[at]);
        event.preventDefault();
      } else if (event.key === "Enter" && at >= 0) toRow(marks[at]);
      else if (event.key === "Escape") clear();
    });
  }
  document.addEventListener("keydown", (event) => { if (event.key === "Escape") clear(); });
  for (const row of all("table.clients tbody tr")) {
    const marks = () => all(`[data-c="${row.id.replace(/^client-/, "")}"]`);
    row.addEventListener("pointerenter", () => { for (const mark of marks()) mark.classList.add("on"); });
    row.addEventListener("pointerleave", () => { for (const mark of marks()) mark.classList.remove("on"); });
  }
  // On paper everything is open.
  addEventListener("beforeprint", () => { for (const part of all("details")) part.open = true; });
})();
