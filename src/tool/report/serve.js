// The page of `hbmprof serve`: the processes of a host, refreshed while the page is visible.
//
// The strings of processes and profiles can be hostile. They become text nodes and attribute values, never markup: this
// script parses no HTML.
"use strict";
(() => {
const $ = id => document.getElementById(id);
// By process: the values of its call sites when they were first shown.
const firstSites = new Map();
let chosen = "";

function element(tag, attributes, ...contents) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) if (value !== null) made.setAttribute(name, value);
  for (const part of contents) made.append(part);
  return made;
}
function bytes(value) {
  const names = ["B", "KiB", "MiB", "GiB", "TiB", "PiB"];
  let power = 0;
  while (Math.abs(value) >= 1023.995 && power + 1 < names.length) { value /= 1024; ++power; }
  return (power === 0 ? Math.round(value) : value.toFixed(2)) + " " + names[power];
}
const change = value => (value > 0 ? "+" : "") + bytes(value);
const toneOf = value => value > 0 ? "grows" : value < 0 ? "shrinks" : "muted";
function time(seconds) {
  if (seconds < 120) return Math.round(seconds) + " s";
  if (seconds < 7200) return Math.round(seconds / 60) + " min";
  return seconds < 172800 ? Math.round(seconds / 3600) + " h" : Math.round(seconds / 86400) + " d";
}

// A line through the values, from 0 at the bottom to the largest value at the top.
function course(values) {
  const svg = document.createElementNS("http://www.w3.org/2000/svg", "svg");
  svg.setAttribute("class", "course");
  svg.setAttribute("viewBox", "0 0 120 30");
  svg.setAttribute("preserveAspectRatio", "none");
  svg.setAttribute("role", "img");
  svg.setAttribute("aria-label", "Bytes in use over time");
  const path = document.createElementNS("http://www.w3.org/2000/svg", "path");
  const most = Math.max(...values, 1);
  const points = values.length === 1 ? [values[0], values[0]] : values;
  path.setAttribute("d", points.map((value, i) =>
    (i ? "L" : "M") + (i * 120 / (points.length - 1)).toFixed(1) + " " + (28 - 26 * value / most).toFixed(1)).join(""));
  path.setAttribute("vector-effect", "non-scaling-stroke");
  svg.append(path);
  return svg;
}

// One memory space of one device against its limit.
function space(memory) {
  const limit = memory.limit;
  const row = element("div", {class: "space"},
    element("div", {}, element("span", {}, memory.name),
      element("span", {}, bytes(memory.in_use) + (limit > 0 ? " of " + bytes(limit) : ""))));
  if (limit > 0) {
    const bar = element("div", {class: memory.in_use > 0.9 * limit ? "bar high" : "bar"});
    const used = element("i", {});
    used.style.width = Math.min(100, 100 * memory.in_use / limit) + "%";
    const peak = element("b", {title: "Peak " + bytes(memory.peak)});
    peak.style.left = Math.min(99.4, 100 * memory.peak / limit) + "%";
    bar.append(used, peak);
    row.append(bar);
  }
  row.append(element("span", {class: "muted"}, "peak " + bytes(memory.peak)));
  return row;
}

function card(process, interval) {
  const values = process.history;
  const grown = values[values.length - 1] - values[0];
  const show = element("button", {type: "button", "data-process": process.id}, "Top sites");
  show.addEventListener("click", () => { chosen = process.id; refresh(); });
  const query = "pid=" + encodeURIComponent(process.id);
  return element("article", {class: process.id === chosen ? "card chosen" : "card"},
    element("h3", {}, process.name, element("small", {}, process.id + " · " + time(process.seconds))),
    ...(process.recording_off_since
      ? [element("p", {class: "off"}, "RECORDING OFF since " + process.recording_off_since)] : []),
    ...process.memories.map(space),
    element("div", {class: "course-line"}, course(values),
      element("span", {class: toneOf(grown)}, change(grown) + " in " + time((values.length - 1) * interval))),
    element("nav", {}, show,
      element("a", {href: "report?" + query, target: "_blank", rel: "noopener"}, "Report"),
      element("a", {href: "debug/pprof/heap?" + query, download: ""}, "Profile")));
}

function showProcesses(data) {
  const count = data.processes.length;
  $("subtitle").textContent = (count === 1 ? "1 process" : count + " processes") + " with a control channel in " +
    data.directory;
  $("warning").hidden = data.silent.length === 0;
  $("warning").textContent = data.silent.join("; ");
  $("processes").replaceChildren(...data.processes.map(process => card(process, data.interval)));
  if (!data.processes.some(process => process.id === chosen)) chosen = count > 0 ? data.processes[0].id : "";
  return data.processes.find(process => process.id === chosen);
}

function showSites(process, sites) {
  const first = firstSites.get(process.id) || new Map(sites.rows.map(row => [row.function, row.flat]));
  firstSites.set(process.id, first);
  $("sites-title").textContent = "Top sites of " + process.name + " (" + process.id + "): " + bytes(sites.total);
  const rows = sites.rows.map(row => {
    const grown = row.flat - (first.get(row.function) || 0);
    const meter = element("i", {});
    meter.style.width = (sites.total ? 100 * row.flat / sites.total : 0) + "%";
    return element("tr", {},
      element("td", {class: "number"}, bytes(row.flat)),
      element("td", {class: "number"}, (sites.total ? 100 * row.flat / sites.total : 0).toFixed(1) + " %"),
      element("td", {class: "number " + toneOf(grown)}, grown ? change(grown) : ""),
      element("td", {class: "meter-cell"}, element("span", {class: "meter"}, meter)),
      element("td", {class: "name"}, row.function, element("small", {}, row.where)));
  });
  const head = ["In use", "Share", "Since opened"].map(title => element("th", {class: "number"}, title));
  $("sites").replaceChildren(element("table", {},
    element("thead", {}, element("tr", {}, ...head, element("th", {class: "meter-cell"}), element("th", {}, "Function"))),
    element("tbody", {}, ...rows)));
  $("sites-panel").hidden = false;
}

async function fetchJson(path) {
  const answer = await fetch(path);
  if (!answer.ok) throw new Error((await answer.text()).trim());
  return answer.json();
}

let timer = 0;
let running = false;
async function refresh() {
  if (running) return;
  running = true;
  clearTimeout(timer);
  let interval = 5;
  try {
    const data = await fetchJson("processes.json");
    interval = data.interval;
    const process = showProcesses(data);
    if (process) {
      showSites(process, await fetchJson("sites.json?pid=" + encodeURIComponent(process.id)));
      for (const one of document.querySelectorAll(".card")) {
        one.classList.toggle("chosen", one.querySelector("[data-process]").dataset.process === chosen);
      }
    } else {
      $("sites-panel").hidden = true;
    }
  } catch (error) {
    $("warning").hidden = false;
    $("warning").textContent = error.message;
  }
  running = false;
  if (!document.hidden) timer = setTimeout(refresh, Math.max(1, interval) * 1000);
}
document.addEventListener("visibilitychange", () => { if (!document.hidden) refresh(); });

function setTheme(theme) { document.documentElement.dataset.theme = theme; }
setTheme(matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light");
$("theme").addEventListener("click", () => setTheme(document.documentElement.dataset.theme === "dark" ? "light" : "dark"));
refresh();
})();
