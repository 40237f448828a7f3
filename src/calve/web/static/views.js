// The views: state in, elements out. They keep nothing; page.js decides when to show which.

import { h } from "./dom.js";
import * as draw from "./draw.js";
import * as f from "./format.js";

const ICONS = {
  running: "●", starting: "◔", stalled: "▲", sealed: "✓", paused: "‖", stopped: "■", halted: "✕", fenced: "⊘", gone: "✕",
  unknown: "?", "never run": "○",
};
const ORDER = ["halted", "fenced", "gone", "unknown", "stalled", "starting", "running", "paused", "sealed", "stopped", "never run"];
const MEANING = {
  starting: "The run loads its table.",
  running: "Changes are read and committed.",
  stalled: "It waits for an external system and goes on by itself.",
  sealed: "The input is complete, and all of it is committed.",
  paused: "ALTER SINK ... RESUME continues it.",
  stopped: "Its run ended as requested.",
  halted: "It does not go on until somebody acts.",
  fenced: "A newer run of this sink owns the table.",
  gone: "Its process ended without saying why.",
  unknown: "Its status cannot be read.",
  "never run": "It is defined, and no run has reported yet.",
};

export function badge(health) {
  return h("span", { class: `badge ${health.replace(" ", "-")}`, title: MEANING[health] ?? "" },
    h("span", { class: "icon", "aria-hidden": "true" }, ICONS[health] ?? "?"), health);
}

function ago(ms, now, suffix = "") {
  const at = f.date(ms);
  if (at === null) return h("span", { class: "faint" }, f.UNKNOWN);
  return h("time", { datetime: at.toISOString(), title: f.instant(ms) }, f.duration(now - ms) + suffix);
}

const SILENT = 15_000; // a status that is older than this is not of a living process

const active = (sink) => ["starting", "running", "stalled"].includes(sink.health);

/** How old the state of the source is that the table shows; it grows while nobody reports. */
function ageOfState(sink, now) {
  if (sink.lag_ms === null || sink.lag_ms === undefined || sink.health === "sealed") return null;
  const age = now - sink.updated_ms;
  return sink.lag_ms + (age > SILENT ? age : 0);
}

function lag(sink, now) {
  const ms = sink.ended_caught_up ? 0 : ageOfState(sink, now);
  if (ms === null) return h("span", { class: "faint" }, f.UNKNOWN);
  return h("span", { title: `as of ${f.instant(sink.ended_caught_up ? sink.polled_ms : sink.updated_ms)}` }, f.duration(ms));
}

function belowLag(sink, now) {
  if (sink.unread) return `${f.compact(sink.unread)} ${sink.counts} unread`;
  return sink.ended_caught_up ? `when last polled, ${f.duration(now - sink.polled_ms)} ago` : "behind the source";
}

/** The texts of an error: what happened, the values, what to do. */
function problem(cause, hint) {
  const lines = (cause ?? "").split("\n").map((line) => line.trim()).filter(Boolean);
  const hints = lines.filter((line) => line.startsWith("hint: ")).map((line) => line.slice(6));
  const [primary, ...detail] = lines.filter((line) => !line.startsWith("hint: "));
  const advice = [...new Set([...hints, ...(hint ? [hint] : [])])];
  if (!primary && advice.length === 0) return null;
  return h("div", { class: "problem" }, primary && h("p", { class: "primary" }, primary),
    detail.map((line) => h("p", { class: "detail" }, line)),
    advice.map((line) => h("p", { class: "hint" }, h("span", { class: "label" }, "What to do"), line)));
}

export function sinkLink(name, section = "") {
  return `#/sinks/${encodeURIComponent(name)}${section ? `/${section}` : ""}`;
}

// ------------------------------------------------------------------------------------------------------------ sinks

