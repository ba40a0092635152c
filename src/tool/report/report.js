// The page of the report: a flame graph and tables of the data that `hbmprof report` embeds.
//
// Data: stacks are a tree by function. Node 0 is the root. Node i has:
// - the parent tree.parent[i], which is smaller than i,
// - the function tree.names[tree.name[i]],
// - the positions tree.positions[tree.position[i]] of this function in the source,
// - tree.library[i]: 1 for a frame of a known library, else 0.
// A sample is [node, label set, values now, values in the base]. Values are in the order of `types`.
//
// The strings of a profile can be made by an attacker. They become text nodes and attribute values, never markup: this
// script parses no HTML.
"use strict";
(() => {
const data = JSON.parse(document.getElementById("data").textContent);
const $ = id => document.getElementById(id);
const nodeCount = data.tree.parent.length;

// The choices of the user. They are stored in the address of the page, so that a link or a reload shows the same view.
const state = {measure: "", unit: "space", mode: "now", frames: data.own ? "own" : "all", device: "", label: "", q: "", theme: "", zoom: 0, sort: "self"};
const measures = [["inuse", "In use"], ["peak", "At the peak"], ["alloc", "Allocated ever"]].filter(([name]) => typeOf(name, "space") >= 0);
if (measures.length === 0) measures.push(["", data.types[data.default_type].type]);
state.measure = measures[0][0];
const fromAddress = new URLSearchParams(location.hash.slice(1));
for (const key of ["measure", "unit", "mode", "frames", "device", "label", "q", "theme"]) if (fromAddress.has(key)) state[key] = fromAddress.get(key);
if (!measures.some(([name]) => name === state.measure)) state.measure = measures[0][0];

function typeOf(measure, unit) {
  const names = measure === "inuse" ? [measure + "_" + unit, unit] : [measure + "_" + unit];
  return data.types.findIndex(type => names.includes(type.type));
}
function typeShown() {
  if (state.measure === "") return data.default_type;
  const type = typeOf(state.measure, state.unit);
  return type >= 0 ? type : typeOf(state.measure, "space");
}

// --- Text ---------------------------------------------------------------------------------------------------------

// Returns an element of this kind with these attributes and contents. An attribute that is null is left out. A string
// becomes a text node.
function element(tag, attributes, ...contents) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) if (value !== null) made.setAttribute(name, value);
  fill(made, contents);
  return made;
}
// Replaces the contents of `target`. Appends them one by one, because a call has a limit on the number of its
// arguments.
function fill(target, contents) {
  target.replaceChildren();
  for (const part of contents) target.append(part);
}
const muted = text => element("p", {class: "muted"}, text);
function amount(value, unit) {
  if (unit !== "bytes") return Math.round(value).toLocaleString("en-US") + (unit && unit !== "count" ? " " + unit : "");
  const names = ["B", "KiB", "MiB", "GiB", "TiB", "PiB"];
  let power = 0;
  while (Math.abs(value) >= 1023.995 && power + 1 < names.length) { value /= 1024; ++power; }
  return (power === 0 ? Math.round(value) : value.toFixed(2)) + " " + names[power];
}
const bytes = value => amount(value, "bytes");
const change = (value, unit) => (value > 0 ? "+" : "") + amount(value, unit);
const percent = (part, whole) => whole ? (100 * part / whole).toFixed(1) + " %" : "";

// --- Sums ---------------------------------------------------------------------------------------------------------

// For each node: the first node outside of known libraries on the way from this node to the root, or the node itself if
// there is none.
const firstOwn = new Int32Array(nodeCount);
for (let i = 1; i < nodeCount; ++i) firstOwn[i] = data.tree.library[i] ? firstOwn[data.tree.parent[i]] : i;
const ownNode = firstOwn.map((own, i) => own || i);
const hasLibraries = data.samples.some(([leaf]) => ownNode[leaf] !== leaf);

