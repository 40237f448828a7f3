// Keeps the page current: routes by the address, state by server-sent events, details when a sink's revision changes.

import { h, morph } from "./dom.js";
import * as f from "./format.js";
import { overview, sinkView } from "./views.js";

const main = document.getElementById("main");
const announcements = document.getElementById("announcements");
const live = document.getElementById("live");

let state = null;
let offset = 0; // the server's clock minus this one's
let detail = null;
let detailFor = null;
let fetching = null;
const charts = new Map();

const now = () => Date.now() + offset;

// ------------------------------------------------------------------------------------------------------------ routes

function route() {
  const [, kind, name, section] = location.hash.split("/");
  return kind === "sinks" && name ? { name: decoded(name), section: section ?? "" } : { name: null, section: "" };
}

/** The name in an address; one that was typed or cut off may be no valid encoding. */
function decoded(name) {
  try {
    return decodeURIComponent(name);
  } catch {
    return name;
  }
}

let shownRoute = null;

function navigated() {
  const to = route();
  const changed = shownRoute === null || shownRoute.name !== to.name;
  if (changed) {
    detail = null;
    detailFor = null;
    dropCharts();
  }
  const first = shownRoute === null;
  shownRoute = to;
  render();
  if (to.section) focusSection(to.section);
  else if (changed && !first) {
    window.scrollTo(0, 0);
    main.querySelector("h1")?.focus({ preventScroll: true });
  }
}

function focusSection(id) {
  const title = document.getElementById(`${id}-title`);
  title?.scrollIntoView({ block: "start" });
  title?.focus({ preventScroll: true });
}

// ----------------------------------------------------------------------------------------------------------- drawing

function render() {
  if (state === null) return;
  const { name } = shownRoute;
  const width = Math.floor(main.clientWidth - 2 * parseFloat(getComputedStyle(main).paddingLeft));
  if (width < 200) return; // it is not laid out yet: a later call draws it
  if (name === null) {
    morph(main, overview(state, now()).flat().filter(Boolean));
    document.title = state.wrong ? `${state.wrong} wrong · calve` : "calve";
    return;
  }
  const sink = state.sinks.find((one) => one.name === name);
  if (!sink) {
    document.title = "no such sink · calve";
    morph(main, [h("h1", { tabindex: "-1" }, "No such sink"), h("p", { class: "empty" }, `There is no sink "${name}" in this home. `, h("a", { href: "#/" }, "All sinks"))]);
    return;
  }
  document.title = `${sink.name}: ${sink.health} · calve`;
  const had = detailFor === name && main.querySelector("#pipeline") !== null;
  morph(main, sinkView(sink, detailFor === name ? detail : null, now(), width));
  if (detailFor === name) drawCharts(detail);
  if (!had && detailFor === name && shownRoute.section) focusSection(shownRoute.section);
  if (sink.revision !== fetching && (detailFor !== name || detail.revision !== sink.revision)) load(sink);
}

async function load(sink) {
  fetching = sink.revision;
  try {
    const since = detailFor === sink.name ? `?since=${encodeURIComponent(detail.cursor)}` : "";
    const response = await fetch(`/api/sinks/${encodeURIComponent(sink.name)}${since}`);
    if (response.status === 401) location.assign("/login");
    if (!response.ok) return;
    const body = await response.json();
    if (shownRoute.name !== sink.name) return;
    if (body.since === undefined) detail = body;
    else if (detailFor === sink.name && detail.cursor === body.since) detail = merged(detail, body);
    else return; // another answer came first: the next state asks again
    detailFor = sink.name;
    render();
  } catch {
    // the connection is lost: the stream says so, and the next state tries again
  } finally {
    if (fetching === sink.revision) fetching = null;
  }
}

/** Details, with what changed since: whole parts, and those commits that are new, changed or no longer there. */
function merged(known, news) {
  const commits = new Map(known.commit_log.map((commit) => [commit.snapshot, commit]));
  for (const snapshot of news.dropped) commits.delete(snapshot);
  for (const commit of news.commit_log) commits.set(commit.snapshot, commit);
  const order = (a, b) => a.at_ms - b.at_ms || (a.snapshot < b.snapshot ? -1 : 1);
  return { ...known, ...news, commit_log: [...commits.values()].sort(order) };
}

// ------------------------------------------------------------------------------------------------------------ charts

function dropCharts() {
  for (const { plot } of charts.values()) plot.destroy();
  charts.clear();
}

function drawCharts(body) {
  const batches = (body.commit_log ?? []).filter((commit) => commit.kind === "batch").slice(-120);
  const times = batches.map((commit) => commit.at_ms / 1000);
  chart("chart-rows", [times, batches.map((commit) => commit.rows ?? 0), batches.map((commit) => commit.deletes ?? 0)],
    [["rows", "--good"], ["deletes", "--accent-2"]], (value) => f.compact(value));
  chart("chart-seconds", [times, batches.map((commit) => (commit.phases?.length ? commit.phases.reduce((sum, [, spent]) => sum + spent, 0) : commit.seconds ?? null))],
    [["seconds", "--accent"]], (value) => f.seconds(value));
}

