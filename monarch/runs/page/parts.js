// What the live page and report.html both show of a run. All text goes in as text, never as HTML.
"use strict";

const $ = id => document.getElementById(id);
const PALETTE = ["--run", "--c2", "--c3", "--c4", "--c5", "--c6"];
const COLORS = { "--c2": "#d9702f", "--c3": "#1f9e8f", "--c4": "#b0499c", "--c5": "#8a8f2a", "--c6": "#6c7bd6" };
const MARKS = { edit: ["--held", "an edit"], bad: ["--bad", "something failed"], good: ["--good", "went on"] };
const STEPS = [...Array(12).keys()].flatMap(power => [1, 2, 5].map(by => by * 10 ** power));
const NEAR = 7, TIP_LINES = 28;
const view = { data: null, story: null, charts: new Map(), over: [] };

const color = name => COLORS[name] ?? getComputedStyle(document.documentElement).getPropertyValue(name).trim();
const counted = (number, noun) => `${number} ${noun}${number === 1 ? "" : "s"}`;

function element(tag, text, kind, ...children) {
  const made = document.createElement(tag);
  if (text !== undefined && text !== null) made.textContent = text;
  if (kind) made.className = kind;
  made.append(...children);
  return made;
}

function figure(value) {
  if (value == null) return "-";
  if (typeof value !== "number") return String(value);
  const size = Math.abs(value);
  if (Number.isInteger(value) && size < 1e6) return String(value);
  if (size >= 1000 && size < 1e6) return value.toFixed(0);
  return size !== 0 && (size < 1e-3 || size >= 1e6) ? value.toExponential(2) : value.toPrecision(4);
}

function duration(seconds) {
  if (seconds == null) return "-";
  if (seconds < 1) return `${(seconds * 1000).toFixed(0)} ms`;
  if (seconds < 60) return `${seconds.toFixed(seconds < 10 ? 1 : 0)} s`;
  const minutes = Math.floor(seconds / 60), two = number => String(number).padStart(2, "0");
  return minutes < 60 ? `${minutes}:${two(Math.floor(seconds % 60))} min` : `${Math.floor(minutes / 60)}:${two(minutes % 60)} h`;
}

const clock = time => new Date(time * 1000).toLocaleTimeString([], { hour12: false });

function diffText(text, most = Infinity) {
  const made = element("pre", null, "diff"), lines = text.split("\n");
  for (const line of lines.slice(0, most)) {
    const kind = { "+": "add", "-": "cut", "@": "at" }[line[0]] ?? "";
    made.append(element("span", line + "\n", kind));
  }
  if (lines.length > most) made.append(`… ${lines.length - most} more lines`);
  return made;
}

// Replace the children only where something changed, so that what a person selects or opens stays.
function fill(where, key, children) {
  if (where.dataset.key === key) return;
  where.dataset.key = key;
  where.replaceChildren(...children());
}

// The state at the top

const WORDS = {
  training: "training", held: "held", starting: "starting", restarting: "restarting", slow: "a step takes long",
  finished: "finished", stopped: "stopped", failed: "failed", killed: "killed", empty: "nothing yet", running: "training",
};

function showState(run) {
  const chip = $("status"), status = WORDS[run.status] ?? run.status;
  chip.textContent = status; chip.className = `chip ${run.status}`; chip.hidden = false;
  const of = run.num_steps > 0 ? `/${run.num_steps}` : "";
  $("facts").textContent = `${run.name} · step ${run.step}${of}`;
  const trouble = run.hold ?? run.failure, state = $("state");
  state.hidden = false;
  state.className = ["held", "failed", "killed"].includes(run.status) ? "bad" : "";
  const { charts, story, rollouts, ...rest } = run, key = JSON.stringify([rest, charts.map(one => one.last), view.story?.figures, view.buttonsKey]);
  fill(state, key, () => [
    ...(trouble ? errorParts(run, trouble) : [element("h1", headline(run))]),
    ...(run.num_steps > 0 ? [progress(run)] : []),
    tiles(run),
    ...advice(run, trouble),
  ]);
}

function headline(run) {
  const after = run.step ? ` after step ${run.step}` : "";
  switch (run.status) {
    case "training": case "running": return run.seconds_left != null ? `Training: ${duration(run.seconds_left)} left` : "Training";
    case "starting": return "Starting: no step yet";
    case "restarting": return "Restarting: ranks were lost, and begin again";
    case "slow": return run.slow;
    case "killed": return `Killed${after}: its program has ended without a word`;
    case "empty": return "This run has not begun";
    default: return `${WORDS[run.status]?.replace(/^./, one => one.toUpperCase()) ?? run.status}${after}`;
  }
}