export function overview(state, now) {
  const sinks = [...state.sinks].sort((a, b) => ORDER.indexOf(a.health) - ORDER.indexOf(b.health) || a.name.localeCompare(b.name));
  if (sinks.length === 0) return nothing(state);
  const counts = ORDER.map((health) => [health, sinks.filter((sink) => sink.health === health).length]).filter(([, n]) => n);
  const wrong = sinks.filter((sink) => sink.wrong).length;
  return [
    h("h1", { tabindex: "-1", "data-key": "title" }, wrong ? `${f.plural(wrong, "sink needs", "sinks need")} attention` : "All is well"),
    h("p", { class: "counts", "data-key": "counts" }, f.plural(sinks.length, "sink"), counts.map(([health, n]) => [" · ", `${n} ${health}`])),
    state.problem && h("section", { class: "panel wrong", "data-key": "problem", "aria-label": "Problem" },
      h("p", { class: "primary" }, "The definitions cannot be read; sinks are shown by their last status."), problem(state.problem)),
    // roles, since a narrow page lays the table out as blocks, which hides it from screen readers
    h("table", { class: "sinks", role: "table", "data-key": "sinks" },
      h("caption", { class: "hidden" }, "Sinks with state, lag and time since the last commit"),
      h("thead", { role: "rowgroup" }, h("tr", { role: "row" }, ["Sink", "State", "Lag", "Last commit", "Changes", "Waiting", "Rows per commit"]
        .map((name, i) => h("th", { scope: "col", role: "columnheader", class: i > 1 && i < 6 ? "number" : "" }, name)))),
      h("tbody", { role: "rowgroup" }, sinks.map((sink) => sinkRow(sink, now)))),
  ];
}

function sinkRow(sink, now) {
  const waiting = [sink.pending && f.plural(sink.pending, "batch", "batches"), sink.staged && `${f.count(sink.staged)} staged`,
    sink.unread && `${f.compact(sink.unread)} ${sink.counts} unread`].filter(Boolean);
  const cell = (label, content, number = true) => h("td", { role: "cell", class: number ? "number" : "", "data-label": label }, content);
  return [
    h("tr", { role: "row", "data-key": `sink ${sink.name}`, class: sink.wrong ? "wrong" : "" },
      h("th", { scope: "row", role: "rowheader" }, h("a", { href: sinkLink(sink.name) }, sink.name), h("span", { class: "sub" }, sink.table)),
      h("td", { role: "cell", "data-label": "State" }, badge(sink.health), sink.since_ms ? h("span", { class: "sub" }, "for ", ago(sink.since_ms, now)) : null),
      cell("Lag", lag(sink, now)),
      cell("Last commit", ago(sink.last_commit_ms, now, " ago")),
      cell("Changes", f.compact(sink.rows)),
      cell("Waiting", waiting.length ? waiting.map((text) => h("span", { class: "line" }, text)) : h("span", { class: "faint" }, "nothing")),
      cell("Rows per commit", draw.sparkline(sink.recent, `Rows of the last ${f.plural(sink.recent.length, "commit")}`), false)),
    sink.wrong && sink.cause ? h("tr", { role: "row", "data-key": `problem ${sink.name}`, class: `why ${sink.health}` }, h("td", { role: "cell", colspan: "7" }, problem(sink.cause, sink.hint))) : [],
  ];
}

function nothing(state) {
  return [
    h("h1", { tabindex: "-1" }, "No sinks yet"),
    h("section", { class: "panel empty" },
      h("p", {}, "Nothing has run in ", h("code", {}, state.home), " so far. Sinks appear here as soon as they are defined:"),
      h("pre", {}, "calve run pipeline.sql --home " + state.home),
      h("p", { class: "faint" }, "If your sinks run with another home folder, start this page with the same ", h("code", {}, "--home"), ".")),
  ];
}

// --------------------------------------------------------------------------------------------------------- one sink

export const SECTIONS = [["pipeline", "Pipeline"], ["commits", "Commits"], ["table", "Table"], ["maintenance", "Maintenance"],
  ["errors", "Errors"], ["source", "Source"]];

