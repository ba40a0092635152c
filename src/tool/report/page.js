// What the scripts of the report's page and of the page of `hbmprof serve` share. It stands before each of them.
//
// The strings of profiles and processes can be hostile. They become text nodes and attribute values, never markup: the
// scripts parse no HTML.
"use strict";
const $ = id => document.getElementById(id);
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
function amount(value, unit) {
  if (unit !== "bytes") return Math.round(value).toLocaleString("en-US") + (unit && unit !== "count" ? " " + unit : "");
  const names = ["B", "KiB", "MiB", "GiB", "TiB", "PiB"];
  let power = 0;
  while (Math.abs(value) >= 1023.995 && power + 1 < names.length) { value /= 1024; ++power; }
  return (power === 0 ? Math.round(value) : value.toFixed(2)) + " " + names[power];
}
const bytes = value => amount(value, "bytes");
const change = (value, unit) => (value > 0 ? "+" : "") + amount(value, unit);
// Returns a bar that shows the bytes in use and those outside of the recording, relative to the limit, and the peak.
function limitBar(limit, used, peak, outside) {
  const share = value => limit ? Math.max(0, Math.min(100, 100 * value / limit)) : 0;
  const recorded = element("i", {}), untracked = element("i", {class: "outside"}), mark = element("b", {});
  recorded.style.width = untracked.style.left = share(used) + "%";
  untracked.style.width = share(outside) + "%";
  mark.style.left = `calc(${share(peak)}% - 1px)`;
  return element("div", {class: used > 0.9 * limit ? "bar high" : "bar", title: "in use, peak and limit"}, recorded, untracked, mark);
}
// Returns the code of a finding, as hbmprof explain prints it.
const findingTag = finding =>
  element("span", {class: "tag " + finding.code.toLowerCase()}, (finding.advice ? "advice: " : "") + finding.code);
// Returns a line through the values, from 0 at the bottom to the largest value at the top.
function course(values, kind) {
  const most = Math.max(...values, 1);
  const points = values.map((v, i) => `${(i * 116 / Math.max(1, values.length - 1) + 2).toFixed(1)},${(28 - 26 * v / most).toFixed(1)}`);
  const svg = $("course").content.firstElementChild.cloneNode(true);
  svg.setAttribute("class", "course " + kind);
  svg.setAttribute("aria-label", values.map(bytes).join(", "));
  svg.firstElementChild.setAttribute("d", "M" + points.join("L"));
  return svg;
}
