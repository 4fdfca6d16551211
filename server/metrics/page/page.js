"use strict";
// Draws what /stats.json says. Fields of the server's report are the only names_with_underscores.

const KEPT = 120;        // reports: two minutes
const RATE_OVER = 5;     // reports a rate is taken over
const history = [];      // oldest first
let answeredAt = 0;      // when the server answered last, by this machine's clock

const count = (value) => Number(value || 0);
const whole = (value) => Math.round(value).toLocaleString("en");

function bytes(value) {
  const units = ["B", "KiB", "MiB", "GiB", "TiB"];
  let unit = 0;
  while (value >= 1024 && unit < units.length - 1) { value /= 1024; ++unit; }
  return (unit && value < 100 ? value.toFixed(1) : Math.round(value)) + " " + units[unit];
}
// "14.1 of 24.0 MiB": both in the unit of the second.
function bytesOf(part, all) {
  const [size, unit] = bytes(all).split(" ");
  const shown = size > 0 ? part / (all / size) : 0;
  return `${shown < 100 && unit !== "B" ? shown.toFixed(1) : Math.round(shown)} of ${size} ${unit}`;
}
const share = (part, all) => (all > 0 ? Math.round(100 * part / all) + " %" : "–");
function time(seconds) {
  if (seconds === null) return "–";
  if (seconds < 0.001) return Math.round(seconds * 1e6) + " µs";
  if (seconds < 1) return (seconds * 1e3).toFixed(seconds < 0.01 ? 1 : 0) + " ms";
  return seconds.toFixed(seconds < 10 ? 1 : 0) + " s";
}
const nameOf = (tier) => tier.replace("TIER_", "").toLowerCase();

// ---- Numbers: all pure.

const secondsBetween = (from, to) => (Date.parse(to.time) - Date.parse(from.time)) / 1000;
// What `field` grew by from one report to another; a server that was restarted counts from 0 again.
function growth(from, to, field) {
  const before = field(from), after = field(to);
  return after >= before ? after - before : after;
}
function rate(reports, at, field) {
  const from = reports[Math.max(0, at - RATE_OVER)], to = reports[at];
  const seconds = secondsBetween(from, to);
  return seconds > 0 ? growth(from, to, field) / seconds : 0;
}
const ratesOf = (reports, field) => reports.map((_, at) => rate(reports, at, field));

// The quantile of what a distribution counted between two reports, or null when that is nothing.
function quantile(from, to, part) {
  const now = part(to), before = part(from);
  const counts = now.counts.map((value, i) => {
    const earlier = before ? count(before.counts[i]) : 0;
    return count(value) >= earlier ? count(value) - earlier : count(value);
  });
  const total = counts.reduce((sum, value) => sum + value, 0);
  return (q) => {
    if (total === 0) return null;
    let left = q * total;
    for (let i = 0; i < counts.length; ++i) {
      if (counts[i] > 0 && left <= counts[i]) {
        const low = i > 0 ? now.bounds[i - 1] : 0;
        const high = i < now.bounds.length ? now.bounds[i] : low;
        return low + (high - low) * (left / counts[i]);
      }
      left -= counts[i];
    }
    return now.bounds[now.bounds.length - 1];
  };
}

const tierCapacity = (tier) => count(tier.capacity_bytes);
const isFull = (tier) => tierCapacity(tier) > 0 &&
  count(tier.reserved_bytes) + largestNeed(tier) > tierCapacity(tier);
// A tier within a twentieth of its capacity has no room for another request worth the name.
const largestNeed = (tier) => tierCapacity(tier) / 20;

const waitShare = (reports, at) => {
  const steps = rate(reports, at, (stats) => stats.step.sum_seconds);
  const waits = rate(reports, at, (stats) => stats.fetch_wait.sum_seconds);
  return steps > 0 ? waits / steps : 0;
};

// What is wrong, worst first: [how bad, what].
function problemsOf(reports) {
  const stats = reports[reports.length - 1], first = reports[0];
  const lately = (field) => growth(first, stats, field);
  const found = [];
  const say = (level, when, text) => { if (when) found.push([level, text]); };
  say("bad", stats.stalled, "The engine has work but makes no step.");
  say("bad", stats.cold_degraded,
      "The disk fails, hangs or is full: blocks stay in the warm tier, and less fits.");
  const damaged = lately((s) => count(s.integrity_failures));
  say("bad", damaged > 0, `${damaged} damaged records were read in the last minutes; their tokens are computed again.`);
  const errors = lately((s) => count(s.io_errors));
  say("bad", errors > 0, `${errors} reads or writes failed in the last minutes.`);
  const failed = lately((s) => count(s.requests_failed));
  say("bad", failed > 0, `${failed} requests failed in the last minutes.`);
  const full = stats.tiers.filter(isFull).map((tier) => nameOf(tier.tier));
  say("caution", stats.waiting > 0 && full.length > 0,
      `${stats.waiting} requests wait; promised to others already: ${full.join(", ")}.`);
  say("caution", waitShare(reports, reports.length - 1) > 0.3,
      "Steps spend more than 30 % of their time waiting for the disk.");
  const rejected = lately((s) => count(s.requests_rejected));
  say("caution", rejected > 0, `${rejected} requests were refused in the last minutes.`);
  say("caution", stats.draining, "The server is shutting down.");
  return found;
}