export function sinkView(sink, detail, now, width) {
  const body = detail ?? {};
  return [
    h("nav", { class: "crumbs", "aria-label": "Breadcrumb", "data-key": "crumbs" }, h("a", { href: "#/" }, "Sinks"), " / ", h("span", { "aria-current": "page" }, sink.name)),
    h("div", { class: "title", "data-key": "title" }, h("h1", { tabindex: "-1" }, sink.name), badge(sink.health),
      h("p", { class: "sub" }, sink.since_ms ? ["for ", ago(sink.since_ms, now), " · "] : null, sink.table)),
    sink.wrong && (sink.cause || sink.hint) ? h("section", { class: `panel wrong ${sink.health}`, "aria-label": "Problem", "data-key": "problem" }, problem(sink.cause, sink.hint)) : null,
    figures(sink, now),
    h("nav", { class: "sections", "aria-label": "Sections", "data-key": "sections" }, SECTIONS.map(([id, name]) => h("a", { href: sinkLink(sink.name, id) }, name))),
    ...(detail ? [
      section("pipeline", "Pipeline", pipelineView(sink, body, width)),
      section("commits", "Commits", commitsView(sink, body, now, width)),
      section("table", "Table", tableView(sink, body, now, width)),
      section("maintenance", "Maintenance", maintenanceView(sink, body, now)),
      section("errors", "Errors and dead letters", errorsView(sink, body, now)),
      section("source", "Source", sourceView(sink, body, now)),
    ] : [h("p", { class: "empty", "data-key": "loading" }, "Loading …")]),
  ].filter(Boolean);
}

function section(id, name, content) {
  return h("section", { id, "aria-labelledby": `${id}-title`, "data-key": id }, h("h2", { id: `${id}-title`, tabindex: "-1" }, name), content);
}

function figure(name, value, sub) {
  return h("div", {}, h("dt", {}, name), h("dd", {}, value, sub ? h("span", { class: "sub" }, sub) : null));
}

function figures(sink, now) {
  return h("dl", { class: "figures", "data-key": "figures" },
    figure("Lag", lag(sink, now), belowLag(sink, now)),
    figure("Last commit", ago(sink.last_commit_ms, now), sink.last_commit_ms ? "ago" : "none yet"),
    figure("Changes", h("span", { title: f.count(sink.rows) }, f.compact(sink.rows)), sink.rows_per_second >= 0.05 ? `${f.compact(Number(sink.rows_per_second.toPrecision(3)))} per second` : "in total"),
    figure("Commits", f.count(sink.commits), sink.run_commits ? `${f.count(sink.run_commits)} in this run` : "in total"),
    figure("Waiting", f.count(sink.pending ?? 0), sink.pending === 1 ? "batch" : "batches"));
}

// ---- pipeline

function pipelineView(sink, detail, width) {
  const definition = detail.definition ?? {};
  const table = detail.details ?? {};
  const stuck = sink.wrong ? "stuck" : "";
  const input = f.frontier(sink.input);
  const minted = f.frontier(sink.minted);
  const committed = f.frontier(sink.frontier);
  const short = (text, most) => (text && text.length > most ? `${text.slice(0, most - 1)}…` : text);
  const room = width >= 760 ? Math.floor(width / 52) : Math.floor(width / 14);
  const stages = [
    { name: "source", value: f.compact(sink.unread ?? null), unit: `${sink.counts ?? "rows"} unread`, note: short(definition.source ?? detail.input?.name ?? "", room) },
    { name: "changes", value: f.compact(sink.rows), unit: "recorded", note: short(definition.envelope ? `${definition.envelope.toLowerCase().replace("noenvelope", "no")} envelope` : "", room) },
    { name: "staged", value: f.compact(sink.staged_rows), unit: "rows", note: sink.staged ? f.plural(sink.staged, "checkpoint") : short(definition.commit_interval ? `window of ${definition.commit_interval}` : definition.mode ? "no window" : "", room) },
    { name: "pending", value: f.compact(sink.pending_changes), unit: "changes", note: sink.pending ? `${f.plural(sink.pending, "batch", "batches")}${sink.pending_bytes ? `, ${f.bytes(sink.pending_bytes)}` : ""}` : "", state: sink.pending ? stuck : "" },
    { name: "commits", value: f.compact(sink.commits), unit: "snapshots made", note: sink.epoch ? `epoch ${f.count(sink.epoch)}` : "", state: stuck },
    { name: "table", value: f.compact(table.live_rows ?? table.rows ?? null), unit: "rows", note: short(sink.table, room) },
  ];
  const words = stages.map((stage) => `${stage.name}: ${stage.value} ${stage.unit}${stage.note ? ` (${stage.note})` : ""}`).join("; ");
  const marks = [["committed", committed], ["recorded", minted], ["source", input]].map(([name, at]) => ({ name, ...at }));
  const meaning = { committed: "the table shows everything before", recorded: "batches up to here are durable", source: "no earlier change is expected" };
  const behind = (mark) => (mark.ms && input.ms && input.ms - mark.ms >= 1000 ? `${f.duration(input.ms - mark.ms)} behind the source; ` : "");
  return [
    h("div", { class: "scroll" }, draw.pipeline(stages, width, `Pipeline. ${words}`)),
    h("h3", {}, "Frontiers"),
    h("div", { class: "frontier-box" },
      draw.frontiers(marks, width < 760 ? width : Math.round(width * 0.5), `Frontiers. ${marks.map((mark) => `${mark.name}: ${mark.text}`).join("; ")}`),
      h("dl", { class: "pairs" }, marks.map((mark) => [h("dt", {}, mark.name), h("dd", {}, mark.text, h("span", { class: "sub" }, `${behind(mark)}${meaning[mark.name]}`))]))),
  ];
}

