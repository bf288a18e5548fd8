// The page of `fsdp-run plan --html`: the JSON of the plan and a script that draws it as SVG. One
// file, no network.
#include "runtime/report/plan_report.h"

namespace ofsdp::runtime {
namespace {

constexpr const char* kHead = R"page(<!DOCTYPE html>
<html lang="en"><head><meta charset="utf-8"><title>fsdp-run plan</title>
<style>
body { font: 14px/1.45 system-ui, sans-serif; margin: 24px auto; max-width: 1180px; padding: 0 16px;
  color: #1c2733; background: #fff; }
h1 { font-size: 20px; margin: 0 0 4px; } h2 { font-size: 15px; margin: 26px 0 8px; }
table { border-collapse: collapse; } td, th { padding: 2px 14px 2px 0; text-align: left; }
td.n, th.n { text-align: right; font-variant-numeric: tabular-nums; }
th { color: #5a6b7b; font-weight: 500; border-bottom: 1px solid #d5dde5; }
.quiet { color: #5a6b7b; } .swatch { display: inline-block; width: 11px; height: 11px; margin-right: 5px; }
.legend span { margin-right: 16px; } svg { display: block; user-select: none; background: #f7f9fb; border: 1px solid #d5dde5; }
svg text { font: 11px system-ui, sans-serif; fill: #5a6b7b; } #hover { min-height: 21px; }
</style></head><body>
<h1 id="title"></h1><div id="summary" class="quiet"></div>
<h2>Schedule and memory</h2>
<div><select id="program"></select> <span class="quiet">wheel: zoom, drag: move, double click: all</span></div>
<div class="legend" id="legend"></div><svg id="chart" width="1148" height="370"></svg>
<div id="hover" class="quiet"></div>
<h2>Memory at the peak</h2><div id="peaknode" class="quiet"></div><table id="memory"></table>
<h2>Units</h2><table id="units"></table>
<script type="application/json" id="plan">)page";

constexpr const char* kScript = R"page(</script>
<script>
"use strict";
const plan = JSON.parse(document.getElementById("plan").textContent);
const at = id => document.getElementById(id);
const COLORS = {forward: "#4a7fc1", backward: "#7b5ea7", update: "#8a949e", Gather: "#e08a3c",
  reduce: "#3f9c6b", wait: "#c9504e"};
const GROUPS = {forward: "forward", backward: "backward", update: "update", Gather: "gather",
  reduce: "reduction", wait: "wait or exchange"};
const mb = b => b >= 1e9 ? (b / 1e9).toFixed(2) + " GB" : b >= 1e6 ? (b / 1e6).toFixed(1) + " MB"
  : (b / 1e3).toFixed(1) + " kB";
const msText = t => t >= 100 ? t.toFixed(0) + " ms" : t >= 1 ? t.toFixed(2) + " ms" : (t * 1e3).toFixed(1) + " \u00b5s";
function cells(row, values, tag) {
  for (const [text, number] of values) {
    const cell = document.createElement(tag || "td");
    if (number) cell.className = "n";
    cell.textContent = text;
    row.appendChild(cell);
  }
  return row;
}
function group(step, stream) {
  if (step.step === "Run") return step.backward ? "backward" : "forward";
  if (step.step === "Gather") return "Gather";
  if (step.step.includes("Reduce")) return stream === "compute" ? "update" : "reduce";
  return step.step === "Update" || step.step === "Accumulate" ? "update" : "wait";
}
function label(step) {
  if (step.node !== undefined) return step.op + " '" + step.node + "'";
  return step.unit === undefined ? step.step : step.step + " u" + step.unit + " (" + plan.units[step.unit].name + ")";
}
function header() {
  at("title").textContent = plan.model + ", " + plan.strategy + ", " + plan.world + (plan.world === 1 ? " rank" : " ranks");
  const t = plan.machine.topology;
  at("summary").textContent = (t ? t.hosts + " hosts of " + t.ranks_per_host + " ranks" : "this machine, " +
    plan.machine.threads + (plan.machine.threads === 1 ? " thread a rank" : " threads a rank")) + ". Predicted: an update " + msText(plan.update.ms) + ", computation " +
    msText(plan.update.compute_ms) + ", communication " + msText(plan.update.communication_ms) + ", of which exposed " +
    msText(plan.update.exposed_ms) + ". Peak memory of a rank " + mb(plan.memory.peak_bytes) + ". Parameters " +
    plan.dtypes.param + ", reduction " + plan.dtypes.reduce + ".";
  for (const key in COLORS) {
    const item = document.createElement("span"), swatch = document.createElement("i");
    swatch.className = "swatch";
    swatch.style.background = COLORS[key];
    item.append(swatch, GROUPS[key]);
    at("legend").appendChild(item);
  }
}
function tables() {
  at("peaknode").textContent = "The most is in use in " + plan.memory.peak_node + ".";
  const shares = Object.entries(plan.memory.at_peak).filter(([, bytes]) => bytes > 0)
    .sort((a, b) => b[1] - a[1]);
  for (const [name, bytes] of shares) {
    const row = cells(at("memory").insertRow(), [[name.replaceAll("_", " ")], [bytes.toLocaleString("en"), true],
      [(100 * bytes / plan.memory.peak_bytes).toFixed(1) + " %", true]]);
    const bar = document.createElement("div");
    bar.style.cssText = "height:10px;background:#4a7fc1;width:" + 400 * bytes / plan.memory.peak_bytes + "px";
    row.insertCell().appendChild(bar);
  }
  cells(at("memory").insertRow(), [["together"], [plan.memory.peak_bytes.toLocaleString("en"), true]]);
  cells(at("units").insertRow(), [["unit"], ["name"], ["parameters", true], ["elements", true], ["of a rank", true],
    ["nodes", true], ["exposed", true]], "th");
  for (const u of plan.units) {
    cells(at("units").insertRow(), [["u" + u.id], [u.name], [u.parameters, true], [u.numel.toLocaleString("en"), true],
      [u.owned_numel.toLocaleString("en"), true], [u.nodes, true], [msText(u.exposed_ms), true]]);
  }
}
const LEFT = 96, WIDTH = 1040, ROWS = {compute: 30, communication: 74}, ROW = 34, TOP = 140, HIGH = 220;
const svg = at("chart");
let program, from, to;
function draw(tag, attributes, text) {
  const node = document.createElementNS("http://www.w3.org/2000/svg", tag);
  for (const key in attributes) node.setAttribute(key, attributes[key]);
  if (text !== undefined) node.textContent = text;
  svg.appendChild(node);
  return node;
}
const x = t => LEFT + WIDTH * (t - from) / (to - from);
const clampX = v => Math.max(LEFT, Math.min(LEFT + WIDTH, v));
function axis() {
  const step = Math.pow(10, Math.floor(Math.log10((to - from) / 4)));
  const tick = [1, 2, 5, 10].map(k => k * step).find(k => (to - from) / k <= 9);
  for (let t = Math.ceil(from / tick) * tick; t <= to; t += tick) {
    draw("line", {x1: x(t), x2: x(t), y1: 20, y2: TOP + HIGH, stroke: "#e3e9ef"});
    draw("text", {x: x(t), y: 14, "text-anchor": "middle"}, +t.toPrecision(3) + " ms");
  }
  for (const row in ROWS) draw("text", {x: 6, y: ROWS[row] + 21}, row);
}
function bars() {
  for (const step of program.schedule) for (const row in ROWS) {
    const span = step[row];
    if (!span || span.end_ms < from || span.begin_ms > to) continue;
    const left = clampX(x(span.begin_ms)), right = clampX(x(span.end_ms));
    const bar = draw("rect", {x: left, y: ROWS[row], width: Math.max(right - left, 0.4), height: ROW,
      fill: COLORS[group(step, row)]});
    if (right - left > 3) { bar.setAttribute("stroke", "#fff"); bar.setAttribute("stroke-width", 0.6); }
    const text = label(step) + ": " + msText(span.end_ms - span.begin_ms) + " from " + msText(span.begin_ms);
    bar.addEventListener("mouseenter", () => { at("hover").textContent = text; });
  }
}
function memory() {
  const fixed = plan.memory.peak_bytes - Math.max(...plan.programs.map(p => p.arena_bytes));
  const y = bytes => TOP + HIGH - HIGH * 0.95 * bytes / plan.memory.peak_bytes;
  for (const [bytes, name] of [[plan.memory.peak_bytes, "planned"], [fixed, "always"]]) {
    draw("line", {x1: LEFT, x2: LEFT + WIDTH, y1: y(bytes), y2: y(bytes), stroke: "#9aa8b5", "stroke-dasharray": "4 3"});
    draw("text", {x: 6, y: y(bytes) + 4}, name + " " + mb(bytes));
  }
  let now = 0, path = "", last = fixed;
  for (const step of program.schedule) {
    const span = step.compute || step.communication;
    const bytes = fixed + step.arena_bytes;
    if (span) now = Math.max(now, span.begin_ms);
    path += (path ? "L" : "M") + clampX(x(now)) + " " + y(last) + "L" + clampX(x(now)) + " " + y(bytes);
    if (span) now = Math.max(now, span.end_ms);
    last = bytes;
  }
  path += "L" + clampX(x(now)) + " " + y(last);
  draw("path", {d: path, fill: "none", stroke: "#4a7fc1", "stroke-width": 1.5});
  draw("text", {x: LEFT + 4, y: TOP - 6}, "memory of a rank");
}
function redraw() {
  svg.replaceChildren();
  axis(); bars(); memory();
}
function choose(index) {
  program = plan.programs[index];
  from = 0; to = Math.max(program.ms, 1e-6);
  redraw();
}
plan.programs.forEach((p, i) => at("program").add(new Option((p.training ? "training" : "evaluation") + " of " + p.batch +
  " samples" + (p.first_of_update ? "" : ", not the first of an update") + (p.last_of_update ? "" : ", not the last") +
  ": " + msText(p.ms) + ", exposed " + msText(p.exposed_ms), i)));
at("program").addEventListener("change", event => choose(event.target.value));
svg.addEventListener("wheel", event => {
  event.preventDefault();
  const middle = from + (to - from) * (event.offsetX - LEFT) / WIDTH, factor = event.deltaY > 0 ? 1.25 : 0.8;
  from = Math.max(0, middle - (middle - from) * factor);
  to = Math.min(program.ms, middle + (to - middle) * factor);
  redraw();
}, {passive: false});
svg.addEventListener("mousemove", event => {
  if (event.buttons !== 1) return;
  const span = to - from, shift = Math.max(-from, Math.min(program.ms - to, -event.movementX * span / WIDTH));
  from += shift; to = from + span;
  redraw();
});
svg.addEventListener("dblclick", () => { from = 0; to = program.ms; redraw(); });
header(); tables();
const main = plan.programs.findIndex(p => p.times_an_update > 0 && p.last_of_update);
at("program").value = Math.max(main, 0);
choose(Math.max(main, 0));
</script></body></html>
)page";

}  // namespace

// "</" would end the script element that holds the JSON.
std::string page(const PlanReport& report, const Options& options) {
  std::string data;
  for (const char c : to_json(report, options)) {
    if (c == '/' && data.ends_with('<')) data += '\\';
    data += c;
  }
  return kHead + data + kScript;
}

}  // namespace ofsdp::runtime
