// Draws the charts in the page's own colours, again when those change, and fills a drill-down when it is opened.
(() => {
  "use strict";
  const root = document.documentElement;
  const read = (id) => JSON.parse(document.getElementById(id).textContent);
  const figures = read("chart-data");
  const worst = read("worst-data");
  const drawn = new Map();
  // On paper charts get the width of an A4 page between its margins, whatever the window is.
  const PAPER = 680;
  let paper = false;

  function painted(value, key, style) {
    if (typeof value === "string") {
      return value[0] === "@" && /color$/.test(key) ? style.getPropertyValue("--" + value.slice(1)).trim() : value;
    }
    if (Array.isArray(value)) {
      // Long columns of numbers and labels are left as they are: they hold no colours.
      return typeof value[0] === "object" || /color$/.test(key) ? value.map((item) => painted(item, key, style)) : value;
    }
    if (value === null || typeof value !== "object") return value;
    return Object.fromEntries(Object.entries(value).map(([name, item]) => [name, painted(item, name, style)]));
  }

  function axis(own) {
    const title = { standoff: 12, font: { size: 13 }, ...(own.title || {}) };
    return {
      automargin: true, gridcolor: "@line", linecolor: "@axis", tickcolor: "@axis", zeroline: false, showline: true,
      ticks: "outside", ticklen: 4, ...own, title,
    };
  }

  function layout(own) {
    const coarse = window.matchMedia("(pointer: coarse)").matches;
    return {
      autosize: !paper, font: { family: "system-ui, sans-serif", size: 12, color: "@ink" }, margin: { l: 8, r: 22, t: 8, b: 8 },
      paper_bgcolor: "@clear-color", plot_bgcolor: "@clear-color", hovermode: "closest", dragmode: coarse ? false : "zoom",
      hoverlabel: { bgcolor: "@panel", bordercolor: "@axis", font: { color: "@ink" }, align: "left" },
      legend: { orientation: "h", x: 0, xanchor: "left", y: 1.02, yanchor: "bottom", bgcolor: "@clear-color" },
      ...own, xaxis: axis(own.xaxis || {}), yaxis: axis(own.yaxis || {}),
    };
  }

  function draw(element, figure) {
    drawn.set(element, figure);
    const style = getComputedStyle(root);
    const size = paper ? { width: PAPER, height: element.closest(".drill") ? 240 : 330 } : {};
    const config = { displayModeBar: false, responsive: !paper };
    const { data, layout: shape } = painted({ data: figure.data, layout: { ...layout(figure.layout), ...size } }, "", style);
    return Plotly.react(element, data, shape, config);
  }

  const time = (ns) => {
    if (ns === null || ns === undefined) return "–";
    for (const [factor, unit] of [[1e9, "s"], [1e6, "ms"], [1e3, "µs"]]) {
      if (ns >= factor) return Number((ns / factor).toPrecision(3)) + " " + unit;
    }
    return Number(ns.toPrecision(3)) + " ns";
  };
  const plain = (text) => text.replace(/&/g, "&amp;").replace(/</g, "&lt;").replace(/>/g, "&gt;");

  function drillFigure(data) {
    const labels = data.configs.map((values) => plain(values.map((value, i) => `${data.names[i]}=${value}`).join(" ")));
    const trace = (name, y, colour, size, more) => ({
      type: "scatter", mode: "markers", name, x: data.rank, y, text: labels, customdata: y.map(time),
      hovertemplate: "%{text}<br>%{customdata}<extra>" + name + "</extra>", marker: { color: colour, size, ...more },
    });
    const point = (place, name, colour, symbol) => ({
      ...trace(name, [data.measured[place]], colour, 15, { symbol, line: { color: "@panel", width: 1.5 } }),
      x: [data.rank[place]], text: [labels[place]],
    });
    const traces = [trace("measured", data.measured, "@model", 6)];
    if (data.predicted) traces.unshift(trace("predicted", data.predicted, "@faint", 5, { symbol: "diamond" }));
    if (data.chosen !== null) traces.push(point(data.chosen, "chosen", "@accent", "circle"));
    if (data.best !== null) traces.push(point(data.best, "best", "@best", "star"));
    const all = [...data.measured, ...(data.predicted || [])].filter((value) => value > 0);
    const [low, high] = [Math.min(...all), Math.max(...all)];
    const ticks = [];
    const steps = high / low > 30 ? [1] : high / low > 4 ? [1, 2, 5] : [1, 1.2, 1.5, 2, 2.5, 3, 4, 5, 6, 8];
    for (let place = Math.floor(Math.log10(low)); place <= Math.ceil(Math.log10(high)); place += 1) {
      for (const step of steps) ticks.push(step * 10 ** place);
    }
    return {
      data: traces,
      layout: {
        xaxis: { title: { text: "configs, fastest first" } },
        yaxis: { title: { text: "time" }, type: "log", tickvals: ticks, ticktext: ticks.map(time) },
      },
    };
  }

  function cell(row, tag, text, scope) {
    const made = row.appendChild(document.createElement(tag));
    made.textContent = text;
    if (scope) made.scope = scope;
  }

  function drillTable(data) {
    const table = document.createElement("table");
    table.className = "figures configs";
    const head = table.createTHead().insertRow();
    for (const name of ["#", "measured", "predicted", ...data.names]) cell(head, "th", name, "col");
    const body = table.createTBody();
    data.measured.forEach((measured, place) => {
      const row = body.insertRow();
      const marks = [place === data.best && "best", place === data.chosen && "chosen"].filter(Boolean);
      row.className = marks.join(" ");
      cell(row, "td", [data.rank[place], ...marks].join(" "));
      cell(row, "td", time(measured));
      cell(row, "td", time(data.predicted && data.predicted[place]));
      for (const value of data.configs[place]) cell(row, "td", value);
    });
    return table;
  }

  function fill(details) {
    const box = details.querySelector(".drill");
    if (box.childElementCount) return;
    const data = worst[Number(details.dataset.place)];
    if (!data.measured.length) return;
    const label = "Every config measured on " + details.querySelector(".problem").textContent;
    if (data.measured.length > 1) {
      const chart = box.appendChild(document.createElement("div"));
      chart.className = "chart";
      chart.setAttribute("role", "img");
      chart.setAttribute("aria-label", label + ": measured and predicted time, the chosen and the best one marked.");
      draw(chart, drillFigure(data));
      const note = box.appendChild(document.createElement("p"));
      note.className = "small";
      const part = data.total > data.measured.length ? ` ${data.measured.length} of ${data.total} configs are shown.` : "";
      note.textContent = "Configs from the fastest to the slowest: the further right the chosen one is, the worse the choice." + part;
    }
    const scroll = box.appendChild(document.createElement("div"));
    scroll.className = "scroll tall";
    scroll.tabIndex = 0;
    scroll.setAttribute("role", "region");
    scroll.setAttribute("aria-label", label);
    scroll.appendChild(drillTable(data));
  }

  const redraw = () => drawn.forEach((figure, element) => draw(element, figure));
  for (const [name, figure] of Object.entries(figures)) draw(document.getElementById(name), figure);
  const problems = [...document.querySelectorAll("#worst details")];
  for (const details of problems) details.addEventListener("toggle", () => details.open && fill(details));
  window.matchMedia("(prefers-color-scheme: dark)").addEventListener("change", redraw);

  let opened = [];
  window.addEventListener("beforeprint", () => {
    paper = true;
    root.dataset.theme = "light";
    opened = problems.filter((details) => !details.open);
    for (const details of opened) {
      details.open = true;
      fill(details);
    }
    redraw();
  });
  window.addEventListener("afterprint", () => {
    paper = false;
    delete root.dataset.theme;
    for (const details of opened) details.open = false;
    redraw();
  });
})();