// ---- commits

function commitsView(sink, detail, now, width) {
  const commits = detail.commit_log ?? [];
  const batches = commits.filter((commit) => commit.kind === "batch");
  if (commits.length === 0 && (detail.states ?? []).length === 0) {
    return h("p", { class: "empty" }, "No commit yet. The first one appears as soon as a batch is complete",
      detail.definition?.commit_interval ? `: windows close every ${detail.definition.commit_interval}.` : ".");
  }
  const model = timelineModel(sink, detail, now);
  const latest = [...commits].reverse().slice(0, 20);
  const most = Math.max(...batches.map(total), 0.001);
  const words = `Time line of ${f.plural(batches.length, "commit")} and ${f.plural(model.states.length, "state")}; the table below lists the newest.`;
  return [
    h("div", { class: "scroll", "data-key": "timeline" }, draw.timeline(model, width, words)),
    h("p", { class: "legend", "data-key": "legend" }, [["running", "running"], ["stalled", "stalled"], ["halted", "halted, fenced, gone"], ["stopped", "at rest"]]
      .map(([name, text]) => h("span", {}, h("span", { class: `swatch band ${name}`, "aria-hidden": "true" }), text)),
      h("span", {}, h("span", { class: "glyph retry", "aria-hidden": "true" }, "▲"), "retried"), h("span", {}, h("span", { class: "glyph conflict", "aria-hidden": "true" }, "✕"), "conflict"), h("span", {}, h("span", { class: "glyph upkeep", "aria-hidden": "true" }, "◆"), "maintenance"),
      h("span", {}, h("span", { class: "glyph claim", "aria-hidden": "true" }, "⚑"), "claim of a run")),
    h("div", { class: "charts", "data-key": "charts" },
      h("figure", {}, h("figcaption", {}, "Rows and deletes per commit"), h("div", { id: "chart-rows", class: "chart", "data-kept": true, role: "img", "aria-label": "Chart of rows and deletes per commit over time" })),
      h("figure", {}, h("figcaption", {}, "Seconds per commit"), h("div", { id: "chart-seconds", class: "chart", "data-kept": true, role: "img", "aria-label": "Chart of seconds per commit over time" }))),
    h("dl", { class: "inline", "data-key": "totals" }, [["failed attempts", sink.failed_attempts], ["conflicts", sink.conflicts], ["fences", sink.fences]]
      .map(([name, value]) => [h("dt", {}, name), h("dd", { class: value ? "some" : "" }, f.count(value ?? 0))])),
    h("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": "Newest commits", "data-key": "latest" }, h("table", { class: "plain" },
      h("caption", {}, "Newest first"),
      h("thead", {}, h("tr", {}, [["When"], ["What"], ["Changes", 1], ["Rows", 1], ["Deletes", 1], ["Files", 1], ["Size", 1], ["Took", 1], ["Phases"], ["Snapshot", 1]]
        .map(([name, number]) => h("th", { scope: "col", class: number ? "number" : "" }, name)))),
      h("tbody", {}, latest.map((commit) => h("tr", { "data-key": commit.snapshot },
        h("td", {}, ago(commit.at_ms, now, " ago")),
        h("td", {}, commit.kind === "batch" ? "commit" : commit.kind, commit.attempts > 1 ? h("span", { class: "tag warn" }, `${commit.attempts} attempts`) : null,
          commit.conflicts ? h("span", { class: "tag warn" }, f.plural(commit.conflicts, "conflict")) : null),
        h("td", { class: "number" }, f.count(commit.changes)), h("td", { class: "number" }, f.count(commit.rows)), h("td", { class: "number" }, f.count(commit.deletes)),
        h("td", { class: "number" }, f.count(commit.files)), h("td", { class: "number" }, f.bytes(commit.bytes)), h("td", { class: "number" }, commit.seconds === undefined ? f.UNKNOWN : f.seconds(total(commit))),
        h("td", {}, commit.phases?.length ? draw.phases(commit, most) : null),
        h("td", { class: "number id" }, commit.snapshot)))))),
    batches.some((commit) => commit.phases?.length) ? h("p", { class: "legend", "data-key": "phases" }, draw.PHASES.map((name) => h("span", {}, h("span", { class: `swatch phase ${name}`, "aria-hidden": "true" }), name))) : null,
  ].filter(Boolean);
}