// For each node: `self` and `before` are the values of the stacks that end at this node, now and in the base. `all` and
// `allBefore` include the nodes below. In change mode the width of a node is the sum of the absolute changes in it and
// below it. Otherwise it is the sum of the values.
let view;
function compute() {
  const type = typeShown();
  const changing = state.mode === "change";
  const self = new Float64Array(nodeCount), before = new Float64Array(nodeCount);
  const all = new Float64Array(nodeCount), allBefore = new Float64Array(nodeCount), width = new Float64Array(nodeCount);
  const samples = data.samples.filter(([, labels]) => !state.device || data.label_sets[labels].device === state.device);
  const at = new Map();
  for (const [leaf, , now, base] of samples) {
    const node = state.frames === "own" ? ownNode[leaf] : leaf;
    self[node] += now[type];
    if (base) before[node] += base[type];
  }
  for (let i = 0; i < nodeCount; ++i) {
    all[i] = self[i];
    allBefore[i] = before[i];
    width[i] = changing ? Math.abs(self[i] - before[i]) : Math.max(self[i], 0);
  }
  for (let i = nodeCount - 1; i > 0; --i) {
    const parent = data.tree.parent[i];
    all[parent] += all[i];
    allBefore[parent] += allBefore[i];
    width[parent] += width[i];
  }
  view = {type, unit: data.types[type].unit, changing, self, before, all, allBefore, width, samples, at,
          value: i => changing ? all[i] - allBefore[i] : all[i],
          own: i => changing ? self[i] - before[i] : self[i],
          whole: changing ? (allBefore[0] || all[0]) : all[0]};
}
const shown = value => view.changing ? change(value, view.unit) : amount(value, view.unit);

// --- Flame graph --------------------------------------------------------------------------------------------------

const children = Array.from({length: nodeCount}, () => []);
for (let i = 1; i < nodeCount; ++i) children[data.tree.parent[i]].push(i);
const nameOf = node => data.tree.names[data.tree.name[node]];
const positionOf = node => data.tree.positions[data.tree.position[node]];

// Functions of the same class or namespace have the same colour. All functions without a class or namespace have one
// colour.
const hues = new Map();
function hueOf(name) {
  const scope = name.includes("::") ? name.slice(0, name.lastIndexOf("::")) : "";
  let hash = 2166136261;
  for (let i = 0; i < scope.length; ++i) hash = Math.imul(hash ^ scope.charCodeAt(i), 16777619) >>> 0;
  return scope ? (hash >>> 8) % 360 : 38;
}
function colour(node) {
  if (node === 0) return "var(--still)";
  if (view.changing) {
    const net = view.value(node), turnover = view.width[node];
    const strength = turnover ? Math.abs(net) / turnover : 0;
    return strength < 0.02 ? "var(--still)" : `rgba(var(${net > 0 ? "--grow" : "--shrink"}), ${(0.25 + 0.75 * strength).toFixed(2)})`;
  }
  const name = nameOf(node);
  if (!hues.has(name)) hues.set(name, hueOf(name));
  return `hsl(${hues.get(name)} var(--flame-chroma) var(--flame-light))`;
}

let pattern = null;
function readPattern() {
  pattern = null;
  if (!state.q) return;
  try {
    pattern = new RegExp(state.q, "i");
  } catch {
    pattern = new RegExp(state.q.replace(/[.*+?^${}()|[\]\\]/g, "\\$&"), "i");
  }
}

// Finds the nodes whose name or position matches.
function matches() {
  const hit = new Uint8Array(nodeCount);
  if (!pattern) return hit;
  const names = data.tree.names.map(name => pattern.test(name)), positions = data.tree.positions.map(position => position !== "" && pattern.test(position));
  for (let i = 1; i < nodeCount; ++i) hit[i] = names[data.tree.name[i]] || positions[data.tree.position[i]] ? 1 : 0;
  return hit;
}

const kRow = 20;
function drawFlame() {
  const flame = $("flame");
  const width = flame.clientWidth || 1000;
  const hit = matches();
  const boxes = [];
  let rows = 0;
  const box = (node, x, w, row, extra) => {
    const classes = (w < 14 ? "thin " : "") + (extra || "") + (pattern ? (hit[node] ? " hit" : " miss") : "");
    const made = element("div", {"data-node": node, class: classes}, w < 30 ? "" : nameOf(node));
    made.style.left = x.toFixed(1) + "px";
    made.style.width = Math.max(w - .5, 1).toFixed(1) + "px";
    made.style.top = row * kRow + "px";
    made.style.background = colour(node);
    boxes.push(made);
    rows = Math.max(rows, row + 1);
  };
  // The callers of the zoomed node are shown above it, at full width.
  const callers = [];
  for (let i = state.zoom; i !== 0;) callers.push(i = data.tree.parent[i]);
  callers.reverse();
  callers.forEach((node, row) => box(node, 0, width, row, "above"));
  const scale = view.width[state.zoom] > 0 ? width / view.width[state.zoom] : 0;
  const stack = [[state.zoom, 0, callers.length]];
  while (stack.length) {
    const [node, x, row] = stack.pop();
    const w = node === state.zoom ? width : view.width[node] * scale;
    if (w < .7) continue;
    box(node, x, w, row);
    let left = x;
    const below = children[node].filter(child => view.width[child] * scale >= .7);
    below.sort((a, b) => view.width[b] - view.width[a]);
    for (const child of below) {
      stack.push([child, left, row + 1]);
      left += view.width[child] * scale;
    }
  }
  fill(flame, boxes.length ? boxes : [muted("Nothing here.")]);
  flame.style.height = Math.max(rows * kRow, 60) + "px";
  $("reset").hidden = state.zoom === 0;
  drawFound(hit);
}

