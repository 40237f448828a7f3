// Drawings in SVG. Colours come from classes, so that they follow the theme; every drawing says in words what it shows.

import { h, s } from "./dom.js";
import * as f from "./format.js";

export const PHASES = ["read", "stage", "collect", "write", "record", "load", "check", "plan", "index", "lookup", "commit", "tidy", "ahead"];

const TALL = new Set(["stalled", "halted", "fenced", "gone", "unknown"]);

/** Small bars, the newest at the right. */
export function sparkline(values, label) {
  const width = 120;
  const height = 24;
  if (!values || values.length === 0) return h("span", { class: "faint" }, f.UNKNOWN);
  const most = Math.max(1, ...values);
  const step = width / 40;
  const bars = values.map((value, i) => {
    const tall = Math.max(value > 0 ? 2 : 1, Math.round((value / most) * (height - 2)));
    return s("rect", {
      x: (width - (values.length - i) * step).toFixed(1), y: height - tall, width: (step - 1).toFixed(1), height: tall, rx: 0.5,
    });
  });
  return s("svg", { class: "spark", viewBox: `0 0 ${width} ${height}`, width, height, role: "img", "aria-label": label }, bars);
}

// ---------------------------------------------------------------------------------------------------------- pipeline

/** The stages of a sink. `stages`: [{name, where, value, unit, note, state}]; horizontal if there is room. */
export function pipeline(stages, width, label) {
  return width >= 760 ? across(stages, width, label) : down(stages, width, label);
}

function across(stages, width, label) {
  const gap = 30;
  const box = (width - 2 - gap * (stages.length - 1)) / stages.length;
  const height = 104;
  const parts = stages.map((stage, i) => {
    const x = 1 + i * (box + gap);
    return s("g", { class: `stage ${stage.state ?? ""}` },
      s("rect", { class: "box", x, y: 1, width: box, height: height - 2, rx: 8 }),
      s("text", { class: "name", x: x + 14, y: 24 }, stage.name),
      s("text", { class: "value", x: x + 14, y: 54 }, stage.value),
      s("text", { class: "unit", x: x + 14, y: 72 }, stage.unit),
      s("text", { class: "note", x: x + 14, y: 91 }, stage.note ?? ""),
      i < stages.length - 1 && arrow(x + box + 5, height / 2, x + box + gap - 5, height / 2, stages[i + 1].state));
  });
  return s("svg", { class: "pipeline", viewBox: `0 0 ${width} ${height}`, width, height, role: "img", "aria-label": label }, parts);
}

function down(stages, width, label) {
  const box = 62;
  const gap = 22;
  const height = stages.length * (box + gap) - gap;
  const parts = stages.map((stage, i) => {
    const y = i * (box + gap);
    return s("g", { class: `stage ${stage.state ?? ""}` },
      s("rect", { class: "box", x: 1, y: y + 1, width: width - 2, height: box - 2, rx: 8 }),
      s("text", { class: "name", x: 14, y: y + 25 }, stage.name),
      s("text", { class: "note", x: 14, y: y + 46 }, stage.note ?? ""),
      s("text", { class: "value", x: width - 14, y: y + 29, "text-anchor": "end" }, stage.value),
      s("text", { class: "unit", x: width - 14, y: y + 47, "text-anchor": "end" }, stage.unit),
      i < stages.length - 1 && arrow(width / 2, y + box + 3, width / 2, y + box + gap - 3, stages[i + 1].state));
  });
  return s("svg", { class: "pipeline", viewBox: `0 0 ${width} ${height}`, width, height, role: "img", "aria-label": label }, parts);
}

function arrow(x1, y1, x2, y2, state) {
  const head = x1 === x2 ? `${x2 - 5},${y2 - 6} ${x2},${y2} ${x2 + 5},${y2 - 6}` : `${x2 - 6},${y2 - 5} ${x2},${y2} ${x2 - 6},${y2 + 5}`;
  return s("g", { class: `arrow ${state === "stuck" ? "stuck" : ""}` },
    s("line", { x1, y1, x2, y2 }), s("polyline", { points: head }));
}

/** Three frontiers on one axis, which starts before the first of them. `marks`: [{name, time, complete, text}]. */
export function frontiers(marks, width, label) {
  const times = marks.map((mark) => mark.time).filter((time) => time !== undefined && time !== null);
  const height = 74;
  const left = 84;
  const right = width - 8;
  const low = Math.min(...times);
  const span = Math.max(...times) - low;
  const place = (mark) => {
    if (mark.complete) return right;
    if (mark.time === undefined || mark.time === null) return null;
    return left + (span === 0 ? 1 : 0.3 + 0.7 * ((mark.time - low) / span)) * (right - left);
  };
  const parts = marks.map((mark, i) => {
    const x = place(mark);
    const y = 16 + i * 22;
    return s("g", { class: `frontier ${mark.name}` }, s("text", { class: "name", x: 0, y: y + 4 }, mark.name),
      s("line", { class: "rail", x1: left, y1: y, x2: right, y2: y }),
      x !== null && s("line", { class: "bar", x1: left, y1: y, x2: x.toFixed(1), y2: y }),
      x !== null && s("circle", { cx: x.toFixed(1), cy: y, r: 5 }));
  });
  return s("svg", { class: "frontiers", viewBox: `0 0 ${width} ${height}`, width, height, role: "img", "aria-label": label }, parts);
}

// ---------------------------------------------------------------------------------------------------------- time line