function errorParts(run, trouble) {
  const ranks = trouble.ranks?.length ? `on ${trouble.ranks.length > 1 ? "ranks" : "rank"} ${trouble.ranks.join(", ")}` : "";
  const what = run.hold ? `Held: ${trouble.doing} failed on generation ${trouble.generation}` : headline(run);
  const parts = [element("h1", trouble.error || what)];
  const where = [trouble.file ? `${trouble.file}:${trouble.line}` : "", ranks, trouble.error ? what : ""].filter(Boolean).join(" · ");
  if (where) parts.push(element("div", where, "where"));
  if (trouble.source?.length) {
    const source = element("pre", null, "source"), width = String(trouble.source.at(-1)[0]).length;
    for (const [number, text] of trouble.source)
      source.append(element("i", `${String(number).padStart(width)} ${number === trouble.line ? "▸" : " "} `), element(number === trouble.line ? "b" : "span", text + "\n"));
    parts.push(source);
  }
  const bar = element("div", null, "bar");
  for (const button of view.actions?.(run) ?? []) bar.append(button);
  if (trouble.link) {
    const link = element("a", "open in editor", "button");
    link.href = trouble.link;
    bar.append(link);
  }
  if (bar.children.length) parts.push(bar);
  if (trouble.traceback) parts.push(element("details", null, "", element("summary", "the whole traceback"), element("pre", trouble.traceback)));
  return parts;
}

function progress(run) {
  const bar = element("div", null, "progress", element("i"));
  bar.firstChild.style.width = `${Math.min(100, 100 * run.step / run.num_steps)}%`;
  return bar;
}

function tiles(run) {
  const made = element("div", null, "tiles");
  const tile = (name, value) => made.append(element("div", null, "", element("small", name), element("b", value)));
  tile("step", run.num_steps > 0 ? `${run.step} of ${run.num_steps}` : run.step);
  for (const chart of run.charts.filter(one => one.group === "metrics").slice(0, 5)) tile(chart.name, figure(chart.last));
  for (const chart of run.charts.filter(one => one.group === "speed" && /step time|per_second/.test(one.name)))
    tile(chart.name, chart.name === "step time (s)" ? "" : figure(chart.last));
  const pace = run.charts.find(one => one.name === "step time (s)");
  for (const one of made.children) if (one.firstChild.textContent === "step time (s)") {
    one.firstChild.textContent = "step time"; one.lastChild.textContent = duration(median(pace.values.slice(-50)));
  }
  const edits = (view.story?.generations ?? []).map(one => one.seconds).filter(one => one != null);
  if (edits.length) tile(`${counted(edits.length, "edit")}, from save to step`, duration(median(edits)));
  if (run.began) tile("since the beginning", duration(run.last_at - run.began));
  return made;
}

function median(values) {
  const sorted = [...values].sort((a, b) => a - b);
  return sorted[Math.floor(sorted.length / 2)];
}

function advice(run, trouble) {
  const lines = [];
  if (trouble?.advice) lines.push(trouble.advice);
  const ended = ["finished", "stopped", "failed", "killed"].includes(run.status);
  if (ended && run.saved) lines.push(`The last checkpoint is of step ${run.saved.step}: ${run.saved.path}`);
  if (ended && run.status !== "finished" && run.command) lines.push(`To go on: ${run.command}`);
  return lines.length ? [element("div", null, "advice dim", ...withCode(lines.join("\n")))] : [];
}

// What stands in backticks is a command or a name.
function withCode(text) {
  return text.split("`").map((part, at) => (at % 2 ? element("code", part) : part));
}

// Curves

class Chart {
  constructor(parent, name, isSpeed, isFirst) {
    this.name = name; this.isSpeed = isSpeed;
    this.value = element("span");
    this.button = element("button", "", "small");
    this.button.title = "linear or logarithmic";
    this.button.onclick = () => { this.isLog = !this.isLog; this.isChosen = true; this.rebuild(); };
    this.box = element("div");
    this.home = element("div", null, isFirst ? "first" : "", element("h3", name, "", this.value, this.button), this.box);
    this.height = 190;
    this.marks = []; this.series = [];
    parent.append(this.home);
    new ResizeObserver(() => this.plot?.setSize({ width: this.width(), height: this.height })).observe(this.box);
  }