function total(commit) {
  return commit.phases?.length ? commit.phases.reduce((sum, [, spent]) => sum + spent, 0) : commit.seconds ?? 0;
}

function timelineModel(sink, detail, now) {
  const commits = detail.commit_log ?? [];
  const all = [...(detail.states ?? [])];
  const to = active(sink) ? now : Math.max(sink.updated_ms ?? 0, ...commits.map((commit) => commit.at_ms), ...all.map((change) => change.at_ms));
  const shown = commits.slice(-120);
  const from = Math.max(Math.min(...shown.map((commit) => commit.at_ms), ...all.slice(-12).map((change) => change.at_ms), to - 60_000), to - 7 * 86_400_000);
  const states = all.map((change, i) => ({
    health: change.health, cause: (change.cause ?? "").split("\n")[0], from: change.at_ms, to: all[i + 1]?.at_ms ?? to, open: i === all.length - 1,
  })).filter((state) => state.to >= from);
  return { from, to, states, commits: shown.filter((commit) => commit.at_ms >= from), live: active(sink) };
}

// ---- table

function tableView(sink, detail, now, width) {
  const table = detail.details ?? {};
  const trouble = table.error ? h("div", { class: "panel wrong soft", "data-key": "trouble" }, h("p", { class: "primary" }, table.found ? "The table cannot be loaded now; this is how it was." : "The table cannot be loaded now."), problem(table.error)) : null;
  if (!table.found) {
    return [trouble, trouble ? null : h("p", { class: "empty" }, table.loaded_ms ? "Nothing in this home says where the table of this sink is: its status is all that is known." : "The table is being loaded …")].filter(Boolean);
  }
  const files = table.files;
  const scan = files?.scan;
  const sizes = sizeClasses(files?.sizes ?? []);
  return [
    trouble,
    h("dl", { class: "figures", "data-key": "figures" },
      figure(files?.exact === false ? "Rows (about)" : "Rows", h("span", { id: "live-rows", title: f.count(table.live_rows ?? table.rows) }, f.count(table.live_rows ?? table.rows)), files ? `${f.count(files.deleted_rows)} more deleted` : "deleted ones included"),
      figure("Deleted share", files && table.rows ? f.share(files.deleted_rows / table.rows) : f.UNKNOWN, "of the rows that a scan reads"),
      figure("Data files", h("span", { id: "data-files" }, f.count(table.data_files)), files ? `${f.count(files.small_files)} small` : ""),
      figure("Delete files", h("span", { id: "delete-files" }, f.count(table.delete_files)), scan ? `${f.count(scan.delete_files)} apply` : ""),
      figure("Size", f.bytes(table.bytes), table.state_bytes ? `and ${f.bytes(table.state_bytes)} of state` : "of the newest snapshot"),
      figure("Snapshots", h("span", { id: "snapshots" }, f.count(table.snapshots)), table.oldest_ms ? `oldest ${f.duration(now - table.oldest_ms)} ago` : "")),
    files ? h("div", { class: "two", "data-key": "files" },
      h("figure", {}, h("figcaption", {}, "Data files by size"), draw.histogram(sizes, Math.min(width, width < 760 ? width : Math.floor(width / 2) - 20),
        `Data files by size: ${sizes.map(({ name, value }) => `${name}: ${value}`).join("; ")}`),
        h("p", { class: "sub" }, `smallest ${f.bytes(files.smallest)}, median ${f.bytes(files.median)}, largest ${f.bytes(files.largest)}`)),
      scanView(scan)) : h("p", { class: "empty" }, "The table has too many files to look at each of them."),
    h("p", { class: "sub", "data-key": "loaded" }, "Format version ", table.format_version, " · ", f.plural(table.columns, "column"), " · snapshot ", h("span", { class: "id" }, table.snapshot_id ?? "none"), " · loaded ", ago(table.loaded_ms, now, " ago")),
  ].filter(Boolean);
}

