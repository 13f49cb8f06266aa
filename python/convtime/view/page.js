"use strict";
// The page of a report: sorts and filters its tables, and draws its figures when they come into view.
// Text of users is only ever set as text. Without this script, the page still shows every table.
(() => {
  // Units that differ within a column.
  const SCALES = {
    ...{ ms: 1e-3, µs: 1e-6, ns: 1e-9, mJ: 1e-3, µJ: 1e-6 },
    ...{ kB: 1e3, MB: 1e6, GB: 1e9, TB: 1e12, KiB: 2 ** 10, MiB: 2 ** 20, GiB: 2 ** 30, TiB: 2 ** 40 },
  };
  const NUMBER = /^([+-]?[\d,]*\.?\d+(?:e[+-]?\d+)?) ?([a-zA-Zµ]*)/;
  const FILTERED_FROM = 8; // rows

  function element(name, attributes = {}, ...children) {
    const made = document.createElement(name);
    for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
    made.append(...children);
    return made;
  }

  // --- Tables -------------------------------------------------------------------------------------

  /** The number that a cell begins with, in its base unit; NaN for other text. */
  function numberOf(text) {
    const found = NUMBER.exec(text.replace("−", "-"));
    if (!found) return NaN;
    const [, digits, unit] = found;
    return Number(digits.replaceAll(",", "")) * (SCALES[unit] ?? 1);
  }

  /** Sort the rows by a column; rows whose cell is empty or no number among numbers are last. */
  function sort(rows, column, isDescending) {
    const keyed = rows.map((row) => {
      const text = row.cells[column].textContent.trim();
      return { row, text, number: numberOf(text) };
    });
    const areNumbers = keyed.filter((each) => !isNaN(each.number)).length > keyed.length / 2;
    const sign = isDescending ? -1 : 1;
    const { compare } = new Intl.Collator("en", { numeric: true });
    keyed.sort((one, other) => {
      if (!areNumbers) return sign * compare(one.text, other.text);
      if (isNaN(one.number) || isNaN(other.number)) return isNaN(one.number) - isNaN(other.number);
      return sign * (one.number - other.number);
    });
    return keyed.map((each) => each.row);
  }

  function makeSortable(table, rows) {
    const headers = [...table.tHead.rows[0].cells];
    headers.forEach((header, column) => {
      const button = element("button", { type: "button" }, ...header.childNodes);
      if (!button.textContent) button.setAttribute("aria-label", `column ${column + 1}`);
      button.addEventListener("click", () => {
        const isDescending = header.getAttribute("aria-sort") === "ascending";
        for (const each of headers) each.removeAttribute("aria-sort");
        header.setAttribute("aria-sort", isDescending ? "descending" : "ascending");
        const sorted = sort(rows, column, isDescending);
        table.tBodies[0].append(...sorted.flatMap((row) => [row, ...(opened.get(row) ?? [])]));
      });
      header.append(button);
    });
  }

  let filters = 0;

  function makeFilterable(table, rows) {
    const texts = rows.map((row) => [...row.cells].map((cell) => cell.textContent).join("\n").toLowerCase());
    const told = element("output", { role: "status" }, `${rows.length.toLocaleString("en")} rows`);
    const input = element("input", { type: "search", id: `filter-${++filters}`, autocomplete: "off" });
    const label = element("label", { for: input.id }, "Filter rows");
    input.addEventListener("input", () => {
      const wanted = input.value.toLowerCase();
      let shown = 0;
      rows.forEach((row, place) => {
        const fits = texts[place].includes(wanted);
        for (const each of [row, ...(opened.get(row) ?? [])]) each.hidden = !fits;
        shown += fits;
      });
      told.textContent = `${shown.toLocaleString("en")} of ${rows.length.toLocaleString("en")} rows`;
    });
    table.parentElement.before(element("div", { class: "filter" }, element("span", {}, label, input), told));
  }

  const opened = new Map(); // rows with their figures below them

  /** Let the first cell of a row open the row's figures. */
  function makeOpenable(row) {
    const button = element("button", { type: "button", "aria-expanded": "false" }, ...row.cells[0].childNodes);
    button.addEventListener("click", () => {
      const below = opened.get(row);
      if (below) {
        below[0].remove();
        opened.delete(row);
      } else {
        const numbers = row.dataset.figures.split(" ");
        const cell = element("td", { colspan: row.cells.length });
        const figures = element("tr", {}, cell);
        opened.set(row, [figures]);
        row.after(figures);
        for (const number of numbers) draw(cell.appendChild(element("div", { "data-figure": number })));
      }
      button.setAttribute("aria-expanded", String(!below));
    });
    row.cells[0].append(button);
  }

  // --- Figures ------------------------------------------------------------------------------------

  let figures; // parsed when the first one is drawn

  /** Put the data back in place of its numbers. */
  function filled(part, values) {
    if (Array.isArray(part)) return part.map((each) => filled(each, values));
    if (part === null || typeof part !== "object") return part;
    const entries = Object.entries(part).map(([name, value]) =>
      name === "values" && typeof value === "number" ? [name, values[value]] : [name, filled(value, values)],
    );
    return Object.fromEntries(entries);
  }

  const tooltip = element("div", { id: "tooltip", hidden: "" });

  function showTooltip(handler, event, item, value) {
    tooltip.hidden = value == null || value === "";
    if (tooltip.hidden) return;
    const facts = typeof value === "object" ? Object.entries(value).map(([name, each]) => `${name}: ${each}`) : [value];
    tooltip.replaceChildren(...facts.map((fact) => element("div", {}, String(fact))));
    tooltip.style.left = `${Math.min(event.clientX + 12, innerWidth - tooltip.offsetWidth - 4)}px`;
    tooltip.style.top = `${Math.min(event.clientY + 12, innerHeight - tooltip.offsetHeight - 4)}px`;
  }

  async function draw(place) {
    figures ??= JSON.parse(document.getElementById("figures").textContent);
    const [title, key, description, view, values] = figures.figures[place.dataset.figure];
    const picture = element("div", { role: "img", "aria-label": description });
    const caption = element("figcaption", {}, element("strong", {}, title), key && ` (${key})`);
    place.replaceWith(element("figure", {}, caption, picture));
    const spec = { config: figures.config, ...filled(figures.views[view], values) };
    const options = { mode: "vega-lite", renderer: "svg", actions: false, ast: true, defaultStyle: false, tooltip: showTooltip };
    await vegaEmbed(picture, spec, options);
    // The picture is one image for screen readers.
    picture.setAttribute("role", "img");
    picture.setAttribute("aria-label", description);
  }

  // A figure that moves the page between press and release would take the click from a button below.
  let isPressed = false;

  const inView = new IntersectionObserver(
    (entries) => {
      for (const { isIntersecting, target } of entries) {
        if (!isIntersecting || isPressed) continue;
        inView.unobserve(target);
        draw(target);
      }
    },
    { rootMargin: "300px" },
  );

  function drawWhatIsInView() {
    inView.disconnect();
    document.querySelectorAll("[data-figure]").forEach((place) => inView.observe(place));
  }

  /** Note whether something that can be clicked is pressed: a scroll bar's release is not told. */
  function press({ target }) {
    isPressed = target.closest("a, button, input, summary") !== null;
  }

  function release() {
    if (!isPressed) return;
    // The click comes after this event.
    setTimeout(() => {
      isPressed = false;
      drawWhatIsInView();
    });
  }

  // --- Start --------------------------------------------------------------------------------------

  for (const table of document.querySelectorAll(".table > table")) {
    const rows = [...table.tBodies[0].rows];
    if (table.tHead) makeSortable(table, rows);
    if (rows.length >= FILTERED_FROM) makeFilterable(table, rows);
    rows.filter((row) => row.dataset.figures).forEach(makeOpenable);
  }
  document.body.append(tooltip);
  drawWhatIsInView();
  addEventListener("pointerdown", press, true);
  for (const end of ["pointerup", "pointercancel"]) addEventListener(end, release, true);
  addEventListener("beforeprint", () => document.querySelectorAll("[data-figure]").forEach(draw));
  document.documentElement.dataset.ready = "";
})();