  width() { return Math.max(200, this.box.clientWidth); }

  // Each of the series: {label, color, steps, values}.
  update(series, marks, last) {
    const shape = series.map(one => one.label).join("\n");
    this.series = series; this.marks = marks; this.last = last;
    const values = series.flatMap(one => one.values);
    const low = Math.min(...values), high = Math.max(...values);
    this.canLog = values.length > 0 && low > 0;
    if (!this.isChosen) this.isLog = this.canLog && (this.isSpeed ? high > 10 * median(values) : high / low > (/loss/.test(this.name) ? 4 : 20));
    if (this.isLog && !this.canLog) this.isLog = false;
    this.button.hidden = !this.canLog;
    this.button.textContent = this.isLog ? "log" : "linear";
    const key = `${shape} ${this.isLog}`;
    if (this.plot && key === this.key) this.plot.setData(this.data());
    else { this.key = key; this.rebuild(); }
    this.tell(null);
  }

  data() {
    const tables = this.series.map(one => [one.steps, one.values]);
    return tables.length === 1 ? tables[0] : uPlot.join(tables);
  }

  rebuild() {
    this.plot?.destroy();
    this.button.textContent = this.isLog ? "log" : "linear";
    this.key = `${this.series.map(one => one.label).join("\n")} ${this.isLog}`;
    const axis = { stroke: () => color("--dim"), grid: { stroke: () => color("--line"), width: 1 }, ticks: { stroke: () => color("--line") }, font: "11px system-ui" };
    const range = (plot, low, high) => {
      if (low == null) return this.isLog ? [.1, 1] : [0, 1];
      if (this.isLog) return [low / 1.15, high * 1.15];
      const room = Math.max((high - low) * .06, Math.abs(high) * .01) || 1;
      return [this.isSpeed && low >= 0 ? 0 : low - room, high + room];
    };
    this.plot = new uPlot({
      width: this.width(), height: this.height, padding: [8, 18, 0, 0],
      cursor: { drag: { x: true, y: false }, sync: { key: "steps" }, points: { size: 6 } },
      scales: { x: { time: false }, y: { distr: this.isLog ? 3 : 1, range } },
      axes: [{ ...axis, size: 26, incrs: STEPS, values: (plot, ticks) => ticks.map(figureOnAxis) },
        { ...axis, size: 62, values: (plot, ticks) => ticks.map(figureOnAxis), ...(this.isLog ? { splits: logSplits, filter: logTicks } : {}) }],
      legend: { show: this.series.length > 1 },
      series: [{ label: "step" }, ...this.series.map(one => ({
        label: one.label, stroke: () => color(one.color), width: 1.5, spanGaps: true,
        points: { show: one.values.length < 3, size: 6 }, value: (plot, value) => figure(value) }))],
      hooks: { draw: [plot => this.drawMarks(plot)], setCursor: [plot => this.tell(plot.cursor.idx)] },
    }, this.data(), this.box);
    this.plot.over.addEventListener("mousemove", event => this.hover(event));
    this.plot.over.addEventListener("mouseleave", () => { $("tip").hidden = true; });
    this.plot.over.addEventListener("click", event => { const mark = this.near(event); if (mark) openGeneration(mark.generation); });
  }

  tell(index) {
    if (index == null || this.series.length !== 1) { this.value.textContent = this.last === undefined ? "" : figure(this.last); return; }
    const one = this.series[0];
    this.value.textContent = one.steps[index] === undefined ? "" : `${figure(one.values[index])} at step ${one.steps[index]}`;
  }

  drawMarks(plot) {
    const draw = plot.ctx, { left, top, width, height } = plot.bbox, ratio = devicePixelRatio || 1;
    draw.save();
    for (const mark of this.marks) {
      const x = plot.valToPos(mark.step, "x", true);
      if (x < left - 1 || x > left + width + 1) continue;
      draw.strokeStyle = draw.fillStyle = color(MARKS[mark.kind][0]);
      draw.lineWidth = 1.5 * ratio; draw.setLineDash([4 * ratio, 3 * ratio]);
      draw.beginPath(); draw.moveTo(x, top); draw.lineTo(x, top + height); draw.stroke();
      draw.beginPath(); draw.moveTo(x - 4 * ratio, top); draw.lineTo(x + 4 * ratio, top); draw.lineTo(x, top + 6 * ratio); draw.fill();
    }
    draw.restore();
  }