// Shows the sum of the stacks in which any frame matches. Each stack counts once.
function drawFound(hit) {
  const what = view.changing ? "changed" : "in all";
  const whole = `${shown(view.value(0))} ${what}`;
  if (!pattern) {
    $("found").textContent = whole + (state.zoom ? `; zoomed to ${nameOf(state.zoom)}: ${shown(view.value(state.zoom))}` : "");
    return;
  }
  const found = new Uint8Array(nodeCount);
  let sum = 0, functions = new Set();
  for (let i = 1; i < nodeCount; ++i) {
    found[i] = found[data.tree.parent[i]] || hit[i];
    if (hit[i]) functions.add(data.tree.name[i]);
    if (found[i]) sum += view.own(i);
  }
  $("found").textContent = `${functions.size} functions match, with ${shown(sum)} of ${whole}` + (view.changing ? "" : ` (${percent(sum, view.all[0])})`);
}

function tipFor(node) {
  const lines = [element("b", {}, nameOf(node))];
  if (positionOf(node)) lines.push(positionOf(node));
  lines.push(`${shown(view.value(node))}` + (view.whole ? ` (${percent(view.value(node), view.whole)})` : ""));
  if (view.own(node)) lines.push(`itself ${shown(view.own(node))}`);
  if (view.changing) lines.push(`from ${amount(view.allBefore[node], view.unit)} to ${amount(view.all[node], view.unit)}`);
  return lines.flatMap((line, i) => i === 0 ? [line] : [document.createElement("br"), line]);
}
const nodeUnder = event => { const box = event.target.closest("[data-node]"); return box ? Number(box.dataset.node) : -1; };
$("flame").addEventListener("mousemove", event => {
  const node = nodeUnder(event), tip = $("tip");
  tip.hidden = node < 0;
  if (node < 0) return;
  fill(tip, tipFor(node));
  tip.style.left = Math.min(event.clientX + 14, innerWidth - tip.offsetWidth - 8) + "px";
  tip.style.top = (event.clientY + 24 + tip.offsetHeight > innerHeight ? event.clientY - tip.offsetHeight - 10 : event.clientY + 18) + "px";
});
$("flame").addEventListener("mouseleave", () => { $("tip").hidden = true; });
$("flame").addEventListener("click", event => {
  const node = nodeUnder(event);
  if (node < 0) return;
  state.zoom = node;
  $("tip").hidden = true;
  drawFlame();
});
$("reset").addEventListener("click", () => { state.zoom = 0; drawFlame(); });

// --- Tables -------------------------------------------------------------------------------------------------------

function meter(value, most) {
  const share = most ? Math.min(100, 100 * Math.abs(value) / most) : 0;
  return meterOf(share, view.changing ? (value > 0 ? "grow" : "shrink") : null);
}
// Returns a bar that is filled to `percent`.
function meterOf(percent, kind) {
  const bar = element("i", {class: kind});
  bar.style.width = percent.toFixed(1) + "%";
  return element("span", {class: "meter"}, bar);
}
function tableOf(head, rows) {
  return element("div", {class: "scroll"},
    element("table", {}, element("thead", {}, element("tr", {}, ...head)), element("tbody", {}, ...rows)));
}
const th = (kind, text) => element("th", {class: kind}, text);
const td = (kind, ...contents) => element("td", {class: kind}, ...contents);
// Returns a cell with the function's name, as a link that searches for it, and with `lines` below the name.
const nameCell = (name, ...lines) => td("name", element("a", {"data-find": name}, name), ...lines.map(line => element("small", {}, line)));

