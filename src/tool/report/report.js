// The page of the report: a timeline, a flame graph and tables of the data that `hbmprof report` embeds.
//
// Data: stacks are a tree by function. Node 0 is the root. Node i has:
// - the parent tree.parent[i], which is smaller than i,
// - the function tree.names[tree.name[i]],
// - the positions tree.positions[tree.position[i]] of this function in the source,
// - tree.library[i]: 1 for a frame of a known library, else 0.
// The label `library` of a label set is the library that holds the memory. `unaccounted`, and that of the base, is a list
// of [device, name, bytes]: the memory that only the driver reports, by the name under which it is shown.
// A sample is [node, label set, values now, values in the base]. Values are in the order of `types`.
// Of a recording, `timeline` has:
// - times: nanoseconds of the instants since the start of the recording,
// - accounts: for each device and memory space the bytes in use at the instants (in_use), and the lowest and highest
//   since the instant before (low, high); idle: idle memory of pools; unaccounted: the driver's bytes in use minus the
//   recorded ones,
// - rows: [node, label set, series]: the bytes in use of these samples at the instants,
// - host: resident bytes of the process; marks: marks and failed allocations; lost: [from, to, count] of lost events.
// A series is the differences between neighbouring values (the first one: from 0), with commas between them.
//
// An attacker may have made the strings of a profile. They become text nodes and attribute values, never markup: this
// script parses no HTML.
"use strict";
(() => {
const data = JSON.parse(document.getElementById("data").textContent);
const $ = id => document.getElementById(id);
// The choices of the user. They are stored in the address of the page, so that a link or a reload shows the same view.
const state = {measure: "", unit: "space", mode: "now", frames: data.own ? "own" : "all", device: "", label: "", q: "", theme: "", at: "", stack: "", account: "0", zoom: 0, sort: "self"};
const kStored = ["measure", "unit", "mode", "frames", "device", "label", "q", "theme", "at", "stack", "account"];
const measures = [["inuse", "In use"], ["peak", "At the peak"], ["pool_peak", "Blocks of pools at their peak"], ["reserved", "In use, by the call to the device"], ["alloc", "Allocated ever"]].filter(([name]) => typeOf(name, "space") >= 0);
if (measures.length === 0) measures.push(["", data.types[data.default_type].type]);
state.measure = measures[0][0];
const fromAddress = new URLSearchParams(location.hash.slice(1));
for (const key of kStored) if (fromAddress.has(key)) state[key] = fromAddress.get(key);
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

// A tree has for each node its parent, its name and position (numbers in data.tree), and its children. `of` is the node
// of each node of data.tree.
function treeOf(parent, name, position, of) {
  const children = parent.map(() => []);
  for (let i = 1; i < parent.length; ++i) children[parent[i]].push(i);
  return {count: parent.length, parent, name, position, children, of};
}
// Returns the tree without frames of known libraries. A stack without an own frame keeps all its frames.
function foldLibraries() {
  const all = data.tree, parent = [0], name = [all.name[0]], position = [all.position[0]], known = new Map();
  const childOf = (node, i) => {
    const key = node * all.names.length + all.name[i];
    if (!known.has(key)) {
      known.set(key, parent.length);
      parent.push(node);
      name.push(all.name[i]);
      position.push(all.position[i]);
    }
    return known.get(key);
  };
  const of = new Int32Array(all.parent.length);
  for (let i = 1; i < of.length; ++i) of[i] = all.library[i] ? of[all.parent[i]] : childOf(of[all.parent[i]], i);
  const whole = leaf => {
    const path = [];
    for (let i = leaf; i; i = all.parent[i]) path.push(i);
    return path.reduceRight((node, i) => childOf(node, i), 0);
  };
  const leaves = [...data.samples, ...(data.timeline ? data.timeline.rows : [])].map(([leaf]) => leaf);
  const result = of.slice();
  for (const leaf of leaves) if (leaf && of[leaf] === 0) result[leaf] = whole(leaf);
  return treeOf(parent, name, position, result);
}
const allFrames = treeOf(data.tree.parent, data.tree.name, data.tree.position, Int32Array.from(data.tree.parent, (_, i) => i));
const ownFrames = foldLibraries();
const hasLibraries = data.samples.some(([leaf]) => isFolded(leaf));
function isFolded(leaf) {
  let depth = 0, folded = 0;
  for (let i = leaf; i; i = data.tree.parent[i]) ++depth;
  for (let i = ownFrames.of[leaf]; i; i = ownFrames.parent[i]) ++folded;
  return folded < depth;
}

// The samples of the current choices, with `now` and `base`: those of the selected instant or span of the timeline, else
// those of the dumps.
function entriesShown(type) {
  const at = selection();
  if (at) return timeline.rows.map(row => ({leaf: row.leaf, labels: row.labels, now: row.values[at.last], base: at.isSpan ? row.values[at.first] : 0}));
  return data.samples.map(([leaf, labels, now, base]) => ({leaf, labels, now: now[type], base: base ? base[type] : 0}));
}

// For each node of the tree: `self` and `before` are the values of the stacks that end at this node, now and in the
// base. `all` and `allBefore` include the nodes below. In change mode the width of a node is the sum of the absolute
// changes in it and below it. Otherwise it is the sum of the values.
let view;
function compute() {
  const at = selection();
  const type = at ? Math.max(typeOf("inuse", "space"), 0) : typeShown();
  const changing = state.mode === "change" && (at ? at.isSpan : Boolean(data.base));
  const tree = state.frames === "own" ? ownFrames : allFrames;
  const self = new Float64Array(tree.count), before = new Float64Array(tree.count);
  const all = new Float64Array(tree.count), allBefore = new Float64Array(tree.count), width = new Float64Array(tree.count);
  const entries = entriesShown(type).filter(entry => !state.device || data.label_sets[entry.labels].device === state.device);
  for (const entry of entries) {
    self[tree.of[entry.leaf]] += entry.now;
    before[tree.of[entry.leaf]] += entry.base;
  }
  for (let i = 0; i < tree.count; ++i) {
    all[i] = self[i];
    allBefore[i] = before[i];
    width[i] = changing ? Math.abs(self[i] - before[i]) : Math.max(self[i], 0);
  }
  for (let i = tree.count - 1; i > 0; --i) {
    const parent = tree.parent[i];
    all[parent] += all[i];
    allBefore[parent] += allBefore[i];
    width[parent] += width[i];
  }
  if (state.zoom >= tree.count) state.zoom = 0;
  view = {type, unit: at ? "bytes" : data.types[type].unit, changing, tree, self, before, all, allBefore, width, entries,
          value: i => changing ? all[i] - allBefore[i] : all[i],
          own: i => changing ? self[i] - before[i] : self[i],
          whole: changing ? (allBefore[0] || all[0]) : all[0]};
}
const shown = value => view.changing ? change(value, view.unit) : amount(value, view.unit);

// --- Flame graph --------------------------------------------------------------------------------------------------

const nameOf = node => data.tree.names[view.tree.name[node]];
const positionOf = node => data.tree.positions[view.tree.position[node]];

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
    // At most half opaque, so that the text on it is readable.
    return strength < 0.02 ? "var(--still)" : `rgba(var(${net > 0 ? "--grow" : "--shrink"}), ${(0.1 + 0.4 * strength).toFixed(2)})`;
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
  const hit = new Uint8Array(view.tree.count);
  if (!pattern) return hit;
  const names = data.tree.names.map(name => pattern.test(name)), positions = data.tree.positions.map(position => position !== "" && pattern.test(position));
  for (let i = 1; i < hit.length; ++i) hit[i] = names[view.tree.name[i]] || positions[view.tree.position[i]] ? 1 : 0;
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
  for (let i = state.zoom; i !== 0;) callers.push(i = view.tree.parent[i]);
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
    const below = view.tree.children[node].filter(child => view.width[child] * scale >= .7);
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
  const found = new Uint8Array(view.tree.count);
  let sum = 0, functions = new Set();
  for (let i = 1; i < found.length; ++i) {
    found[i] = found[view.tree.parent[i]] || hit[i];
    if (hit[i]) functions.add(view.tree.name[i]);
    if (found[i]) sum += view.own(i);
  }
  $("found").textContent = `${functions.size} functions match, with ${shown(sum)} of ${whole}` + (view.changing ? "" : ` (${percent(sum, view.all[0])})`);
}

function tipFor(node) {
  const lines = [element("b", {}, nameOf(node))];
  if (positionOf(node)) lines.push(positionOf(node));
  lines.push(`${shown(view.value(node))}` + (view.whole ? ` (${percent(view.value(node), view.whole)})` : ""));
  if (view.own(node)) lines.push(`flat ${shown(view.own(node))}`);
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

// Returns a bar that is filled to the share of `value` in `most`.
function meter(value, most) {
  const share = most ? Math.min(100, 100 * Math.abs(value) / most) : 0;
  const bar = element("i", {class: view.changing ? (value > 0 ? "grow" : "shrink") : null});
  bar.style.width = share.toFixed(1) + "%";
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
      const weight = Math.abs(view.own(node)) * view.tree.count + Math.abs(view.value(node));
      if (weight > r.weight) { r.weight = weight; r.position = positionOf(node); }
      if (!open.get(name)) r.all += view.value(node);
      open.set(name, (open.get(name) || 0) + 1);
      visit.push([node, true]);
    }
    for (const child of view.tree.children[node]) visit.push([child, false]);
  }
  const key = state.sort;
  const list = [...rows.values()].filter(r => r.self || r.all)
    .sort((a, b) => Math.abs(b[key]) - Math.abs(a[key]) || Math.abs(b.all) - Math.abs(a.all)).slice(0, 15);
  const most = Math.max(...list.map(r => Math.max(Math.abs(r.self), Math.abs(r.all))), 0);
  const title = (name, text) => element("th", {class: "number", "data-sort": name, "aria-sort": key === name ? "descending" : null}, text);
  $("functions").replaceChildren(tableOf(
    [title("self", "flat"), th("meter-cell", ""), title("all", "cum"), th("meter-cell", ""), th(null, "function")],
    list.map(r => element("tr", {}, td(r.self ? "number" : "number muted", shown(r.self)), td("meter-cell", meter(r.self, most)),
                          td("number", shown(r.all)), td("meter-cell", meter(r.all, most)), nameCell(r.name, r.position)))));
}
document.addEventListener("click", event => {
  const head = event.target.closest("[data-sort]"), link = event.target.closest("[data-find]");
  if (head) { state.sort = head.dataset.sort; drawFunctions(); }
  if (link) search("^" + link.dataset.find.replace(/[.*+?^${}()|[\]\\]/g, "\\$&") + "$");
});

