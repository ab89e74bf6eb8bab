"use strict";
// What the server tells is asked for once a second, and shown by text alone: nothing of a statement becomes markup. A statement's
// plan comes as a piece of a page, which the server has made of escaped text.
(() => {
  const EVERY_MS = 1000;
  const PATIENCE_MS = 10000;
  const SAMPLES = 60;
  // Counters of the ledger, as people call them.
  const HOPS = [
    ["storage_to_host_bytes", "storage to host"],
    ["storage_to_device_bytes", "storage to device"],
    ["host_to_device_bytes", "host to device"],
    ["device_to_host_bytes", "device to host"],
    ["host_to_host_bytes", "host to host"],
    ["host_to_storage_bytes", "host to storage"],
    ["device_to_storage_bytes", "device to storage"],
    ["journal_bytes", "journal"],
    ["cached_bytes", "found in memory"],
  ];
  // Those that are shown before anything has crossed them.
  const ALWAYS = new Set(["storage_to_host_bytes", "host_to_storage_bytes", "cached_bytes"]);

  const $ = (id) => document.getElementById(id);
  const samples = [];
  let chosen = null;
  let opener = null;
  let isFinal = false;

  function scaled(n, step, units) {
    let unit = 0;
    while (n >= 999.5 && unit + 1 < units.length) {
      n /= step;
      unit += 1;
    }
    const digits = unit === 0 ? 0 : n < 9.995 ? 2 : n < 99.95 ? 1 : 0;
    return `${n.toFixed(digits)} ${units[unit]}`;
  }
  const bytes = (n) => scaled(n, 1000, ["B", "kB", "MB", "GB", "TB", "PB", "EB"]);
  const memory = (n) => scaled(n, 1024, ["B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"]);
  const count = (n) => Number(n).toLocaleString("en-US");
  function time(seconds) {
    const ms = seconds * 1000;
    if (ms < 1) return `${ms.toFixed(2)} ms`;
    if (ms < 9.95) return `${ms.toFixed(1)} ms`;
    if (ms < 999.5) return `${ms.toFixed(0)} ms`;
    if (seconds < 59.995) return `${seconds.toFixed(2)} s`;
    const whole = Math.round(seconds);
    const two = (n) => String(n).padStart(2, "0");
    if (whole < 3600) return `${Math.floor(whole / 60)} min ${two(whole % 60)} s`;
    if (whole < 86400) return `${Math.floor(whole / 3600)} h ${two(Math.floor(whole / 60) % 60)} min`;
    return `${count(Math.floor(whole / 86400))} d ${Math.floor(whole / 3600) % 24} h`;
  }

  function make(name, text, className) {
    const element = document.createElement(name);
    if (text !== undefined) element.textContent = text;
    if (className) element.className = className;
    return element;
  }
  // What is the same stays as it is, for those who have it selected or read aloud.
  function set(element, text) {
    if (element.textContent !== text) element.textContent = text;
  }
  function show(element, isShown) {
    if (element.hidden === isShown) element.hidden = !isShown;
  }

  // A table's rows by a key each: a row that is there is changed, so that the focus stays where it is.
  function rows(body, items, key, begin, fill) {
    const known = new Map([...body.children].map((row) => [row.dataset.key, row]));
    let before = body.firstElementChild;
    for (const item of items) {
      const name = String(key(item));
      let row = known.get(name);
      known.delete(name);
      if (!row) {
        row = make("tr");
        row.dataset.key = name;
        begin(row, item);
      }
      fill(row, item);
      if (row === before) before = before.nextElementSibling;
      else body.insertBefore(row, before);
    }
    for (const row of known.values()) row.remove();
  }
  function cells(row, names) {
    for (const name of names) row.append(make("td", "", name));
  }
  function statement(row, query) {
    const button = make("button", undefined, "statement");
    button.type = "button";
    const text = query.text.replace(/\s+/g, " ").trim();
    button.append(make("span", `${query.id} `), text.length > 160 ? `${text.slice(0, 160)}…` : text);
    button.addEventListener("click", () => open(query.id, button));
    row.children[0].append(button);
  }
  function mark(row, query) {
    row.classList.toggle("chosen", query.id === chosen);
  }

  function showRates(state) {
    samples.push({ at: state.server.now_ms, moved: state.moved });
    if (samples.length > SAMPLES + 1) samples.shift();
    const list = $("rates");
    for (const [name, words] of HOPS) {
      const total = state.moved[name] || 0;
      let card = list.querySelector(`[data-hop="${name}"]`);
      if (!card) {
        if (total === 0 && !ALWAYS.has(name)) continue;
        card = make("li");
        card.dataset.hop = name;
        card.append(make("b", words), make("span"), make("small"));
        const svg = document.createElementNS("http://www.w3.org/2000/svg", "svg");
        svg.setAttribute("viewBox", `0 0 ${SAMPLES} 20`);
        svg.setAttribute("preserveAspectRatio", "none");
        svg.setAttribute("aria-hidden", "true");
        svg.append(document.createElementNS("http://www.w3.org/2000/svg", "polyline"));
        card.append(svg);
        list.append(card);
      }
      const rates = samples.slice(1).map((sample, i) => {
        const passed = (sample.at - samples[i].at) / 1000;
        return passed > 0 ? Math.max(0, (sample.moved[name] - samples[i].moved[name]) / passed) : 0;
      });
      const last = rates.length ? rates[rates.length - 1] : 0;
      set(card.children[1], `${bytes(last)}/s`);
      set(card.children[2], `${bytes(total)} in all`);
      const top = Math.max(...rates, 1);
      const points = rates.map((rate, i) => `${SAMPLES - rates.length + i},${(19 - (18 * rate) / top).toFixed(1)}`);
      card.querySelector("polyline").setAttribute("points", points.join(" "));
    }
  }

  function showRunning(running) {
    set($("running-count"), running.length ? String(running.length) : "");
    show($("running-none"), running.length === 0);
    const begin = (row, query) => {
      cells(row, ["", "", "number", "", "number", "number", "number", "", ""]);
      statement(row, query);
      row.children[3].append(make("progress"));
      const button = make("button", "Cancel", "cancel");
      button.type = "button";
      button.setAttribute("aria-label", `Cancel statement ${query.id}`);
      button.addEventListener("click", () => cancel(query.id));
      row.children[8].append(button);
    };
    rows($("running-rows"), running, (query) => query.id, begin, (row, query) => {
      mark(row, query);
      set(row.children[1], query.user ?? "");
      set(row.children[2], time(query.seconds));
      const bar = row.children[3].firstChild;
      if (query.total_rows > 0) {
        bar.max = query.total_rows;
        bar.value = Math.min(query.done_rows, query.total_rows);
        bar.title = `${count(query.done_rows)} of ${count(query.total_rows)} rows`;
      } else {
        bar.removeAttribute("value");
        bar.title = query.plan_seconds > 0 ? "how many rows there are to read is not known" : "it is being planned";
      }
      bar.setAttribute("aria-label", bar.title);
      set(row.children[4], count(query.rows));
      set(row.children[5], bytes(query.read_bytes));
      set(row.children[6], bytes(query.cached_bytes));
      set(row.children[7], query.engine);
      show(row.children[8].firstChild, query.may_cancel);
    });
  }

  function showRecent(recent) {
    show($("recent-none"), recent.length === 0);
    const begin = (row, query) => {
      cells(row, ["", "", "number", "number", "number", "number", ""]);
      statement(row, query);
      set(row.children[1], query.error ? `${query.state}: ${query.error}` : query.state);
      if (query.state === "failed") row.children[1].className = "bad";
      set(row.children[2], time(query.seconds));
      set(row.children[3], count(query.rows));
      set(row.children[4], bytes(query.read_bytes));
      set(row.children[5], bytes(query.cached_bytes));
      set(row.children[6], query.engine);
    };
    rows($("recent-rows"), recent, (query) => query.id, begin, mark);
  }

  function showMemory(all) {
    const list = $("memory");
    while (list.children.length > all.length) list.lastElementChild.remove();
    all.forEach((one, i) => {
      let item = list.children[i];
      if (!item) {
        item = make("li");
        item.append(make("b"), " ", make("span"), make("progress"));
        list.append(item);
      }
      const [name, figures, bar] = item.children;
      const limit = one.limit_bytes;
      set(name, one.name);
      set(figures, limit ? `${memory(one.used_bytes)} of ${memory(limit)}` : memory(one.used_bytes));
      show(bar, Boolean(limit));
      bar.max = limit || 1;
      bar.value = Math.min(one.used_bytes, limit || 0);
      bar.setAttribute("aria-label", one.name);
    });
  }

  function showResident(all) {
    show($("resident-none"), all.length === 0);
    const name = (one) => (one.table_name ? `${one.table_name}.${one.column_name}` : "of a table that is gone");
    const begin = (row) => cells(row, ["", "", "number", "number", ""]);
    rows($("resident-rows"), all, (one) => `${one.device} ${name(one)}`, begin, (row, one) => {
      set(row.children[0], one.device);
      set(row.children[1], name(one));
      set(row.children[2], memory(one.bytes));
      set(row.children[3], count(one.hits));
      set(row.children[4], one.is_pinned ? "used outside" : one.is_kept ? "yes" : "while there is room");
    });
  }

  function showActivity(all) {
    set($("activity-count"), all.length ? String(all.length) : "");
    show($("activity-none"), all.length === 0);
    const begin = (row) => cells(row, ["number", "", "", "", "", ""]);
    rows($("activity-rows"), all, (one) => one.connection, begin, (row, one) => {
      set(row.children[0], String(one.connection));
      set(row.children[1], one.user_name);
      set(row.children[2], one.application_name);
      set(row.children[3], one.client_address);
      set(row.children[4], one.state);
      set(row.children[5], new Date(one.connected_at).toLocaleTimeString());
    });
  }

  function showServer(server) {
    set($("database"), server.database);
    const who = server.user ? `${server.user} (${server.role})` : server.role;
    const parts = [
      `version ${server.version}`,
      `up ${time((server.now_ms - server.since_ms) / 1000)}`,
      `${count(server.connections)} of ${count(server.max_connections)} connections`,
      `${count(server.running)} of ${count(server.max_running)} statements run, ${count(server.queued)} wait`,
      `${count(server.statements)} so far, ${count(server.errors)} errors`,
      `you are ${who}`,
    ];
    set($("server"), parts.join(" · "));
  }

  async function ask(path, options = {}) {
    // Not of the page's address: it may have a name and a password in it.
    const answer = await fetch(location.origin + path, { ...options, signal: AbortSignal.timeout(PATIENCE_MS), cache: "no-store" });
    if (answer.status === 401) throw new Error("You are not logged in: load the page again.");
    const isJson = (answer.headers.get("content-type") || "").startsWith("application/json");
    const value = isJson ? await answer.json() : { error: await answer.text() };
    return { status: answer.status, value };
  }

  async function cancel(id) {
    try {
      const { status, value } = await ask(`/api/queries/${id}/cancel`, { method: "POST", headers: { "X-Onehop": "cancel" } });
      $("said").textContent = status === 200 ? `Statement ${id} is told to end.` : `Statement ${id}: ${value.error}.`;
    } catch (e) {
      $("said").textContent = `Statement ${id} was not cancelled: ${e.message}`;
    }
    refresh();
  }

  function open(id, button) {
    if (chosen !== id) {
      history.replaceState(null, "", `#statement-${id}`);
      choose(id);
    }
    opener = button;
    refreshDetail().then(() => $("detail").focus());
  }
  function choose(id) {
    chosen = id;
    isFinal = false;
    $("detail-body").replaceChildren();
  }
  function close() {
    if (chosen === null) return;
    chosen = null;
    history.replaceState(null, "", location.pathname);
    show($("detail"), false);
    document.querySelectorAll("tr.chosen").forEach((row) => row.classList.remove("chosen"));
    if (opener?.isConnected) opener.focus();
    else $("running").focus();
  }

  // Another drawing of the same plan, with what was folded, scrolled and focused as it was.
  function replaceBody(html) {
    const body = $("detail-body");
    const folds = [...body.querySelectorAll("details")].map((one) => one.open);
    const scrolls = [...body.querySelectorAll(".wide")].map((one) => one.scrollLeft);
    const focusable = "summary, .wide, [tabindex]";
    const focused = [...body.querySelectorAll(focusable)].indexOf(document.activeElement);
    body.innerHTML = html;
    const details = body.querySelectorAll("details");
    if (details.length === folds.length) folds.forEach((isOpen, i) => (details[i].open = isOpen));
    body.querySelectorAll(".wide").forEach((one, i) => (one.scrollLeft = scrolls[i] ?? 0));
    if (focused >= 0) body.querySelectorAll(focusable)[focused]?.focus({ preventScroll: true });
  }

  async function refreshDetail() {
    const id = chosen;
    if (id === null || isFinal) return;
    const { status, value } = await ask(`/api/queries/${id}`);
    if (chosen !== id) return;
    show($("detail"), true);
    set($("detail-title"), `Statement ${id}`);
    if (status !== 200) {
      isFinal = true;
      set($("detail-state"), value.error);
      show($("detail-cancel"), false);
      return;
    }
    isFinal = value.state !== "running";
    set($("detail-state"), `${value.state}, ${time(value.seconds)}`);
    set($("detail-sql"), value.text);
    set($("detail-error"), value.error ?? "");
    show($("detail-error"), Boolean(value.error));
    show($("detail-cancel"), value.may_cancel);
    $("detail-notices").replaceChildren(...value.notices.map((notice) => make("li", notice)));
    if (value.html !== null) replaceBody(value.html);
    else set($("detail-body"), isFinal ? "It came to no plan." : "It is being planned.");
  }

  let timer = 0;
  let isAsking = false;
  async function refresh() {
    clearTimeout(timer);
    if (isAsking) return;
    isAsking = true;
    try {
      const { status, value } = await ask("/api/state");
      if (status !== 200) throw new Error(value.error);
      showServer(value.server);
      showRates(value);
      showRunning(value.running);
      showRecent(value.recent);
      showMemory(value.memory);
      showResident(value.resident);
      showActivity(value.activity);
      await refreshDetail();
      show($("problem"), false);
    } catch (e) {
      set($("problem"), `What is shown is not current. ${e.message}`);
      show($("problem"), true);
    }
    isAsking = false;
    // Nobody looks at a page that is hidden.
    if (!document.hidden) timer = setTimeout(refresh, EVERY_MS);
  }

  $("detail-close").addEventListener("click", close);
  $("detail-cancel").addEventListener("click", () => cancel(chosen));
  document.addEventListener("keydown", (event) => {
    if (event.key === "Escape") close();
  });
  document.addEventListener("visibilitychange", () => {
    if (!document.hidden) refresh();
  });
  const asked = /^#statement-(\d+)$/.exec(location.hash);
  if (asked) choose(Number(asked[1]));
  refresh();
})();
