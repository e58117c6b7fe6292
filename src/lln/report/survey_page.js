const heads = data.layers.map(() => []); // [layer][head]
data.heads.forEach((head) => { heads[head.layer][head.head] = head; });
const grid = (name) => heads.map((row) => row.map((head) => head[name]));
const layerSelect = byId("layer");
const headSelect = byId("head");
const TICKS = [0.001, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 50, 100];

const place = (head) => `layer ${data.layers[head.layer][0]} (${escape(data.layers[head.layer][1])}), head ${head.head}`;

let chosen = heads[0][0];

const colorbar = () => ({ thickness: 8, outlinewidth: 0, tickfont: { color: color("soft") }, xpad: 6 });

function outline(row, column) {
  return {
    type: "rect", x0: column - 0.5, x1: column + 0.5, y0: row - 0.5, y1: row + 0.5,
    line: { color: color("accent"), width: 3 },
  };
}

function drawMap(id, values, colors, text) {
  const trace = {
    type: "heatmap", z: values, xgap: 1, ygap: 1, colorscale: heat(), colorbar: colorbar(), ...colors,
    text: heads.map((row) => row.map((head) => `${place(head)}<br>${text(head)}`)),
    hovertemplate: "%{text}<extra></extra>",
  };
  const bare = { showgrid: false, showline: false, ticks: "" };
  const area = layout({
    xaxis: { ...bare, title: { text: "head", standoff: 6 }, dtick: values[0].length > 16 ? 4 : 1 },
    yaxis: {
      ...bare, title: { text: "layer", standoff: 6 }, autorange: "reversed",
      tickvals: data.layers.map((_, i) => i), ticktext: data.layers.map(([number]) => String(number)),
    },
    shapes: [outline(chosen.layer, chosen.head)],
  });
  return Plotly.react(id, [trace], area, CONFIG);
}

function drawRatio() {
  const logs = heads.map((row) => row.map((head) => {
    const ratio = head.temperature_paper / head.temperature;
    return ratio > 0 && Number.isFinite(ratio) ? Math.log2(ratio) : null;
  }));
  const limit = Math.max(1, ...logs.flat().map((value) => Math.abs(value ?? 0)));
  const ticks = [0.125, 0.25, 0.5, 1, 2, 4, 8].filter((tick) => Math.abs(Math.log2(tick)) <= limit);
  const colors = {
    zmin: -limit, zmax: limit,
    colorscale: [[0, color("under")], [0.5, color("even")], [1, color("over")]],
    colorbar: { ...colorbar(), tickvals: ticks.map(Math.log2), ticktext: ticks.map((tick) => `${tick}×`) },
  };
  return drawMap("ratio", logs, colors, (head) =>
    `predicted ${show(head.temperature_paper)}, measured ${show(head.temperature)} ` +
    `(${show(head.temperature_paper / head.temperature)}×)`);
}

function drawScatter() {
  const theory = {
    type: "scatter", mode: "lines", x: data.theory.temperature, y: data.theory.entropy,
    line: { color: color("soft"), width: 2 },
    hovertemplate: "Gaussian scores<br>temperature %{x:.3~f}, entropy %{y:.2f} bits<extra></extra>",
  };
  const all = {
    type: "scatter", mode: "markers", x: data.heads.map((head) => head.temperature), y: data.heads.map((head) => head.entropy),
    text: data.heads.map(place),
    marker: {
      size: 9, color: data.heads.map((head) => head.layer), colorscale: heat(),
      // Dots of the first layer must not be as pale as the page.
      cmin: -0.3 * data.layers.length, cmax: data.layers.length - 1, line: { color: color("soft"), width: 0.6 },
      colorbar: {
        ...colorbar(), title: { text: "layer", side: "right" },
        tickvals: data.layers.map((_, i) => i), ticktext: data.layers.map(([number]) => String(number)),
      },
    },
    hovertemplate: "%{text}<br>temperature %{x:.3~f}, entropy %{y:.2f} bits<extra></extra>",
  };
  const here = {
    type: "scatter", mode: "markers", hoverinfo: "skip", x: [chosen.temperature], y: [chosen.entropy],
    marker: { symbol: "circle-open", size: 17, color: color("accent"), line: { width: 3 } },
  };
  return Plotly.react("scatter", [theory, all, here], layout({
    xaxis: { type: "log", title: { text: "temperature (log scale)" }, tickvals: TICKS, ticktext: TICKS.map(String) },
    yaxis: { title: { text: "entropy, bits" }, rangemode: "tozero" },
  }), CONFIG);
}

