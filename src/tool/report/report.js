// The page of the report: a timeline, a flame graph and tables of the data that `hbmprof report` embeds.
//
// Data: a stack is a list of numbers of frames, outermost first. A frame is [function, position in the source, rank]:
// in each stack, the frames with the lowest rank are the program's own code, and the others those of known libraries.
// The label `library` of a label set is the library that holds the memory. `unaccounted`, and that of the base, is a list
// of [device, name, bytes]: the memory that only the driver reports, by the name under which it is shown.
// A sample is [stack, label set, values now, values in the base]. Values are in the order of `types`.
// Of a recording, `timeline` has:
// - times: nanoseconds of the instants since the start of the recording,
// - accounts: for each device and memory space the bytes in use at the instants (in_use), and the lowest and highest
//   since the instant before (low, high); idle: idle memory of pools; unaccounted: the driver's bytes in use minus the
//   recorded ones,
// - rows: [stack, label set, series]: the bytes in use of these samples at the instants,
// - host: resident bytes of the process; marks: marks and failed allocations; lost: [from, to, count] of lost events.
// A series is the differences between neighbouring values (the first one: from 0), with commas between them.
(() => {
const data = JSON.parse(document.getElementById("data").textContent);
const percent = (part, whole) => whole ? (100 * part / whole).toFixed(1) + " %" : "";
// Returns a bar that is filled to the share of `value` in `most`.
function meter(value, most, kind) {
  const bar = element("i", {class: kind ?? null});
  bar.style.width = (most ? Math.min(100, 100 * Math.abs(value) / most) : 0).toFixed(1) + "%";
  return element("span", {class: "meter"}, bar);
}
const th = (kind, text) => element("th", {class: kind}, text);
const td = (kind, ...contents) => element("td", {class: kind}, ...contents);
function tableOf(head, rows) {
  return element("div", {class: "scroll"},
    element("table", {}, element("thead", {}, element("tr", {}, ...head)), element("tbody", {}, ...rows)));
}
// The choices of the user.
const state = {measure: "", unit: "space", mode: "now", frames: data.own ? "own" : "all", device: "", label: "", q: "", at: "", stack: "", account: "0", zoom: 0, sort: "self"};
const measures = [["inuse", "In use"], ["peak", "At the peak"], ["pool_peak", "Blocks of pools at their peak"], ["reserved", "In use, by the call to the device"], ["alloc", "Allocated ever"]].filter(([name]) => typeOf(name, "space") >= 0);
if (measures.length === 0) measures.push(["", data.types[data.default_type].type]);
state.measure = measures[0][0];

function typeOf(measure, unit) {
  const names = measure === "inuse" ? [measure + "_" + unit, unit] : [measure + "_" + unit];
  return data.types.findIndex(type => names.includes(type.type));
}
function typeShown() {
  if (state.measure === "") return data.default_type;
  const type = typeOf(state.measure, state.unit);
  return type >= 0 ? type : typeOf(state.measure, "space");
}

const muted = text => element("p", {class: "muted"}, text);

// --- Sums ---------------------------------------------------------------------------------------------------------

// The functions and positions of frames, by number.
const functions = [], functionOf = [];
const numbers = new Map();
for (const [name] of data.frames) {
  if (!numbers.has(name)) numbers.set(name, functions.push(name) - 1);
  functionOf.push(numbers.get(name));
}
// Returns the tree of the stacks by function: for each node the parent, which is smaller, the number of the function, the
// positions of the first few call sites, and the children. `of` is the node of each stack. Node 0 is the root.
function treeOf(isOwn) {
  const tree = {parent: [0], name: [functions.length], positions: [[]], children: [[]]}, known = new Map();
  const childOf = (node, frame) => {
    const key = node * functions.length + functionOf[frame], position = data.frames[frame][1];
    let child = known.get(key);
    if (child === undefined) {
      known.set(key, child = tree.parent.push(node) - 1);
      tree.name.push(functionOf[frame]);
      tree.positions.push([]);
      tree.children.push([]);
      tree.children[node].push(child);
    }
    const positions = tree.positions[child];
    if (position && positions.length <= 4 && !positions.includes(position)) positions.push(position);
    return child;
  };
  tree.of = data.stacks.map(stack => {
    const rank = isOwn ? stack.reduce((least, frame) => Math.min(least, data.frames[frame][2]), Infinity) : Infinity;
    return stack.reduce((node, frame) => data.frames[frame][2] <= rank ? childOf(node, frame) : node, 0);
  });
  tree.count = tree.parent.length;
  return tree;
}
const allFrames = treeOf(false), ownFrames = treeOf(true);
functions.push("all");
const hasLibraries = ownFrames.count < allFrames.count;

// The samples of the current choices, with `now` and `base`: those of the selected instant or span of the timeline, else
// those of the dumps.
function entriesShown(type) {
  const at = selection();
  if (at) return timeline.rows.map(row => ({stack: row.stack, labels: row.labels, now: row.values[at.last], base: at.isSpan ? row.values[at.first] : 0}));
  return data.samples.map(([stack, labels, now, base]) => ({stack, labels, now: now[type], base: base ? base[type] : 0}));
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
    self[tree.of[entry.stack]] += entry.now;
    before[tree.of[entry.stack]] += entry.base;
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

const nameOf = node => functions[view.tree.name[node]];
function positionOf(node) {
  const positions = view.tree.positions[node];
  return positions.slice(0, 4).join(", ") + (positions.length > 4 ? ", ..." : "");
}

// Functions of the same class or namespace have the same colour. All functions without a class or namespace have one
// colour.
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
  return `hsl(${hueOf(nameOf(node))} var(--flame-chroma) var(--flame-light))`;
}

const escaped = text => text.replace(/[.*+?^${}()|[\]\\]/g, "\\$&");
let pattern = null;

// Finds the nodes whose name or position matches.
function matches() {
  const hit = new Uint8Array(view.tree.count);
  if (!pattern) return hit;
  const names = functions.map(name => pattern.test(name)), positions = new Set(data.frames.map(frame => frame[1]).filter(position => pattern.test(position)));
  for (let i = 1; i < hit.length; ++i) hit[i] = names[view.tree.name[i]] || view.tree.positions[i].some(position => positions.has(position)) ? 1 : 0;
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
  return lines.map(line => element("div", {}, line));
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

// Returns a cell with the function's name, as a link that searches for it, and with `lines` below the name.
const nameCell = (name, ...lines) => td("name", element("a", {"data-find": name}, name), ...lines.map(line => element("small", {}, line)));

const kindOf = value => !view.changing ? null : value > 0 ? "grow" : "shrink";

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
    list.map(r => element("tr", {}, td(r.self ? "number" : "number muted", shown(r.self)), td("meter-cell", meter(r.self, most, kindOf(r.self))),
                          td("number", shown(r.all)), td("meter-cell", meter(r.all, most, kindOf(r.all))), nameCell(r.name, r.position)))));
}
document.addEventListener("click", event => {
  const head = event.target.closest("[data-sort]"), link = event.target.closest("[data-find]");
  if (head) { state.sort = head.dataset.sort; drawFunctions(); }
  if (link) search("^" + escaped(link.dataset.find) + "$");
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
    list.map(([value, sum]) => element("tr", {}, td(null, String(value)), td(null, meter(sum, most, kindOf(sum))), td("number", shown(sum)))));
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
  fill($("devices"), data.files.at(-1).devices.map(d => {
    const facts = [["peak", bytes(d.peak ?? 0)]];
    if (d.unaccounted !== undefined) facts.push(["unaccounted", bytes(d.unaccounted)]);
    if (d.pool > 0) facts.push(["idle in pools", `${bytes(d.idle ?? 0)} of ${bytes(d.pool)}`]);
    if (d.largest_free_block !== undefined) facts.push(["largest free block", bytes(d.largest_free_block)]);
    if (d.num_live !== undefined) facts.push(["live buffers", d.num_live.toLocaleString("en-US")]);
    return element("article", {class: "card"},
      element("h3", {}, d.name + (d.space === "device" ? "" : ", " + d.space)),
      element("div", {class: "big"}, bytes(d.in_use ?? 0) + " ",
              element("span", {class: "of"}, d.limit === undefined ? "in use" : "of " + bytes(d.limit))),
      ...(d.limit === undefined ? [] : [limitBar(d.limit, d.in_use ?? 0, d.peak ?? 0, d.unaccounted ?? 0)]),
      element("dl", {}, ...facts.flatMap(([name, value]) => [element("dt", {}, name), element("dd", {}, value)])));
  }));
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
    rows: from.rows.map(([stack, labels, series]) => ({stack, labels, values: seriesOf(series), account: data.label_sets[labels].device + " " + spaceOf(data.label_sets[labels])})),
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
const accountShown = () => timeline.accounts[Number(state.account)];

// Returns the rows with these numbers as at most `most` bands and "other": by function, or by the label `key`. The bands
// are those with the most bytes at any instant.
function bandsOf(numbers, key, most) {
  const bands = new Map();
  for (const number of numbers) {
    const row = timeline.rows[number], set = data.label_sets[row.labels];
    const name = key ? String(Object.hasOwn(set, key) ? set[key] : "(none)") : functions[ownFrames.name[ownFrames.of[row.stack]]];
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
let bands = [];
const bandColour = (i, band) => band.isOther ? "var(--still)" : `hsl(${(212 + 137 * i) % 360} var(--flame-chroma) var(--flame-light))`;
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
  const path = value => {
    g.beginPath();
    for (let i = 0; i < n; ++i) g.lineTo(x(i), y(value(i)));
  };
  const area = (top, base, colour) => {
    g.fillStyle = resolved(colour);
    path(top);
    for (let i = n; i-- > 0;) g.lineTo(x(i), y(base(i)));
    g.fill();
  };
  const stroke = (value, colour, dash) => {
    g.strokeStyle = resolved(colour);
    g.lineWidth = 1.2;
    g.setLineDash(dash);
    path(value);
    g.stroke();
    g.setLineDash([]);
    g.lineWidth = 1;
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
    area(i => below[i] + band.values[i], i => below[i], bandColour(b, band));
    for (let i = 0; i < n; ++i) below[i] += band.values[i];
  });
  if (account.unaccounted) {
    g.globalAlpha = .3;
    area(i => account.in_use[i] + account.unaccounted[i], i => account.in_use[i], "var(--muted)");
    g.globalAlpha = 1;
  }
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
function selectInstants(first, last) {
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
  const time = Math.max(0, Math.min(1, (clientX - box.left) / box.width)) * timeline.times[lastInstant];
  const distances = timeline.times.map(instant => Math.abs(instant - time));
  return distances.indexOf(Math.min(...distances));
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
    if (isSpan || isEnd) selectInstants(from, isSpan ? instantAt(event.clientX) : undefined);
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
    selectInstants(to);
  });
  select("account", timeline.accounts.map((account, i) => [String(i), account.name]), readBands);
  $("account").parentElement.hidden = timeline.accounts.length < 2;
  const labels = [...new Set(timeline.rows.flatMap(row => Object.keys(data.label_sets[row.labels])))].filter(key => !["bytes", "device"].includes(key)).sort();
  select("stack", [["", "function"], ...labels.map(key => [key, key])], readBands);
  $("to-peak").onclick = () => { const peak = accountShown().peak_instant; if (peak !== undefined) { selectInstants(peak); canvas.focus(); } };
  $("whole").onclick = () => selectInstants(null);
  readBands();
}

