// The live page of `monarch dashboard`: what ranks do comes once a second by /api/stream, the run
// that is shown, its logs and the list of runs are asked for.
"use strict";

const EVERY = { run: 1000, ended: 5000, log: 1000, runs: 3000 };
const MOST_LINES = 3000, MANY_CELLS = 64, MOST_CELLS = 4096, MOST_GROUPS = 16, MOST_STACKS = 16;
const ALARM = /\b(Traceback|[A-Z]\w*Error|ERROR|CRITICAL)\b/;
// What a cell's colour means; the gravest first, which counts where a rank has several actors.
const STATES = {
  failed: "failed", hangs: "hangs", silent: "does not answer", held: "held in the debugger", running: "runs a call",
  waiting: "waits for another", starting: "starts", idle: "has nothing to do",
};
const live = { snapshot: null, runs: [], shown: null, isChosen: false, over: new Set(), picked: new Set(), sort: null };

async function ask(path, options = {}) {
  const answer = await fetch(path, { credentials: "same-origin", ...options });
  if (answer.status === 403) throw new Error(await answer.text());
  const body = await answer.json();
  if (body?.error) throw new Error(body.error);
  return body;
}

const act = (what, about) => ask(`/api/act/${what}`, { method: "POST", headers: { "Content-Type": "application/json" }, body: JSON.stringify(about) });
const goesOn = status => !["finished", "stopped", "failed", "killed", "empty"].includes(status);

// The run that is shown

async function followRun() {
  const name = live.shown;
  if (!name) return;
  const known = view.data?.name === name && view.story ? view.data.num_events : "";
  const run = await ask(`/api/runs/${encodeURIComponent(name)}?events=${known}`);
  if (live.shown !== name) return;
  showRun(run);
  tellTab(run);
  showRanks();
}

function tellTab(run) {
  const isBad = ["held", "failed", "killed"].includes(run.status), mark = isBad ? "✗" : goesOn(run.status) ? "●" : "✓";
  document.title = `${mark} ${WORDS[run.status] ?? run.status} · ${run.name}`;
  const dot = `<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 16 16"><circle cx="8" cy="8" r="7" fill="${isBad ? "#d92d20" : goesOn(run.status) ? "#17864c" : "#6b7684"}"/></svg>`;
  $("icon").href = `data:image/svg+xml,${encodeURIComponent(dot)}`;
}

async function followOthers() {
  const names = [...live.over].filter(name => name !== live.shown);
  const found = await Promise.all(names.map(name => ask(`/api/runs/${encodeURIComponent(name)}?events=0`).catch(() => null)));
  view.over = found.filter(Boolean);
  if (view.data) showCharts();
}

function showOther(name, isChosen) {
  if (name === live.shown) return;
  live.shown = name; live.isChosen = isChosen; live.log = null;
  live.over.delete(name);
  followRun().catch(() => {}); followLog().catch(() => {}); followOthers();
  showRuns();
}

// Buttons about the run: what they do is asked of the server, which says what came of it.
view.actions = run => {
  const all = [];
  const button = (text, what, kind, question) => {
    const made = element("button", text, kind);
    made.onclick = async () => {
      if (question && !confirm(question)) return;
      made.disabled = true;
      await say(() => act(what, [run.name]), text);
      made.disabled = false;
    };
    all.push(made);
  };
  if (!live.snapshot?.is_live || live.snapshot.is_read_only) return all;
  if (run.hold) {
    for (const key of run.hold.choices)
      button(key === "t" ? "go on with the state of one rank" : "go on from the last checkpoint", `take-${key}`, "main");
    if (run.hold.can_roll_back && !run.hold.choices.length) button(`roll back to generation ${run.hold.good}`, "rollback", "main");
  }
  if (run.status === "slow") { button("hold it", "hold", "main"); button("give it more time", "more", ""); }
  return all;
};

async function say(work, title) {
  const section = $("asked"), answer = $("answer");
  section.hidden = false; answer.hidden = false;
  answer.textContent = `${title} …`; answer.className = "";
  try { answer.textContent = (await work()).text || "nothing to tell"; } catch (error) { answer.textContent = error.message; answer.className = "error"; }
  section.scrollIntoView({ block: "nearest" });
}

// Ranks

const stateOf = status => STATES[status] ? status : status === "no answer" ? "silent" : "idle";

