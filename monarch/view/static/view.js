// The page of `monarch dashboard`. It shows what /api/stream tells once a second, and keeps nothing
// beyond that but the last minute of what ranks did. All text from ranks goes in as text, never as HTML.

const $ = id => document.getElementById(id);
const PALETTE = ["#3b7dd8", "#d9702f", "#2a9d57", "#8e5bd0", "#c8457d", "#5a8f9c"];
const MINUTE = 60, MOST_ROWS = 200, MOST_CELLS = 2048, MOST_LANES = 64;
const state = { picked: null, snapshot: null, curves: new Map(), chosen: null, lanes: new Map() };

function element(tag, text, kind) {
  const made = document.createElement(tag);
  if (text !== undefined) made.textContent = text;
  if (kind) made.className = kind;
  return made;
}

function size(bytes) {
  if (bytes == null) return "-";
  for (const unit of ["", "K", "M"]) {
    if (bytes < 1000) return bytes.toFixed(bytes >= 10 || !unit ? 0 : 1) + unit;
    bytes /= 1024;
  }
  return bytes.toFixed(1) + "G";
}

const counted = (number, noun) => `${number} ${noun}${number === 1 ? "" : "s"}`;

async function ask(path, options = {}) {
  const answer = await fetch(path, { credentials: "same-origin", ...options });
  if (answer.status === 403) throw new Error(await answer.text());
  const body = await answer.json();
  if (body && body.error) throw new Error(body.error);
  return body;
}

function plot(where, title, series, height) {
  const width = () => Math.max(200, where.clientWidth);
  let drawn = null, names = "";
  return data => {
    const wanted = series(data);
    const key = wanted.map(one => one.label).join("\n");
    if (!drawn || key !== names) {
      if (drawn) drawn.destroy();
      names = key;
      drawn = new uPlot({
        title, width: width(), height, cursor: { drag: { x: true, y: false } },
        scales: { x: { time: false } },
        axes: [{ stroke: "#888", grid: { stroke: "#8882" } }, { stroke: "#888", grid: { stroke: "#8882" }, size: 60 }],
        series: [{ label: data.x_label }, ...wanted],
      }, data.rows, where);
      new ResizeObserver(() => drawn.setSize({ width: width(), height })).observe(where);
    } else drawn.setData(data.rows);
  };
}

const oneLine = color => data => [{ label: data.label, stroke: color, width: 1.5, fill: color + "22" }];
const rate = plot($("rate"), "calls a second", oneLine(PALETTE[0]), 130);
const queue = plot($("queue"), "messages that wait", oneLine(PALETTE[1]), 130);
const loss = plot($("loss"), "", data => data.labels.map((label, at) => ({
  label, stroke: PALETTE[at % PALETTE.length], width: 1.5, spanGaps: true })), 240);
const history = { at: [], rate: [], queue: [] };

function remember(counters) {
  history.at.push(counters.at); history.rate.push(counters.rate); history.queue.push(counters.queue);
  for (const one of Object.values(history)) while (one.length > 900) one.shift();
  const now = history.at.at(-1), x = history.at.map(at => at - now);
  rate({ x_label: "s ago", label: "calls/s", rows: [x, history.rate] });
  queue({ x_label: "s ago", label: "messages", rows: [x, history.queue] });
}

function show(snapshot) {
  state.snapshot = snapshot;
  $("title").textContent = snapshot.title;
  document.title = `monarch ${snapshot.title}`;
  const generations = [...new Set(snapshot.groups.map(group => group.generation))].join("/");
  $("facts").textContent = snapshot.is_live
    ? `${counted(snapshot.hosts.length, "host")}, ${counted(snapshot.num_ranks, "rank")}, gen ${generations || "-"}, ` +
      `${snapshot.counters.rate.toFixed(0)} calls/s, queue ${snapshot.counters.queue}`
    : "of runs that have ended";
  for (const button of document.querySelectorAll("#buttons button"))
    button.disabled = !snapshot.is_live || (snapshot.is_read_only && ["profile", "stop"].includes(button.dataset.act));
  $("hosts").replaceChildren(...snapshot.hosts.map(host => element("div", host.error
    ? `${host.name}: ${host.error}`
    : `${host.name}  cpu ${host.cpu == null ? "-" : Math.round(100 * host.cpu) + " %"}  mem ${size(host.mem_used)}/${size(host.mem_total)}` +
      host.gpus.map(gpu => `  gpu${gpu.index} ${gpu.busy ?? "-"} %`).join("") + `  ${counted(host.num_procs, "proc")}`,
    host.error ? "error" : "")));
  $("cells").replaceChildren(...snapshot.ranks.slice(0, MOST_CELLS).map(rank => {
    const cell = element("i", "", rank.status);
    cell.title = `${rank.actor} ${rank.rank}: ${rank.status} ${rank.doing}`;
    return cell;
  }));
  groups(snapshot.groups);
  $("waits").textContent = [...snapshot.waits, ...snapshot.edit_holds].join("\n");
  $("waits").className = snapshot.is_hang ? "failed" : "";
  const open = new Set([...document.querySelectorAll("#failures details[open]")].map(one => one.dataset.key));
  $("failures").replaceChildren(...snapshot.failures.slice(-20).reverse().map(failure => {
    const made = element("details"), key = failure.who + failure.at;
    made.dataset.key = key; made.open = open.has(key);
    made.append(element("summary", `${failure.who} on ${failure.host}: ${failure.text.split("\n")[0]}`, "failed"),
      element("pre", failure.text));
    return made;
  }));
  if (snapshot.is_live) { remember(snapshot.counters); timeline(snapshot); }
}

