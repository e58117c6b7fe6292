const DASHES = ["solid", "dash", "dot", "dashdot"];
const UNITS = [["hours", 3600, 10800], ["minutes", 60, 180], ["seconds", 1, 0]]; // name, length, from how many seconds on
const ALL = "all";
const BANDS = 6; // more of them hide each other
const hidden = new Set(); // groups
const axisSelect = byId("axis");
const smoothingRange = byId("smoothing");
const runSelect = byId("run"); // null, as the next, where no attention was measured
const layerSelect = byId("layer");

const groupColor = (group) => color(`run-${group.color}`);
const isShown = (run) => !hidden.has(data.runs[run].group);

function timeUnit() {
  const curves = data.charts.flatMap((chart) => chart.curves).filter(Boolean);
  const longest = Math.max(0, ...curves.map((curve) => curve.seconds.at(-1) ?? 0));
  return UNITS.find(([, , from]) => longest >= from);
}
const [UNIT, SECONDS] = timeUnit();

function places(curve) {
  return axisSelect.value === "steps" ? curve.steps : curve.seconds.map((second) => second / SECONDS);
}

// An exponential mean that starts without bias towards 0.
function smooth(values, weight) {
  let [sum, total] = [0, 0];
  return values.map((value) => {
    if (value === null) return null;
    sum = weight * sum + (1 - weight) * value;
    total = weight * total + (1 - weight);
    return sum / total;
  });
}

function line(curve, title, style, extra = {}) {
  return {
    type: "scatter", mode: curve.values.length > 1 ? "lines" : "markers", x: places(curve), y: curve.values, line: { width: 2, ...style },
    marker: { color: style.color }, name: escape(title),
    hovertemplate: `%{fullData.name}<br>${axisSelect.value === "steps" ? "step %{x}" : `%{x:.4~g} ${UNIT}`}: %{y:.5~g}<extra></extra>`,
    ...extra,
  };
}

function band(curve, style) {
  const known = curve.low.map((_, i) => i).filter((i) => curve.low[i] !== null);
  const back = [...known].reverse();
  const x = places(curve);
  return {
    type: "scatter", mode: "lines", hoverinfo: "skip", fill: "toself", line: { width: 0 }, fillcolor: style.color, opacity: 0.14,
    x: [...known, ...back].map((i) => x[i]),
    y: [...known.map((i) => curve.high[i]), ...back.map((i) => curve.low[i])],
  };
}

function styleOf(run) {
  const group = data.groups[data.runs[run].group];
  return { color: groupColor(group), dash: DASHES[group.dash % DASHES.length] };
}

// Plotly has no ticks at powers of 2, and on less than a decade of a logarithmic axis hardly any.
function logTicks(traces, base) {
  let [low, high] = [Infinity, -Infinity];
  traces.flatMap(({ y }) => y).filter((value) => value > 0).map((value) => Math.log(value) / Math.log(base)).forEach((power) => {
    low = Math.min(low, Math.floor(power));
    high = Math.max(high, Math.ceil(power));
  });
  if (low > high) return {}; // nothing but zeros
  const stride = Math.ceil((high - low + 1) / 9);
  const powers = Array.from({ length: Math.floor((high - low) / stride) + 1 }, (_, i) => low + i * stride);
  if (base === 2) return { tickvals: powers.map((k) => 2 ** k), ticktext: powers.map((k) => `2<sup>${k}</sup>`) };
  const digits = high - low > 3 ? [1] : high - low > 1 ? [1, 2, 5] : [1, 2, 3, 4, 5, 6, 7, 8, 9];
  const ticks = powers.flatMap((k) => digits.map((digit) => digit * 10 ** k));
  return { tickvals: ticks, ticktext: ticks.map((tick) => String(Number(tick.toPrecision(1)))) };
}

function plot(chart, traces) {
  if (!traces.length) {
    const words = { text: "no run that is shown has this", x: 0.5, y: 0.5, xref: "paper", yref: "paper", showarrow: false };
    return Plotly.react(chart.key, [], layout({ xaxis: { visible: false }, yaxis: { visible: false }, annotations: [words] }), CONFIG);
  }
  const x = { title: { text: axisSelect.value === "steps" ? "step" : UNIT, standoff: 6 } };
  const y = chart.log ? { type: "log", ...logTicks(traces, chart.log) } : { exponentformat: "power", rangemode: chart.from_zero ? "tozero" : "normal" };
  return Plotly.react(chart.key, traces, layout({ xaxis: x, yaxis: y }), CONFIG);
}