function cellsOf(snapshot) {
  const cells = new Map(), order = Object.keys(STATES);
  for (const rank of snapshot.ranks) {
    const cell = cells.get(rank.host + rank.uid) ?? { uid: rank.uid, host: rank.host, proc: rank.proc, state: "idle", says: [] };
    const state = stateOf(rank.status);
    if (order.indexOf(state) < order.indexOf(cell.state)) cell.state = state;
    cell.says.push(`${rank.actor} ${rank.rank}: ${rank.status} ${rank.doing}`.trim());
    cell.number = rank.proc.slice(rank.proc.lastIndexOf(" ") + 1); cell.mesh = rank.proc.slice(0, rank.proc.lastIndexOf(" "));
    cell.pid = rank.pid; cell.rss = rank.rss; cell.generation = rank.generation;
    cells.set(rank.host + rank.uid, cell);
  }
  const run = view.data;
  if (run?.hold && isShownLive()) for (const cell of cells.values())
    if (run.hold.ranks.includes(Number(cell.number))) { cell.state = "failed"; cell.says.push(run.hold.error); }
  return [...cells.values()];
}

// Whether what ranks do is about the run that is shown.
const isShownLive = () => live.snapshot?.is_live && (!view.data || goesOn(view.data.status));

function size(bytes) {
  if (bytes == null) return "-";
  for (const unit of ["", "K", "M"]) { if (bytes < 1000) return bytes.toFixed(bytes >= 10 || !unit ? 0 : 1) + unit; bytes /= 1024; }
  return bytes.toFixed(1) + "G";
}

function showRanks() {
  const snapshot = live.snapshot, section = $("ranks");
  section.hidden = !snapshot || !isShownLive() || !snapshot.num_ranks;
  $("asked").hidden = section.hidden && $("answer").hidden;
  if (section.hidden) return;
  const cells = cellsOf(snapshot), counts = new Map();
  for (const cell of cells) counts.set(cell.state, (counts.get(cell.state) ?? 0) + 1);
  const generations = [...new Set(cells.map(cell => cell.generation))].sort((a, b) => a - b);
  $("counts").textContent = `${counted(snapshot.num_ranks, "rank")} on ${counted(snapshot.hosts.length, "host")}, generation ${generations.join("/") || "-"}, ${snapshot.counters.rate.toFixed(0)} calls/s, ${counted(snapshot.counters.queue, "message")} in queues`;
  const states = Object.keys(STATES).filter(state => counts.has(state));
  fill($("legend"), states.map(state => `${state}${counts.get(state)}`).join(), () => states.map(state =>
    element("span", null, "", element("i", null, state), `${STATES[state]}: ${counts.get(state)}`)));
  grid(cells.slice(0, MOST_CELLS), snapshot.hosts);
  groups(snapshot.groups);
  const open = new Set([...document.querySelectorAll("#failures details[open]")].map(one => one.dataset.key));
  fill($("failures"), JSON.stringify(snapshot.failures), () => snapshot.failures.slice(-20).reverse().map(failure => {
    const made = element("details", null, "", element("summary", `${failure.who} on ${failure.host}: ${failure.text.split("\n")[0]}`), element("pre", failure.text));
    made.dataset.key = failure.who + failure.at; made.open = open.has(made.dataset.key);
    return made;
  }));
  $("about").textContent = snapshot.is_hang ? "" : `Stacks and profiles are of the ranks that you pick in the grid, else of the first ${MOST_STACKS}.`;
  if (snapshot.is_hang) $("about").replaceChildren(element("b", ["This will not end by itself:", ...snapshot.waits].join("\n"), "error"));
  for (const button of document.querySelectorAll("[data-act]")) button.disabled = snapshot.is_read_only && button.dataset.act === "profile";
}