// --- Controls -----------------------------------------------------------------------------------------------------

// Fills the list `id` with values and texts. A choice sets the state of this name and calls `changed`.
function select(id, options, changed) {
  fill($(id), options.map(([value, text]) => element("option", {value}, text)));
  $(id).value = state[id];
  $(id).onchange = event => { state[id] = event.target.value; if (changed) changed(); draw(); };
}
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
  try {
    pattern = text ? new RegExp(text, "i") : null;
  } catch {
    pattern = new RegExp(escaped(text), "i");
  }
  drawFlame();
}
function draw() {
  const at = selection();
  choice("measure", measures.length > 1 && !at ? measures : []);
  choice("unit", !at && state.measure !== "" && typeOf(state.measure, "objects") >= 0 ? [["space", "Bytes"], ["objects", "Buffers"]] : []);
  choice("frames", hasLibraries ? [["own", "Own code"], ["all", "All frames"]] : []);
  choice("mode", at ? (at.isSpan ? [["now", "At its end"], ["change", "Change"]] : []) : data.base ? [["now", "Now"], ["change", "Change"]] : []);
  compute();
  if (timeline) { drawTimeline(); describeInstant(); }
  drawFlame();
  drawFunctions();
  drawLibraries();
  drawLabels();
  $("functions-title").textContent = view.changing ? "Functions, by change" : "Functions";
}