function drawHistogram() {
  const deviation = Math.sqrt(chosen.log_variance);
  const middle = (chosen.density.length - 1) / 2;
  const bins = chosen.density.map((density, i) => ({ density, z: (i - middle) * data.bin_width })).filter(
    ({ density, z }) => density > 1e-4 || Math.abs(z) < 3);
  const x = bins.map(({ z }) => chosen.log_mean + deviation * z);
  const bars = {
    type: "bar", name: "measured", x, y: bins.map(({ density }) => density / deviation), width: deviation * data.bin_width,
    marker: { color: color("mid"), line: { width: 0 } },
    hovertemplate: "log P = %{x:.2f}<br>density %{y:.3f}<extra></extra>",
  };
  const fit = {
    type: "scatter", mode: "lines", name: "normal fit", x,
    y: bins.map(({ z }) => Math.exp((-z * z) / 2) / (deviation * Math.sqrt(2 * Math.PI))),
    line: { color: color("accent"), width: 2.5 }, hoverinfo: "skip",
  };
  return Plotly.react("histogram", [bars, fit], layout({
    bargap: 0, showlegend: true, legend: { x: 0, y: 1.02, yanchor: "bottom", orientation: "h" },
    margin: { l: 44, r: 10, t: 30, b: 42 },
    xaxis: { title: { text: "log P (natural)" }, showgrid: false },
    yaxis: { title: { text: "density" } },
  }), CONFIG);
}

function drawViewer() {
  if (!data.words) return null;
  const weights = chosen.weights;
  const tokens = data.words.slice(0, weights.length).map(escape);
  const places = tokens.map((_, i) => i);
  const axis = { tickvals: places, ticktext: tokens, showgrid: false, showline: false, ticks: "", tickfont: { size: 10 } };
  const trace = {
    type: "heatmap", z: weights, colorscale: heat(), zmin: 0, colorbar: colorbar(),
    text: places.map((i) => places.map((j) => `${tokens[i]} → ${tokens[j]}`)),
    hovertemplate: "%{text}<br>P = %{z:.3f}<extra></extra>",
  };
  return Plotly.react("viewer", [trace], layout({
    xaxis: { ...axis, side: "top", tickangle: -60, title: { text: "attended to" } },
    yaxis: { ...axis, autorange: "reversed", title: { text: "attending" } },
    margin: { l: 60, r: 10, t: 60, b: 10 },
  }), CONFIG);
}

function describe() {
  byId("numbers").textContent =
    `temperature ${show(chosen.temperature)} (predicted ${show(chosen.temperature_paper)}) · ` +
    `entropy ${show(chosen.entropy)} ± ${show(chosen.entropy_error, 1)} bits · gap ${show(chosen.gap)}`;
  byId("fit").textContent =
    `Log P of layer ${data.layers[chosen.layer][0]}, head ${chosen.head}, beside the normal density of the same mean ` +
    `(${show(chosen.log_mean)}) and variance (${show(chosen.log_variance)}). The two distributions are at most ` +
    `${show(chosen.distance, 2)} apart; the excess kurtosis is ${show(chosen.excess_kurtosis, 2)}, 0 for a normal one.`;
}

async function draw() {
  describe();
  await Promise.all([
    drawMap("temperature", grid("temperature"), {}, (head) => `temperature ${show(head.temperature)}`),
    drawMap("entropy", grid("entropy"), {}, (head) => `entropy ${show(head.entropy)} bits`),
    drawMap("gap", grid("gap"), {}, (head) => `spectral gap ${show(head.gap)}`),
    drawRatio(),
    drawMap("distance", grid("distance"), {}, (head) => `distance ${show(head.distance)}`),
    drawScatter(),
    drawHistogram(),
    drawViewer(),
  ]);
  document.body.dataset.drawn = `${chosen.layer},${chosen.head}`;
}

function choose(layer, head) {
  const row = heads[layer];
  chosen = row[Math.min(head, row.length - 1)];
  headSelect.replaceChildren(...row.map((_, number) => new Option(String(number), number)));
  [layerSelect.value, headSelect.value] = [chosen.layer, chosen.head];
  return draw();
}

async function start() {
  data.layers.forEach(([number, name], layer) => layerSelect.add(new Option(`${number} · ${name}`, layer)));
  await choose(0, 0);
  layerSelect.addEventListener("change", () => choose(Number(layerSelect.value), chosen.head));
  headSelect.addEventListener("change", () => choose(chosen.layer, Number(headSelect.value)));
  dark.addEventListener("change", draw);
  for (const id of ["temperature", "entropy", "gap", "ratio", "distance"]) {
    byId(id).on("plotly_click", ({ points: [point] }) => choose(point.y, point.x));
  }
  byId("scatter").on("plotly_click", ({ points: [point] }) => {
    if (point.curveNumber !== 1) return;
    const { layer, head } = data.heads[point.pointNumber];
    choose(layer, head);
  });
}

start();