function grid(cells, hosts) {
  const rows = new Map();
  for (const cell of cells) {
    const key = `${cell.host}\n${cell.mesh}`;
    if (!rows.has(key)) rows.set(key, { host: cell.host, mesh: cell.mesh, cells: [] });
    rows.get(key).cells.push(cell);
  }
  const meshes = new Set(cells.map(cell => cell.mesh)).size;
  for (const host of hosts) if (host.error) rows.set(host.name, { host: host.name, mesh: "", cells: [], error: host.error });
  const shape = cells.map(cell => cell.host + cell.uid).join();
  const about = row => {
    const host = hosts.find(one => one.name === row.host) ?? {};
    if (row.error) return `${row.host}: ${row.error}`;
    return [row.host, meshes > 1 ? row.mesh : "", host.cpu != null ? `cpu ${Math.round(100 * host.cpu)} %` : "", host.mem_total ? `memory ${size(host.mem_used)} of ${size(host.mem_total)}` : "",
      ...(host.gpus ?? []).map(gpu => `gpu${gpu.index} ${gpu.busy ?? "-"} %`)].filter(Boolean).join(" · ");
  };
  fill($("grid"), shape + rows.size, () => [...rows.values()].map(row => {
    const home = element("div", null, `cells ${cells.length > MANY_CELLS ? "many" : ""}`);
    for (const cell of row.cells) {
      const made = element("button", cell.number);
      made.dataset.uid = cell.uid;
      made.onclick = () => { live.picked.has(cell.uid) ? live.picked.delete(cell.uid) : live.picked.add(cell.uid); pick(); };
      home.append(made);
    }
    return element("div", null, "host", element("span"), home);
  }));
  $("grid").className = rows.size < 3 ? "few" : "";
  const lines = $("grid").children;
  [...rows.values()].forEach((row, at) => { lines[at].firstChild.textContent = about(row); lines[at].firstChild.className = row.error ? "error" : ""; });
  const byUid = new Map(cells.map(cell => [cell.uid, cell]));
  for (const made of $("grid").querySelectorAll("button")) {
    const cell = byUid.get(made.dataset.uid);
    made.className = `${cell.state} ${live.picked.has(cell.uid) ? "picked" : ""}`;
    made.title = [`rank ${cell.number} on ${cell.host}, pid ${cell.pid}, ${size(cell.rss)}, generation ${cell.generation}`, ...cell.says].join("\n");
  }
  const picked = cells.filter(cell => live.picked.has(cell.uid));
  $("picked").textContent = picked.slice(0, 3).map(cell => `rank ${cell.number}: pid ${cell.pid} on ${cell.host}, ${cell.says.join("; ")}`).join("\n") + (picked.length > 3 ? `, and ${picked.length - 3} more` : "");
}

function pick() {
  showRanks();
  $("who").value = cellsOf(live.snapshot).filter(cell => live.picked.has(cell.uid)).map(cell => cell.number).join(",");
  $("who").onchange();
}

// Ranks that do what most do are one line, on however many hosts; odd ones are told apart.
function together(rows) {
  const found = new Map();
  for (const row of rows) {
    const key = row.is_odd ? `${row.host} ${row.ranks} ${row.actor}` : `${row.actor} ${row.status} ${row.doing}`, same = found.get(key);
    found.set(key, same ? { ...same, num_hosts: same.num_hosts + 1, num_ranks: same.num_ranks + row.num_ranks, seconds: Math.max(same.seconds, row.seconds),
      queue: same.queue + row.queue, rss: Math.max(same.rss, row.rss), generation: [...new Set([...same.generation.split("/"), ...row.generation.split("/")])].join("/") } : { ...row, num_hosts: 1 });
  }
  return [...found.values()].map(row => row.num_hosts === 1 ? row : { ...row, ranks: `${row.num_ranks} ranks`, host: `${row.num_hosts} hosts` });
}

function groups(rows) {
  const cells = row => [[row.ranks, row.is_odd ? "failed" : ""], [row.actor, ""], [row.host, "wide-only"], [`${row.status} ${row.doing}`, stateOf(row.status)],
    [row.seconds ? duration(row.seconds) : "", "n"], [row.queue, "n wide-only"], [size(row.rss), "n wide-only"], [row.generation, "n wide-only"]];
  const head = [["ranks", ""], ["actor", ""], ["host", "wide-only"], ["does", ""], ["for", "n"], ["queue", "n wide-only"], ["memory", "n wide-only"], ["gen", "n wide-only"]];
  const lines = together(rows), left = lines.length - MOST_GROUPS;
  $("groups").replaceChildren(element("tr", null, "", ...head.map(([name, kind]) => element("th", name, kind))),
    ...lines.slice(0, MOST_GROUPS).map(row => element("tr", null, "", ...cells(row).map(([text, kind]) => element("td", text, kind)))),
    ...(left > 0 ? [element("tr", null, "", element("td", `and ${left} more`))] : []));
}