function chart(id, data, series, write) {
  const place = document.getElementById(id);
  if (!place || typeof uPlot === "undefined") return;
  const known = charts.get(id);
  const width = place.clientWidth;
  const signature = JSON.stringify([data, width]);
  if (known?.place === place && known.signature === signature) return;
  if (known?.place === place && known.width === width) {
    known.plot.setData(data);
    known.signature = signature;
    return;
  }
  known?.plot.destroy();
  place.textContent = "";
  const style = getComputedStyle(document.documentElement);
  const colour = (name) => style.getPropertyValue(name).trim();
  const axis = { stroke: colour("--faint"), grid: { stroke: colour("--line"), width: 1 }, ticks: { show: false }, font: "12px system-ui, sans-serif" };
  const plot = new uPlot({
    width,
    height: 150,
    padding: [10, 26, 0, 0],
    legend: { show: false },
    cursor: { drag: { x: false, y: false }, points: { size: 7 } },
    scales: { x: { time: true }, y: { range: (_plot, _low, high) => [0, high > 0 ? high * 1.1 : 1] } },
    axes: [
      { ...axis, space: 70, values: (_plot, ticks, _axis, _space, step) => ticks.map((tick) => f.timeOfDay(tick * 1000).slice(0, step >= 60 ? 5 : 8)) },
      { ...axis, size: 62, values: (_plot, ticks) => ticks.map((tick) => (tick === 0 ? "0" : write(tick))) },
    ],
    series: [{}, ...series.map(([label, name]) => ({
      label, stroke: colour(name), width: 1.5, fill: `${colour(name)}22`, points: { show: data[0].length < 40, size: 5, fill: colour(name) },
    }))],
  }, data, place);
  charts.set(id, { plot, place, signature, width });
}

// ------------------------------------------------------------------------------------------------------------- state

function received(next) {
  offset = next.now_ms - Date.now();
  announce(state, next);
  state = next;
  document.getElementById("home").textContent = next.home;
  document.getElementById("version").textContent = `calve ${next.version}`;
  if (shownRoute === null) navigated();
  else render();
}

function announce(before, after) {
  if (before === null) return;
  const known = new Map(before.sinks.map((sink) => [sink.name, sink.health]));
  const news = after.sinks.filter((sink) => known.has(sink.name) && known.get(sink.name) !== sink.health);
  if (news.length) announcements.textContent = news.map((sink) => `${sink.name} is ${sink.health}.`).join(" ");
}

function connection(name, text) {
  live.dataset.state = name;
  document.getElementById("live-text").textContent = text;
}

let source = null;

function listen() {
  source?.close();
  const opened = new EventSource("/events");
  source = opened;
  opened.addEventListener("open", () => connection("live", "live"));
  opened.addEventListener("state", (event) => received(JSON.parse(event.data)));
  opened.addEventListener("error", () => {
    if (opened !== source) return;
    connection("lost", "reconnecting");
    if (opened.readyState === EventSource.CLOSED) setTimeout(recover, 5000);
  });
}

async function recover() {
  try {
    const response = await fetch("/api/state");
    if (response.status === 401) location.assign("/login");
  } catch {
    // the server is down: try again
  }
  if (source !== null) listen();
}

// A browser opens six connections to one address: a tab that nobody looks at gives its own back, and asks now and then.
const UNSEEN = 60_000;
const ASK = 15_000;
let unseen = null;

async function rest() {
  source?.close();
  source = null;
  try {
    const response = await fetch("/api/state");
    if (response.ok) received(await response.json());
  } catch {
    // the server is down: the next question may be answered
  }
  if (source === null) unseen = setTimeout(rest, ASK);
}

function looked() {
  clearTimeout(unseen);
  if (document.hidden) unseen = setTimeout(rest, UNSEEN);
  else if (source === null) listen();
}

document.addEventListener("visibilitychange", () => {
  looked();
  if (!document.hidden) render();
});

// ------------------------------------------------------------------------------------------------------------- theme

const themes = ["auto", "light", "dark"];
const button = document.getElementById("theme");

function apply(theme) {
  document.documentElement.dataset.theme = theme;
  button.textContent = `Theme: ${theme}`;
  dropCharts();
  if (shownRoute !== null) render();
}

function stored() {
  try {
    return localStorage.getItem("calve-theme");
  } catch {
    return null;
  }
}

button.addEventListener("click", () => {
  const theme = themes[(themes.indexOf(document.documentElement.dataset.theme) + 1) % themes.length];
  try {
    localStorage.setItem("calve-theme", theme);
  } catch {
    // nothing is stored in a private window
  }
  apply(theme);
});
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => apply(document.documentElement.dataset.theme));

document.querySelector(".skip").addEventListener("click", (event) => {
  event.preventDefault();
  main.focus();
});
addEventListener("hashchange", navigated);
addEventListener("load", () => shownRoute !== null && render());
addEventListener("resize", () => shownRoute !== null && render());
setInterval(() => !document.hidden && render(), 1000);
apply(themes.includes(stored()) ? stored() : "auto");
listen();
looked(); // a tab may be opened in the background