// ---- Drawing.

function element(name, text, ...classes) {
  const made = document.createElement(name);
  if (text !== null) made.textContent = text;
  const names = classes.filter(Boolean).join(" ");
  if (names) made.className = names;
  return made;
}
const cell = (text, ...classes) => element("td", text, ...classes);
const number = (text, ...classes) => cell(text, "number", ...classes);

function row(heading, note, swatch, ...cells) {
  const made = document.createElement("tr"), head = element("th", null);
  head.scope = "row";
  if (swatch) head.append(element("span", "", "swatch", swatch));
  head.append(heading);
  if (note) head.append(" ", element("span", note, "note"));
  made.append(head, ...cells);
  return made;
}
const fill = (id, rows) => document.querySelector("#" + id + " tbody").replaceChildren(...rows);

function spark(values, label, color) {
  const space = "http:" + "//www.w3.org/2000/svg";
  const image = document.createElementNS(space, "svg");
  const path = document.createElementNS(space, "path"), under = document.createElementNS(space, "path");
  const most = Math.max(...values, 1e-9);
  const points = values.map((value, i) =>
    `${KEPT - values.length + i} ${(20 - 18 * value / most).toFixed(2)}`);
  path.setAttribute("d", "M" + points.join("L"));
  under.setAttribute("d", `M${KEPT - values.length} 21L${points.join("L")}L${KEPT - 1} 21Z`);
  under.setAttribute("class", "under");
  image.setAttribute("viewBox", `0 0 ${KEPT - 1} 21`);
  image.setAttribute("preserveAspectRatio", "none");
  image.setAttribute("class", "spark " + (color || ""));
  image.setAttribute("role", "img");
  image.setAttribute("aria-label", label);
  image.append(under, path);
  const made = cell(null, "wide");
  made.append(image);
  return made;
}

function bar(tier) {
  const capacity = tierCapacity(tier), used = count(tier.used_bytes);
  const reserved = Math.max(count(tier.reserved_bytes), used);
  const box = element("div", null, "bar", nameOf(tier.tier));
  for (const [part, value] of [["reserved", reserved], ["used", used]]) {
    const piece = element("div", "", part);
    piece.style.width = capacity > 0 ? 100 * value / capacity + "%" : "0";
    box.append(piece);
  }
  box.title = `${bytes(used)} used, ${bytes(reserved)} promised, of ${bytes(capacity)}`;
  box.setAttribute("role", "img");
  box.setAttribute("aria-label", box.title);
  const made = cell(null, "wide");
  made.append(box);
  return made;
}

const PLACES = { hot: "in memory", warm: "in memory", cold: "on disk" };

function drawTiers(stats) {
  let used = 0, full = 0, tokens = 0;
  fill("tiers", stats.tiers.map((tier) => {
    const name = nameOf(tier.tier), held = count(tier.used_bytes);
    const exact = count(tier.bytes_f16_equivalent);
    used += held; full += exact; tokens += count(tier.tokens);
    const errors = tier.k_relative_error > 0
      ? `${tier.k_relative_error.toFixed(2)} / ${tier.v_relative_error.toFixed(2)}` : "–";
    const capacity = tierCapacity(tier);
    if (capacity === 0) return row(name, "not configured", name, ...Array.from({ length: 8 }, () => number("–")));
    return row(name, `${tier.layout}, ${PLACES[name]}`, name, bar(tier),
               number(bytesOf(held, capacity)), number(share(held, capacity), "strong"),
               number(whole(count(tier.tokens))), number(tier.bits_per_value.toFixed(1)),
               number(held ? bytes(exact) : "–"),
               number(exact > held ? share(exact - held, exact) : "–", exact > held ? "good" : ""),
               number(errors));
  }));
  const line = document.getElementById("saving");
  if (tokens === 0) {
    line.textContent = "The cache is empty: no request runs.";
    return;
  }
  line.replaceChildren(`${whole(tokens)} tokens in ${bytes(used)} instead of ${bytes(full)}: `,
                       element("strong", `${share(full - used, full)} saved`));
}

