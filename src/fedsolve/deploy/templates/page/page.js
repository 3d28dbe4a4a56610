"use strict";
// Everything that comes from a server or a site is put in as text, never as markup.

const EVERY = 2000; // milliseconds between two looks
const PATIENCE = 8000; // after which an answer is given up
let last = "";

const place = (name) => document.getElementById(name);

function element(kind, text = "", name = "") {
  const made = document.createElement(kind);
  if (text !== "") made.textContent = text;
  if (name) made.className = name;
  return made;
}

function within(kind, name, ...children) {
  const made = element(kind, "", name);
  made.append(...children);
  return made;
}

function size(count) {
  let value = Number(count) || 0;
  for (const unit of ["bytes", "KB", "MB"]) {
    if (value < 1000) return unit === "bytes" ? `${value} bytes` : `${value.toFixed(1)} ${unit}`;
    value /= 1000;
  }
  return `${value.toFixed(1)} GB`;
}

function span(seconds) {
  if (seconds < 120) return `${Math.max(0, Math.round(seconds))} s`;
  if (seconds < 7200) return `${Math.round(seconds / 60)} min`;
  return seconds < 172800 ? `${Math.round(seconds / 3600)} h` : `${Math.round(seconds / 86400)} d`;
}

const ago = (moment, now) => (moment ? `${span((Date.parse(now) - Date.parse(moment)) / 1000)} ago` : "");
const clock = (moment) => (moment ? new Date(moment).toLocaleString() : "");
const pill = (state) => element("span", state, `pill ${state.split(" ")[0]}`);

function facts(pairs) {
  const list = element("dl");
  for (const [name, value] of pairs) {
    if (value !== "" && value !== null && value !== undefined) list.append(element("dt", name), element("dd", String(value)));
  }
  return list;
}

function table(heads, rows) {
  const head = element("tr");
  for (const [name, kind] of heads) head.append(element("th", name, kind));
  const body = element("tbody");
  for (const row of rows) {
    const line = element("tr");
    row.forEach((cell, number) => {
      const made = element("td", "", heads[number][1]);
      made.append(cell instanceof Node ? cell : String(cell ?? ""));
      line.append(made);
    });
    body.append(line);
  }
  const box = within("div", "scroll", within("table", "", within("thead", "", head), body));
  box.tabIndex = 0; // so that it can be scrolled with the keyboard
  return box;
}

function findings(status) {
  const lines = status.wrong.map((text) => element("li", text, "wrong"));
  place("findings").replaceChildren(...lines, ...status.notes.map((text) => element("li", text)));
}

function siteCard(site, now) {
  const card = within("article", "card", within("header", "", element("h3", site.name), pill(site.state)));
  const data = site.samples === null ? "" : `${site.samples} samples, ${site.columns} columns, ${site.target}`;
  card.append(
    facts([
      ["since", ago(site.since, now)],
      ["version", site.version],
      ["data", data],
      ["policy", site.policy],
      ["told", ago(site.told, now)],
      ["node key", site.key || "none"],
      ["sum keys", site.peer || "none"],
    ]),
  );
  if (!site.expected) card.append(element("p", "not in SITES: it is not asked", "why"));
  if (site.left_out) card.append(element("p", `left out of the run: ${site.left_out}`, "why"));
  return card;
}

function timeLeft(run, told, now) {
  if (typeof told.left === "number") return `about ${span(told.left)}`;
  const waits = Object.values(told.sites || {}).filter((site) => site.waiting && site.since);
  if (!waits.length || !run.timeout) return "";
  const first = Math.min(...waits.map((site) => Date.parse(site.since)));
  return `an answer is awaited for at most ${span(run.timeout - (Date.parse(now) - first) / 1000)} more`;
}