/** States, commits and maintenance of one sink between two times. */
export function timeline(model, width, label) {
  const { from, to, states, commits } = model;
  const left = width < 600 ? 0 : 96;
  const height = 128;
  const x = (ms) => left + ((Math.min(Math.max(ms, from), to) - from) / Math.max(1, to - from)) * (width - left - 6);
  const rows = { states: 16, commits: 66, other: 88 };
  const bands = states.map((state) => s("rect", {
    class: `band ${state.health}`, x: x(state.from).toFixed(1), rx: 2,
    y: rows.states - (TALL.has(state.health) ? 11 : 5), height: TALL.has(state.health) ? 18 : 6, // not by colour alone
    width: Math.max(2, x(state.to) - x(state.from)).toFixed(1),
  }, s("title", {}, `${state.health}, ${f.instant(state.from)} to ${state.open ? "now" : f.instant(state.to)}${state.cause ? `: ${state.cause}` : ""}`)));
  const slowest = Math.max(0.001, ...commits.map((commit) => commit.seconds ?? 0));
  const marks = commits.map((commit) => {
    const at = x(commit.at_ms);
    const note = `${commit.kind === "batch" ? "commit" : commit.kind} ${f.instant(commit.at_ms)}: ${f.plural(commit.rows ?? 0, "row")}, ` +
      `${f.plural(commit.deletes ?? 0, "delete")}${commit.seconds ? `, ${f.seconds(commit.seconds)}` : ""}` +
      `${commit.attempts > 1 ? `, ${commit.attempts} attempts` : ""}${commit.conflicts ? `, ${f.plural(commit.conflicts, "conflict")}` : ""}`;
    if (commit.kind === "batch") {
      const tall = 5 + 25 * ((commit.seconds ?? slowest * 0.2) / slowest);
      return s("g", { class: "mark batch" }, s("title", {}, note),
        s("line", { x1: at, y1: rows.commits, x2: at, y2: rows.commits - tall }),
        commit.attempts > 1 && !commit.conflicts && s("path", { class: "retry", d: `M${at - 4} ${rows.commits - tall - 3}h8l-4 -7z` }),
        commit.conflicts > 0 && s("path", { class: "conflict", d: `M${at - 4} ${rows.commits - tall - 11}l8 8m0 -8l-8 8` }));
    }
    if (commit.kind === "claim") {
      return s("g", { class: "mark claim" }, s("title", {}, `a run claimed the table (epoch ${commit.epoch}), ${f.instant(commit.at_ms)}`),
        s("path", { d: `M${at} ${rows.other - 5}v10M${at} ${rows.other - 5}h7l-2 2.5l2 2.5h-7` }));
    }
    return s("g", { class: `mark ${commit.kind === "maintenance" ? "upkeep" : "other"}` }, s("title", {}, note),
      s("path", { d: `M${at} ${rows.other - 5}l5 5l-5 5l-5 -5z` }));
  });
  const names = left === 0 ? [] : [["state", rows.states + 4], ["commits", rows.commits - 6], ["other", rows.other + 4]]
    .map(([name, y]) => s("text", { class: "name", x: 0, y }, name));
  const ticks = 4;
  const axis = Array.from({ length: ticks + 1 }, (_, i) => {
    const ms = from + ((to - from) * i) / ticks;
    const anchor = i === 0 ? "start" : i === ticks ? "end" : "middle";
    const text = i === ticks && model.live ? "now" : f.timeOfDay(ms);
    return s("g", { class: "axis" }, s("line", { x1: x(ms), x2: x(ms), y1: 4, y2: 102 }),
      s("text", { x: x(ms), y: 120, "text-anchor": anchor }, width < 600 && i % 2 ? "" : text));
  });
  return s("svg", { class: "timeline", viewBox: `0 0 ${width} ${height}`, width, height, role: "img", "aria-label": label },
    axis, names, bands, s("line", { class: "ground", x1: left, x2: width - 6, y1: rows.commits, y2: rows.commits }), marks);
}

/** Seconds of one commit by phase, on a scale that all commits share. */
export function phases(commit, most) {
  const width = 160;
  let at = 0;
  const found = commit.phases?.length ? commit.phases : [["commit", commit.seconds ?? 0]];
  const parts = found.map(([name, spent]) => {
    const wide = (spent / Math.max(most, 1e-6)) * width;
    const part = s("rect", { class: `phase ${name}`, x: at.toFixed(2), y: 1, width: Math.max(0.5, wide).toFixed(2), height: 10 },
      s("title", {}, `${name} ${f.seconds(spent)}`));
    at += wide;
    return part;
  });
  const label = found.map(([name, spent]) => `${name} ${f.seconds(spent)}`).join(", ");
  return s("svg", { class: "phases", viewBox: `0 0 ${width} 12`, width, height: 12, role: "img", "aria-label": label }, parts);
}

/** Labelled bars. `bars`: [{name, value}]. */
export function histogram(bars, width, label) {
  const height = 116;
  const most = Math.max(1, ...bars.map((bar) => bar.value));
  const step = width / bars.length;
  const parts = bars.map((bar, i) => {
    const tall = bar.value ? Math.max(3, (bar.value / most) * 66) : 0;
    const middle = i * step + step / 2;
    return s("g", {}, s("rect", { class: "bar", x: i * step + 4, y: 88 - tall, width: Math.max(4, step - 8), height: tall, rx: 2 }),
      bar.value > 0 && s("text", { class: "value", x: middle, y: 88 - tall - 6, "text-anchor": "middle" }, f.compact(bar.value)),
      s("text", { class: "name", x: middle, y: 107, "text-anchor": "middle" }, bar.name));
  });
  return s("svg", { class: "histogram", viewBox: `0 0 ${width} ${height}`, width, height, role: "img", "aria-label": label },
    s("line", { class: "ground", x1: 0, x2: width, y1: 88.5, y2: 88.5 }), parts);
}