// Returns the sums by the values of the label.
function sumsBy(label) {
  const sums = new Map();
  for (const {labels, now, base} of view.entries) {
    const set = data.label_sets[labels];
    const value = Object.hasOwn(set, label) ? set[label] : "(none)";
    sums.set(value, (sums.get(value) || 0) + now - (view.changing ? base : 0));
  }
  return sums;
}
// Returns a table of sums by the values of a label.
function sumsTable(label, sums) {
  const list = [...sums].filter(([, sum]) => sum).sort((a, b) => Math.abs(b[1]) - Math.abs(a[1])).slice(0, 20);
  const most = Math.max(...list.map(([, sum]) => Math.abs(sum)), 0);
  return list.length === 0 ? muted("Nothing here.") : tableOf(
    [th(null, label), th(null, ""), th("number", "")],
    list.map(([value, sum]) => element("tr", {}, td(null, String(value)), td(null, meter(sum, most)), td("number", shown(sum)))));
}
const drawLabels = () => $("labels").replaceChildren(sumsTable(state.label, sumsBy(state.label)));
function drawLibraries() {
  const sums = sumsBy("library");
  // The memory that only the driver reports is known for the dumps, in bytes in use.
  if (!selection() && data.types[view.type].type === "inuse_space") {
    const add = (rows, sign) => {
      for (const [device, name, bytes] of rows) {
        if (!state.device || device === state.device) sums.set(name, (sums.get(name) || 0) + sign * bytes);
      }
    };
    add(data.unaccounted, 1);
    if (view.changing) add(data.base.unaccounted, -1);
  }
  $("libraries-panel").hidden = sums.size === 0;
  $("libraries").replaceChildren(sumsTable("library", sums));
}

