"use strict";
// Draws the charts of a report from the page's own data, in the page's own colours.
(() => {
  const data = JSON.parse(document.getElementById("data").textContent);
  const SYMBOLS = ["circle", "square", "diamond", "triangle-up", "triangle-down", "cross", "x", "star"];
  const SIGNS = ["●", "■", "◆", "▲", "▼", "✚", "✖", "★"];
  const DASHES = ["solid", "dash", "dot"];
  const COLOURS = 6;
  const LATE = 0.3;
  const NARROW = window.matchMedia("(max-width: 40rem)");
  const DARK = window.matchMedia("(prefers-color-scheme: dark)");
  const hidden = new Set();
  const choice = { axis: "step", measure: data.curves?.first, start: false };

  // The reference is grey; the others take colours, then other dashes. Each has a sign besides.
  let coloured = 0;
  const looks = data.arms.map((arm, i) => {
    const k = arm.base ? 0 : coloured++;
    return {
      colour: arm.base ? "--arm-base" : `--arm-${k % COLOURS}`,
      dash: DASHES[Math.floor(k / COLOURS) % DASHES.length],
      symbol: SYMBOLS[i % SYMBOLS.length],
      sign: SIGNS[i % SIGNS.length],
    };
  });

  const style = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
  // Plotly reads some HTML and its own %{} in texts.
  const plain = (text) => text.replace(/&/g, "&amp;").replace(/</g, "&lt;").replace(/>/g, "&gt;")
    .replace(/%/g, "&#37;").replace(/\$/g, "&#36;").replace(/\s+/g, " ");
  const clear = (colour, alpha) => {
    const [r, g, b] = colour.match(/[0-9a-f]{2}/gi).map((pair) => parseInt(pair, 16));
    return `rgba(${r}, ${g}, ${b}, ${alpha})`;
  };
  const wrapped = (text, width) => {
    const lines = [""];
    for (const word of text.split(/\s+/).flatMap((w) => w.match(new RegExp(`.{1,${width}}`, "gu")) || [])) {
      const last = lines[lines.length - 1];
      if (last && last.length + word.length >= width) lines.push(word);
      else lines[lines.length - 1] = last ? `${last} ${word}` : word;
    }
    if (lines.length > 2) {
      lines.length = 2;
      lines[1] += " …";
    }
    return lines.map(plain).join("<br>");
  };

  const axis = (more) => ({
    gridcolor: style("--grid"), linecolor: style("--line"), zeroline: false, automargin: true,
    tickfont: { size: 12 }, ...more,
  });
  const layout = (more) => ({
    paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)", showlegend: false,
    font: { family: getComputedStyle(document.body).fontFamily, size: 13, color: style("--ink") },
    hoverlabel: { bgcolor: style("--raised"), bordercolor: style("--line"), font: { color: style("--ink") } },
    hovermode: "closest", dragmode: NARROW.matches ? false : "zoom",
    modebar: { bgcolor: "rgba(0,0,0,0)", color: style("--quiet"), activecolor: style("--ink") },
    margin: { l: 56, r: 16, t: 16, b: 48 },
    uirevision: "same", // what a reader zoomed into stays when colours or widths change
    ...more,
  });
  // Of Plotly's buttons only those that keep the reader's data here. Where there is no room they
  // would cover the drawing; a swipe then scrolls the page.
  const config = () => ({
    displayModeBar: !NARROW.matches && "hover",
    modeBarButtons: [["zoom2d", "pan2d", "resetScale2d", "toImage"]], displaylogo: false,
  });
  const draw = (plot, traces, more, buttons = config()) => {
    // Plotly takes a new config at the first drawing only.
    if (plot.buttons !== undefined && plot.buttons !== buttons.displayModeBar) Plotly.purge(plot);
    plot.buttons = buttons.displayModeBar;
    // Plotly's own resizing forgets the height that it is given, and what it draws in between.
    return Plotly.react(plot, traces, layout({ width: plot.clientWidth, ...more }), buttons);
  };

  // Differences stand on both sides of 0; ratios of 1, as far from it when halved as when doubled.
  const DIFFERENCE = { origin: 0, axis: {}, at: (value) => value, label: "+.4f", digits: 4, ticks: "+~g" };
  const RATIO = { origin: 1, axis: { type: "log", dtick: Math.log10(2) }, at: Math.log10, label: ".2f", digits: 2, ticks: ".3~g" };

  function rows(plot, { rows, label, sides }, scale) {
    const tones = { pays: "pays", costs: "costs", faster: "pays", slower: "costs" };
    const tone = (row) => style(`--${tones[row.kind] || "undecided"}`);
    const symbol = {
      pays: "circle", costs: "square", undecided: "circle-open", "no verdict": "x-thin-open", diverged: "x-thin-open", faster: "circle", slower: "square",
    };
    const at = (i) => rows.length - 1 - i;
    const narrow = NARROW.matches;
    const traces = rows.map((row, i) => ({
      type: "scatter", mode: "markers", x: row.seeds, y: row.seeds.map(() => at(i) - 0.2), hoverinfo: "x",
      marker: { size: 5, color: clear(tone(row), 0.55) },
    }));
    rows.forEach((row, i) => traces.push({
      type: "scatter", mode: "markers", x: [row.mean], y: [at(i)], meta: { row: i },
      marker: { size: 11, color: tone(row), symbol: symbol[row.kind], line: { width: 2, color: tone(row) } },
      error_x: row.low === null ? undefined : {
        type: "data", symmetric: false, array: [row.high - row.mean], arrayminus: [row.mean - row.low],
        color: tone(row), thickness: 2.5, width: 5,
      },
      hovertemplate: `<b>${plain(row.name)}</b>: ${row.verdict}<br>%{x:${scale.label}}` +
        (row.low === null ? "" : ` (${row.low.toFixed(scale.digits)} to ${row.high.toFixed(scale.digits)})`) + "<extra></extra>",
    }));
    const note = (more) => ({ showarrow: false, xref: "paper", yref: "paper", y: 1, yanchor: "bottom", ...more });
    const side = (more) => note({ font: { color: style("--quiet") }, ...more });
    const values = [scale.origin, ...rows.flatMap((row) => [row.mean, row.low, row.high, ...row.seeds])]
      .filter((v) => v !== null).map(scale.at);
    const low = Math.min(...values), high = Math.max(...values), room = 0.08 * (high - low) || 0.01;
    const names = narrow ? rows.map((row, i) => note({
      x: 0, xanchor: "left", y: at(i) + 0.22, yref: "y", align: "left", font: { size: 13 },
      text: `<b>${wrapped(row.name, 22)}</b> · ${row.verdict}`, bgcolor: clear(style("--paper"), 0.8),
    })) : [];
    draw(plot, traces, {
      height: 110 + rows.length * (narrow ? 76 : 58),
      margin: { l: narrow ? 12 : 56, r: 16, t: 34, b: 48 },
      xaxis: axis({ title: { text: plain(label) }, nticks: narrow ? 5 : 9, tickformat: scale.ticks, range: [low - room, high + room], ...scale.axis }),
      yaxis: axis({
        range: [-0.7, rows.length - 0.3], showgrid: false, fixedrange: true, showticklabels: !narrow,
        tickvals: rows.map((_, i) => at(i)), tickfont: { size: 13 },
        ticktext: rows.map((row) => `<b>${wrapped(row.name, 32)}</b><br>${row.verdict}`),
      }),
      shapes: [{ type: "line", x0: scale.origin, x1: scale.origin, yref: "paper", y0: 0, y1: 1, line: { color: style("--quiet"), width: 1.5 } }],
      annotations: [
        side({ x: 0, xanchor: "left", text: `← ${sides[0]}` }), side({ x: 1, xanchor: "right", text: `${sides[1]} →` }),
        ...names,
      ],
    }, { ...config(), displayModeBar: false });
  }

  function curves(plot) {
    const { axis: x, measure } = choice;
    const traces = [];
    // Many bands on each other would hide the means: the more arms, the fainter.
    const faint = Math.min(1, 4 / Math.max(1, data.arms.length - hidden.size));
    data.arms.forEach((arm, i) => {
      const { runs, mean } = data.curves.arms[i][measure];
      const look = looks[i], colour = style(look.colour), name = plain(arm.name);
      const trace = (more) => ({ type: "scatter", meta: { arm: i }, visible: !hidden.has(i), ...more });
      if (mean && mean.low) traces.push(trace({
        x: [...mean[x], ...mean[x].slice().reverse()], y: [...mean.high, ...mean.low.slice().reverse()],
        mode: "lines", line: { width: 0 }, fill: "toself", fillcolor: clear(colour, 0.16 * faint), hoverinfo: "skip",
      }));
      for (const run of runs) {
        const failed = run.end !== "finished";
        const last = run.y.map((_, k) => (failed && k === run.y.length - 1 ? 9 : 0));
        traces.push(trace({
          x: run[x], y: run.y, mode: failed ? "lines+markers" : "lines",
          line: { width: failed ? 1.5 : 0.8, color: clear(colour, failed ? 0.9 : 0.45 * faint), dash: failed ? "dot" : "solid" },
          marker: { size: last, symbol: "x", color: colour, line: { width: 0 } },
          hovertemplate: `${name}, seed ${run.seed}: ${run.end}<br>%{y:.4f} at %{x:.4~s}<extra></extra>`,
        }));
      }
      if (mean) traces.push(trace({
        x: mean[x], y: mean.y, mode: "lines+markers", meta: { arm: i, mean: true },
        line: { width: 2.4, color: colour, dash: look.dash },
        marker: { size: 8, symbol: look.symbol, color: colour, maxdisplayed: 8 },
        hovertemplate: `<b>${name}</b>, mean of ${mean.seeds}<br>%{y:.4f} at %{x:.4~s}<extra></extra>`,
      }));
    });
    draw(plot, traces, {
      height: NARROW.matches ? 360 : 460, uirevision: `${x} ${measure} ${choice.start}`,
      xaxis: axis({ title: { text: data.axes[x].title }, rangemode: "tozero", nticks: NARROW.matches ? 5 : 10 }),
      yaxis: axis({ title: { text: data.curves.measures[measure].title }, range: ending(x, measure) }),
    });
  }

  // Losses fall steeply at first; the range that tells arms apart is that of the later steps.
  function ending(x, measure) {
    if (choice.start) return undefined;
    const values = [];
    data.curves.arms.forEach((arm, i) => {
      const { mean, runs } = arm[measure];
      if (hidden.has(i)) return;
      for (const line of mean ? [mean] : runs) {
        const from = LATE * Math.max(...line[x]);
        line.y.forEach((y, k) => {
          if (line[x][k] >= from) values.push(...(line.low ? [line.low[k], line.high[k]] : [y]));
        });
      }
    });
    if (values.length < 2) return undefined;
    const low = Math.min(...values), high = Math.max(...values);
    const room = 0.06 * (high - low) || 0.1;
    return [low - room, high + room];
  }

  function scores(plot) {
    const { names, label, arms } = data.scores;
    const traces = arms.map((arm, i) => {
      const look = looks[i], colour = style(look.colour);
      return {
        type: "scatter", mode: "lines+markers", x: names.map((_, k) => k + 0.03 * (i - (arms.length - 1) / 2) * Math.min(1, 8 / arms.length)), y: arm.y, meta: { arm: i, mean: true },
        visible: !hidden.has(i), line: { width: 2, color: colour, dash: look.dash },
        marker: { size: 9, symbol: look.symbol, color: colour },
        error_y: {
          type: "data", symmetric: false, color: colour, thickness: 1.2, width: 4,
          array: arm.high.map((high, k) => (high === null ? 0 : high - arm.y[k])),
          arrayminus: arm.low.map((low, k) => (low === null ? 0 : arm.y[k] - low)),
        },
        hovertemplate: `<b>${plain(data.arms[i].name)}</b><br>%{y:.4f}<extra></extra>`,
      };
    });
    draw(plot, traces, {
      height: NARROW.matches ? 340 : 400, margin: { l: 56, r: 16, t: 16, b: 36 },
      xaxis: axis({ tickvals: names.map((_, k) => k), ticktext: names.map((name) => wrapped(name, NARROW.matches ? 8 : 16)), range: [-0.3, names.length - 0.7] }),
      yaxis: axis({ title: { text: label } }),
    });
  }

  function range(plot) {
    const { rates, losses, smoothed, steepest_lr: steepest, lowest_lr: lowest } = data.range;
    const line = (more) => ({ type: "scatter", x: rates, ...more });
    const top = Math.max(...smoothed), low = Math.min(...losses), room = 0.08 * (top - low) || 0.1;
    const mark = (x, colour) => ({ type: "line", x0: x, x1: x, yref: "paper", y0: 0, y1: 1, line: { color: colour, width: 1.5, dash: "dash" } });
    const word = (x, text, more) => ({ x: Math.log10(x), yref: "paper", y: 1, yanchor: "bottom", showarrow: false, text, ...more });
    const close = NARROW.matches || Math.log10(lowest / steepest) < 0.5;
    draw(plot, [
      line({ y: losses, mode: "markers", marker: { size: 4, color: clear(style("--arm-0"), 0.45) }, hovertemplate: "%{y:.4f} at %{x:.3~g}<extra></extra>" }),
      line({ y: smoothed, mode: "lines", line: { width: 2.4, color: style("--arm-0") }, hovertemplate: "mean %{y:.4f} at %{x:.3~g}<extra></extra>" }),
    ], {
      height: NARROW.matches ? 360 : 440, margin: { l: 56, r: 16, t: 44, b: 48 },
      xaxis: axis({ type: "log", title: { text: "learning rate" }, exponentformat: "power", dtick: 1 }),
      yaxis: axis({ title: { text: "training loss, nats per token" }, range: [low - room, top + room] }),
      // Both are null where the loss does not fall by more than its noise.
      shapes: steepest === null ? [] : [mark(steepest, style("--pays")), mark(lowest, style("--quiet"))],
      annotations: steepest === null ? [] : [
        word(steepest, `steepest ${steepest.toPrecision(2)}`, { xanchor: close ? "right" : "center" }),
        word(lowest, `lowest ${lowest.toPrecision(2)}`, { xanchor: close ? "left" : "center" }),
      ],
    });
  }

  const CHARTS = {
    curves, scores, range,
    forest: (plot) => rows(plot, data.forest, DIFFERENCE),
    ratios: (plot, of) => rows(plot, data.ratios[of], RATIO),
  };
  const figures = [...document.querySelectorAll(".chart")].map((figure) => ({
    kind: figure.dataset.chart, of: figure.dataset.of, plot: figure.querySelector(".plot"), controls: figure.querySelector(".controls"),
  }));
  const redraw = () => figures.forEach(({ kind, plot, of }) => CHARTS[kind](plot, of));

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
    box.innerHTML = `<svg width="34" height="14" style="color:var(${look.colour})"><line x1="0" x2="34" y1="7" y2="7" ` +
      `stroke="currentColor" stroke-width="2.4" stroke-dasharray="${dashes}"/><text x="17" y="11.5" ` +
      `text-anchor="middle" font-size="12" fill="currentColor">${look.sign}</text></svg>`;
    return box.firstChild;
  }

  function legend() {
    const box = element("fieldset", { className: "arms" }, element("legend", { textContent: "Arms" }));
    const set = (change) => { change(); press(); redraw(); };
    data.arms.forEach((arm, i) => {
      const button = element("button", { type: "button" }, swatch(looks[i]), element("bdi", { textContent: arm.name }));
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
      controls.append(radios("Over", "axis", data.axes), radios("Show", "measure", data.curves.measures),
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