function drawChart(chart) {
  const weight = chart.smooth ? Number(smoothingRange.value) : 0;
  const traces = chart.curves.flatMap((curve, run) => {
    if (!curve || !isShown(run)) return [];
    const { title } = data.runs[run];
    if (!weight) return [line(curve, title, styleOf(run))];
    const raw = line(curve, title, { ...styleOf(run), width: 1 }, { opacity: 0.2, hoverinfo: "skip", hovertemplate: null });
    return [raw, line({ ...curve, values: smooth(curve.values, weight) }, title, styleOf(run))];
  });
  return plot(chart, traces);
}

function mix(from, to, share) {
  const parts = (hex) => [1, 3, 5].map((i) => parseInt(hex.slice(i, i + 2), 16));
  const [a, b] = [parts(from), parts(to)];
  return `rgb(${a.map((part, i) => Math.round(part + share * (b[i] - part))).join()})`;
}

// From pale to strong with depth, but the first layer not as pale as the page.
function layerColor(place, count) {
  const share = 0.25 + (0.75 * place) / Math.max(1, count - 1);
  return share < 0.5 ? mix(color("low"), color("mid"), 2 * share) : mix(color("mid"), color("high"), 2 * share - 1);
}

function drawAttention(chart) {
  const [run, layer] = [runSelect.value, layerSelect.value];
  if (run !== ALL && layer === ALL) {
    const layers = Object.entries(chart.curves[run]).filter(([number]) => number !== ALL);
    return plot(chart, layers.map(([number, curve], i) =>
      line(curve, `layer ${number}`, { color: layerColor(i, layers.length) })));
  }
  const runs = run === ALL ? data.runs.map((_, i) => i).filter(isShown) : [Number(run)];
  const found = runs.map((i) => [i, chart.curves[i][layer]]).filter(([, curve]) => curve);
  const banded = found.length <= BANDS ? found : [];
  return plot(chart, [
    ...banded.map(([i, curve]) => band(curve, styleOf(i))),
    ...found.map(([i, curve]) => line(curve, data.runs[i].title, styleOf(i))),
  ]);
}

function describe() {
  const [run, layer] = [runSelect.value, layerSelect.value];
  const which = layer === ALL ? "all layers" : `layer ${layer}`;
  byId("shown").textContent = run !== ALL && layer === ALL
    ? "Mean over the heads of each layer, from pale for the first to strong for the last."
    : `Mean over the heads of ${which}; where at most ${BANDS} runs are shown, a band from the lowest to the highest head.`;
}

async function draw() {
  if (runSelect) describe();
  await Promise.all([...data.charts.map(drawChart), ...data.attention.map(drawAttention)]);
  const shown = data.groups.map((_, i) => i).filter((i) => !hidden.has(i)).join("+");
  document.body.dataset.drawn = [axisSelect.value, smoothingRange.value, runSelect?.value, layerSelect?.value, shown].join();
}

function addLegend() {
  byId("legend").append(...data.groups.map((group, i) => {
    const button = document.createElement("button");
    const swatch = document.createElement("span");
    swatch.className = `swatch ${DASHES[group.dash % DASHES.length]}`;
    swatch.style.setProperty("--swatch", `var(--run-${group.color})`);
    button.append(swatch, group.title);
    button.setAttribute("aria-pressed", "true");
    button.addEventListener("click", () => {
      if (!hidden.delete(i)) hidden.add(i);
      button.setAttribute("aria-pressed", String(!hidden.has(i)));
      draw();
    });
    return button;
  }));
}

function addChoices() {
  runSelect.add(new Option("all", ALL));
  data.runs.forEach(({ title }, i) => {
    if (data.attention.some((chart) => chart.curves[i][ALL])) runSelect.add(new Option(title, i));
  });
  if (runSelect.length === 2) runSelect.value = runSelect.options[1].value;
  layerSelect.add(new Option("all", ALL));
  Object.entries(data.layers).forEach(([number, name]) => layerSelect.add(new Option(`${number} · ${name}`, number)));
  [runSelect, layerSelect].forEach((select) => select.addEventListener("change", draw));
}

addLegend();
if (runSelect) addChoices();
axisSelect.addEventListener("change", draw);
smoothingRange.addEventListener("input", draw);
dark.addEventListener("change", draw);
draw();
