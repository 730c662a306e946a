"use strict";
// Shows the page's figures: in its colours, at its width, and with the arms and axes that a reader
// chooses. The figures themselves are in the page's data.
(() => {
  const data = JSON.parse(document.getElementById("data").textContent);
  const NARROW = window.matchMedia("(max-width: 40rem)");
  const DARK = window.matchMedia("(prefers-color-scheme: dark)");
  const hidden = new Set();
  const choice = { axis: "step", measure: data.first, start: false };

  const style = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
  // A copy, in which each variable of the style sheet is the colour that it has now.
  const coloured = (value, key = "") => {
    if (typeof value === "string") {
      const variable = key.toLowerCase().endsWith("color") && value.match(/^var\((.+)\)$/);
      return variable ? style(variable[1]) : value;
    }
    if (Array.isArray(value)) return value.map((item) => coloured(item));
    if (value === null || typeof value !== "object") return value;
    return Object.fromEntries(Object.entries(value).map(([k, item]) => [k, coloured(item, k)]));
  };

  // Of Plotly's buttons only those that keep the reader's data here. Where there is no room they
  // would cover the drawing; a swipe then scrolls the page. A forest plot has no need of them.
  const config = (kind) => ({
    displayModeBar: !NARROW.matches && kind !== "forest" && kind !== "ratios" && "hover",
    modeBarButtons: [["zoom2d", "pan2d", "resetScale2d", "toImage"]], displaylogo: false,
  });
  const show = ({ kind, of, plot }) => {
    const chart = data.charts[kind][kind === "curves" ? choice.measure : of];
    const traces = coloured(chart.data), layout = coloured(NARROW.matches ? chart.narrow : chart.layout);
    Object.assign(layout, {
      width: plot.clientWidth, dragmode: NARROW.matches ? false : "zoom",
      uirevision: "same", // what a reader zoomed into stays when colours or widths change
    });
    layout.font = { family: getComputedStyle(document.body).fontFamily };
    traces.forEach((trace) => { if (trace.meta) trace.visible = !hidden.has(trace.meta.arm); });
    if (kind === "curves") choose(chart, traces, layout);
    // Plotly takes a new config at the first drawing only.
    const buttons = config(kind);
    if (plot.buttons !== undefined && plot.buttons !== buttons.displayModeBar) Plotly.purge(plot);
    plot.buttons = buttons.displayModeBar;
    // Plotly's own resizing forgets the height that it is given, and what it draws in between.
    return Plotly.react(plot, traces, layout, buttons);
  };

  function choose(chart, traces, layout) {
    const { axis, measure, start } = choice;
    // Many bands on each other would hide the means: the more arms, the fainter.
    const faint = Math.min(1, 4 / Math.max(1, data.arms.length - hidden.size));
    traces.forEach((trace, i) => {
      if (axis in chart.xs) trace.x = chart.xs[axis][i];
      if (trace.meta.fades) trace.opacity *= faint;
    });
    layout.uirevision = `${axis} ${measure} ${start}`;
    layout.xaxis.title.text = data.axes[axis].title;
    const late = traces.filter((trace) => trace.visible).map((trace) => trace.meta.late?.[axis]).filter(Boolean);
    const low = Math.min(...late.flat()), high = Math.max(...late.flat());
    const room = 0.06 * (high - low) || 0.1;
    // One value alone makes no range.
    if (!start && (low < high || late.length > 1)) layout.yaxis.range = [low - room, high + room];
  }

  const figures = [...document.querySelectorAll(".chart")].map((figure) => ({
    kind: figure.dataset.chart, of: figure.dataset.of, plot: figure.querySelector(".plot"), controls: figure.querySelector(".controls"),
  }));
  const redraw = () => figures.forEach(show);

  function element(tag, properties, ...children) {
    const made = Object.assign(document.createElement(tag), properties);
    made.append(...children);
    return made;
  }

  function radios(title, name, options) {
    const box = element("fieldset", {}, element("legend", { textContent: title }));
    for (const [key, { label }] of Object.entries(options)) {
      const input = element("input", { type: "radio", name, value: key, checked: choice[name] === key });
      input.addEventListener("change", () => { choice[name] = key; redraw(); });
      box.append(element("label", {}, input, label));
    }
    return box;
  }

  function swatch(look) {
    const dashes = { solid: "none", dash: "6 3", dot: "2 3" }[look.dash];
    const box = element("span", { ariaHidden: "true" });
    box.innerHTML = `<svg width="34" height="14" style="color:var(--${look.variable})"><line x1="0" x2="34" y1="7" y2="7" ` +
      `stroke="currentColor" stroke-width="2.4" stroke-dasharray="${dashes}"/><text x="17" y="11.5" ` +
      `text-anchor="middle" font-size="12" fill="currentColor">${look.sign}</text></svg>`;
    return box.firstChild;
  }

  function legend() {
    const box = element("fieldset", { className: "arms" }, element("legend", { textContent: "Arms" }));
    const set = (change) => { change(); press(); redraw(); };
    data.arms.forEach((arm, i) => {
      const button = element("button", { type: "button" }, swatch(arm), element("bdi", { textContent: arm.name }));
      button.dataset.arm = i;
      button.addEventListener("click", () => set(() => hidden.has(i) ? hidden.delete(i) : hidden.add(i)));
      box.append(button);
    });
    const all = element("button", { type: "button", textContent: "all" });
    all.addEventListener("click", () => set(() => hidden.clear()));
    const none = element("button", { type: "button", textContent: "none" });
    none.addEventListener("click", () => set(() => data.arms.forEach((_, i) => hidden.add(i))));
    box.append(all, none);
    return box;
  }

  function press() {
    for (const button of document.querySelectorAll("button[data-arm]"))
      button.setAttribute("aria-pressed", String(!hidden.has(Number(button.dataset.arm))));
  }

  for (const { kind, controls } of figures) {
    if (kind === "curves") {
      const input = element("input", { type: "checkbox" });
      input.addEventListener("change", () => { choice.start = input.checked; redraw(); });
      controls.append(radios("Over", "axis", data.axes), radios("Show", "measure", data.measures),
        element("fieldset", {}, element("label", {}, input, "from the first step")));
    }
    if (kind === "curves" || kind === "scores") controls.append(legend());
  }
  press();
  redraw();
  DARK.addEventListener("change", redraw);
  let waiting;
  window.addEventListener("resize", () => {
    clearTimeout(waiting);
    waiting = setTimeout(redraw, 60);
  });
  // Paper is white: the style sheet's dark colours are for screens alone.
  window.matchMedia("print").addEventListener("change", redraw);
  window.addEventListener("beforeprint", () => document.querySelectorAll("details").forEach((box) => { box.open = true; }));
})();
