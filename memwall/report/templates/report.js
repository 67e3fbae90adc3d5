"use strict";
(() => {
  const $ = (selector, root) => (root || document).querySelector(selector);
  const all = (selector) => [...document.querySelectorAll(selector)];

  const theme = $("#theme");
  theme.onclick = () => {
    const root = document.documentElement;
    const dark = root.dataset.theme ? root.dataset.theme === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
    root.dataset.theme = dark ? "light" : "dark";
  };

  // -- pictures: what a title says follows the pointer; a click on what has a key looks for it in the table of kernels
  const tip = document.createElement("div");
  tip.id = "tip";
  tip.hidden = true;
  document.body.append(tip);
  for (const title of all("svg.chart title")) {
    title.parentNode.dataset.title = title.textContent;
    title.remove();
  }
  let find = () => {};
  document.addEventListener("pointermove", (event) => {
    const mark = event.target.closest ? event.target.closest("[data-title]") : null;
    tip.hidden = !mark;
    if (!mark) return;
    tip.textContent = mark.dataset.title;
    tip.style.left = `${Math.max(4, Math.min(event.clientX + 14, innerWidth - tip.offsetWidth - 8))}px`;
    tip.style.top = `${Math.min(event.clientY + 14, innerHeight - tip.offsetHeight - 8)}px`;
  });
  document.addEventListener("click", (event) => {
    const mark = event.target.closest ? event.target.closest("svg.chart [data-key]") : null;
    if (!mark) return;
    const module = /^zoom:(\d+):(.*)$/.exec(mark.dataset.key);
    if (module) zoom(mark, `zoom:${module[1]}:`);
    find(module ? module[2] : mark.dataset.key, !module);
  });

  // -- flame graphs and treemaps: the module that is clicked fills the place of the whole tree
  const SIDES = ["x", "y", "width", "height"];
  const zoom = (mark, tree) => {
    const svg = mark.ownerSVGElement;
    const rects = [...svg.querySelectorAll(`rect[data-key^="${tree}"]`)];
    for (const rect of rects) {
      if (!rect.home) rect.home = SIDES.map((side) => +rect.getAttribute(side));
      if (rect.nextSibling && rect.nextSibling.nodeName === "text") rect.nextSibling.remove();
    }
    const [left, top, width, height] = rects[0].home;
    const [x, y, w, h] = mark.home;
    const flat = rects.every((rect) => rect.home[3] === rects[0].home[3]); // a flame graph zooms across alone
    for (const rect of rects) {
      const [rx, ry, rw, rh] = rect.home;
      const from = Math.max(left, left + (rx - x) * width / w);
      const to = Math.min(left + width, left + (rx + rw - x) * width / w);
      const upper = flat ? ry : Math.max(top, top + (ry - y) * height / h);
      const lower = flat ? ry + rh : Math.min(top + height, top + (ry + rh - y) * height / h);
      [from, upper, Math.max(0, to - from), Math.max(0, lower - upper)].forEach((v, i) => rect.setAttribute(SIDES[i], v));
      const name = rect.dataset.title.split(": ")[0];
      const most = Math.floor((to - from - 8) / 6.2);
      if (most < 3 || lower - upper < 12) continue;
      const text = document.createElementNS("http://www.w3.org/2000/svg", "text");
      for (const [key, value] of Object.entries({ x: from + 4, y: upper + 13, "font-size": 10, fill: rect.dataset.ink, "pointer-events": "none" })) text.setAttribute(key, value);
      text.textContent = name.length > most ? `${name.slice(0, most - 1)}…` : name;
      rect.after(text);
    }
  };
  for (const rect of all('svg.chart rect[data-key^="zoom:"]')) {
    const label = rect.nextSibling;
    const fill = /^var\(--([\w-]+),#/.exec(rect.getAttribute("fill"));
    rect.dataset.ink = label && label.nodeName === "text" ? label.getAttribute("fill") : fill ? `var(--on-${fill[1]})` : "#000";
  }
  for (const choice of all(".choice")) {
    const pick = (number) => {
      for (const part of choice.querySelectorAll("div[data-pick]")) part.hidden = part.dataset.pick !== number;
      for (const button of choice.querySelectorAll("button")) button.setAttribute("aria-selected", String(button.dataset.pick === number));
    };
    for (const button of choice.querySelectorAll("button")) button.onclick = () => pick(button.dataset.pick);
    pick("0");
  }

  // -- wide tables: a shade at the edge where more is to be seen
  for (const box of all(".scroll")) {
    const mark = () => {
      box.classList.toggle("more-right", box.scrollLeft + box.clientWidth < box.scrollWidth - 2);
      box.classList.toggle("more-left", box.scrollLeft > 2);
    };
    box.addEventListener("scroll", mark);
    new ResizeObserver(mark).observe(box);
    if (box.firstElementChild) new ResizeObserver(mark).observe(box.firstElementChild);
  }

  const source = $("#data");
  if (!source) return;
  const data = JSON.parse(source.textContent);
  if (!data.sims.length) return;
  const FEW = 200;

  // A row: what the kernel is, from data.kernels, and what it takes on this GPU, from sims[].rows.
  const [NAME, CLASS, PHASE, MODULE, SHAPES, COUNT, FLOPS, READ, WRITE, SHORT] = [0, 1, 2, 3, 4, 5, 6, 7, 8, 9];
  const rowsOf = (sim) => {
    const total = sim.rows.reduce((sum, r) => sum + r[2], 0);
    return sim.rows.map((r) => {
      const k = data.kernels[r[0]];
      const bytes = k[READ] + k[WRITE];
      const flops = Math.max(0, k[FLOPS]);
      return {
        kernel: k[SHORT], name: k[NAME], class: k[CLASS], phase: k[PHASE], module: k[MODULE] || "(top)", shapes: k[SHAPES],
        count: k[COUNT], flops, unmodeled: k[FLOPS] < 0, bytes, intensity: bytes ? flops / bytes : 0,
        bound: r[1], time: r[2], compute: r[3], memory: r[4], latency: r[5],
        overhead: r[6], wall: data.walls[r[7]],
        share: total ? r[2] / total : 0, rate: r[2] ? flops / r[2] : 0,
      };
    });
  };
  const tables = data.sims.map(rowsOf);

  // -- numbers
  const SI = [[1e18, "E"], [1e15, "P"], [1e12, "T"], [1e9, "G"], [1e6, "M"], [1e3, "k"], [1, ""]];
  const si = (v, unit) => {
    const [scale, prefix] = SI.find(([s]) => Math.abs(v) >= s) || SI[SI.length - 1];
    return `${(v / scale).toPrecision(3).replace(/e\+?\d+$/, "")} ${prefix}${unit}`;
  };
  const seconds = (v) => {
    const [scale, unit] = [[1, "s"], [1e-3, "ms"], [1e-6, "us"]].find(([s]) => v >= s) || [1e-9, "ns"];
    return `${(v / scale).toFixed(2)} ${unit}`;
  };

  // -- state, kept in the address so that a view can be linked
  const state = { sim: 0, sort: "time", dir: "desc", filter: "" };
  const readHash = () => {
    const query = new URLSearchParams(location.hash.slice(1));
    const at = data.sims.findIndex((s) => s.label === query.get("gpu"));
    if (at >= 0) state.sim = at;
    if (COLUMNS.some((c) => c.key === query.get("sort"))) state.sort = query.get("sort");
    state.dir = query.get("dir") === "asc" ? "asc" : "desc";
    state.filter = query.get("filter") || "";
  };
  const writeHash = () => {
    const query = new URLSearchParams({ gpu: data.sims[state.sim].label, sort: state.sort, dir: state.dir });
    if (state.filter) query.set("filter", state.filter);
    try { history.replaceState(null, "", `#${query}`); } catch (error) { /* a sandboxed page has no history */ }
  };

  // -- the kernel table
  const COLUMNS = [
    { key: "kernel", head: "kernel", wide: true },
    { key: "count", head: "×", num: (r) => (r.count > 1 ? r.count : "") },
    { key: "module", head: "module", wide: true },
    { key: "phase", head: "phase" },
    { key: "class", head: "class" },
    { key: "flops", head: "FLOPs", num: (r) => (r.unmodeled ? "no formula" : r.flops ? si(r.flops, "") : "0") },
    { key: "bytes", head: "bytes", num: (r) => si(r.bytes, "B") },
    { key: "intensity", head: "FLOP/B", num: (r) => r.intensity.toFixed(1) },
    { key: "bound", head: "bound", num: (r) => seconds(r.bound) },
    { key: "time", head: "time", num: (r) => seconds(r.time) },
    { key: "share", head: "time %", num: (r) => (100 * r.share).toFixed(2) },
    { key: "wall", head: "limited by" },
  ];
  const element = (tag, text, cls) => {
    const node = document.createElement(tag);
    if (text !== undefined) node.textContent = text;
    if (cls) node.className = cls;
    return node;
  };
  let showAll = false;
  const select = () => {
    const words = state.filter.toLowerCase().split(/\s+/).filter(Boolean);
    const text = (r) => `${r.name} ${r.kernel} ${r.module} ${r.class} ${r.phase} ${r.wall} ${r.shapes}`.toLowerCase();
    const rows = tables[state.sim].filter((r) => { const t = text(r); return words.every((w) => t.includes(w)); });
    const sign = state.dir === "asc" ? 1 : -1;
    const key = state.sort;
    return rows.sort((a, b) => (a[key] < b[key] ? -sign : a[key] > b[key] ? sign : 0));
  };
  const renderTable = () => {
    const rows = select();
    const body = $("#kernels tbody");
    body.replaceChildren(...rows.slice(0, showAll ? rows.length : FEW).map((r) => {
      const line = element("tr");
      for (const c of COLUMNS) {
        const cell = element("td", c.num ? c.num(r) : r[c.key], c.num ? "n" : c.wide ? "t wide" : "t");
        if (c.wide) cell.title = c.key === "kernel" ? `${r.name}\n${r.shapes}` : r.module;
        if (c.key === "kernel") {
          const dot = element("span", undefined, "dot");
          dot.style.background = data.colors[r.class] || data.colors.other;
          cell.prepend(dot);
        }
        line.append(cell);
      }
      return line;
    }));
    const time = rows.reduce((sum, r) => sum + r.time, 0);
    const share = rows.reduce((sum, r) => sum + r.share, 0);
    $("#count").textContent = `${rows.length} of ${tables[state.sim].length} rows, ${seconds(time)}, ${(100 * share).toFixed(1)} % of the time`;
    $("#more").hidden = showAll || rows.length <= FEW;
    for (const head of all("#kernels th")) {
      if (head.dataset.key === state.sort) head.setAttribute("aria-sort", state.dir === "asc" ? "ascending" : "descending");
      else head.removeAttribute("aria-sort");
    }
  };

  // -- wiring
  const update = () => {
    for (const panel of all(".panel")) panel.hidden = +panel.dataset.sim !== state.sim;
    for (const tab of all("#tabs button")) tab.setAttribute("aria-selected", String(+tab.dataset.sim === state.sim));
    renderTable();
    writeHash();
  };
  $("#kernels thead tr").replaceChildren(...COLUMNS.map((c) => {
    const head = element("th", c.head, c.num ? "n" : "t");
    head.dataset.key = c.key;
    head.onclick = () => {
      if (state.sort === c.key) state.dir = state.dir === "asc" ? "desc" : "asc";
      else { state.sort = c.key; state.dir = c.num ? "desc" : "asc"; }
      update();
    };
    return head;
  }));
  for (const tab of all("#tabs button")) tab.onclick = () => { state.sim = +tab.dataset.sim; update(); };
  find = (words, go) => {
    $("#filter").value = state.filter = words;
    update();
    if (go) $("#filter").scrollIntoView({ block: "center" });
  };
  $("#filter").oninput = (event) => { state.filter = event.target.value; update(); };
  $("#more").onclick = () => { showAll = true; renderTable(); };
  const follow = () => { readHash(); $("#filter").value = state.filter; update(); };
  addEventListener("hashchange", follow);
  follow();
})();