// --- Parts that do not depend on the choices -----------------------------------------------------------------------

function drawDevices() {
  const last = data.files[data.files.length - 1];
  fill($("devices"), last.devices.map(d => {
    const limit = d.limit ?? Math.max(d.peak ?? 0, d.in_use ?? 0);
    const share = value => limit ? Math.max(0, Math.min(100, 100 * value / limit)) : 0;
    const outside = Math.max(0, d.unaccounted ?? 0);
    const facts = [["peak", bytes(d.peak ?? 0)]];
    if (d.unaccounted !== undefined) facts.push(["unaccounted", bytes(d.unaccounted)]);
    if (d.pool > 0) facts.push(["idle in pools", `${bytes(d.idle ?? 0)} of ${bytes(d.pool)}`]);
    if (d.largest_free_block !== undefined) facts.push(["largest free block", bytes(d.largest_free_block)]);
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
}

// Returns a line through the values.
function course(values, kind) {
  const most = Math.max(...values, 1);
  const points = values.map((v, i) => `${(i * 116 / Math.max(1, values.length - 1) + 2).toFixed(1)},${(28 - 26 * v / most).toFixed(1)}`);
  const svg = $("course").content.firstElementChild.cloneNode(true);
  svg.setAttribute("class", "course " + kind);
  svg.setAttribute("aria-label", values.map(bytes).join(", "));
  svg.firstElementChild.setAttribute("d", "M" + points.join("L"));
  return svg;
}
// --- Timeline -----------------------------------------------------------------------------------------------------

// Returns the values of a series.
function seriesOf(text) {
  let sum = 0;
  return Float64Array.from(text.split(","), difference => sum += Number(difference));
}
function readTimeline() {
  const from = data.timeline;
  const optional = series => series ? seriesOf(series) : null;
  const spaceOf = labels => ["managed", "pinned_host"].includes(labels.kind) ? labels.kind : "device";
  return {
    times: seriesOf(from.times),
    accounts: from.accounts.map(account => ({...account, low: seriesOf(account.low), high: seriesOf(account.high), in_use: seriesOf(account.in_use),
                                             idle: optional(account.idle), unaccounted: optional(account.unaccounted)})),
    rows: from.rows.map(([leaf, labels, series]) => ({leaf, labels, values: seriesOf(series), account: data.label_sets[labels].device + " " + spaceOf(data.label_sets[labels])})),
    host: optional(from.host), marks: from.marks, lost: from.lost};
}
const timeline = data.timeline ? readTimeline() : null;
const lastInstant = timeline ? timeline.times.length - 1 : 0;

// Returns the selected instants, or null.
function selection() {
  if (!timeline || !state.at) return null;
  const [first, last] = state.at.split("-").map(Number);
  if (!(first >= 0 && first <= lastInstant)) return null;
  return last > first && last <= lastInstant ? {first, last, isSpan: true} : {first, last: first, isSpan: false};
}
const accountShown = () => timeline.accounts[Number(state.account)] || timeline.accounts[0];

// Returns the rows with these numbers as at most `most` bands and "other": by function, or by the label `key`. The bands
// are those with the most bytes at any instant.
function bandsOf(numbers, key, most) {
  const bands = new Map();
  for (const number of numbers) {
    const row = timeline.rows[number], set = data.label_sets[row.labels];
    const name = key ? String(Object.hasOwn(set, key) ? set[key] : "(none)") : data.tree.names[ownFrames.name[ownFrames.of[row.leaf]]];
    if (!bands.has(name)) bands.set(name, {name, values: new Float64Array(lastInstant + 1), most: 0, variation: 0});
    const values = bands.get(name).values;
    for (let i = 0; i <= lastInstant; ++i) values[i] += row.values[i];
  }
  const list = [...bands.values()];
  for (const band of list) {
    band.values.forEach((value, i) => {
      band.most = Math.max(band.most, value);
      band.variation += i ? Math.abs(value - band.values[i - 1]) : 0;
    });
  }
  list.sort((a, b) => b.most - a.most);
  if (list.length <= most) return list;
  const other = {name: "other", values: new Float64Array(lastInstant + 1), most: 0, isOther: true};
  for (const band of list.splice(most)) for (let i = 0; i <= lastInstant; ++i) other.values[i] += band.values[i];
  return [...list, other];
}
const secondsText = nanos => {
  const whole = timeline.times[lastInstant];
  return whole < 1e6 ? (nanos / 1e3).toFixed(1) + " us" : whole < 1e9 ? (nanos / 1e6).toFixed(2) + " ms" : (nanos / 1e9).toFixed(whole < 1e11 ? 3 : 1) + " s";
};
// Returns the smallest of 1, 2, 5, 10, 20, 50, ... that is not less than `least`.
function roundStep(least) {
  const power = 10 ** Math.floor(Math.log10(least));
  return power * [1, 2, 5, 10].find(digit => digit * power >= least * .999);
}
const withoutZeros = text => text.replace(/\.(\d*[1-9])?0* /, (_, digits) => (digits ? "." + digits : "") + " ");

const kBands = 8, kAxis = 18;
let bands = [], plot = null;
function bandColour(i, band) {
  if (band.isOther) return "var(--still)";
  return `hsl(${(212 + 137 * i) % 360} var(--flame-chroma) var(--flame-light))`;
}
// The colours of a canvas cannot refer to CSS variables.
function resolved(colour) {
  const style = getComputedStyle(document.documentElement);
  return colour.replace(/var\((--[a-z-]+)\)/g, (_, name) => style.getPropertyValue(name).trim());
}
function readBands() {
  const account = accountShown();
  const numbers = timeline.rows.map((_, i) => i).filter(i => timeline.rows[i].account === account.device + " " + account.space);
  // The bands that vary least are at the bottom, so that growth of a band shows.
  bands = bandsOf(numbers, state.stack, kBands).sort((a, b) => (a.isOther || false) - (b.isOther || false) || a.variation - b.variation);
  const entries = bands.map((band, i) => {
    const swatch = element("i", {});
    swatch.style.background = bandColour(i, band);
    return element("span", {}, swatch, band.name);
  });
  const line = (kind, text) => element("span", {}, element("i", {class: kind}), text);
  if (account.idle) entries.push(line("idle", "in use without idle memory of pools"));
  if (account.unaccounted) entries.push(line("unaccounted", "unaccounted"));
  if (timeline.host) entries.push(line("host", "host memory"));
  if (account.limit) entries.push(line("limit", "limit " + bytes(account.limit)));
  fill($("legend"), entries);
}
function drawTimeline() {
  const canvas = $("timeline"), account = accountShown(), n = lastInstant + 1;
  const width = canvas.clientWidth || 1000, height = canvas.clientHeight || 220, scale = devicePixelRatio || 1;
  canvas.width = Math.round(width * scale);
  canvas.height = Math.round(height * scale);
  const g = canvas.getContext("2d");
  g.scale(scale, scale);
  let most = account.peak;
  for (let i = 0; i < n; ++i) most = Math.max(most, account.in_use[i] + (account.unaccounted ? account.unaccounted[i] : 0));
  const showsLimit = account.limit && account.limit <= 3 * most;
  if (showsLimit) most = Math.max(most, account.limit);
  const host = timeline.host && timeline.host.reduce((a, b) => Math.max(a, b), 0) <= 4 * most ? timeline.host : null;
  if (host) most = Math.max(most, ...host);
  most = Math.max(most * 1.06, 1);
  const whole = timeline.times[lastInstant] || 1, bottom = height - kAxis;
  const x = i => timeline.times[i] / whole * width, y = value => bottom - value / most * (bottom - 4);
  plot = {width, whole};
  const path = (value, from) => {
    for (let i = 0; i < n; ++i) if (i === 0 && from) g.moveTo(x(i), y(value(i))); else g.lineTo(x(i), y(value(i)));
  };
  // Grid: at round numbers, powers of two of bytes.
  g.font = "11px system-ui, sans-serif";
  g.strokeStyle = resolved("var(--line)");
  g.fillStyle = resolved("var(--muted)");
  const byteStep = 2 ** Math.max(0, Math.ceil(Math.log2(most / 4)));
  for (let value = byteStep; value < most; value += byteStep) {
    g.beginPath(); g.moveTo(0, y(value)); g.lineTo(width, y(value)); g.stroke();
  }
  const timeStep = roundStep(whole / Math.max(2, Math.min(8, width / 120)));
  for (let time = 0; time <= whole; time += timeStep) {
    const text = withoutZeros(secondsText(time)), half = g.measureText(text).width / 2;
    g.fillText(text, Math.max(0, Math.min(width - 2 * half, time / whole * width - half)), height - 4);
  }
  const below = new Float64Array(n);
  bands.forEach((band, b) => {
    g.fillStyle = resolved(bandColour(b, band));
    g.beginPath();
    path(i => below[i] + band.values[i], true);
    for (let i = n; i-- > 0;) g.lineTo(x(i), y(below[i]));
    g.fill();
    for (let i = 0; i < n; ++i) below[i] += band.values[i];
  });
  if (account.unaccounted) {
    g.globalAlpha = .3;
    g.fillStyle = resolved("var(--muted)");
    g.beginPath();
    path(i => account.in_use[i] + account.unaccounted[i], true);
    for (let i = n; i-- > 0;) g.lineTo(x(i), y(account.in_use[i]));
    g.fill();
    g.globalAlpha = 1;
  }
  const stroke = (value, colour, dash, lineWidth) => {
    g.strokeStyle = resolved(colour);
    g.lineWidth = lineWidth || 1.2;
    g.setLineDash(dash);
    g.beginPath();
    path(value, true);
    g.stroke();
    g.setLineDash([]);
    g.lineWidth = 1;
  };
  stroke(i => account.high[i], "var(--text)", []);
  if (account.idle) stroke(i => account.in_use[i] - account.idle[i], "var(--text)", [2, 3]);
  if (host) stroke(i => host[i], "var(--accent)", [6, 3]);
  if (showsLimit) stroke(() => account.limit, "rgb(var(--grow))", [8, 4]);
  // A flag is a line at an instant, with a label. A label is left out if there is no room for it.
  const flags = timeline.marks.map(mark => mark.failed ? [x(mark.instant), "rgb(var(--grow))", "failed"]
                                                       : [x(mark.instant), "var(--accent)", mark.text.split("/").pop().slice(0, 16)]);
  if (account.peak_instant !== undefined) flags.unshift([x(account.peak_instant), "var(--text)", "peak"]);
  const labels = [];
  for (const [at, colour, text] of flags) {
    g.fillStyle = g.strokeStyle = resolved(colour);
    g.beginPath(); g.moveTo(at, 2); g.lineTo(at, bottom); g.stroke();
    const size = g.measureText(text).width, left = at + 3 + size <= width ? at + 3 : Math.max(0, at - 3 - size);
    if (labels.some(label => left <= label.right + 6 && left + size >= label.left - 6)) continue;
    labels.push({left, right: left + size});
    g.fillText(text, left, 11);
  }
  for (const [from, to] of timeline.lost) {
    g.globalAlpha = .25;
    g.fillStyle = resolved("rgb(var(--grow))");
    g.fillRect(from / whole * width, 0, Math.max(1, (to - from) / whole * width), bottom);
    g.globalAlpha = 1;
  }
  g.fillStyle = resolved("var(--text)");
  for (let value = byteStep; value < most; value += byteStep) g.fillText(withoutZeros(bytes(value)), 4, y(value) - 3);
  const at = selection();
  if (!at) return;
  g.fillStyle = g.strokeStyle = resolved("var(--accent)");
  if (at.isSpan) {
    g.globalAlpha = .18;
    g.fillRect(x(at.first), 0, x(at.last) - x(at.first), bottom);
    g.globalAlpha = 1;
  }
  g.lineWidth = 2;
  for (const i of [at.first, at.last]) { g.beginPath(); g.moveTo(x(i), 0); g.lineTo(x(i), bottom); g.stroke(); }
  g.lineWidth = 1;
}
function describeInstant() {
  const at = selection(), account = accountShown();
  const canvas = $("timeline");
  $("whole").hidden = !at;
  canvas.setAttribute("aria-valuemax", lastInstant);
  canvas.setAttribute("aria-valuenow", at ? at.last : lastInstant);
  let text;
  if (!at) {
    text = `${account.name}: peak ${bytes(account.peak)}` + (account.peak_instant === undefined ? "" : ` at ${secondsText(timeline.times[account.peak_instant])}`) +
      (account.limit ? `, limit ${bytes(account.limit)}` : "") + ". Click an instant, or drag over a span; arrow keys move the instant.";
  } else if (at.isSpan) {
    const growth = account.in_use[at.last] - account.in_use[at.first];
    text = `${secondsText(timeline.times[at.first])} to ${secondsText(timeline.times[at.last])}: ${change(growth, "bytes")}, from ${bytes(account.in_use[at.first])} to ${bytes(account.in_use[at.last])} in use`;
  } else {
    const i = at.last;
    const parts = [`${secondsText(timeline.times[i])}: ${bytes(account.in_use[i])} in use`];
    if (account.idle) parts.push(`${bytes(account.idle[i])} idle in pools`);
    if (account.unaccounted) parts.push(`${bytes(account.unaccounted[i])} unaccounted`);
    if (timeline.host) parts.push(`host ${bytes(timeline.host[i])}`);
    if (i === account.peak_instant) parts.push("the peak");
    for (const mark of timeline.marks) if (mark.instant === i && mark.text) parts.push(mark.text);
    text = parts.join(", ");
  }
  $("instant").textContent = text;
  canvas.setAttribute("aria-valuetext", text);
}
// Selects an instant, a span, or nothing.
function select(first, last) {
  const clamp = i => Math.max(0, Math.min(lastInstant, i));
  const wasSpan = selection()?.isSpan;
  state.at = first === null ? "" : last === undefined || last === first ? String(clamp(first)) : `${clamp(Math.min(first, last))}-${clamp(Math.max(first, last))}`;
  const at = selection();
  if (at && at.isSpan && !wasSpan) state.mode = "change";
  if (at && !at.isSpan) state.mode = "now";
  draw();
}
function instantAt(clientX) {
  const box = $("timeline").getBoundingClientRect();
  const time = Math.max(0, Math.min(1, (clientX - box.left) / box.width)) * plot.whole;
  let low = 0, high = lastInstant;
  while (low < high) {
    const middle = (low + high) >> 1;
    if (timeline.times[middle] < time) low = middle + 1; else high = middle;
  }
  return low > 0 && time - timeline.times[low - 1] < timeline.times[low] - time ? low - 1 : low;
}
function startTimeline() {
  $("timeline-panel").hidden = !timeline;
  if (!timeline) return;
  const canvas = $("timeline");
  let from = null, fromX = 0;
  canvas.addEventListener("pointerdown", event => {
    from = instantAt(event.clientX);
    fromX = event.clientX;
    try { canvas.setPointerCapture(event.pointerId); } catch { /* the pointer is gone already */ }
  });
  const drag = (event, isEnd) => {
    if (from === null) return;
    const isSpan = Math.abs(event.clientX - fromX) > 4;
    if (isSpan || isEnd) select(from, isSpan ? instantAt(event.clientX) : undefined);
    if (isEnd) from = null;
  };
  canvas.addEventListener("pointermove", event => drag(event, false));
  canvas.addEventListener("pointerup", event => drag(event, true));
  canvas.addEventListener("pointercancel", () => { from = null; });
  canvas.addEventListener("keydown", event => {
    const at = selection(), step = event.shiftKey ? 10 : 1, now = at ? at.last : lastInstant;
    const to = {ArrowLeft: now - step, ArrowRight: now + step, Home: 0, End: lastInstant}[event.key];
    if (to === undefined) return;
    event.preventDefault();
    select(to);
  });
  fill($("account"), timeline.accounts.map((account, i) => element("option", {value: i}, account.name)));
  $("account").parentElement.hidden = timeline.accounts.length < 2;
  $("account").value = timeline.accounts[Number(state.account)] ? state.account : "0";
  $("account").onchange = event => { state.account = event.target.value; readBands(); draw(); };
  const labels = [...new Set(timeline.rows.flatMap(row => Object.keys(data.label_sets[row.labels])))].filter(key => !["bytes", "device"].includes(key)).sort();
  if (!labels.includes(state.stack)) state.stack = "";
  fill($("stack"), ["", ...labels].map(key => element("option", {value: key}, key || "function")));
  $("stack").value = state.stack;
  $("stack").onchange = event => { state.stack = event.target.value; readBands(); draw(); };
  $("to-peak").onclick = () => { const peak = accountShown().peak_instant; if (peak !== undefined) { select(peak); canvas.focus(); } };
  $("whole").onclick = () => select(null);
  readBands();
}

// --- Controls -----------------------------------------------------------------------------------------------------

function choice(id, options) {
  fill($(id), options.map(([value, text]) => element("button", {type: "button", "data-value": value, "aria-pressed": state[id] === value}, text)));
  $(id).onclick = event => {
    const button = event.target.closest("[data-value]");
    if (!button) return;
    state[id] = button.dataset.value;
    if (id === "frames") state.zoom = 0;
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
  for (const key of kStored) if (state[key] && !(key === "account" && state[key] === "0")) address.set(key, state[key]);
  history.replaceState(null, "", "#" + address);
}
function applyTheme() {
  const dark = state.theme ? state.theme === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
  document.documentElement.dataset.theme = dark ? "dark" : "light";
}
function draw() {
  const at = selection();
  choice("measure", measures.length > 1 && !at ? measures : []);
  choice("unit", !at && state.measure !== "" && typeOf(state.measure, "objects") >= 0 ? [["space", "Bytes"], ["objects", "Buffers"]] : []);
  choice("frames", hasLibraries ? [["own", "Own code"], ["all", "All frames"]] : []);
  choice("mode", at ? (at.isSpan ? [["now", "At its end"], ["change", "Change"]] : []) : data.base ? [["now", "Now"], ["change", "Change"]] : []);
  applyTheme();
  compute();
  if (timeline) { drawTimeline(); describeInstant(); }
  drawFlame();
  drawFunctions();
  drawLibraries();
  drawLabels();
  $("functions-title").textContent = view.changing ? "Functions, by change" : "Functions";
  remember();
}

const devices = [...new Set(data.label_sets.map(labels => labels.device).filter(Boolean))].sort();
fill($("device"), ["", ...devices].map(d => element("option", {value: d}, d || "all")));
$("device").parentElement.hidden = devices.length < 2;
$("device").value = state.device;
$("device").onchange = event => { state.device = event.target.value; draw(); };
const keys = [...new Set(data.label_sets.flatMap(labels => Object.keys(labels)))].filter(key => key !== "bytes").sort();
if (!keys.includes(state.label)) state.label = keys.find(key => !["device", "kind", "allocator", "library"].includes(key)) || (keys.includes("kind") ? "kind" : keys[0] || "");
fill($("label"), keys.map(key => element("option", {value: key, selected: key === state.label ? "" : null}, key)));
$("label").onchange = event => { state.label = event.target.value; drawLabels(); remember(); };
$("search").value = state.q;
$("search").oninput = event => search(event.target.value);
$("theme").onclick = () => { state.theme = document.documentElement.dataset.theme === "dark" ? "light" : "dark"; draw(); };
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => draw());
let resizing = 0;
addEventListener("resize", () => { cancelAnimationFrame(resizing); resizing = requestAnimationFrame(() => { drawFlame(); if (timeline) drawTimeline(); }); });
addEventListener("keydown", event => {
  if (event.key === "Escape") { if (state.q) search(""); else if (state.zoom) { state.zoom = 0; drawFlame(); } else if (state.at) select(null); }
});

const last = data.files[data.files.length - 1];
document.title = "Device memory: " + last.path;
$("subtitle").textContent = last.path + (last.time ? ", " + last.time : "") + (data.base ? "; compared with " + data.base.path + (data.base.time ? ", " + data.base.time : "") : "");
const dropped = data.files.filter(file => file.dropped_records > 0);
const warnings = dropped.map(file => `${file.path} is incomplete: ${file.dropped_records} allocations of ${bytes(file.dropped_bytes)} were not recorded`);
if (data.timeline && data.timeline.problem) warnings.push(data.timeline.problem);
if (data.timeline && data.timeline.lost.length) warnings.push(`events are missing in ${data.timeline.lost.length} spans of the recording, which the timeline marks red`);
$("warning").hidden = warnings.length === 0;
$("warning").textContent = warnings.join("; ");
$("comments").textContent = data.files.map(file => file.path + "\n" + file.comments.join("\n")).join("\n\n");
// The findings, as hbmprof explain prints them.
fill($("verdict"), [element("p", {}, data.verdict),
  ...data.findings.map(finding => element("details", {},
    element("summary", {}, element("span", {class: "tag " + finding.code.toLowerCase()}, finding.code), " " + finding.sentence),
    element("p", {}, `${finding.evidence} (sure: ${finding.sure}). What to do: ${finding.action}.`), element("code", {}, finding.next),
    ...[["course", "by dump"], ["births", "live bytes, by time of birth"]].filter(([key]) => finding[key] && finding[key].length > 1)
      .map(([key, text]) => element("p", {class: key}, course(finding[key], finding.code.toLowerCase()), " ", element("span", {class: "muted"}, text))))),
  element("p", {class: "muted"}, data.trust)]);
readPattern();
drawDevices();
startTimeline();
draw();
})();