function drawFunctions() {
  // Rows are by function name. A recursive function counts once per stack.
  const rows = new Map();
  const rowOf = name => {
    if (!rows.has(name)) rows.set(name, {name, position: "", weight: -1, self: 0, all: 0});
    return rows.get(name);
  };
  const open = new Map();  // the number of times that a name is on the current path
  const visit = [[0, false]];
  while (visit.length) {
    const [node, leaving] = visit.pop();
    const name = nameOf(node);
    if (leaving) { open.set(name, open.get(name) - 1); continue; }
    if (node) {
      const r = rowOf(name);
      r.self += view.own(node);
      // The row shows the position with the largest value.
      const weight = Math.abs(view.own(node)) * nodeCount + Math.abs(view.value(node));
      if (weight > r.weight) { r.weight = weight; r.position = positionOf(node); }
      if (!open.get(name)) r.all += view.value(node);
      open.set(name, (open.get(name) || 0) + 1);
      visit.push([node, true]);
    }
    for (const child of children[node]) visit.push([child, false]);
  }
  const key = state.sort;
  const list = [...rows.values()].filter(r => r.self || r.all)
    .sort((a, b) => Math.abs(b[key]) - Math.abs(a[key]) || Math.abs(b.all) - Math.abs(a.all)).slice(0, 15);
  const most = Math.max(...list.map(r => Math.abs(r[key])), 0);
  const title = (name, text) => element("th", {class: "number", "data-sort": name, "aria-sort": key === name ? "descending" : null}, text);
  $("functions").replaceChildren(tableOf(
    [title("self", "itself"), title("all", "with callees"), th("meter-cell", ""), th(null, "function")],
    list.map(r => element("tr", {}, td(r.self ? "number" : "number muted", shown(r.self)), td("number", shown(r.all)),
                          td("meter-cell", meter(r[key], most)), nameCell(r.name, r.position)))));
}
document.addEventListener("click", event => {
  const head = event.target.closest("[data-sort]"), link = event.target.closest("[data-find]");
  if (head) { state.sort = head.dataset.sort; drawFunctions(); }
  if (link) search("^" + link.dataset.find.replace(/[.*+?^${}()|[\]\\]/g, "\\$&") + "$");
});

function drawLabels() {
  const sums = new Map();
  for (const [, labels, now, base] of view.samples) {
    const set = data.label_sets[labels];
    const value = Object.hasOwn(set, state.label) ? set[state.label] : "(none)";
    sums.set(value, (sums.get(value) || 0) + now[view.type] - (view.changing && base ? base[view.type] : 0));
  }
  const list = [...sums].filter(([, sum]) => sum).sort((a, b) => Math.abs(b[1]) - Math.abs(a[1])).slice(0, 20);
  const most = Math.max(...list.map(([, sum]) => Math.abs(sum)), 0);
  $("labels").replaceChildren(list.length === 0 ? muted("Nothing here.") : tableOf(
    [th(null, state.label), th(null, ""), th("number", "")],
    list.map(([value, sum]) => element("tr", {}, td(null, String(value)), td(null, meter(sum, most)), td("number", shown(sum))))));
}

function drawSizes() {
  // Sizes are grouped by powers of two.
  const counts = [];
  const objects = typeOf(state.measure, "objects");
  for (const [, labels, now] of view.samples) {
    const size = data.label_sets[labels].bytes;
    if (!(size > 0) || !now[view.type]) continue;
    const power = Math.max(0, Math.ceil(Math.log2(size)));
    counts[power] = counts[power] || {bytes: 0, objects: 0};
    counts[power].bytes += now[view.type];
    counts[power].objects += objects >= 0 ? now[objects] : 0;
  }
  const powers = Object.keys(counts).map(Number);
  if (powers.length === 0) { $("sizes").replaceChildren(muted("The profile has no block sizes.")); return; }
  const first = Math.min(...powers), last = Math.max(...powers);
  const most = Math.max(...powers.map(p => counts[p].bytes));
  const short = p => p < 10 ? 2 ** p + "" : p < 20 ? 2 ** (p - 10) + "K" : p < 30 ? 2 ** (p - 20) + "M" : 2 ** (p - 30) + "G";
  const bars = [], ticks = [];
  const step = Math.ceil((last - first + 1) / 10);
  for (let p = first; p <= last; ++p) {
    const c = counts[p] || {bytes: 0, objects: 0};
    const title = `up to ${bytes(2 ** p)}: ${amount(c.bytes, view.unit)}${objects >= 0 ? " in " + c.objects.toLocaleString("en-US") + " blocks" : ""}`;
    const bar = element("div", {title});
    bar.style.height = (100 * c.bytes / most).toFixed(1) + "%";
    bars.push(bar);
    ticks.push(element("span", {}, (p - first) % step === 0 ? short(p) : ""));
  }
  $("sizes").replaceChildren(element("div", {class: "histogram"}, ...bars), element("div", {class: "ticks"}, ...ticks),
                             muted(`${data.types[view.type].type} in blocks of up to this many bytes`));
}