/** Classes of sizes with short names; empty ones at the end are left out. */
function sizeClasses(sizes) {
  const found = sizes.map(([bound, value], i) => ({ name: bound ? `≤ ${binary(bound)}` : `> ${binary(sizes[i - 1]?.[0] ?? 0)}`, value }));
  const last = found.findLastIndex(({ value }) => value > 0);
  return found.slice(0, Math.max(4, last + 1));
}

function binary(bytes) {
  const units = ["B", "KiB", "MiB", "GiB"];
  let unit = 0;
  let scaled = bytes;
  while (scaled >= 1024 && unit < 3) {
    scaled /= 1024;
    unit += 1;
  }
  return `${Math.round(scaled)} ${units[unit]}`;
}

function scanView(scan) {
  const ratio = scan.compacted_weight ? scan.weight / scan.compacted_weight : 1;
  return h("figure", {}, h("figcaption", {}, "Predicted cost of a full scan"),
    h("p", { class: "big" }, ratio < 1.05 ? "as if compacted" : `${ratio.toFixed(ratio < 10 ? 1 : 0)} × compacted`),
    h("meter", { min: "0", max: "10", low: "2", high: "5", optimum: "1", value: Math.min(10, ratio).toFixed(2), "aria-label": "Cost of a scan as a multiple of the cost after a compaction" }),
    h("p", { class: "sub" }, `It opens ${f.plural(scan.data_files, "data file")} and ${f.plural(scan.delete_files, "delete file")}, and reads ${f.bytes(scan.bytes)} and ${f.plural(scan.rows, "row")}. ` +
      `Opening a file counts as reading ${f.bytes(scan.open_file_cost)}.`));
}

// ---- maintenance

function maintenanceView(sink, detail, now) {
  const upkeep = detail.upkeep ?? {};
  const due = upkeep.due;
  const why = due && [due.small_files && `${f.plural(due.small_files, "file")} can be merged`, due.worn_files && `${f.plural(due.worn_files, "file has", "files have")} many deleted rows`].filter(Boolean).join(", and ");
  const running = upkeep.running ? `${upkeep.running} is running` : upkeep.automatic === false ? "Off: MAINTENANCE = 'off'." : "Nothing is running.";
  const next = upkeep.next || (due?.files ? `A compaction of ${f.plural(due.files, "file")} with ${f.plural(due.rows, "row")}: ${why}.` : due ? "Nothing is due: neither small files nor deleted rows are worth a rewrite." : f.UNKNOWN);
  const runs = [...(upkeep.runs ?? [])].reverse().slice(0, 10);
  return [
    h("dl", { class: "pairs" }, h("dt", {}, "now"), h("dd", {}, running), h("dt", {}, "next"), h("dd", {}, next),
      sink.last_compaction_ms ? [h("dt", {}, "last compaction"), h("dd", {}, ago(sink.last_compaction_ms, now, " ago"), `: ${sink.last_compaction}`, h("span", { class: "sub" }, `${f.plural(sink.compactions, "compaction")} so far`))] : null),
    runs.length ? h("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": "Maintenance runs" }, h("table", { class: "plain" }, h("caption", {}, "Last runs"), h("thead", {}, h("tr", {}, ["When", "Job", "Outcome", "Took", "What"].map((name) => h("th", { scope: "col" }, name)))),
      h("tbody", {}, runs.map((run) => h("tr", {}, h("td", {}, ago(run.at_ms, now, " ago")), h("td", {}, run.kind), h("td", {}, run.outcome), h("td", {}, f.seconds(run.seconds)), h("td", {}, run.summary)))))) : null,
    h("p", { class: "sub" }, "By hand: ", h("code", {}, `calve maintain ${sink.name}`)),
  ].filter(Boolean);
}