function runCard(run, now) {
  if (!run) return element("p", "No run is under way.", "note");
  const told = run.told || {};
  const card = within("article", "card", within("header", "", element("h3", `${run.method}, ${run.privacy}`), pill("running")));
  const bar = element("progress");
  bar.max = told.of || 1;
  if (told.of) bar.value = told.done;
  bar.setAttribute("aria-label", told.phase || "waiting");
  card.append(bar, element("p", told.of ? `${told.phase}: ${told.done} of ${told.of}` : told.phase || "being handed over"));
  const chips = run.sites.map((name) => {
    const site = (told.sites || {})[name] || {};
    const state = site.left_out ? "left out" : site.waiting ? "asked" : site.came ? "answered" : "not asked yet";
    return element("span", `${name}: ${state}`, `pill ${{ answered: "done", "left out": "failed", asked: "running" }[state] || ""}`);
  });
  card.append(within("div", "chips", ...chips));
  card.append(
    facts([
      ["started", ago(run.started, now)],
      ["round", told.rounds > 1 ? `${told.round} of ${told.rounds} over` : ""],
      ["up", size(told.up)],
      ["down", size(told.down)],
      ["time left", timeLeft(run, told, now)],
    ]),
  );
  if (told.said && told.said.length) {
    const lines = element("pre", told.said.join("\n"));
    card.append(lines);
    queueMicrotask(() => (lines.scrollTop = lines.scrollHeight));
  }
  return card;
}

function pastRuns(runs) {
  if (!runs.length) return element("p", "No run is over yet.", "note");
  const heads = [["started"], ["method"], ["privacy"], ["outcome"], ["took", "number"], ["up", "number"], ["down", "number"], ["result", "long"]];
  const rows = runs.map((run) => {
    const seconds = run.ended ? (Date.parse(run.ended) - Date.parse(run.started)) / 1000 : NaN;
    const told = run.told || {};
    let result = run.error;
    if (run.outcome === "done") {
      result = element("a", `report of ${run.out}`);
      result.href = `/runs/${encodeURIComponent(run.id)}/report`;
    }
    return [clock(run.started), run.method, run.privacy, pill(run.outcome), isNaN(seconds) ? "" : span(seconds), size(told.up), size(told.down), result];
  });
  return table(heads, rows);
}

function journal(lines) {
  if (!lines.length) return element("p", "No run of this server has put anything into a ledger.", "note");
  const heads = [["when"], ["ledger"], ["event"], ["who"], ["bytes", "number"], ["reason", "long"]];
  return table(heads, lines.map((line) => [clock(line.at), line.ledger, line.event, line.client, size(line.bytes), line.reason]));
}

function show(status) {
  const online = status.sites.filter((site) => site.expected && site.state === "online").length;
  const expected = status.sites.filter((site) => site.expected).length;
  document.title = `${online} of ${expected} sites`;
  place("title").textContent = `Federation at ${status.address}`;
  const ends = status.certificates.map((each) => `${each.what}'s certificate: ${each.days} days`);
  const link = status.superlink ? "SuperLink answers" : "SuperLink does not answer";
  place("facts").textContent = [link, `${online} of ${expected} sites connected`, ...ends, `fedsolve ${status.version}`].join(" · ");
  findings(status);
  place("run").replaceChildren(runCard(status.run, status.at));
  place("sites").replaceChildren(...status.sites.map((site) => siteCard(site, status.at)));
  place("runs").replaceChildren(pastRuns(status.runs));
  place("journal").replaceChildren(journal(status.journal));
}

async function look() {
  try {
    const answer = await fetch("/status.json", { cache: "no-store", signal: AbortSignal.timeout(PATIENCE) });
    if (!answer.ok) throw new Error(await answer.text());
    const status = await answer.json();
    show(status);
    last = status.at;
    document.body.classList.remove("stale");
    place("foot").textContent = `as of ${clock(last)}; looks again every ${EVERY / 1000} s`;
  } catch (error) {
    document.body.classList.add("stale");
    place("foot").textContent = `the server of this page does not answer (${error.message}); what stands here is of ${clock(last) || "no time"}`;
  }
  setTimeout(look, EVERY);
}

look();