  near(event) {
    const at = event.clientX - this.plot.over.getBoundingClientRect().left;
    let best = null, least = NEAR;
    for (const mark of this.marks) {
      const far = Math.abs(this.plot.valToPos(mark.step, "x") - at);
      if (far <= least) { best = mark; least = far; }
    }
    return best;
  }

  hover(event) {
    const mark = this.near(event), tip = $("tip");
    tip.hidden = !mark;
    if (!mark) return;
    const generation = generationOf(mark.generation);
    tip.replaceChildren(element("b", mark.text.split("\n").slice(0, 2).join(" · ")));
    if (mark.kind === "edit" && generation?.diff) tip.append(diffText(generation.diff, TIP_LINES));
    const box = tip.getBoundingClientRect();
    tip.style.left = `${Math.max(4, Math.min(event.clientX + 14, innerWidth - box.width - 8))}px`;
    tip.style.top = `${Math.max(4, Math.min(event.clientY + 14, innerHeight - box.height - 8))}px`;
  }
}

function figureOnAxis(value) {
  if (value == null) return "";
  const size = Math.abs(value);
  if (size >= 1e6) return `${+(value / 1e6).toPrecision(4)}M`;
  if (size >= 1e4) return `${+(value / 1e3).toPrecision(4)}k`;
  return size && size < 1e-3 ? value.toExponential(0) : String(+value.toPrecision(4));
}

// 1 to 9 times each power of ten within the scale. uPlot's own go on for ever where it has rounded one to 0.
function logSplits(plot, axis, low, high) {
  const first = Math.floor(Math.log10(low)), last = Math.ceil(Math.log10(high));
  if (!Number.isFinite(first) || !Number.isFinite(last)) return [];
  const splits = [];
  for (let power = first; power <= last; power++)
    for (let digit = 1; digit < 10; digit++) {
      const split = Number(`${digit}e${power}`);
      if (split >= low && split <= high) splits.push(split);
    }
  return splits;
}

// Of a log axis with few powers of ten, 1, 2 and 5 are written; of one with many the powers.
function logTicks(plot, ticks) {
  const shown = ticks.filter(one => one != null), few = shown.length && shown.at(-1) / shown[0] < 300;
  return ticks.map(one => {
    if (one == null) return null;
    const lead = +(one / 10 ** Math.floor(Math.log10(one) + 1e-9)).toPrecision(6);
    return lead === 1 || (few && (lead === 2 || lead === 5)) ? one : null;
  });
}

const generationOf = number => view.story?.generations.find(one => one.generation === number);

function showCharts() {
  const run = view.data, marks = view.story?.marks ?? [], others = view.over;
  for (const group of ["metrics", "speed"]) {
    const shown = run.charts.filter(chart => chart.group === group);
    const section = $(group), home = section.querySelector(".charts");
    section.hidden = !shown.length;
    for (const [index, chart] of shown.entries()) {
      const key = `${group} ${chart.name}`;
      if (!view.charts.has(key)) view.charts.set(key, new Chart(home, chart.name, group === "speed", index === 0 && group === "metrics" && shown.length > 1));
      const series = [{ label: run.name, color: PALETTE[0], steps: chart.steps, values: chart.values }];
      for (const [at, other] of others.entries()) {
        const same = other.charts.find(one => one.name === chart.name);
        if (same) series.push({ label: other.name, color: PALETTE[1 + at % (PALETTE.length - 1)], steps: same.steps, values: same.values });
      }
      view.charts.get(key).update(series, marks, chart.last);
    }
    for (const [key, chart] of view.charts)
      if (key.startsWith(`${group} `) && !shown.some(one => key === `${group} ${one.name}`)) { chart.home.remove(); view.charts.delete(key); }
  }
  const kinds = Object.keys(MARKS).filter(kind => marks.some(mark => mark.kind === kind)), legend = $("metrics").querySelector(".legend");
  legend.hidden = !kinds.length;
  fill(legend, kinds.join(), () => [...kinds.map(kind => {
    const line = element("span", null, "", element("i", null, "mark"), MARKS[kind][1]);
    line.firstChild.style.borderColor = `var(${MARKS[kind][0]})`;
    return line;
  }), element("span", "point at a line to see what changed")]);
}

// Samples of reinforcement learning