// ---- errors

function errorsView(sink, detail, now) {
  const wrong = [...(detail.states ?? [])].reverse().filter((change) => ["stalled", "halted", "fenced", "gone", "unknown"].includes(change.health)).slice(0, 10);
  const counters = [
    ["Dead letters", sink.dead_letters, "Records that could not become changes; they are kept in the dead letter table."],
    ["Late rows", sink.late, "Rows older than the closed frontier."],
    ["Conflicting keys", sink.key_violations, "Keys with different rows in one checkpoint; the log names them."],
    ["Failed attempts", sink.failed_attempts, "Commits that were tried again."],
    ["Fences", sink.fences, "Runs that a newer run replaced."],
  ];
  const some = counters.filter(([, value]) => value);
  const letters = detail.letters ?? [];
  if (wrong.length === 0 && some.length === 0 && letters.length === 0) return h("p", { class: "empty" }, "Nothing has gone wrong so far. Bad records would be counted here, and every stall with its cause.");
  return [
    some.length ? h("dl", { class: "pairs" }, some.map(([name, value, text]) => [h("dt", {}, name), h("dd", {}, h("strong", {}, f.count(value)), h("span", { class: "sub" }, text))])) : null,
    letters.length ? lettersView(sink, letters, now) : null,
    wrong.length ? [h("h3", {}, "Stalls and failures"), h("ol", { class: "troubles" }, wrong.map((change) => h("li", { "data-key": String(change.at_ms) }, h("p", {}, badge(change.health), " ", ago(change.at_ms, now, " ago")), problem(change.cause, change.hint))))] : null,
  ].flat().filter(Boolean);
}

/** The newest dead letters without their records, and once each what to do about them. */
function lettersView(sink, letters, now) {
  const hints = [...new Set(letters.map((letter) => letter.hint).filter(Boolean))];
  return [
    h("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": "Newest dead letters" }, h("table", { class: "plain letters" },
      h("caption", {}, `Newest dead letters${letters.length < sink.dead_letters ? ` (${f.count(letters.length)} of ${f.count(sink.dead_letters)})` : ""}`),
      h("thead", {}, h("tr", {}, ["When", "Where", "Why"].map((name) => h("th", { scope: "col" }, name)))),
      h("tbody", {}, letters.map((letter) => h("tr", {}, h("td", {}, ago(letter.at_ms, now, " ago")), h("td", { class: "wrap" }, letter.place || f.UNKNOWN),
        h("td", { class: "wrap" }, letter.reason, letter.detail ? h("span", { class: "sub" }, letter.detail) : null)))))),
    h("div", { class: "problem" }, hints.map((hint) => h("p", { class: "hint" }, h("span", { class: "label" }, "What to do"), hint)),
      h("p", { class: "sub" }, "With their records: ", h("code", {}, `calve letters ${sink.name}`))),
  ];
}

// ---- source