for (const button of document.querySelectorAll("[data-act]")) button.onclick = async () => {
  const seen = new Set((live.snapshot?.ranks ?? []).map(rank => rank.uid)), picked = [...live.picked].filter(uid => seen.has(uid));
  button.disabled = true;
  await say(() => act(button.dataset.act, picked.length ? picked : [...seen].slice(0, MOST_STACKS)), button.textContent);
  button.disabled = false;
};

// Logs

async function followLog() {
  const name = live.shown, ranks = $("who").value.trim();
  if (!name) return;
  const key = `${name} ${ranks}`;
  if (live.log?.key !== key) { live.log = { key, next: -1, lines: [] }; $("lines").replaceChildren(); }
  const log = live.log;
  let found;
  try {
    found = await ask(`/api/runs/${encodeURIComponent(name)}/log?after=${Math.max(0, log.next)}&ranks=${encodeURIComponent(ranks)}`);
  } catch (error) {
    $("lines").replaceChildren(element("div", error.message, "error"));
    live.log = null;
    return;
  }
  if (live.log !== log || (found.next === log.next)) return;
  log.next = found.next; log.isMany = found.names.length > 1;
  log.lines.push(...found.lines); log.lines.splice(0, log.lines.length - MOST_LINES);
  $("logs").hidden = !log.lines.length && !ranks;
  addLines(found.lines);
}

function addLines(lines) {
  const home = $("lines"), wanted = $("words").value.toLowerCase();
  const shown = lines.filter(([who, text]) => !wanted || text.toLowerCase().includes(wanted));
  const many = live.log.isMany;
  home.append(...shown.slice(-MOST_LINES).map(([who, text]) =>
    element("div", null, ALARM.test(text) ? "alarm" : "", ...(many ? [element("i", who.replace(/^rank/, ""))] : []), text)));
  while (home.children.length > MOST_LINES) home.firstChild.remove();
  if ($("follow").checked) home.scrollTop = home.scrollHeight;
}

function filterAgain() { $("lines").replaceChildren(); if (live.log) addLines(live.log.lines); }

$("who").onchange = () => followLog();
$("words").oninput = filterAgain;
$("filters").onsubmit = event => { event.preventDefault(); followLog(); };
$("follow").onchange = () => { if ($("follow").checked) $("lines").scrollTop = $("lines").scrollHeight; };
// Who scrolls up reads; at the end it follows again.
$("lines").onscroll = () => { const home = $("lines"); $("follow").checked = home.scrollTop + home.clientHeight >= home.scrollHeight - 30; };

// Runs

async function followRuns() {
  live.runs = await ask("/api/runs");
  const newest = live.runs[0]?.name;
  if (newest && (!live.shown || (!live.isChosen && newest !== live.shown))) showOther(newest, false);
  showRuns();
}

function columnsOf(runs) {
  const names = [...new Set(runs.flatMap(run => Object.keys(run.values)))], common = ["samples_per_second", "tokens_per_second", "rank_skew_seconds", "participants", "learning_rate", "grad_norm"];
  const measured = [...names.filter(name => name === "loss"), ...names.filter(name => name !== "loss" && !common.includes(name))].slice(0, 5);
  const recipe = runs.find(run => run.name === live.shown)?.recipe, alike = runs.filter(run => run.recipe === recipe);
  const keys = [...new Set(alike.flatMap(run => Object.keys(run.config)))].filter(key => new Set(alike.map(run => String(run.config[key]))).size > 1).slice(0, 5);
  return [
    ["run", run => run.name, ""], ["state", run => WORDS[run.status] ?? run.status, ""], ["step", run => run.step, "n"],
    ...measured.map(name => [name, run => run.values[name], "n"]),
    ...keys.map(key => [key, run => run.config[key], "n"]),
    ["edits", run => run.num_edits, "n"], ["took", run => run.seconds, "n", duration], ["began", run => run.began, "n", time => time ? new Date(time * 1000).toLocaleString([], { dateStyle: "short", timeStyle: "short" }) : "-"],
  ];
}

