"use strict";
// What every page of this package starts with: its data, the colours of its style, and how a figure looks.
const data = JSON.parse(document.getElementById("data").textContent);
const byId = (id) => document.getElementById(id);
const dark = matchMedia("(prefers-color-scheme: dark)");
const CONFIG = { displaylogo: false, responsive: true, displayModeBar: false };

// Plotly reads labels as a kind of HTML; a token such as <s> must stay what it is.
const escape = (text) => text.replace(/&/g, "&amp;").replace(/</g, "&lt;").replace(/>/g, "&gt;");
const show = (value, digits = 3) => (value === null || value === undefined ? "–" : value.toPrecision(digits).replace("-", "−"));
const color = (name) => getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim();
const heat = () => [[0, color("low")], [0.5, color("mid")], [1, color("high")]];

function layout(extra) {
  const axis = { gridcolor: color("line"), zeroline: false, linecolor: color("line"), tickcolor: color("line"), automargin: true };
  const { xaxis, yaxis, ...rest } = extra;
  return {
    paper_bgcolor: "rgba(0,0,0,0)",
    plot_bgcolor: "rgba(0,0,0,0)",
    font: { family: getComputedStyle(document.body).fontFamily, size: 12, color: color("soft") },
    margin: { l: 44, r: 10, t: 10, b: 42 },
    hoverlabel: { bgcolor: color("card"), bordercolor: color("line"), font: { color: color("ink") } },
    showlegend: false,
    xaxis: { ...axis, ...xaxis },
    yaxis: { ...axis, ...yaxis },
    ...rest,
  };
}