function sourceView(sink, detail, now) {
  const definition = detail.definition;
  const input = detail.input ?? {};
  const changes = input.schema_changes ?? [];
  return [
    h("dl", { class: "pairs" },
      h("dt", {}, "source"), h("dd", {}, definition?.source ?? (input.name || f.UNKNOWN), definition?.source_kind ? h("span", { class: "sub" }, definition.source_kind) : null),
      definition?.views?.length ? [h("dt", {}, definition.views.length === 1 ? "view" : "views"), h("dd", {}, definition.views.join(" → "))] : null,
      definition ? [h("dt", {}, "mode"), h("dd", {}, definition.mode ?? f.UNKNOWN, definition.key?.length ? ` by key (${definition.key.join(", ")})` : "")] : null,
      definition?.commit_interval ? [h("dt", {}, "commit interval"), h("dd", {}, definition.commit_interval)] : null,
      h("dt", {}, "unread"), h("dd", {}, sink.unread === null || sink.unread === undefined ? f.UNKNOWN : `${f.count(sink.unread)} ${sink.counts}`),
      retention(sink, now),
      input.checkpoint !== null && input.checkpoint !== undefined && input.checkpoint >= 0 ? [h("dt", {}, "checkpoint"), h("dd", {}, f.count(input.checkpoint), h("span", { class: "sub" }, "the last one in the table"))] : null),
    partitions(sink, input.parts ?? []),
    h("h3", {}, "Schema changes"),
    changes.length ? h("ol", { class: "changes" }, changes.map((change) => h("li", {}, h("span", { class: "sub" }, `schema ${change.schema_id}`), " ",
      [...change.added.map((text) => h("span", { class: "tag good" }, `+ ${text}`)), ...change.removed.map((text) => h("span", { class: "tag warn" }, `− ${text}`)), ...change.altered.map((text) => h("span", { class: "tag" }, text))]))) : h("p", { class: "empty" }, detail.details?.found ? "The columns have not changed since the table was created." : "Unknown until the table is loaded."),
    definition?.sql ? h("details", {}, h("summary", {}, "Definition"), h("pre", {}, definition.sql)) : null,
  ].filter(Boolean);
}

/** How long the source keeps what is not read yet. */
function retention(sink, now) {
  const keeps = sink.source_keeps_ms;
  if (keeps === null || keeps === undefined) return null;
  const behind = ageOfState(sink, now);
  const left = sink.unread && behind !== null ? `unread records are removed in ${f.duration(keeps - behind)} at the earliest` : "nothing unread can be lost now";
  return [h("dt", {}, "retention"), h("dd", {}, f.duration(keeps), h("span", { class: "sub" }, left))];
}

const NEAR = 0.1; // share of a partition's records below which retention is close to what is not read

function partitions(sink, parts) {
  if (parts.length === 0) return null;
  const known = (value) => value !== null && value !== undefined;
  const ends = parts.some((part) => known(part.end));
  const oldest = parts.some((part) => known(part.oldest));
  const head = (name, shown = true) => shown && h("th", { scope: "col", class: "number" }, name);
  const cell = (content, shown = true) => shown && h("td", { class: "number" }, content);
  const left = (part) => {
    if (![part.read, part.end, part.oldest].every(known)) return f.UNKNOWN;
    if (part.end <= part.read) return h("span", { class: "faint" }, "all read");
    const spare = Math.max(0, part.read - part.oldest);
    return [f.count(spare), spare < NEAR * (part.end - part.oldest) ? h("span", { class: "tag warn" }, "close") : null];
  };
  return h("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": "Position in the source" }, h("table", { class: "plain narrow" },
    h("caption", {}, sink.source_parts > parts.length ? `The ${f.count(parts.length)} partitions with the most unread, of ${f.count(sink.source_parts)}` : "Position"),
    h("thead", {}, h("tr", {}, h("th", { scope: "col" }, oldest ? "Partition" : "Part"), head("Read up to"), head("End", ends), head("Unread", ends), head("Oldest", oldest), head("Retention left", oldest))),
    h("tbody", {}, parts.map((part) => h("tr", { "data-key": part.name }, h("th", { scope: "row" }, part.name), cell(f.count(part.read)),
      cell(f.count(part.end), ends), cell(known(part.end) && known(part.read) ? f.count(Math.max(0, part.end - part.read)) : f.UNKNOWN, ends),
      cell(f.count(part.oldest), oldest), cell(left(part), oldest))))));
}