function showRollouts(run) {
  const all = run.rollouts ?? [], section = $("rollouts"), table = section.querySelector("table");
  section.hidden = !all.length;
  const line = (tag, cells) => element("tr", null, "", ...cells.map(([text, kind]) => element(tag, text, kind)));
  fill(table, JSON.stringify([run.name, all]), () => [
    line("th", [["step", "n"], ["prompt", ""], ["completion", ""], ["reward", "n"], ["policy", "n"], ["made by", "n"], ["judged by", "n"]]),
    ...all.map(one => line("td", [[figure(one.step), "n"], [one.prompt, "text"], [one.completion, `text ${one.is_solved ? "good" : ""}`], [figure(one.reward), "n"],
      [figure(one.version), "n"], [figure(one.generation), "n"], [figure(one.reward_generation), "n"]])).reverse(),
  ]);
}

// Generations, events, config

function showGenerations() {
  const all = view.story.generations, section = $("generations");
  section.hidden = all.length < 2;
  if (section.hidden) return;
  section.querySelector("ol").replaceChildren(...all.map((one, at) => {
    const kind = one.like ? "like" : one.state, from = one.parent == null ? null : all[one.parent];
    const line = element("li", null, `${kind} ${one.depth ? "side" : ""} ${one.is_now ? "now" : ""}`);
    line.style.setProperty("--depth", one.depth); line.dataset.generation = one.generation;
    const what = one.error ? ` failed: ${one.error}` : one.like ? ` is what ${one.like} was` : at === 0 ? " the run began with it" : ` ${one.files.slice(0, 3).join(", ")}${one.files.length > 3 ? ` and ${one.files.length - 3} more` : ""}`;
    const about = [one.step != null ? `step ${one.step}` : "", one.seconds != null ? duration(one.seconds) : "", from && one.depth && !one.like ? `from ${from.generation}` : ""].filter(Boolean).join(", ");
    const head = [element("b", one.generation), what, element("span", about ? ` · ${about}` : "", "dim")];
    const body = one.diff ? element("details", null, "", element("summary", null, "", ...head), diffText(one.diff)) : element("div", null, "", ...head);
    line.append(element("i"), element("div", null, "", body), element("time", one.time ? clock(one.time) : ""));
    return line;
  }).reverse());
}

function openGeneration(number) {
  const line = document.querySelector(`#generations li[data-generation="${Number(number)}"]`);
  if (!line) return;
  for (const lit of document.querySelectorAll("#generations li.lit")) lit.classList.remove("lit");
  line.classList.add("lit");
  const details = line.querySelector("details");
  if (details) details.open = true;
  line.scrollIntoView({ block: "center" });
}

const EVENT_KINDS = { bad: ["died", "hung", "chaos", "held", "failed_edit"], good: ["mended", "respawned", "healed", "resumed"], edit: ["generation", "config", "rolled_back", "reward"] };

function showEvents() {
  const events = view.story.events, section = $("events");
  section.hidden = !events.length;
  section.querySelector("ol").replaceChildren(...events.map(event => {
    const kind = Object.keys(EVENT_KINDS).find(one => EVENT_KINDS[one].includes(event.kind)) ?? "";
    const [first, ...rest] = event.text.split("\n"), more = [...rest, event.more].filter(Boolean).join("\n");
    const body = more ? element("details", null, "", element("summary", first), element("pre", more)) : element("div", first);
    return element("li", null, "", element("time", clock(event.time)), element("code", event.kind, kind), element("div", null, "", body));
  }).reverse());
}

function showConfig() {
  const { config, environment, figures } = view.story, section = $("config");
  section.hidden = false;
  section.querySelector("pre").textContent = [view.data.command && `$ ${view.data.command}\n`, config].filter(Boolean).join("\n");
  section.querySelector("table").replaceChildren(...Object.entries({ ...figures, ...environment }).map(([name, value]) =>
    element("tr", null, "", element("th", name), element("td", typeof value === "object" ? JSON.stringify(value) : value))));
}

function showRun(run) {
  const isAnother = view.data?.name !== run.name;
  view.data = run;
  const isNews = run.story !== undefined;
  if (isNews) view.story = run.story; else if (isAnother) view.story = null;
  showState(run);
  showCharts();
  showRollouts(run);
  if (isNews) { showGenerations(); showEvents(); showConfig(); }
}

function showFrozen(run) {
  $("title").textContent = "monarch"; $("live").textContent = `as of ${new Date(run.last_at * 1000).toLocaleString()}`;
  showRun(run);
}

matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => { for (const chart of view.charts.values()) chart.rebuild(); });