function drawLinks(reports) {
  const at = reports.length - 1;
  fill("links", reports[at].links.map((link, i) => {
    const moved = (stats) => count(stats.links[i].bytes);
    const inF16 = (stats) => count(stats.links[i].bytes_f16_equivalent);
    const from = nameOf(link.from), to = nameOf(link.to);
    const now = rate(reports, at, moved), exact = rate(reports, at, inF16);
    const name = to === "hot" ? `${from} → attention` : `${from} → ${to}`;
    return row(name, "", from,
               spark(ratesOf(reports, moved), `traffic ${from} to ${to}, now ${bytes(now)} a second`, from),
               number(bytes(now) + "/s", "strong"), number(bytes(exact) + "/s"),
               number(share(inF16(reports[at]) - moved(reports[at]), inF16(reports[at])), "good"),
               number(bytes(moved(reports[at]))));
  }));
}

function drawWork(reports) {
  const at = reports.length - 1, stats = reports[at];
  const speed = (heading, field, unit) => row(heading, "", "",
    spark(ratesOf(reports, field), `${heading} over two minutes`),
    number(`${rate(reports, at, field).toFixed(1)} ${unit}`, "strong"));
  const latency = (heading, part) => {
    const of = quantile(reports[0], stats, part);
    const made = row(heading, "", "", cell("median, 95 %", "note"),
                     number(`${time(of(0.5))}, ${time(of(0.95))}`));
    return made;
  };
  fill("work", [
    row("Requests", "", "", cell(`${whole(count(stats.requests_finished))} done`, "note"),
        number(`${stats.running} running, ${stats.waiting} waiting`, "strong")),
    speed("Generated", (s) => count(s.generation_tokens), "tokens/s"),
    speed("Prompts", (s) => count(s.prompt_tokens), "tokens/s"),
    latency("First token", (s) => s.time_to_first_token),
    latency("Between tokens", (s) => s.inter_token_latency),
  ]);
}

function drawHealth(reports) {
  const at = reports.length - 1, stats = reports[at], cold = stats.tiers[stats.tiers.length - 1];
  const check = (heading, value, note) => row(heading, "", "", cell(note, "note"),
    number(whole(value), value > 0 ? "bad" : ""));
  const found = (s) => count(s.tiers[s.tiers.length - 1].hits);
  const wanted = (s) => count(s.tiers[s.tiers.length - 1].lookups);
  fill("health", [
    row("Waiting for the disk", "", "",
        spark(reports.map((_, i) => waitShare(reports, i)), "part of step time spent waiting", "cold"),
        number(share(waitShare(reports, at), 1))),
    row("Cold pages found staged", "", "", cell("the rest: read from disk", "note"),
        number(share(growth(reports[0], stats, found), growth(reports[0], stats, wanted)))),
    row("Disk", "", "", cell("", "note"),
        tierCapacity(cold) === 0 ? number("none") : stats.cold_degraded ? number("degraded", "bad") : number("fine", "good")),
    check("Failed reads and writes", count(stats.io_errors), "since the start"),
    check("Damaged records", count(stats.integrity_failures), "since the start"),
    check("Tokens computed again", count(stats.recomputed_tokens), "since the start"),
    check("Blocks not finite, kept F16", count(stats.refused_blocks), "since the start"),
    check("Requests failed", count(stats.requests_failed), "since the start"),
  ]);
}

function setState(level, text) {
  const state = document.getElementById("state");
  // Announced to screen readers only when it changes.
  if (state.textContent !== text) state.textContent = text;
  state.className = level;
}

function draw() {
  const stats = history[history.length - 1];
  const problems = problemsOf(history);
  document.getElementById("model").textContent = stats.model;
  document.getElementById("problems").replaceChildren(
    ...problems.map(([level, text]) => element("li", text, level)));
  if (problems.length === 0) setState("good", "All is well");
  else setState(problems[0][0], problems[0][0] === "bad" ? "Something is wrong" : "Look here");
  drawTiers(stats);
  drawLinks(history);
  drawWork(history);
  drawHealth(history);
  document.getElementById("main").hidden = false;
}

function take(stats) {
  const last = history[history.length - 1];
  // An idle server's report may be as old as the last one; a restarted one's counts begin anew.
  if (last && secondsBetween(last, stats) <= 0) return;
  if (last && count(stats.generation_tokens) < count(last.generation_tokens)) history.length = 0;
  history.push(stats);
  if (history.length > KEPT) history.shift();
}

async function refresh() {
  try {
    const answer = await fetch("/stats.json", { cache: "no-store", signal: AbortSignal.timeout(4000) });
    const stats = await answer.json();
    answeredAt = Date.now();
    document.body.classList.remove("stale");
    if (stats.error) {
      setState("caution", stats.error);
    } else {
      take(stats);
      draw();
    }
  } catch (error) {
    document.body.classList.add("stale");
    const since = answeredAt ? ` for ${Math.round((Date.now() - answeredAt) / 1000)} s` : "";
    setState("bad", `No answer from the server${since}`);
  }
  setTimeout(refresh, 1000);
}
refresh();
