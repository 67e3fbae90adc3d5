(() => {
  const $ = (selector, root) => (root || document).querySelector(selector);
  const all = (selector) => [...document.querySelectorAll(selector)];

  // -- wide tables: a shade at the edge where more is to be seen
  for (const box of all(".scroll")) {
    const mark = () => {
      box.classList.toggle("more-right", box.scrollLeft + box.clientWidth < box.scrollWidth - 2);
      box.classList.toggle("more-left", box.scrollLeft > 2);
    };
    box.addEventListener("scroll", mark);
    const sizes = new ResizeObserver(() => requestAnimationFrame(mark));  // the mark itself changes a size
    sizes.observe(box);
    if (box.firstElementChild) sizes.observe(box.firstElementChild);
  }

  const source = $("#data");
  if (!source) return;
  const data = JSON.parse(source.textContent);
  if (!data.sims.length) return;
  const FEW = 200;

  // A row: what the kernel is, from data.kernels, and what it takes on this GPU, from sims[].rows.
  const [NAME, CLASS, PHASE, MODULE, SHAPES, COUNT, FLOPS, READ, WRITE, SHORT, PROBLEM, SOURCE] = [0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11];
  const rowsOf = (sim) => {
    const total = sim.rows.reduce((sum, r) => sum + r[2], 0);
    return sim.rows.map((r) => {
      const k = data.kernels[r[0]];
      const bytes = k[READ] + k[WRITE];
      const flops = Math.max(0, k[FLOPS]);
      return {
        kernel: k[SHORT], name: k[NAME], class: k[CLASS], phase: k[PHASE], module: k[MODULE] || "(no module)", shapes: k[SHAPES],
        count: k[COUNT], flops, unmodeled: k[FLOPS] < 0, bytes, intensity: bytes ? flops / bytes : 0,
        bound: r[1], time: r[2], compute: r[3], memory: r[4], latency: r[5],
        overhead: r[6], wall: data.walls[r[7]], low: r[8], high: r[9], why: sim.why[r[10]] || "",
        read: k[READ], written: k[WRITE], source: k[SOURCE], problem: k[PROBLEM],
        key: String(r[11]), words: [k[NAME], k[MODULE], k[PHASE], k[PROBLEM]].filter(Boolean).join(" "),
        share: total ? r[2] / total : 0, rate: r[2] ? flops / r[2] : 0,
      };
    });
  };
  const tables = data.sims.map(rowsOf);
  for (const rows of tables) { // what the filter finds a row by; equal ones have a number, too
    const alike = new Map();
    for (const row of rows) alike.set(row.words, [...(alike.get(row.words) || []), row]);
    for (const own of alike.values()) if (own.length > 1) own.forEach((row, i) => { row.words += ` #${i + 1}`; });
  }

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

  // -- all that is known of a row: in its own lines below it, and where the pointer is on its marks
  const told = (r) => [
    `${r.count > 1 ? `${r.count} kernels, ` : ""}${r.unmodeled ? "no formula" : `${si(r.flops, "FLOP")}`}, ${si(r.read, "B")} read and ${si(r.written, "B")} written, ${r.intensity.toFixed(1)} FLOP/B`,
    `${seconds(r.time)} (80 % range ${seconds(r.low)} to ${seconds(r.high)}), bound ${seconds(r.bound)}, limited by ${r.wall}`,
    `compute ${seconds(r.compute)}, memory ${seconds(r.memory)}, latency ${seconds(r.latency)}, overhead ${seconds(r.overhead)}`,
    r.shapes && [r.problem, r.shapes].filter(Boolean).join("; "), r.why, r.source,
  ].filter(Boolean).join("\n");
  const rowOf = (key) => tables[state.sim].find((row) => row.key === key);
  page.says = (key) => {
    const row = rowOf(key);
    return row ? told(row) : "";
  };

  // a module as pictures of modules have it
  const starred = (module) => module.replace(/(^|\.)\d+(?=\.|$)/g, "$1*");

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
  let showAll = false, open = "";
  const opened = (r) => {
    const line = element("tr", undefined, "more"), cell = element("td", told(r), "t");
    cell.colSpan = COLUMNS.length;
    line.append(cell);
    return line;
  };
  const toggle = (r, line) => {
    const was = open === r.key && line.nextSibling && line.nextSibling.className === "more";
    for (const old of all("#kernels tr.more")) old.remove();
    open = was ? "" : r.key;
    if (!was) line.after(opened(r));
    page.show(open, open && starred(r.module));
  };
  const select = () => {
    const words = state.filter.toLowerCase().split(/\s+/).filter(Boolean);
    const text = (r) => `${r.words} ${r.kernel} ${r.module} ${starred(r.module)} ${r.class} ${r.wall} ${r.shapes}`.toLowerCase();
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
      line.tabIndex = 0;
      line.onclick = () => toggle(r, line);
      line.onkeydown = (event) => { if (event.key === "Enter") toggle(r, line); };
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
  const show = () => {
    for (const panel of all(".panel,#contents a[data-sim]")) panel.hidden = +panel.dataset.sim !== state.sim;
    for (const tab of all("#tabs button")) tab.setAttribute("aria-selected", String(+tab.dataset.sim === state.sim));
    renderTable();
  };
  const update = () => { show(); writeHash(); };
  $("#kernels thead tr").replaceChildren(...COLUMNS.map((c) => {
    const head = element("th", c.head, c.num ? "n" : "t");
    head.dataset.key = c.key;
    head.tabIndex = 0;
    head.onkeydown = (event) => { if (event.key === "Enter") head.click(); };
    head.onclick = () => {
      if (state.sort === c.key) state.dir = state.dir === "asc" ? "desc" : "asc";
      else { state.sort = c.key; state.dir = c.num ? "desc" : "asc"; }
      update();
    };
    return head;
  }));
  const tabs = all("#tabs button");
  for (const tab of tabs) {
    tab.onclick = () => { state.sim = +tab.dataset.sim; page.show(""); update(); };
    tab.onkeydown = (event) => {
      const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
      if (!step) return;
      const next = tabs[(tabs.indexOf(tab) + step + tabs.length) % tabs.length];
      next.focus();
      next.click();
    };
  }
  page.find = (key, module) => {
    const row = rowOf(key);
    if (!row && module === undefined) return; // left out of the table
    $("#filter").value = state.filter = row ? row.words : module;
    page.show(key, row && starred(row.module));
    update();
    if (row) $("#filter").scrollIntoView({ block: "center" });
  };
  $("#filter").oninput = (event) => { state.filter = event.target.value; page.show(""); update(); };
  $("#more").onclick = () => { showAll = true; renderTable(); };
  const follow = () => {
    const part = location.hash.startsWith("#part-") && document.getElementById(location.hash.slice(1));
    if (part) {
      const panel = part.closest(".panel");
      if (panel) state.sim = +panel.dataset.sim;
      show();
      part.scrollIntoView();
      return;
    }
    readHash();
    $("#filter").value = state.filter;
    update();
  };
  addEventListener("hashchange", follow);
  addEventListener("keydown", (event) => {
    if (event.key !== "/" || /^(INPUT|TEXTAREA|SELECT)$/.test(event.target.tagName)) return;
    event.preventDefault();
    $("#filter").focus();
  });
  follow();
})();