function showRuns() {
  const section = $("runs"), columns = columnsOf(live.runs);
  section.hidden = !live.runs.length;
  const key = JSON.stringify([live.runs, live.shown, [...live.over], live.sort]);
  fill(section.querySelector("table"), key, () => {
    const rows = [...live.runs], by = columns.find(([name]) => name === live.sort?.name);
    if (by) rows.sort((a, b) => compare(by[1](a), by[1](b)) * (live.sort.isDown ? -1 : 1));
    const head = element("tr", null, "", element("th"), ...columns.map(([name, , kind]) => {
      const made = element("th", name + (live.sort?.name === name ? (live.sort.isDown ? " ↓" : " ↑") : ""), kind);
      made.onclick = () => { live.sort = { name, isDown: live.sort?.name === name && !live.sort.isDown }; showRuns(); };
      return made;
    }));
    return [head, ...rows.map(run => {
      const box = element("input");
      box.type = "checkbox"; box.checked = live.over.has(run.name) || run.name === live.shown; box.disabled = run.name === live.shown;
      box.setAttribute("aria-label", `draw ${run.name}`);
      box.onchange = () => { box.checked ? live.over.add(run.name) : live.over.delete(run.name); followOthers(); showRuns(); };
      const line = element("tr", null, run.name === live.shown ? "shown" : "", element("td", null, "", box));
      for (const [name, value, kind, form] of columns) {
        const cell = element("td", null, kind);
        if (name === "run") {
          const link = element("button", run.name, "link");
          link.onclick = () => { showOther(run.name, true); scrollTo({ top: 0 }); };
          cell.append(link);
        } else if (name === "state") cell.append(element("span", value(run), `chip ${run.status === "running" ? "training" : run.status}`));
        else cell.textContent = (form ?? figure)(value(run));
        line.append(cell);
      }
      return line;
    })];
  });
}

const compare = (a, b) => a == null ? 1 : b == null ? -1 : typeof a === "number" && typeof b === "number" ? a - b : String(a).localeCompare(String(b));

// Questions

$("query").querySelector("form").onsubmit = async event => {
  event.preventDefault();
  try {
    const found = await ask("/api/query", { method: "POST", body: $("sql").value });
    const line = (tag, cells) => element("tr", null, "", ...cells.map(text => element(tag, text ?? "-")));
    $("found").replaceChildren(element("p", counted(found.num_rows, "row"), "dim"), element("table", null, "",
      line("th", found.columns), ...found.rows.slice(0, 500).map(row => line("td", found.columns.map(name => row[name])))));
  } catch (error) { $("found").replaceChildren(element("pre", error.message, "error")); }
};

// The beginning

function show(snapshot) {
  live.snapshot = snapshot;
  view.buttonsKey = `${snapshot.is_live} ${snapshot.is_read_only}`;
  $("title").textContent = snapshot.title;
  if (!view.data) { $("facts").textContent = "no run here yet"; document.title = `monarch · ${snapshot.title}`; }
  showRanks();
}

// Ask again and again, each time a while after the last answer; a page that nobody sees asks seldom.
function again(work, pause) {
  const turn = async () => {
    try { await work(); } catch (error) { console.debug(error.message); }
    setTimeout(turn, pause() * (document.hidden ? 5 : 1));
  };
  return turn();
}

async function begin() {
  const token = new URLSearchParams(location.hash.slice(1)).get("t");
  if (token) {
    await fetch("/session", { method: "POST", body: token, credentials: "same-origin" });
    history.replaceState(null, "", "/");
  }
  show(await ask("/api/mesh"));
  $("query").hidden = false;
  const pause = usual => () => view.data && !goesOn(view.data.status) ? EVERY.ended : usual;
  await again(followRuns, () => EVERY.runs);
  await Promise.all([again(followRun, pause(EVERY.run)), again(followLog, pause(EVERY.log))]);
  again(followOthers, () => EVERY.ended);
  const stream = new EventSource("/api/stream"), tells = $("live");
  const tell = (text, kind) => { tells.textContent = text; tells.className = kind; };
  stream.onmessage = event => {
    const told = JSON.parse(event.data);
    if (told.error) return tell(told.error, "off");
    tell(told.is_live ? "live ●" : "", "on");
    show(told);
  };
  stream.onerror = () => tell("the page's server does not answer", "off");
  document.body.dataset.ready = "yes";
}

begin().catch(error => { $("live").textContent = error.message; $("live").className = "off"; });