function groups(rows) {
  const head = element("tr");
  head.append(...["host", "actor", "ranks", "does", "for", "calls/s", "queue", "mem", "gen"].map((name, at) => element("th", name, at < 4 ? "" : "n")));
  const body = document.createElement("tbody");
  for (const row of rows.slice(0, MOST_ROWS)) {
    const line = element("tr"), key = `${row.host} ${row.actor} ${row.ranks}`;
    line.append(element("td", row.host), element("td", row.actor),
      element("td", (row.is_odd ? "● " : "") + row.ranks, row.is_odd ? "failed" : ""),
      element("td", `${row.status} ${row.doing}`, row.status),
      element("td", row.seconds ? row.seconds.toFixed(1) + " s" : "", "n"),
      element("td", row.rate.toFixed(0), "n"), element("td", row.queue, "n"),
      element("td", size(row.rss), "n"), element("td", row.generation, "n"));
    if (state.picked && state.picked.key === key) { line.classList.add("picked"); state.picked.uids = row.uids; }
    line.onclick = () => { state.picked = { key, uids: row.uids }; groups(rows); };
    body.append(line);
  }
  $("groups").replaceChildren(head, body);
}

function timeline(snapshot) {
  const now = snapshot.at;
  for (const rank of snapshot.ranks.slice(0, MOST_LANES)) {
    const key = `${rank.actor} ${rank.rank}`;
    const lane = state.lanes.get(key) ?? [];
    lane.push({ at: now, doing: rank.doing, status: rank.status, generation: rank.generation });
    while (lane.length && lane[0].at < now - MINUTE) lane.shift();
    state.lanes.set(key, lane);
  }
  for (const [key, lane] of state.lanes) if (!lane.length || lane.at(-1).at < now - MINUTE) state.lanes.delete(key);
  const canvas = $("timeline"), ratio = devicePixelRatio || 1, height = 18 * Math.max(1, state.lanes.size) + 4;
  canvas.width = canvas.clientWidth * ratio; canvas.height = height * ratio; canvas.style.height = height + "px";
  const draw = canvas.getContext("2d");
  draw.scale(ratio, ratio); draw.font = "11px system-ui";
  const left = 110, wide = canvas.clientWidth - left, style = getComputedStyle(document.body);
  const colors = { running: "--run", waiting: "--wait", failed: "--bad", hangs: "--bad", held: "--held" };
  let row = 0;
  for (const [key, lane] of state.lanes) {
    const y = 18 * row++ + 2;
    draw.fillStyle = style.color; draw.fillText(key, 2, y + 11, left - 6);
    lane.forEach((one, at) => {
      const end = at + 1 < lane.length ? lane[at + 1].at : now;
      const x = left + wide * (1 - (now - one.at) / MINUTE), w = wide * (end - one.at) / MINUTE;
      draw.fillStyle = style.getPropertyValue(colors[one.status] ?? "--line") || "#8884";
      draw.fillRect(x, y, Math.max(w, 1), 13);
      const before = lane[at - 1];
      if (before && before.generation !== one.generation) {
        draw.fillStyle = style.color; draw.fillRect(x, y - 2, 2, 17);
        draw.fillText(`gen ${one.generation}`, x + 3, y + 11);
      }
      if (one.doing && (!before || before.doing !== one.doing) && w > 2) {
        draw.fillStyle = "#fff"; draw.fillText(one.doing, x + 3, y + 11, 80);
      }
    });
  }
}

async function showRuns() {
  const runs = await ask("/api/runs");
  // The newest, until the person chooses: none is a choice, too.
  if (!state.chosen && runs.length) state.chosen = new Set([runs[0].name]);
  const chosen = state.chosen ?? new Set();
  $("runs").replaceChildren(...runs.slice(0, 12).map(run => {
    const label = element("label"), box = document.createElement("input");
    box.type = "checkbox"; box.checked = chosen.has(run.name);
    box.onchange = () => { box.checked ? chosen.add(run.name) : chosen.delete(run.name); showRuns(); };
    const figures = Object.entries(run.values).slice(0, 3).map(([name, value]) => `${name} ${value.toPrecision?.(4) ?? value}`).join("  ");
    label.append(box, ` ${run.name}  ${run.status}  step ${run.step}/${run.num_steps}  ${figures}`);
    const line = element("div"); line.append(label);
    return line;
  }));
  const found = await Promise.all([...chosen].map(name => ask(`/api/runs/${encodeURIComponent(name)}`).catch(() => null)));
  drawRuns(found.filter(Boolean));
  if (chosen.size) await showLog([...chosen][0]);
}