// --- Parts that do not depend on the choices -----------------------------------------------------------------------

function drawDevices() {
  const last = data.files[data.files.length - 1];
  fill($("devices"), last.devices.map(d => {
    const limit = d.limit ?? Math.max(d.peak ?? 0, d.in_use ?? 0);
    const share = value => limit ? Math.max(0, Math.min(100, 100 * value / limit)) : 0;
    const outside = Math.max(0, d.unaccounted ?? 0);
    const facts = [["peak", bytes(d.peak ?? 0)]];
    if (d.unaccounted !== undefined) facts.push(["outside tracked allocations", change(d.unaccounted, "bytes")]);
    if (d.num_live !== undefined) facts.push(["live buffers", d.num_live.toLocaleString("en-US")]);
    const used = element("i", {}), untracked = element("i", {class: "outside"}), peak = element("b", {});
    used.style.width = untracked.style.left = share(d.in_use ?? 0) + "%";
    untracked.style.width = share(outside) + "%";
    peak.style.left = `calc(${share(d.peak ?? 0)}% - 1px)`;
    return element("article", {class: "card"},
      element("h3", {}, d.name + (d.space === "device" ? "" : ", " + d.space)),
      element("div", {class: "big"}, bytes(d.in_use ?? 0) + " ",
              element("span", {class: "of"}, d.limit === undefined ? "in use" : "of " + bytes(d.limit))),
      element("div", {class: "bar", title: "in use, peak and limit", hidden: d.limit === undefined ? "" : null}, used, untracked, peak),
      element("dl", {}, ...facts.flatMap(([name, value]) => [element("dt", {}, name), element("dd", {}, value)])));
  }));

  const pools = last.devices.filter(d => d.pool > 0 || d.largest_free_block !== undefined);
  $("pools-panel").hidden = pools.length === 0;
  fill($("pools"), pools.flatMap(d => {
    const parts = [];
    const shareOf = (part, whole) => meterOf(whole > 0 ? 100 * part / whole : 0, null);
    if (d.pool > 0) {
      parts.push(element("p", {}, `${d.name}: pools hold ${bytes(d.pool)}, of which ${bytes(d.reserved ?? 0)} (${percent(d.reserved ?? 0, d.pool)}) idle`),
                 shareOf(d.pool - (d.reserved ?? 0), d.pool));
    }
    if (d.largest_free_block !== undefined && d.limit !== undefined && d.driver_in_use !== undefined) {
      const free = d.limit - d.driver_in_use;
      parts.push(element("p", {}, `${d.name}: ${bytes(free)} free, the largest block ${bytes(d.largest_free_block)}: fragmentation ${free > 0 ? percent(free - d.largest_free_block, free) : "n/a"}`),
                 shareOf(d.largest_free_block, free));
    }
    return parts;
  }));
}

function course(values, verdict) {
  const most = Math.max(...values, 1);
  const points = values.map((v, i) => `${(i * 116 / Math.max(1, values.length - 1) + 2).toFixed(1)},${(28 - 26 * v / most).toFixed(1)}`);
  const svg = $("course").content.firstElementChild.cloneNode(true);
  svg.setAttribute("class", "course " + verdict);
  svg.setAttribute("aria-label", values.map(bytes).join(", "));
  svg.firstElementChild.setAttribute("d", "M" + points.join("L"));
  return svg;
}
function drawGrowth() {
  $("growth-panel").hidden = !data.growth;
  if (!data.growth) return;
  const counter = data.growth.counter;
  // Each table needs its own header elements.
  const head = () => [th(null, ""), th(null, "course"), th("number", "in all"), ...(counter ? [th("number", "per " + counter)] : []),
                      ...(data.growth.has_time ? [th("number", "per second")] : []), th(null, "where")];
  const rate = (site, value, per) => element("td", {class: "number", "data-per": grows(site) ? per : ""}, grows(site) ? change(value, data.growth.unit) : "");
  const row = site => {
    const cells = [td(null, element("span", {class: "tag " + site.verdict.split(" ")[0]}, site.verdict)),
                   td(null, course(site.values, site.verdict)), td("number", change(site.growth, data.growth.unit))];
    if (counter) cells.push(rate(site, site.per_count, counter));
    if (data.growth.has_time) cells.push(rate(site, site.per_second, "s"));
    const position = [site.position, site.callers && "called by " + site.callers.replaceAll(" < ", " ← ")].filter(Boolean).join(", ");
    return element("tr", {}, ...cells, nameCell(site.name, position, `${site.why}. More dumps: ${site.more_dumps}.` + (site.labels ? " " + site.labels : "")));
  };
  const growing = data.growth.sites.filter(grows), others = data.growth.sites.filter(site => !grows(site));
  const parts = [growing.length ? tableOf(head(), growing.map(row)) : element("p", {}, "No site grows without end.")];
  if (others.length) {
    parts.push(element("details", {}, element("summary", {}, `${others.length} sites grew and stopped, or go up and down`),
                       tableOf(head(), others.map(row))));
  }
  fill($("growth"), parts);
}
const grows = site => site.verdict === "leak" || site.verdict === "perhaps";