const devices = [...new Set(data.label_sets.map(labels => labels.device).filter(Boolean))].sort();
select("device", [["", "all"], ...devices.map(device => [device, device])]);
$("device").parentElement.hidden = devices.length < 2;
const keys = [...new Set(data.label_sets.flatMap(labels => Object.keys(labels)))].filter(key => key !== "bytes").sort();
state.label = keys.find(key => !["device", "kind", "allocator", "library"].includes(key)) || (keys.includes("kind") ? "kind" : keys[0] || "");
select("label", keys.map(key => [key, key]));
$("search").oninput = event => search(event.target.value);
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => draw());
let resizing = 0;
addEventListener("resize", () => { cancelAnimationFrame(resizing); resizing = requestAnimationFrame(() => { drawFlame(); if (timeline) drawTimeline(); }); });
addEventListener("keydown", event => {
  if (event.key === "Escape") { if (state.q) search(""); else if (state.zoom) { state.zoom = 0; drawFlame(); } else if (state.at) selectInstants(null); }
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
    element("summary", {}, findingTag(finding), " " + finding.sentence),
    element("p", {}, `${finding.evidence} (sure: ${finding.sure}). What to do: ${finding.action}.`), element("code", {}, finding.next),
    ...[["course", "by dump"], ["births", "live bytes, by time of birth"]].filter(([key]) => finding[key] && finding[key].length > 1)
      .map(([key, text]) => element("p", {class: key}, course(finding[key], finding.code.toLowerCase()), " ", element("span", {class: "muted"}, text))))),
  element("p", {class: "muted"}, data.trust)]);
drawDevices();
startTimeline();
draw();
})();
