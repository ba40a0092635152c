// The page of `hbmprof serve`: the processes of a host, refreshed while the page is visible.
(() => {
const toneOf = value => value > 0 ? "grows" : value < 0 ? "shrinks" : "muted";
function time(seconds) {
  if (seconds < 120) return Math.round(seconds) + " s";
  if (seconds < 7200) return Math.round(seconds / 60) + " min";
  return seconds < 172800 ? Math.round(seconds / 3600) + " h" : Math.round(seconds / 86400) + " d";
}

// One memory space of one device against its limit.
function space(memory) {
  const limit = memory.limit;
  return element("div", {class: "space"},
    element("div", {}, element("span", {}, memory.name),
      element("span", {}, bytes(memory.in_use) + (limit > 0 ? " of " + bytes(limit) : ""))),
    ...(limit > 0 ? [limitBar(limit, memory.in_use, memory.peak, 0)] : []),
    element("span", {class: "muted"}, "peak " + bytes(memory.peak)));
}

// The processes for which explain had no answer: when, in seconds of the process's age, and why.
const failed = new Map();

// What hbmprof explain says of the process.
function verdict(process) {
  if (!process.explain) return failed.has(process.id) ? [element("p", {class: "muted"}, failed.get(process.id).message)] : [];
  const {findings, more, trust, seconds} = process.explain;
  const asOf = process.seconds - seconds > 90 ? ` (as of ${time(process.seconds - seconds)} before)` : "";
  return [
    ...findings.map(finding => element("p", {},
      findingTag(finding), " " + finding.sentence + ". ", element("span", {class: "muted"}, "What to do: " + finding.action + "."))),
    ...(more > 0 ? [element("p", {class: "muted"}, `and ${more} more: see the report`)] : []),
    element("p", {class: "muted"}, trust + asOf)];
}

function stateOf(process) {
  if (process.ended) return [element("p", {class: "off"}, "ended " + time(process.last_answer) + " ago")];
  if (process.last_answer !== undefined) return [element("p", {class: "off"}, "has not answered for " + time(process.last_answer))];
  if (process.recording_off_since) return [element("p", {class: "off"}, "RECORDING OFF since " + process.recording_off_since)];
  return [];
}

function card(process, interval) {
  const values = process.history;
  const grown = values[values.length - 1] - values[0];
  const query = "pid=" + encodeURIComponent(process.id);
  return element("article", {class: process.ended ? "card ended" : "card"},
    element("h3", {}, process.name, element("small", {}, process.id + " · " + time(process.seconds))),
    ...stateOf(process),
    ...process.memories.map(space),
    element("div", {class: "course-line"}, course(values, ""),
      element("span", {class: toneOf(grown)}, change(grown, "bytes") + " in " + time((values.length - 1) * interval))),
    element("div", {class: "explain"}, ...verdict(process)),
    ...(process.ended ? [] : [element("nav", {},
      element("a", {href: route("report?" + query), target: "_blank", rel: "noopener"}, "Report"),
      element("a", {href: route("debug/pprof/heap?" + query), download: ""}, "Profile"))]));
}

function show(data) {
  const count = data.processes.filter(process => !process.ended).length;
  $("subtitle").textContent = (count === 1 ? "1 process" : count + " processes") + " with a control channel in " +
    data.directory;
  $("warning").hidden = data.silent.length === 0;
  $("warning").textContent = data.silent.join("; ");
  $("processes").replaceChildren(...data.processes.map(process => card(process, data.interval)));
}

// An answer is asked for when the process is old enough for the ages of its buffers, and once a minute after that.
function isDue(process) {
  if (process.last_answer !== undefined) return false;
  const last = process.explain || failed.get(process.id);
  if (!last) return true;
  const at = last.seconds, withAges = 17;
  return at < withAges ? process.seconds >= withAges : process.seconds >= at + 60;
}

// The address of a route, without the user and the token that the page's can have: fetch refuses it with them.
const route = path => location.origin + location.pathname + path;

async function fetchJson(path) {
  const answer = await fetch(route(path));
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
    show(data);
    for (const process of data.processes.filter(isDue)) {
      try {
        process.explain = await fetchJson("explain.json?pid=" + encodeURIComponent(process.id));
      } catch (error) {
        failed.set(process.id, {seconds: process.seconds, message: error.message});
      }
      show(data);
    }
  } catch (error) {
    $("warning").hidden = false;
    $("warning").textContent = error.message;
  }
  running = false;
  if (!document.hidden) timer = setTimeout(refresh, Math.max(1, interval) * 1000);
}
document.addEventListener("visibilitychange", () => { if (!document.hidden) refresh(); });

refresh();
})();