// --- Controls -----------------------------------------------------------------------------------------------------

function choice(id, options) {
  fill($(id), options.map(([value, text]) => element("button", {type: "button", "data-value": value, "aria-pressed": state[id] === value}, text)));
  $(id).onclick = event => {
    const button = event.target.closest("[data-value]");
    if (!button) return;
    state[id] = button.dataset.value;
    draw();
  };
}
function search(text) {
  $("search").value = state.q = text;
  readPattern();
  remember();
  drawFlame();
}
function remember() {
  const address = new URLSearchParams();
  for (const key of ["measure", "unit", "mode", "frames", "device", "label", "q", "theme"]) if (state[key]) address.set(key, state[key]);
  history.replaceState(null, "", "#" + address);
}
function applyTheme() {
  const dark = state.theme ? state.theme === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
  document.documentElement.dataset.theme = dark ? "dark" : "light";
}
function draw() {
  choice("measure", measures.length > 1 ? measures : []);
  choice("unit", state.measure !== "" && typeOf(state.measure, "objects") >= 0 ? [["space", "Bytes"], ["objects", "Buffers"]] : []);
  choice("frames", hasLibraries ? [["own", "Own code"], ["all", "All frames"]] : []);
  choice("mode", data.base ? [["now", "Now"], ["change", "Change"]] : []);
  applyTheme();
  compute();
  drawFlame();
  drawFunctions();
  drawLabels();
  drawSizes();
  $("functions-title").textContent = view.changing ? "Functions, by change" : "Functions";
  remember();
}

const devices = [...new Set(data.label_sets.map(labels => labels.device).filter(Boolean))].sort();
fill($("device"), ["", ...devices].map(d => element("option", {value: d}, d || "all")));
$("device").parentElement.hidden = devices.length < 2;
$("device").value = state.device;
$("device").onchange = event => { state.device = event.target.value; draw(); };
const keys = [...new Set(data.label_sets.flatMap(labels => Object.keys(labels)))].filter(key => key !== "bytes").sort();
if (!keys.includes(state.label)) state.label = keys.find(key => !["device", "kind", "allocator"].includes(key)) || (keys.includes("kind") ? "kind" : keys[0] || "");
fill($("label"), keys.map(key => element("option", {value: key, selected: key === state.label ? "" : null}, key)));
$("label").onchange = event => { state.label = event.target.value; drawLabels(); remember(); };
$("search").value = state.q;
$("search").oninput = event => search(event.target.value);
$("theme").onclick = () => { state.theme = document.documentElement.dataset.theme === "dark" ? "light" : "dark"; draw(); };
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", applyTheme);
let resizing = 0;
addEventListener("resize", () => { cancelAnimationFrame(resizing); resizing = requestAnimationFrame(drawFlame); });
addEventListener("keydown", event => {
  if (event.key === "Escape") { if (state.q) search(""); else { state.zoom = 0; drawFlame(); } }
});

const last = data.files[data.files.length - 1];
document.title = "Device memory: " + last.path;
$("subtitle").textContent = last.path + (last.time ? ", " + last.time : "") + (data.base ? "; compared with " + data.base.path + (data.base.time ? ", " + data.base.time : "") : "");
const dropped = data.files.filter(file => file.dropped_records > 0);
$("warning").hidden = dropped.length === 0;
$("warning").textContent = dropped.map(file => `${file.path} is incomplete: ${file.dropped_records} allocations of ${bytes(file.dropped_bytes)} were not recorded`).join("; ");
$("comments").textContent = data.files.map(file => file.path + "\n" + file.comments.join("\n")).join("\n\n");
readPattern();
drawDevices();
drawGrowth();
draw();
})();