function drawRuns(runs) {
  if (!runs.length) return loss({ x_label: "step", labels: [], rows: [[]] });
  const names = [...new Set(runs.flatMap(run => Object.keys(run.curves)))];
  const metric = $("metric");
  if (names.join() !== [...metric.options].map(option => option.value).join()) {
    const before = metric.value;
    metric.replaceChildren(...names.map(name => { const option = element("option", name); option.value = name; return option; }));
    metric.value = names.includes(before) ? before : names.includes("loss") ? "loss" : names[0] ?? "";
  }
  if (!metric.value) return;
  const steps = [...new Set(runs.flatMap(run => run.steps))].sort((a, b) => a - b);
  const rows = [steps], labels = [];
  for (const run of runs) {
    const at = new Map(run.steps.map((step, index) => [step, (run.curves[metric.value] ?? [])[index]]));
    rows.push(steps.map(step => at.get(step) ?? null));
    labels.push(run.name);
    const pushes = new Map(run.events.filter(event => event.kind === "generation").map(event => [event.step, 1]));
    if (pushes.size) {
      const values = rows.at(-1);
      rows.push(steps.map((step, index) => pushes.has(step) ? values[index] : null));
      labels.push(`${run.name}: pushes`);
    }
  }
  loss({ x_label: "step", labels, rows });
}

async function showLog(run) {
  const logs = await ask(`/api/runs/${encodeURIComponent(run)}/log`);
  const names = Object.keys(logs), select = $("rank");
  if (names.join() !== [...select.options].map(option => option.value).join()) {
    select.replaceChildren(...names.map(name => { const option = element("option", name); option.value = name; return option; }));
  }
  const text = (logs[select.value || names[0]] ?? []).join("\n"), log = $("log");
  if (log.textContent !== text) { log.textContent = text; log.scrollTop = log.scrollHeight; }
}

function say(text) { $("said").textContent = text; $("dialog").showModal(); }

for (const button of document.querySelectorAll("#buttons button")) button.onclick = async () => {
  const what = button.dataset.act;
  if (what === "stop" && !confirm("Ask the program of these ranks to stop? A run saves first.")) return;
  const all = (state.snapshot?.ranks ?? []).slice(0, 16).map(rank => rank.uid);
  const uids = state.picked?.uids ?? [...new Set(all)];
  button.disabled = true;
  try {
    say((await ask(`/api/act/${what}`, { method: "POST", headers: { "Content-Type": "application/json" }, body: JSON.stringify(uids) })).text);
  } catch (error) { say(String(error.message)); }
  button.disabled = false;
};

$("ask").onsubmit = async event => {
  event.preventDefault();
  try {
    const found = await ask("/api/query", { method: "POST", body: $("sql").value });
    const table = element("table"), head = element("tr");
    head.append(...found.columns.map(name => element("th", name)));
    table.append(head, ...found.rows.slice(0, 500).map(row => {
      const line = element("tr");
      line.append(...found.columns.map(name => element("td", row[name] ?? "-")));
      return line;
    }));
    $("answer").replaceChildren(element("div", counted(found.num_rows, "row")), table);
  } catch (error) { $("answer").replaceChildren(element("pre", error.message, "error")); }
};
$("metric").onchange = $("rank").onchange = () => showRuns();

async function begin() {
  const token = new URLSearchParams(location.hash.slice(1)).get("t");
  if (token) {
    await fetch("/session", { method: "POST", body: token, credentials: "same-origin" });
    window.history.replaceState(null, "", "/");
  }
  const first = await ask("/api/mesh");
  for (const one of first.history.slice(0, -1)) { history.at.push(one.at); history.rate.push(one.rate); history.queue.push(one.queue); }
  show(first);
  await showRuns();
  setInterval(() => showRuns().catch(() => {}), 3000);
  const stream = new EventSource("/api/stream");
  const live = $("live");
  stream.onmessage = event => {
    const told = JSON.parse(event.data);
    if (told.error) { live.textContent = told.error; live.className = "off"; return; }
    live.textContent = told.is_live ? "live ●" : ""; live.className = "on";
    show(told);
  };
  stream.onerror = () => { live.textContent = "the page's server does not answer"; live.className = "off"; };
  document.body.dataset.ready = "yes";
}

begin().catch(error => { $("live").textContent = error.message; $("live").className = "off"; });
